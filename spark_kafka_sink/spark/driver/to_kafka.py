"""``to_kafka(df)``: a DataFrame with the sink's columns, made with Spark's own expressions.

It only adds a select to the DataFrame (classic or Connect, batch or stream). It starts no job, and
the rows do not pass through Python.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from spark_kafka_sink.errors import DataException, listed
from spark_kafka_sink.spark.formats import AVRO, JSON_SR, as_converted, as_metadata, numbered_json
from spark_kafka_sink.spark.session import check_frame

# The values "json", "avro" and "json_sr" mean the whole row. To use a column of such a name, pass a
# Column.
JSON: Final = "json"
_FORMATS: Final = (AVRO, JSON_SR)
_BYTES: Final = ("key", "value")
# Spark's name for the metadata of a column with a DEFAULT value.
_HAS_DEFAULT: Final = "EXISTS_DEFAULT"
# By default, to_json truncates times to milliseconds and writes them in the session's time zone.
_EXACT_TIMES: Final = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    # Set here, because the default depends on a setting of the session.
    "ignoreNullFields": "true",
}


def to_kafka(
    df: DataFrame,
    key: str | Column | None = None,
    value: str | Column = JSON,
    *,
    headers: str | Column | None = None,
    timestamp: str | Column | None = None,
    topic: str | Column | None = None,
    partition: str | Column | None = None,
    key_format: str | None = None,
) -> DataFrame:
    """Return a DataFrame that has only the sink's columns.

    Each argument is the name of a column or a Column. value="json" means the whole row as a JSON
    object with every column of `df`, including the columns that other arguments name. As always
    with ``to_json``, null fields are omitted. value="avro" means the whole row as a struct; the
    sink writes it as Avro, as with the option `valueFormat`. value="json_sr" means the whole row as
    JSON whose schema is in a schema registry. The column is then a struct of the JSON and of a
    number for the type of the rows. With this number, the write detects rows of a different type
    that a union has added.

    With key_format="avro", the key keeps its type, and the sink writes it as Avro, as with the
    option `keyFormat`. With key_format="json_sr", the key must be a struct, and is converted in the
    same way as value="json_sr". Other keys and values of type struct, array, map or variant are
    converted to JSON. String and binary stay as they are. All other types are cast to string.
    headers, timestamp, topic and partition must have the types that the sink requires. Raise
    DataException for an unknown column, for an argument that is neither a name nor a Column, and
    for an unknown key_format. With the key_format "json_sr", also raise it for a key that is not a
    struct.

    >>> to_kafka(flights, key="tailnum", topic="carrier").write  # doctest: +SKIP
    """
    check_frame("to_kafka", df)
    _check_key_format(key_format, has_key=key is not None)
    given = {
        "key": key,
        "value": value,
        "headers": headers,
        "timestamp": timestamp,
        "topic": topic,
        "partition": partition,
    }
    named = {
        name: _checked_column(name, each)
        for name, each in given.items()
        if each is not None or name == "value"
    }
    columns = {name: _column(df, name, each) for name, each in named.items()}
    chosen = df.select(*(column.alias(name) for name, column in columns.items()))
    types = {field.name: field.dataType for field in chosen.schema.fields}
    return chosen.select(
        *(
            F.col(name).alias(name, metadata=_mark(df, value))
            if name == "value" and _is_format(value)
            else _key(types[name], key_format)
            if name == "key" and key_format is not None
            else _as_bytes(name, types[name], is_row=name == "value" and _is_row(value))
            if name in _BYTES
            else F.col(name)
            for name in columns
        )
    )


def _check_key_format(key_format: str | None, *, has_key: bool) -> None:
    if key_format is None:
        return
    if not _is_format(key_format):
        message = f"to_kafka: key_format is {key_format!r}: expected {AVRO!r} or {JSON_SR!r}"
        raise DataException(message)
    if not has_key:
        raise DataException(
            "to_kafka: key_format has no effect without key: remove key_format, or set key"
        )


def _key(kind: DataType, key_format: str) -> Column:
    """Return the key column for a key_format. kind: the type of the column."""
    key = F.col("key")
    if key_format == AVRO:
        return key.alias("key", metadata=as_metadata(AVRO))
    if not isinstance(kind, StructType):
        message = (
            f"to_kafka: key is of type {kind.simpleString()}, and key_format is {JSON_SR!r}: "
            "expected a struct, such as functions.struct('id')"
        )
        raise DataException(message)
    rows = numbered_json(F.to_json(_without_defaults(key, kind), _EXACT_TIMES), kind)
    return rows.alias("key", metadata=as_metadata(JSON_SR, kind))


def _checked_column(argument: str, given: object) -> str | Column:
    if isinstance(given, str | Column):
        return given
    message = (
        f"to_kafka: {argument} is of type {type(given).__name__}: expected the name of a "
        "column, or a Column, such as functions.lit(value)"
    )
    raise DataException(message)


def _column(df: DataFrame, argument: str, given: str | Column) -> Column:
    if isinstance(given, Column):
        return given
    if argument == "value" and given == JSON:
        return F.to_json(F.struct("*"))
    if argument == "value" and given == JSON_SR:
        row = _without_defaults(F.struct("*"), df.schema)
        return numbered_json(F.to_json(row, _EXACT_TIMES), df.schema)
    if argument == "value" and _is_format(given):
        return F.struct("*")
    if given not in df.columns:
        raise DataException(_unknown(df, argument, given))
    return df[f"`{given.replace('`', '``')}`"]


def _without_defaults(struct: Column, kind: StructType) -> Column:
    """Return a struct whose fields have no DEFAULT values, which table columns may have.

    `to_json` writes null for a null field with a DEFAULT value, but omits other null fields.
    """
    plain = _plain(kind)
    return struct if plain.jsonValue() == kind.jsonValue() else struct.cast(plain)


def _plain(kind: DataType) -> DataType:
    """Return a type without DEFAULT values at any depth."""
    if isinstance(kind, StructType):
        fields = []
        for each in kind.fields:
            kept = {} if _HAS_DEFAULT in each.metadata else each.metadata
            fields.append(StructField(each.name, _plain(each.dataType), each.nullable, kept))
        return StructType(fields)
    if isinstance(kind, ArrayType):
        return ArrayType(_plain(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_plain(kind.keyType), _plain(kind.valueType), kind.valueContainsNull)
    return kind


def _is_row(given: str | Column) -> bool:
    return isinstance(given, str) and given == JSON


def _is_format(given: str | Column) -> bool:
    return isinstance(given, str) and given in _FORMATS


def _mark(df: DataFrame, value: str | Column) -> dict[str, Any]:
    return as_metadata(JSON_SR, df.schema) if value == JSON_SR else as_metadata(AVRO)


def _unknown(df: DataFrame, argument: str, name: str) -> str:
    by_lower = {column.lower(): column for column in df.columns}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    hint = f"did you mean {by_lower[close[0]]}?" if close else f"it has {listed(df.columns)}"
    return f"to_kafka: {argument} is {name!r}, but the data has no column of that name; {hint}"


def _as_bytes(name: str, kind: DataType, *, is_row: bool) -> Column:
    """Return a column converted to string, or unchanged if it is string or binary.

    is_row: whether the column is a whole row, which is JSON already.
    """
    column = F.col(name)
    if is_row:
        return column.alias(name, metadata=as_converted("struct"))
    # A string with a collation is cast to a plain string, because the sink accepts only that.
    if kind.simpleString() in ("string", "binary"):
        return column
    if isinstance(kind, StringType):
        return column.cast("string").alias(name)
    is_nested = isinstance(kind, StructType | ArrayType | MapType | VariantType)
    text = F.to_json(column) if is_nested else column.cast("string")
    return text.alias(name, metadata=as_converted(kind.simpleString().partition("<")[0]))
