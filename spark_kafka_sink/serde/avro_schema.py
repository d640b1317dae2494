"""Avro schemas, parsed by the rules of Avro's specification.

If a schema breaks a rule, the message of the DataException names the place in the schema. As the
specification demands, unknown and invalid logical types are ignored, for example a decimal with
more decimal places than digits. As in Avro for Java, the parts of a namespace may contain any
characters that UTF-8 can encode, such as a hyphen.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeGuard

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.model import is_utf8

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMED: Final = ("record", "error", "enum", "fixed")
_ROOT: Final = "the schema"
_LONGEST_SHOWN: Final = 60
_UUID_BYTES: Final = 16
# In Avro for Java, the size of a fixed type is an int.
_LARGEST_FIXED: Final = 2**31 - 1

# The underlying type of each logical type. Decimals and UUIDs have rules of their own.
LOGICAL_TYPES: Final = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "timestamp-nanos": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "local-timestamp-nanos": "long",
}

# Marks a field without a default. None cannot mark it, because it is the default null.
NO_DEFAULT: Final = object()


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parts. logical: the name of its logical type, or "" if it has none."""

    name: str
    logical: str = ""
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return _with_logical(self.name, self)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Values of `size` bytes. name: the full name. logical: as in `Primitive`."""

    name: str
    size: int
    logical: str = ""
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return _with_logical(f"fixed of {self.size} bytes", self)


@dataclass(frozen=True, slots=True)
class EnumType:
    """One of several symbols. name: the full name. default: None if there is no default."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None

    def __str__(self) -> str:
        return f"enum {self.name}"


@dataclass(frozen=True, slots=True)
class Array:
    """A list of items of one type."""

    items: AvroType

    def __str__(self) -> str:
        return "array"


@dataclass(frozen=True, slots=True)
class Map:
    """A map from strings to values of one type."""

    values: AvroType

    def __str__(self) -> str:
        return "map"


@dataclass(frozen=True, slots=True)
class Union:
    """One of several types."""

    branches: tuple[AvroType, ...]

    def __str__(self) -> str:
        return f"union of {', '.join(str(branch) for branch in self.branches) or 'nothing'}"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record. default: as in the JSON, or `NO_DEFAULT` if there is none."""

    name: str
    type: AvroType
    default: object = NO_DEFAULT


@dataclass(slots=True, eq=False)
class Record:
    """A record. name: the full name. The type of a field may be the record itself."""

    name: str
    fields: list[Field] = field(default_factory=list)

    def __str__(self) -> str:
        return f"record {self.name}"


AvroType: TypeAlias = Primitive | Fixed | EnumType | Array | Map | Union | Record


def _with_logical(name: str, kind: Primitive | Fixed) -> str:
    if kind.logical == "decimal":
        return f"{name} with logicalType decimal({kind.precision},{kind.scale})"
    return f"{name} with logicalType {kind.logical}" if kind.logical else name


# -- parsing --------------------------------------------------------------------------------------


class ReferencedSchema(NamedTuple):
    """A schema that another one references.

    where: the place of the schema, for error messages. name: the name of the reference. For a JSON
    Schema, it is the URI of the schema. For Avro, it is not used, because the names are in the
    schema.
    """

    text: str
    where: str
    name: str = ""


def parse_schema(text: str, referenced: Sequence[ReferencedSchema] = ()) -> AvroType:
    """Return the schema in a JSON string. Raise DataException if it is not a valid schema.

    referenced: the schemas that define names which this schema uses. Each schema comes after the
    schemas that it uses. A schema that occurs several times is parsed only once.
    """
    parser = _Parser()
    texts = {each.where: each.text for each in referenced}
    try:
        for where, used in texts.items():
            parser.parse(_loaded(used), "", where)
        return parser.parse(_loaded(text), "", _ROOT)
    except RecursionError:
        raise DataException("the Avro schema is nested too deeply") from None


def schema_name(text: str) -> str | None:
    """Return the full name of the schema in a JSON string, or None if its type has no name.

    The schema may use names that it does not define. Raise DataException if `text` is not JSON.
    """
    found = _loaded(text)
    if isinstance(found, dict) and found.get("type") in _NAMED:
        return _full_name(found, "", _ROOT)
    return None


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        message = f"an Avro schema is expected to be JSON, found {_shown(text)} ({reason})"
        raise DataException(message) from None


class _Parser:
    """Parses a schema and what it references. A name can be used only after its definition."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def parse(self, found: object, namespace: str, place: str) -> AvroType:
        """Return a schema. namespace: the enclosing namespace. place: for error messages."""
        if isinstance(found, str):
            return self._of_name(found, namespace, place)
        if isinstance(found, list):
            return self._union(found, namespace, place)
        if not isinstance(found, dict):
            raise _wrong(place, _shown(found), "the name of a type, an object or a list")
        return self._object(found, namespace, place)

    def _object(self, found: Mapping[str, object], namespace: str, place: str) -> AvroType:
        name = found.get("type")
        if not isinstance(name, str):
            raise _wrong(f"{place}: type", _shown(name), "the name of a type")
        if name in _NAMED:
            return self._definition(name, found, namespace, place)
        if name == "array":
            return Array(self._part(found, "items", namespace, place))
        if name == "map":
            return Map(self._part(found, "values", namespace, place))
        if name in PRIMITIVES:
            return Primitive(name, *_logical(found, name, 0))
        return self._of_name(name, namespace, place)

    def _part(self, found: Mapping[str, object], name: str, namespace: str, place: str) -> AvroType:
        if name not in found:
            raise _wrong(place, f"{found['type']} without {name}", f"{name} with a type")
        return self.parse(found[name], namespace, f"{place}, {name}")

    def _of_name(self, name: str, namespace: str, place: str) -> AvroType:
        if name in PRIMITIVES:
            return Primitive(name)
        full = _qualified(name, namespace)
        known = self._named.get(full) or self._named.get(name)  # as in Avro for Java
        if known is None:
            raise _wrong(place, f"{_shown(name)}, which is not defined before", "a known type")
        return known

    def _union(self, found: list[object], namespace: str, place: str) -> Union:
        branches = tuple(
            self.parse(each, namespace, f"{place}, branch {number}")
            for number, each in enumerate(found)
        )
        seen: set[str] = set()
        for branch in branches:
            if isinstance(branch, Union):
                raise _wrong(place, "a union directly inside a union", "other types")
            name = _branch_name(branch)
            if name in seen:
                raise _wrong(place, f"two branches of type {name}", "each type once")
            seen.add(name)
        return Union(branches)

    def _definition(
        self, kind: str, found: Mapping[str, object], namespace: str, place: str
    ) -> AvroType:
        full = _full_name(found, namespace, place)
        if full in self._named:
            raise _wrong(place, f"a second definition of {full}", "each name once")
        place = f"{place}, {kind} {full}"
        _check_texts(found, "aliases", place)
        if kind == "enum":
            made: AvroType = _enum(full, found, place)
        elif kind == "fixed":
            size = found.get("size")
            if not _is_int(size) or not 0 <= size <= _LARGEST_FIXED:
                raise _wrong(f"{place}: size", _shown(size), "a number of bytes")
            made = Fixed(full, size, *_logical(found, "fixed", size))
        else:
            return self._record(full, found, place)
        self._named[full] = made
        return made

    def _record(self, full: str, found: Mapping[str, object], place: str) -> Record:
        fields = found.get("fields")
        if not isinstance(fields, list):
            raise _wrong(f"{place}: fields", _shown(fields), "a list of fields")
        record = self._named[full] = Record(full)
        namespace = full.rpartition(".")[0]
        names: set[str] = set()
        for each in fields:
            if not isinstance(each, dict):
                raise _wrong(f"{place}: fields", _shown(each), "an object with name and type")
            name = each.get("name")
            if not isinstance(name, str) or not is_name(name):
                raise _wrong(f"{place}, a field's name", _shown(name), NAME_RULE)
            if name in names:
                raise _wrong(place, f"two fields named {name}", "each name once")
            names.add(name)
            inside = f"{place}, field {name}"
            if "type" not in each:
                raise _wrong(inside, "no type", "a type")
            if each.get("order", "ascending") not in ("ascending", "descending", "ignore"):
                expected = "ascending, descending or ignore"
                raise _wrong(f"{inside}: order", _shown(each["order"]), expected)
            _check_texts(each, "aliases", inside)
            kind = self.parse(each["type"], namespace, inside)
            record.fields.append(Field(name, kind, each.get("default", NO_DEFAULT)))
        return record


def _enum(full: str, found: Mapping[str, object], place: str) -> EnumType:
    symbols = _check_texts(found, "symbols", place)
    if symbols is None:
        raise _wrong(f"{place}: symbols", "None", "a list of names")
    for symbol in symbols:
        if not is_name(symbol):
            raise _wrong(f"{place}, a symbol", _shown(symbol), NAME_RULE)
    if len(set(symbols)) < len(symbols):
        raise _wrong(place, "a symbol twice", "each symbol once")
    default = found.get("default")
    if default is not None and (not isinstance(default, str) or default not in symbols):
        raise _wrong(f"{place}: default", _shown(default), "one of the symbols")
    return EnumType(full, tuple(symbols), default)


def _check_texts(found: Mapping[str, object], name: str, place: str) -> list[str] | None:
    texts = found.get(name)
    if texts is None:
        return None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _wrong(f"{place}: {name}", _shown(texts), "a list of names")
    return texts


def _full_name(found: Mapping[str, object], enclosing: str, place: str) -> str:
    name, namespace = found.get("name"), found.get("namespace")
    if not isinstance(name, str):
        raise _wrong(f"{place}: name", _shown(name), NAME_RULE)
    if namespace is None:
        namespace = enclosing
    if not isinstance(namespace, str):
        raise _wrong(f"{place}: namespace", _shown(namespace), "names with dots between them")
    full = _qualified(name, namespace)
    if not is_utf8(full):
        raise _wrong(f"{place}: full name", _shown(full), "no unpaired surrogate")
    last = full.rpartition(".")[2]
    if not is_name(last):
        raise _wrong(f"{place}: name", _shown(last), NAME_RULE)
    if full in PRIMITIVES:
        raise _wrong(f"{place}: name", _shown(full), "a name that is not a primitive type's")
    return full


def _qualified(name: str, namespace: str) -> str:
    """Return a full name. The part of `name` before its last dot, if any, is the namespace."""
    own, dot, last = name.rpartition(".")
    chosen = own if dot else namespace
    return f"{chosen}.{last}" if chosen else last


def _branch_name(branch: AvroType) -> str:
    if isinstance(branch, Primitive | Fixed | EnumType | Record):
        return branch.name
    return str(branch)


def _logical(found: Mapping[str, object], base: str, size: int) -> tuple[str, int, int]:
    """Return name, precision and scale of the logical type. An invalid type has the name ""."""
    name = found.get("logicalType")
    if name == "decimal" and base in ("bytes", "fixed"):
        precision, scale = found.get("precision"), found.get("scale", 0)
        if not _is_int(precision) or not _is_int(scale):
            return "", 0, 0
        is_valid = 0 <= scale <= precision and precision > 0
        if base == "fixed" and precision > _most_digits(size):
            is_valid = False
        return ("decimal", precision, scale) if is_valid else ("", 0, 0)
    if name == "uuid" and (base == "string" or size == _UUID_BYTES):
        return "uuid", 0, 0
    if isinstance(name, str) and LOGICAL_TYPES.get(name) == base:
        return name, 0, 0
    return "", 0, 0


def _is_int(found: object) -> TypeGuard[int]:
    """Return whether a value of JSON is an integer. In Python, true and false are integers, too."""
    return isinstance(found, int) and not isinstance(found, bool)


def _most_digits(size: int) -> int:
    """Return how many decimal digits always fit into a signed number of `size` bytes.

    Avro for Java makes the same calculation, so that both find the same decimals valid.
    """
    return math.floor(math.log10(2) * (8 * size - 1)) if size else 0


NAME_RULE: Final = "a name of letters, digits and _ that does not begin with a digit"


def is_name(text: str) -> bool:
    """Return whether a string is a valid Avro name."""
    return _NAME.fullmatch(text) is not None


def _shown(found: object) -> str:
    text = found if isinstance(found, str) else json.dumps(found)
    cut = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
    return repr(cut) if isinstance(found, str) else cut


def _wrong(place: str, found: str, expected: str) -> DataException:
    return DataException(f"Avro schema: {place}: found {found}, expected {expected}")
