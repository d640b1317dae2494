"""ProduceRequests: turns drained batches into a request, and its response into results of batches.

This module determines the form of a Produce request (the version, topics by name or by id, the
record format of the node), and matches the partitions of a response with the batches.
`BatchCompletion` determines what an error means for a batch; the sender determines when to send.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np
import pyarrow.compute as pc

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import ApiException
from spark_kafka_sink.model import TopicPartition, nodes_of
from spark_kafka_sink.producer.completion import BatchCompletion
from spark_kafka_sink.producer.feature_level import (
    FIRST_WITH_BATCHES,
    LEADER,
    NEWEST_PRODUCE,
    check_old_format,
    check_zstd,
    magic,
    produce_version,
)
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.compression import Buffer, Codec
from spark_kafka_sink.records.log_reader import read_log
from spark_kafka_sink.records.message_set import message_set
from spark_kafka_sink.wire.exchange import Answered, ClientRequest, RequestFailed
from spark_kafka_sink.wire.messages import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from spark_kafka_sink.wire.primitives import ZERO_UUID, Records
from spark_kafka_sink.wire.versions import NodeApiVersions

# The last version of Produce that names topics; later versions need every topic's id (KIP-516).
_LAST_PRODUCE_BY_NAME = 12
# The error codes with which a response may name the new leader (KIP-951).
_LEADER_MOVED = (codes.NOT_LEADER_OR_FOLLOWER, codes.FENCED_LEADER_EPOCH)
# With acks=0, brokers send no response. A batch that was sent counts as acknowledged.
_SENT = PartitionProduceResponse(index=0, error_code=codes.NONE)

if TYPE_CHECKING:
    from spark_kafka_sink.producer.transactions.joined import JoinedTransaction
    from spark_kafka_sink.producer.transactions.manager import TransactionManager


@dataclass(slots=True)
class DrainedBatches:
    """Batches that go to one node in one request, in the order in which they were drained."""

    node_id: int
    batches: list[ProducerBatch] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(slots=True)
class SentBatches:
    """The `ClientRequest.context` of a Produce request: its batches, and its topics' names.

    refused: the errors of batches that are not in the request, because the broker does not support
    their compression or record format.
    """

    batches: dict[TopicPartition, ProducerBatch]
    names: dict[UUID, str]
    refused: dict[TopicPartition, ApiException]


class ProduceRequests:
    """Makes Produce requests and reads the responses.

    transactions: manages the transactions that the batches belong to; None if there are none.
    """

    def __init__(
        self,
        metadata: ClusterMetadata,
        completion: BatchCompletion,
        transactions: TransactionManager | JoinedTransaction | None,
        *,
        acks: int,
        timeout_ms: int,
    ) -> None:
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._metadata = metadata
        self._completion = completion
        self.transactions = transactions
        # The latest version of Produce that each node supports.
        self._versions: dict[int, int] = {}

    def node_ready(self, node_id: int, versions: NodeApiVersions) -> None:
        """Store the API versions of a node whose connection is ready."""
        self._versions[node_id] = produce_version(versions)

    def build(self, drained: DrainedBatches) -> ClientRequest:
        """Return the Produce request; batches that are not compressed yet are compressed here.

        This needs no lock: the batches are in flight, so only the I/O thread uses them.
        """
        topics: dict[str, TopicProduceData] = {}
        refused: dict[TopicPartition, ApiException] = {}
        version = self._versions.get(drained.node_id, NEWEST_PRODUCE)
        for batch in drained.batches:
            try:
                records = records_for(version, batch)
            except ApiException as error:
                refused[batch.topic_partition] = error
                continue
            name, partition = batch.topic_partition
            topic = topics.get(name)
            if topic is None:
                topic_id = self._metadata.topic_id(name)
                topic = TopicProduceData(name=name, topic_id=topic_id, partition_data=[])
                topics[name] = topic
            topic.partition_data.append(PartitionProduceData(index=partition, records=records))
        names = {topic.topic_id: topic.name for topic in topics.values()}
        transactions = self.transactions
        return ClientRequest(
            node_id=drained.node_id,
            message=ProduceRequest(
                transactional_id=(None if transactions is None else transactions.transactional_id),
                acks=self._acks,
                timeout_ms=self._timeout_ms,
                topic_data=list(topics.values()),
            ),
            max_version=self._max_produce_version(names),
            expects_response=self._acks != 0,
            context=SentBatches({b.topic_partition: b for b in drained.batches}, names, refused),
        )

    def _max_produce_version(self, names: Mapping[UUID, str]) -> int | None:
        by_name = _LAST_PRODUCE_BY_NAME if ZERO_UUID in names else None
        in_transaction = self.transactions and self.transactions.max_produce_version
        return in_transaction or by_name

    def answered(self, event: Answered, sent: SentBatches, now: float) -> bool:
        """Complete the batches of a response. Return whether the response named newer leaders."""
        self._fail_refused(sent, event.node_id, now)
        if not isinstance(event.response, ProduceResponse):
            for batch in sent.batches.values():
                self._completion.answered(batch, _SENT, event.node_id, now)
            return False
        for topic in event.response.responses:
            name = topic.name or sent.names.get(topic.topic_id, "")
            for answer in topic.partition_responses:
                topic_partition = TopicPartition(name, answer.index)
                if topic_partition in sent.batches:
                    batch = sent.batches.pop(topic_partition)
                    self._completion.answered(batch, answer, event.node_id, now)
        for batch in sent.batches.values():
            reason = "the response does not contain this partition"
            code = codes.UNKNOWN_SERVER_ERROR
            self._completion.failed(batch, code, reason, event.node_id, now)
        return self._take_leaders(event.response, sent.names)

    def failed(self, event: RequestFailed, sent: SentBatches, now: float) -> None:
        """Retry or fail the batches of a request that gets no response."""
        self._fail_refused(sent, event.node_id, now)
        for batch in sent.batches.values():
            self._completion.failed(
                batch, event.code, event.reason, event.node_id, now, was_sent=event.was_sent
            )

    def _fail_refused(self, sent: SentBatches, node_id: int | None, now: float) -> None:
        for topic_partition, error in sent.refused.items():
            batch = sent.batches.pop(topic_partition)
            self._completion.failed(batch, error.code, str(error), node_id, now, was_sent=False)

    def _take_leaders(self, response: ProduceResponse, names: dict[UUID, str]) -> bool:
        """Store the new leaders that a broker names in its response (KIP-951).

        If a topic was recreated since the request, its leaders in the response are ignored, because
        the leader epochs of the new topic start again.
        """
        ids = {name: topic_id for topic_id, name in names.items()}
        leaders: dict[TopicPartition, LeaderIdAndEpoch] = {}
        for topic in response.responses:
            name = topic.name or names.get(topic.topic_id, "")
            if self._metadata.topic_id(name) != ids.get(name, ZERO_UUID):
                continue
            for answer in topic.partition_responses:
                if answer.error_code in _LEADER_MOVED and answer.current_leader is not None:
                    leaders[TopicPartition(name, answer.index)] = answer.current_leader
        if not leaders:
            return False
        return self._metadata.update_leaders(leaders, nodes_of(response.node_endpoints).values())


def records_for(version: int, batch: ProducerBatch) -> Records:
    """Return the bytes to send for a batch; version: the broker's latest version of Produce.

    Raise an ApiException with the error code if the broker does not support the batch.
    """
    stamped = batch.stamp()
    if version >= FIRST_WITH_BATCHES:
        check_zstd(version, batch.codec, LEADER)
        return stamped
    batch_bytes = b"".join(stamped.buffers)
    converted = down_convert(batch_bytes, magic(version), batch.codec)
    batch.down_converted(sum(map(len, converted)))
    return Records(converted, batch.sent_bytes)


def down_convert(batch: Buffer, magic: int, codec: Codec) -> tuple[Buffer, ...]:
    """Convert one complete record batch to a message set of format `magic`, 0 or 1.

    Batches are always built in format v2. Batches for a broker before 0.11, which are rare, are
    decoded and encoded again here (RecordsUtil.downConvert of the Java client before 4.0). If the
    batch uses a field that the old format lacks, an exception is raised. Only timestamps are
    dropped silently, because v0 has none. codec: the codec of the batch. Raise the same exceptions
    as `check_old_format`.
    """
    (read,) = read_log(batch)
    records = read.records(limit_bytes=2**31 - 1)
    check_old_format(
        magic,
        codec,
        has_producer_id=read.producer_id >= 0,
        has_headers=bool(pc.any(pc.greater(pc.list_value_length(records.headers), 0)).as_py()),
    )
    columns = RecordColumns.of(
        key=BinaryColumn.of(records.keys),
        value=BinaryColumn.of(records.values),
        headers=None,
        timestamps_ms=np.asarray(records.timestamps_ms),
    )
    return message_set(magic, columns, codec)
