"""No row is touched in Python: neither lines run nor objects made grow with the rows of a slice.

Counted, not timed, so that it is the same on every machine. A loop over rows, a comprehension or a
function called by `map` runs a line or more for every row; `to_pylist` makes an object for every
row, which is alive at least until the line after. Both fail here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pytest
from support.idle_producer import idle_producer
from support.pure_producer import TOPIC

TraceFunction: TypeAlias = Callable[[FrameType, str, object], Any]
FEW, MANY = 10_000, 100_000
# Wider varints may take a few lines more; one for every hundredth row is too many.
ALLOWED = (MANY - FEW) // 100
PARTITIONS = 4
ONE_BATCH_EACH = 8 * 1024 * 1024


def values(rows: int) -> pa.Array:
    return pa.array([b"value%d" % n for n in range(rows)], pa.binary())


COLUMNS: dict[str, Callable[[int], dict[str, pa.Array]]] = {
    "values alone": lambda rows: {"value": values(rows)},
    "keys": lambda rows: {"value": values(rows), "key": values(rows)},
    "keys and values as text": lambda rows: {
        "value": values(rows).cast(pa.string()),
        "key": values(rows).cast(pa.large_string()),
    },
    "nulls": lambda rows: {
        "value": pa.array([None, b"v"] * (rows // 2), pa.binary()),
        "key": pa.array([b"k", None] * (rows // 2), pa.binary()),
    },
    "headers": lambda rows: {
        "value": values(rows),
        "headers": pa.array(
            [[{"key": "h", "value": b"%d" % n}] for n in range(rows)],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    },
    "topics, partitions and timestamps": lambda rows: {
        "value": values(rows),
        "topic": pa.array([TOPIC] * rows),
        "partition": pa.array([n % PARTITIONS for n in range(rows)], pa.int32()),
        "timestamp": pa.array(range(rows), pa.timestamp("us", "UTC")),
    },
}


class Work(NamedTuple):
    """Lines of Python that were run, and the most small objects that there were beyond before."""

    lines: int
    objects: int


def work_of(call: Callable[[], None]) -> Work:
    """Count what a call does in this thread; a loop's turns count each."""
    lines = most = 0

    def count(_frame: FrameType, event: str, _argument: object) -> TraceFunction:
        nonlocal lines, most
        lines += event == "line"
        most = max(most, sys.getallocatedblocks())
        return count

    tracing, before = sys.gettrace(), sys.getallocatedblocks()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(tracing)
    return Work(lines, most - before)


@pytest.mark.parametrize(("codec", "fill"), [("none", False), ("none", True), ("zstd", True)])
@pytest.mark.parametrize("columns", COLUMNS)
def test_ten_times_the_rows_run_no_more_lines_and_make_no_more_objects(
    columns: str, codec: str, *, fill: bool
) -> None:
    """fill: whether batches fill, and are compressed; as many of few rows as of many."""
    few, many = (pa.record_batch(COLUMNS[columns](rows)) for rows in (FEW, MANY))
    works = []
    for batch in (few, few, many):  # the first one, in which things are made once, does not count
        topic = None if "topic" in batch.schema.names else TOPIC
        batch_size = batch.num_rows if fill else ONE_BATCH_EACH
        with idle_producer(
            PARTITIONS, batch_size=batch_size, compression_type=codec, buffer_memory=2**28
        ) as producer:
            works.append(work_of(partial(producer.append, topic, batch)))
    assert works[2].lines - works[1].lines < ALLOWED
    assert works[2].objects - works[1].objects < ALLOWED
