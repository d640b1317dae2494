"""Whatever bytes a broker sends: a message or a ProtocolError, and never much memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kafka_schemas import at_version, one_of_everything, trees
from support.wire_messages import (
    EVERY_API,
    EVERY_VERSION,
    response_schema,
    their_response_frame,
    versions,
)

from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.wire.frames import decode_response, response_correlation_id
from spark_kafka_sink.wire.messages import APIS, Api

# Small numbers get further: they are lengths that fit and tags that are known.
_SMALL = st.lists(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF]), max_size=200).map(bytes)
GARBAGE = st.binary(max_size=200) | _SMALL

# Lengths as int16, int32 and varint, as large as they get; 0x80… is a varint without end.
HUGE_LENGTHS = [
    b"\x7f\xff",
    b"\x7f\xff\xff\xff",
    b"\x07\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\x80" * 12,
]


def _decodes_or_refuses(api: Api, version: int, frame: bytes) -> None:
    try:
        message = decode_response(api, version, frame)
    except ProtocolError:
        return
    assert type(message) is api.response


@given(frame=GARBAGE)
def test_garbage_is_a_message_or_a_protocol_error(frame: bytes) -> None:
    for api in APIS.values():
        for version in versions(api):
            _decodes_or_refuses(api, version, frame)


@EVERY_API
@given(data=st.data())
def test_responses_with_garbage_inside_are_messages_or_protocol_errors(
    api: Api, data: st.DataObject
) -> None:
    fields = response_schema(api).fields
    tree = data.draw(trees(fields))
    garbage = data.draw(st.binary(min_size=1, max_size=6) | st.sampled_from(HUGE_LENGTHS))
    where, replaced = data.draw(st.floats(0, 1)), data.draw(st.integers(0, 6))
    for version in versions(api):
        frame = their_response_frame(api, version, 1, at_version(fields, tree, version))
        position = round(where * len(frame))
        mutated = frame[:position] + garbage + frame[position + replaced :]
        _decodes_or_refuses(api, version, mutated)


@EVERY_API
@given(data=st.data())
def test_a_response_that_is_cut_short_anywhere_is_refused(api: Api, data: st.DataObject) -> None:
    fields = response_schema(api).fields
    version = data.draw(st.sampled_from(versions(api)))
    sent = at_version(fields, data.draw(trees(fields)), version)
    frame = their_response_frame(api, version, 1, sent)
    for length in {*range(min(len(frame), 80)), *range(max(0, len(frame) - 80), len(frame))}:
        with pytest.raises(ProtocolError, match=f"{api.name} v{version} response"):
            decode_response(api, version, frame[:length])


@EVERY_API
@given(data=st.data())
def test_bytes_behind_a_response_are_refused(api: Api, data: st.DataObject) -> None:
    fields = response_schema(api).fields
    tree = data.draw(trees(fields))
    trailing = data.draw(st.binary(min_size=1, max_size=9))
    for version in versions(api):
        frame = their_response_frame(api, version, 1, at_version(fields, tree, version))
        with pytest.raises(ProtocolError, match=f"has {len(trailing)} bytes too many"):
            decode_response(api, version, frame + trailing)


@given(frame=st.binary(max_size=3))
def test_a_frame_too_short_for_a_correlation_id_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match=f"{len(frame)} bytes has no correlation id"):
        response_correlation_id(frame)


def _with_huge_lengths(frame: bytes) -> Iterator[bytes]:
    for position in range(4, len(frame) + 1):
        for length in HUGE_LENGTHS:
            yield frame[:position] + length + frame[position + len(length) :]


@EVERY_VERSION
def test_a_huge_length_takes_no_memory(api: Api, version: int) -> None:
    fields = response_schema(api).fields
    frame = their_response_frame(
        api, version, 1, at_version(fields, one_of_everything(fields), version)
    )
    decode_response(api, version, frame)  # compiles the reader
    mutated = list(_with_huge_lengths(frame))
    tracemalloc.start()
    try:
        for each in mutated:
            _decodes_or_refuses(api, version, each)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000
