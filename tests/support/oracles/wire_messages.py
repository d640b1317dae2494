"""Messages of this package and of kafka-python with the same values (see `kafka_schemas`)."""

from __future__ import annotations

import dataclasses
import sys
from functools import cache
from typing import Any, Final

import pytest
from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.api_message import ApiMessage, ApiMessageData

from spark_kafka_sink.wire.fetch_messages import PartitionData
from spark_kafka_sink.wire.messages import APIS, Api, Request, Response
from spark_kafka_sink.wire.primitives import ZERO_UUID, Records
from support.oracles import token_schemas
from support.oracles.kafka_schemas import MessageSchema, SchemaField, Tree, message_schema

# Every version of every API that the package supports.
SPOKEN: Final = [
    (api, version)
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
]

EVERY_API: Final = pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
EVERY_VERSION: Final = pytest.mark.parametrize(
    ("api", "version"), SPOKEN, ids=[f"{api.name}-v{version}" for api, version in SPOKEN]
)


def versions(api: Api) -> range:
    """Return the versions of `api` that the package supports."""
    return range(api.min_version, api.max_version + 1)


def request_schema(api: Api) -> MessageSchema:
    """Return Kafka's schema of the API's request."""
    return message_schema(f"{api.name}Request")


def response_schema(api: Api) -> MessageSchema:
    """Return Kafka's schema of the API's response."""
    return message_schema(f"{api.name}Response")


def our_request(api: Api, tree: Tree) -> Request:
    """Return the package's request; fields that the tree does not have keep their defaults."""
    made: Request = _ours(api.request, request_schema(api).fields, tree)
    return made


def our_response(api: Api, tree: Tree) -> Response:
    """Return the package's response; fields that the tree does not have keep their defaults."""
    made: Response = _ours(api.response, response_schema(api).fields, tree)
    return made


def _ours(cls: type[Any], fields: tuple[SchemaField, ...], tree: Tree) -> Any:  # noqa: ANN401 - any message class
    known = {field.name for field in dataclasses.fields(cls)}
    given = (field for field in fields if field.name in known and field.name in tree)
    return cls(**{field.name: _our_value(cls, field, tree[field.name]) for field in given})


def class_beside(cls: type[Any], name: str) -> type[Any]:
    """Return the struct `name` from the module of the message class `cls`."""
    found: type[Any] = getattr(sys.modules[cls.__module__], name)
    return found


def _our_value(message: type[Any], field: SchemaField, value: Any) -> object:  # noqa: ANN401 - see Tree
    if value is None:
        return None
    if field.kind == "records":
        if message is PartitionData:  # records that were read are a view of the received bytes
            return memoryview(b"".join(value))
        return Records(tuple(value), sum(map(len, value)))
    if not field.is_struct:
        return value
    cls = class_beside(message, field.kind)
    if field.is_array:
        return [_ours(cls, field.fields, each) for each in value]
    return _ours(cls, field.fields, value)


def their_request_frame(
    api: Api, version: int, correlation_id: int, client_id: str, tree: Tree
) -> bytes:
    """Return the request frame, including size and header, as kafka-python writes it."""
    cls = _their_class(request_schema(api).name)
    request = cls(version=version, **_their_values(cls.fields, request_schema(api).fields, tree))
    request.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(request.encode(header=True, framed=True))


def their_response_frame(api: Api, version: int, correlation_id: int, tree: Tree) -> bytes:
    """Return the response frame without its size, as kafka-python writes it."""
    cls = _their_class(response_schema(api).name)
    response = cls(version=version, **_their_values(cls.fields, response_schema(api).fields, tree))
    response.with_header(correlation_id=correlation_id)
    return bytes(response.encode(header=True, framed=False))


@cache
def _their_class(name: str) -> Any:  # noqa: ANN401 - kafka-python has no types
    if "DelegationToken" in name:
        return ApiMessageData(name, (ApiMessage,), {}, load_json=token_schemas)
    modules = (producer, consumer, metadata, admin, sasl)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def _their_values(known: dict[str, Any], fields: tuple[SchemaField, ...], tree: Tree) -> Tree:
    given: Tree = {}
    for field in fields:
        # kafka-python writes a tagged UUID of zeros, its default, which Java omits.
        left_out = field.tag is not None and tree.get(field.name) == ZERO_UUID
        if field.name in tree and not left_out:
            # kafka-python renames the two bit fields of Metadata.
            name = field.name if field.name in known else "authorized_operations"
            given[name] = _their_value(known[name], field, tree[field.name])
    return given


def _their_value(known: Any, field: SchemaField, value: Any) -> object:  # noqa: ANN401 - see above
    if value is None:
        return None
    if field.kind == "records":
        return b"".join(value)
    if known.type_str == "bitfield":
        return {bit for bit in range(32) if value >> bit & 1}
    if not field.is_struct:
        return value
    if field.is_array:
        return [known(**_their_values(known.fields, field.fields, each)) for each in value]
    return known(**_their_values(known.fields, field.fields, value))
