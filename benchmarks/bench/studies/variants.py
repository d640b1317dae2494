"""Other designs of a task's producer, compared with the current one.

``PYTHONPATH=benchmarks:tests:jobs python -m bench.studies.variants [none] [lz4] [zstd]``, in an
environment of ``make bench``; without a codec's name, all three.

The same Arrow batches pass through `KafkaProducer` with the sink's defaults to a broker of their
own, in turns: unchanged, and with each of the experiments below. It prints medians: CPU
microseconds per row, of the producer and of the broker, and thousands of rows per second.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final
from unittest import mock

import numpy as np
import psutil
import pyarrow as pa
from support.brokers.own_broker import own_broker
from support.oracles.readers import create_topic
from support.pure.chance import binary_column, binary_values

from bench.studies.inline_thread import InlineThread, wait_for_signal
from spark_kafka_sink.client import io_thread, producer_lock
from spark_kafka_sink.client.appender import ColumnProducer, SliceAppender
from spark_kafka_sink.client.pending_append import PendingAppend
from spark_kafka_sink.kafka_producer import KafkaProducer
from spark_kafka_sink.producer.slices import SLICE_BYTES
from spark_kafka_sink.spark.options import SINK_DEFAULTS
from spark_kafka_sink.spark.tasks.task import append_coalesced
from spark_kafka_sink.spark.worker import keep_heap

BATCH_BYTES: Final = 8 << 20
BATCHES: Final = 60
ROUNDS: Final = 9
WARM_UP_S: Final = 15.0
CODEC_THREADS: Final = 2
CODECS: Final = ("none", "lz4", "zstd")
# Codec, bytes of a value, partitions.
CASES: Final = (
    *((codec, value_bytes, 12) for codec in CODECS for value_bytes in (100, 1000, 10_000)),
    ("none", 100, 1000),
)
# The size of Spark's batches with small rows.
SPARKS_ROWS: Final = 10_000
# As in the benchmark's rows.
NAME: Final = b'"customer_name":'
CHANCE: Final = 8


@contextmanager
def as_it_is() -> Iterator[None]:
    """Change nothing."""
    yield


@contextmanager
def inline() -> Iterator[None]:
    """Run the I/O thread's loop in the task's thread, after every slice and during waits."""
    append = ColumnProducer._append_slice

    def and_turn(self: ColumnProducer, *given: Any) -> None:  # noqa: ANN401 - as it comes
        append(self, *given)
        InlineThread.current.turn(0)

    with (
        mock.patch.object(io_thread, "ProducerThread", InlineThread),
        mock.patch.object(producer_lock, "wait_for_signal", wait_for_signal),
        mock.patch.object(ColumnProducer, "_append_slice", and_turn),
    ):
        yield


@contextmanager
def codec_threads() -> Iterator[None]:
    """Compress the full batches of a slice in threads, which the task waits for."""
    with ThreadPoolExecutor(CODEC_THREADS) as pool:

        def pack(self: SliceAppender, pending: PendingAppend) -> None:
            for _ in pool.map(lambda batch: batch.pack(), pending.full):
                pass
            self._state.packed(pending)

        with mock.patch.object(SliceAppender, "pack", pack):
            yield


@contextmanager
def systems_memory() -> Iterator[None]:
    """Let Arrow allocate from the heap instead of its own pool."""
    default = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(default)


def pieces(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of `rows`, each with memory of its own, as Spark's are."""
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield pa.concat_batches([batch.slice(start, rows)])


def parts(batches: list[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in `count` times as many batches."""
    for batch in batches:
        rows = -(-batch.num_rows // count)
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


@dataclass(frozen=True, slots=True)
class Variant:
    """A context manager, settings of the producer, and how it gets its rows."""

    around: Callable[[], AbstractContextManager[None]] = as_it_is
    configs: Mapping[str, str] = field(default_factory=dict)
    rows: Callable[[list[pa.RecordBatch]], Iterable[pa.RecordBatch]] = iter
    codecs: tuple[str, ...] = CODECS


def joined(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Join Spark's batches as a task does."""
    made: list[pa.RecordBatch] = []
    append_coalesced(
        pieces(batches, SPARKS_ROWS),
        lambda batch, _since: made.append(batch),
        SLICE_BYTES,
        math.inf,
    )
    return made


PLAIN: Final = ("none",)
VARIANTS: Final = {
    "as it is": Variant(),
    "inline": Variant(inline),
    "codec threads": Variant(codec_threads, codecs=("lz4", "zstd")),
    "system's memory": Variant(systems_memory),
    "linger.ms 100": Variant(configs={"linger.ms": "100"}, codecs=PLAIN),
    "send.buffer.bytes 128 KiB": Variant(configs={"send.buffer.bytes": "131072"}, codecs=PLAIN),
    "slices of 4 MiB": Variant(rows=partial(parts, count=2), codecs=PLAIN),
    "slices of 2 MiB": Variant(rows=partial(parts, count=4), codecs=PLAIN),
    "batches of 10,000 rows": Variant(rows=partial(pieces, rows=SPARKS_ROWS), codecs=PLAIN),
    "and joined": Variant(rows=joined, codecs=PLAIN),
}


def rows(value_bytes: int) -> pa.RecordBatch:
    """Return an Arrow batch with keys; values have eight random digits after every name."""
    chance, count = np.random.default_rng(), BATCH_BYTES // (value_bytes + 26)
    pieces = -(-value_bytes // (len(NAME) + CHANCE))
    values = np.empty((count, pieces, len(NAME) + CHANCE), np.uint8)
    values[:, :, : len(NAME)] = np.frombuffer(NAME, np.uint8)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    values[:, :, len(NAME) :] = chance.choice(digits, (count, pieces, CHANCE))
    cut = values.reshape(count, -1)[:, :value_bytes].tobytes()
    keys = binary_column(chance, count, 16)
    return pa.record_batch({"key": keys, "value": binary_values(cut, value_bytes)})


def write(
    bootstrap: str, topic: str, batches: list[pa.RecordBatch], codec: str, variant: Variant
) -> None:
    """Send batches."""
    given = {"bootstrap.servers": bootstrap, "compression.type": codec}
    with KafkaProducer({**SINK_DEFAULTS, **given, **variant.configs}) as producer:
        for batch in variant.rows(batches):
            producer.append(topic, batch)
        producer.flush()


def measure(
    bootstrap: str, broker: psutil.Process, codec: str, value_bytes: int, partitions: int
) -> None:
    """Print the cost of every variant for values of a size."""
    topic = f"variants-{partitions}"
    batches = [rows(value_bytes) for _ in range(4)] * (BATCHES // 4)
    count = sum(batch.num_rows for batch in batches)
    names = [name for name, variant in VARIANTS.items() if codec in variant.codecs]
    took: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    chance, warm_at = Random(1), time.monotonic() + WARM_UP_S
    while len(took[names[0]]) < ROUNDS:
        is_warm = time.monotonic() >= warm_at
        chance.shuffle(names)
        for name in names:
            with VARIANTS[name].around():
                own, others, began = time.process_time(), _cpu(broker), time.monotonic()
                write(bootstrap, topic, batches, codec, VARIANTS[name])
                own, others = time.process_time() - own, _cpu(broker) - others
                seconds = time.monotonic() - began
            if is_warm:
                took[name].append((own / count * 1e6, others / count * 1e6, count / seconds / 1000))
    print(f"values of {value_bytes:,} bytes, {codec}, {partitions:,} partitions")
    for name, found in took.items():
        own, others, rate = (statistics.median(each) for each in zip(*found, strict=True))
        print(
            f"  {name:25} {own:7.3f} us, broker {others:7.3f} us, {rate:7,.1f} k rows/s", flush=True
        )


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Measure three sizes with each codec, on a Kafka of its own."""
    keep_heap()
    with own_broker() as cluster:
        for partitions in {partitions for _, _, partitions in CASES}:
            create_topic(cluster.bootstrap, f"variants-{partitions}", partitions)
        broker = psutil.Process(cluster.pid(1))
        for codec, value_bytes, partitions in CASES:
            if codec in (sys.argv[1:] or CODECS):
                measure(cluster.bootstrap, broker, codec, value_bytes, partitions)


if __name__ == "__main__":
    main()
