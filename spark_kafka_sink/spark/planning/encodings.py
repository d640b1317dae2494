"""The plans by which tasks encode keys and values, made on the driver before any row.

A schema comes from an option, or is derived from the column. Tasks get the plan and not the schema.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyspark.sql import types as T  # noqa: N812 - as everywhere

from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.logs import masked
from spark_kafka_sink.serde.avro_plan import fit
from spark_kafka_sink.serde.avro_schema import derive_schema, parse_schema
from spark_kafka_sink.serde.column_types import ColumnField, ColumnType, Kind
from spark_kafka_sink.spark.formats import (
    COLUMNS_WITH_FORMAT,
    ColumnEncoding,
    FormatOptions,
    chosen_formats,
)
from spark_kafka_sink.spark.on_error import local_path
from spark_kafka_sink.spark.options import SinkOptions

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
# Spark has times since 4.1.
_TIME: Final = getattr(T, "TimeType", None)
# The name of a derived record.
_RECORD_NAMES: Final = {"key": "Key", "value": "Value"}
_SCHEMA: Final = "an Avro schema as JSON, or a file on the driver that contains one"


def with_encodings(options: SinkOptions, schema: T.StructType) -> SinkOptions:
    """Return the options with the encodings of the columns that have a format.

    Raise ConfigException for a schema or an option that is invalid, and DataException for a column
    that does not fit its schema.
    """
    given = options.formats
    chosen = chosen_formats(given, schema)
    for column in COLUMNS_WITH_FORMAT:
        if column in given.schemas and column not in chosen:
            message = f"option {column}Schema has no effect: set {column}Format, or remove it"
            raise ConfigException(message)
    columns = {each.name: each for each in schema.fields}
    derived = [name for name in chosen if name not in given.schemas]
    if not any(name in columns and _has_record(columns[name].dataType) for name in derived):
        for option in ("recordName", "recordNamespace"):
            if option.lower() in _names_given(given):
                message = f"option {option} has no effect, because no schema is derived: remove it"
                raise ConfigException(message)
    for name in chosen:
        if name not in columns and name != "value":
            message = f"option {name}Format is set, but the data has no column {name}"
            raise ConfigException(message)
    encodings = (
        _encoding(columns[name], given)
        for name in COLUMNS_WITH_FORMAT
        if name in chosen and name in columns
    )
    return replace(options, encodings=tuple(encodings))


def _names_given(options: FormatOptions) -> list[str]:
    names = {"recordname": options.record_name, "recordnamespace": options.record_namespace}
    return [name for name, value in names.items() if value is not None]


def _encoding(column: T.StructField, options: FormatOptions) -> ColumnEncoding:
    name, kind = column.name, column_type(column.dataType)
    given = options.schemas.get(name)
    if given is None:
        text = derive_schema(
            kind, name, _record_name(name, options), options.record_namespace or ""
        )
    else:
        text = _read(f"{name}Schema", given)
    try:
        schema = parse_schema(text)
    except DataException as error:
        raise ConfigException(f"option {name}Schema: {error.message}") from None
    return ColumnEncoding(name, fit(kind, schema, name))


def _record_name(column: str, options: FormatOptions) -> str:
    if options.record_name is None:
        return _RECORD_NAMES[column]
    return options.record_name if column == "value" else f"{options.record_name}_{column}"


def _read(option: str, given: str) -> str:
    """Return the text of a schema, which is the value of an option or in the file it names."""
    if given.lstrip()[:1] in ("{", "[", '"'):
        return given
    path = local_path(option, given, "which is not on the driver", _SCHEMA)
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        message = (
            f"option {option} is {masked(given)!r}, which cannot be read as a file ({reason}): "
            f"expected {_SCHEMA}"
        )
        raise ConfigException(message) from None


def _has_record(kind: T.DataType) -> bool:
    """Return whether a schema that is derived from a type has a record."""
    return '"type":"struct"' in kind.json()


def column_type(kind: T.DataType) -> ColumnType:
    """Return the type of a column of Spark; kind OTHER if no schema fits it."""
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
