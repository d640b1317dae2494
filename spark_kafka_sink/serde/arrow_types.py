"""Convert the types of Arrow columns to `ColumnType`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from spark_kafka_sink.serde.column_types import ColumnField, ColumnType, Kind


def _is_int(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) and (kind.bit_width < 32 or pa.types.is_int32(kind)))


def _is_long(kind: pa.DataType) -> bool:
    return bool(pa.types.is_int64(kind) or pa.types.is_uint32(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


_SIMPLE_TYPES: Final[tuple[tuple[Callable[[pa.DataType], bool], Kind], ...]] = (
    (pa.types.is_null, Kind.NULL),
    (pa.types.is_boolean, Kind.BOOLEAN),
    (_is_int, Kind.INT),
    (_is_long, Kind.LONG),
    (lambda kind: pa.types.is_float16(kind) or pa.types.is_float32(kind), Kind.FLOAT),
    (pa.types.is_float64, Kind.DOUBLE),
    (_is_text, Kind.STRING),
    (_is_bytes, Kind.BINARY),
    (pa.types.is_date, Kind.DATE),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, Kind.TIMESTAMP),
    (pa.types.is_timestamp, Kind.TIMESTAMP_NTZ),
    (pa.types.is_time, Kind.TIME),
    (pa.types.is_duration, Kind.DURATION),
)
# Arrow's decimals of at most this precision have 128 bits or fewer.
_MAX_PRECISION: Final = 38


def column_type(kind: pa.DataType) -> ColumnType:
    """Return an Arrow type as a `ColumnType`. Its kind is OTHER if no schema fits the type."""
    if pa.types.is_dictionary(kind):
        return column_type(kind.value_type)
    if pa.types.is_decimal(kind):
        is_small = kind.precision <= _MAX_PRECISION
        found = Kind.DECIMAL if is_small else Kind.OTHER
        return ColumnType(found, str(kind), kind.precision, kind.scale)
    if pa.types.is_struct(kind):
        return ColumnType(Kind.STRUCT, "struct", fields=tuple(_field(each) for each in kind))
    if pa.types.is_map(kind):
        fields = (
            ColumnField("key", column_type(kind.key_type), is_nullable=False),
            ColumnField("value", column_type(kind.item_type), kind.item_field.nullable),
        )
        return ColumnType(Kind.MAP, str(kind), fields=fields)
    if _is_list(kind):
        element = ColumnField("element", column_type(kind.value_type), kind.value_field.nullable)
        return ColumnType(Kind.ARRAY, str(kind), fields=(element,))
    found = next((found for is_kind, found in _SIMPLE_TYPES if is_kind(kind)), Kind.OTHER)
    return ColumnType(found, str(kind))


def _field(field: pa.Field) -> ColumnField:
    return ColumnField(field.name, column_type(field.type), field.nullable)


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )
