"""Headers as arrays of structs and as maps, in every Arrow form, against an oracle by row."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracles.record_batches import Headers

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.records.columns import decode_utf8
from spark_kafka_sink.serde.arrow_columns import read_rows

ESCAPE = "surrogateescape"
Cells: TypeAlias = Sequence[Headers | None]

# Bytes that are no text are surrogates in a str, as in the names of files.
NAMES = st.text(max_size=70) | st.binary(max_size=9).map(lambda name: name.decode(errors=ESCAPE))
ENTRY = st.tuples(NAMES, st.none() | st.text(max_size=70).map(str.encode))
CELLS = st.lists(st.none() | st.lists(ENTRY, max_size=4).map(tuple), max_size=12)
STRINGS = st.sampled_from([pa.string(), pa.large_string()])
VALUES = st.sampled_from([pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
BETWEEN: Headers = (("not", b"sent"), ("at", None))


def zigzag(number: int) -> bytes:
    """Write a number as records do."""
    rest, written = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*written, rest])


def section(headers: Headers | None) -> bytes:
    """Write the header section of one record, entry by entry; names as text."""
    written = zigzag(len(headers or ()))
    for name, value in headers or ():
        text = decode_utf8(name.encode(errors=ESCAPE)).encode()
        written += zigzag(len(text)) + text
        written += zigzag(-1) if value is None else zigzag(len(value)) + value
    return written


def entries_of(cells: Cells, names: pa.DataType, values: pa.DataType) -> tuple[pa.Array, pa.Array]:
    entries = [entry for cell in cells for entry in (BETWEEN if cell is None else cell)]
    return (
        pa.array([name.encode(errors=ESCAPE) for name, _ in entries], pa.binary()).cast(
            names, safe=False
        ),
        pa.array([value for _, value in entries], pa.binary()).cast(values),
    )


def offsets_of(cells: Cells, width: pa.DataType) -> pa.Array:
    lengths = [len(BETWEEN if cell is None else cell) for cell in cells]
    return pa.array(np.cumsum([0, *lengths]), width)


def nulls_of(cells: Cells) -> pa.Array:
    return pa.array([cell is None for cell in cells], pa.bool_())


def array_of_structs(cells: Cells, names: pa.DataType, values: pa.DataType) -> pa.Array:
    keys, items = entries_of(cells, names, values)
    structs = pa.StructArray.from_arrays([keys, items], ["key", "VALUE"])
    return pa.ListArray.from_arrays(offsets_of(cells, pa.int32()), structs, mask=nulls_of(cells))


def large_array_of_structs(cells: Cells, names: pa.DataType, values: pa.DataType) -> pa.Array:
    keys, items = entries_of(cells, names, values)
    structs = pa.StructArray.from_arrays([items, keys], ["value", "key"])
    offsets = offsets_of(cells, pa.int64())
    return pa.LargeListArray.from_arrays(offsets, structs, mask=nulls_of(cells))


def maps(cells: Cells, names: pa.DataType, values: pa.DataType) -> pa.Array:
    keys, items = entries_of(cells, names, values)
    return pa.MapArray.from_arrays(offsets_of(cells, pa.int32()), keys, items, mask=nulls_of(cells))


@pytest.mark.parametrize("form", [array_of_structs, large_array_of_structs, maps])
@given(cells=CELLS, names=STRINGS, values=VALUES, before=CELLS, after=CELLS)
def test_every_row_has_the_headers_of_its_cell(
    form: Callable[..., pa.Array],
    cells: Cells,
    names: pa.DataType,
    values: pa.DataType,
    before: Cells,
    after: Cells,
) -> None:
    """A null cell may span entries, and the column may be a slice: neither is sent."""
    padded = form([*before, *cells, *after], names, values)
    headers = padded.slice(len(before), len(cells))
    batch = pa.record_batch({"value": pa.nulls(len(cells), pa.binary()), "headers": headers})
    column = read_rows(batch, "t", 0).columns.headers
    if not any(cells):
        assert column is None
        return
    assert column is not None
    data, ends = column.data.tobytes(), column.offsets.tolist()
    found = [data[start:end] for start, end in itertools.pairwise(ends)]
    assert found == [section(cell) for cell in cells]


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.binary(), pa.binary()),
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.string()),
        pa.list_(pa.struct([("key", pa.string())])),
        pa.list_(pa.struct([("key", pa.string()), ("worth", pa.binary())])),
        pa.struct([("key", pa.string()), ("value", pa.binary())]),
    ],
    ids=str,
)
def test_another_type_is_refused_with_what_is_expected(kind: pa.DataType) -> None:
    batch = pa.record_batch({"value": ["x"], "headers": pa.nulls(1, kind)})
    with pytest.raises(DataException) as refused:
        read_rows(batch, "t", 0)
    assert str(kind) in str(refused.value)
    assert "array<struct<key:string,value:binary>> or map<string,binary>" in str(refused.value)


def test_a_header_without_a_name_is_refused() -> None:
    cells = [[{"key": "a", "value": b""}] * 2, None, [], [{"key": None, "value": b"1"}]]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.record_batch({"value": ["x"] * 4, "headers": pa.array(cells, kind)})
    said = (
        r"^row 3 of the Arrow batch: headers has a header whose key is null, which Kafka does not "
    )
    with pytest.raises(DataException, match=said):
        read_rows(batch, "t", 0)
    with pytest.raises(DataException, match=said.replace("3", "0")):
        read_rows(batch.slice(3), "t", 0)
