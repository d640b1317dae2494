"""Every kind of Arrow array for bytes is seen as the same column of bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracles.record_batches import SHAPES, Shape

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.records.columns import BinaryColumn, valid_mask
from spark_kafka_sink.records.decoder import HEADERS_TYPE
from spark_kafka_sink.serde.arrow_columns import read_rows

VALUES = st.lists(st.none() | st.binary(max_size=5), max_size=30)
KINDS = pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str
)


def _rows(column: BinaryColumn) -> list[bytes | None]:
    valid = [True] * len(column) if column.valid is None else column.valid.tolist()
    return [
        column.data[column.offsets[row] : column.offsets[row + 1]].tobytes() if valid[row] else None
        for row in range(len(column))
    ]


@given(values=VALUES, shape=SHAPES)
def test_a_column_has_the_rows_and_lengths_of_its_array(
    values: list[bytes | None], shape: Shape
) -> None:
    column = BinaryColumn.of(shape.array(values))
    assert _rows(column) == values
    assert column.lengths.tolist() == [len(value or b"") for value in values]
    assert column.wire_lengths.tolist() == [-1 if v is None else len(v) for v in values]


@given(values=VALUES, shape=SHAPES, data=st.data())
def test_a_slice_of_a_column_is_a_slice_of_its_rows(
    values: list[bytes | None], shape: Shape, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    part = BinaryColumn.of(shape.array(values)).slice(start, stop)
    assert _rows(part) == values[start:stop]
    assert part.wire_lengths.tolist() == [-1 if v is None else len(v) for v in values[start:stop]]


@KINDS
@pytest.mark.parametrize("values", [[], [None], [None] * 9, [""], [""] * 9, ["", None, "é"]])
def test_arrays_that_arrow_makes_itself(kind: pa.DataType, values: list[str | None]) -> None:
    """Arrow leaves out buffers that have nothing in them."""
    array = pa.array([None if v is None else v.encode() for v in values], pa.binary()).cast(kind)
    assert _rows(BinaryColumn.of(array)) == [None if v is None else v.encode() for v in values]
    sliced = pa.array(values, pa.string()).cast(kind)[1:]
    assert _rows(BinaryColumn.of(sliced)) == [None if v is None else v.encode() for v in values[1:]]


@KINDS
def test_the_bytes_are_viewed_where_they_are(kind: pa.DataType) -> None:
    array = pa.array(["some", "bytes"], kind)
    column = BinaryColumn.of(array)
    assert column.data.__array_interface__["data"][0] == array.buffers()[2].address


@given(values=st.lists(st.none() | st.integers(0, 9), max_size=30), before=st.integers(0, 20))
def test_a_mask_of_nulls_is_given_only_where_there_are_nulls(
    values: list[int | None], before: int
) -> None:
    array = pa.array([None] * before + values, pa.int32())[before:]
    mask = valid_mask(array)
    if None not in values:
        assert mask is None
    else:
        assert mask is not None
        assert mask.dtype == np.bool_
        assert mask.tolist() == [value is not None for value in values]


@pytest.mark.parametrize("name", ["topic", "key", "value", "partition", "headers", "timestamp"])
def test_a_column_that_is_there_twice_is_refused(name: str) -> None:
    columns = {
        "topic": pa.array(["t"]),
        "key": pa.array(["k"]),
        "value": pa.array(["v"]),
        "partition": pa.array([0], pa.int32()),
        "headers": pa.array([[]], HEADERS_TYPE),
        "timestamp": pa.array([0]),
    }
    batch = pa.record_batch([*columns.values(), columns[name]], [*columns, name])
    with pytest.raises(DataException, match=f"the data has 2 columns named {name}: expected each"):
        read_rows(batch, None, 0)


def test_other_columns_may_be_there_twice() -> None:
    columns = {"value": "v", "other": "a", "topic": "b"}
    batch = pa.record_batch(
        [[each] for each in (*columns.values(), "c", "d")], [*columns, "other", "topic"]
    )
    assert len(read_rows(batch, "t", 0)) == 1
