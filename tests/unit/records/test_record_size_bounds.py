"""A record is never larger than its bound, and no smaller than it has to be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.util import size_of_varint
from support.oracles.record_batches import BATCHES, SHAPES, Row, Shape, columns_of

from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.encoder import encode, record_size_bounds

INT64 = st.integers(-(2**63), 2**63 - 1)


def _sizes(
    columns: RecordColumns,
    offset_deltas: npt.NDArray[np.int64],
    timestamp_deltas: npt.NDArray[np.int64],
) -> list[int]:
    order = np.arange(len(columns))
    sizes: list[int] = np.diff(
        encode(columns, order, offset_deltas, timestamp_deltas).offsets
    ).tolist()
    return sizes


@given(
    rows=BATCHES,
    shape=SHAPES,
    largest_offset_delta=st.integers(0, 2**31 - 1),
    span=st.integers(0, 2**63 - 1),
    data=st.data(),
    drop_empty=st.booleans(),
)
def test_no_record_is_larger_than_its_bound(
    rows: list[Row],
    shape: Shape,
    largest_offset_delta: int,
    span: int,
    data: st.DataObject,
    *,
    drop_empty: bool,
) -> None:
    columns = columns_of(rows, shape, drop_empty=drop_empty)
    count = len(rows)
    offsets = data.draw(st.lists(st.integers(0, largest_offset_delta), min_size=1, max_size=9))
    timestamps = data.draw(st.lists(st.integers(-span, span), min_size=1, max_size=9))
    offset_deltas = np.resize(np.array(offsets, np.int64), count)
    timestamp_deltas = np.resize(np.array(timestamps, np.int64), count)
    bounds = record_size_bounds(columns, span, largest_offset_delta).tolist()
    sizes = _sizes(columns, offset_deltas, timestamp_deltas)
    assert all(size <= bound for size, bound in zip(sizes, bounds, strict=True))


@given(
    rows=BATCHES,
    shape=SHAPES,
    largest_offset_delta=st.integers(0, 2**31 - 1),
    span=st.integers(0, 2**63 - 1),
    backwards=st.booleans(),
)
def test_a_bound_is_exact_where_the_deltas_are_as_wide_as_allowed(
    rows: list[Row], shape: Shape, largest_offset_delta: int, span: int, *, backwards: bool
) -> None:
    columns = columns_of(rows, shape)
    # -span takes a byte less than span if span is about a power of 64.
    delta = -span if backwards and size_of_varint(-span) == size_of_varint(span) else span
    sizes = _sizes(
        columns, np.full(len(rows), largest_offset_delta), np.full(len(rows), delta, np.int64)
    )
    assert record_size_bounds(columns, span, largest_offset_delta).tolist() == sizes


@given(rows=BATCHES, span=st.integers(0, 2**63 - 1), offset_delta=st.integers(0, 2**31 - 1))
def test_bounds_are_the_sizes_that_kafka_python_computes(
    rows: list[Row], span: int, offset_delta: int
) -> None:
    assert record_size_bounds(columns_of(rows), span, offset_delta).tolist() == [
        DefaultRecordBatchBuilder.size_in_bytes(offset_delta, span, *row[:3]) for row in rows
    ]
