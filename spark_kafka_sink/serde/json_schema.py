"""Derives a JSON Schema from the type of a column, or compares a schema with the type.

The schema is for the JSON that Spark's ``to_json`` writes for the column. Only the keywords that
the type of a column can violate are compared: ``type``, ``properties``, ``required``,
``additionalProperties``, ``items``, ``allOf``, ``anyOf``, ``oneOf``, ``$ref``, and the ``format``
of dates and times. All other keywords, such as ``enum`` and ``pattern``, are about values, and only
readers check them. If drafts give a keyword several meanings, the most lenient one counts.

Some types fit a schema only if each row keeps a rule. For example, a column may be nullable
although its property is required: Spark's columns are nullable unless Spark knows that they are
not. Then each row must have a value. `fit_json` returns such rules, and tasks check them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.serde.column_types import (
    ColumnField,
    ColumnType,
    Kind,
    check_distinct_fields,
    near_name,
)
from spark_kafka_sink.serde.json_references import JsonDocument, JsonReferences, JsonSchema

DIALECT: Final = "http://json-schema.org/draft-07/schema#"
_LONGEST_SHOWN: Final = 60
_NULL: Final = ColumnType(Kind.NULL, "null")

# The type in JSON Schema of the JSON that to_json writes for a column.
JSON_TYPES: Final = {
    Kind.NULL: "null",
    Kind.BOOLEAN: "boolean",
    Kind.INT: "integer",
    Kind.LONG: "integer",
    Kind.FLOAT: "number",
    Kind.DOUBLE: "number",
    Kind.DECIMAL: "number",
    Kind.STRING: "string",
    Kind.BINARY: "string",
    Kind.DATE: "string",
    Kind.TIMESTAMP: "string",
    Kind.TIMESTAMP_NTZ: "string",
    Kind.TIME: "string",
    Kind.STRUCT: "object",
    Kind.MAP: "object",
    Kind.ARRAY: "array",
}
# TIMESTAMP_NTZ and TIME are not here, because the formats of JSON Schema need a time zone.
_FORMATS: Final = {Kind.DATE: "date", Kind.TIMESTAMP: "date-time"}
_TEMPORAL: Final = (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ, Kind.TIME)
_FLOATS: Final = (Kind.FLOAT, Kind.DOUBLE)


class Each(Enum):
    """A step from a value to all parts that are inside it."""

    ITEM = "each item of an array"
    VALUE = "each value of a map"


Steps: TypeAlias = tuple[str | Each, ...]


class RowRule(Enum):
    """What has to be true for a part of each row."""

    PRESENT = "a field must not be null, because to_json leaves null fields out"
    NOT_NULL = "an item or a value must not be null"
    FINITE = "a number must be finite, because JSON has no others"


@dataclass(frozen=True, slots=True)
class JsonRule:
    """A rule about a column or a part of it: a field, the items of an array, a map's values.

    steps: the way from the row to this part. A step is the name of a field, or `Each` for all items
    of an array or all values of a map. path: the path of the part, for error messages. column: the
    type of the part.
    """

    rule: RowRule
    steps: Steps
    path: str
    column: ColumnType


@dataclass(frozen=True, slots=True)
class JsonPlan:
    """How tasks write a column that is JSON already. rules: what tasks check in each row."""

    rules: tuple[JsonRule, ...] = ()


# -- deriving -------------------------------------------------------------------------------------


def derive_json_schema(column: ColumnType, path: str, title: str) -> str:
    """Return the schema that is derived from the type of a column, as JSON.

    If a field may be null, its schema is ``oneOf`` null and its type, and the field is not
    required. This does not apply to the column itself, because a null key or value is written as
    null, without JSON. path: the path of the column, for error messages. title: the title of the
    schema. Raise DataException for a type that has no schema.
    """
    _check_types(column, path)
    derived = {"$schema": DIALECT, "title": title, **_derived(column, path)}
    return json.dumps(derived, separators=(",", ":"), ensure_ascii=False)


def _derived(column: ColumnType, path: str) -> dict[str, Any]:
    kind = column.kind
    found: dict[str, Any] = {"type": JSON_TYPES[kind]}
    if kind in _FORMATS:
        found["format"] = _FORMATS[kind]
    elif kind is Kind.BINARY:
        found["contentEncoding"] = "base64"
    elif kind is Kind.ARRAY:
        found["items"] = _part(column.fields[0], f"{path}[]")
    elif kind is Kind.MAP:
        found["additionalProperties"] = _part(column.fields[1], f"{path}[]")
    elif kind is Kind.STRUCT:
        # With false, a later version that adds an optional field is backward compatible.
        found["additionalProperties"] = False
        found["properties"] = {x.name: _part(x, f"{path}.{x.name}") for x in column.fields}
        required = [each.name for each in column.fields if not each.is_nullable]
        if required:
            found["required"] = required
    return found


def _part(column: ColumnField, path: str) -> dict[str, Any]:
    found = _derived(column.type, path)
    return {"oneOf": [{"type": "null"}, found]} if column.is_nullable else found


def _check_types(column: ColumnType, path: str) -> None:
    """Raise DataException if a column, or a part of it at any depth, has a type without schema."""
    kind = column.kind
    if kind is Kind.MAP and column.fields[0].type.kind is not Kind.STRING:
        message = (
            f"column {path} is a {column.text}: the names in a JSON object are strings; convert "
            "the keys, or use map_entries"
        )
        raise DataException(message)
    if kind is Kind.NULL or kind not in JSON_TYPES:
        message = (
            f"column {path} is of type {column.text}, for which there is no JSON Schema: cast it "
            "to string, or drop it"
        )
        raise DataException(message)
    check_distinct_fields(column, path)
    for _, inside, each in _parts(column, path):
        _check_types(each.type, inside)


# -- parsing --------------------------------------------------------------------------------------


def parse_json_schema(text: str) -> JsonSchema:
    """Return the schema in a text. Raise DataException if the text is not a JSON Schema."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        message = f"a JSON Schema is expected to be JSON, found {_shown(text)} ({reason})"
        raise DataException(message) from None
    if isinstance(found, dict | bool):
        return found
    raise DataException(f"a JSON Schema is expected to be an object, found {_shown(text)}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")


# -- comparing ------------------------------------------------------------------------------------


def fit_json(
    column: ColumnType,
    schema: JsonSchema,
    path: str,
    referenced: Mapping[str, JsonSchema] = MappingProxyType({}),
) -> JsonPlan:
    """Compare the type of a column with a schema. Return the rules that its rows have to keep.

    path: the name of the column, for error messages. referenced: the schemas that the schema
    references, directly or through other schemas, by the name of the reference. Raise DataException
    if the type does not fit the schema.
    """
    _check_types(column, path)
    references = JsonReferences(schema, referenced)
    try:
        rules = tuple(_Fitter(references, references.root, {}).fit(column, schema, path, ()))
    except RecursionError:
        message = f"column {path}: the JSON Schema is nested too deeply, or refers to itself"
        raise DataException(message) from None
    except _Misfit as error:
        raise DataException(error.message) from None
    # allOf may have the same rule several times.
    return JsonPlan(tuple(dict.fromkeys((*_finite(column, path, ()), *rules))))


def _finite(column: ColumnType, path: str, steps: Steps) -> Iterator[JsonRule]:
    if column.kind in _FLOATS:
        yield JsonRule(RowRule.FINITE, steps, path, column)
    for step, inside, each in _parts(column, path):
        yield from _finite(each.type, inside, (*steps, step))


def _parts(column: ColumnType, path: str) -> Iterator[tuple[str | Each, str, ColumnField]]:
    """Yield (step, path, field) for each field of a struct.

    An array yields one such tuple, for its items. A map yields one, for its values. step: the name
    of the field in a struct, else a member of `Each`.
    """
    if column.kind is Kind.STRUCT:
        for each in column.fields:
            yield each.name, f"{path}.{each.name}", each
    elif column.kind is Kind.ARRAY:
        yield Each.ITEM, f"{path}[]", column.fields[0]
    elif column.kind is Kind.MAP:
        yield Each.VALUE, f"{path}[]", column.fields[1]


class _Misfit(Exception):
    """The type of a column does not fit a schema.

    is_of_every_row: True if no row can fit the schema. If False, some rows may fit, such as those
    in which the column is null.
    """

    def __init__(self, message: str, *, is_of_every_row: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.is_of_every_row = is_of_every_row


@contextmanager
def _of_some_rows(*, if_any: bool = True) -> Iterator[None]:
    """Context manager: if `if_any`, a `_Misfit` from the block then says that some rows may fit."""
    try:
        yield
    except _Misfit as error:
        is_of_every_row = error.is_of_every_row and not if_any
        raise _Misfit(error.message, is_of_every_row=is_of_every_row) from None


_Known: TypeAlias = dict[tuple[int, int, Steps], list[JsonRule] | _Misfit]


class _Fitter:
    """Compares a column, and what is in it, with one schema. Each keyword is compared alone.

    document: the document that has the schema. known: the result for each target of a ``$ref``.
    """

    def __init__(self, references: JsonReferences, document: JsonDocument, known: _Known) -> None:
        self._references, self._document, self._known = references, document, known

    def fit(
        self, column: ColumnType, schema: JsonSchema, path: str, steps: Steps
    ) -> list[JsonRule]:
        """Return the rules about a column, or a part of it, and about everything inside.

        steps: as in `JsonRule`. Raise _Misfit if the type does not fit.
        """
        if schema is False:
            raise _misfit(column, path, "nothing there")
        if not isinstance(schema, Mapping):
            return []
        rules: list[JsonRule] = []
        if isinstance(schema.get("$ref"), str):
            target = self._target(schema["$ref"])
            if target is not None:
                rules += self._fit_target(column, target, path, steps)
            if not self._document.has_new_dialect:
                return rules
        self._check_type(column, schema, path)
        for each in _schemas(schema, "allOf"):
            rules += self.fit(column, each, path, steps)
        for keyword in ("anyOf", "oneOf"):
            branches = _schemas(schema, keyword)
            if branches:
                rules += self._one_of(column, branches, path, steps)
        return rules + self._inside(column, schema, path, steps)

    def _fit_target(
        self, column: ColumnType, target: tuple[JsonDocument, JsonSchema], path: str, steps: Steps
    ) -> list[JsonRule]:
        """Return the rules of a schema to which ``$ref`` refers."""
        document, schema = target
        key = (id(column), id(schema), steps)
        if key not in self._known:
            fitter = _Fitter(self._references, document, self._known)
            try:
                self._known[key] = list(dict.fromkeys(fitter.fit(column, schema, path, steps)))
            except _Misfit as error:
                self._known[key] = error
        if isinstance(known := self._known[key], _Misfit):
            raise known.with_traceback(None)
        return known

    def _inside(
        self, column: ColumnType, schema: Mapping[str, Any], path: str, steps: Steps
    ) -> list[JsonRule]:
        """Return the rules about the parts of a column."""
        if column.kind is Kind.STRUCT:
            return self._object(column, schema, path, steps)
        if column.kind is Kind.MAP:
            return self._map(column, schema, path, steps)
        # Schemas for single positions are not compared. A list in `items` has such schemas. Beside
        # `prefixItems`, `items` is only about the positions after those of `prefixItems`.
        items = True if isinstance(schema.get("prefixItems"), list) else schema.get("items", True)
        if column.kind is Kind.ARRAY and isinstance(items, Mapping | bool):
            return self._element(column.fields[0], items, f"{path}[]", (*steps, Each.ITEM))
        return []

    def _target(self, name: str) -> tuple[JsonDocument, JsonSchema] | None:
        """Return the schema to which ``$ref`` refers, and its document; see `JsonReferences`."""
        try:
            return self._references.find(name, self._document)
        except LookupError:
            message = f"a $ref refers to {name!r}, which is not in the JSON Schema"
            raise _Misfit(message, is_of_every_row=False) from None

    def _check_type(self, column: ColumnType, schema: Mapping[str, Any], path: str) -> None:
        accepted = schema.get("type")
        if isinstance(accepted, str):
            accepted = [accepted]
        if not isinstance(accepted, list):
            return
        if not any(_is_of_type(column, each) for each in accepted):
            # A number may be whole, although the type of its column has decimal places.
            may_be_integer = JSON_TYPES[column.kind] == "number" and "integer" in accepted
            with _of_some_rows(if_any=may_be_integer):
                raise _misfit(column, path, " or ".join(map(str, accepted)))
        expected = schema.get("format")
        if column.kind in _TEMPORAL and expected in ("date", "date-time", "time"):
            own = _FORMATS.get(column.kind)
            if own != expected:
                # Few readers check formats.
                with _of_some_rows():
                    raise _misfit(column, path, f"a string of format {expected}")

    def _one_of(
        self, column: ColumnType, branches: list[JsonSchema], path: str, steps: Steps
    ) -> list[JsonRule]:
        """Return the rules that all branches have. Ignore branches that no row can fit.

        Return no rules if the type of the column does not fit a branch, but some rows may. For
        example, the branch expects another type of a nullable field, and the field is null in these
        rows.
        """
        found: list[list[JsonRule]] = []
        misfits: list[_Misfit] = []
        for branch in branches:
            try:
                found.append(self.fit(column, branch, path, steps))
            except _Misfit as error:
                misfits.append(error)
        is_of_every_row = all(error.is_of_every_row for error in misfits)
        if found:
            common = set(found[0]).intersection(*found)
            return [rule for rule in found[0] if rule in common] if is_of_every_row else []
        # If there is only one branch besides null, its own error is the most exact one.
        others = [x for x, each in zip(misfits, branches, strict=True) if not self._is_null(each)]
        if len(others) == 1:
            raise others[0]
        with _of_some_rows(if_any=not is_of_every_row):
            raise _misfit(column, path, f"a type that fits one of {len(branches)} schemas")

    def _is_null(self, branch: JsonSchema) -> bool:
        return isinstance(branch, Mapping) and branch.get("type") == "null"

    def _object(
        self, column: ColumnType, schema: Mapping[str, Any], path: str, steps: Steps
    ) -> list[JsonRule]:
        rules: list[JsonRule] = []
        columns = {each.name: each for each in column.fields}
        for name in _required(schema):
            if name not in columns:
                raise _Misfit(
                    f"the data has no column {path}.{name}, which the JSON Schema requires"
                    f"{near_name(name, columns)}: add the column"
                )
            each = columns[name]
            if each.is_nullable:
                inside = f"{path}.{name}"
                rules.append(JsonRule(RowRule.PRESENT, (*steps, name), inside, each.type))
        properties, more = _properties(schema), _further_properties(schema)
        for each in column.fields:
            inside, further = f"{path}.{each.name}", (*steps, each.name)
            with _of_some_rows(if_any=each.is_nullable):
                if more is False and each.name not in properties:
                    raise _Misfit(
                        f"column {inside} has no property in the JSON Schema, where "
                        f"additionalProperties is false{near_name(each.name, properties)}: drop "
                        "the column, or add the property"
                    )
                rules += self.fit(each.type, properties.get(each.name, more), inside, further)
        return rules

    def _map(
        self, column: ColumnType, schema: Mapping[str, Any], path: str, steps: Steps
    ) -> list[JsonRule]:
        """Return the rules about the values of a map, whose keys the driver does not know.

        So each value may be that of any property: it has to fit the schema of at least one
        property, or the schema of further properties.
        """
        more, required = _further_properties(schema), _required(schema)
        if required or more is False:
            what = f"the property {required[0]!r}" if required else "no further properties"
            expected = f"an object with {what}, such as to_json writes for a struct"
            with _of_some_rows():
                raise _misfit(column, path, expected)
        properties = list(_properties(schema).values())
        values = {"anyOf": [*properties, more]} if properties else more
        return self._element(column.fields[1], values, f"{path}[]", (*steps, Each.VALUE))

    def _element(
        self, element: ColumnField, schema: JsonSchema, path: str, steps: Steps
    ) -> list[JsonRule]:
        """Return the rules about an item of an array or a value of a map."""
        with _of_some_rows():
            rules = self.fit(element.type, schema, path, steps)
        if element.is_nullable and not self._accepts_null(schema, path):
            rules.append(JsonRule(RowRule.NOT_NULL, steps, path, element.type))
        return rules

    def _accepts_null(self, schema: JsonSchema, path: str) -> bool:
        try:
            self.fit(_NULL, schema, path, ())
        except _Misfit:
            return False
        return True


def _is_of_type(column: ColumnType, accepted: object) -> bool:
    found = JSON_TYPES[column.kind]
    if accepted == "number" and found == "integer":
        return True
    has_no_decimals = column.kind is Kind.DECIMAL and column.scale <= 0
    return accepted == found or (accepted == "integer" and has_no_decimals)


def _schemas(schema: Mapping[str, Any], keyword: str) -> list[JsonSchema]:
    found = schema.get(keyword)
    if not isinstance(found, list):
        return []
    return [each for each in found if isinstance(each, Mapping | bool)]


def _properties(schema: Mapping[str, Any]) -> dict[str, JsonSchema]:
    found = schema.get("properties")
    if not isinstance(found, Mapping):
        return {}
    return {name: each for name, each in found.items() if isinstance(each, Mapping | bool)}


def _further_properties(schema: Mapping[str, Any]) -> JsonSchema:
    """Return the schema of the properties that `properties` does not name.

    Return True if there are patternProperties, because these may apply to some of the properties.
    """
    more = schema.get("additionalProperties", True)
    has_patterns = bool(schema.get("patternProperties"))
    return more if isinstance(more, Mapping | bool) and not has_patterns else True


def _required(schema: Mapping[str, Any]) -> list[str]:
    found = schema.get("required")
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _misfit(column: ColumnType, path: str, expected: str) -> _Misfit:
    message = (
        f"column {path} is of type {column.text}, which to_json writes as "
        f"{JSON_TYPES[column.kind]}: the JSON Schema expects {expected}; convert the column, or "
        "change the schema"
    )
    return _Misfit(message)
