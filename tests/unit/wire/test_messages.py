"""The message classes say what Kafka's own schemas say, version by version."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias
from uuid import UUID

from support.oracles.kafka_schemas import MessageSchema, SchemaField
from support.oracles.wire_messages import (
    EVERY_API,
    class_beside,
    request_schema,
    response_schema,
    versions,
)

from spark_kafka_sink.wire import (
    admin_messages,
    delegation_token_messages,
    describe_messages,
    fetch_messages,
    message_codecs,
    messages,
    transaction_messages,
)
from spark_kafka_sink.wire.messages import APIS, PRODUCE, Api
from spark_kafka_sink.wire.primitives import Records

# name, type, whether an array, whether nullable, tag, fields of a struct
Described: TypeAlias = tuple[str, str, bool, bool, int | None, list[Any]]

_INTEGERS = {"?": "bool", "b": "int8", "h": "int16", "i": "int32", "q": "int64"}
_TYPES: dict[object, str] = {str: "string", UUID: "uuid", Records: "records", memoryview: "records"}
_TYPES[bytes] = "bytes"

_MODULES = (
    *(messages, fetch_messages, transaction_messages, describe_messages, admin_messages),
    delegation_token_messages,
)


# Fields that may be null in responses of servers that are not Apache Kafka.
_NULL_ELSEWHERE = {(transaction_messages.FindCoordinatorResponse, "host")}


def _messages(api: Api) -> list[tuple[type[Any], MessageSchema]]:
    return [(api.request, request_schema(api)), (api.response, response_schema(api))]


def _ours(cls: type[Any], version: int) -> list[Described]:
    described: list[Described] = []
    for field in message_codecs.fields_of(cls, version):
        letter = None if field.letter is None else _INTEGERS[field.letter]
        primitive = letter or _TYPES.get(field.wire_type)
        kind = primitive or field.wire_type.__name__
        inner = [] if primitive else _ours(field.wire_type, version)
        nullable = field.nullable and (cls, field.name) not in _NULL_ELSEWHERE
        described.append((field.name, kind, field.is_array, nullable, field.tag, inner))
    return described


def _theirs(fields: tuple[SchemaField, ...], version: int) -> list[Described]:
    return [
        (
            field.name,
            field.kind,
            field.is_array,
            field.is_nullable_in(version),
            field.tag,
            _theirs(field.fields, version),
        )
        for field in fields
        if field.exists_in(version)
    ]


def _structs(cls: type[Any], fields: tuple[SchemaField, ...]) -> list[tuple[type[Any], Any]]:
    """List a message class and all classes inside it, with the schema's fields of each."""
    known = {field.name for field in dataclasses.fields(cls)}
    found: list[tuple[type[Any], Any]] = [(cls, fields)]
    for field in fields:
        # Structs that exist only in versions that are not spoken have no class.
        if field.is_struct and field.name in known:
            found += _structs(class_beside(cls, field.kind), field.fields)
    return found


@EVERY_API
def test_every_field_of_every_version_is_that_of_the_schema_in_the_same_order(api: Api) -> None:
    for cls, theirs in _messages(api):
        assert cls.__name__ == theirs.name
        for version in versions(api):
            assert (version, _ours(cls, version)) == (version, _theirs(theirs.fields, version))


@EVERY_API
def test_keys_version_ranges_and_the_first_flexible_version_are_those_of_the_schema(
    api: Api,
) -> None:
    for _, theirs in _messages(api):
        assert api.key == theirs.api_key
        # A message that is flexible in no version is so in none that is spoken.
        first = theirs.flexible_versions[0]
        assert api.flexible_version == (first if first >= 0 else api.max_version + 1)
        lowest, highest = theirs.valid_versions
        if api is PRODUCE:  # Kafka 4 has dropped 0 to 2 (KIP-896), which brokers before 0.11 need
            lowest = 0
        assert lowest <= api.min_version <= api.max_version <= highest


@EVERY_API
def test_fields_that_a_message_may_lack_have_the_default_of_the_schema(api: Api) -> None:
    for top, schema_of_top in _messages(api):
        for cls, fields in _structs(top, schema_of_top.fields):
            ours = {field.name: field for field in dataclasses.fields(cls)}
            used = [version for version in versions(api) if message_codecs.fields_of(cls, version)]
            for theirs in fields:
                lacking = [version for version in used if not theirs.exists_in(version)]
                if theirs.name not in ours or theirs.may_be_absent:
                    continue
                if lacking or theirs.tag is not None:
                    default = _default(ours[theirs.name])
                    assert (theirs.name, default) == (theirs.name, theirs.default_value())


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def test_every_message_class_is_compared_with_a_schema() -> None:
    declared = {
        cls
        for module in _MODULES
        for cls in vars(module).values()
        if dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__
    }
    compared = {
        cls
        for api in APIS.values()
        for top, theirs in _messages(api)
        for cls, _ in _structs(top, theirs.fields)
    }
    assert declared == compared
