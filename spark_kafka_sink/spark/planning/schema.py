"""Checks of the DataFrame's columns on the driver, before any task writes.

The rules and messages are the same as in Spark's own Kafka sink (KafkaWriter.validateQuery). This
sink also accepts a timestamp column, headers as a map, and header values that are strings. It also
warns about columns that are not sent.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CalendarIntervalType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    UserDefinedType,
    YearMonthIntervalType,
)

from spark_kafka_sink.errors import DataException, listed
from spark_kafka_sink.logs import warn_once
from spark_kafka_sink.serde import COLUMNS, HEADERS_TYPE, NO_TOPIC, NO_VALUE, check_each_once

logger = logging.getLogger(__name__)


def check_has_columns(schema: StructType, topic: str | None) -> None:
    """Raise DataException if a column is missing, or if two columns have the same name.

    topic: the option `topic`, None if it is not set. If it is not set, a topic column is needed.
    """
    names = schema.fieldNames()
    if topic is None and "topic" not in names:
        raise DataException(" ".join([NO_TOPIC, *_other_case(names, "topic")]))
    # Spark cannot pass a DataFrame with duplicate column names to Python. Without this check, the
    # job would fail only at its first rows.
    check_each_once(names)
    if "value" not in names:
        hints = _other_case(names, "value") or [
            'Name a column value, as in df.selectExpr("to_json(struct(*)) AS value"), or use '
            "to_kafka(df)."
        ]
        raise DataException(" ".join([f"{NO_VALUE}.", *hints]))


def check_schema(schema: StructType, topic: str | None, encoded: Collection[str] = ()) -> None:
    """Raise DataException if a column has a type that cannot be sent.

    topic: the option `topic`, None if it is not set. If it is set, the topic column is ignored.
    encoded: the columns that tasks encode. Their types are not checked here, because they were
    checked with their schemas.
    """
    types = {field.name: field.dataType for field in schema.fields}
    for name, kind in types.items():
        _check_can_be_handed_over(name, kind)
    if topic is None:
        _check(types, "topic", _is_string, "string")
    for name in ("key", "value"):
        if name not in encoded:
            _check(types, name, _is_string_or_binary, "string or binary")
    _check(types, "headers", _is_headers, HEADERS_TYPE)
    _check(types, "partition", lambda kind: isinstance(kind, IntegerType), "int")
    _check(types, "timestamp", _is_time, "timestamp or bigint (milliseconds since 1970)")


def check_dead_letters(schema: StructType, encoded: Collection[str]) -> None:
    """Raise DataException if a column cannot be stored in the Parquet files of dead letters.

    A dead letter has all columns of its row, sent or not. encoded: as in `check_schema`. They are
    binary or JSON in a dead letter.
    """
    for field in schema.fields:
        found = None if field.name in encoded else _not_in_parquet(field.name, field.dataType)
        if found is not None:
            name, kind = found
            message = (
                f"column {name} is of type {kind.simpleString()}, which the Parquet files in "
                "deadLetterPath cannot store: cast the column to string, or drop it, before "
                "writing, or set deadLetterTopic in place of deadLetterPath"
            )
            raise DataException(message)


def _not_in_parquet(name: str, kind: DataType) -> tuple[str, DataType] | None:
    """Return the path and the type of a part of a column that Parquet cannot store, or None."""
    kind = _stored(kind)
    if isinstance(kind, YearMonthIntervalType) or kind == StructType():
        return name, kind
    found = (_not_in_parquet(f"{name}.{part}", each) for part, each in _inner(kind).items())
    return next((each for each in found if each is not None), None)


def warn_of_unsent_columns(schema: StructType) -> None:
    """Log a warning if there are columns that are not sent as a part of the record.

    The warning is logged only once per schema and process. Otherwise, each micro-batch of a stream
    would log it again.
    """
    names = [field.name for field in schema.fields]
    unsent = [name for name in names if name not in COLUMNS]
    if unsent:
        described = (
            f"{name} (column names are case-sensitive: did you mean {name.lower()}?)"
            if name.lower() in COLUMNS and name.lower() not in names
            else name
            for name in unsent
        )
        warn_once(
            logger,
            f"pykafka does not send the columns {listed(described)}: "
            f"a record is made of {', '.join(COLUMNS)}",
        )


def _check_can_be_handed_over(name: str, kind: DataType) -> None:
    """Raise DataException if a column, sent or not, has a type that Spark cannot pass to Python.

    Spark passes all columns to Python as Arrow data. This fails for columns of year-month intervals
    (but not for such intervals inside arrays and structs), and for structs with two fields of the
    same name. Spark's data sources do not support calendar intervals at any depth of a type.
    """
    twice = _field_there_twice(name, kind)
    what_to_do = "cast it to string, or drop it, before writing"
    if twice is not None:
        reason = f"has two fields named {twice[1]} in the struct {twice[0]}"
        what_to_do = "drop it before writing"
    elif isinstance(_stored(kind), YearMonthIntervalType) or _has_calendar_interval(kind):
        reason = f"is of type {_stored(kind).simpleString()}"
    else:
        return
    message = f"column {name} {reason} and cannot be passed to Python: {what_to_do}"
    raise DataException(message)


def _has_calendar_interval(kind: DataType) -> bool:
    kind = _stored(kind)
    return isinstance(kind, CalendarIntervalType) or any(
        map(_has_calendar_interval, _inner(kind).values())
    )


def _field_there_twice(path: str, kind: DataType) -> tuple[str, str] | None:
    """Return the path of a struct, and a field name that occurs twice in it, or None.

    path: the path of `kind`. Structs at any depth of the type are checked.
    """
    kind = _stored(kind)
    if isinstance(kind, StructType):
        for name, count in Counter(kind.fieldNames()).items():
            if count > 1:
                return path, name
    found = (_field_there_twice(f"{path}.{name}", each) for name, each in _inner(kind).items())
    return next(filter(None, found), None)


def _inner(kind: DataType) -> dict[str, DataType]:
    """Return the types of the fields, elements, keys and values of a type, by name."""
    if isinstance(kind, StructType):
        return {field.name: field.dataType for field in kind.fields}
    if isinstance(kind, ArrayType):
        return {"element": kind.elementType}
    return {"key": kind.keyType, "value": kind.valueType} if isinstance(kind, MapType) else {}


def _stored(kind: DataType) -> DataType:
    return kind.sqlType() if isinstance(kind, UserDefinedType) else kind


def _other_case(names: Iterable[str], name_of_column: str) -> list[str]:
    """Return a hint for each column whose name differs from `name_of_column` only in case."""
    return [
        f"Column names are case-sensitive: rename {name} to {name_of_column}."
        for name in names
        if name.lower() == name_of_column
    ]


def _check(
    types: dict[str, DataType], name: str, accepts: Callable[[DataType], bool], accepted: str
) -> None:
    kind = types.get(name)
    if kind is not None and not accepts(kind):
        message = (
            f"{name} attribute unsupported type {kind.simpleString()}. "
            f"{name} must be a(n) {accepted}"
        )
        raise DataException(message)


def _is_string(kind: DataType) -> bool:
    # A string with a collation is not accepted. Spark's own sink also refuses it.
    return isinstance(kind, StringType) and kind.simpleString() == "string"


def _is_string_or_binary(kind: DataType) -> bool:
    return isinstance(kind, BinaryType) or _is_string(kind)


def _is_time(kind: DataType) -> bool:
    return isinstance(kind, TimestampType | LongType)


def _is_headers(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return _is_string(kind.keyType) and _is_string_or_binary(kind.valueType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name.lower(), field.dataType) for field in kind.elementType.fields]
    return (
        [name for name, _ in fields] == ["key", "value"]
        and _is_string(fields[0][1])
        and _is_string_or_binary(fields[1][1])
    )
