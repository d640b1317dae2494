"""How rows are cut into slices: about equal ones, as few as fit, each within its limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.producer.slices import MANY_PARTITIONS, SLICE_BYTES, slice_ends

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


@pytest.mark.parametrize(("partitions", "times"), [(0, 1), (FEW, 1), (MANY_PARTITIONS, 2)])
@pytest.mark.parametrize(
    ("total", "slices"),
    [(1, 1), (SLICE_BYTES, 1), (SLICE_BYTES + 9000, 1), (11 * SLICE_BYTES // 5, 2), (2**26, 8)],
)
def test_no_slice_is_a_rest_of_some_rows(
    total: int, slices: int, partitions: int, times: int
) -> None:
    """Spark's limit of an Arrow batch is one that the last row goes over."""
    sizes = np.full(-(-total * times // 1000), 1000)
    ends = slice_ends(sizes, partitions, 2 * BUFFER)
    assert len(ends) == slices
    rows = np.diff([0, *ends])
    assert rows.max() - rows.min() <= 0.01 * rows.max() + slices
