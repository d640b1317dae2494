"""Avro schemas, derived from the type of a column."""

from __future__ import annotations

import json
from typing import Any, Final

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.serde.avro_schema import LOGICAL_TYPES, NAME_RULE, is_name
from spark_kafka_sink.serde.column_types import (
    ColumnField,
    ColumnType,
    Kind,
    check_distinct_fields,
)

_DERIVED: Final = {
    Kind.BOOLEAN: "boolean",
    Kind.INT: "int",
    Kind.LONG: "long",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.STRING: "string",
    Kind.BINARY: "bytes",
}
_DERIVED_LOGICAL: Final = {
    Kind.DATE: "date",
    Kind.TIMESTAMP: "timestamp-micros",
    Kind.TIMESTAMP_NTZ: "local-timestamp-micros",
    Kind.TIME: "time-micros",
}


def derive_schema(column: ColumnType, path: str, name: str, namespace: str = "") -> str:
    """Return the schema of a column as JSON.

    path: the path of the column, for error messages. name, namespace: of the outermost Avro record,
    if the column has one. The schema of a part that may be null is ``["null", T]``, and a field
    that may be null also has the default null. The schema of the column itself is T, because a null
    key or value is not encoded. Raise DataException for a type that has no schema. Void is such a
    type: if the column has values in a later run, they would not fit the schema.
    """
    derived = _Deriver(name, namespace).derive(column, path, name)
    return json.dumps(derived, separators=(",", ":"))


class _Deriver:
    """Derives one schema. It names a nested record after its parent and its field."""

    def __init__(self, name: str, namespace: str) -> None:
        self._taken = {name}
        self._namespace = namespace

    def derive(self, column: ColumnType, path: str, name: str) -> str | dict[str, Any]:
        """Return the schema of a column, or of a part of it. name: the name of its Avro record."""
        kind = column.kind
        if kind in _DERIVED:
            return _DERIVED[kind]
        if kind in _DERIVED_LOGICAL:
            logical = _DERIVED_LOGICAL[kind]
            return {"type": LOGICAL_TYPES[logical], "logicalType": logical}
        if kind is Kind.DECIMAL and 0 <= column.scale <= column.precision:
            size = {"precision": column.precision, "scale": column.scale}
            return {"type": "bytes", "logicalType": "decimal", **size}
        if kind is Kind.STRUCT:
            check_distinct_fields(column, path)
            record: dict[str, Any] = {"type": "record", "name": name}
            if self._namespace:  # nested records inherit the namespace
                record["namespace"] = self._namespace
                self._namespace = ""
            record["fields"] = [self._field(each, path, name) for each in column.fields]
            return record
        if kind is Kind.ARRAY:
            return {"type": "array", "items": self._part(column.fields[0], f"{path}[]", name)}
        if kind is Kind.MAP and column.fields[0].type.kind is Kind.STRING:
            return {"type": "map", "values": self._part(column.fields[1], f"{path}[]", name)}
        raise DataException(_has_no_schema(column, path))

    def _field(self, column: ColumnField, path: str, parent: str) -> dict[str, Any]:
        path = f"{path}.{column.name}"
        if not is_name(column.name):
            message = f"column {path}: a field of an Avro record is expected to have {NAME_RULE}"
            raise DataException(f"{message}; rename it, as in withColumnRenamed")
        kind = self._part(column, path, self._new_name(column, parent))
        found: dict[str, Any] = {"name": column.name, "type": kind}
        if column.is_nullable:
            found["default"] = None
        return found

    def _new_name(self, column: ColumnField, parent: str) -> str:
        """Return a name for the Avro record in a field. No other Avro record has this name."""
        if not has_record(column.type):
            return ""
        name = first = f"{parent}_{column.name}"
        number = 1
        while name in self._taken:
            number += 1
            name = f"{first}_{number}"
        self._taken.add(name)
        return name

    def _part(self, column: ColumnField, path: str, name: str) -> str | list[Any] | dict[str, Any]:
        kind = self.derive(column.type, path, name)
        return ["null", kind] if column.is_nullable else kind


def has_record(column: ColumnType) -> bool:
    """Return whether the Avro schema that is derived from a column contains a record."""
    return column.kind is Kind.STRUCT or any(has_record(each.type) for each in column.fields)


def _has_no_schema(column: ColumnType, path: str) -> str:
    if column.kind is Kind.MAP:
        return (
            f"column {path} is a {column.text}: the keys of an Avro map are strings; convert the "
            "keys, or use map_entries"
        )
    if column.kind is Kind.NULL:
        return (
            f"column {path} is of type {column.text}, for which no Avro schema can be derived: "
            "cast it to another type, or set a schema that accepts null in this field"
        )
    if column.kind is Kind.DURATION:
        return (
            f"column {path} is of type {column.text}, for which no Avro schema can be "
            "derived: cast it to bigint or string, or set a schema that has a long there"
        )
    return (
        f"column {path} is of type {column.text}, for which there is no Avro schema: cast it to "
        "string, or drop it"
    )
