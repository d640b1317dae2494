"""Rows are cut into about equal slices, as few as possible, each within its limits."""

from __future__ import annotations

import math
from itertools import repeat

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.client.appender import MANY_PARTITIONS, SLICE_BYTES, slice_bytes, slice_ends
from spark_kafka_sink.records.encoder import record_sizes
from spark_kafka_sink.serde.arrow_columns import read_rows
from spark_kafka_sink.spark.driver.register import LIMIT_BYTES
from spark_kafka_sink.spark.options import SINK_DEFAULTS
from spark_kafka_sink.spark.tasks.task import append_coalesced

BUFFER = 64 * 1024 * 1024
FEW = MANY_PARTITIONS - 1


@given(
    st.lists(st.integers(1, 3 * SLICE_BYTES), max_size=60),
    st.sampled_from([FEW, MANY_PARTITIONS]),
    st.sampled_from([1, 100_000, 8 * SLICE_BYTES, BUFFER]),
)
def test_every_row_is_in_one_slice_and_none_is_over_a_quarter_of_memory(
    sizes: list[int], partitions: int, buffer_memory_bytes: int
) -> None:
    ends = slice_ends(np.array(sizes, np.int64), partitions, buffer_memory_bytes)
    rows = [len(sizes[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    assert sum(rows) == len(sizes)
    assert all(rows)
    for start, end in zip([0, *ends], ends, strict=False):
        assert end - start == 1 or sum(sizes[start:end]) <= buffer_memory_bytes // 4


@pytest.mark.parametrize(
    ("partitions", "times", "buffer"),
    [(0, 1, BUFFER), (FEW, 1, BUFFER), (MANY_PARTITIONS, 2, 2 * BUFFER)],
)
@pytest.mark.parametrize(
    ("total", "slices"),
    [(1, 1), (SLICE_BYTES, 1), (SLICE_BYTES + 9000, 1), (11 * SLICE_BYTES // 5, 2), (2**26, 8)],
)
def test_no_slice_is_a_rest_of_some_rows(
    total: int, slices: int, partitions: int, times: int, buffer: int
) -> None:
    """The last row of an Arrow batch exceeds Spark's limit."""
    sizes = np.full(-(-total * times // 1000), 1000)
    ends = slice_ends(sizes, partitions, buffer)
    assert len(ends) == slices
    rows = np.diff([0, *ends])
    assert rows.max() - rows.min() <= 0.01 * rows.max() + slices


@pytest.mark.parametrize(("total", "slices"), [(2**24 - 9000, 1), (2**24 + 9000, 2), (2**27, 9)])
def test_rows_that_are_a_little_more_than_a_quarter_of_memory_are_divided_equally(
    total: int, slices: int
) -> None:
    sizes = np.full(-(-total // 1000), 1000)
    ends = slice_ends(sizes, MANY_PARTITIONS, BUFFER)
    assert len(ends) == slices
    rows = np.diff([0, *ends])
    assert rows.max() - rows.min() <= 0.01 * rows.max() + slices


@pytest.mark.parametrize("value_bytes", [20, 50, 100, 150, 1000])
@pytest.mark.parametrize("key_bytes", [8, 16])
def test_what_a_task_joins_for_many_partitions_is_one_slice(
    value_bytes: int, key_bytes: int
) -> None:
    """With the sink's buffer.memory, and Spark's batches of 10,000 rows or its limit of bytes.

    Of rows without keys, which do not go to many partitions, it may be two.
    """
    rows = min(10_000, LIMIT_BYTES // (value_bytes + key_bytes + 8) + 1)
    batch = pa.record_batch(
        {"key": [b"k" * key_bytes] * rows, "value": [b"v" * value_bytes] * rows}
    )
    full_bytes, made = slice_bytes(MANY_PARTITIONS), list[pa.RecordBatch]()
    enough = repeat(batch, full_bytes // batch.nbytes + 1)
    append_coalesced(enough, lambda joined, _since: made.append(joined), full_bytes, math.inf)
    joined = made[0]
    sizes = record_sizes(read_rows(joined, "topic", 0).columns)
    memory = int(SINK_DEFAULTS["buffer.memory"])
    assert slice_ends(sizes, MANY_PARTITIONS, memory) == [joined.num_rows]
