"""Large values copied into batches, compared with sending them from Arrow's memory.

``PYTHONPATH=benchmarks:tests:jobs python -m bench.studies.large_values``

A slice of 8 MiB is encoded and checksummed as batches of 512 KiB, as in a task. Then again without
copying the values: the bytes before each value are encoded, and views of these and of the value are
made and checksummed, row by row. It prints CPU microseconds per row of both. The second leaves out
appending, sending and keeping memory, which more pieces would make more expensive, too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from support.pure.chance import binary_column

from spark_kafka_sink.producer.slices import SLICE_BYTES
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.encoder import EncodedRecords, encode
from spark_kafka_sink.spark.options import SINK_DEFAULTS

SIZES: Final = (1000, 10_000, 100_000)
KEY_BYTES: Final = 16
BATCH_BYTES: Final = int(SINK_DEFAULTS["batch.size"])
ROUNDS: Final = 42


def columns(key: pa.Array, value: pa.Array) -> RecordColumns:
    """Return rows with keys and values."""
    timestamps_ms = np.full(len(key), 1_700_000_000_000)
    return RecordColumns.of(
        key=BinaryColumn.of(key),
        value=BinaryColumn.of(value),
        headers=None,
        timestamps_ms=timestamps_ms,
    )


def encoded(rows: RecordColumns) -> EncodedRecords:
    """Encode rows in their order."""
    count = len(rows)
    return encode(rows, np.arange(count), np.arange(count), np.zeros(count, np.int64))


def copy(rows: RecordColumns) -> None:
    """Encode and checksum rows as a task does."""
    records = encoded(rows).buffer
    for start in range(0, len(records), BATCH_BYTES):
        crc32c(records[start : start + BATCH_BYTES])


def refer(heads: RecordColumns, value_bytes: int, values: memoryview) -> None:
    """Encode and checksum rows without copying the values."""
    made = encoded(heads)
    buffer, ends = made.buffer, made.offsets.tolist()
    pieces, size, crc = list[memoryview](), 0, 0
    for number in range(len(ends) - 1):
        head = buffer[ends[number] : ends[number + 1]]
        value = values[number * value_bytes : (number + 1) * value_bytes]
        crc = crc32c(value, crc32c(head, crc))
        pieces += (head, value)
        size += len(head) + value_bytes
        if size >= BATCH_BYTES:
            pieces, size, crc = [], 0, 0


def cpu_us(work: Callable[[], None]) -> float:
    """Return the CPU microseconds of a function."""
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * 1e6


def main() -> None:
    """Print both for every size."""
    chance = np.random.default_rng()
    for value_bytes in SIZES:
        count = SLICE_BYTES // value_bytes
        key = binary_column(chance, count, KEY_BYTES)
        value = binary_column(chance, count, value_bytes)
        rows, heads = columns(key, value), columns(key, pa.array([b""] * count, pa.binary()))
        values = memoryview(value.buffers()[2])
        ways = [lambda: copy(rows), lambda: refer(heads, value_bytes, values)]  # noqa: B023 - called here
        took: list[list[float]] = [[], []]
        for number in range(ROUNDS):
            for way in (0, 1) if number % 2 else (1, 0):
                took[way].append(cpu_us(ways[way]))
        copied, referred = (statistics.median(each) / count for each in took)
        print(f"{value_bytes:7,} bytes: copied {copied:6.2f} us, referred to {referred:6.2f} us")


if __name__ == "__main__":
    main()
