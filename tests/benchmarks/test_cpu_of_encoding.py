"""The cost of encoding, as a ratio to fixed work on the same bytes, in turns on the same core.

It is the CPU time of this thread alone; other processes affect it only through shared caches and
memory. The bound is 1.6 times the ratio on a quiet machine (2.1; up to 2.6 next to two processes
that sort all the time). It detects a slower algorithm (another sort, another gather, a quadratic
step), not a few percent.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from support.pure.idle_producer import idle_producer
from support.pure.pure_producer import TOPIC

ROWS, VALUE_BYTES = 30_000, 100
PARTITIONS = 12
ROUNDS = 15
MOST = 3.4


def rows() -> pa.RecordBatch:
    """Return rows of one slice, with keys."""
    keys = pa.array([b"%016d" % n for n in range(ROWS)], pa.binary())
    values = pa.array([b"%0*d" % (VALUE_BYTES, n) for n in range(ROWS)], pa.binary())
    return pa.record_batch({"key": keys, "value": values})


def cpu_seconds(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started


def append(batch: pa.RecordBatch) -> float:
    """Return the CPU seconds of a caller's thread: partition, lay out, encode, append."""
    with idle_producer(PARTITIONS, batch_size=512 * 1024, buffer_memory=2**28) as producer:
        return cpu_seconds(lambda: producer.append(TOPIC, batch))


def yardstick(data: bytes, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    """Return the CPU seconds of a copy, a checksum, a sort and a gather of the same size."""

    def work() -> None:
        crc32c(bytearray(data))
        order = np.argsort(numbers, kind="stable")
        np.cumsum(numbers[order])

    return cpu_seconds(work)


def test_encoding_costs_no_more_than_a_few_passes_over_the_rows() -> None:
    batch = rows()
    data = bytes(ROWS * (VALUE_BYTES + 26))
    numbers = np.random.default_rng(1).integers(0, 2**40, ROWS)
    ratios = [append(batch) / yardstick(data, numbers) for _ in range(ROUNDS + 1)][1:]
    assert statistics.median(ratios) < MOST, sorted(ratios)
