"""Arrow's string and binary views, which Sail may pass, as the strings and bytes that Spark passes.

Only tasks and plans of Sail import this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

__all__ = ["batches_without_views", "schema_without_views"]


def schema_without_views(schema: pa.Schema) -> pa.Schema:
    """Return the schema with plain types in place of views, at any depth."""
    return pa.schema([_field(field) for field in schema], metadata=schema.metadata)


def batches_without_views(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with plain columns in place of views; other columns are not copied."""
    for batch in batches:
        plain = schema_without_views(batch.schema)
        yield batch if plain == batch.schema else batch.cast(plain)


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_type(field.type))


def _type(kind: pa.DataType) -> pa.DataType:
    plain = kind
    if pa.types.is_string_view(kind):
        plain = pa.string()
    elif pa.types.is_binary_view(kind):
        plain = pa.binary()
    elif pa.types.is_struct(kind):
        plain = pa.struct([_field(kind.field(number)) for number in range(kind.num_fields)])
    elif pa.types.is_list(kind):
        plain = pa.list_(_field(kind.value_field))
    elif pa.types.is_large_list(kind):
        plain = pa.large_list(_field(kind.value_field))
    elif pa.types.is_map(kind):
        plain = pa.map_(_field(kind.key_field), _field(kind.item_field), kind.keys_sorted)
    return plain
