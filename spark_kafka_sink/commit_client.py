"""CommitClient: puts the questions of exactly once to brokers, and returns their replies.

The machines of `commit` decide what to ask, when, and what a reply means. This module knows whom to
ask: the coordinator of a transactional id, the leader of a partition, or every broker. It looks
these up, keeps connections of its own, and may have many questions under way. It decides nothing,
and sends nothing again by itself: a question whose request got no response has the reply
`Unanswered`.

Each question is a generator that yields what it waits for, a `RequestFuture` or a time, and returns
the reply. `answers` resumes each generator when its wait is over. Everything happens in the caller's
thread. No numpy and no Arrow are imported, because the processes in which Spark plans and commits
have no use for them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Final, Self, TypeAlias, TypeVar

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.log_record import (
    LOG_PARTITION,
    LogEntry,
    LogReader,
    encode,
)
from spark_kafka_sink.commit.questions import (
    ONGOING,
    ActiveProducer,
    Added,
    AddPartitions,
    Answer,
    Ask,
    Described,
    DescribeProducers,
    DescribeTransaction,
    Ended,
    EndTxn,
    Initialized,
    InitProducerId,
    Listed,
    ListTransactions,
    LogRead,
    MarkerRead,
    OpenTransaction,
    ProducersDescribed,
    Question,
    ReadLog,
    ReadMarker,
    Reply,
    Unanswered,
    WriteRecord,
    Written,
)
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import ApiException, AuthenticationException, error_code
from spark_kafka_sink.model import Node, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.network.request_client import ConsumerNetworkClient, RequestFuture
from spark_kafka_sink.records.batch import batch_header
from spark_kafka_sink.records.default_record import DefaultBatch, one_record, read_batches
from spark_kafka_sink.wire.describe_messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicRequest,
)
from spark_kafka_sink.wire.fetch_messages import (
    LATEST_TIMESTAMP,
    READ_UNCOMMITTED,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionData,
)
from spark_kafka_sink.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
    TopicProduceData,
)
from spark_kafka_sink.wire.primitives import Records
from spark_kafka_sink.wire.transaction_messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

_ALL_REPLICAS: Final = -1
_TRANSACTION: Final = 1
# Produce 12 adds the partition to the transaction, 13 names topics by their ids. So does Fetch 13.
_LAST_PRODUCE_V1: Final = 11
_PRODUCE_V2: Final = 12
_LAST_FETCH_BY_NAME: Final = 12
# Before, a new leader may tell an end that is below records that are committed (KIP-207).
_LISTS_RELIABLE_ENDS_SINCE: Final = 5
_FETCH_BYTES: Final = 8 * 1024 * 1024
_FETCH_WAIT_MS: Final = 500
# The first wait after a look-up that a broker could not answer; each one after it is twice as long.
_LOOK_UP_WAIT_S: Final = 0.05
_LONGEST_LOOK_UP_WAIT_S: Final = 1.0
# select() takes no infinity.
_LONGEST_WAIT_S: Final = 3600.0

_T = TypeVar("_T")
# What a generator yields: the response that it waits for, or the time until which it pauses.
_Wait: TypeAlias = RequestFuture | float
_Steps: TypeAlias = Generator[_Wait, None, _T]


class _NoReplyError(Exception):
    """A question cannot be put: an error code of a look-up, or no response at all."""

    def __init__(self, code: int, reason: str, *, is_unanswered: bool) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.is_unanswered = is_unanswered


class CommitClient:
    """Questions to the brokers of one cluster; a context manager, for one thread at a time.

    log_topic: the topic whose partition 0 is the commit log. brokers: that another client learned
    from the cluster.
    """

    def __init__(
        self,
        config: ProducerConfig,
        log_topic: str,
        brokers: Iterable[Node] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = TopicPartition(log_topic, LOG_PARTITION)
        self._request_timeout_ms = config.request_timeout_ms
        self._clock = clock
        self._client = ConsumerNetworkClient.of(config, clock, Random())  # noqa: S311 - jitter
        self._client.set_initial_nodes(brokers)
        self._nodes: dict[int, Node] = {}
        self._coordinators: dict[str, int] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._logs: dict[str, tuple[LogReader, int]] = {}
        self._under_way: list[_UnderWay] = []
        self.warnings: list[str] = []
        """What was ignored in the log, and why."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; what was asked has no answer then."""
        self._client.close()

    # -- questions --------------------------------------------------------------------------------

    def ask(self, questions: Iterable[Question]) -> None:
        """Begin to ask questions; `answers` returns the replies."""
        for question in questions:
            self._under_way.append(_UnderWay(question.ask, self._steps(question)))

    @property
    def is_waiting(self) -> bool:
        """Whether a question has no answer yet."""
        return bool(self._under_way)

    def answers(self, timeout_s: float = _LONGEST_WAIT_S) -> list[Answer]:
        """Wait for the next replies, at most so long; return an empty list if there is no question.

        Raise the error of a login or a certificate that brokers reject, or this client.
        """
        deadline = self._clock() + timeout_s
        while self._under_way:
            found = self._resume_all()
            if found:
                return found
            now = self._clock()
            if now >= deadline:
                break
            due = min(each.resumes_at for each in self._under_way)
            self._client.poll(max(0.0, min(due, deadline) - now))
        return []

    def answers_to(self, questions: Iterable[Question]) -> list[Answer]:
        """Ask questions and wait for all replies; return them in the order of the questions."""
        self.ask(questions)
        asked = [each.ask for each in self._under_way]
        found: dict[Ask, Reply] = {}
        while self._under_way:
            found.update(self.answers())
        return [Answer(each, found[each]) for each in asked]

    def _resume_all(self) -> list[Answer]:
        found, still = [], []
        for each in self._under_way:
            reply = each.resume(self._clock())
            if reply is None:
                still.append(each)
            else:
                found.append(Answer(each.ask, reply))
        self._under_way = still
        return found

    def _steps(self, question: Question) -> _Steps[Reply]:
        ask = question.ask
        if question.pause_s > 0:
            yield self._clock() + question.pause_s
        if question.looks_up:
            self._forget(ask)
        try:
            return (yield from _METHODS[type(ask)](self, ask))
        except _NoReplyError as error:
            if error.is_unanswered:
                self._forget(ask)
                return Unanswered(error.code, error.reason)
            return _FAILED[type(ask)](error=error.code, reason=error.reason)

    def _forget(self, ask: Ask) -> None:
        """Look up again whom to ask."""
        transactional_id = getattr(ask, "transactional_id", None)
        if transactional_id is not None:
            self._coordinators.pop(transactional_id, None)
        if isinstance(ask, DescribeProducers | ReadMarker):
            self._leaders.pop(ask.partition, None)
        if isinstance(ask, WriteRecord | ReadLog):
            self._leaders.pop(self._log, None)

    def _send(
        self,
        node_id: int | None,
        message: Request,
        max_version: int | None = None,
        min_version: int = 0,
    ) -> _Steps[Response]:
        """Send one request and wait for its response. Raise _NoReplyError if there is none."""
        future = self._client.send(node_id, message, max_version, min_version)
        while not future.is_done:
            yield future
        error = future.error
        if isinstance(error, AuthenticationException):
            raise error
        if error is not None:
            is_unanswered = error_code(error.code).retriable
            raise _NoReplyError(error.code, str(error), is_unanswered=is_unanswered)
        return future.response

    # -- whom to ask ------------------------------------------------------------------------------

    def _coordinator(self, transactional_id: str) -> _Steps[int]:
        known = self._coordinators.get(transactional_id)
        if known is not None:
            return known
        if not self._nodes:
            yield from self._metadata([])
        request = FindCoordinatorRequest(
            key=transactional_id, key_type=_TRANSACTION, coordinator_keys=[transactional_id]
        )
        response = yield from self._send(None, request)
        if not isinstance(response, FindCoordinatorResponse):
            raise _unexpected(response)
        found = response.coordinators[0] if response.coordinators else response
        code = found.error_code
        if code == codes.NONE and not found.host:
            code = codes.COORDINATOR_NOT_AVAILABLE
        if code != codes.NONE:
            raise _refused(code, f"the look-up of the coordinator of {transactional_id}",
                           found.error_message)  # fmt: skip
        node = Node(id=found.node_id, host=found.host, port=found.port)
        if self._nodes.get(node.id) != node:
            self._nodes[node.id] = node
            self._client.set_nodes(self._nodes)
        self._coordinators[transactional_id] = node.id
        return node.id

    def _leader(self, partition: TopicPartition) -> _Steps[int]:
        known = self._leaders.get(partition)
        if known is not None:
            return known
        response = yield from self._metadata([partition.topic])
        what = f"the look-up of the leader of {partition}"
        for topic in response.topics:
            if topic.error_code != codes.NONE:
                raise _refused(topic.error_code, what)
            for each in topic.partitions:
                if each.leader_id >= 0 and each.leader_id in self._nodes:
                    at = TopicPartition(topic.name or "", each.partition_index)
                    self._leaders[at] = each.leader_id
                elif each.partition_index == partition.partition:
                    raise _refused(codes.LEADER_NOT_AVAILABLE, what)
        if partition not in self._leaders:
            raise _refused(codes.UNKNOWN_TOPIC_OR_PARTITION, what)
        return self._leaders[partition]

    def _metadata(self, topics: Sequence[str]) -> _Steps[MetadataResponse]:
        """Ask for topics, and learn the brokers."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
        )
        attempts = 0
        while True:
            response = yield from self._send(None, request)
            if not isinstance(response, MetadataResponse):
                raise _unexpected(response)
            # A broker that is starting lists no brokers yet.
            if response.brokers:
                break
            wait = min(_LOOK_UP_WAIT_S * 2**attempts, _LONGEST_LOOK_UP_WAIT_S)
            yield self._clock() + wait
            attempts += 1
        self._nodes = {
            b.node_id: Node(id=b.node_id, host=b.host, port=b.port) for b in response.brokers
        }
        self._client.set_nodes(self._nodes)
        return response

    # -- coordinators -----------------------------------------------------------------------------

    def _list_transactions(self, ask: ListTransactions) -> _Steps[Reply]:
        yield from self._metadata([])
        # In RE2, any punctuation may be escaped. The pattern has to match the whole id.
        pattern = f"(?s){re.escape(ask.prefix)}.*"
        futures = {
            node_id: self._client.send(
                node_id,
                ListTransactionsRequest(
                    state_filters=[ONGOING], transactional_id_pattern=pattern
                ),
            )
            for node_id in self._nodes
        }
        found: set[OpenTransaction] = set()
        for node_id, future in futures.items():
            while not future.is_done:
                yield future
            if isinstance(future.error, AuthenticationException):
                raise future.error
            if future.error is not None:
                is_unanswered = error_code(future.error.code).retriable
                raise _NoReplyError(
                    future.error.code, str(future.error), is_unanswered=is_unanswered
                )
            response = future.response
            if not isinstance(response, ListTransactionsResponse):
                raise _unexpected(response)
            if response.error_code != codes.NONE:
                raise _refused(response.error_code, f"ListTransactions at node {node_id}")
            found.update(
                OpenTransaction(each.transactional_id, each.producer_id)
                for each in response.transaction_states
                if each.transactional_id.startswith(ask.prefix)
            )
        return Listed(frozenset(found))

    def _describe_transaction(self, ask: DescribeTransaction) -> _Steps[Reply]:
        node_id = yield from self._coordinator(ask.transactional_id)
        request = DescribeTransactionsRequest(transactional_ids=[ask.transactional_id])
        response = yield from self._send(node_id, request)
        if not isinstance(response, DescribeTransactionsResponse):
            raise _unexpected(response)
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
                    reason=_reason(each.error_code, "DescribeTransactions", node_id),
                )
        raise _left_out("DescribeTransactions", node_id)

    def _init_producer_id(self, ask: InitProducerId) -> _Steps[Reply]:
        node_id = yield from self._coordinator(ask.transactional_id)
        request = InitProducerIdRequest(
            transactional_id=ask.transactional_id, transaction_timeout_ms=ask.timeout_ms
        )
        response = yield from self._send(node_id, request)
        if not isinstance(response, InitProducerIdResponse):
            raise _unexpected(response)
        return Initialized(
            ProducerIdAndEpoch(response.producer_id, response.producer_epoch),
            response.error_code,
            _reason(response.error_code, "InitProducerId", node_id),
        )

    def _add_partitions(self, ask: AddPartitions) -> _Steps[Reply]:
        node_id = yield from self._coordinator(ask.transactional_id)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ask.transactional_id,
            v3_and_below_producer_id=ask.producer.producer_id,
            v3_and_below_producer_epoch=ask.producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=numbers)
                for name, numbers in _by_topic(ask.partitions).items()
            ],
        )
        response = yield from self._send(node_id, request)
        if not isinstance(response, AddPartitionsToTxnResponse):
            raise _unexpected(response)
        results = {
            TopicPartition(topic.name, each.partition_index): each.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        }
        for partition in ask.partitions:
            code = results.get(partition, codes.UNKNOWN_SERVER_ERROR)
            # This one only says that another partition has an error.
            if code not in (codes.NONE, codes.OPERATION_NOT_ATTEMPTED):
                api = f"AddPartitionsToTxn for {partition}"
                return Added(code, _reason(code, api, node_id))
        code = max(results.values(), default=codes.NONE)
        return Added(code, _reason(code, "AddPartitionsToTxn", node_id))

    def _end_txn(self, ask: EndTxn) -> _Steps[Reply]:
        node_id = yield from self._coordinator(ask.transactional_id)
        request = EndTxnRequest(
            transactional_id=ask.transactional_id,
            producer_id=ask.producer.producer_id,
            producer_epoch=ask.producer.epoch,
            committed=ask.commit,
        )
        response = yield from self._send(node_id, request, ask.version, ask.version)
        if not isinstance(response, EndTxnResponse):
            raise _unexpected(response)
        return Ended(
            ProducerIdAndEpoch(response.producer_id, response.producer_epoch),
            response.error_code,
            _reason(response.error_code, "EndTxn", node_id),
        )

    # -- leaders ----------------------------------------------------------------------------------

    def _write_record(self, ask: WriteRecord) -> _Steps[Reply]:
        node_id = yield from self._leader(self._log)
        key = ask.transactional_id
        section, info = one_record(key.encode(), encode(key, ask.record), _now_ms())
        header = batch_header(
            info, [section], ask.producer, ask.sequence, transactional=True
        )
        records = Records((header, section), len(header) + len(section))
        data = PartitionProduceData(index=self._log.partition, records=records)
        request = ProduceRequest(
            transactional_id=ask.transactional_id,
            acks=_ALL_REPLICAS,
            timeout_ms=self._request_timeout_ms,
            topic_data=[TopicProduceData(name=self._log.topic, partition_data=[data])],
        )
        is_v2 = ask.level >= 2
        response = yield from self._send(
            node_id,
            request,
            max_version=_PRODUCE_V2 if is_v2 else _LAST_PRODUCE_V1,
            min_version=_PRODUCE_V2 if is_v2 else 0,
        )
        if not isinstance(response, ProduceResponse):
            raise _unexpected(response)
        for topic in response.responses:
            for each in topic.partition_responses:
                reason = _reason(each.error_code, f"Produce to {self._log}", node_id)
                return Written(
                    each.base_offset,
                    each.log_append_time_ms != -1,
                    each.error_code,
                    "; ".join(filter(None, (reason, each.error_message))),
                )
        raise _left_out("Produce", node_id)

    def _describe_producers(self, ask: DescribeProducers) -> _Steps[Reply]:
        node_id = yield from self._leader(ask.partition)
        topic = TopicRequest(
            name=ask.partition.topic, partition_indexes=[ask.partition.partition]
        )
        response = yield from self._send(node_id, DescribeProducersRequest(topics=[topic]))
        if not isinstance(response, DescribeProducersResponse):
            raise _unexpected(response)
        for found in response.topics:
            for each in found.partitions:
                producers = tuple(
                    ActiveProducer(
                        ProducerIdAndEpoch(one.producer_id, one.producer_epoch),
                        one.last_sequence,
                        one.current_txn_start_offset,
                    )
                    for one in each.active_producers
                )
                api = f"DescribeProducers of {ask.partition}"
                reason = _reason(each.error_code, api, node_id)
                return ProducersDescribed(producers, each.error_code, reason)
        raise _left_out("DescribeProducers", node_id)

    # -- reading ----------------------------------------------------------------------------------

    def _read_log(self, ask: ReadLog) -> _Steps[Reply]:
        end = yield from self._end(self._log)
        reader, position = self._logs.get(ask.key) or (LogReader(ask.key), 0)
        while position < end:
            found = yield from self._fetch(self._log, position)
            if found.error_code == codes.OFFSET_OUT_OF_RANGE:
                # Compaction deletes no offsets, but an operator may delete records.
                position = max(position, found.log_start_offset)
                if found.log_start_offset <= position:
                    raise _refused(found.error_code, f"Fetch of {self._log} at {position}")
                continue
            if found.error_code != codes.NONE:
                raise _refused(found.error_code, f"Fetch of {self._log}")
            batches = list(read_batches(found.records or b""))
            reader.read(LogEntry.of(each) for each in batches)
            position = _next_offset(batches, position)
            self._logs[ask.key] = (reader, position)
        self.warnings += reader.take_warnings()
        return LogRead(reader.reading(ask.key))

    def _read_marker(self, ask: ReadMarker) -> _Steps[Reply]:
        end = yield from self._end(ask.partition)
        position = ask.offset
        while position < end:
            found = yield from self._fetch(ask.partition, position)
            if found.error_code == codes.OFFSET_OUT_OF_RANGE:
                return MarkerRead(is_gone=True)
            if found.error_code != codes.NONE:
                raise _refused(found.error_code, f"Fetch of {ask.partition}")
            batches = list(read_batches(found.records or b""))
            for each in batches:
                header = each.header
                is_meant = header.is_control and header.producer_id == ask.producer_id
                if is_meant and header.base_offset >= ask.offset:
                    marker = each.marker()
                    if marker is not None:
                        return MarkerRead(marker)
            position = _next_offset(batches, position)
        return MarkerRead()

    def _end(self, partition: TopicPartition) -> _Steps[int]:
        """Return the high watermark."""
        node_id = yield from self._leader(partition)
        wanted = ListOffsetsPartition(
            partition_index=partition.partition, timestamp=LATEST_TIMESTAMP
        )
        request = ListOffsetsRequest(
            isolation_level=READ_UNCOMMITTED,
            topics=[ListOffsetsTopic(name=partition.topic, partitions=[wanted])],
        )
        response = yield from self._send(
            node_id, request, min_version=_LISTS_RELIABLE_ENDS_SINCE
        )
        if not isinstance(response, ListOffsetsResponse):
            raise _unexpected(response)
        for topic in response.topics:
            for each in topic.partitions:
                if each.error_code != codes.NONE:
                    raise _refused(each.error_code, f"ListOffsets of {partition}")
                return each.offset
        raise _left_out("ListOffsets", node_id)

    def _fetch(self, partition: TopicPartition, offset: int) -> _Steps[PartitionData]:
        node_id = yield from self._leader(partition)
        wanted = FetchPartition(
            partition=partition.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES
        )
        request = FetchRequest(
            max_wait_ms=_FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            isolation_level=READ_UNCOMMITTED,
            topics=[FetchTopic(topic=partition.topic, partitions=[wanted])],
        )
        response = yield from self._send(node_id, request, max_version=_LAST_FETCH_BY_NAME)
        if not isinstance(response, FetchResponse):
            raise _unexpected(response)
        if response.error_code != codes.NONE:
            raise _refused(response.error_code, f"Fetch of {partition}")
        for topic in response.responses:
            for each in topic.partitions:
                return each
        raise _left_out("Fetch", node_id)


class _UnderWay:
    """A question under way."""

    def __init__(self, ask: Ask, steps: _Steps[Reply]) -> None:
        self.ask = ask
        self._steps = steps
        self._wait: _Wait = 0.0

    @property
    def resumes_at(self) -> float:
        """When it resumes by time alone."""
        return self._wait if isinstance(self._wait, float) else float("inf")

    def resume(self, now: float) -> Reply | None:
        """Go on for as long as there is nothing to wait for; return the reply if there is one."""
        while True:
            wait = self._wait
            is_over = wait <= now if isinstance(wait, float) else wait.is_done
            if not is_over:
                return None
            try:
                self._wait = next(self._steps)
            except StopIteration as stop:
                reply: Reply = stop.value
                return reply


def _next_offset(batches: Sequence[DefaultBatch], position: int) -> int:
    """Return the offset after the batches of a fetch.

    A fetch below the end has a batch, unless it is of records that are deleted meanwhile.
    """
    return batches[-1].header.last_offset + 1 if batches else position


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _reason(code: int, what: str, node_id: int) -> str:
    if code == codes.NONE:
        return ""
    return f"{what} at node {node_id}: {error_code(code).name} ({code})"


def _refused(code: int, what: str, said: str | None = None) -> _NoReplyError:
    row = error_code(code)
    reason = f"{what}: {row.name} ({code})" + (f", {said}" if said else "")
    return _NoReplyError(code, reason, is_unanswered=False)


def _left_out(api: str, node_id: int) -> _NoReplyError:
    reason = f"{api} at node {node_id}: the response does not contain what was asked for"
    return _NoReplyError(codes.UNKNOWN_SERVER_ERROR, reason, is_unanswered=False)


def _unexpected(response: Response) -> TypeError:
    return TypeError(f"a response of another type: {response!r}")


_METHODS: Final[Mapping[type[Ask], Callable[..., _Steps[Reply]]]] = {
    ListTransactions: CommitClient._list_transactions,
    DescribeTransaction: CommitClient._describe_transaction,
    InitProducerId: CommitClient._init_producer_id,
    AddPartitions: CommitClient._add_partitions,
    WriteRecord: CommitClient._write_record,
    EndTxn: CommitClient._end_txn,
    ReadLog: CommitClient._read_log,
    DescribeProducers: CommitClient._describe_producers,
    ReadMarker: CommitClient._read_marker,
}
# The reply to each question that got an error code in place of an answer.
_FAILED: Final[Mapping[type[Ask], Callable[..., Reply]]] = {
    ListTransactions: Listed,
    DescribeTransaction: Described,
    InitProducerId: Initialized,
    AddPartitions: Added,
    WriteRecord: Written,
    EndTxn: Ended,
    ReadLog: LogRead,
    DescribeProducers: ProducersDescribed,
    ReadMarker: MarkerRead,
}
