"""Frames compared with those of kafka-python, for every API in every version.

Of each API there are ten random messages, or a hundredth of FUZZ_EXAMPLES.
"""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st
from support.oracles.examples import one_in
from support.oracles.kafka_schemas import at_version, trees
from support.oracles.wire_messages import (
    EVERY_API,
    our_request,
    our_response,
    request_schema,
    response_schema,
    their_request_frame,
    their_response_frame,
    versions,
)

from spark_kafka_sink.wire import message_codecs
from spark_kafka_sink.wire.frames import (
    decode_response,
    encode_request,
    response_correlation_id,
)
from spark_kafka_sink.wire.messages import API_VERSIONS, Api
from spark_kafka_sink.wire.primitives import Writer

CORRELATION_IDS = st.integers(-(2**31), 2**31 - 1)


@EVERY_API
@one_in(100)
@given(data=st.data())
def test_request_frames_are_byte_for_byte_those_of_kafka_python(
    api: Api, data: st.DataObject
) -> None:
    fields = request_schema(api).fields
    tree = data.draw(trees(fields))
    correlation_id, client_id = data.draw(CORRELATION_IDS), data.draw(st.text(max_size=10))
    for version in versions(api):
        theirs = at_version(fields, tree, version)
        # Ours also has values in fields that the version lacks: they must not be written.
        ours = our_request(api, at_version(fields, tree, version, keep_absent=True))
        frame = b"".join(encode_request(api, version, correlation_id, client_id, ours))
        expected = their_request_frame(api, version, correlation_id, client_id, theirs)
        assert (version, frame) == (version, expected)


@EVERY_API
@one_in(100)
@given(data=st.data())
def test_responses_of_kafka_python_are_read_as_the_values_they_hold(
    api: Api, data: st.DataObject
) -> None:
    fields = response_schema(api).fields
    tree = data.draw(trees(fields))
    correlation_id = data.draw(CORRELATION_IDS)
    for version in versions(api):
        sent = at_version(fields, tree, version)
        frame = their_response_frame(api, version, correlation_id, sent)
        assert response_correlation_id(frame) == correlation_id
        # A field that the version lacks must be decoded as its default.
        assert (version, decode_response(api, version, frame)) == (
            version,
            our_response(api, sent),
        )


@EVERY_API
@one_in(100)
@given(data=st.data())
def test_responses_can_be_read_from_any_kind_of_buffer(api: Api, data: st.DataObject) -> None:
    fields = response_schema(api).fields
    version = data.draw(st.sampled_from(versions(api)))
    sent = at_version(fields, data.draw(trees(fields)), version)
    frame = their_response_frame(api, version, 1, sent)
    expected = our_response(api, sent)
    assert decode_response(api, version, bytearray(frame)) == expected
    assert decode_response(api, version, memoryview(frame)) == expected


@EVERY_API
@one_in(100)
@given(data=st.data())
def test_responses_can_be_written_as_well_and_read_again(api: Api, data: st.DataObject) -> None:
    fields = response_schema(api).fields
    tree = data.draw(trees(fields))
    for version in versions(api):
        sent = at_version(fields, tree, version)
        message = our_response(api, sent)
        flexible = api.is_flexible(version)
        writer = Writer()
        writer.out += struct.pack(">i", 1)
        if flexible and api is not API_VERSIONS:
            writer.out.append(0)
        message_codecs.writer(api.response, version, flexible=flexible)(message, writer)
        frame = b"".join(writer.buffers())
        assert (version, decode_response(api, version, frame)) == (version, message)
        assert (version, frame) == (version, their_response_frame(api, version, 1, sent))
