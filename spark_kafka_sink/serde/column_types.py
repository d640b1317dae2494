"""The type of a column, with only the details that matter for an Avro schema or JSON Schema.

The driver makes a `ColumnType` from Spark's types, and tasks make it from Arrow's types
(`serde.arrow_types`). So the same rules apply in both places. This module does not import Arrow,
because the processes that plan a write do not load it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from spark_kafka_sink.errors import DataException


class Kind(Enum):
    """What a column contains; the value is the name in error messages."""

    NULL = "null"
    BOOLEAN = "boolean"
    # Integers of at most 32 bits, signed.
    INT = "int"
    LONG = "bigint"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BINARY = "binary"
    DECIMAL = "decimal"
    DATE = "date"
    # An instant.
    TIMESTAMP = "timestamp"
    # A date and a time of day without a time zone.
    TIMESTAMP_NTZ = "timestamp_ntz"
    TIME = "time"
    DURATION = "interval"
    STRUCT = "struct"
    ARRAY = "array"
    MAP = "map"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column, or of a part of it.

    text: the type as Spark or Arrow writes it, for error messages. precision, scale: of a decimal.
    fields: the fields of a struct; the element of an array; the key and the value of a map.
    """

    kind: Kind
    text: str
    precision: int = 0
    scale: int = 0
    fields: tuple[ColumnField, ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnField:
    """A field of a struct, the element of an array, or the key or value of a map."""

    name: str
    type: ColumnType
    is_nullable: bool = True


def without_nullability(column: ColumnType) -> ColumnType:
    """Return a type in which every field, element and value may be null."""
    fields = tuple(ColumnField(each.name, without_nullability(each.type)) for each in column.fields)
    return replace(column, fields=fields)


def near_name(name: str, known: Iterable[str]) -> str:
    """Return a hint if a known name differs from `name` only in case, else an empty string."""
    near = next((each for each in known if each.lower() == name.lower()), None)
    return "" if near is None else f" (names are case-sensitive: there is {near})"


def check_distinct_fields(column: ColumnType, path: str) -> None:
    """Raise DataException if a struct has two fields of the same name, for example after a join."""
    names = [each.name for each in column.fields]
    if column.kind is Kind.STRUCT and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        message = f"column {path} has two fields named {twice}: expected each name once"
        raise DataException(f"{message}; rename or drop one of them")
