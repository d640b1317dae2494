"""A ``$ref`` of a JSON Schema to another document, compared with the validator of Confluent's client.

Confluent's client for Python validates with the packages jsonschema and referencing. It adds each
referenced schema to a registry with the name of the reference as its URI.
"""

# ruff: noqa: E501 - tables

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import referencing
from jsonschema.validators import validator_for  # type: ignore[import-untyped]
from referencing.jsonschema import DRAFT7
from support.pure.traced_memory import traced_memory

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.serde.arrow_types import column_type
from spark_kafka_sink.serde.json_schema import fit_json

OLD = "http://json-schema.org/draft-07/schema#"
NEW = "https://json-schema.org/draft/2020-12/schema"
TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
ROW = {"name": "a"}
COLUMN = column_type(pa.struct([pa.field("name", pa.string(), nullable=False)]))


def of_name(schema: object) -> dict[str, Any]:
    """Return the schema of a row whose column has a schema."""
    return {"properties": {"name": schema}}


def ref(name: str) -> dict[str, Any]:
    """Return the schema of a row whose column has the schema at a reference."""
    return of_name({"$ref": name})


def defs(**schemas: object) -> dict[str, Any]:
    """Return a document that only defines schemas."""
    return {"definitions": schemas}


# The schema, the schemas that it references, and whether the row fits.
CASES: dict[str, tuple[Any, dict[str, Any], bool]] = {
    "a document": (ref("n.json"), {"n.json": NUMBER}, False),
    "a document that fits": (ref("n.json"), {"n.json": TEXT}, True),
    "an empty part": (ref("n.json#"), {"n.json": NUMBER}, False),
    "a name with an empty part": (ref("n.json"), {"n.json#": NUMBER}, False),
    "a part": (ref("n.json#/definitions/a"), {"n.json": defs(a=NUMBER, b=TEXT)}, False),
    "a part that fits": (ref("n.json#/definitions/b"), {"n.json": defs(a=NUMBER, b=TEXT)}, True),
    "a part with escapes": (ref("n.json#/definitions/a%20b~1c"), {"n.json": defs(**{"a b/c": NUMBER})}, False),
    "a whole URI": (ref("http://s.org/n.json"), {"http://s.org/n.json": NUMBER}, False),
    "a name that is no URI": (ref("com.shop.Name"), {"com.shop.Name": NUMBER}, False),
    "a name that is a URN": (ref("urn:name#/definitions/a"), {"urn:name": defs(a=NUMBER)}, False),
    "the root": ({"$ref": "n.json"}, {"n.json": of_name(NUMBER)}, False),
    "nothing": (ref("n.json"), {"n.json": False}, False),
    "anything": (ref("n.json"), {"n.json": True}, True),
    "a part of the other document": (ref("n.json"), {"n.json": {"$ref": "#/definitions/a", **defs(a=NUMBER)}}, False),
    "not the part of its own": ({**ref("n.json"), **defs(a=TEXT)}, {"n.json": {"$ref": "#/definitions/a", **defs(a=NUMBER)}}, False),
    "a third document": (ref("n.json"), {"n.json": {"$ref": "m.json"}, "m.json": NUMBER}, False),
    "a third document that fits": (ref("n.json"), {"n.json": {"$ref": "m.json"}, "m.json": TEXT}, True),
    "relative to the name": (ref("http://s.org/a/n.json"), {"http://s.org/a/n.json": {"$ref": "../m.json"}, "http://s.org/m.json": NUMBER}, False),
    "relative to the id": ({"$id": "http://s.org/a/r.json", **ref("n.json")}, {"http://s.org/a/n.json": NUMBER}, False),
    "relative to the id, up": ({"$id": "http://s.org/a/r.json", **ref("../n.json#/definitions/a")}, {"http://s.org/n.json": defs(a=NUMBER)}, False),
    "relative to the host": ({"$id": "http://s.org/a/r.json#", **ref("/n.json")}, {"http://s.org/n.json": NUMBER}, False),
    "relative to a host without a path": ({"$id": "http://s.org", **ref("n.json")}, {"http://s.org/n.json": NUMBER}, False),
    "relative to a path": ({"$id": "a/r.json", **ref("./n.json")}, {"a/n.json": NUMBER}, False),
    "by its id": (ref("http://s.org/n.json"), {"n": {"$id": "http://s.org/n.json", **NUMBER}}, False),
    "by an id relative to its name": (ref("http://s.org/n.json"), {"http://s.org/x": {"$id": "n.json", **NUMBER}}, False),
    "the name counts before the id": (ref("n"), {"m": {"$id": "n", **TEXT}, "n": NUMBER}, False),
    "its own id": ({"$id": "http://s.org/r.json", **ref("r.json#/definitions/a"), **defs(a=NUMBER)}, {}, False),
    "its own whole id": ({"$id": "http://s.org/r.json", **ref("http://s.org/r.json#/definitions/a"), **defs(a=NUMBER)}, {}, False),
    "beside a reference": (of_name({"$ref": "n.json", **NUMBER}), {"n.json": TEXT}, True),
    "beside a reference in 2020-12": ({"$schema": NEW, **of_name({"$ref": "n.json", **NUMBER})}, {"n.json": TEXT}, False),
    "recursion": ({"properties": {"name": TEXT, "next": {"$ref": "n.json"}}}, {"n.json": {"properties": {"next": {"$ref": "#"}}}}, True),
}  # fmt: skip


def fits(schema: Any, referenced: dict[str, Any]) -> bool:  # noqa: ANN401 - any JSON
    """Return whether the column fits a schema."""
    try:
        fit_json(COLUMN, schema, "value", referenced)
    except DataException:
        return False
    return True


@pytest.mark.parametrize(("schema", "referenced", "expected"), CASES.values(), ids=CASES)
def test_other_documents_are_found_as_by_confluents_client(
    schema: Any,  # noqa: ANN401 - any JSON
    referenced: dict[str, Any],
    expected: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert fits(schema, referenced) is expected
    registry: referencing.Registry[Any] = referencing.Registry()
    for name, each in referenced.items():
        document = referencing.Resource.from_contents(each, default_specification=DRAFT7)
        registry = registry.with_resource(name, document)
    validator = validator_for(schema, default=validator_for({"$schema": OLD}))
    assert validator(schema, registry=registry).is_valid(ROW) is expected


# In these cases Confluent's client for Python fails or differs: it requests unknown documents over
# the network, and takes the dialect of the document that it began with.
OTHERS: dict[str, tuple[Any, dict[str, Any], bool]] = {
    "an unknown document": (ref("other.json"), {"n.json": NUMBER}, True),
    "an unknown document that is relative": ({"$id": "http://s.org/r.json", **ref("other.json")}, {"n.json": NUMBER}, True),
    "an anchor": (ref("n.json#name"), {"n.json": {"definitions": {"a": {"$anchor": "name", **NUMBER}}}}, True),
    "a part that is no schema": (ref("n.json#/definitions/a/type"), {"n.json": defs(a=NUMBER)}, True),
    "a bare name beside an id": ({"$id": "http://s.org/r.json", **ref("n.json")}, {"n.json": NUMBER}, False),
    "a bare name beside a URN": ({"$id": "urn:r", **ref("n.json")}, {"n.json": NUMBER}, False),
    "a bare name in the folder of the id": ({"$id": "http://s.org/r.json", **ref("http://s.org/n.json")}, {"n.json": NUMBER}, False),
    "its own dialect": (ref("n.json"), {"n.json": {"$schema": NEW, "$ref": "m.json", **NUMBER}, "m.json": TEXT}, False),
    "a dialect that is not its own": ({"$schema": NEW, **ref("n.json")}, {"n.json": {"$ref": "m.json", **NUMBER}, "m.json": TEXT}, True),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "referenced", "expected"), OTHERS.values(), ids=OTHERS)
def test_unknown_documents_are_ignored_and_each_document_has_its_dialect(
    schema: Any,  # noqa: ANN401 - any JSON
    referenced: dict[str, Any],
    expected: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert fits(schema, referenced) is expected


def test_a_part_that_is_not_there_is_named() -> None:
    with pytest.raises(DataException) as refused:
        fit_json(COLUMN, ref("n.json#/definitions/b"), "value", {"n.json": defs(a=TEXT)})
    said = "a $ref refers to 'n.json#/definitions/b', which is not in the JSON Schema"
    assert str(refused.value) == said


def test_documents_that_refer_to_each_other_have_an_end() -> None:
    with pytest.raises(DataException, match="is nested too deeply, or refers to itself"):
        fit_json(COLUMN, ref("a"), "value", {"a": {"$ref": "b"}, "b": {"$ref": "a"}})


def test_a_document_that_has_another_one_embedded_is_not_compared() -> None:
    embedded = {"$id": "b.json", "$ref": "#/$defs/num", "$defs": {"num": TEXT}}
    document = {"$schema": NEW, "$ref": "#/$defs/b", "$defs": {"b": embedded, "num": NUMBER}}
    for schema, referenced in (
        (ref("n.json"), {"n.json": document}),
        ({"$schema": NEW, **ref("#/$defs/b"), "$defs": document["$defs"]}, {}),
    ):
        assert fits(schema, referenced)


def test_a_document_finds_itself_by_its_own_id() -> None:
    own = "https://s.org/r.json"
    schema = {"$id": own, **ref(f"{own}#/definitions/a"), **defs(a=TEXT)}
    assert fits(schema, {"n.json": {"$id": own, **defs(a=NUMBER)}})


def many_ways(keyword: str, levels: int) -> dict[str, Any]:
    """Return documents that refer to each other, with two ways from each level to the next."""
    return {f"d{level}": {keyword: [{"$ref": f"d{level + 1}"}] * 2} for level in range(levels)}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_very_many_ways_through_the_references_take_little_work(keyword: str) -> None:
    documents = many_ways(keyword, 100)
    assert fits(ref("d0"), documents | {"d100": TEXT})
    assert not fits(ref("d0"), documents | {"d100": NUMBER})


def test_a_rule_at_the_end_of_very_many_ways_takes_little_memory() -> None:
    column = column_type(pa.struct([("name", pa.string())]))
    documents = many_ways("allOf", 20) | {"d20": {"required": ["name"]}}
    with traced_memory() as memory:
        plan = fit_json(column, {"$ref": "d0"}, "value", documents)
    assert [each.path for each in plan.rules] == ["value.name"]
    assert memory.peak_bytes < 1_000_000
