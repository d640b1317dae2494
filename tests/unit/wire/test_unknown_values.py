"""Unknown values of newer brokers are skipped, or kept as values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.schemas.fields.codecs import EncodeBuffer, TaggedFields
from support.oracles.kafka_schemas import SchemaField, Tree, at_version, one_of_everything, trees
from support.oracles.wire_messages import (
    EVERY_VERSION,
    SPOKEN,
    our_response,
    response_schema,
    their_response_frame,
)

from spark_kafka_sink.wire.frames import decode_response
from spark_kafka_sink.wire.messages import PRODUCE, Api, ProduceResponse
from spark_kafka_sink.wire.primitives import (
    read_compact_nullable_string,
    read_compact_string,
    read_nullable_string,
    read_string,
)

FLEXIBLE = [(api, version) for api, version in SPOKEN if api.is_flexible(version)]

_write_known = TaggedFields.encode_into
_known_bytes = TaggedFields.encode


def _unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _frame_with_unknown_tags(
    api: Api, version: int, sent: Tree, unknown: dict[int, bytes]
) -> bytes:
    """Return kafka-python's frame with `unknown` added wherever it writes tagged fields."""
    extra = b"".join(
        _unsigned_varint(tag) + _unsigned_varint(len(data)) + data
        for tag, data in sorted(unknown.items())
    )

    def encode(fields: TaggedFields, item: object, version: int | None = None) -> bytes:
        known = bytearray(_known_bytes(fields, item, version=version))
        known[0] += len(unknown)
        return bytes(known) + extra

    def encode_into(
        fields: TaggedFields, item: object, out: EncodeBuffer, version: int | None = None
    ) -> None:
        start = out.pos
        _write_known(fields, item, out, version=version)
        out.buf[start] += len(unknown)
        out.ensure(len(extra))
        out.buf[out.pos : out.pos + len(extra)] = extra
        out.pos += len(extra)

    with (
        mock.patch.object(TaggedFields, "encode", encode),
        mock.patch.object(TaggedFields, "encode_into", encode_into),
    ):
        return their_response_frame(api, version, 1, sent)


@given(
    spoken=st.sampled_from(FLEXIBLE),
    data=st.data(),
    unknown=st.dictionaries(
        st.integers(4, 130) | st.just(2**32 - 1), st.binary(max_size=140), min_size=1, max_size=3
    ),
)
def test_unknown_tagged_fields_are_skipped(
    spoken: tuple[Api, int], data: st.DataObject, unknown: dict[int, bytes]
) -> None:
    api, version = spoken
    fields = response_schema(api).fields
    sent = at_version(fields, data.draw(trees(fields)), version)
    frame = _frame_with_unknown_tags(api, version, sent, unknown)
    assert len(frame) > len(their_response_frame(api, version, 1, sent))
    assert decode_response(api, version, frame) == our_response(api, sent)


@pytest.mark.parametrize(
    ("api", "version", "tag"),
    [
        (api, version, field.tag)
        for api, version in FLEXIBLE
        for field in response_schema(api).fields
        if field.tag is not None and field.exists_in(version)
    ],
    ids=lambda each: each.name if isinstance(each, Api) else str(each),
)
def test_what_is_behind_a_known_tagged_field_is_skipped(api: Api, version: int, tag: int) -> None:
    fields = response_schema(api).fields
    without = {
        field.name: field.default_value() if field.tag is not None else value
        for field, value in _present(fields, version)
    }
    # An empty array (or a number, or true) and then bytes that are not the field's.
    plain = _frame_with_unknown_tags(api, version, without, {tag: b"\x01" + bytes(40)})
    longer = _frame_with_unknown_tags(api, version, without, {tag: b"\x01" + bytes(44)})
    assert decode_response(api, version, longer) == decode_response(api, version, plain)


@pytest.mark.parametrize("version", [8, 9])
def test_a_broker_s_text_that_is_not_utf_8_costs_no_answer(version: int) -> None:
    fields = response_schema(PRODUCE).fields
    sent = at_version(fields, one_of_everything(fields), version)
    sent["responses"][0]["partition_responses"][0]["error_message"] = "no space"
    frame = their_response_frame(PRODUCE, version, 1, sent)
    answer = decode_response(PRODUCE, version, frame.replace(b"no space", b"no\xffspace"))
    assert isinstance(answer, ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_message == "no\ufffdspace"


def _present(fields: tuple[SchemaField, ...], version: int) -> list[tuple[SchemaField, Any]]:
    sent = at_version(fields, one_of_everything(fields), version)
    return [(field, sent[field.name]) for field in fields if field.name in sent]


def _error_code_fields(fields: tuple[SchemaField, ...], version: int) -> int:
    return sum(
        field.name.endswith("error_code") + _error_code_fields(field.fields, version)
        for field in fields
        if field.exists_in(version)
    )


def _with_error_code(tree: Any, code: int) -> Any:  # noqa: ANN401 - see Tree
    if isinstance(tree, list):
        return [_with_error_code(each, code) for each in tree]
    if not isinstance(tree, dict):
        return tree
    return {
        name: code if name.endswith("error_code") else _with_error_code(value, code)
        for name, value in tree.items()
    }


@EVERY_VERSION
@pytest.mark.parametrize("code", [-2, 134, 32767, -32768])
def test_unknown_error_codes_are_values(api: Api, version: int, code: int) -> None:
    fields = response_schema(api).fields
    sent = _with_error_code(at_version(fields, one_of_everything(fields), version), code)
    message = decode_response(api, version, their_response_frame(api, version, 1, sent))
    assert _error_code_fields(fields, version)
    assert repr(message).count(f"error_code={code}") == _error_code_fields(fields, version)


@pytest.mark.parametrize(
    ("read", "written"),
    [
        (read_nullable_string, b"\x00\x03a\xffb"),
        (read_string, b"\x00\x03a\xffb"),
        (read_compact_nullable_string, b"\x04a\xffb"),
        (read_compact_string, b"\x04a\xffb"),
    ],
)
def test_a_string_that_is_no_text_is_read_with_replacement_characters(
    read: Callable[[bytes, int], tuple[str | None, int]], written: bytes
) -> None:
    assert read(written, 0) == ("a\ufffdb", len(written))
