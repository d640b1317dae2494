"""String and binary views become plain columns; everything else stays as it is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink.spark.views import batches_without_views, schema_without_views

LONG = "a text that does not fit into a view itself"


@pytest.mark.parametrize(
    ("viewed", "plain", "value"),
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
        (pa.large_string(), pa.large_string(), LONG),
        (pa.timestamp("us", tz="UTC"), pa.timestamp("us", tz="UTC"), None),
    ],
    ids=str,
)
def test_a_view_has_its_plain_type_at_any_depth(
    viewed: pa.DataType, plain: pa.DataType, value: object
) -> None:
    given = pa.schema([pa.field("column", viewed, metadata={"a": "b"})], metadata={"c": "d"})
    found = schema_without_views(given)
    assert found.equals(pa.schema([("column", plain)]))
    assert (found.metadata, found.field(0).metadata) == ({b"c": b"d"}, {b"a": b"b"})
    # pyarrow itself makes no maps of views: those are cast from plain ones.
    column = pa.array([value, None], plain)
    if not pa.types.is_map(plain):
        column = column.cast(viewed)
        batch = pa.record_batch([column], schema=given)
        (made,) = batches_without_views([batch])
        assert made.schema.equals(found)
        assert made.column(0).equals(pa.array([value, None], plain))


def test_a_field_that_is_not_null_stays_so() -> None:
    given = pa.schema([pa.field("column", pa.string_view(), nullable=False)])
    assert schema_without_views(given) == pa.schema(
        [pa.field("column", pa.string(), nullable=False)]
    )


def test_a_batch_without_views_is_passed_on_itself() -> None:
    batch = pa.record_batch({"value": [b"x"]})
    (same,) = batches_without_views([batch])
    assert same is batch
