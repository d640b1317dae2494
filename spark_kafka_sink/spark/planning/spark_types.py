"""Converts Spark's types to `ColumnType`s."""

from __future__ import annotations

from typing import Final

from pyspark.sql import types as T  # noqa: N812 - as everywhere

from spark_kafka_sink.serde.column_types import ColumnField, ColumnType, Kind

_KINDS: Final[dict[type[T.DataType], Kind]] = {
    T.NullType: Kind.NULL,
    T.BooleanType: Kind.BOOLEAN,
    T.ByteType: Kind.INT,
    T.ShortType: Kind.INT,
    T.IntegerType: Kind.INT,
    T.LongType: Kind.LONG,
    T.FloatType: Kind.FLOAT,
    T.DoubleType: Kind.DOUBLE,
    T.StringType: Kind.STRING,
    T.BinaryType: Kind.BINARY,
    T.DateType: Kind.DATE,
    T.TimestampType: Kind.TIMESTAMP,
    T.TimestampNTZType: Kind.TIMESTAMP_NTZ,
    T.DayTimeIntervalType: Kind.DURATION,
}
# None before Spark 4.1, which added the class TimeType.
_TIME: Final = getattr(T, "TimeType", None)


def column_type(kind: T.DataType) -> ColumnType:
    """Return the `ColumnType` of a Spark type. Its kind is OTHER if no schema fits the type."""
    if isinstance(kind, T.UserDefinedType):
        kind = kind.sqlType()
    text = kind.simpleString()
    if isinstance(kind, T.DecimalType):
        return ColumnType(Kind.DECIMAL, text, kind.precision, kind.scale)
    if isinstance(kind, T.StructType):
        fields = tuple(
            ColumnField(each.name, column_type(each.dataType), each.nullable)
            for each in kind.fields
        )
        return ColumnType(Kind.STRUCT, "struct", fields=fields)
    if isinstance(kind, T.ArrayType):
        element = ColumnField("element", column_type(kind.elementType), kind.containsNull)
        return ColumnType(Kind.ARRAY, text, fields=(element,))
    if isinstance(kind, T.MapType):
        key = ColumnField("key", column_type(kind.keyType), is_nullable=False)
        value = ColumnField("value", column_type(kind.valueType), kind.valueContainsNull)
        return ColumnType(Kind.MAP, text, fields=(key, value))
    is_time = _TIME is not None and isinstance(kind, _TIME)
    return ColumnType(Kind.TIME if is_time else _KINDS.get(type(kind), Kind.OTHER), text)
