"""Plans of how each part of a column is written in Avro. They are made before rows are written.

`fit` compares the type of a column with the schema of the writer, and returns a plan. Tasks need
only this plan, and not the schema. Fields are found by their exact name, in any order. A field of
the schema without a column is written with its default. If a column has no field, or its type does
not fit, `fit` raises DataException. The message contains the path of the column, what was found,
and what is expected.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.serde.avro_schema import (
    NO_DEFAULT,
    Array,
    AvroType,
    EnumType,
    Field,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
)
from spark_kafka_sink.serde.column_types import ColumnField, ColumnType, Kind, near_name

# `avro_encoder` writes the number of a branch as one byte.
_LAST_BRANCH_OF_ONE_BYTE: Final = 63


class Form(Enum):
    """How a `Leaf` is written."""

    NULL = "nothing"
    BOOLEAN = "a byte"
    # A varint. INT checks that the value has at most 32 bits.
    INT = "a varint of 32 bits"
    LONG = "a varint"
    # A time as a varint. Its unit is a second divided by `Leaf.per_second`.
    TIME = "a varint of a time"
    FLOAT = "four bytes"
    DOUBLE = "eight bytes"
    # The length and the bytes. Invalid UTF-8 in a string is replaced, but UUID checks the string.
    BYTES = "length and bytes"
    STRING = "length and text"
    UUID = "length and text of a UUID"
    DECIMAL = "length and bytes of a number"
    # The bytes of a string, of binary data or of a number, without their length. Invalid UTF-8 in a
    # string is replaced.
    RAW = "the bytes"
    RAW_DECIMAL = "the bytes of a number without a length"
    # `Leaf.size` bytes.
    FIXED = "bytes"
    FIXED_UUID = "the bytes of a UUID"
    FIXED_DECIMAL = "the bytes of a number"
    # The number of the symbol.
    ENUM = "a varint of a symbol"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A part of a column that has no parts itself.

    path: the path of the part. kind: what the part contains. schema_type: the type of the schema,
    for messages. size, symbols, per_second: see `Form`.
    """

    path: str
    kind: Kind
    form: Form
    schema_type: str
    size: int = 0
    symbols: tuple[str, ...] = ()
    per_second: int = 0


@dataclass(frozen=True, slots=True)
class UnionPlan:
    """A part whose schema is a union: of one type and null, or of one type alone.

    null: the branch index of null, or None if there is no such branch. other: the branch index of
    the other type.
    """

    null: int | None
    other: int
    part: Plan


@dataclass(frozen=True, slots=True)
class Constant:
    """A field of the schema for which there is no column. data: its default, encoded."""

    data: bytes


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """A struct: for each field of the schema, in order, the name of the column and its plan."""

    path: str
    schema_type: str
    fields: tuple[tuple[str, Plan | Constant], ...]
    kind: Kind = Kind.STRUCT


@dataclass(frozen=True, slots=True)
class ListPlan:
    """An array, or the entries of a map; key: the plan of the keys, or None for an array."""

    path: str
    schema_type: str
    item: Plan
    key: Leaf | None = None

    @property
    def kind(self) -> Kind:
        """What the column contains."""
        return Kind.ARRAY if self.key is None else Kind.MAP


Plan: TypeAlias = Leaf | UnionPlan | RecordPlan | ListPlan

_MS: Final = 1000
_US: Final = 1_000_000
_NS: Final = 1_000_000_000
# For each type of a schema: the forms that fit it, by what the column contains. If the type has a
# logical type, the key is the name of the logical type.
_FORMS: Final[dict[str, dict[Kind, Form]]] = {
    "null": {Kind.NULL: Form.NULL},
    "boolean": {Kind.BOOLEAN: Form.BOOLEAN},
    "int": {Kind.INT: Form.LONG, Kind.LONG: Form.INT, Kind.DATE: Form.LONG},
    "long": {
        Kind.INT: Form.LONG,
        Kind.LONG: Form.LONG,
        Kind.DURATION: Form.TIME,
        Kind.TIMESTAMP: Form.TIME,
        Kind.TIMESTAMP_NTZ: Form.TIME,
    },
    "float": {Kind.FLOAT: Form.FLOAT},
    "double": {Kind.FLOAT: Form.DOUBLE, Kind.DOUBLE: Form.DOUBLE},
    "bytes": {Kind.BINARY: Form.BYTES, Kind.STRING: Form.BYTES},
    "string": {Kind.STRING: Form.STRING},
    "uuid": {Kind.STRING: Form.UUID},
    "date": {Kind.DATE: Form.LONG},
    "time-millis": {Kind.TIME: Form.TIME},
    "time-micros": {Kind.TIME: Form.TIME},
    "timestamp-millis": {Kind.TIMESTAMP: Form.TIME},
    "timestamp-micros": {Kind.TIMESTAMP: Form.TIME},
    "timestamp-nanos": {Kind.TIMESTAMP: Form.TIME},
    "local-timestamp-millis": {Kind.TIMESTAMP_NTZ: Form.TIME},
    "local-timestamp-micros": {Kind.TIMESTAMP_NTZ: Form.TIME},
    "local-timestamp-nanos": {Kind.TIMESTAMP_NTZ: Form.TIME},
}
_UNITS: Final = {"millis": _MS, "micros": _US, "nanos": _NS}


def fit(column: ColumnType, schema: AvroType, path: str) -> Plan:
    """Return the plan for encoding a column with a schema.

    path: the name of the column, for error messages. Raise DataException if the column does not
    fit.
    """
    return _Fitter().fit(column, schema, path)


class _Fitter:
    """Fits one column. It remembers the enclosing records, to reject recursive types."""

    def __init__(self) -> None:
        self._inside: list[Record] = []

    def fit(self, column: ColumnType, schema: AvroType, path: str) -> Plan:
        if isinstance(schema, Union):
            return self._union(column, schema, path)
        if isinstance(schema, Record) and column.kind is Kind.STRUCT:
            return self._record(column, schema, path)
        if isinstance(schema, Array) and column.kind is Kind.ARRAY:
            item = self.fit(column.fields[0].type, schema.items, f"{path}[]")
            return ListPlan(path, str(schema), item)
        if isinstance(schema, Map) and column.kind is Kind.MAP:
            key = column.fields[0].type
            if key.kind is not Kind.STRING:
                raise _misfit(column, schema, path, "the keys of an Avro map are strings")
            item = self.fit(column.fields[1].type, schema.values, f"{path}[]")
            return ListPlan(path, str(schema), item, _text(f"{path}[] (a key)"))
        return _leaf(column, schema, path)

    def _union(self, column: ColumnType, schema: Union, path: str) -> Plan:
        nulls = [n for n, each in enumerate(schema.branches) if each == Primitive("null")]
        others = [n for n in range(len(schema.branches)) if n not in nulls]
        null = nulls[0] if nulls else None
        if column.kind is Kind.NULL and null is not None and null <= _LAST_BRANCH_OF_ONE_BYTE:
            return UnionPlan(null, null, _leaf(column, schema.branches[null], path))
        if len(others) != 1:
            hint = "only unions of one type and null are supported"
            raise _misfit(column, schema, path, hint)
        return UnionPlan(null, others[0], self.fit(column, schema.branches[others[0]], path))

    def _record(self, column: ColumnType, schema: Record, path: str) -> RecordPlan:
        if schema in self._inside:
            raise _misfit(column, schema, path, "a record inside itself is not supported")
        self._inside.append(schema)
        columns = {each.name: each for each in column.fields}
        fields = tuple((each.name, self._field(columns, each, path)) for each in schema.fields)
        self._inside.pop()
        known = {each.name: each for each in schema.fields}
        for name in columns:
            if name in known:
                continue
            message = (
                f"column {path}.{name} has no field in {schema} of the Avro schema"
                f"{near_name(name, known)}: drop the column, or add the field to the schema"
            )
            raise DataException(message)
        return RecordPlan(path, str(schema), fields)

    def _field(
        self, columns: Mapping[str, ColumnField], field: Field, path: str
    ) -> Plan | Constant:
        path, column = f"{path}.{field.name}", columns.get(field.name)
        if column is not None:
            return self.fit(column.type, field.type, path)
        if field.default is NO_DEFAULT:
            message = (
                f"the data has no column {path}{near_name(field.name, columns)}: the Avro schema "
                f"has this field, of type {field.type}, without a default; add the column, or give "
                "the field a default"
            )
            raise DataException(message)
        try:
            return Constant(_default_of_field(field))
        except (_WrongDefault, RecursionError):
            message = (
                f"the data has no column {path}{near_name(field.name, columns)}, and the default "
                f"of this field in the Avro schema is {json.dumps(field.default)}, which is not of "
                f"type {field.type}: add the column, or correct the default"
            )
            raise DataException(message) from None


def _text(path: str) -> Leaf:
    return Leaf(path, Kind.STRING, Form.STRING, "string")


def _leaf(column: ColumnType, schema: AvroType, path: str) -> Leaf:
    kind = column.kind
    if isinstance(schema, EnumType) and kind is Kind.STRING:
        return Leaf(path, kind, Form.ENUM, str(schema), symbols=schema.symbols)
    if isinstance(schema, Primitive | Fixed) and kind is Kind.DECIMAL:
        return _decimal(column, schema, path)
    if isinstance(schema, Fixed) and kind is Kind.BINARY and schema.logical != "decimal":
        return Leaf(path, kind, Form.FIXED, str(schema), size=schema.size)
    if isinstance(schema, Fixed) and kind is Kind.STRING and schema.logical == "uuid":
        return Leaf(path, kind, Form.FIXED_UUID, str(schema), size=schema.size)
    if isinstance(schema, Primitive):
        form = _FORMS.get(schema.logical or schema.name, {}).get(kind)
        if form is not None:
            # Spark's own to_avro, too, writes milliseconds if a long has no logical type.
            unit = schema.logical.rpartition("-")[2] or ("micros" if kind is Kind.DURATION else "")
            per_second = _UNITS.get(unit, _MS) if form is Form.TIME else 0
            return Leaf(path, kind, form, str(schema), per_second=per_second)
    raise _misfit(column, schema, path, _EXPECTED.get(kind, ""))


def _decimal(column: ColumnType, schema: Primitive | Fixed, path: str) -> Leaf:
    fits = schema.logical == "decimal" and schema.scale == column.scale
    if not fits or schema.precision < column.precision:
        hint = (
            f"a decimal needs logicalType decimal with scale {column.scale} and a precision of at "
            f"least {column.precision}"
        )
        raise _misfit(column, schema, path, hint)
    if isinstance(schema, Fixed):
        return Leaf(path, column.kind, Form.FIXED_DECIMAL, str(schema), size=schema.size)
    return Leaf(path, column.kind, Form.DECIMAL, str(schema))


_EXPECTED: Final = {
    Kind.BOOLEAN: "the column fits the Avro type boolean",
    Kind.INT: "the column fits the Avro types int and long",
    Kind.LONG: "the column fits the Avro types long and int",
    Kind.FLOAT: "the column fits the Avro types float and double",
    Kind.DOUBLE: "the column fits the Avro type double",
    Kind.STRING: "the column fits the Avro types string, enum, uuid and bytes",
    Kind.BINARY: "the column fits the Avro types bytes and fixed",
    Kind.DATE: "the column fits the Avro type int, with or without logicalType date",
    Kind.TIMESTAMP: (
        "the column fits the Avro type long, alone or with logicalType timestamp-millis, -micros "
        "or -nanos"
    ),
    Kind.TIMESTAMP_NTZ: (
        "the column fits the Avro type long, alone or with logicalType local-timestamp-millis, "
        "-micros or -nanos"
    ),
    Kind.TIME: "the column fits logicalType time-millis and time-micros",
    Kind.DURATION: "the column fits the Avro type long",
    Kind.STRUCT: "the column fits a record",
    Kind.ARRAY: "the column fits an array",
    Kind.MAP: "the column fits a map",
    Kind.NULL: "the column fits null, and a union with null; cast it to a type that fits",
    Kind.OTHER: "no type of Avro fits; cast it to string, or drop it",
}


def _misfit(column: ColumnType, schema: AvroType, path: str, hint: str) -> DataException:
    message = (
        f"column {path} is of type {column.text}, and the Avro schema expects {schema} there; "
        f"{hint}"
    )
    return DataException(message)


# -- defaults -------------------------------------------------------------------------------------


class _WrongDefault(Exception):
    """A default is not of its field's type."""


def encode_default(default: object, schema: AvroType) -> bytes:
    """Return the bytes of a default. default: a JSON value. schema: the type of its field.

    Raise an exception if the default is not of that type.
    """
    if isinstance(schema, Union):
        return _default_of_union(default, schema)
    if isinstance(schema, Record):
        return _default_of_record(default, schema)
    if isinstance(schema, Array) and isinstance(default, list):
        return _blocks([encode_default(each, schema.items) for each in default])
    if isinstance(schema, Map) and isinstance(default, dict):
        text = Primitive("string")
        entries = (
            encode_default(key, text) + encode_default(each, schema.values)
            for key, each in default.items()
        )
        return _blocks(list(entries))
    return _default_of_leaf(default, schema)


def _default_of_leaf(default: object, schema: AvroType) -> bytes:
    if isinstance(schema, EnumType) and default in schema.symbols:
        return zigzag_varint(schema.symbols.index(str(default)))
    if isinstance(schema, Fixed) and isinstance(default, str):
        data = _code_points(default)
        if len(data) == schema.size:
            return data
    if isinstance(schema, Primitive):
        return _default_of_primitive(default, schema.name)
    raise _WrongDefault


def _default_of_union(default: object, schema: Union) -> bytes:
    for number, branch in enumerate(schema.branches):
        with suppress(_WrongDefault):
            return zigzag_varint(number) + encode_default(default, branch)
    raise _WrongDefault


def _blocks(items: list[bytes]) -> bytes:
    return zigzag_varint(len(items)) + b"".join(items) + b"\0" if items else b"\0"


def _default_of_record(default: object, schema: Record) -> bytes:
    if not isinstance(default, dict):
        raise _WrongDefault
    data = b""
    for each in schema.fields:
        if each.name in default:
            data += encode_default(default[each.name], each.type)
        elif each.default is NO_DEFAULT:
            raise _WrongDefault
        else:
            data += _default_of_field(each)
    return data


# What Java's Double.valueOf reads, except hexadecimal numbers.
_JAVA_NUMBER: Final = re.compile(
    r"([+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))[fFdD]?"
)


def _default_of_field(field: Field) -> bytes:
    """Return the encoded default of a field.

    The default of a float or double may be a string such as "NaN", because JSON has no such number.
    Avro for Java allows this, too.
    """
    default, kind = field.default, field.type
    is_float = isinstance(kind, Primitive) and kind.name in ("float", "double")
    if is_float and isinstance(default, str):
        found = _JAVA_NUMBER.fullmatch(default.strip())
        default = default if found is None else float(found[1])
    return encode_default(default, kind)


_RANGES: Final = {"int": 2**31, "long": 2**63}


def _default_of_primitive(default: object, name: str) -> bytes:
    if name == "null" and default is None:
        return b""
    if isinstance(default, bool):
        if name == "boolean":
            return bytes([default])
    elif isinstance(default, int) and name in _RANGES:
        if -_RANGES[name] <= default < _RANGES[name]:
            return zigzag_varint(default)
    elif isinstance(default, int | float) and name in ("float", "double"):
        try:
            return struct.pack("<f" if name == "float" else "<d", default)
        except OverflowError:
            raise _WrongDefault from None
    elif isinstance(default, str) and name in ("string", "bytes"):
        data = _code_points(default) if name == "bytes" else _utf8(default)
        return zigzag_varint(len(data)) + data
    raise _WrongDefault


def _code_points(text: str) -> bytes:
    """Return the bytes in the default of a bytes or fixed field: one for each code point."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise _WrongDefault from None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _WrongDefault from None


def zigzag_varint(value: int) -> bytes:
    """Return one signed number of at most 64 bits as a zigzag varint."""
    rest = (value << 1) ^ (value >> 63)
    data = bytearray()
    while rest > 0x7F:
        data.append(rest & 0x7F | 0x80)
        rest >>= 7
    data.append(rest)
    return bytes(data)
