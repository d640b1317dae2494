"""The producer's state machines without network or clock: the test is broker and clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import numpy as np
import pyarrow as pa

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.completion import BatchCompletion
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.producer.partitioner import NodeLatencies
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.sender import Sender, SenderConfig
from spark_kafka_sink.producer.sequences import Sequences
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.producer.transactions.requests import TransactionalRequest
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.compression import codec
from spark_kafka_sink.records.encoder import encode_rows, record_sizes
from spark_kafka_sink.records.layout import group_by_partition
from spark_kafka_sink.records.varint import Int64s
from spark_kafka_sink.wire.exchange import Answered, ClientRequest, NodeReady, RequestFailed
from spark_kafka_sink.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from spark_kafka_sink.wire.versions import NodeApiVersions
from support.pure.transaction_answers import TransactionCoordinator, versions_of

TOPIC = "t"
# Two of these records fill a batch of 1000 bytes.
FULL = [b"x" * 400, b"y" * 400]


@dataclass
class Settings:
    """The settings that a test may change; times in seconds."""

    batch_size: int = 1000
    linger: float = 0.0
    buffer_memory: int = 1_000_000
    delivery_timeout: float = 120.0
    is_of_task: bool = False
    metadata_max_idle: float = float("inf")
    retries: int = 2**31 - 1
    max_in_flight: int = 5
    max_request_size: int = 1_000_000
    idempotent: bool = True
    acks: int = -1
    compression: str = "none"
    retry_backoff: float = 0.1
    availability_timeout: float = 0.0
    transaction_version: int | None = None


@dataclass
class PureProducer:
    """Sender and accumulator; `leaders` has each partition's node, -1 for none.

    topic_number: the topic's id, 0 for none.
    """

    leaders: list[int]
    settings: Settings = field(default_factory=Settings)
    now: float = 0.0
    next_producer_id: int = 4000
    topic_number: int = 0
    asked: list[ClientRequest] = field(default_factory=list)
    """The transactional requests that were sent; all were answered at once, without an error."""

    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        s = self.settings
        backoff, random = ExponentialBackoff(s.retry_backoff, 1.0), Random(1)
        self.metadata = ClusterMetadata(
            300.0, backoff, random, rebootstrap_after_s=300.0, max_idle_s=s.metadata_max_idle
        )
        self.accumulator = RecordAccumulator(
            batch_size_bytes=s.batch_size,
            linger_s=s.linger,
            buffer_memory_bytes=s.buffer_memory,
            delivery_timeout_s=s.delivery_timeout,
            leader=self.metadata.leader if s.is_of_task else None,
            found_limit_age_s=300.0,
            codec=codec(s.compression),
        )
        self.metadata.before_change = self.accumulator.leaders_change
        self.sequences = None
        self.transactions = None
        self.coordinator = TransactionCoordinator()
        if s.idempotent:
            self.sequences = Sequences(is_transactional=s.transaction_version is not None)
        if s.transaction_version is not None and self.sequences is not None:
            self.transactions = TransactionManager("tid", 60_000, self.sequences, backoff, random)
        self.completion = BatchCompletion(
            accumulator=self.accumulator,
            metadata=self.metadata,
            sequences=self.sequences,
            retries=s.retries,
            delivery_timeout_s=s.delivery_timeout,
            retry_backoff=backoff,
            random=random,
            transactions=self.transactions,
        )
        self.latencies = NodeLatencies(s.availability_timeout)
        self.sender = Sender(
            SenderConfig(
                acks=s.acks,
                max_in_flight=s.max_in_flight,
                max_request_size_bytes=s.max_request_size,
                request_timeout_ms=30_000,
                retry_backoff=backoff,
            ),
            accumulator=self.accumulator,
            metadata=self.metadata,
            completion=self.completion,
            sequences=self.sequences,
            latencies=self.latencies,
            random=random,
            transactions=self.transactions,
        )
        self.metadata.track(TOPIC, self.now)

    def ready(self, *nodes: int) -> None:
        """Set metadata and a producer id, and connect nodes."""
        assert self.poll() == []
        versions = NodeApiVersions({})
        if self.settings.transaction_version is not None:
            versions = versions_of(self.settings.transaction_version)
        for node in nodes or sorted({n for n in self.leaders if n >= 0}):
            self.sender.handle(NodeReady(node, versions), self.now)

    def append(self, partition: int, values: list[bytes], timestamp_ms: int = 0) -> None:
        """Append records to a partition, as KafkaProducer does."""
        self.append_slice(np.full(len(values), partition), values, timestamp_ms)

    def append_slice(self, partitions: Int64s, values: list[bytes], timestamp_ms: int = 0) -> None:
        """Append records, each to its partition, as KafkaProducer appends a slice."""
        columns = RecordColumns.of(
            key=None,
            value=BinaryColumn.of(pa.array(values, pa.binary())),
            headers=None,
            timestamps_ms=np.full(len(values), timestamp_ms),
        )
        reservation = PendingAppend()
        assert self.accumulator.pool.reserve(reservation, int(record_sizes(columns).sum()))
        runs = group_by_partition(partitions)
        targets = [TopicPartition(TOPIC, partition) for partition in runs.partitions]
        cuts, encoded = encode_rows(columns, runs, self.accumulator.hold(targets))
        full = self.accumulator.append(targets, cuts, encoded, self.now)
        self.accumulator.let_go(targets)
        self.accumulator.pool.give_back(reservation)
        for batch in full:
            batch.pack()
            self.accumulator.packed(batch)

    def poll(self) -> list[ClientRequest]:
        """Poll as the I/O thread does; answer all requests except Produce, and return those.

        It polls until the sender waits for time to pass or for an event.
        """
        produced: list[ClientRequest] = []
        while True:
            work = self.sender.poll(self.now)
            self.warnings += work.warnings
            requests = [*work.requests, *(self.sender.build(d) for d in work.drained)]
            for drained in work.drained:
                for batch in drained.batches:
                    self.accumulator.packed(batch)
            others = [r for r in requests if not isinstance(r.message, ProduceRequest)]
            produced += [r for r in requests if isinstance(r.message, ProduceRequest)]
            for request in others:
                self.answer_other(request)
            if not requests or (not others and work.next_poll_at > self.now):
                return produced

    def answer_other(self, request: ClientRequest) -> None:
        """Answer a request other than Produce, without an error."""
        if isinstance(request.message, MetadataRequest):
            self.sender.handle(Answered(request, 1, self.metadata_response()), self.now)
        elif isinstance(request.context, TransactionalRequest):
            self.asked.append(request)
            response = self.coordinator.answer(request.context)
            self.sender.handle(Answered(request, 1, response), self.now)
        else:
            assert isinstance(request.message, InitProducerIdRequest), request
            answer = InitProducerIdResponse(
                error_code=0, producer_id=self.next_producer_id, producer_epoch=0
            )
            self.next_producer_id += 1
            self.sender.handle(Answered(request, 1, answer), self.now)

    def metadata_response(self) -> MetadataResponse:
        """Return metadata with the current `leaders`."""
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=n, host="127.0.0.1", port=9000 + n)
                for n in sorted({1, *(n for n in self.leaders if n >= 0)})
            ],
            topics=[
                MetadataResponseTopic(
                    error_code=0,
                    name=TOPIC,
                    topic_id=UUID(int=self.topic_number),
                    partitions=[
                        MetadataResponsePartition(
                            error_code=0 if leader >= 0 else 5,
                            partition_index=number,
                            leader_id=leader,
                            replica_nodes=[],
                            isr_nodes=[],
                        )
                        for number, leader in enumerate(self.leaders)
                    ],
                )
            ],
        )

    def answer(
        self,
        request: ClientRequest,
        code: int | Callable[[int], int] = 0,
        base_offset: int = 0,
        *,
        log_start_offset: int = -1,
    ) -> None:
        """Answer every partition of a Produce request with a code."""
        node = request.node_id
        assert node is not None
        assert isinstance(request.message, ProduceRequest)
        responses = [
            PartitionProduceResponse(
                index=data.index,
                error_code=code(data.index) if callable(code) else code,
                base_offset=base_offset,
                log_start_offset=log_start_offset,
            )
            for topic in request.message.topic_data
            for data in topic.partition_data
        ]
        response = ProduceResponse(
            responses=[TopicProduceResponse(name=TOPIC, partition_responses=responses)]
        )
        self.sender.handle(Answered(request, node, response), self.now)

    def lose(self, request: ClientRequest, code: int = 13, *, was_sent: bool = True) -> None:
        """Fail a request because of its connection (NETWORK_EXCEPTION) or a timeout (7)."""
        reason = "connection lost"
        failed = RequestFailed(request, request.node_id, code, reason, was_sent=was_sent)
        self.sender.handle(failed, self.now)

    def done(self) -> list[ProducerBatch]:
        """Return the batches completed since the last call."""
        done = list(self.completion.done)
        self.completion.done.clear()
        return done


def batches(request: ClientRequest) -> list[ProducerBatch]:
    """Return the batches of a Produce request."""
    found: list[ProducerBatch] = list(request.context.batches.values())  # type: ignore[attr-defined]
    return found


def sequences(request: ClientRequest) -> list[int]:
    """Return the base sequences of a Produce request's batches."""
    return [batch.base_sequence for batch in batches(request)]


def bytes_of(request: ClientRequest) -> bytes:
    """Return the record batches of a Produce request, as they are sent."""
    assert isinstance(request.message, ProduceRequest)
    sent = b""
    for topic in request.message.topic_data:
        for data in topic.partition_data:
            assert data.records is not None
            sent += b"".join(map(bytes, data.records.buffers))
    return sent
