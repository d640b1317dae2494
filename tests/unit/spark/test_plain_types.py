"""Views and dictionaries become plain columns; everything else stays as it is."""

from __future__ import annotations

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


def test_a_field_that_is_not_null_stays_so() -> None:
    given = pa.schema([pa.field("column", pa.string_view(), nullable=False)])
    assert plain_schema(given) == pa.schema([pa.field("column", pa.string(), nullable=False)])


def test_a_plain_batch_is_passed_on_itself() -> None:
    batch = pa.record_batch({"value": [b"x"]})
    (same,) = plain_batches([batch])
    assert same is batch
