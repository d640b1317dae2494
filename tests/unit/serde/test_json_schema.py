"""JSON Schemas: derived from the types of columns, and compared with them by name and type."""

# ruff: noqa: E501 - messages stand in one piece

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from jsonschema.validators import validator_for  # type: ignore[import-untyped]

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.serde.arrow_types import column_type
from spark_kafka_sink.serde.column_types import ColumnField, ColumnType, Kind
from spark_kafka_sink.serde.json_schema import (
    DIALECT,
    JsonPlan,
    JsonRule,
    derive_json_schema,
    fit_json,
    parse_json_schema,
)

NEW_DIALECT = "https://json-schema.org/draft/2020-12/schema"
NULL = {"type": "null"}
DERIVED: list[tuple[pa.DataType, dict[str, Any]]] = [
    (pa.bool_(), {"type": "boolean"}),
    (pa.int8(), {"type": "integer"}),
    (pa.int64(), {"type": "integer"}),
    (pa.float32(), {"type": "number"}),
    (pa.float64(), {"type": "number"}),
    (pa.decimal128(38, 18), {"type": "number"}),
    (pa.string(), {"type": "string"}),
    (pa.binary(), {"type": "string", "contentEncoding": "base64"}),
    (pa.date32(), {"type": "string", "format": "date"}),
    (pa.timestamp("us", "UTC"), {"type": "string", "format": "date-time"}),
    (pa.timestamp("us"), {"type": "string"}),
    (pa.time64("ns"), {"type": "string"}),
    (pa.list_(pa.int32()), {"type": "array", "items": {"oneOf": [NULL, {"type": "integer"}]}}),
    (
        pa.map_(pa.string(), pa.field("value", pa.bool_(), nullable=False)),
        {"type": "object", "additionalProperties": {"type": "boolean"}},
    ),
    (
        pa.struct([pa.field("a.b", pa.int32(), nullable=False), pa.field("é", pa.string())]),
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "a.b": {"type": "integer"},
                "é": {"oneOf": [NULL, {"type": "string"}]},
            },
            "required": ["a.b"],
        },
    ),
    (pa.struct([]), {"type": "object", "additionalProperties": False, "properties": {}}),
]


@pytest.mark.parametrize(("kind", "expected"), DERIVED)
def test_a_schema_is_derived_from_every_type(kind: pa.DataType, expected: dict[str, Any]) -> None:
    text = derive_json_schema(column_type(kind), "value", "com.shop.Order")
    found = json.loads(text)
    validator_for(found).check_schema(found)
    assert found.pop("$schema") == "http://json-schema.org/draft-07/schema#"
    assert found.pop("title") == "com.shop.Order"
    assert found == expected
    # A derived schema fits, and only numbers have to be checked in rows.
    rules = fit_json(column_type(kind), parse_json_schema(text), "value").rules
    assert [rule.path for rule in rules] == (["value"] if pa.types.is_floating(kind) else [])


def of(*fields: tuple[str, Any], nullable: bool = True) -> ColumnType:
    """Return the type of a struct. fields: names with Arrow types, or with types."""
    return ColumnType(
        Kind.STRUCT,
        "struct",
        fields=tuple(
            ColumnField(n, k if isinstance(k, ColumnType) else column_type(k), nullable)
            for n, k in fields
        ),
    )


VARIANT = ColumnType(Kind.OTHER, "variant")
WITHOUT_SCHEMA: dict[str, tuple[ColumnType, str]] = {
    "variant": (of(("v", VARIANT)), "column value.v is of type variant, for which there is no JSON Schema: cast it to string, or drop it"),
    "void": (of(("a", pa.list_(pa.null()))), "column value.a[] is of type null, for which there is no"),
    "interval": (of(("d", pa.duration("us"))), "column value.d is of type duration[us], for which there is no"),
    "keys": (of(("m", pa.map_(pa.string(), pa.map_(pa.int32(), pa.int32())))), "column value.m[] is a map<int32, int32"),
    "twice": (of(("s", of(("a", pa.int8()), ("a", pa.int8())))), "column value.s has two fields named a: expected each name once"),
}  # fmt: skip


@pytest.mark.parametrize(("column", "message"), WITHOUT_SCHEMA.values(), ids=WITHOUT_SCHEMA)
def test_types_without_a_schema_are_refused_with_their_path(
    column: ColumnType, message: str
) -> None:
    with pytest.raises(DataException) as derived:
        derive_json_schema(column, "value", "Value")
    with pytest.raises(DataException) as given:
        fit_json(column, True, "value")  # noqa: FBT003 - a schema
    assert str(derived.value).startswith(message)
    assert str(given.value) == str(derived.value)


def rules(column: ColumnType, schema: Any) -> list[str]:  # noqa: ANN401 - any JSON
    """Return the rules by which a column fits a schema, as texts."""
    plan = fit_json(column, parse_json_schema(json.dumps(schema)), "value")
    assert pickle.loads(pickle.dumps(plan)) == plan
    return [f"{rule.rule.name} {rule.path}" for rule in plan.rules]


TEXT = of(("name", pa.string()))
PAIR = of(("a", pa.string()), ("b", pa.string()))
ITEMS = of(("items", pa.list_(pa.struct([("sku", pa.string()), ("at", pa.date32())]))))
PRICES = of(("m", pa.map_(pa.string(), pa.int32())), nullable=False)
SKU = {"type": "object", "required": ["sku"], "properties": {"sku": {"type": "string"}}}
FITS: dict[str, tuple[ColumnType, Any, list[str]]] = {
    "anything": (TEXT, {}, []),
    "true": (TEXT, True, []),
    "unknown keywords": (TEXT, {"minProperties": 9, "not": {}, "properties": {"name": {"pattern": "x", "enum": [1]}}}, []),
    "optional": (TEXT, {"properties": {"name": {"type": "string"}, "more": {"type": "integer"}}}, []),
    "required": (TEXT, {"required": ["name"]}, ["PRESENT value.name"]),
    "not null": (of(("name", pa.string()), nullable=False), {"required": ["name"]}, []),
    "types": (TEXT, {"type": ["null", "object"], "properties": {"name": {"type": ["null", "string"]}}}, []),
    "whole number": (of(("n", pa.decimal128(9, 0)), ("i", pa.int8())), {"properties": {"n": {"type": "integer"}, "i": {"type": "number"}}}, []),
    "branches": (TEXT, {"properties": {"name": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}}, []),
    "one branch without rules": (TEXT, {"oneOf": [{"required": ["name"]}, {"type": "object"}]}, []),
    "rules of one branch": (PAIR, {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, []),
    "rules of all branches": (PAIR, {"oneOf": [{"required": ["a", "b"]}, {"required": ["b"]}]}, ["PRESENT value.b"]),
    "branch that no row fits": (PAIR, {"anyOf": [{"required": ["a"]}, {"required": ["c"]}, {"type": "null"}]}, ["PRESENT value.a"]),
    "branch for rows with null": (PAIR, {"anyOf": [{"required": ["a"]}, {"properties": {"a": {"type": "integer"}}}]}, []),
    "branch for rows without a column": (PAIR, {"oneOf": [{"required": ["a"]}, {"properties": {"b": {}}, "additionalProperties": False}]}, []),
    "branch of whole numbers": (of(("n", pa.decimal128(9, 1)), ("a", pa.string())), {"anyOf": [{"required": ["a"]}, {"properties": {"n": {"type": "integer"}}}]}, []),
    "branch of a format": (of(("n", pa.timestamp("us")), ("a", pa.string())), {"anyOf": [{"required": ["a"]}, {"properties": {"n": {"type": "string", "format": "date"}}}]}, []),
    "all of": (TEXT, {"allOf": [{"required": ["name"]}, {"type": "object"}, {"required": ["name"]}]}, ["PRESENT value.name"]),
    "reference": (TEXT, {"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"required": ["name"]}}}, ["PRESENT value.name"]),
    "reference to a list": (TEXT, {"allOf": [{"required": ["name"]}], "anyOf": [{"$ref": "#/allOf/0"}]}, ["PRESENT value.name"]),
    "reference with escapes": (TEXT, {"$ref": "#/$defs/a%20%C3%BC~1%7E0", "$defs": {"a ü/~": {"required": ["name"]}}}, ["PRESENT value.name"]),
    "elsewhere": (TEXT, {"$ref": "other.json"}, []),
    "elsewhere with a part": (TEXT, {"$ref": "other.json#/definitions/x"}, []),
    "anchor": (TEXT, {"properties": {"name": {"$ref": "#text"}}, "$defs": {"x": {"$anchor": "text", "type": "integer"}}}, []),
    "id": (TEXT, {"properties": {"name": {"$ref": "#text"}}, "definitions": {"x": {"$id": "#text", "type": "string"}}, "type": "object"}, []),
    "recursion": (of(("next", TEXT)), {"properties": {"next": {"oneOf": [{"type": "null"}, {"$ref": "#"}]}, "name": {"type": "string"}}, "additionalProperties": False}, []),
    "patterns": (TEXT, {"additionalProperties": False, "patternProperties": {"^n": {"type": "string"}}}, []),
    "further": (TEXT, {"additionalProperties": {"type": "string"}}, []),
    "items": (ITEMS, {"properties": {"items": {"items": SKU}}}, ["PRESENT value.items[].sku", "NOT_NULL value.items[]"]),
    "null items": (ITEMS, {"properties": {"items": {"items": {"oneOf": [{"type": "null"}, SKU]}}}}, ["PRESENT value.items[].sku"]),
    "first positions": (ITEMS, {"properties": {"items": {"prefixItems": [{"type": "integer"}], "items": False}}}, []),
    "beside a reference": (TEXT, {"$ref": "#/$defs/x", "$defs": {"x": {"required": ["name"]}}, "type": "string"}, ["PRESENT value.name"]),
    "beside a reference in draft 7": (TEXT, {"$schema": DIALECT, "properties": {"name": {"$ref": "other.json", "type": "integer"}}}, []),
    "beside a reference in 2020-12": (TEXT, {"$schema": NEW_DIALECT, "$ref": "#/$defs/x", "$defs": {"x": True}, "required": ["name"]}, ["PRESENT value.name"]),
    "positions": (ITEMS, {"properties": {"items": {"items": [{"type": "integer"}]}}}, []),
    "map": (PRICES, {"properties": {"m": {"additionalProperties": {"type": "number"}}}}, ["NOT_NULL value.m[]"]),
    "values of a map": (PRICES, {"properties": {"m": {"properties": {"a": {"type": "integer"}}}}}, []),
    "values of a map by name": (PRICES, {"properties": {"m": {"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}}}}, ["NOT_NULL value.m[]"]),
    "null of a map by name": (PRICES, {"properties": {"m": {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": ["integer", "null"]}}}}, []),
    "map with patterns": (PRICES, {"properties": {"m": {"patternProperties": {"x": {}}, "additionalProperties": {"type": "string"}}}}, []),
    "map by patterns": (PRICES, {"properties": {"m": {"patternProperties": {"x": {}}, "additionalProperties": False}}}, []),
    "numbers": (of(("x", pa.list_(pa.float32()))), {}, ["FINITE value.x[]"]),
}  # fmt: skip


@pytest.mark.parametrize(("column", "schema", "expected"), FITS.values(), ids=FITS)
def test_a_column_fits_and_rows_have_rules(
    column: ColumnType,
    schema: Any,  # noqa: ANN401 - any JSON
    expected: list[str],
) -> None:
    assert rules(column, schema) == expected


MISFITS: dict[str, tuple[ColumnType, Any, str]] = {
    "type": (TEXT, {"properties": {"name": {"type": "integer"}}}, "column value.name is of type string, which to_json writes as string: the JSON Schema expects integer; convert the column, or change the schema"),
    "types": (TEXT, {"type": ["array", "null"]}, "column value is of type struct, which to_json writes as object: the JSON Schema expects array or null"),
    "number": (of(("n", pa.decimal128(9, 1))), {"properties": {"n": {"type": "integer"}}}, "column value.n is of type decimal128(9, 1), which to_json writes as number: the JSON Schema expects integer"),
    "nothing": (TEXT, {"properties": {"name": False}}, "column value.name is of type string, which to_json writes as string: the JSON Schema expects nothing there"),
    "no column": (TEXT, {"required": ["id"]}, "the data has no column value.id, which the JSON Schema requires: add the column"),
    "other case": (TEXT, {"required": ["Name"]}, "the data has no column value.Name, which the JSON Schema requires (names are case-sensitive: there is name): add the column"),
    "no property": (TEXT, {"additionalProperties": False, "properties": {"NAME": {}}}, "column value.name has no property in the JSON Schema, where additionalProperties is false (names are case-sensitive: there is NAME): drop the column, or add the property"),
    "further": (TEXT, {"additionalProperties": {"type": "boolean"}}, "column value.name is of type string, which to_json writes as string: the JSON Schema expects boolean"),
    "one branch": (TEXT, {"properties": {"name": {"oneOf": [{"type": "null"}, {"type": "number"}]}}}, "column value.name is of type string, which to_json writes as string: the JSON Schema expects number"),
    "branches": (TEXT, {"properties": {"name": {"oneOf": [{"type": "boolean"}, {"type": "number"}]}}}, "column value.name is of type string, which to_json writes as string: the JSON Schema expects a type that fits one of 2 schemas"),
    "format": (ITEMS, {"properties": {"items": {"items": {"properties": {"at": {"type": "string", "format": "date-time"}}}}}}, "column value.items[].at is of type date32[day], which to_json writes as string: the JSON Schema expects a string of format date-time"),
    "required in a map": (PRICES, {"properties": {"m": {"required": ["a"]}}}, "column value.m is of type map<string, int32>, which to_json writes as object: the JSON Schema expects an object with the property 'a', such as to_json writes for a struct"),
    "closed map": (PRICES, {"properties": {"m": {"additionalProperties": False}}}, "column value.m is of type map<string, int32>, which to_json writes as object: the JSON Schema expects an object with no further properties"),
    "values of a map by name": (PRICES, {"properties": {"m": {"properties": {"a": {"type": "boolean"}}, "additionalProperties": {"type": "string"}}}}, "column value.m[] is of type int32, which to_json writes as integer: the JSON Schema expects a type that fits one of 2 schemas"),
    "beside a reference in 2020-12": (TEXT, {"$schema": NEW_DIALECT, "properties": {"name": {"$ref": "other.json", "type": "integer"}}}, "column value.name is of type string, which to_json writes as string: the JSON Schema expects integer"),
    "values of a map": (PRICES, {"properties": {"m": {"additionalProperties": {"type": "string"}}}}, "column value.m[] is of type int32, which to_json writes as integer: the JSON Schema expects string"),
    "reference": (TEXT, {"$ref": "#/definitions/x"}, "a $ref refers to '#/definitions/x', which is not in the JSON Schema"),
    "itself": (TEXT, {"$ref": "#"}, "column value: the JSON Schema is nested too deeply, or refers to itself"),
}  # fmt: skip


@pytest.mark.parametrize(("column", "schema", "message"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_is_refused_with_path_found_and_expected(
    column: ColumnType,
    schema: Any,  # noqa: ANN401 - any JSON
    message: str,
) -> None:
    with pytest.raises(DataException) as refused:
        rules(column, schema)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a JSON Schema is expected to be JSON, found '{' ("),
        ("[" * 100_000, "nested too deeply"),
        ('"string"', "a JSON Schema is expected to be an object, found '\"string\"'"),
    ],
)
def test_text_that_is_no_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(DataException) as refused:
        parse_json_schema(text)
    assert message in str(refused.value)


class Counted(dict[str, Any]):
    """Properties that count how often they are read."""

    reads = 0

    def items(self) -> Any:  # noqa: ANN401 - the view of a dict
        """Return the properties, and count this."""
        self.reads += 1
        return super().items()


def test_the_properties_of_a_schema_are_read_once_for_all_columns() -> None:
    names = [f"c{number}" for number in range(50)]
    properties = Counted({name: {"type": "string"} for name in names})
    column = column_type(pa.struct([(name, pa.string()) for name in names]))
    schema = {"properties": properties, "required": names}
    assert [each.path for each in fit_json(column, schema, "value").rules] == [
        f"value.{name}" for name in names
    ]
    assert properties.reads == 1


def test_rules_of_branches_are_not_compared_with_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = []
    equal = JsonRule.__eq__

    def counted(one: JsonRule, other: object) -> bool:
        compared.append(one)
        return equal(one, other)

    names = [f"c{number}" for number in range(100)]
    column = column_type(pa.struct([(name, pa.string()) for name in names]))
    monkeypatch.setattr(JsonRule, "__eq__", counted)
    plan = fit_json(column, {"anyOf": [{"required": names}, {"required": names[::-1]}]}, "value")
    assert [each.path for each in plan.rules] == [f"value.{name}" for name in names]
    assert len(compared) < 10 * len(names)


def test_a_plan_without_rules_is_the_default() -> None:
    assert fit_json(TEXT, parse_json_schema("true"), "value") == JsonPlan()
