"""Views and dictionaries become plain columns; everything else stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.spark.plain_types import plain_batches, plain_schema

LONG = "a text that does not fit into a view itself"


@pytest.mark.parametrize(
    ("passed", "plain", "value"),
    [
        (pa.string_view(), pa.string(), LONG),
        (pa.binary_view(), pa.binary(), LONG.encode()),
        (
            pa.list_(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())])),
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            [{"key": LONG, "value": LONG.encode()}],
        ),
        (pa.large_list(pa.string_view()), pa.large_list(pa.string()), [LONG]),
        (
            pa.map_(pa.string_view(), pa.binary_view()),
            pa.map_(pa.string(), pa.binary()),
            [(LONG, LONG.encode())],
        ),
        (pa.dictionary(pa.uint16(), pa.string()), pa.string(), LONG),
        (pa.dictionary(pa.int32(), pa.binary()), pa.binary(), LONG.encode()),
        (
            pa.struct([("a", pa.list_(pa.dictionary(pa.int32(), pa.string())))]),
            pa.struct([("a", pa.list_(pa.string()))]),
            {"a": [LONG, None, LONG]},
        ),
        (pa.large_string(), pa.large_string(), LONG),
        (pa.timestamp("us", tz="UTC"), pa.timestamp("us", tz="UTC"), None),
    ],
    ids=str,
)
def test_a_view_and_a_dictionary_have_their_plain_type_at_any_depth(
    passed: pa.DataType, plain: pa.DataType, value: object
) -> None:
    given = pa.schema([pa.field("column", passed, metadata={"a": "b"})], metadata={"c": "d"})
    found = plain_schema(given)
    assert found.equals(pa.schema([("column", plain)]))
    assert (found.metadata, found.field(0).metadata) == ({b"c": b"d"}, {b"a": b"b"})
    # pyarrow itself makes no maps of views: those are cast from plain ones.
    column = pa.array([value, None], plain)
    if not pa.types.is_map(plain):
        column = column.cast(passed)
        batch = pa.record_batch([column], schema=given)
        (made,) = plain_batches([batch])
        assert made.schema.equals(found)
        assert made.column(0).equals(pa.array([value, None], plain))


@pytest.mark.parametrize(
    "wrapped", [lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.int8(), kind)]
)
def test_a_null_struct_may_have_a_word_that_is_not_in_its_dictionary(
    wrapped: Callable[[pa.DataType], pa.DataType],
) -> None:
    passed, plain = (
        wrapped(pa.struct([("a", text)]))
        for text in (pa.dictionary(pa.int8(), pa.string()), pa.string())
    )
    rows: list[Any] = [{"a": None}, None]
    if pa.types.is_list(passed):
        rows = [rows, None, rows]
    elif pa.types.is_map(passed):
        rows = [[*enumerate(rows)], None, [*enumerate(rows)]]
    # pyarrow gives a null struct the first word, although the dictionary is empty.
    column = pa.array(rows, passed)
    for start in (0, 1):
        (made,) = plain_batches([pa.record_batch([column.slice(start)], ["column"])])
        made.validate(full=True)
        assert made.column(0).equals(pa.array(rows[start:], plain))


def test_dictionaries_in_maps_are_plain() -> None:
    keys = pa.array(["a", "b", "c"]).dictionary_encode()
    column = pa.MapArray.from_arrays([0, 1, None, 3], keys, keys.take(pa.array([2, None, 0])))
    expected = pa.array(
        [[("a", "c")], [("b", None), ("c", "a")], None], pa.map_(pa.string(), pa.string())
    )
    for start in (0, 1):
        (made,) = plain_batches([pa.record_batch([column.slice(start)], ["column"])])
        assert made.column(0).equals(expected.slice(start))


def test_a_field_that_is_not_null_stays_so() -> None:
    given = pa.schema([pa.field("column", pa.string_view(), nullable=False)])
    assert plain_schema(given) == pa.schema([pa.field("column", pa.string(), nullable=False)])


def test_a_plain_batch_is_passed_on_itself() -> None:
    batch = pa.record_batch({"value": [b"x"]})
    (same,) = plain_batches([batch])
    assert same is batch


def test_an_item_of_another_row_may_have_a_word_that_is_not_in_the_dictionary() -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([5, 0, 1], pa.int8()), ["a", "b"], safe=False)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), words)
    (made,) = plain_batches([pa.record_batch([lists.slice(1)], ["column"])])
    assert made.column(0).to_pylist() == [["a"], ["b"]]
