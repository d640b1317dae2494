"""Which schema is written with a schema registry, what is asked for it, and how often."""

# ruff: noqa: E501 - messages stand in one piece

from __future__ import annotations

import json
import logging
import pickle
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812 - as everywhere
from support.brokers.registry_server import Call, RegistryServer, Reply, basic, error, guid_of
from support.oracles.record_batches import header_pairs
from support.spark.rows_with_schema import avro_reader

from spark_kafka_sink import errors
from spark_kafka_sink.auth.delegation_tokens import with_delegation_token
from spark_kafka_sink.errors import ConfigException, DataException, RestClientException
from spark_kafka_sink.logs import _warn
from spark_kafka_sink.model import DelegationToken, Secret
from spark_kafka_sink.serde.avro_encoder import encode_avro
from spark_kafka_sink.serde.avro_plan import fit
from spark_kafka_sink.serde.avro_schema import parse_schema
from spark_kafka_sink.serde.derived_avro import derive_schema
from spark_kafka_sink.serde.json_schema import JsonPlan
from spark_kafka_sink.serde.wire_format import schema_id_prefix
from spark_kafka_sink.spark.formats import ColumnEncoding
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.planning import (
    datasource,
    kept_schemas,
    registry_questions,
    task_tokens,
)
from spark_kafka_sink.spark.planning.check_cache import CheckCache
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.planning.encodings import with_registered_encodings
from spark_kafka_sink.spark.planning.registered_schemas import ChosenSchema, registered
from spark_kafka_sink.spark.planning.spark_types import column_type
from spark_kafka_sink.spark.tasks.encoded_rows import encode_rows

ORDER = T.StructType().add("id", T.LongType(), nullable=False).add("name", T.StringType())
DERIVED = derive_schema(column_type(ORDER), "value", "Value")
HAND_MADE = json.dumps(
    {
        "type": "record",
        "name": "com.shop.Order",
        "fields": [
            {"name": "name", "type": ["string", "null"]},
            {"name": "id", "type": "long"},
            {"name": "source", "type": "string", "default": "spark"},
        ],
    }
)
A_DEFAULT = HAND_MADE.replace('"string", "default": "spark"', '"double", "default": 1')
LATEST = "GET /subjects/t-value/versions/latest"
REGISTER = "POST /subjects/t-value/versions"
LOOKUP = "POST /subjects/t-value"


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_schemas, "_kept", CheckCache())
    _warn.cache_clear()


def rows(value: T.DataType = ORDER, key: T.DataType | None = None) -> T.StructType:
    """Return the schema of the data."""
    schema = T.StructType().add("value", value)
    return schema if key is None else schema.add("key", key)


def asked(
    server: RegistryServer,
    schema: T.StructType | None = None,
    more: Mapping[str, str] | None = None,
    *,
    may_remember: bool = False,
    **options: str,
) -> SinkOptions:
    """Return the options of a write after the registry was asked. Names have _ for a dot."""
    schema = rows() if schema is None else schema
    every = {**(more or {}), **options}
    given = {
        "kafka.bootstrap.servers": "b:1",
        "topic": "t",
        "valueFormat": "avro",
        "schema.registry.url": server.url,
        **{name.replace("_", "."): value for name, value in every.items()},
    }
    given = {name: value for name, value in given.items() if value}
    before = len(server.calls)
    checked = KafkaDataSource(given).check(schema)[0]
    # The check of a Spark Connect client sends no requests.
    assert len(server.calls) == before
    return with_registered_encodings(checked, schema, may_remember=may_remember)


@pytest.mark.parametrize("is_stream", [False, True])
def test_with_a_delegation_token_the_registry_gets_the_credentials_of_the_driver(
    is_stream: bool,  # noqa: FBT001 - a parameter of the test
    server: RegistryServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def with_token(options: SinkOptions) -> SinkOptions:
        token = DelegationToken(
            owner="User:alice",
            issue_timestamp_ms=0,
            expiry_timestamp_ms=2**50,
            max_timestamp_ms=2**50,
            token_id="id-of-the-token",
            hmac=Secret("aG1hYw=="),
        )
        config = with_delegation_token(options.producer, token, "SCRAM-SHA-512")
        return replace(options, producer=config)

    monkeypatch.setattr(datasource, "check_cluster", lambda options, **_: options)
    monkeypatch.setattr(datasource, "with_job_token", lambda options: (with_token(options), None))
    monkeypatch.setattr(task_tokens, "_with_shared_token", with_token)
    source = KafkaDataSource(
        {
            "kafka.bootstrap.servers": "b:1",
            "topic": "t",
            "valueFormat": "avro",
            "schema.registry.url": server.url,
            "basic.auth.credentials.source": "SASL_INHERIT",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "alice",
            "kafka.sasl.password": "hunter2",
            "delegationToken": "true",
        }
    )
    plan = source.streamWriter if is_stream else source.writer
    sent = pickle.dumps(plan(rows(), False))  # noqa: FBT003 - Spark's signature
    assert {each.headers["authorization"] for each in server.calls} == {basic("alice", "hunter2")}
    assert b"id-of-the-token" in sent
    assert b"hunter2" not in sent


def encoding(text: str, schema_id: int, kind: T.DataType = ORDER) -> ColumnEncoding:
    """Return how a value is encoded by a schema."""
    plan = fit(column_type(kind), parse_schema(text), "value")
    return ColumnEncoding("value", plan, schema_id_prefix(schema_id))


def test_a_derived_schema_is_registered_if_there_is_no_subject(server: RegistryServer) -> None:
    found = asked(server)
    assert found.encodings == (encoding(DERIVED, 1),)
    assert server.asked() == [LATEST, REGISTER]
    # The next job finds it.
    assert asked(server).encodings == found.encodings
    assert server.asked() == [LATEST]


def test_the_latest_version_is_written_and_nothing_is_registered(server: RegistryServer) -> None:
    server.add("t-value", DERIVED)
    server.add("t-value", HAND_MADE)
    assert asked(server).encodings == (encoding(HAND_MADE, 2),)
    assert server.asked() == [LATEST]
    # Neither does a column that may be null now make a version.
    nullable = T.StructType().add("id", T.LongType()).add("name", T.StringType(), nullable=False)
    assert asked(server, rows(nullable)).encodings == (encoding(HAND_MADE, 2, nullable),)
    assert server.asked() == [LATEST]


def test_a_given_schema_is_registered_even_if_there_is_another(server: RegistryServer) -> None:
    server.add("t-value", DERIVED)
    assert asked(server, valueSchema=HAND_MADE).encodings == (encoding(HAND_MADE, 2),)
    assert server.asked() == [LATEST, REGISTER]
    # With other whitespace or order of keys it is the same.
    spaced = json.dumps(json.loads(HAND_MADE), indent=1, sort_keys=True)
    assert asked(server, valueSchema=spaced).encodings == (encoding(HAND_MADE, 2),)
    assert server.asked() == [LATEST]
    # An earlier version is not registered again.
    assert asked(server, valueSchema=DERIVED).encodings == (encoding(DERIVED, 1),)
    assert server.asked() == [LATEST, REGISTER]
    assert len(server.subjects["t-value"]) == 2
    # Neither other numbers nor other references are the same.
    server.add("t-value", HAND_MADE, references=[OF_ID])
    for text in (HAND_MADE, A_DEFAULT, A_DEFAULT.replace("1", "1.0")):
        asked(server, valueSchema=text)
        assert server.asked() == [LATEST, REGISTER]


@pytest.mark.parametrize("more", [{}, {"auto_register_schemas": "false"}])
def test_a_given_schema_is_refused_if_the_latest_version_has_rules(
    more: dict[str, str], server: RegistryServer
) -> None:
    """The rules, such as encryption, may have been added to a schema that an earlier version has."""
    server.add("t-value", HAND_MADE)
    server.add("t-value", HAND_MADE, ruleSet={"domainRules": [{"kind": "TRANSFORM"}]})
    for given in (HAND_MADE, DERIVED):
        with pytest.raises(DataException) as refused:
            asked(server, valueSchema=given, more=more)
        assert str(refused.value).startswith(
            "the latest version of subject 't-value' has a ruleSet"
        )
        assert server.asked() == [LATEST]


def test_without_auto_register_schemas_are_only_looked_up(server: RegistryServer) -> None:
    off = {"auto_register_schemas": "false"}
    with pytest.raises(ConfigException) as refused:
        asked(server, more=off)
    assert str(refused.value) == (
        "the schema is not registered in subject 't-value', and auto.register.schemas is false: "
        f"register it, which is {DERIVED}"
    )
    assert server.asked() == [LATEST]
    with pytest.raises(ConfigException, match="register it, which is"):
        asked(server, valueSchema=HAND_MADE, more=off)
    assert server.asked() == [LATEST]
    for latest, calls in ((HAND_MADE, [LATEST]), (DERIVED, [LATEST, LOOKUP])):
        server.add("t-value", latest)
        assert asked(server, valueSchema=HAND_MADE, more=off).encodings == (encoding(HAND_MADE, 1),)
        assert server.asked() == calls
    with pytest.raises(ConfigException, match="register it, which is"):
        asked(server, valueSchema=HAND_MADE.replace("spark", "flink"), more=off)
    assert server.asked() == [LATEST, LOOKUP]
    assert server.subjects == {"t-value": [1, 2]}


def test_without_a_latest_version_the_schema_to_register_is_shown(server: RegistryServer) -> None:
    for option, what_to_do in (
        ({}, "register a schema, or remove the option"),
        ({"auto_register_schemas": "false"}, "register a schema"),
    ):
        with pytest.raises(ConfigException) as refused:
            asked(server, more={"use_latest_version": "true", **option})
        assert str(refused.value) == (
            "option use.latest.version is true, but the registry has no subject 't-value': "
            f"{what_to_do}; this schema fits column value: {DERIVED}"
        )
        assert server.asked() == [LATEST]


def test_a_hyphen_in_a_namespace_is_accepted(server: RegistryServer) -> None:
    hyphen = HAND_MADE.replace("com.shop.Order", "com.my-shop.Order")
    server.add("t-value", hyphen)
    strategy = {"value_subject_name_strategy": "RECORD", "valueSchema": hyphen}
    for options in ({}, {"use_schema_id": "1"}, {"valueSchema": hyphen}, strategy):
        assert asked(server, more=options).encodings == (encoding(hyphen, 1),)
    assert list(server.subjects) == ["t-value", "com.my-shop.Order"]


def test_the_text_of_a_schema_in_a_file_is_not_shown(
    server: RegistryServer, tmp_path: Path
) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(HAND_MADE)
    with pytest.raises(ConfigException) as refused:
        asked(server, valueSchema=str(file), more={"auto_register_schemas": "false"})
    assert str(refused.value) == (
        "the schema is not registered in subject 't-value', and auto.register.schemas is false: "
        "register the schema in the file of option valueSchema"
    )


def test_an_id_chooses_a_schema(server: RegistryServer) -> None:
    server.add("elsewhere", HAND_MADE)
    assert asked(server, use_schema_id="1").encodings == (encoding(HAND_MADE, 1),)
    assert server.asked() == ["GET /schemas/ids/1"]
    with pytest.raises(ConfigException, match=r"use\.schema\.id is 7: the registry has no such"):
        asked(server, use_schema_id="7")


def test_key_and_value_have_their_own_subjects(server: RegistryServer) -> None:
    schema = rows(key=T.LongType())
    key, value = asked(server, schema, keyFormat="avro").encodings
    assert (key.column, value.column) == ("key", "value")
    assert {subject: len(ids) for subject, ids in server.subjects.items()} == {
        "t-key": 1,
        "t-value": 1,
    }
    # The id is that of the value.
    key, value = asked(server, schema, keyFormat="avro", use_schema_id="2").encodings
    assert (key.prefix, value.prefix) == (schema_id_prefix(1), schema_id_prefix(2))
    only_key = T.StructType().add("value", T.StringType()).add("key", T.LongType())
    options = {"valueFormat": "", "keyFormat": "avro", "use_schema_id": "1"}
    server.asked()
    (key,) = asked(server, only_key, more=options).encodings
    assert key.prefix == schema_id_prefix(1)


ONE = {"keySubject": "one", "valueSubject": "one"}
# Options with which keys and values have one subject, and the versions that it has.
DIFFERENT: dict[str, tuple[dict[str, str], list[str]]] = {
    "both derived": (ONE, []),
    "the key's subject is that of the value": ({"keySubject": "t-value"}, []),
    "the value's subject is that of the key": ({"valueSubject": "t-key"}, []),
    "one given": ({**ONE, "valueSchema": HAND_MADE}, []),
    "the latest version and another": ({**ONE, "valueSchema": HAND_MADE}, [DERIVED]),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_one_subject_gets_no_different_schemas_of_key_and_value(
    name: str, server: RegistryServer
) -> None:
    options, versions = DIFFERENT[name]
    for text in versions:
        server.add("one", text)
    there = {subject: list(ids) for subject, ids in server.subjects.items()}
    with pytest.raises(
        ConfigException, match=r"key and value have the same subject .*: set keySub"
    ):
        asked(server, rows(ORDER, ORDER), options, keyFormat="avro")
    assert server.subjects == there


def test_one_subject_may_have_one_schema_for_key_and_value(server: RegistryServer) -> None:
    spaced = json.dumps(json.loads(HAND_MADE), indent=1)
    for number, options in enumerate(({}, {"keySchema": spaced, "valueSchema": HAND_MADE})):
        kind = ORDER if options else T.LongType()
        subject = {"keySubject": f"s{number}", "valueSubject": f"s{number}"}
        for _ in range(2):
            found = asked(server, rows(kind, kind), {**subject, **options}, keyFormat="avro")
            assert [each.prefix for each in found.encodings] == [schema_id_prefix(number + 1)] * 2
            assert server.subjects[f"s{number}"] == [number + 1]
    # Nothing is registered if both schemas are versions already.
    for text in (DERIVED, HAND_MADE):
        server.add("one", text)
    ids = list(server.subjects["one"])
    for register in ("true", "false"):
        more = {"keySchema": DERIVED, "valueSchema": HAND_MADE, "auto_register_schemas": register}
        key, value = asked(server, rows(ORDER, ORDER), {**ONE, **more}, keyFormat="avro").encodings
        assert (key.prefix, value.prefix) == tuple(map(schema_id_prefix, ids))
        assert server.subjects["one"] == ids


# For keys and values: what the registry has, the options, and the calls. A column that is named
# twice has two versions. Only the first write to new subjects has four calls, or each write whose
# two given schemas are not the latest versions.
GIVEN = {"valueSchema": HAND_MADE}
BOTH_GIVEN = {"keySchema": '"long"', "valueSchema": DERIVED}
KEY_LATEST, KEY_REGISTER = LATEST.replace("value", "key"), REGISTER.replace("value", "key")
KEY_LOOKUP = LOOKUP.replace("value", "key")
VERSIONS = {"key": ('"long"', '"int"'), "value": (DERIVED, HAND_MADE)}
EACH_TWICE = ("key", "key", "value", "value")
CALLS: dict[str, tuple[tuple[str, ...], dict[str, str], list[str]]] = {
    "both subjects are there": (("key", "value"), {}, [KEY_LATEST, LATEST]),
    "a new value": (("key",), {}, [KEY_LATEST, LATEST, REGISTER]),
    "a new key": (("value",), {}, [KEY_LATEST, LATEST, KEY_REGISTER]),
    "both are new": ((), {}, [KEY_LATEST, LATEST, KEY_REGISTER, REGISTER]),
    "both are new, and the value's schema is given": ((), GIVEN, [KEY_LATEST, LATEST, KEY_REGISTER, REGISTER]),
    "the value's schema is given, and new": (("key", "value"), GIVEN, [KEY_LATEST, LATEST, REGISTER]),
    "both schemas are given": (("key", "value"), BOTH_GIVEN, [KEY_LATEST, LATEST]),
    "both schemas are given, and new": ((), BOTH_GIVEN, [KEY_LATEST, LATEST, KEY_REGISTER, REGISTER]),
    "the id of the value's schema is given": (("value",), {"use_schema_id": "1"}, [KEY_LATEST, "GET /schemas/ids/1", KEY_REGISTER]),
    "nothing may be registered": (("key", "value"), {"auto_register_schemas": "false"}, [KEY_LATEST, LATEST]),
    "the schemas may only be looked up": (("key", "value"), {"auto_register_schemas": "false", **BOTH_GIVEN}, [KEY_LATEST, LATEST]),
    "both given schemas are earlier versions": (EACH_TWICE, BOTH_GIVEN, [KEY_LATEST, LATEST, KEY_REGISTER, REGISTER]),
    "both given schemas are earlier versions, and may only be looked up": (EACH_TWICE, {"auto_register_schemas": "false", **BOTH_GIVEN}, [KEY_LATEST, KEY_LOOKUP, LATEST, LOOKUP]),
    "only the latest version": (("key", "value"), {"use_latest_version": "true"}, [KEY_LATEST, LATEST]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_calls_for_keys_and_values(name: str, server: RegistryServer) -> None:
    subjects, options, calls = CALLS[name]
    versions = {column: iter(texts) for column, texts in VERSIONS.items()}
    for column in subjects:
        server.add(f"t-{column}", next(versions[column]))
    # If the given schemas are earlier versions, each job has the same calls.
    for _ in range(2 if subjects == EACH_TWICE else 1):
        asked(server, rows(key=T.LongType()), options, keyFormat="avro")
        assert server.asked() == calls
    # A job without given schemas then finds the subjects.
    asked(server, rows(key=T.LongType()), keyFormat="avro")
    assert server.asked() == [KEY_LATEST, LATEST]


def test_no_schema_is_registered_if_another_column_does_not_fit(server: RegistryServer) -> None:
    server.add("t-value", '"string"')
    with pytest.raises(DataException, match="column value is of type struct, and"):
        asked(server, rows(key=ORDER), keyFormat="avro")
    assert "t-key" not in server.subjects


STRATEGIES: dict[str, tuple[dict[str, str], str]] = {
    "topic": ({}, "t-value"),
    "record": ({"value_subject_name_strategy": "RecordNameStrategy", "recordName": "Order", "recordNamespace": "com.shop"}, "com.shop.Order"),
    "topic and record": ({"value_subject_name_strategy": "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy", "recordName": "Order"}, "t-Order"),
    "given schema": ({"value_subject_name_strategy": "RECORD", "valueSchema": HAND_MADE}, "com.shop.Order"),
    "given subject": ({"value_subject_name_strategy": "RECORD", "valueSubject": "orders"}, "orders"),
    "topic column": ({"topic": "", "value_subject_name_strategy": "RECORD", "recordName": "Order"}, "Order"),
    "topic column and subject": ({"topic": "", "valueSubject": "orders"}, "orders"),
}  # fmt: skip


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_subject_is_named_by_a_strategy(name: str, server: RegistryServer) -> None:
    options, subject = STRATEGIES[name]
    asked(server, rows().add("topic", T.StringType()), more=options)
    assert list(server.subjects) == [subject]


def test_an_id_needs_no_subject(server: RegistryServer) -> None:
    server.add("elsewhere", HAND_MADE)
    schema = rows().add("topic", T.StringType())
    assert asked(server, schema, topic="", use_schema_id="1").encodings[0].prefix[-1] == 1


def test_references_are_resolved(server: RegistryServer) -> None:
    server.add(
        "ids", {"type": "record", "name": "com.Id", "fields": [{"name": "n", "type": "int"}]}
    )
    name = {"type": "enum", "name": "com.Name", "symbols": ["A"]}
    used = [{"name": "com.Id", "subject": "ids", "version": 1}]
    fields = [{"name": "id", "type": "com.Id"}, {"name": "name", "type": name}]
    server.add("t-value", {"type": "record", "name": "com.R", "fields": fields}, references=used)
    kind = (
        T.StructType()
        .add("id", T.StructType().add("n", T.IntegerType()))
        .add("name", T.StringType())
    )
    (found,) = asked(server, rows(kind)).encodings
    inline = {
        "type": "record",
        "name": "R",
        "namespace": "com",
        "fields": [
            {
                "name": "id",
                "type": {"type": "record", "name": "Id", "fields": [{"name": "n", "type": "int"}]},
            },
            fields[1],
        ],
    }
    assert found == encoding(json.dumps(inline), 2, kind)
    assert server.asked() == [LATEST, "GET /subjects/ids/versions/1"]


def test_a_schema_of_a_context_is_written_by_its_id(server: RegistryServer) -> None:
    server.add("t-value", "string")
    used = [{"name": "com.Id", "subject": "ids", "version": 1}]
    fields = [{"name": "id", "type": "com.Id"}]
    record = {"type": "record", "name": "com.R", "fields": fields}
    server.contexts[".sales"] = {1: {"schema": json.dumps(record), "references": used}}
    server.add(":.sales:ids", ID)
    kind = T.StructType().add("id", T.StructType().add("n", T.IntegerType()))
    options = {"use_schema_id": "1", "valueSubject": ":.sales:t-value"}
    (found,) = asked(server, rows(kind), options).encodings
    inline = {**record, "fields": [{"name": "id", "type": ID}]}
    assert found == encoding(json.dumps(inline), 1, kind)
    with pytest.raises(ConfigException) as refused:
        asked(server, rows(kind), {**options, "valueSubject": ":.hr:t-value"})
    assert str(refused.value) == (
        "option use.schema.id is 1: the registry has no such schema in the context of "
        "valueSubject ':.hr:t-value'"
    )


@pytest.mark.parametrize("column", ["key", "value"])
@pytest.mark.parametrize("is_given", [False, True], ids=["latest", "looked up"])
def test_a_schema_that_the_registry_finds_in_another_context_is_refused(
    column: str,
    is_given: bool,  # noqa: FBT001 - a parameter of the test
    server: RegistryServer,
) -> None:
    found_in = f":.lsrc-abc:t-{column}"
    answer = {"subject": found_in, "version": 1, "id": 100004, "schema": DERIVED}
    server.fault = lambda _: Reply(200, answer)
    options = {"valueFormat": "", f"{column}Format": "avro"}
    if is_given:
        options |= {f"{column}Schema": DERIVED, "auto_register_schemas": "false"}
    schema = rows() if column == "value" else rows(T.StringType(), ORDER)
    with pytest.raises(ConfigException) as refused:
        asked(server, schema, options)
    assert str(refused.value) == (
        f"the registry found no schema in subject 't-{column}', but one in '{found_in}', which is "
        f"another context: set {column}Subject to '{found_in}', or register a schema in "
        f"'t-{column}'"
    )
    # With that subject, the id is that of its context. An alias is another name in one context.
    for subject, of_answer in ((found_in, found_in), ("t", "alias"), (":.:t", "t")):
        answer["subject"] = of_answer
        (found,) = asked(server, schema, {**options, f"{column}Subject": subject}).encodings
        assert found.prefix == schema_id_prefix(100004)
    if is_given:
        # Registering a schema puts it into the context of its subject.
        answer["subject"] = found_in
        asked(server, schema, {**options, "auto_register_schemas": "true"})
        assert server.asked()[-1] == f"POST /subjects/t-{column}/versions"


@pytest.mark.parametrize(
    "path", ["/contexts/.sales", "/contexts/:.sales:/", "/contexts/%3A.sales%3A"]
)
@pytest.mark.parametrize("is_given", [False, True])
def test_a_url_may_name_the_context_of_its_subjects(
    path: str,
    is_given: bool,  # noqa: FBT001 - a parameter of the test
    server: RegistryServer,
) -> None:
    answer = {"subject": ":.sales:t-value", "version": 1, "id": 7, "schema": DERIVED}
    server.fault = lambda _: Reply(200, answer)
    options = {"schema_registry_url": server.url + path}
    if is_given:
        options |= {"valueSchema": DERIVED, "auto_register_schemas": "false"}
    (found,) = asked(server, rows(), options).encodings
    assert found.prefix == schema_id_prefix(7)
    # The rules of that version count.
    answer["ruleSet"] = {"domainRules": [{"name": "encrypt"}]}
    with pytest.raises(DataException, match="has a ruleSet"):
        asked(server, rows(), options)
    answer["subject"] = ":.stock:t-value"
    with pytest.raises(ConfigException, match="which is another context"):
        asked(server, rows(), options | {"auto_register_schemas": "false"})


ID = {"type": "record", "name": "com.Id", "fields": [{"name": "n", "type": "int"}]}
ID_TYPE = T.StructType().add("n", T.IntegerType())
USES_ID = json.dumps(
    {"type": "record", "name": "com.R", "fields": [{"name": "id", "type": "com.Id"}]}
)
INLINE = USES_ID.replace('"com.Id"', json.dumps(ID))
OF_ID = {"name": "com.Id", "subject": "ids", "version": 1}
REFERENCES = json.dumps([OF_ID])


def test_a_schema_that_is_given_has_references(server: RegistryServer) -> None:
    server.add("ids", ID)
    kind = T.StructType().add("id", ID_TYPE, nullable=False)
    given = {
        "valueSchema": USES_ID,
        "valueReferences": REFERENCES,
        "value_subject_name_strategy": "RecordNameStrategy",
    }
    version = "GET /subjects/ids/versions/1"
    assert asked(server, rows(kind), given).encodings == (encoding(INLINE, 2, kind),)
    latest = "GET /subjects/com.R/versions/latest"
    assert server.asked() == [version, latest, "POST /subjects/com.R/versions"]
    assert server.schemas[2]["references"] == json.loads(REFERENCES)
    # Without registering, it is looked up with its references.
    found = asked(server, rows(kind), given, auto_register_schemas="false")
    assert found.encodings == (encoding(INLINE, 2, kind),)
    assert server.asked() == [version, latest]
    # As the latest version of a subject, it needs no option.
    assert asked(server, rows(kind), valueSubject="com.R").encodings == (encoding(INLINE, 2, kind),)
    # A schema that keys and values reference is fetched once.
    given |= {"keyFormat": "avro", "keySchema": USES_ID, "keyReferences": REFERENCES}
    server.asked()
    key, value = asked(server, rows(kind, kind), given).encodings
    assert key.prefix == value.prefix == schema_id_prefix(2)
    assert server.asked() == [version, KEY_LATEST, latest, KEY_REGISTER]


def test_one_schema_for_each_name_of_a_reference_is_used(server: RegistryServer) -> None:
    kind = (
        T.StructType()
        .add("customer", T.StructType().add("id", ID_TYPE, nullable=False), nullable=False)
        .add("id", ID_TYPE, nullable=False)
    )
    fields = [{"name": "customer", "type": "com.Customer"}, {"name": "id", "type": "com.Id"}]
    order = {"type": "record", "name": "com.Order", "fields": fields}
    for subject in ("ids", "same-ids"):
        server.add(subject, ID)
    server.add("customers", USES_ID.replace("com.R", "com.Customer"), references=[OF_ID])
    of_customer = {"name": "com.Customer", "subject": "customers", "version": 1}
    server.add("t-value", order, references=[of_customer, {**OF_ID, "subject": "same-ids"}])
    (found,) = asked(server, rows(kind)).encodings
    assert not isinstance(found.plan, JsonPlan)
    data = pa.array([{"customer": {"id": {"n": 1}}, "id": {"n": -2}}])
    column = data.cast(
        pa.struct(
            [
                ("customer", pa.struct([("id", pa.struct([("n", pa.int32())]))])),
                ("id", pa.struct([("n", pa.int32())])),
            ]
        )
    )
    written = encode_avro(found.plan, column, found.prefix).array.to_pylist()
    assert list(map(avro_reader(server, "t"), written)) == data.to_pylist()
    # Two names may stand for one version, but two versions may not define one record.
    also_id = {**OF_ID, "name": "Id"}
    server.add("t-value", order, references=[of_customer, also_id])
    assert asked(server, rows(kind)).encodings[0].plan == found.plan
    also_id["subject"] = "same-ids"
    server.add("t-value", order, references=[of_customer, also_id])
    with pytest.raises(ConfigException) as refused:
        asked(server, rows(kind))
    assert str(refused.value) == (
        "the latest version of subject 't-value' is not valid: Avro schema: version 1 of subject "
        "'same-ids': found a second definition of com.Id, expected each name once"
    )


def test_a_reference_to_nothing_and_a_misfit_register_nothing(server: RegistryServer) -> None:
    given = {"valueSchema": USES_ID, "valueReferences": REFERENCES}
    kind = T.StructType().add("id", ID_TYPE)
    with pytest.raises(
        DataException, match=r"the schema references com\.Id, but the schema registry"
    ):
        asked(server, rows(kind), given)
    server.add("ids", ID)
    misfit = T.StructType().add("id", T.StringType())
    with pytest.raises(DataException, match=r"column value\.id is of type string"):
        asked(server, rows(misfit), given)
    with pytest.raises(
        ConfigException, match=r"option valueSchema: .* 'com\.Id', which is not def"
    ):
        asked(server, rows(kind), valueSchema=USES_ID)
    assert list(server.subjects) == ["ids"]


def test_a_stream_with_other_references_asks_again(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kept_schemas, "driver_folder", lambda: tmp_path)
    server.add("ids", ID)
    server.add("ids", {**ID, "fields": [{"name": "n", "type": "long"}]})
    kind = T.StructType().add("id", ID_TYPE, nullable=False)
    given = {"valueSchema": USES_ID, "valueReferences": REFERENCES}
    first = batch(server, rows(kind), given)
    assert batch(server, rows(kind), given) == first
    # As in a new process.
    monkeypatch.setattr(kept_schemas, "_kept", CheckCache())
    assert batch(server, rows(kind), given) == first
    assert server.asked() == ["GET /subjects/ids/versions/1", LATEST, REGISTER]
    given["valueReferences"] = REFERENCES.replace("1", "2")
    assert batch(server, rows(kind), given).prefix == schema_id_prefix(4)


HEADER = {
    "value_schema_id_serializer": "io.confluent.kafka.serializers.schema.id.HeaderSchemaIdSerializer"
}
OPTIONS_BY_CALL: dict[str, tuple[dict[str, str], str]] = {
    "derived": ({}, REGISTER),
    "given": ({"valueSchema": DERIVED}, REGISTER),
    "latest": ({}, LATEST),
    "looked up": ({"valueSchema": DERIVED, "auto_register_schemas": "false"}, LOOKUP),
    "by id": ({"use_schema_id": "1"}, "GET /schemas/ids/1"),
}


@pytest.mark.parametrize("name", OPTIONS_BY_CALL)
def test_a_header_has_the_guid_in_place_of_the_prefix(name: str, server: RegistryServer) -> None:
    options, call = OPTIONS_BY_CALL[name]
    server.has_guids = True
    if call != REGISTER:
        server.add("t-value", DERIVED)
    if call == LOOKUP:
        server.add("t-value", HAND_MADE)
    (found,) = asked(server, more={**options, **HEADER}).encodings
    assert server.asked()[-1] == call
    guid = uuid.UUID(guid_of(1))
    assert (found.prefix, found.header) == (b"", ("__value_schema_id", b"\1" + guid.bytes))
    if call == LOOKUP:
        return
    # It is decided for each of the two columns.
    key, value = asked(server, rows(key=ORDER), {"keyFormat": "avro", **HEADER}).encodings
    assert (key.prefix, key.header) == (schema_id_prefix(2), None)
    assert value == found


@pytest.mark.parametrize("options", [{}, HEADER], ids=["prefix", "header"])
def test_rows_that_were_read_with_the_header_of_an_old_schema_are_read_by_the_new_one(
    options: dict[str, str], server: RegistryServer
) -> None:
    server.has_guids = True
    server.add("elsewhere", '"int"')
    of_value = ("__value_schema_id", b"\1" + uuid.UUID(guid_of(1)).bytes)
    given = [("own", b"1"), of_value, ("own", b"2")]
    row = {"id": 7, "name": "of the new schema"}
    kind = pa.struct([("id", pa.int64()), ("name", pa.string())])
    columns = {
        "value": pa.array([row, None], kind),
        "headers": pa.array([given] * 2, pa.map_(pa.string(), pa.binary())),
    }
    encoded = encode_rows(pa.record_batch(columns), asked(server, more=options).encodings).batch
    read = avro_reader(server, "t")
    headers = [header_pairs(each) for each in encoded.column("headers")]
    assert read(encoded.column("value")[0].as_py(), headers[0]) == row
    own = [("own", b"1"), ("own", b"2")]
    assert [each for each in headers[0] if each[0] == "own"] == own
    assert encoded.column("value")[1].as_py() is None
    assert headers[1] == own


@pytest.mark.parametrize("options", [{}, HEADER], ids=["prefix", "header"])
def test_brokers_are_checked_for_headers_that_tasks_add(
    options: dict[str, str], server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bool] = []

    def check_cluster(given: SinkOptions, *, has_headers: bool, may_remember: bool) -> SinkOptions:
        assert not may_remember
        checked.append(has_headers)
        return given

    monkeypatch.setattr(datasource, "check_cluster", check_cluster)
    server.has_guids = True
    given = {
        "kafka.bootstrap.servers": "b:1",
        "topic": "t",
        "valueFormat": "avro",
        "schema.registry.url": server.url,
        **{name.replace("_", "."): value for name, value in options.items()},
    }
    datasource.check_batch_write(rows(), given)
    assert checked == [bool(options)]


BYTES_ALONE: dict[str, tuple[object, T.DataType, pa.Array, list[bytes]]] = {
    "binary": ('"bytes"', T.BinaryType(), pa.array([b"ab", b"a"]), [b"ab", b"a"]),
    "text": ('"bytes"', T.StringType(), pa.array(["é", "a"]), ["é".encode(), b"a"]),
    "decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        T.DecimalType(4, 2),
        pa.array([Decimal("12.34"), Decimal("-0.01")], pa.decimal128(4, 2)),
        [b"\x04\xd2", b"\xff"],
    ),
    "long decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38},
        T.DecimalType(38, 0),
        pa.array([Decimal(2**64), Decimal(-1)], pa.decimal128(38, 0)),
        [b"\1" + bytes(8), b"\xff"],
    ),
}


@pytest.mark.parametrize("name", BYTES_ALONE)
def test_bytes_that_are_the_whole_value_have_no_length(name: str, server: RegistryServer) -> None:
    schema, kind, column, expected = BYTES_ALONE[name]
    server.add("t-value", schema)
    (found,) = asked(server, rows(kind)).encodings
    assert not isinstance(found.plan, JsonPlan)
    written = encode_avro(found.plan, column, found.prefix).array.to_pylist()
    # Confluent's clients return these bytes as they are, also those of a decimal.
    assert list(map(avro_reader(server, "t"), written)) == expected


def test_two_jobs_that_register_at_once_write_with_one_id(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_have_asked = threading.Barrier(2, timeout=60)

    def register_after_both_have_asked(*arguments: Any) -> ChosenSchema:  # noqa: ANN401 - handed on
        both_have_asked.wait()
        return registered(*arguments)

    monkeypatch.setattr(registry_questions, "registered", register_after_both_have_asked)
    given = {"kafka.bootstrap.servers": "b:1", "topic": "t", "valueFormat": "avro"}
    source = KafkaDataSource({**given, "schema.registry.url": server.url})
    jobs = [source.check(rows())[0] for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        written = pool.map(
            lambda job: with_registered_encodings(job, rows(), may_remember=False), jobs
        )
        assert [each.encodings for each in written] == [(encoding(DERIVED, 1),)] * 2
    assert server.asked() == [LATEST, LATEST, REGISTER, REGISTER]
    assert server.subjects == {"t-value": [1]}


@pytest.mark.parametrize(("status", "then"), [(500, REGISTER), (409, LOOKUP)])
def test_a_registry_that_is_busy_with_another_registration_is_asked_again(
    status: int, then: str, server: RegistryServer
) -> None:
    def conflict(call: Call) -> Reply | None:
        """Register the schema for another job when this one does."""
        if str(call) != REGISTER or server.subjects:
            return None
        server.add("t-value", DERIVED)
        return Reply(status, {"error_code": status}, {"Retry-After": "0"})

    server.fault = conflict
    assert asked(server).encodings == (encoding(DERIVED, 1),)
    assert server.asked() == [LATEST, REGISTER, then]
    assert server.subjects == {"t-value": [1]}


def test_normalize_is_asked_for(server: RegistryServer) -> None:
    asked(server, normalize_schemas="true")
    assert [call.query for call in server.calls] == [{}, {"normalize": ["true"]}]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, str], type[Exception], str]] = {
    "rules": ({"schema": HAND_MADE, "ruleSet": {"domainRules": [{"kind": "TRANSFORM"}]}}, {}, DataException, "the latest version of subject 't-value' has a ruleSet, which is not supported"),
    "another type": ({"schema": "{}", "schemaType": "JSON"}, {}, DataException, "the latest version of subject 't-value' is of type JSON: expected AVRO"),
    "misfit": ({"schema": '"long"'}, {}, DataException, "column value is of type struct, and the Avro schema expects long there"),
    "field without a column": ({"schema": HAND_MADE.replace(', "default": "spark"', "")}, {}, DataException, "the data has no column value.source"),
    "no schema": ({"schema": '{"type": "recor"}'}, {}, ConfigException, "the latest version of subject 't-value' is not valid: Avro schema: the schema: found 'recor'"),
    "no subject": ({}, {"use_latest_version": "true"}, ConfigException, "use.latest.version is true, but the registry has no subject 't-value'"),
    "no subject, no type to derive": ({}, {"use_latest_version": "true", "kind": "interval"}, ConfigException, "no subject 't-value': register a schema, or remove the option"),
    "void": ({}, {"valueSubject": "u", "kind": "void"}, DataException, "column value is of type void, for which no Avro schema can be derived: cast it to another type"),
    "subject of a key": ({}, {"keySubject": "k"}, ConfigException, "option keySubject has no effect: set keyFormat, or remove it"),
    "strategy of a key": ({}, {"key_subject_name_strategy": "RECORD"}, ConfigException, "option key.subject.name.strategy has no effect: set keyFormat, or remove it"),
    "header of a key": ({}, {"key_schema_id_serializer": "HeaderSchemaIdSerializer"}, ConfigException, "option key.schema.id.serializer has no effect: set keyFormat, or remove it"),
    "prefix of a key": ({}, {"key_schema_id_serializer": "PrefixSchemaIdSerializer"}, ConfigException, "option key.schema.id.serializer has no effect: set keyFormat, or remove it"),
    "subject of a value": ({}, {"valueFormat": "", "keyFormat": "avro", "valueSubject": "v"}, ConfigException, "option valueSubject has no effect: set valueFormat, or remove it"),
    "strategy of a value": ({}, {"valueFormat": "", "keyFormat": "avro", "value_subject_name_strategy": "RECORD"}, ConfigException, "option value.subject.name.strategy has no effect: set valueFormat, or remove it"),
    "header of a value": ({}, {"valueFormat": "", "keyFormat": "avro", "value_schema_id_serializer": "HeaderSchemaIdSerializer"}, ConfigException, "option value.schema.id.serializer has no effect: set valueFormat, or remove it"),
    "no type to derive": ({}, {"valueSubject": "u", "kind": "interval"}, DataException, "column value is of type interval"),
    "no format": ({}, {"valueFormat": ""}, ConfigException, "option schema.registry.url has no effect: set valueFormat or keyFormat"),
    "references alone": ({}, {"valueReferences": REFERENCES}, ConfigException, "option valueReferences has no effect: set valueSchema, or remove it"),
    "no guid": ({"schema": HAND_MADE}, HEADER, ConfigException, "option value.schema.id.serializer is HeaderSchemaIdSerializer, but the schema registry did not return the GUID of the schema"),
    "no valid guid": ({"schema": HAND_MADE, "guid": "x"}, HEADER, ConfigException, "option value.schema.id.serializer is HeaderSchemaIdSerializer, but the schema registry did not return the GUID of the schema"),
    "schema and latest": ({}, {"valueSchema": HAND_MADE, "use_latest_version": "true"}, ConfigException, "both valueSchema and use.latest.version choose a schema"),
    "schema and id": ({}, {"valueSchema": HAND_MADE, "use_schema_id": "1"}, ConfigException, "both valueSchema and use.schema.id choose a schema"),
    "topic column": ({}, {"topic": ""}, ConfigException, "TopicNameStrategy names the subject of column value after the topic, but the rows have a topic column: set the option topic, valueSubject, or value.subject.name.strategy to RecordNameStrategy"),
    "topic column and record": ({}, {"topic": "", "value_subject_name_strategy": "TOPIC_RECORD"}, ConfigException, "TopicRecordNameStrategy names the subject"),
    "no name in a schema": ({}, {"value_subject_name_strategy": "RECORD", "valueSchema": '"string"', "kind": "string"}, ConfigException, "which needs the name of the record in column value: set valueSubject, because the schema has no name"),
    "no name to derive": ({}, {"value_subject_name_strategy": "RECORD", "kind": "string"}, ConfigException, "which needs the name of the record in column value: set valueSubject, because the schema has no name"),
    "no name of an array": ({}, {"value_subject_name_strategy": "RECORD", "recordName": "Order", "kind": "array"}, ConfigException, "which needs the name of the record in column value: set valueSubject, because the schema has no name"),
    "no name": ({}, {"value_subject_name_strategy": "RECORD"}, ConfigException, "value.subject.name.strategy is RecordNameStrategy, which needs the name of the record in column value: set recordName or valueSchema"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_and_nothing_is_registered(
    name: str, server: RegistryServer
) -> None:
    version, options, kind, words = REFUSED[name]
    options = dict(options)
    value: T.DataType = T.StringType() if options.get("valueFormat") == "" else ORDER
    kinds = {
        "interval": T.DayTimeIntervalType(),
        "string": T.StringType(),
        "void": T.NullType(),
        "array": T.ArrayType(ORDER),
    }
    value = kinds.get(options.pop("kind", ""), value)
    if version:
        server.add("t-value", **version)
    there = {subject: list(ids) for subject, ids in server.subjects.items()}
    schema = rows(value, T.StringType() if "keyFormat" in options else None)
    with pytest.raises(kind) as refused:
        asked(server, schema.add("topic", T.StringType()), more=options)
    assert words in str(refused.value)
    # In a traceback of Spark, the sink's exceptions are recognized by this module.
    assert refused.type.__module__ == errors.__name__
    assert server.subjects == there


def test_errors_of_the_registry_are_raised(server: RegistryServer) -> None:
    server.is_compatible = lambda new, old: False
    server.add("t-value", '"int"')
    with pytest.raises(RestClientException, match="incompatible with an earlier version"):
        asked(server, valueSchema=HAND_MADE)
    server.mode = "READONLY"
    with pytest.raises(RestClientException, match="error code 42205"):
        asked(server, valueSchema=HAND_MADE)


def test_tasks_get_neither_url_nor_secret(server: RegistryServer) -> None:
    found = pickle.dumps(asked(server, basic_auth_user_info="user-x:s3cret"))
    assert server.calls[0].headers["authorization"]
    for secret in (b"s3cret", b"user-x", server.url.encode(), b"127.0.0.1"):
        assert secret not in found
    assert schema_id_prefix(1) in found


def test_a_writer_that_only_commits_has_neither_url_nor_secret() -> None:
    given = {
        "kafka.bootstrap.servers": "b:1",
        "topic": "t",
        "valueFormat": "avro",
        "schema.registry.url": "http://registry.invalid",
        "basic.auth.user.info": "user-x:s3cret",
        "checkpointLocation": "/checkpoints/c",
    }
    for more in ({}, {"exactlyOnce": "true"}):
        copy = pickle.loads(pickle.dumps(KafkaDataSource({**given, **more})))
        found = pickle.dumps(copy.streamWriter(rows(), overwrite=False))
        assert not any(secret in found for secret in (b"s3cret", b"registry.invalid"))


@pytest.mark.parametrize("exactly_once", ["false", "true"])
@pytest.mark.parametrize("url", ["", "http://registry.invalid"])
def test_a_writer_that_only_commits_reads_no_schema(
    url: str, exactly_once: str, tmp_path: Path
) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(HAND_MADE)
    given = {
        "kafka.bootstrap.servers": "b:1",
        "topic": "t",
        "valueFormat": "avro",
        "valueSchema": str(file),
        "exactlyOnce": exactly_once,
        "checkpointLocation": "/checkpoints/c",
        **({"schema.registry.url": url} if url else {}),
    }
    planned = KafkaDataSource(given)
    copy = pickle.loads(pickle.dumps(planned))
    for change in (lambda: file.write_text('"long"'), lambda: file.write_text("{"), file.unlink):
        change()
        # A check before the rows fails, and the commit of rows that are in Kafka does not.
        with pytest.raises((ConfigException, DataException)):
            planned.check_stream(rows())
        writer = copy.streamWriter(rows(), overwrite=False)
        writer.abort([], 7)
        if exactly_once == "false":
            writer.commit([], 7)


# -- streams --------------------------------------------------------------------------------------


def batch(
    server: RegistryServer,
    schema: T.StructType | None = None,
    more: Mapping[str, str] | None = None,
    **options: str,
) -> ColumnEncoding:
    """Return how the value of a micro-batch is encoded."""
    (found,) = asked(server, schema, {**(more or {}), **options}, may_remember=True).encodings
    return found


def test_a_stream_asks_again_at_most_every_ttl(
    server: RegistryServer, clock: SimpleNamespace
) -> None:
    server.add("t-value", DERIVED)
    ttl = {"latest_cache_ttl_sec": "60"}
    first = batch(server, more=ttl)
    clock.now += 59
    assert batch(server, more=ttl) == first
    assert server.asked() == [LATEST]
    server.add("t-value", HAND_MADE)
    assert batch(server, more=ttl) == first
    clock.now += 1
    assert batch(server, more=ttl) == encoding(HAND_MADE, 2)
    assert server.asked() == [LATEST]
    # Without a limit, it never asks again.
    clock.now += 1e9
    assert batch(server) == encoding(HAND_MADE, 2)
    assert server.asked() == []
    # A batch job asks each time, and streams use what it got.
    server.add("t-value", DERIVED)
    asked(server, more=ttl)
    assert server.asked() == [LATEST]
    assert batch(server) == first
    assert server.asked() == []


def test_a_schema_of_the_options_is_asked_for_once(
    server: RegistryServer, clock: SimpleNamespace
) -> None:
    options = {"valueSchema": HAND_MADE, "latest_cache_ttl_sec": "0"}
    first = batch(server, more=options)
    clock.now += 1e6
    assert batch(server, more=options) == first
    assert server.asked() == [LATEST, REGISTER]
    assert batch(server, use_schema_id="1", latest_cache_ttl_sec="0") == first
    clock.now += 1e6
    assert batch(server, use_schema_id="1", latest_cache_ttl_sec="0") == first
    assert server.asked() == ["GET /schemas/ids/1"]


def test_a_stream_survives_a_registry_that_is_away(
    server: RegistryServer, clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    ttl = {"latest_cache_ttl_sec": "60"}
    first = batch(server, more=ttl)
    server.asked()
    clock.now += 60
    server.fault = lambda call: error(401, 401, "Unauthorized")
    with caplog.at_level(logging.WARNING):
        assert batch(server, more=ttl) == first
        assert batch(server, more=ttl) == first
    # It asks again only after the time has passed once more.
    assert server.asked() == [LATEST]
    assert "column value is still written with the schema that has id 1" in caplog.text
    clock.now += 60
    server.fault = lambda call: None
    server.add("t-value", HAND_MADE)
    assert batch(server, more=ttl) == encoding(HAND_MADE, 2)


def test_a_stream_survives_a_file_that_is_away_for_a_moment(
    server: RegistryServer, clock: SimpleNamespace, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Secrets in files are replaced while a stream runs."""
    secret, away = tmp_path / "secret", tmp_path / "away"
    secret.write_text("user=user:s3cret")
    given = {
        "basic_auth_user_info": f"${{file:{secret}:user}}",
        "kafka.config.providers": "file",
        "kafka.config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        "latest_cache_ttl_sec": "60",
    }
    secret.rename(away)
    with pytest.raises(ConfigException, match="cannot be read"):
        batch(server, more=given)
    away.rename(secret)
    first = batch(server, more=given)
    secret.rename(away)
    server.asked()
    clock.now += 60
    with caplog.at_level(logging.WARNING):
        assert batch(server, more=given) == first
    assert "column value is still written with the schema that has id 1" in caplog.text
    assert server.asked() == []
    away.rename(secret)
    clock.now += 60
    server.add("t-value", HAND_MADE)
    assert batch(server, more=given) == encoding(HAND_MADE, 2)


def test_a_new_version_that_does_not_fit_ends_no_stream(
    server: RegistryServer, clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    ttl = {"latest_cache_ttl_sec": "60"}
    first = batch(server, more=ttl)
    server.add("t-value", '"long"')
    clock.now += 60
    with caplog.at_level(logging.WARNING):
        assert batch(server, more=ttl) == first
    assert "because no newer one can be used: column value is of type struct" in caplog.text
    with pytest.raises(DataException, match="column value is of type struct"):
        asked(server, more=ttl)


def test_a_new_version_with_rules_ends_a_stream(
    server: RegistryServer, clock: SimpleNamespace
) -> None:
    ttl = {"latest_cache_ttl_sec": "60"}
    batch(server, more=ttl)
    server.add("t-value", DERIVED, ruleSet={"domainRules": [{"kind": "TRANSFORM"}]})
    for _ in range(2):
        clock.now += 60
        with pytest.raises(DataException, match="the latest version of subject 't-value' has a ru"):
            batch(server, more=ttl)
    # Empty lists are no rules.
    new = server.add("t-value", HAND_MADE, ruleSet={"domainRules": [], "migrationRules": []})
    assert batch(server, more=ttl) == encoding(HAND_MADE, new)


@pytest.mark.parametrize(
    "refusal", [error(403, 40301, "denied"), error(422, 42205, "read-only"), error(409, 409, "no")]
)
def test_a_stream_goes_on_if_a_lost_subject_cannot_be_registered_again(
    refusal: Reply, server: RegistryServer, clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    ttl = {"latest_cache_ttl_sec": "60"}
    first = batch(server, more=ttl)
    server.subjects.clear()
    server.asked()
    clock.now += 60
    server.fault = lambda call: refusal if call.method == "POST" else None
    with caplog.at_level(logging.WARNING):
        assert batch(server, more=ttl) == first
        assert server.asked()[:2] == [LATEST, REGISTER]
        # It asks again only after the time has passed once more.
        assert batch(server, more=ttl) == first
        assert server.asked() == []
    assert "column value is still written with the schema that has id 1" in caplog.text
    with pytest.raises(RestClientException, match="cannot register a schema in subject 't-value'"):
        asked(server, more=ttl)


def test_a_stream_that_is_started_again_keeps_its_schema(
    server: RegistryServer, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasource, "check_cluster", lambda options, **_: options)
    given = {
        "kafka.bootstrap.servers": "b:1",
        "topic": "t",
        "valueFormat": "avro",
        "schema.registry.url": server.url,
        "latest.cache.ttl.sec": "60",
        "checkpointLocation": "/checkpoints/c",
    }

    def started() -> None:
        """Start a stream as after register: its check, and then a micro-batch."""
        datasource.check_stream_write(rows(), {**given, "pykafka.write.id": uuid.uuid4().hex})
        KafkaDataSource(given).streamWriter(rows(), overwrite=False)

    server.add("t-value", DERIVED)
    started()
    clock.now += 59
    # A newer version moves neither the new stream nor the one that runs.
    server.add("t-value", HAND_MADE)
    started()
    assert server.asked() == [LATEST]
    server.fault = lambda call: Reply(503, {}, {"Retry-After": "0"})
    started()
    assert server.asked() == []
    clock.now += 1
    started()
    assert set(server.asked()) == {LATEST}
    assert batch(server, latest_cache_ttl_sec="60") == encoding(DERIVED, 1)
    # Without a schema from before, a stream does not start.
    given["topic"] = "u"
    with pytest.raises(RestClientException, match="after 4 attempts"):
        started()


def test_rows_of_another_type_are_asked_for_again(
    server: RegistryServer, clock: SimpleNamespace
) -> None:
    batch(server)
    wider = T.StructType(list(ORDER.fields)).add("source", T.StringType())
    server.asked()
    with pytest.raises(DataException, match=r"column value\.source has no field in record Value"):
        batch(server, rows(wider))
    server.add("t-value", HAND_MADE)
    assert batch(server, rows(wider)) == encoding(HAND_MADE, 2, wider)
    assert server.asked() == [LATEST, LATEST]


def test_writes_of_other_columns_with_equal_options_change_no_schema_of_a_stream(
    server: RegistryServer, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kept_schemas, "driver_folder", lambda: tmp_path)
    others = rows(T.LongType())
    server.add("t-value", DERIVED)
    first = batch(server)
    server.add("t-value", '"long"')
    # Another stream, and then a batch job.
    second = batch(server, others)
    assert asked(server, others).encodings == (second,)
    assert server.asked() == [LATEST] * 3
    assert [batch(server), batch(server, others)] == [first, second]
    # As in a new process.
    monkeypatch.setattr(kept_schemas, "_kept", CheckCache())
    assert [batch(server), batch(server, others)] == [first, second]
    assert server.asked() == []


def test_a_column_that_may_be_null_now_is_not_asked_for_again(
    server: RegistryServer, clock: SimpleNamespace
) -> None:
    def order(*, has_nulls: bool) -> T.StructType:
        item = T.StructType().add("price", T.LongType(), nullable=has_nulls)
        return (
            T.StructType()
            .add("items", T.ArrayType(item, containsNull=has_nulls), nullable=has_nulls)
            .add("notes", T.MapType(T.StringType(), T.DateType(), valueContainsNull=has_nulls))
        )

    of_rows = [T.StructType().add("value", order(has_nulls=each), each) for each in (True, False)]
    assert batch(server, of_rows[0]) == batch(server, of_rows[1])
    assert server.asked() == [LATEST, REGISTER]


def test_a_write_that_is_planned_twice_asks_once(server: RegistryServer) -> None:
    first, second = ({"pykafka.write.id": each} for each in ("w1", "w2"))
    schema = rows(key=T.LongType())
    found = [asked(server, schema, first, keyFormat="avro").encodings for _ in range(2)]
    assert found[0] == found[1]
    assert server.asked() == [KEY_LATEST, LATEST, KEY_REGISTER, REGISTER]
    assert asked(server, schema, second, keyFormat="avro").encodings == found[0]
    assert len(server.asked()) == 2
    # A write, with or without an id, does not use the choice of a micro-batch.
    batch(server)
    for each in ({"pykafka.write.id": "w3"}, {}):
        asked(server, more=each)
        assert server.asked() == [LATEST]


@pytest.mark.parametrize("has_folder", [True, False])
def test_writes_with_equal_options_that_are_planned_at_once_ask_once_each(
    has_folder: bool,  # noqa: FBT001 - a parameter of the test
    server: RegistryServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(kept_schemas, "driver_folder", lambda: tmp_path if has_folder else None)
    writes = [{"pykafka.write.id": f"w{number}"} for number in range(30)]
    found = [asked(server, more=each).encodings for each in writes]
    assert server.asked() == [LATEST, REGISTER, *[LATEST] * 29]
    if has_folder:
        # As in a new process.
        monkeypatch.setattr(kept_schemas, "_kept", CheckCache())
    assert [asked(server, more=each).encodings for each in writes] == found
    assert server.asked() == []
    # A stream uses what the last one of them got, and the oldest schemas are dropped.
    server.add("t-value", HAND_MADE)
    asked(server, more={"pykafka.write.id": "new"})
    assert server.asked() == [LATEST]
    assert batch(server) == encoding(HAND_MADE, 2)
    assert asked(server, more=writes[1]).encodings == found[1]
    assert server.asked() == []
    asked(server, more=writes[0])
    assert server.asked() == [LATEST]


def test_the_brokers_credentials_count_if_the_registry_inherits_them(
    server: RegistryServer, clock: SimpleNamespace
) -> None:
    def stream(user: str, more: Mapping[str, str]) -> ColumnEncoding:
        login = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"}
        login |= {"kafka.sasl.username": user, "kafka.sasl.password": "of-the-user"}
        return batch(server, more={**login, **more})

    server.add("t-value", DERIVED)
    inherited = {"basic_auth_credentials_source": "SASL_INHERIT"}
    for _ in range(2):
        stream("first", inherited)
    assert server.asked() == [LATEST]
    stream("second", inherited)
    assert server.asked() == [LATEST]
    for user in ("first", "second"):
        stream(user, {})
    assert server.asked() == [LATEST]


def test_other_processes_of_the_driver_know_it(
    server: RegistryServer, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kept_schemas, "driver_folder", lambda: tmp_path)
    first = batch(server, basic_auth_user_info="user-x:s3cret")
    # As in a new process.
    monkeypatch.setattr(kept_schemas, "_kept", CheckCache())
    assert batch(server, basic_auth_user_info="user-x:s3cret") == first
    assert server.asked() == [LATEST, REGISTER]
    (file,) = tmp_path.iterdir()
    assert not any(secret in file.read_text() for secret in ("s3cret", "user-x", server.url))
    server.has_guids = True
    headers = batch(server, more=HEADER)
    server.asked()
    monkeypatch.setattr(kept_schemas, "_kept", CheckCache())
    assert batch(server, more=HEADER) == headers
    assert server.asked() == []
    # Other credentials may see other schemas.
    batch(server, basic_auth_user_info="user-x:other")
    assert server.asked() == [LATEST]
    references: list[list[object]] = [[5], ["x"], ["ab"], [[5, "x"]]]
    wrong = [json.dumps([[DERIVED, 1, "", each, 1e9, "", ""]]) for each in references]
    for damaged in ("", "[]", "{}", "5", '["x"]', "\x00", *wrong):
        monkeypatch.setattr(kept_schemas, "_kept", CheckCache())
        for each in tmp_path.iterdir():
            each.write_text(damaged)
        assert batch(server) == first
        assert len(server.asked()) == 1
