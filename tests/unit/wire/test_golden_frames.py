"""Frames written down elsewhere, bit by bit, and the lengths that no frame can carry."""

from __future__ import annotations

import pytest
from support.oracles.wire_messages import versions

from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.wire.frames import FrameSplitter, decode_response, encode_request
from spark_kafka_sink.wire.messages import (
    API_VERSIONS,
    METADATA,
    Api,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
)

# From kafka-python's test_api_versions.
ASKED = bytes.fromhex("0000001f00120000000000010015") + b"_internal_client_kYVL"
REFUSED = bytes.fromhex("00000010000000010023000000010012 00000003")


def test_the_api_versions_request_is_the_golden_one() -> None:
    frame = encode_request(API_VERSIONS, 0, 1, "_internal_client_kYVL", ApiVersionsRequest())
    assert b"".join(frame) == ASKED


def test_a_refused_api_versions_request_is_read_with_the_range_that_the_broker_speaks() -> None:
    (frame,) = FrameSplitter().feed(REFUSED)
    assert decode_response(API_VERSIONS, 0, frame) == ApiVersionsResponse(
        error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=3)]
    )


def _topic(name: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


@pytest.mark.parametrize("version", versions(METADATA))
def test_a_string_of_32767_bytes_is_the_longest_that_is_sent(version: int) -> None:
    encode_request(METADATA, version, 1, "client", _topic("x" * 32_767))
    with pytest.raises(ProtocolError, match="32768 bytes"):
        encode_request(METADATA, version, 1, "client", _topic("é" * 16_384))


@pytest.mark.parametrize(("api", "version"), [(METADATA, 4), (METADATA, 13)])
def test_a_client_id_that_is_too_long_is_refused(api: Api, version: int) -> None:
    with pytest.raises(ProtocolError, match="32768 bytes"):
        encode_request(api, version, 1, "x" * 32_768, _topic("topic"))


@pytest.mark.parametrize("version", range(4, 10))
def test_null_where_the_version_forbids_it_is_refused_by_name(version: int) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=None)])
    with pytest.raises(ProtocolError, match="name must not be None"):
        encode_request(METADATA, version, 1, "client", request)
