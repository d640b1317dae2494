"""What a few choices of docs/decisions.md cost, beside what was not chosen.

    PYTHONPATH=tests python -m benchmarks.choices

Each figure is the least CPU time of this thread over many rounds of it and its rival in turn.
"""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from support.record_batches import Row, kafka_python_batch

from spark_kafka_sink.metrics import Metrics
from spark_kafka_sink.producer.murmur2 import murmur2
from spark_kafka_sink.records.columns import BinaryColumn
from spark_kafka_sink.records.log_reader import read_log
from spark_kafka_sink.records.varint import varint_widths, varint_words, zigzag

ROUNDS = 30
RECORDS = 5_000


def least_s(*works: Callable[[], object]) -> list[float]:
    """Give the least CPU time of each, taking turns."""
    least = [float("inf")] * len(works)
    for _ in range(ROUNDS):
        for number, work in enumerate(works):
            began = time.thread_time()
            work()
            least[number] = min(least[number], time.thread_time() - began)
    return least


def reading() -> None:
    """Read a batch by column, and by kafka-python."""
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
    """Collect garbage as Spark's daemon does after every task, imports included and left out."""
    importlib.import_module("pyspark.worker")
    importlib.import_module("spark_kafka_sink.spark.task")
    (walked,) = least_s(gc.collect)
    gc.freeze()
    (left_out,) = least_s(gc.collect)
    print(f"a collection: {walked * 1e3:.1f} ms, without imports {left_out * 1e3:.1f} ms")


if __name__ == "__main__":
    for measure in (reading, varints, keys, metrics, garbage):
        measure()
