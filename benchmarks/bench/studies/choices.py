"""The cost of some choices in docs/decisions.md, compared with their alternatives.

    PYTHONPATH=benchmarks:tests:jobs python -m bench.studies.choices

Each figure is the minimum CPU time of this thread over many rounds, alternating with its
alternative. For slices, which run in a process for each alternative, it is the median. With `100
kept` after the command, only slices of such values are measured, and their CPU seconds printed.
"""

from __future__ import annotations

import gc
import importlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from unittest import mock

import numpy as np
import pyarrow as pa
from support.oracles.record_batches import Row, kafka_python_batch
from support.pure.idle_producer import idle_producer
from support.pure.pure_producer import TOPIC

from spark_kafka_sink.client import appender
from spark_kafka_sink.metrics import Metrics
from spark_kafka_sink.producer.murmur2 import murmur2
from spark_kafka_sink.records.columns import BinaryColumn
from spark_kafka_sink.records.log_reader import read_log
from spark_kafka_sink.records.varint import varint_widths, varint_words, zigzag
from spark_kafka_sink.spark.tasks.task import append_coalesced
from spark_kafka_sink.spark.worker import keep_heap

ROUNDS = 30
RECORDS = 5_000
SLICE_BYTES = 8 << 20
HEAPS = ("kept", "given back")
PARTS = (1, 2, 4, 8)
# The rows that Spark hands over at once, and how long the sink's rows may wait.
ROWS_OF_SPARK = 10_000
LINGER_S = 0.3


def least_s(*works: Callable[[], object]) -> list[float]:
    """Return the minimum CPU time of each function, run in turns."""
    least = [float("inf")] * len(works)
    for _ in range(ROUNDS):
        for number, work in enumerate(works):
            began = time.thread_time()
            work()
            least[number] = min(least[number], time.thread_time() - began)
    return least


def reading() -> None:
    """Read a batch by column, and with kafka-python."""
    from kafka.record.default_records import DefaultRecordBatch

    rows = [Row(b"%016d" % n, bytes(100), (), n) for n in range(RECORDS)]
    log = kafka_python_batch(rows)

    def ours() -> int:
        return sum(len(batch.records()) for batch in read_log(log))

    mine, theirs = least_s(ours, lambda: list(DefaultRecordBatch(log)))
    print(f"reading: {mine / RECORDS * 1e6:.2f} us a record, kafka-python {theirs / mine:.1f} x")


def varints() -> None:
    """Write the varints of a column."""
    deltas = np.arange(RECORDS)

    def write() -> None:
        zigzagged = zigzag(deltas)
        widths = varint_widths(zigzagged)
        varint_words(zigzagged, widths)

    (took,) = least_s(write)
    print(f"varints: {took / RECORDS * 1e9:.0f} ns each")


def keys() -> None:
    """Hash one key of a megabyte."""
    column = BinaryColumn.of(pa.array([bytes(2**20)], pa.binary()))
    (took,) = least_s(lambda: murmur2(column))
    print(f"hashing a key of 1 MiB: {took:.2f} s")


def metrics() -> None:
    """Record a value into its window, and append it to the sensor's list."""
    sensor = Metrics(num_samples=2, window_s=30.0, tags={}).sensor("group", ())

    def record() -> None:
        for _ in range(RECORDS):
            sensor.record(1.0, 0.0)

    def add() -> None:
        append = sensor.add
        for _ in range(RECORDS):
            append(1.0)
        sensor.fold()

    at_once, later = least_s(record, add)
    print(f"recording a value: {at_once / later:.1f} x appending it and folding later")


def garbage() -> None:
    """Collect garbage as Spark's daemon does after every task, with and without imports."""
    importlib.import_module("pyspark.worker")
    importlib.import_module("spark_kafka_sink.spark.tasks.task")
    (walked,) = least_s(gc.collect)
    gc.freeze()
    (left_out,) = least_s(gc.collect)
    print(f"a collection: {walked * 1e3:.1f} ms, without imports {left_out * 1e3:.1f} ms")


def heap() -> None:
    """Append slices with freed heap kept, and with glibc's defaults, in processes."""
    for rows_bytes in (100, 1000, 10_000):
        command = [sys.executable, "-m", "bench.studies.choices", str(rows_bytes)]
        took = [subprocess.check_output([*command, how], text=True) for how in HEAPS]
        kept, given_back = map(float, took)
        print(
            f"values of {rows_bytes:,} bytes: a slice {kept * 1e3:.1f} ms if freed heap is",
            end="",
        )
        print(f" kept, {given_back * 1e3:.1f} ms where it is given back")


def slices(value_bytes: int, how: str) -> None:
    """Print the CPU seconds of a slice until it is in batches."""
    if how == HEAPS[0]:
        keep_heap()
    rows = rows_of(value_bytes)
    print(statistics.median(append_s(rows) for _ in range(ROUNDS)))


def smaller_slices() -> None:
    """Append the same rows in one slice, and in several, in turns."""
    keep_heap()
    for value_bytes in (100, 1000):
        rows = rows_of(value_bytes)
        took: dict[int, list[float]] = {parts: [] for parts in PARTS}
        for _ in range(ROUNDS):
            for parts, each in took.items():
                with mock.patch.object(appender, "SLICE_BYTES", SLICE_BYTES // parts):
                    each.append(append_s(rows))
        ms = [f"{statistics.median(each) * 1e3:.1f}" for each in took.values()]
        print(f"values of {value_bytes:,} bytes in {PARTS} slices: {', '.join(ms)} ms")


def joining() -> None:
    """Join Arrow batches as a task does whose input waits for nothing, with the sink's linger."""
    for value_bytes in (100, 1000):
        batch = pa.record_batch({"value": pa.array([b"x" * value_bytes] * ROWS_OF_SPARK)})
        count = 32 * SLICE_BYTES // batch.nbytes
        joined: list[int] = []
        append_coalesced(
            (batch.slice(0) for _ in range(count)),
            lambda each, _since: joined.append(each.nbytes),  # noqa: B023 - called at once
            SLICE_BYTES,
            LINGER_S,
        )
        mib = statistics.mean(joined[:-1]) / 2**20
        print(
            f"values of {value_bytes:,} bytes: {count} Arrow batches in {len(joined)} slices",
            end="",
        )
        print(f" of {mib:.2f} MiB, where a slice is {SLICE_BYTES >> 20}")


def rows_of(value_bytes: int) -> pa.RecordBatch:
    """Return a slice's rows."""
    count = SLICE_BYTES // (value_bytes + 26)
    keys, value = pa.array([b"%016d" % n for n in range(count)], pa.binary()), bytes(value_bytes)
    return pa.record_batch({"key": keys, "value": pa.array([value] * count, pa.binary())})


def append_s(rows: pa.RecordBatch) -> float:
    """Return the CPU seconds until rows are in batches."""
    with idle_producer(12, batch_size=512 * 1024, buffer_memory=2**28) as producer:
        began = time.thread_time()
        producer.append(TOPIC, rows)
        return time.thread_time() - began


if __name__ == "__main__":
    if len(sys.argv) > 1:
        slices(int(sys.argv[1]), sys.argv[2])
    else:
        measures = (reading, varints, keys, metrics, garbage, heap, smaller_slices, joining)
        for measure in measures:
            measure()
