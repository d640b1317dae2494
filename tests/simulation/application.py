"""The caller of a simulated producer: appends and flushes, step by step.

It does what `KafkaProducer` does around the accumulator. Time passes where its thread would encode,
compress or wait for memory.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa

from simulation.batches import NUMBER, POISON
from simulation.checker import Checker, Ledger
from simulation.scenario import Append, Scenario
from simulation.scheduler import Scheduler
from spark_kafka_sink.client.producer_state import ProducerState
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.producer_batch import ProducerBatch, unfinished
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.encoder import EncodedRecords, encode_rows, record_sizes
from spark_kafka_sink.records.layout import Cut, group_by_partition

_RETRY_S = 0.01
_FILLER = b"." * 100


class Application:
    """One task that appends rows, one append after another."""

    def __init__(
        self,
        scenario: Scenario,
        state: ProducerState,
        scheduler: Scheduler,
        random: Random,
        ledger: Ledger,
        checker: Checker,
    ) -> None:
        self._scenario = scenario
        self._state = state
        self._scheduler = scheduler
        self._random = random
        self._ledger = ledger
        self._checker = checker
        self._left = list(scenario.appends)
        self._delivery_s: float = scenario.configs["delivery.timeout.ms"] / 1000
        self._request_s: float = scenario.configs["request.timeout.ms"] / 1000
        self._next_number = 0
        self.last_step_at = 0.0
        self.is_done = False

    def start(self) -> None:
        """Schedule the work."""
        for tp in self._scenario.shape.partitions:
            self._state.metadata.track(tp.topic, 0.0)
        self._scheduler.after(self._left[0].at, self._next)
        for at in self._scenario.flushes:
            self._scheduler.after(at, self._flush)
        if self._scenario.close_at is not None:
            self._scheduler.after(self._scenario.close_at, self._close)

    def _close(self) -> None:
        """Fail unacknowledged batches, as `close(0)` does, and stop appending."""
        self._scheduler.trace("producer", "is closed")
        self._checker.is_closed = True
        self._left.clear()
        self._state.give_up(KafkaException("Producer is closed forcefully."))
        self._state.wake()

    def _next(self) -> None:
        if not self._left:
            self.is_done = True
            self._flush()
            return
        append = self._left.pop(0)
        rows, numbers = self._rows(append)
        self._reserve(rows, append, numbers, self._scheduler.now, PendingAppend())

    def _rows(self, append: Append) -> tuple[RecordColumns, list[int]]:
        count = len(append.partitions)
        numbers = list(range(self._next_number, self._next_number + count))
        self._next_number += count
        filler = _FILLER[: append.value_bytes - NUMBER.size]
        values = [NUMBER.pack(number) + filler for number in numbers]
        if append.poison is not None:
            number = numbers[append.poison]
            values[append.poison] = NUMBER.pack(number) + bytes([POISON])
            self._checker.poisoned.add(number)
        start = self._random.randrange(10**12)
        columns = RecordColumns.of(
            key=None,
            value=BinaryColumn.of(pa.array(values, pa.binary())),
            headers=None,
            timestamps_ms=start + np.array(append.partitions, np.int64),
        )
        return columns, numbers

    def _reserve(
        self,
        columns: RecordColumns,
        append: Append,
        numbers: list[int],
        since: float,
        reservation: PendingAppend,
    ) -> None:
        # The memory of an expired batch is kept until its request ends.
        self._checker.check_call("a wait for memory", since, self._delivery_s + self._request_s)
        self.last_step_at = self._scheduler.now
        accumulator = self._state.accumulator
        pool = accumulator.pool
        if not pool.reserve(reservation, int(record_sizes(columns).sum())):
            if not pool.waiters:
                pool.wait(reservation)
            self._state.wake()
            self._scheduler.after(
                _RETRY_S, self._reserve, columns, append, numbers, since, reservation
            )
            return
        pool.stop_waiting(reservation)
        partitions = self._scenario.shape.partitions
        runs = group_by_partition(np.array(append.partitions, np.int64))
        targets = [partitions[number] for number in runs.partitions]
        opens = accumulator.hold(targets)
        cuts, encoded = encode_rows(columns, runs, opens)
        in_order = [numbers[row] for row in runs.order.tolist()]
        self._scheduler.after(
            self._moment(), self._append, targets, cuts, encoded, reservation, in_order
        )

    def _append(
        self,
        targets: list[TopicPartition],
        cuts: list[Cut],
        encoded: EncodedRecords,
        reservation: PendingAppend,
        numbers: list[int],
    ) -> None:
        accumulator = self._state.accumulator
        if self._checker.is_closed:
            accumulator.let_go(targets)
            accumulator.pool.give_back(reservation)
            self._next()
            return
        for cut in cuts:
            self._ledger.append(targets[cut.run], numbers[cut.start : cut.stop])
        full = accumulator.append(targets, cuts, encoded, self._scheduler.now)
        self._ledger.see(accumulator.incomplete)
        accumulator.let_go(targets)
        accumulator.pool.give_back(reservation)
        self._scheduler.trace(
            "producer", "append records {}..{} to {}", min(numbers), max(numbers),
            ", ".join(map(str, targets)),
        )  # fmt: skip
        self._state.wake()
        self._scheduler.after(self._moment(), self._pack, full)

    def _pack(self, full: list[ProducerBatch]) -> None:
        self.last_step_at = self._scheduler.now
        if full:
            batch = full.pop(0)
            batch.pack()
            self._state.accumulator.packed(batch)
            self._state.wake()
            self._scheduler.after(self._moment() / 10, self._pack, full)
            return
        wait = self._left[0].at - self._scheduler.now if self._left else 0.0
        self._scheduler.after(max(0.0, wait), self._next)

    def _flush(self) -> None:
        accumulator = self._state.accumulator
        flush = object()
        accumulator.begin_flush(flush)
        self._state.wake()
        self._wait_for(accumulator.incomplete, self._scheduler.now, flush)

    def _wait_for(self, batches: list[ProducerBatch], since: float, flush: object) -> None:
        left = unfinished(batches)
        if left:
            self._checker.check_call("a flush", since, self._delivery_s)
            self._scheduler.after(_RETRY_S, self._wait_for, left, since, flush)
        else:
            self._state.accumulator.end_flush(flush)

    def _moment(self) -> float:
        """Return the duration of work outside the lock, in seconds."""
        return self._random.choice([0.0, 0.0001, 0.001, 0.02])
