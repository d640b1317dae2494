"""Kafka's own message schemas, and values generated for them.

Most ship with kafka-python, the others are in `token_schemas`.

The value of a message is a tree: a dict by field name for a struct, a list for an array. A tree has
the fields of all versions; `at_version` reduces it to one version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias
from uuid import UUID

from hypothesis import strategies as st
from kafka.protocol.schemas import load_json
from kafka.protocol.schemas.fields import BaseField

from support.oracles import token_schemas

# The types in a tree follow from its schema.
Tree: TypeAlias = dict[str, Any]

_ZERO_UUID: Final = UUID(int=0)
_INTEGER_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_EMPTY: Final[dict[str, object]] = {
    "bytes": b"",
    "string": "",
    "bool": False,
    "uuid": _ZERO_UUID,
    "records": [],
}
_SOMETHING: Final[dict[str, object]] = {
    "bytes": b"x",
    **{kind: bits + 1 for kind, bits in _INTEGER_BITS.items()},
    "string": "text",
    "bool": True,
    "uuid": UUID(int=2**127 + 1),
    "records": [b"records"],
}
_NEVER: Final = (0, -1)
# Lengths around those whose varint has two bytes.
_LENGTHS: Final = st.integers(120, 135)


@dataclass(frozen=True)
class SchemaField:
    """One field; `kind` is a primitive type or the name of a struct, `fields` are the struct's."""

    name: str
    kind: str
    is_array: bool
    versions: tuple[int, int]
    nullable_versions: tuple[int, int]
    tag: int | None
    default: str | None
    fields: tuple[SchemaField, ...]

    @property
    def is_struct(self) -> bool:
        """Whether the field, or each of its elements, has fields of its own."""
        return bool(self.fields)

    def exists_in(self, version: int) -> bool:
        """Whether `version` has the field."""
        return self.versions[0] <= version <= self.versions[1]

    def is_nullable_in(self, version: int) -> bool:
        """Whether the field may be null in `version`."""
        return self.nullable_versions[0] <= version <= self.nullable_versions[1]

    @property
    def may_be_absent(self) -> bool:
        """Whether the field is a tagged struct, which may be absent."""
        return self.tag is not None and self.is_struct and not self.is_array

    def default_value(self) -> object:
        """Return the value of the field in versions that do not have it."""
        if self.is_array:
            return []
        if self.default == "null":
            return None
        if self.kind in _INTEGER_BITS:
            return int(self.default or 0)
        if self.kind == "bool":
            return self.default == "true"
        return _EMPTY[self.kind]


@dataclass(frozen=True)
class MessageSchema:
    """A request or a response."""

    name: str
    api_key: int
    valid_versions: tuple[int, int]
    flexible_versions: tuple[int, int]
    fields: tuple[SchemaField, ...]


@cache
def message_schema(name: str) -> MessageSchema:
    """Return the schema of one message, by its name."""
    json = load_json(name, token_schemas if "DelegationToken" in name else None)
    return MessageSchema(
        name=json["name"],
        api_key=json["apiKey"],
        valid_versions=BaseField.parse_versions(json["validVersions"]),
        flexible_versions=BaseField.parse_versions(json["flexibleVersions"]),
        fields=tuple(map(_field, json["fields"])),
    )


def _field(json: Mapping[str, Any]) -> SchemaField:
    default = json.get("default")
    return SchemaField(
        name=BaseField.underscore_name(json["name"]),
        kind=json["type"].removeprefix("[]"),
        is_array=json["type"].startswith("[]"),
        versions=BaseField.parse_versions(json["versions"]),
        nullable_versions=BaseField.parse_versions(json.get("nullableVersions")) or _NEVER,
        tag=json.get("tag"),
        default=None if default is None else str(default),
        fields=tuple(map(_field, json.get("fields", ()))),
    )


def trees(fields: tuple[SchemaField, ...]) -> st.SearchStrategy[Tree]:
    """Return a strategy for values of all fields of all versions."""
    return st.fixed_dictionaries({field.name: _values(field) for field in fields})


def _values(field: SchemaField) -> st.SearchStrategy[object]:
    one: st.SearchStrategy[object] = trees(field.fields) if field.is_struct else _one(field.kind)
    drawn = one
    if field.is_array:
        drawn = st.lists(one, max_size=3)
        if not field.is_struct:
            drawn |= st.builds(lambda value, times: [value] * times, one, _LENGTHS)
    if field.nullable_versions != _NEVER or field.may_be_absent:
        return st.none() | drawn
    return drawn


def _one(kind: str) -> st.SearchStrategy[object]:
    if kind in _INTEGER_BITS:
        limit = 2 ** (_INTEGER_BITS[kind] - 1)
        return st.integers(-limit, limit - 1)
    return {
        "bool": st.booleans(),
        "string": st.text(max_size=8) | st.builds(str.__mul__, st.sampled_from("aé€"), _LENGTHS),
        "uuid": st.uuids() | st.just(_ZERO_UUID),
        "bytes": st.binary(max_size=40),
        "records": st.lists(st.binary(max_size=40), max_size=3),
    }[kind]


def one_of_everything(fields: tuple[SchemaField, ...]) -> Tree:
    """Return a tree in which no field is null, empty or its default."""
    return {field.name: _something(field) for field in fields}


def _something(field: SchemaField) -> object:
    one: object = one_of_everything(field.fields) if field.is_struct else _SOMETHING[field.kind]
    return [one] if field.is_array else one


def at_version(
    fields: tuple[SchemaField, ...], tree: Tree, version: int, *, keep_absent: bool = False
) -> Tree:
    """Return `tree` reduced to `version`: null only where the version allows it.

    keep_absent: keep the values of fields that the version does not have.
    """
    return {
        field.name: _value_at(field, tree[field.name], version, keep_absent=keep_absent)
        for field in fields
        if keep_absent or field.exists_in(version)
    }


def _value_at(field: SchemaField, value: Any, version: int, *, keep_absent: bool) -> object:  # noqa: ANN401 - see Tree
    if value is None:
        if field.is_nullable_in(version) or field.may_be_absent:
            return None
        return [] if field.is_array else _EMPTY[field.kind]
    if not field.is_struct:
        return value
    if field.is_array:
        return [at_version(field.fields, v, version, keep_absent=keep_absent) for v in value]
    return at_version(field.fields, value, version, keep_absent=keep_absent)
