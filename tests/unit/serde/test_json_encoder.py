"""JSON rows with a prefix: read back, and the rows that do not fit, as a validator finds them."""

from __future__ import annotations

import json
import math
import random
from typing import Any, Final

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import topic_subject_name_strategy
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jsonschema.protocols import Validator  # type: ignore[import-untyped]
from jsonschema.validators import (  # type: ignore[import-untyped]
    Draft7Validator,
    Draft202012Validator,
)

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.serde.arrow_types import column_type
from spark_kafka_sink.serde.json_encoder import encode_json
from spark_kafka_sink.serde.json_schema import (
    JsonPlan,
    derive_json_schema,
    fit_json,
    parse_json_schema,
)
from spark_kafka_sink.serde.row_rules import Fault
from spark_kafka_sink.serde.wire_format import schema_id_prefix

PREFIX: Final = schema_id_prefix(7)
BY_TOPIC: Final = {"subject.name.strategy": topic_subject_name_strategy}
CONTEXT: Final = SerializationContext("t", MessageField.VALUE)
TEXTS: Final = ('{"a":1}', None, "", "é😀" * 40, '{"a":null}', None)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str
)
@pytest.mark.parametrize("prefix", [b"", PREFIX, b"\1" * 17])
def test_every_row_gets_the_prefix_and_null_stays_null(kind: pa.DataType, prefix: bytes) -> None:
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    texts = [None if text is None else text.encode() for text in TEXTS]
    array = pa.array(texts if binary else TEXTS, kind)
    for rows in (array, array.slice(1, 4), array.slice(3, 1), array.slice(0, 0), array.slice(5)):
        encoded = encode_json(JsonPlan(), rows, prefix)
        encoded.array.validate(full=True)
        start = rows.offset
        expected = texts[start : start + len(rows)]
        assert encoded.array.to_pylist() == [t if t is None else prefix + t for t in expected]
        assert encoded.faults == []


# -- rows and schemas by chance -------------------------------------------------------------------

NAMES: Final = ("a", "b", 'q"\\', "null", "é")
WORDS: Final = ("", "x", "null", '"NaN"', "NaN", 'Infinity"', '":null', "{},[\n", "😀")


def a_type(chance: random.Random, depth: int) -> pa.DataType:
    """Return a type of a column."""
    leaf = depth == 0 or chance.random() < 0.4
    if leaf:
        return chance.choice([pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.int8()])
    if chance.random() < 0.5:
        return a_struct(chance, depth)
    item = pa.field("item", a_type(chance, depth - 1), nullable=chance.random() < 0.7)
    return (
        pa.list_(item) if chance.random() < 0.6 else pa.map_(pa.string(), item.with_name("value"))
    )


def a_struct(chance: random.Random, depth: int) -> pa.DataType:
    """Return a type of a struct."""
    names = chance.sample(NAMES, chance.randint(0, 4))
    return pa.struct(
        [pa.field(n, a_type(chance, depth - 1), nullable=chance.random() < 0.7) for n in names]
    )


def a_value(chance: random.Random, kind: pa.DataType) -> Any:  # noqa: ANN401 - any JSON
    """Return a value as to_json writes it: it leaves out null fields, and quotes NaN."""
    if pa.types.is_struct(kind):
        found = {each.name: a_part(chance, each) for each in kind}
        return {name: value for name, value in found.items() if value is not None}
    if pa.types.is_map(kind):
        return {name: a_part(chance, kind.item_field) for name in chance.sample(NAMES, 2)}
    if pa.types.is_list(kind):
        return [a_part(chance, kind.value_field) for _ in range(chance.randint(0, 3))]
    values: list[Any] = [0, -1, 100]
    if pa.types.is_boolean(kind):
        values = [True, False]
    elif pa.types.is_string(kind):
        values = [*WORDS]
    elif pa.types.is_floating(kind):
        values = [0.5, -1e300, 2.0, 2.0, 2.0, "NaN", "-Infinity"]
    return chance.choice(values)


def a_part(chance: random.Random, each: pa.Field) -> Any:  # noqa: ANN401 - any JSON
    """Return a value of a field, an item or a value of a map; sometimes null, if it may be."""
    return None if each.nullable and chance.random() < 0.2 else a_value(chance, each.type)


def a_schema(chance: random.Random, kind: pa.DataType, definitions: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON
    """Return a schema that a type fits."""
    found: Any = {"type": _type(chance, kind)}
    if pa.types.is_struct(kind):
        names = [each.name for each in kind]
        found["required"] = chance.sample(names, chance.randint(0, len(names)))
        found["properties"] = {
            each.name: a_schema(chance, each.type, definitions)
            for each in kind
            if chance.random() < 0.9
        } | {"never": False}
        if names and names == [name for name in names if name in found["properties"]]:
            found["additionalProperties"] = chance.choice([False, True, {"type": "boolean"}])
    elif pa.types.is_map(kind):
        found["additionalProperties"] = a_schema(chance, kind.item_type, definitions)
    elif pa.types.is_list(kind):
        found["items"] = a_schema(chance, kind.value_type, definitions)
    choice = chance.randint(0, 9)
    if choice == 0:
        name = f"d{len(definitions)}"
        definitions[name] = found
        return {"$ref": f"#/definitions/{name}"}
    if choice == 1:
        # Exactly one of them has to accept a null.
        is_one = isinstance(found["type"], str)
        return {"oneOf": [{"type": "null"}, found]} if is_one else found
    if choice == 2:
        return {"allOf": [found, True, {"type": found["type"]}]}
    if choice == 3:
        return {"anyOf": [found, {"type": "null"}]}
    return True if choice == 4 else found


def _type(chance: random.Random, kind: pa.DataType) -> str | list[str]:
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        name = "object"
    elif pa.types.is_list(kind):
        name = "array"
    elif pa.types.is_boolean(kind):
        name = "boolean"
    elif pa.types.is_string(kind):
        name = "string"
    else:
        name = "number" if pa.types.is_floating(kind) or chance.random() < 0.3 else "integer"
    return ["null", name] if chance.random() < 0.3 else name


def is_good(value: Any, kind: pa.DataType, validator: Validator) -> bool:  # noqa: ANN401 - any JSON
    """Return whether a row may be written."""
    return _is_finite(value, kind) and validator.is_valid(value)


def _is_finite(value: Any, kind: pa.DataType) -> bool:  # noqa: ANN401 - any JSON
    if value is None:
        return True
    if pa.types.is_struct(kind):
        return all(_is_finite(value.get(each.name), each.type) for each in kind)
    if pa.types.is_map(kind):
        return all(_is_finite(each, kind.item_type) for each in value.values())
    if pa.types.is_list(kind):
        return all(_is_finite(each, kind.value_type) for each in value)
    return not pa.types.is_floating(kind) or math.isfinite(float(value))


def check(seed: int, *, derived: bool) -> None:
    """Compare the rows at fault with those that a validator refuses."""
    chance = random.Random(seed)
    kind = a_struct(chance, 3)
    column, definitions = column_type(kind), {}  # type: ignore[var-annotated]
    schema = a_schema(chance, kind, definitions)
    if isinstance(schema, dict):
        schema["definitions"] = definitions
    text = derive_json_schema(column, "value", "V") if derived else json.dumps(schema)
    validator = Draft7Validator(json.loads(text))
    plan = fit_json(column, parse_json_schema(text), "value")
    rows = [None if chance.random() < 0.1 else a_value(chance, kind) for _ in range(12)]
    texts = [
        None if row is None else json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()
        for row in rows
    ]
    encoded = encode_json(plan, pa.array([None, *texts], pa.binary()).slice(1), PREFIX)
    assert encoded.array.to_pylist() == [t if t is None else PREFIX + t for t in texts]
    bad = {int(number) for fault in encoded.faults for number in fault.rows}
    assert bad == {
        number
        for number, row in enumerate(rows)
        if row is not None and not is_good(row, kind, validator)
    }
    if derived:
        deserializer = JSONDeserializer(text, conf=BY_TOPIC)
        for number, data in enumerate(encoded.array.to_pylist()):
            if number not in bad:
                assert deserializer(data, CONTEXT) == rows[number]


def alternatives(chance: random.Random, kind: pa.DataType, depth: int = 2) -> Any:  # noqa: ANN401 - any JSON
    """Return a schema with several branches, which a type may fit or not."""
    if depth == 0 or chance.random() < 0.1:
        other = kind if chance.random() < 0.8 else a_type(chance, 1)
        return chance.choice([True, {}, {"type": _type(chance, other)}])
    found: Any = {}
    if chance.random() < 0.3:
        found["type"] = _type(chance, kind)
    if pa.types.is_struct(kind):
        names = [*(each.name for each in kind), *chance.sample(NAMES, 1)]
        found["required"] = [name for name in names if chance.random() < 0.3]
        found["properties"] = {
            each.name: alternatives(chance, each.type, depth - 1)
            for each in kind
            if chance.random() < 0.6
        }
        found["additionalProperties"] = chance.choice([True, True, True, False])
    elif pa.types.is_map(kind):
        found["properties"] = {
            name: alternatives(chance, kind.item_type, depth - 1) for name in NAMES[:2]
        }
        found["additionalProperties"] = alternatives(chance, kind.item_type, depth - 1)
        if chance.random() < 0.3:
            found["patternProperties"] = {"^n": alternatives(chance, kind.item_type, 0)}
    elif pa.types.is_list(kind):
        found["items"] = alternatives(chance, kind.value_type, depth - 1)
        if chance.random() < 0.3:
            found["prefixItems"] = [alternatives(chance, kind.value_type, depth - 1)]
    if chance.random() < 0.8:
        branches = [alternatives(chance, kind, depth - 1) for _ in range(chance.randint(1, 3))]
        found[chance.choice(["anyOf", "oneOf"])] = branches
    return {"$ref": "#/definitions/any", **found} if chance.random() < 0.1 else found


# A failure names its seed, which is as small as can be.
@settings(max_examples=300, deadline=None, phases=[Phase.generate, Phase.shrink])
@given(seed=st.integers(0, 2**32))
def test_a_row_that_a_validator_accepts_by_some_branch_is_never_at_fault(seed: int) -> None:
    chance = random.Random(seed)
    kind = a_struct(chance, 2)
    validator: Any = chance.choice([Draft7Validator, Draft202012Validator])
    schema = {
        "$schema": validator.META_SCHEMA["$id"],
        "definitions": {"any": {}},
        "properties": {"row": alternatives(chance, kind)},
    }
    rows = [{"row": a_value(chance, kind)} for _ in range(12)]
    wrapped = pa.struct([pa.field("row", kind, nullable=False)])
    try:
        plan = fit_json(column_type(wrapped), schema, "value")
    except DataException:
        return  # types are compared before any row
    texts = [json.dumps(row, ensure_ascii=False) for row in rows]
    encoded = encode_json(plan, pa.array(texts), PREFIX)
    bad = {int(number) for fault in encoded.faults for number in fault.rows}
    good = {n for n, row in enumerate(rows) if is_good(row, wrapped, validator(schema))}
    assert not bad & good


# A failure names its seed, which is as small as can be.
@settings(max_examples=150, deadline=None, phases=[Phase.generate, Phase.shrink])
@given(seed=st.integers(0, 2**32))
def test_rows_at_fault_are_those_that_a_validator_refuses(seed: int) -> None:
    check(seed, derived=False)


@settings(max_examples=60, deadline=None, phases=[Phase.generate, Phase.shrink])
@given(seed=st.integers(0, 2**32))
def test_every_row_fits_the_derived_schema_but_for_numbers_that_json_does_not_have(
    seed: int,
) -> None:
    check(seed, derived=True)


KIND: Final = pa.struct([("n", pa.float32()), ("s", pa.list_(pa.string()))])
SCHEMA: Final = {
    "required": ["n"],
    "properties": {"s": {"items": {"type": "string"}}, "n": {"type": "number"}},
}
PLAN: Final = fit_json(column_type(KIND), SCHEMA, "value")


def test_faults_name_the_column_and_the_reason() -> None:
    texts = ['{"n":1.0}', '{"n":"NaN"}', "{}", '{"n":2.0,"s":["a",null]}']
    found = {
        int(fault.rows[0]): (fault.fault, fault.message)
        for fault in encode_json(PLAN, pa.array(texts), PREFIX).faults
    }
    assert found == {
        1: (
            Fault.OUT_OF_RANGE,
            "column value.n is NaN or infinite, and JSON has no such numbers",
        ),
        2: (
            Fault.NULL_IN_REQUIRED,
            "column value.n is null, so to_json leaves it out, but the JSON Schema requires it",
        ),
        3: (
            Fault.NULL_IN_REQUIRED,
            "column value.s[] is null, and the JSON Schema does not accept null there",
        ),
    }


MANY_RULES: Final = fit_json(
    column_type(
        pa.struct(
            [
                ("s", pa.string()),
                *((f"n{number}", pa.float64()) for number in range(20)),
                *((f"m{number}", pa.map_(pa.string(), pa.float64())) for number in range(5)),
            ]
        )
    ),
    {
        "properties": {
            f"m{number}": {"additionalProperties": {"type": "number"}} for number in range(5)
        }
    },
    "value",
)


def test_a_row_is_parsed_once_for_all_columns_and_only_if_it_has_a_sign_of_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed = []
    loads = json.loads

    def counted(text: bytes) -> object:
        parsed.append(text.decode())
        return loads(text)

    monkeypatch.setattr(json, "loads", counted)
    signs = ['{"s":"NaN","n1":1.5}', '{"s":"null"}', '{"s":"-Infinity"}', '{"n19":"NaN"}']
    others = ['{"s":"","n0":1.0}', '{"s":"To Infinity","m1":{"a":2.0}}', '{"s":"a NaN"}', None]
    encoded = encode_json(MANY_RULES, pa.array(signs + others), PREFIX)
    assert parsed == signs
    assert [fault.rows.tolist() for fault in encoded.faults] == [[3]]


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        ('{"n3":"Infinity","n2":"-Infinity","m0":{"a":null}}', "n2", "NaN or infinite"),
        ('{"m1":{"a":null},"m4":{"a":1.0,"b":"NaN"},"n19":2}', "m4[]", "NaN or infinite"),
        ('{"m3":{"a":1.0,"b":null},"m2":{"c":null},"s":"NaN"}', "m2[]", "null"),
    ],
)
def test_a_row_with_several_faults_is_at_fault_for_the_first_one(
    text: str, path: str, reason: str
) -> None:
    texts = pa.array(['{"s":"null"}', text, '{"n0":"NaN"}', text])
    n0, found = encode_json(MANY_RULES, texts, PREFIX).faults
    assert (n0.rows.tolist(), found.rows.tolist()) == ([2], [1, 3])
    assert found.message.startswith(f"column value.{path} is {reason}")


def test_rows_at_fault_are_the_same_however_many_are_read_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = random.Random(7)
    texts = chance.choices(
        [None, "{}", '{"n":1.0}', '{"n":2.0,"s":["a",null]}', '{"s":[null]}', '{"n":"NaN"}'], k=60
    )

    def found() -> list[list[str]]:
        messages: list[list[str]] = [[] for _ in texts]
        for fault in encode_json(PLAN, pa.array(texts), PREFIX).faults:
            for row in fault.rows:
                messages[row].append(fault.message)
        return messages

    together = found()
    assert {len(each) for each in together} == {0, 1, 2}
    for read_bytes in (1, 10, 100):
        monkeypatch.setattr(f"{encode_json.__module__}._READ_BYTES", read_bytes)
        assert found() == together


def test_many_small_items_that_are_read_take_little_memory() -> None:
    items = pa.struct([("s", pa.list_(pa.int8()))])
    schema = {"properties": {"s": {"items": {"type": "integer"}}}}
    plan = fit_json(column_type(items), schema, "value")
    texts = pa.array(['{"s":[' + ",".join(["7"] * 1000) + "]}"] * 2000)
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        assert encode_json(plan, texts, PREFIX).faults == []
    finally:
        pa.set_memory_pool(usual)
    assert pool.max_memory() < 5 * texts.nbytes


@pytest.mark.parametrize(
    "texts", [["{"], ['{"n":1}{"n":1}'], ['{"n":"NaN"'], ['{"n":1}', "7"], ['{"n":true}'], [""]]
)
def test_rows_that_to_json_has_not_made_fail_the_task(texts: list[str]) -> None:
    with pytest.raises(DataException, match="call to_kafka last, right before the write"):
        encode_json(PLAN, pa.array(texts), PREFIX)
