"""Converts Arrow views and dictionaries, which Sail may pass, to the types that Spark passes.

Sail runs Spark Connect programs without a JVM. It passes dictionaries if a Parquet file contains
them, for example from a pandas column of type category. Some functions of Sail return string and
binary views.

This module is imported only when Sail plans a write or runs a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["plain_batches", "plain_schema"]


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with plain types in place of views and dictionaries, at any depth."""
    return pa.schema([_field(field) for field in schema], metadata=schema.metadata)


def plain_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with the types of `plain_schema`. Plain columns are not copied."""
    for batch in batches:
        plain = plain_schema(batch.schema)
        if plain == batch.schema:
            yield batch
        else:
            yield pa.record_batch(list(map(_array, batch.columns, plain.types)), schema=plain)


def _array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array as its plain type. A plain array is not copied."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        # Under a null struct, an index may be outside the dictionary. flatten() makes it null.
        parts = list(map(_array, array.flatten(), [field.type for field in kind]))
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_dictionary(array.type):
        # Items under a null, or outside of a slice, may have any index.
        words, indices = array.dictionary.cast(kind), array.indices
        is_word = pc.and_(pc.greater_equal(indices, 0), pc.less(indices, len(words)))
        return words.take(pc.if_else(is_word, indices, None))
    if not pa.types.is_nested(kind):
        return array.cast(kind)
    is_map = pa.types.is_map(kind)
    items = pa.struct([kind.key_field, kind.item_field]) if is_map else kind.value_type
    return pa.Array.from_buffers(
        kind,
        len(array),
        array.buffers()[:2],
        array.null_count,
        array.offset,
        [_array(array.values, items)],
    )


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_type(field.type))


def _type(kind: pa.DataType) -> pa.DataType:
    plain = kind
    if pa.types.is_string_view(kind):
        plain = pa.string()
    elif pa.types.is_binary_view(kind):
        plain = pa.binary()
    elif pa.types.is_dictionary(kind) and not _is_view_or_nested(kind.value_type):
        plain = kind.value_type
    elif pa.types.is_struct(kind):
        plain = pa.struct([_field(kind.field(number)) for number in range(kind.num_fields)])
    elif pa.types.is_list(kind):
        plain = pa.list_(_field(kind.value_field))
    elif pa.types.is_large_list(kind):
        plain = pa.large_list(_field(kind.value_field))
    elif pa.types.is_map(kind):
        plain = pa.map_(_field(kind.key_field), _field(kind.item_field), kind.keys_sorted)
    return plain


def _is_view_or_nested(kind: pa.DataType) -> bool:
    """Return whether `kind` is a view or nested. pyarrow cannot cast dictionaries of these."""
    return bool(
        pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) or pa.types.is_nested(kind)
    )
