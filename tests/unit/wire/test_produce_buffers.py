"""Record batches go into a Produce request as they are: the same buffers, never copied."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.oracles.wire_messages import versions
from support.pure.traced_memory import traced_memory

from spark_kafka_sink.wire.frames import encode_request
from spark_kafka_sink.wire.messages import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from spark_kafka_sink.wire.primitives import Buffer, Records

EVERY_VERSION = pytest.mark.parametrize("version", versions(PRODUCE))


def _records(*buffers: Buffer) -> Records:
    return Records(buffers, sum(map(len, buffers)))


def _request(*partitions: Records | None) -> ProduceRequest:
    data = [PartitionProduceData(index=i, records=r) for i, r in enumerate(partitions)]
    topics = [TopicProduceData(name="t", partition_data=data)]
    return ProduceRequest(acks=-1, timeout_ms=1, topic_data=topics)


def _of_records(parts: Sequence[Buffer], records: Sequence[Buffer]) -> list[Buffer]:
    """Return the parts that are the same objects as in `records`."""
    ids = {id(buffer) for buffer in records}
    return [part for part in parts if id(part) in ids]


@EVERY_VERSION
def test_the_same_buffer_objects_come_out_in_order(version: int) -> None:
    header, body = b"header", memoryview(bytearray(1000))
    other, last = bytearray(b"other partition"), b"last"
    request = _request(_records(header, body), _records(other), _records(last))
    parts = encode_request(PRODUCE, version, 1, "client", request)
    spliced = _of_records(parts, [header, body, other, last])
    assert [id(part) for part in spliced] == [id(each) for each in (header, body, other, last)]


@EVERY_VERSION
def test_the_size_counts_every_byte_behind_it_records_included(version: int) -> None:
    large = bytes(300_000)
    request = _request(_records(b"header", large), None, _records(), _records(large))
    parts = encode_request(PRODUCE, version, 1, "client", request)
    frame = b"".join(parts)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert len(frame) > 2 * len(large)


@EVERY_VERSION
def test_a_request_of_many_megabytes_takes_no_memory_for_them(version: int) -> None:
    large = bytes(30_000_000)
    request = _request(*[_records(b"header", large)] * 20)
    encode_request(PRODUCE, version, 1, "client", request)  # compiles the writer
    with traced_memory() as memory:
        encode_request(PRODUCE, version, 1, "client", request)
    assert memory.peak_bytes < 100_000
