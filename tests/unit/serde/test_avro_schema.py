"""Avro schemas: refused where they break a rule of the specification, derived, and fitted."""

# ruff: noqa: E501 - messages stand in one piece

from __future__ import annotations

import json
import math
import pickle
import re
import struct
from typing import Any, ClassVar

import fastavro
import pyarrow as pa
import pytest
from fastavro.schema import SchemaParseException

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.serde.arrow_types import column_type
from spark_kafka_sink.serde.avro_plan import Constant, Plan, RecordPlan, fit
from spark_kafka_sink.serde.avro_schema import (
    Fixed,
    Record,
    ReferencedSchema,
    parse_schema,
    schema_name,
)
from spark_kafka_sink.serde.column_types import ColumnField, ColumnType, Kind
from spark_kafka_sink.serde.derived_avro import derive_schema


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    """Return the schema of a record whose fields f0, f1, … have the given types."""
    named = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(fields)]
    return {"type": "record", "name": name, "fields": named, **more}


def named(kind: str, name: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    """Return the schema of a named type."""
    return {"type": kind, "name": name, **more}


VALID: list[Any] = [
    "long",
    {"type": "string", "logicalType": "not known", "order": 1},
    ["null", "int", {"type": "array", "items": "int"}, {"type": "map", "values": "int"}],
    record("int", namespace="a.b"),
    record(named("enum", "E", symbols=["A", "_b"], default="A"), "E", "R"),
    record(named("fixed", "x.F", size=0), "x.F"),
    record(record("int", name="n.In"), "n.In", namespace="m"),
    [named("fixed", "A", size=1), named("fixed", "B", size=1)],
    {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3},
    named("error", "Err", fields=[]),
]


@pytest.mark.parametrize("schema", VALID)
def test_valid_schemas_are_parsed(schema: object) -> None:
    found = parse_schema(json.dumps(schema))
    kind = schema["type"] if isinstance(schema, dict) else schema
    words = {"error": "record"}.get(kind, kind) if isinstance(kind, str) else "union of "
    assert str(found).startswith(words)


INVALID: dict[str, tuple[object, str]] = {
    "unknown name": ("integer", "found 'integer', which is not defined before"),
    "number": (3, "found 3, expected the name of a type"),
    "no type": ({"name": "x"}, "type: found null"),
    "nested type": ({"type": {"type": "int"}}, "type: found"),
    "name": (named("record", "1a", fields=[]), "name: found '1a', expected a name of letters"),
    "no name": ({"type": "enum", "symbols": []}, "name: found null"),
    "last part of a name": (
        named("record", "a.b-c", fields=[]),
        "name: found 'b-c', expected a name",
    ),
    "no last part": (
        named("record", "a.", fields=[]),
        "name: found '', expected a name of letters",
    ),
    "primitive name": (named("fixed", "int", size=1), "that is not a primitive type's"),
    "defined twice": (record(named("fixed", "R", size=1)), "a second definition of R"),
    "fields": (named("record", "R"), "record R: fields: found null"),
    "field": (named("record", "R", fields=[{"name": "a"}]), "field a: found no type"),
    "field's name": (named("record", "R", fields=[{"name": "a-b", "type": "int"}]), "'a-b'"),
    "field twice": (named("record", "R", fields=record("int")["fields"] * 2), "two fields named"),
    "order": (
        named("record", "R", fields=[{"name": "a", "type": "int", "order": "up"}]),
        "order: found 'up'",
    ),
    "symbols": (named("enum", "E"), "symbols: found None"),
    "symbol": (named("enum", "E", symbols=["a b"]), "a symbol: found 'a b'"),
    "symbol twice": (named("enum", "E", symbols=["A", "A"]), "a symbol twice"),
    "enum's default": (named("enum", "E", symbols=["A"], default="B"), "default: found 'B'"),
    "size": (named("fixed", "F", size=-1), "size: found -1"),
    "size beyond an int": (named("fixed", "F", size=2**31), "size: found 2147483648"),
    "aliases": (named("fixed", "F", size=1, aliases="x"), "aliases: found 'x'"),
    "items": ({"type": "array"}, "array without items"),
    "values": ({"type": "map", "items": "int"}, "map without values"),
    "union in union": (["null", ["int"]], "a union directly inside a union"),
    "branch twice": (["int", "int"], "two branches of type int"),
    "arrays twice": ([{"type": "array", "items": k} for k in ("int", "long")], "of type array"),
    "out of scope": (record(record("int", name="n.In"), "In"), "field f1: found 'In'"),
}


@pytest.mark.parametrize("name", INVALID)
def test_what_breaks_a_rule_is_refused_with_its_place(name: str) -> None:
    schema, words = INVALID[name]
    with pytest.raises(DataException) as refused:
        parse_schema(json.dumps(schema))
    assert refused.value.message.startswith("Avro schema: the schema")
    assert words in refused.value.message


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(DataException, match=r"expected to be JSON, found 'string' \("):
        parse_schema("string")
    with pytest.raises(DataException, match="nested too deeply"):
        parse_schema('{"type":"array","items":' * 100_000)


def fixed_decimal(size: int, precision: object, scale: object = 0) -> Fixed:
    """Return the parsed schema of a decimal in a fixed type."""
    logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
    found = parse_schema(json.dumps(named("fixed", "F", size=size, **logical)))
    assert isinstance(found, Fixed)
    return found


def test_a_fixed_decimal_has_as_many_digits_as_fit_into_its_bytes() -> None:
    """The calculation is exact, and fastavro has the same limit."""
    for size in range(1, 501):
        most = len(str(2 ** (8 * size - 1))) - 1
        assert fixed_decimal(size, most).precision == most
        assert fixed_decimal(size, most + 1) == Fixed("F", size)
        logical = {"logicalType": "decimal", "precision": most}
        schema = named("fixed", "F", size=size, **logical)
        fastavro.parse_schema(schema)
        with pytest.raises(SchemaParseException, match="doesn't fit into array of length"):
            fastavro.parse_schema({**schema, "precision": most + 1})


@pytest.mark.parametrize("size", [1800, 10**6, 2**31 - 1])
def test_a_large_fixed_decimal_is_parsed_at_once(size: int) -> None:
    assert fixed_decimal(size, 38).precision == 38
    # The largest precision, which Java also computes as floor(log10(2) * (8 * size - 1)).
    most = math.floor(math.log10(2) * (8 * size - 1))
    assert fixed_decimal(size, most).logical == "decimal"
    assert fixed_decimal(size, most + 1).logical == ""


def test_a_precision_or_scale_that_is_true_or_false_is_not_a_number() -> None:
    assert fixed_decimal(4, 1, 0).logical == "decimal"
    for precision, scale in ((True, 0), (1, False), (1, True), ("1", 0), (1.0, 0)):
        assert fixed_decimal(4, precision, scale) == Fixed("F", 4)


# -- derived --------------------------------------------------------------------------------------

ORDER = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("qty", pa.int16()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("day", pa.date32()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("to", pa.struct([pa.field("zip", pa.string(), nullable=False)])),
        pa.field(
            "items", pa.list_(pa.field("element", pa.struct([("n", pa.int32())]), nullable=False))
        ),
        pa.field("notes", pa.map_(pa.string(), pa.field("value", pa.float64(), nullable=False))),
    ]
)
DERIVED = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "qty", "type": ["null", "int"], "default": None},
        {
            "name": "price",
            "type": [
                "null",
                {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
            ],
            "default": None,
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {
            "name": "tags",
            "type": ["null", {"type": "array", "items": ["null", "string"]}],
            "default": None,
        },
        {
            "name": "to",
            "type": [
                "null",
                named("record", "Order_to", fields=[{"name": "zip", "type": "string"}]),
            ],
            "default": None,
        },
        {
            "name": "items",
            "type": [
                "null",
                {
                    "type": "array",
                    "items": named(
                        "record",
                        "Order_items",
                        fields=[{"name": "n", "type": ["null", "int"], "default": None}],
                    ),
                },
            ],
            "default": None,
        },
        {
            "name": "notes",
            "type": ["null", {"type": "map", "values": "double"}],
            "default": None,
        },
    ],
}


def test_a_schema_is_derived_with_null_first_and_as_default() -> None:
    derived = derive_schema(column_type(ORDER), "value", "Order", "shop")
    assert json.loads(derived) == DERIVED
    fastavro.parse_schema(json.loads(derived))
    fit(column_type(ORDER), parse_schema(derived), "value")


def test_the_outermost_record_has_the_namespace_also_in_arrays_and_maps() -> None:
    inside = pa.struct([("x", pa.int32()), ("in", pa.struct([("y", pa.int32())]))])
    kind = pa.list_(pa.map_(pa.string(), inside))
    derived = derive_schema(column_type(kind), "value", "Order", "com.shop")
    fit(column_type(kind), parse_schema(derived), "value")
    parsed = json.dumps(fastavro.parse_schema(json.loads(derived)))
    assert '"name": "com.shop.Order"' in parsed
    assert '"name": "com.shop.Order_in"' in parsed
    assert derived.count("namespace") == 1


def test_derived_records_have_distinct_names() -> None:
    inner = pa.struct([("b", pa.struct([("x", pa.int32())]))])
    kind = pa.struct([("a", inner), ("a_b", pa.struct([("y", pa.int32())]))])
    derived = derive_schema(column_type(kind), "value", "R")
    fastavro.parse_schema(json.loads(derived))
    assert '"name":"R_a_b"' in derived
    assert '"name":"R_a_b_2"' in derived


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.struct([("a b", pa.int32())]), "column value.a b: a field of an Avro record"),
        (
            pa.struct([("a", pa.list_(pa.duration("us")))]),
            r"column value.a\[\] is of type duration",
        ),
        (pa.map_(pa.int32(), pa.int32()), "the keys of an Avro map are strings"),
        (pa.decimal256(60, 2), "for which there is no Avro schema"),
        (
            pa.struct([("a", pa.null())]),
            "column value.a is of type null, for which no Avro schema can be derived: cast it to "
            "another type, or set a schema that accepts null in this field",
        ),
        (
            pa.list_(pa.map_(pa.string(), pa.null())),
            r"column value\[\]\[\] is of type null, for which no Avro schema can be derived",
        ),
        (pa.null(), "column value is of type null, for which no Avro schema can be derived"),
        (
            pa.struct([("a", pa.struct([("id", pa.int32()), ("id", pa.int64())]))]),
            "column value.a has two fields named id: expected each name once; rename or drop one",
        ),
    ],
)
def test_what_has_no_schema_is_refused_with_its_path(kind: pa.DataType, words: str) -> None:
    with pytest.raises(DataException, match=words):
        derive_schema(column_type(kind), "value", "R")


# -- fitted ---------------------------------------------------------------------------------------


def fitted(schema: object, kind: pa.DataType) -> Plan:
    """Return the plan of a column."""
    return fit(column_type(kind), parse_schema(json.dumps(schema)), "value")


def one(kind: pa.DataType, name: str = "f0") -> pa.DataType:
    """Return a struct of one field."""
    return pa.struct([(name, kind)])


def decimal(precision: int, scale: int) -> dict[str, Any]:
    """Return the schema of a decimal."""
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


LINKED = record("int", name="Node")
LINKED["fields"].append({"name": "next", "type": ["null", "Node"], "default": None})

MISFITS: dict[str, tuple[object, pa.DataType, str]] = {
    "type": (record("int"), one(pa.string()), "column value.f0 is of type string, and the Avro schema expects int there; the column fits the Avro types string, enum"),
    "no record": ("string", one(pa.string()), "column value is of type struct, and the Avro schema expects string there; the column fits a record"),
    "no struct": (record("int"), pa.int32(), "column value is of type int32, and the Avro schema expects record R"),
    "in a list": (record({"type": "array", "items": "int"}), one(pa.list_(pa.float64())), "column value.f0[] is of type double, and the Avro schema expects int"),
    "in a map": (record({"type": "map", "values": "int"}), one(pa.map_(pa.string(), pa.bool_())), "column value.f0[] is of type bool"),
    "map's key": (record({"type": "map", "values": "int"}), one(pa.map_(pa.int32(), pa.int32())), "the keys of an Avro map are strings"),
    "missing column": (record("int", "long"), one(pa.int32()), "the data has no column value.f1: the Avro schema has this field, of type long, without a default"),
    "missing field": (record("int"), pa.struct([("f0", pa.int32()), ("extra", pa.int32())]), "column value.extra has no field in record R"),
    "case": (record(name="R"), one(pa.int32(), "ID"), "column value.ID has no field"),
    "union of three": (record(["null", "int", "string"]), one(pa.int32()), "expects union of null, int, string there; only unions of one type and null"),
    "scale": (record(decimal(10, 3)), one(pa.decimal128(10, 2)), "with scale 2 and a precision of at least 10"),
    "precision": (record(decimal(9, 2)), one(pa.decimal128(10, 2)), "expects bytes with logicalType decimal(9,2)"),
    "invalid decimal": (record(decimal(1, 2)), one(pa.decimal128(10, 2)), "expects bytes there"),
    "zone": (record({"type": "long", "logicalType": "timestamp-micros"}), one(pa.timestamp("us")), "logicalType local-timestamp-millis"),
    "number as a time": (record({"type": "long", "logicalType": "timestamp-millis"}), one(pa.int64()), "expects long with logicalType timestamp-millis there"),
    "double": (record("float"), one(pa.float64()), "the column fits the Avro type double"),
    "void": (record("int"), one(pa.null()), "column value.f0 is of type null, and the Avro schema expects int there; the column fits null, and a union with null; cast it to a type that fits"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_refused_with_path_found_and_expected(name: str) -> None:
    schema, kind, words = MISFITS[name]
    with pytest.raises(DataException) as refused:
        fitted(schema, kind)
    assert words in refused.value.message


class Counted(str):
    """A name that counts how often names are compared."""

    __slots__ = ()
    __hash__ = str.__hash__
    compared: ClassVar[list[str]] = []

    def __eq__(self, other: object) -> bool:
        self.compared.append(self)
        return super().__eq__(other)


def test_names_of_columns_are_not_compared_with_those_of_all_fields() -> None:
    columns = [
        ColumnField(Counted(f"f{number}"), ColumnType(Kind.INT, "int"), is_nullable=False)
        for number in range(100)
    ]
    column = ColumnType(Kind.STRUCT, "struct", fields=tuple(columns))
    plan = fit(column, parse_schema(json.dumps(record(*["int"] * 100))), "value")
    assert isinstance(plan, RecordPlan)
    assert [name for name, _ in plan.fields] == [each.name for each in columns]
    assert len(Counted.compared) < 1000


def test_a_hint_names_the_field_that_differs_in_case() -> None:
    defaults: dict[str, tuple[dict[str, object], str]] = {
        "none": ({}, r"the data has no column value.f0{}: the Avro schema has this field"),
        "right": ({"default": 0}, r"column value.F0 has no field in record R of the Avro schema{}"),
        "wrong": ({"default": "x"}, r"the data has no column value.f0{}, and the default of this"),
    }
    for name, (default, expected) in defaults.items():
        near = "f0" if name == "right" else "F0"
        hint = f" (names are case-sensitive: there is {near})"
        fields = [{"name": "f0", "type": "int", **default}]
        with pytest.raises(DataException, match=re.escape(expected.format(hint))):
            fitted({"type": "record", "name": "R", "fields": fields}, one(pa.int32(), "F0"))


@pytest.mark.parametrize(
    ("kind", "default"),
    [("int", "1"), ("int", 2**31), ("long", True), ("boolean", 0), (["null", "int"], "x"),
     ({"type": "fixed", "name": "F", "size": 2}, "a"), ("bytes", "€"), ("float", 1e300),
     ("float", "nan"), ("double", "1_0"), ("double", ""), (["double", "null"], "NaN")],
)  # fmt: skip
def test_a_default_of_another_type_is_refused_where_it_is_needed(
    kind: object, default: object
) -> None:
    fields = [{"name": "f0", "type": "int"}, {"name": "d", "type": kind, "default": default}]
    schema = {"type": "record", "name": "R", "fields": fields}
    with pytest.raises(DataException, match="and the default of this field in the Avro schema is"):
        fitted(schema, one(pa.int32()))


@pytest.mark.parametrize(
    ("text", "number"),
    [("NaN", math.nan), ("-Infinity", -math.inf), (" 1.5e3f ", 1500.0), ("+.5", 0.5), ("7", 7.0)],
)
@pytest.mark.parametrize(("kind", "form"), [("float", "<f"), ("double", "<d")])
def test_a_number_may_be_a_text_in_a_default_as_in_java(
    text: str, number: float, kind: str, form: str
) -> None:
    fields = [{"name": "f0", "type": "int"}, {"name": "d", "type": kind, "default": text}]
    plan = fitted({"type": "record", "name": "R", "fields": fields}, one(pa.int32()))
    assert isinstance(plan, RecordPlan)
    assert plan.fields[1][1] == Constant(struct.pack(form, number))


def test_a_name_may_be_one_without_a_namespace_as_in_java() -> None:
    fixed = {"type": "fixed", "name": "Id", "size": 4}
    inside = {"type": "record", "name": "R", "namespace": "com.a"}
    known = ReferencedSchema(json.dumps(fixed), "subject ids")
    text = json.dumps({**inside, "fields": [{"name": "f0", "type": "Id"}]})
    parsed = parse_schema(text, [known])
    assert isinstance(parsed, Record)
    assert parsed.fields[0].type == Fixed("Id", 4)
    # Two references may be to one schema.
    again = parse_schema(text, [known, known._replace(name="Other")])
    assert isinstance(again, Record)
    assert again.fields[0].type == Fixed("Id", 4)
    # A name of the own namespace comes first.
    near = ReferencedSchema(json.dumps({**fixed, "namespace": "com.a", "size": 8}), "subject near")
    parsed = parse_schema(text, [known, near])
    assert isinstance(parsed, Record)
    assert parsed.fields[0].type == Fixed("com.a.Id", 8)


@pytest.mark.parametrize("namespace", ["com.my-shop", "com.1.b", "a b", "com.Outer$", "a..b"])
def test_a_namespace_may_have_any_characters_as_in_java(namespace: str) -> None:
    item = named("record", "Item", fields=[])
    order = record(item, "Item", f"{namespace}.Item", name="Order", namespace=namespace)
    fastavro.parse_schema(order)
    parsed = parse_schema(json.dumps(order))
    assert isinstance(parsed, Record)
    assert schema_name(json.dumps(order)) == parsed.name == f"{namespace}.Order"
    assert [str(each.type) for each in parsed.fields] == [f"record {namespace}.Item"] * 3
    full = parse_schema(json.dumps(record(name=f"{namespace}.Order")))
    assert str(full) == str(parsed)


@pytest.mark.parametrize(
    "names", [{"namespace": "\ud800"}, {"name": "\udfff.R"}], ids=["namespace", "name"]
)
def test_a_name_with_half_of_a_surrogate_pair_is_refused(names: dict[str, str]) -> None:
    schema = json.dumps({**record(name="R"), **names})
    for read in (schema_name, parse_schema):
        with pytest.raises(DataException, match="expected no unpaired surrogate") as refused:
            read(schema)
        str(refused.value).encode()


def test_a_name_that_begins_with_a_dot_has_no_namespace_as_in_java() -> None:
    inside = record(named("fixed", ".Id", size=4), "Id", ".Id", name="R", namespace="com.a")
    parsed = parse_schema(json.dumps(inside))
    assert isinstance(parsed, Record)
    assert [each.type for each in parsed.fields] == [Fixed("Id", 4)] * 3


def test_a_recursive_record_fits_without_a_column_and_else_is_refused() -> None:
    fitted(LINKED, one(pa.int32()))
    nested = pa.struct([("f0", pa.int32()), ("next", one(pa.int32()))])
    with pytest.raises(DataException, match="a record inside itself is not supported"):
        fitted(LINKED, nested)


def test_a_plan_can_be_pickled() -> None:
    plan = fit(column_type(ORDER), parse_schema(json.dumps(DERIVED)), "value")
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_types_without_a_schema_are_other() -> None:
    assert column_type(pa.uint64()) == ColumnType(Kind.OTHER, "uint64")
