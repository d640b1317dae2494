"""JSON with a schema registry: the schema that is written, and what is refused before any row."""

# ruff: noqa: E501 - messages stand in one piece

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import types as T  # noqa: N812 - as everywhere
from support.brokers.registry_server import RegistryServer

from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.serde.json_schema import JsonPlan, derive_json_schema, fit_json
from spark_kafka_sink.serde.wire_format import schema_id_prefix
from spark_kafka_sink.spark.formats import ColumnEncoding, as_metadata, type_number
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.planning import kept_schemas
from spark_kafka_sink.spark.planning.check_cache import CheckCache
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.planning.encodings import with_registered_encodings
from spark_kafka_sink.spark.planning.spark_types import column_type

ORDER = T.StructType().add("id", T.LongType(), nullable=False).add("name", T.StringType())
DERIVED = derive_json_schema(column_type(ORDER), "value", "Value")
HAND_MADE = {
    "type": "object",
    "title": "Order",
    "required": ["id", "name"],
    "properties": {"id": {"type": "number"}, "name": {"type": "string"}},
}
LATEST = "GET /subjects/t-value/versions/latest"
REGISTER = "POST /subjects/t-value/versions"


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_schemas, "_kept", CheckCache())


def rows(made_of: T.StructType | None = ORDER) -> T.StructType:
    """Return the schema of what to_kafka makes of columns; None for a string of anything."""
    if made_of is None:
        return T.StructType().add("value", T.StringType())
    kind = T.StructType().add("json", T.StringType()).add("type", T.IntegerType(), nullable=False)
    return T.StructType().add("value", kind, metadata=as_metadata("json_sr", made_of))


def rows_with_key(made_of: T.StructType | None = ORDER) -> T.StructType:
    """Return the schema of rows whose key is made by to_kafka, or is a string, as in `rows`."""
    (key,) = rows(made_of).fields
    schema = T.StructType().add("key", key.dataType, metadata=key.metadata)
    return schema.add("value", T.StringType())


def checked(schema: T.StructType, **options: str) -> SinkOptions:
    """Return the options of a write, as the driver checks them before it asks. Names have _ for a dot."""
    more = {name.replace("_", "."): value for name, value in options.items()}
    given = {"kafka.bootstrap.servers": "b:1", "topic": "t", **more}
    return KafkaDataSource(given).check(schema)[0]


def asked(server: RegistryServer, schema: T.StructType, **options: str) -> list[ColumnEncoding]:
    """Return how a write encodes its columns, after the registry was asked."""
    found = checked(schema, schema_registry_url=server.url, **options)
    return list(with_registered_encodings(found, schema, may_remember=False).encodings)


def batch(server: RegistryServer, made_of: T.StructType) -> ColumnEncoding:
    """Return how the value of a micro-batch is encoded."""
    schema = rows(made_of)
    found = checked(schema, schema_registry_url=server.url)
    (encoded,) = with_registered_encodings(found, schema, may_remember=True).encodings
    return encoded


def encoding(schema: object, schema_id: int, made_of: T.StructType = ORDER) -> ColumnEncoding:
    """Return how a value is written with a schema."""
    plan = fit_json(column_type(made_of), schema, "value")  # type: ignore[arg-type]
    prefix = schema_id_prefix(schema_id)
    return ColumnEncoding("value", plan, prefix, type_number=type_number(made_of))


def test_a_schema_is_derived_from_the_mark_and_registered(server: RegistryServer) -> None:
    assert asked(server, rows()) == [encoding(json.loads(DERIVED), 1)]
    assert server.schemas[1] == {"schema": DERIVED, "schemaType": "JSON"}
    assert server.asked() == [LATEST, REGISTER]
    assert asked(server, rows()) == [encoding(json.loads(DERIVED), 1)]
    assert server.asked() == [LATEST]
    asked(server, rows(), valueSubject="s", recordName="Order", recordNamespace="com.shop")
    assert json.loads(server.schemas[2]["schema"])["title"] == "com.shop.Order"


def test_the_latest_version_is_compared_and_flipped_nullability_makes_no_version(
    server: RegistryServer,
) -> None:
    server.add("t-value", DERIVED, schemaType="JSON")
    flipped = T.StructType().add("id", T.LongType()).add("name", T.StringType(), nullable=False)
    (found,) = asked(server, rows(flipped))
    assert found == encoding(json.loads(DERIVED), 1, flipped)
    assert [rule.path for rule in found.plan.rules] == ["value.id"]  # type: ignore[union-attr]
    assert server.asked() == [LATEST]
    more = T.StructType([*ORDER.fields, T.StructField("more", T.LongType())])
    with pytest.raises(DataException, match=r"column value\.more has no property in the JSON Sch"):
        asked(server, rows(more))
    server.add("t-value", HAND_MADE, schemaType="JSON")
    assert asked(server, rows()) == [encoding(HAND_MADE, 2)]


def test_streams_of_other_columns_with_equal_options_keep_their_own_schemas(
    server: RegistryServer,
) -> None:
    other = T.StructType().add("count", T.LongType())
    first = batch(server, ORDER)
    derived = derive_json_schema(column_type(other), "value", "Value")
    server.add("t-value", derived, schemaType="JSON")
    second = batch(server, other)
    assert second == encoding(json.loads(derived), 2, other)
    assert server.asked() == [LATEST, REGISTER, LATEST]
    assert [batch(server, ORDER), batch(server, other)] == [first, second]
    # A column that may be null now is not asked for again.
    flipped = T.StructType([T.StructField(each.name, each.dataType) for each in ORDER.fields])
    assert batch(server, flipped) == encoding(json.loads(DERIVED), 1, flipped)
    assert server.asked() == []


def test_a_given_schema_and_an_id_are_compared(server: RegistryServer) -> None:
    text = json.dumps(HAND_MADE)
    assert asked(server, rows(), valueSchema=text) == [encoding(HAND_MADE, 1)]
    assert server.schemas[1]["schemaType"] == "JSON"
    assert asked(server, rows(), use_schema_id="1") == [encoding(HAND_MADE, 1)]
    wrong = T.StructType().add("id", T.StringType()).add("name", T.StringType())
    with pytest.raises(DataException, match=r"column value\.id is of type string, which to_json"):
        checked(rows(wrong), schema_registry_url=server.url, valueSchema=text)
    with pytest.raises(ConfigException, match="option valueSchema: a JSON Schema is expected to"):
        checked(rows(), schema_registry_url=server.url, valueSchema="[1]")


USES_NAME = [{"name": "name.json", "subject": "names", "version": 1}]
WITH_NAME = {**HAND_MADE, "properties": {"id": {}, "name": {"$ref": "name.json#/$defs/text"}}}
NAME = "GET /subjects/names/versions/1"


def test_references_are_registered_and_compared(server: RegistryServer) -> None:
    text = {"$defs": {"text": {"$ref": "#/$defs/own"}, "own": {"type": "string"}}}
    server.add("names", text, schemaType="JSON")
    more = {"valueSchema": json.dumps(WITH_NAME), "valueReferences": json.dumps(USES_NAME)}
    assert asked(server, rows(), **more) == [encoding(WITH_NAME, 2)]
    assert server.schemas[2]["references"] == USES_NAME
    assert server.asked() == [NAME, LATEST, REGISTER]
    assert asked(server, rows()) == [encoding(WITH_NAME, 2)]
    assert asked(server, rows(), use_schema_id="2") == [encoding(WITH_NAME, 2)]
    assert server.asked() == [LATEST, NAME, "GET /schemas/ids/2", NAME]
    # Strings that are JSON already are not compared, so the reference is not needed.
    asked(server, rows(None), valueFormat="json_sr", **more)
    assert server.asked() == [LATEST]


@pytest.mark.parametrize("choice", ["given", "latest", "id"])
def test_a_column_that_does_not_fit_a_referenced_schema_is_refused(
    choice: str, server: RegistryServer
) -> None:
    server.add("names", {"$defs": {"text": {"type": "integer"}}}, schemaType="JSON")
    more = {"valueSchema": json.dumps(WITH_NAME), "valueReferences": json.dumps(USES_NAME)}
    if choice != "given":
        server.add("t-value", WITH_NAME, schemaType="JSON", references=USES_NAME)
        more = {"use_schema_id": "2"} if choice == "id" else {}
    with pytest.raises(DataException) as refused:
        asked(server, rows(), **more)
    assert str(refused.value) == (
        "column value.name is of type string, which to_json writes as string: the JSON Schema "
        "expects integer; convert the column, or change the schema"
    )
    assert REGISTER not in server.asked()


def test_the_references_of_a_stream_are_kept(server: RegistryServer) -> None:
    server.add("names", {"$defs": {"text": {"type": "string"}}}, schemaType="JSON")
    server.add("t-value", WITH_NAME, schemaType="JSON", references=USES_NAME)
    found = checked(rows(), schema_registry_url=server.url)
    for _ in range(2):
        with_registered_encodings(found, rows(), may_remember=True)
    assert server.asked() == [LATEST, NAME]
    # The types of the stream change.
    wrong = T.StructType().add("id", T.LongType()).add("name", T.LongType())
    found = checked(rows(wrong), schema_registry_url=server.url)
    with pytest.raises(DataException, match=r"column value\.name is of type bigint"):
        with_registered_encodings(found, rows(wrong), may_remember=True)


def test_a_referenced_schema_that_is_none_is_named(server: RegistryServer) -> None:
    server.add("names", "[1]", schemaType="JSON")
    server.add("t-value", WITH_NAME, schemaType="JSON", references=USES_NAME)
    with pytest.raises(DataException) as refused:
        asked(server, rows())
    assert str(refused.value) == (
        "version 1 of subject 'names': a JSON Schema is expected to be an object, found '[1]'"
    )


def test_other_strings_and_bytes_need_a_schema_that_is_not_compared(
    server: RegistryServer,
) -> None:
    plain, option = rows(None), {"valueFormat": "json_sr"}
    with pytest.raises(ConfigException) as refused:
        asked(server, plain, **option)
    assert str(refused.value) == (
        "no schema can be derived from the strings or bytes in column value: call to_kafka with "
        'value="json_sr", or set valueSchema or use.schema.id'
    )
    text = json.dumps(HAND_MADE)
    expected = [ColumnEncoding("value", JsonPlan(), schema_id_prefix(1))]
    assert asked(server, plain, valueSchema=text, **option) == expected
    assert asked(server, plain, **option) == expected
    assert asked(server, plain, use_schema_id="1", **option) == expected
    binary = T.StructType().add("value", T.BinaryType()).add("key", T.StringType())
    assert asked(server, binary, **option) == expected
    server.add("t-key", {"title": "Id"}, schemaType="JSON")
    value, key = asked(server, binary, keyFormat="json_sr", **option)
    assert {value.column, key.column} == {"value", "key"}
    assert value.prefix != key.prefix


def test_keys_that_to_kafka_has_made_get_a_derived_schema(server: RegistryServer) -> None:
    (found,) = asked(server, rows_with_key())
    text = derive_json_schema(column_type(ORDER), "key", "Key")
    plan = fit_json(column_type(ORDER), json.loads(text), "key")
    number = type_number(ORDER)
    assert found == ColumnEncoding("key", plan, schema_id_prefix(1), type_number=number)
    assert server.schemas[1] == {"schema": text, "schemaType": "JSON"}
    assert list(server.subjects) == ["t-key"]
    wrong = T.StructType().add("day", T.DateType())
    with pytest.raises(DataException, match=r"the data has no column key\.id, which the JSON"):
        asked(server, rows_with_key(wrong))


def test_other_keys_need_a_schema(server: RegistryServer) -> None:
    # The id is that of the value, so no message names use.schema.id for a key.
    schema = T.StructType([*rows_with_key(None).fields[:1], *rows().fields])
    asked(server, rows())
    for more in ({}, {"use_schema_id": "1"}):
        with pytest.raises(ConfigException) as refused:
            asked(server, schema, keyFormat="json_sr", **more)
        assert str(refused.value) == (
            "no schema can be derived from the strings or bytes in column key: call to_kafka with "
            'a struct as key and key_format="json_sr", or set keySchema'
        )


def test_the_record_name_is_the_title(server: RegistryServer) -> None:
    by_name = {"value_subject_name_strategy": "RecordNameStrategy"}
    asked(server, rows(), recordName="Order", recordNamespace="com.shop", **by_name)
    asked(server, rows(), valueSchema=json.dumps(HAND_MADE), **by_name)
    assert set(server.subjects) == {"com.shop.Order", "Order"}
    untitled = "value: give the schema in valueSchema a title, or set valueSubject$"
    with pytest.raises(ConfigException, match=untitled):
        asked(server, rows(), valueSchema="{}", **by_name)
    asked(server, rows(), valueSchema="{}", valueSubject="mine", **by_name)
    no_schema = "value: set valueSchema to a schema with a title, or set valueSubject$"
    with pytest.raises(ConfigException, match=no_schema):
        asked(server, rows(None), valueFormat="json_sr", **by_name)
    with pytest.raises(ConfigException, match="value: set recordName, or set valueSchema to a sch"):
        asked(server, rows(), **by_name)


def test_a_title_with_half_of_a_surrogate_pair_names_no_subject(server: RegistryServer) -> None:
    options = {"valueSchema": '{"title": "\\ud800"}', "value_subject_name_strategy": "RECORD"}
    with pytest.raises(ConfigException) as refused:
        asked(server, rows(), **options)
    assert str(refused.value) == (
        r"the subject of column value would be '\ud800', which has an unpaired surrogate: "
        "correct the title in valueSchema, or set valueSubject"
    )
    assert server.asked() == []


KEY_FILES = [
    {"private_key": "hunter2"},
    {"type": "service_account", "private_key": "hunter2"},
    {"type": [], "definitions": "hunter2"},
    {"properties": {"password": "hunter2"}, "enum": "hunter2", "anyOf": []},
    {},
]


@pytest.mark.parametrize("found", KEY_FILES, ids=range(len(KEY_FILES)))
@pytest.mark.parametrize("auto", ["true", "false"])
def test_a_file_that_may_be_no_schema_is_neither_shown_nor_registered(
    found: object, auto: str, server: RegistryServer, tmp_path: Path
) -> None:
    file = tmp_path / "key.json"
    file.write_text(json.dumps(found))
    with pytest.raises(ConfigException) as refused:
        asked(server, rows(), valueSchema=str(file), auto_register_schemas=auto)
    assert str(refused.value) == (
        f"option valueSchema is {str(file)!r}, a file without a JSON Schema: expected a keyword of "
        "JSON Schema at the top of the object, such as type, properties or $ref"
    )
    assert server.asked() == []


@pytest.mark.parametrize(
    "schema",
    [
        HAND_MADE,
        {"type": ["object", "null"]},
        {"$ref": "#/x", "x": {}},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"properties": {"id": {}}},
        {"additionalProperties": {}},
        {"anyOf": [True]},
        {"required": ["id"]},
        {"const": 1},
        True,
    ],
    ids=str,
)
def test_a_schema_in_a_file_is_written(
    schema: object, server: RegistryServer, tmp_path: Path
) -> None:
    file = tmp_path / "order.json"
    file.write_text(json.dumps(schema))
    assert asked(server, rows(), valueSchema=str(file)) == [encoding(schema, 1)]


WRONG: dict[str, tuple[T.StructType, dict[str, str], type[Exception], str]] = {
    "no registry": (rows(), {}, ConfigException, 'the format of column value is json_sr, which needs a schema registry: set schema.registry.url, or remove the format, and make plain JSON by to_kafka with value="json"'),
    "no registry for a key": (rows_with_key(), {}, ConfigException, "the format of column key is json_sr, which needs a schema registry: set schema.registry.url, or remove the format, and make plain JSON by to_kafka without key_format"),
    "struct": (T.StructType().add("value", ORDER), {"valueFormat": "json_sr", "schema_registry_url": "http://r"}, DataException, 'column value is of type struct<id:bigint,name:string>, but its format json_sr needs strings or bytes of JSON: call to_kafka with value="json_sr", or use to_json and set a schema'),
    "struct as key": (T.StructType().add("key", ORDER).add("value", T.StringType()), {"keyFormat": "json_sr", "schema_registry_url": "http://r"}, DataException, 'column key is of type struct<id:bigint,name:string>, but its format json_sr needs strings or bytes of JSON: call to_kafka with a struct as key and key_format="json_sr", or use to_json and set a schema'),
    "a column that was cast": (T.StructType().add("value", T.StringType(), metadata=as_metadata("json_sr", ORDER)), {"schema_registry_url": "http://r", "recordName": "R"}, ConfigException, "option recordName has no effect, because no schema is derived: remove it"),
    "other format": (rows(), {"valueFormat": "avro", "schema_registry_url": "http://r"}, ConfigException, "option valueFormat is avro, but to_kafka has made the column value for the format json_sr: use the same format"),
    "no name": (rows(None), {"valueFormat": "json_sr", "recordName": "R", "schema_registry_url": "http://r"}, ConfigException, "option recordName has no effect, because no schema is derived: remove it"),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "options", "kind", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_written_is_refused(
    schema: T.StructType, options: dict[str, str], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as refused:
        checked(schema, **options)
    assert str(refused.value).startswith(message)


def test_a_type_without_schema_is_refused_before_anything_is_registered(
    server: RegistryServer,
) -> None:
    with pytest.raises(DataException, match=r"column value\.x is of type void, for which there is"):
        asked(server, rows(T.StructType().add("x", T.NullType())))
    assert server.asked() == [LATEST]


class Celsius(T.UserDefinedType):
    """A type of a user, which the process that plans does not need to import."""

    @classmethod
    def sqlType(cls) -> T.DataType:  # noqa: N802 - Spark's name
        """Return the type of Spark."""
        return T.DoubleType()

    @classmethod
    def module(cls) -> str:
        """Return the module."""
        return "not.there"


def test_the_mark_has_only_what_the_schema_depends_on(server: RegistryServer) -> None:
    inner = T.StructType().add("t", Celsius(), nullable=False, metadata={"comment": "secret"})
    made_of = (
        T.StructType()
        .add("list", T.ArrayType(inner, containsNull=False))
        .add("map", T.MapType(T.StringType(), inner, valueContainsNull=False), nullable=False)
        .add("text", T.StringType("UNICODE_CI"))
    )
    schema = rows(made_of)
    assert "secret" not in schema.json()
    again = T.StructType.fromJson(json.loads(schema.json()))
    assert type_number(made_of) == asked(server, again)[0].type_number
    text_of_schema = server.schemas[1]["schema"]
    assert json.loads(text_of_schema)["properties"]["map"] == {
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"t": {"type": "number"}},
            "required": ["t"],
        },
    }
