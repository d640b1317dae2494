"""The producer of an executor: its I/O thread's loop in turns, and what a task does with it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import numpy as np
import pyarrow as pa

from simulation.batches import NUMBER
from simulation.exactly_once.process import Places, Process
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.client.assembly import assemble
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.producer_batch import ProducerBatch, unfinished
from spark_kafka_sink.producer.sender import SenderPoll
from spark_kafka_sink.producer.transactions.joined import JoinedPartition, JoinedTransaction
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.encoder import encode_rows, record_sizes
from spark_kafka_sink.records.layout import group_by_partition
from spark_kafka_sink.wire.exchange import Event

_LOOK_S: Final = 0.005


class Writer(Process):
    """A producer with its thread."""

    def __init__(self, places: Places, name: str, config: ProducerConfig) -> None:
        super().__init__(places, name)
        self._random: Random = places.random
        self._backoff = ExponentialBackoff.of_ms(
            config.retry_backoff_ms, config.retry_backoff_max_ms
        )
        with places.selecting(self.selector):
            self._state, self._thread = assemble(config, name)
        self._work = SenderPoll()
        self._events: list[Event] = []
        self._joined: JoinedTransaction | None = None
        self.wake()

    def run(self) -> None:
        """Run the loop of the I/O thread, `ProducerThread._loop`."""
        state = self._state
        while True:
            state.awake()
            events, self._events = self._events, []
            polled = state.poll(self._work, events, lambda: True)
            if polled is None:
                return
            self._work, now = polled
            self._thread._act(self._work, now)
            state.make_calls()
            wait = self._work.next_poll_at - self._scheduler.now
            self._events = self._thread._client.poll(max(0.0, min(wait, 3600.0)))

    # -- what a task does -------------------------------------------------------------------------

    def join(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        transaction_version: int,
        *,
        adds_partitions: bool,
        withholds: bool,
        checks_duplicates: bool,
    ) -> None:
        """Write in a transaction from now on, as `TaskProducer.join_transaction` does."""
        self._joined = JoinedTransaction(
            transactional_id,
            producer,
            transaction_version,
            adds_partitions=adds_partitions,
            checks_duplicates=checks_duplicates,
            retry_backoff=self._backoff,
            random=self._random,
        )
        self._state.join(self._joined, withholds=withholds)

    def append(self, topic: str, rows: list[tuple[int, int]]) -> None:
        """Append rows, each a number and a partition. Raise the error that ended the producer."""
        state, accumulator = self._state, self._state.accumulator
        state.raise_if_fatal()
        state.metadata.track(topic, self._scheduler.now)
        values = pa.array([NUMBER.pack(number) for number, _ in rows], pa.binary())
        columns = RecordColumns.of(
            key=None,
            value=BinaryColumn.of(values),
            headers=None,
            timestamps_ms=np.full(len(rows), round(self._scheduler.now * 1000), np.int64),
        )
        pending = PendingAppend()
        has_room = accumulator.pool.reserve(pending, int(record_sizes(columns).sum()))
        assert has_room
        runs = group_by_partition(np.array([at for _, at in rows], np.int64))
        targets = [TopicPartition(topic, at) for at in runs.partitions]
        cuts, encoded = encode_rows(columns, runs, accumulator.hold(targets))
        full = accumulator.append(targets, cuts, encoded, self._scheduler.now)
        accumulator.let_go(targets)
        accumulator.pool.give_back(pending)
        for batch in full:
            batch.pack()
            accumulator.packed(batch)
        state.wake()

    def flush(self, then: Callable[[KafkaException | None], None]) -> None:
        """Wait for all responses; then: is called with the first error."""
        flush = object()
        self._state.accumulator.begin_flush(flush)
        self._state.wake()
        self._wait(self._state.accumulator.incomplete, flush, then)

    def _wait(
        self,
        batches: list[ProducerBatch],
        flush: object,
        then: Callable[[KafkaException | None], None],
    ) -> None:
        if not self.is_alive:
            return
        if self.paused_until > self._scheduler.now:
            self._scheduler.at(self.paused_until, self._wait, batches, flush, then)
            return
        left = unfinished(batches)
        if left:
            self._scheduler.after(_LOOK_S, self._wait, left, flush, then)
            return
        self._state.accumulator.end_flush(flush)
        then(self._state.deliveries.take_error() or self._state.fatal_error)

    def detach(self) -> dict[TopicPartition, JoinedPartition]:
        """Leave the transaction; return what was written in it."""
        assert self._joined is not None
        self._state.end_joined()
        written, self._joined = dict(self._joined.partitions), None
        return written
