"""The DataFrame's columns, checked on the driver before any task starts.

The rules and the words are those of Spark's own Kafka sink (KafkaWriter.validateQuery), so that a
job gets the message it would get there; the timestamp column is this sink's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.serde.columns import HEADERS_TYPE, NO_TOPIC, NO_VALUE


def check_schema(schema: StructType, topic: str | None) -> None:
    """Raise DataException where a column is missing or has a type that cannot be sent.

    topic: the option, which makes a topic column irrelevant.
    """
    _check_names(schema)
    types: dict[str, DataType] = {field.name: field.dataType for field in schema.fields}
    if topic is None and "topic" not in types:
        raise DataException(NO_TOPIC)
    if "value" not in types:
        message = f'{NO_VALUE}; name one so, as in df.selectExpr("to_json(struct(*)) AS value")'
        raise DataException(message)
    if topic is None:
        _check(types, "topic", _is_string, "string")
    _check(types, "key", _is_string_or_binary, "string or binary")
    _check(types, "value", _is_string_or_binary, "string or binary")
    _check(types, "headers", _is_headers, HEADERS_TYPE)
    _check(types, "partition", lambda kind: isinstance(kind, IntegerType), "int")
    _check(types, "timestamp", _is_time, "timestamp or bigint (milliseconds since 1970)")


def _check_names(schema: StructType) -> None:
    # Spark cannot hand over such a frame, and says so only when the first rows are under way.
    for name, count in Counter(schema.fieldNames()).items():
        if count > 1:
            message = (
                f"the data has {count} columns named {name}: expected each name once; "
                "drop or rename the others"
            )
            raise DataException(message)


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
    # A collated string is a type of its own in Spark; its own sink refuses it as well.
    return isinstance(kind, StringType) and kind.simpleString() == "string"


def _is_string_or_binary(kind: DataType) -> bool:
    return isinstance(kind, BinaryType) or _is_string(kind)


def _is_time(kind: DataType) -> bool:
    return isinstance(kind, TimestampType | LongType)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name.lower(), field.dataType) for field in kind.elementType.fields]
    return (
        [name for name, _ in fields] == ["key", "value"]
        and _is_string(fields[0][1])
        and isinstance(fields[1][1], BinaryType)
    )
