"""What a task pays for sending from a thread of its own, beside sending in between by itself.

``PYTHONPATH=tests python -m benchmarks.inline_io``, in an environment of ``make bench``.

The same Arrow batches go through `KafkaProducer` with the sink's defaults to a broker of their own,
in turns: as it is, and with the I/O thread's loop run by the caller, once after every slice and
whenever it waits. Prints medians: CPU microseconds a row, of the producer and of the broker, and
thousands of rows a second. The second way is an experiment: batches wait for their turn there while
the caller has no rows, and whoever calls from two threads would be in the loop twice.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import psutil
import pyarrow as pa
from support import fetch_kafka
from support.chance import binary_column
from support.kafka_cluster import KafkaCluster
from support.readers import create_topic

from spark_kafka_sink import kafka_producer
from spark_kafka_sink.column_producer import ColumnProducer
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.kafka_producer import KafkaProducer
from spark_kafka_sink.producer.sender import SenderPoll
from spark_kafka_sink.producer_thread import ProducerThread
from spark_kafka_sink.spark.memory import keep_heap
from spark_kafka_sink.spark.options import SINK_DEFAULTS

TOPIC: Final = "inline"
PARTITIONS: Final = 12
BATCH_BYTES: Final = 8 << 20
BATCHES: Final = 40
ROUNDS: Final = 8
WARM_UP_ROUNDS: Final = 3
LONGEST_TURN_S: Final = 0.1
LOGS: Final = Path("/dev/shm")
BROKER: Final = {"log.retention.check.interval.ms": "2000", "log.segment.delete.delay.ms": "500"}
FEW_BYTES: Final = {"retention.bytes": str(64 << 20), "segment.bytes": str(16 << 20)}


class _NoThread(threading.Thread):
    def start(self) -> None:
        """Leave the loop to the caller."""


class _TurningCondition:
    """Whoever waits takes turns of the loop."""

    def __init__(self, thread: InlineThread) -> None:
        self._thread = thread

    def wait(self, timeout: float | None = None) -> bool:
        self._thread.lock.release()
        try:
            self._thread.turn(LONGEST_TURN_S if timeout is None else min(timeout, LONGEST_TURN_S))
        finally:
            self._thread.lock.acquire()
        return True

    def notify_all(self) -> None:
        """Nobody else waits."""


class InlineThread(ProducerThread):
    """The loop without its thread."""

    def __init__(self, config: ProducerConfig, client_id: str) -> None:
        super().__init__(config, client_id)
        self.changed: Any = _TurningCondition(self)
        self._events: list[Any] = []
        self._work = SenderPoll()

    def _make_thread(self, run: Callable[[], None]) -> threading.Thread:
        return _NoThread(target=run)

    def turn(self, longest_s: float) -> None:
        """Do what one turn of the loop does, and wait no longer than so."""
        with self.lock:
            now = self._clock()
            self._take_in(self._work, self._events, now)
            self._events, self._work = [], self._sender.poll(now)
            self._collect()
        self._act(self._work, now)
        self._make_calls()
        wait = min(longest_s, self._work.next_poll_at - self._clock())
        self._events = self._client.poll(max(0.0, wait))
        self._observe(self._events)

    def stop(self) -> None:
        """Close the connections."""
        self._client.close()


def rows(value_bytes: int) -> pa.RecordBatch:
    """Give an Arrow batch of bytes by chance, with keys."""
    chance, count = np.random.default_rng(), BATCH_BYTES // (value_bytes + 26)
    sizes = {"key": 16, "value": value_bytes}
    return pa.record_batch({name: binary_column(chance, count, of) for name, of in sizes.items()})


def write(bootstrap: str, batches: list[pa.RecordBatch], *, inline: bool) -> KafkaProducer:
    """Send batches, one way or the other."""
    kind = InlineThread if inline else ProducerThread
    append = ColumnProducer._append_slice

    def and_turn(self: ColumnProducer, *given: Any) -> None:  # noqa: ANN401 - as it comes
        append(self, *given)
        if isinstance(self._thread, InlineThread):
            self._thread.turn(0)

    configs = {**SINK_DEFAULTS, "bootstrap.servers": bootstrap}
    with (
        mock.patch.object(kafka_producer, "ProducerThread", kind),
        mock.patch.object(ColumnProducer, "_append_slice", and_turn),
        KafkaProducer(configs) as producer,
    ):
        for batch in batches:
            producer.append(TOPIC, batch)
        producer.flush()
    return producer


def measure(bootstrap: str, broker: psutil.Process, value_bytes: int) -> None:
    """Print what both ways cost for values of a size."""
    batches = [rows(value_bytes) for _ in range(4)] * (BATCHES // 4)
    count = sum(batch.num_rows for batch in batches)
    took: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        for inline in (number % 2 == 0, number % 2 == 1):
            own, others, began = time.process_time(), sum(broker.cpu_times()[:2]), time.monotonic()
            write(bootstrap, batches, inline=inline)
            own, others = time.process_time() - own, sum(broker.cpu_times()[:2]) - others
            seconds = time.monotonic() - began
            if number >= WARM_UP_ROUNDS:
                row = (own / count * 1e6, others / count * 1e6, count / seconds / 1000)
                took[inline].append(row)
    print(f"values of {value_bytes:,} bytes")
    for inline, found in took.items():
        own, others, rate = (statistics.median(each) for each in zip(*found, strict=True))
        name = "inline" if inline else "thread"
        print(f"  {name}: {own:.3f} us, broker {others:.3f} us, {rate:,.0f} k rows/s", flush=True)


def main() -> int:
    """Measure three sizes on a Kafka of its own."""
    if not fetch_kafka.fetch(fetch_kafka.NEWEST):
        print(fetch_kafka.missing(), file=sys.stderr)
        return 2
    keep_heap()
    with tempfile.TemporaryDirectory(dir=LOGS if os.access(LOGS, os.W_OK) else None) as folder:
        cluster = KafkaCluster(fetch_kafka.libs(fetch_kafka.NEWEST), Path(folder), 1, BROKER)
        try:
            cluster.start()
            create_topic(cluster.bootstrap, TOPIC, PARTITIONS, FEW_BYTES)
            for value_bytes in (100, 1000, 10_000):
                measure(cluster.bootstrap, psutil.Process(cluster.pid(1)), value_bytes)
        finally:
            cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
