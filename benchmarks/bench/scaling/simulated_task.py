"""One task's real producer (partitioner, accumulator, sender), with brokers that only answer.

Time is simulated: slices arrive at a steady rate, or as soon as there is memory for them. A
response takes one round trip and the broker's time for the bytes of this request and those before.
The requests that brokers would see are counted.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pyarrow as pa
from support.pure.pure_producer import TOPIC, PureProducer, batches
from support.pure.pure_producer import Settings as PureSettings

from bench.scaling.model import Settings
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.partitioner import Partitioner, TopicLoad, choose_partitions
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns, Rows
from spark_kafka_sink.records.encoder import encode_rows, record_sizes
from spark_kafka_sink.wire.exchange import ClientRequest
from spark_kafka_sink.wire.messages import MetadataResponse

VALUE_BYTES = 100


@dataclass
class Seen:
    """A task's requests in the view of brokers, and its peak of memory."""

    metadata_requests: int = 0
    producer_ids: int = 0
    nodes: set[int] = field(default_factory=set)
    partitions: set[int] = field(default_factory=set)
    requests: int = 0
    batch_sizes: list[int] = field(default_factory=list)
    memory_bytes: int = 0


@dataclass
class _Producer(PureProducer):
    seen: Seen = field(default_factory=Seen)

    def metadata_response(self) -> MetadataResponse:
        self.seen.metadata_requests += 1
        return super().metadata_response()


class SimulatedTask:
    """A task that writes rows in slices, alone in a cluster."""

    def __init__(
        self,
        settings: Settings,
        brokers: int,
        partitions: int,
        round_trip_s: float,
        seed: int,
        *,
        broker_bytes_per_s: float = math.inf,
    ) -> None:
        leaders = [1 + number % brokers for number in range(partitions)]
        pure = PureSettings(
            batch_size=settings.batch_bytes,
            linger=settings.linger_s,
            buffer_memory=settings.memory_bytes,
            max_request_size=settings.request_bytes,
        )
        self._random = Random(seed)
        self._numpy = np.random.default_rng(seed)
        self._partitioner = Partitioner(self._random)
        self._partitioner.spread_evenly(seed)
        self._round_trip_s = round_trip_s
        self._broker_bytes_per_s = broker_bytes_per_s
        self._busy_until: dict[int, float] = {}
        self._answers: list[tuple[float, int, ClientRequest]] = []
        self._numbers = itertools.count()
        self.seen = Seen()
        self._producer = _Producer(leaders, pure, seen=self.seen)
        self._producer.ready()

    def run(self, slices: int, rows: int, rows_per_s: float, partitions: list[int] | None) -> Seen:
        """Write `slices` slices of `rows` rows, then flush, until all is acknowledged.

        partitions: the partitions of rows with keys; None for rows without.
        """
        for number in range(slices):
            self._pass_time(until=(number + 1) * rows / rows_per_s)
            self._append(rows, partitions)
        self._producer.accumulator.begin_flush(self)
        while self._producer.accumulator.has_incomplete:
            self._send()
            self._pass_time(until=self._answers[0][0])
        self.seen.producer_ids = self._producer.next_producer_id - 4000
        return self.seen

    def _append(self, rows: int, partitions: list[int] | None) -> None:
        producer = self._producer
        columns = RecordColumns.of(
            key=None,
            value=BinaryColumn.of(pa.array([bytes(VALUE_BYTES)] * rows, pa.binary())),
            headers=None,
            timestamps_ms=np.zeros(rows, np.int64),
        )
        chosen = None if partitions is None else self._numpy.choice(partitions, rows)
        sizes = record_sizes(columns)
        topic = producer.metadata.topic(TOPIC)
        assert topic is not None
        grouped = choose_partitions(
            Rows(columns, [TOPIC], None, chosen), sizes, [topic], self._partitioner, self._load
        )
        accumulator, reservation = producer.accumulator, PendingAppend()
        accumulator.pool.wait(reservation)
        while not accumulator.pool.reserve(reservation, int(sizes.sum())):
            self._send()
            self._pass_time(until=self._answers[0][0])
        accumulator.pool.stop_waiting(reservation)
        cuts, encoded = encode_rows(
            grouped.rows.columns, grouped.runs, accumulator.hold(grouped.targets)
        )
        accumulator.append(grouped.targets, cuts, encoded, producer.now)
        accumulator.let_go(grouped.targets)
        taken = accumulator.pool.total_bytes - accumulator.pool.available_bytes
        self.seen.memory_bytes = max(self.seen.memory_bytes, taken)
        accumulator.pool.give_back(reservation)

    def _load(self, name: str, topic: TopicMetadata) -> TopicLoad:
        producer = self._producer
        return producer.accumulator.topic_load(name, topic, producer.latencies, adaptive=True)

    def _pass_time(self, until: float) -> None:
        """Send due batches and answer requests, up to a time."""
        producer = self._producer
        while True:
            self._send()
            due = min(until, producer.accumulator.next_sendable_at(producer.now))
            if self._answers:
                due = min(due, self._answers[0][0])
            producer.now = max(producer.now, due)
            while self._answers and self._answers[0][0] <= producer.now:
                _, _, request = heapq.heappop(self._answers)
                producer.answer(request)
                for batch in producer.done():
                    producer.accumulator.deallocate(batch)
            if producer.now >= until:
                return

    def _send(self) -> None:
        producer = self._producer
        for request in producer.poll():
            assert request.node_id is not None
            self.seen.requests += 1
            self.seen.nodes.add(request.node_id)
            size = 0
            for batch in batches(request):
                self.seen.batch_sizes.append(batch.size_bytes)
                self.seen.partitions.add(batch.topic_partition.partition)
                size += batch.size_bytes
            began = max(producer.now, self._busy_until.get(request.node_id, 0.0))
            ended = began + size / self._broker_bytes_per_s
            self._busy_until[request.node_id] = ended
            due = ended + self._round_trip_s
            heapq.heappush(self._answers, (due, next(self._numbers), request))
