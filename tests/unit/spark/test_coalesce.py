"""Small Arrow batches become larger ones, with the same rows in the same order."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.spark.arrow_batches import LIMIT_BYTES
from spark_kafka_sink.spark.coalesce import coalesce

SLICE_BYTES = 8 * 1024 * 1024


def batches_of(sizes: list[int]) -> list[pa.RecordBatch]:
    """Make batches of consecutive numbers, each with a kilobyte of value."""
    made, first = [], 0
    for rows in sizes:
        numbers = pa.array(range(first, first + rows), pa.int64())
        values = pa.array([b"v" * 1024] * rows, pa.binary())
        made.append(pa.record_batch({"number": numbers, "value": values}))
        first += rows
    return made


@given(st.lists(st.integers(0, 3000), max_size=12))
def test_every_row_stays_in_its_place(sizes: list[int]) -> None:
    joined = list(coalesce(iter(batches_of(sizes)), SLICE_BYTES))
    numbers = [n for batch in joined for n in batch.column("number").to_pylist()]
    assert numbers == list(range(sum(sizes)))
    assert all(batch.num_rows for batch in joined)


def test_all_but_the_last_are_large() -> None:
    joined = list(coalesce(iter(batches_of([100] * 200)), SLICE_BYTES))
    assert len(joined) == 3
    assert all(7 / 8 * SLICE_BYTES <= batch.nbytes <= SLICE_BYTES for batch in joined[:-1])


def test_two_batches_of_the_limit_that_register_sets_are_a_large_slice() -> None:
    rows = LIMIT_BYTES // (1024 + 12) + 1
    joined = list(coalesce(batches_of([rows] * 4), 2 * SLICE_BYTES))
    assert [batch.num_rows for batch in joined] == [2 * rows] * 2


def test_a_large_batch_is_passed_on_at_once() -> None:
    large, small = batches_of([10_000, 10])
    given_batches = iter([large, small])
    joined = coalesce(given_batches, SLICE_BYTES)
    assert next(joined) is large
    assert next(given_batches) is small


def test_half_of_a_large_batch_is_not_copied() -> None:
    few, half, more = batches_of([10, 4096, 10])
    assert half.nbytes < SLICE_BYTES
    joined = list(coalesce([few, few, half, more, more], SLICE_BYTES))
    assert [batch.num_rows for batch in joined] == [20, 4096, 20]
    assert joined[1] is half


@pytest.mark.parametrize("rows", [100, 4096], ids=["joined", "alone"])
def test_nothing_of_what_was_given_is_kept(rows: int) -> None:
    before = pa.total_allocated_bytes()
    for batch in coalesce((batches_of([rows])[0] for _ in range(50)), SLICE_BYTES):
        assert pa.total_allocated_bytes() - before < 1.1 * batch.nbytes
        del batch


def test_slices_are_joined_as_what_they_show() -> None:
    (whole,) = batches_of([100])
    joined = list(coalesce([whole.slice(10, 5), whole.slice(90), whole.slice(3, 0)], SLICE_BYTES))
    assert len(joined) == 1
    assert joined[0].column("number").to_pylist() == [*range(10, 15), *range(90, 100)]
