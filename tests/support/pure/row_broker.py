"""Rows through the real accumulator and sender to a broker that is a list, without threads.

The broker decodes batches with kafka-python, so a future's offset can be looked up there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, cast

from kafka.record.default_records import DefaultRecordBatch

from spark_kafka_sink.client.chunk import RowChunk
from spark_kafka_sink.client.future import OnDelivery, RowFuture, SentRows
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.plugins.interceptors import ProducerInterceptors
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.partitioner import Partitioner, TopicLoad, choose_partitions
from spark_kafka_sink.producer.producer_batch import ProducerBatch, RecordSpan, split_spans
from spark_kafka_sink.records.encoder import encode_rows, record_sizes
from spark_kafka_sink.wire.messages import ProduceRequest
from spark_kafka_sink.wire.primitives import ZERO_UUID, Records
from support.oracles.record_batches import Headers
from support.pure.pure_producer import TOPIC, PureProducer, Settings, batches


class SentRow(NamedTuple):
    """A row to send; partition None for the partitioner's choice, timestamp_ms None for now."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()


class StoredRecord(NamedTuple):
    """A record in the broker's log."""

    value: bytes | None
    key: bytes | None
    timestamp_ms: int
    headers: Headers


def no_check() -> None:
    """Allow every wait."""


def sent_rows(interceptors: ProducerInterceptors | None = None) -> SentRows:
    """Return the table of a chunk's rows."""
    return SentRows(TOPIC, interceptors or ProducerInterceptors(), no_check, no_check)


def chunk_of(rows: list[SentRow], sent: SentRows, metadata: TopicMetadata) -> RowChunk:
    """Make a chunk of rows; a row without timestamp is sent at 5000 ms."""
    chunk = RowChunk(TOPIC, metadata, PendingAppend(), 0.0, sent)
    for number, row in enumerate(rows):
        chunk.cells.extend((row.value, row.key, 5.0))
        if row.partition is not None:
            chunk.partitions[number] = row.partition
        if row.timestamp_ms is not None:
            chunk.timestamps[number] = row.timestamp_ms
        if row.headers:
            chunk.headers[number] = row.headers
    return chunk


class _HalfBatch(NamedTuple):
    """A part of a split batch, as owners of spans see it."""

    topic_partition: TopicPartition
    base_offset: int
    record_count: int = 1
    log_append_time_ms: int = -1
    error: None = None
    record_errors: Mapping[int, KafkaException] = {}


@dataclass
class RowBroker:
    """A topic with some partitions on one node.

    split: whether batches are split in two (after MESSAGE_TOO_LARGE), with a record of another
    producer between the halves.
    """

    partitions: int
    settings: Settings
    random: Random
    split: bool = False
    log: list[list[StoredRecord | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = [[] for _ in range(self.partitions)]
        self.producer = PureProducer([1] * self.partitions, self.settings)
        self.metadata = TopicMetadata(
            topic_id=ZERO_UUID,
            leaders=[1] * self.partitions,
            leader_epochs=[0] * self.partitions,
        )
        self._partitioner = Partitioner(self.random)
        self.producer.ready()

    def _load(self, name: str, topic: TopicMetadata) -> TopicLoad:
        producer = self.producer
        return producer.accumulator.topic_load(name, topic, producer.latencies, adaptive=True)

    def send(
        self,
        rows: list[SentRow],
        callbacks: dict[int, OnDelivery] | None = None,
        interceptors: ProducerInterceptors | None = None,
    ) -> list[RowFuture]:
        """Append rows as one chunk."""
        sent = sent_rows(interceptors)
        sent.callbacks.update(callbacks or {})
        chunk_rows = chunk_of(rows, sent, self.metadata).rows()
        sizes = record_sizes(chunk_rows.columns)
        grouped = choose_partitions(
            chunk_rows, sizes, [self.metadata], self._partitioner, self._load
        )
        sent.lay_out(grouped)
        accumulator = self.producer.accumulator
        cuts, encoded = encode_rows(
            grouped.rows.columns, grouped.runs, accumulator.hold(grouped.targets)
        )
        for batch in accumulator.append(
            grouped.targets, cuts, encoded, self.producer.now, owner=sent
        ):
            batch.pack()
            accumulator.packed(batch)
        accumulator.let_go(grouped.targets)
        return [RowFuture(sent, number) for number in range(len(rows))]

    def deliver(self, code: Callable[[], int] = lambda: 0) -> None:
        """Receive and answer all appended batches, and complete their futures."""
        while requests := self.producer.poll():
            for request in requests:
                assert isinstance(request.message, ProduceRequest)
                (topic,) = request.message.topic_data
                (batch, *others) = batches(request)
                assert not others, "settings allow one batch a request"
                self.producer.answer(request, code(), len(self.log[topic.partition_data[0].index]))
                if batch.error is None and batch.is_done:
                    self._store(topic.partition_data[0].index, topic.partition_data[0].records)
                for done in self.producer.done():
                    self._report(done.topic_partition, done.spans, done)

    def _store(self, partition: int, records: Records | None) -> None:
        assert records is not None
        batch = DefaultRecordBatch(b"".join(bytes(buffer) for buffer in records.buffers))
        self.log[partition].extend(
            StoredRecord(r.value, r.key, r.timestamp, tuple(r.headers)) for r in batch
        )

    def _report(self, tp: TopicPartition, spans: list[RecordSpan], done: object) -> None:
        log = self.log[tp.partition]
        if not self.split or done.error is not None:  # type: ignore[attr-defined]
            for span in spans:
                span.owner.completed(span, done)  # type: ignore[arg-type] # a ProducerBatch
            return
        base, count = done.base_offset, done.record_count  # type: ignore[attr-defined]
        at = self.random.randint(0, count)
        log.insert(base + at, None)
        parts = zip(split_spans(spans, at), (base, base + at + 1), strict=True)
        for part, offset in parts:
            for span in part:
                span.owner.completed(span, cast("ProducerBatch", _HalfBatch(tp, offset)))
