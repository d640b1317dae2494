"""Requests about transactions: to a coordinator, or to all brokers to list open transactions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.questions import (
    ONGOING,
    Added,
    AddPartitions,
    Described,
    DescribeTransaction,
    Ended,
    EndTxn,
    Initialized,
    InitProducerId,
    Listed,
    ListTransactions,
    OpenTransaction,
    Reply,
)
from spark_kafka_sink.commit_client.brokers import Brokers
from spark_kafka_sink.commit_client.generators import (
    NoReplyError,
    Steps,
    left_out,
    reason_of,
    refused,
)
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.wire.describe_messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from spark_kafka_sink.wire.messages import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.wire.transaction_messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)


class Transactions:
    """Sends requests about transactions. Each method raises the exceptions of `Brokers.ask`."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def list_open(self, ask: ListTransactions) -> Steps[Reply]:
        """Return the open transactions on all brokers.

        Raise NoReplyError if a broker does not respond or returns an error.
        """
        yield from self._brokers.metadata([])
        # Brokers match the pattern with RE2, which allows a backslash before any punctuation. The
        # pattern has to match the complete id.
        pattern = f"(?s){re.escape(ask.prefix)}.*"
        request = ListTransactionsRequest(state_filters=[ONGOING], transactional_id_pattern=pattern)
        futures = self._brokers.send(self._brokers.nodes, request)
        found: set[OpenTransaction] = set()
        for node_id, future in futures.items():
            response = yield from self._brokers.response_to(future, ListTransactionsResponse)
            if response.error_code != codes.NONE:
                raise refused(response.error_code, f"ListTransactions at node {node_id}")
            found.update(
                OpenTransaction(each.transactional_id, each.producer_id)
                for each in response.transaction_states
                if each.transactional_id.startswith(ask.prefix)
            )
        return Listed(frozenset(found))

    def describe(self, ask: DescribeTransaction) -> Steps[Reply]:
        """Return the state of a transaction."""
        node_id, response = yield from self._brokers.ask_coordinator(
            ask.transactional_id,
            DescribeTransactionsRequest(transactional_ids=[ask.transactional_id]),
            DescribeTransactionsResponse,
        )
        for each in response.transaction_states:
            if each.transactional_id == ask.transactional_id:
                return Described(
                    state=each.transaction_state,
                    producer=ProducerIdAndEpoch(each.producer_id, each.producer_epoch),
                    timeout_ms=each.transaction_timeout_ms,
                    start_ms=each.transaction_start_time_ms,
                    partitions=frozenset(
                        TopicPartition(topic.topic, number)
                        for topic in each.topics
                        for number in topic.partitions
                    ),
                    error=each.error_code,
                    reason=reason_of(each.error_code, "DescribeTransactions", node_id),
                )
        raise left_out("DescribeTransactions", node_id)

    def init_producer_id(self, ask: InitProducerId) -> Steps[Reply]:
        """Return the next producer id and epoch of a transactional id.

        Raise NoReplyError if the response contains neither an error nor a valid producer id.
        """
        node_id, response = yield from self._brokers.ask_coordinator(
            ask.transactional_id,
            InitProducerIdRequest(
                transactional_id=ask.transactional_id,
                transaction_timeout_ms=ask.timeout_ms,
                producer_id=ask.producer.producer_id,
                producer_epoch=ask.producer.epoch,
            ),
            InitProducerIdResponse,
        )
        producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        if response.error_code == codes.NONE and producer.problem:
            reason = f"InitProducerId at node {node_id}: {producer.problem}"
            raise NoReplyError(codes.REQUEST_TIMED_OUT, reason, is_unanswered=True)
        return Initialized(
            producer,
            response.error_code,
            reason_of(response.error_code, "InitProducerId", node_id),
        )

    def add_partitions(self, ask: AddPartitions) -> Steps[Reply]:
        """Add partitions to a transaction."""
        node_id, response = yield from self._brokers.ask_coordinator(
            ask.transactional_id,
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=ask.transactional_id,
                v3_and_below_producer_id=ask.producer.producer_id,
                v3_and_below_producer_epoch=ask.producer.epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnTopic(name=name, partitions=numbers)
                    for name, numbers in _by_topic(ask.partitions).items()
                ],
            ),
            AddPartitionsToTxnResponse,
        )
        results = {
            TopicPartition(topic.name, each.partition_index): each.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        }
        for partition in ask.partitions:
            code = results.get(partition, codes.UNKNOWN_SERVER_ERROR)
            # OPERATION_NOT_ATTEMPTED only means that another partition has an error.
            if code not in (codes.NONE, codes.OPERATION_NOT_ATTEMPTED):
                api = f"AddPartitionsToTxn for {partition}"
                return Added(code, reason_of(code, api, node_id))
        code = max(results.values(), default=codes.NONE)
        return Added(code, reason_of(code, "AddPartitionsToTxn", node_id))

    def end(self, ask: EndTxn) -> Steps[Reply]:
        """Commit or abort a transaction."""
        node_id, response = yield from self._brokers.ask_coordinator(
            ask.transactional_id,
            EndTxnRequest(
                transactional_id=ask.transactional_id,
                producer_id=ask.producer.producer_id,
                producer_epoch=ask.producer.epoch,
                committed=ask.commit,
            ),
            EndTxnResponse,
            ask.version,
            ask.send_by,
        )
        return Ended(
            ProducerIdAndEpoch(response.producer_id, response.producer_epoch),
            response.error_code,
            reason_of(response.error_code, "EndTxn", node_id),
        )


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics
