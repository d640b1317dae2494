"""The sender and nodes that take older record formats, or not every codec."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.pure.pure_producer import PureProducer, Settings, batches

from spark_kafka_sink.errors import UnsupportedCompressionTypeException, name_options
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.wire.exchange import Answered, NodeReady
from spark_kafka_sink.wire.messages import ProduceRequest, ProduceResponse
from spark_kafka_sink.wire.versions import NodeApiVersions


def _of_version(producer: PureProducer, node: int, produce_version: int) -> None:
    versions = NodeApiVersions({0: (0, produce_version)})
    producer.sender.handle(NodeReady(node, versions), producer.now)


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 2), (13, 2)])
def test_a_batch_goes_out_in_the_record_format_of_the_node_s_produce_version(
    version: int, magic: int
) -> None:
    producer = PureProducer([1, 2], Settings(idempotent=False))
    producer.append(0, [b"a", b"b"], timestamp_ms=5)
    producer.append(1, [b"c"])
    producer.ready()
    _of_version(producer, 1, version)
    sent = {r.node_id: r for r in producer.poll()}
    for node, expected in ((1, magic), (2, 2)):
        message = sent[node].message
        assert isinstance(message, ProduceRequest)
        (data,) = message.topic_data[0].partition_data
        assert data.records is not None
        content = b"".join(data.records.buffers)
        assert (content[16], len(content)) == (expected, data.records.size_bytes)
        assert batches(sent[node])[0].sent_bytes == len(content)
    producer.lose(sent[1])
    producer.now += 1
    _of_version(producer, 1, 13)
    (again,) = producer.poll()
    message = again.message
    assert isinstance(message, ProduceRequest)
    records = message.topic_data[0].partition_data[0].records
    assert records is not None
    assert b"".join(records.buffers)[16] == 2, "a broker that was upgraded got the old format"


@pytest.mark.parametrize("acks", [-1, 0])
def test_a_batch_that_the_node_s_record_format_cannot_hold_fails_alone(acks: int) -> None:
    settings = Settings(idempotent=False, acks=acks, compression="zstd")
    producer = PureProducer([1], settings)
    producer.append(0, [b"a"])
    producer.ready()
    _of_version(producer, 1, 2)
    (request,) = producer.poll()
    assert isinstance(request.message, ProduceRequest)
    assert request.message.topic_data == []
    response = ProduceResponse(responses=[]) if acks else None
    producer.sender.handle(Answered(request, 1, response), producer.now)
    (batch,) = producer.done()
    assert batch.state is BatchState.FAILED
    assert isinstance(batch.error, UnsupportedCompressionTypeException)
    assert "message format v1, which has no zstd" in str(batch.error)
    assert producer.poll() == []


@pytest.mark.parametrize("version", [3, 6])
@pytest.mark.parametrize(
    "settings",
    [
        Settings(idempotent=False),
        Settings(idempotent=False, acks=0),
        Settings(),
    ],
    ids=["plain", "without answers", "idempotent"],
)
def test_zstd_goes_to_no_node_that_does_not_know_it(version: int, settings: Settings) -> None:
    settings = replace(settings, compression="zstd")
    producer = PureProducer([1], settings)
    producer.append(0, [b"a"])
    producer.ready()
    _of_version(producer, 1, version)
    with name_options("kafka.".__add__):
        (request,) = producer.poll()
        assert isinstance(request.message, ProduceRequest)
        assert request.message.topic_data == []
        response = ProduceResponse(responses=[]) if settings.acks else None
        producer.sender.handle(Answered(request, 1, response), producer.now)
    (batch,) = producer.done()
    assert batch.state is BatchState.FAILED
    assert isinstance(batch.error, UnsupportedCompressionTypeException)
    assert str(batch.error) == (
        "t-0: 1 record(s) were not written: UNSUPPORTED_COMPRESSION_TYPE (76) from node 1; "
        "kafka.compression.type=zstd needs Produce version 7, which brokers have from Kafka 2.1 "
        f"on, and the partition's leader takes at most version {version}; choose another "
        "kafka.compression.type"
    )
    assert producer.poll() == []
    assert not producer.accumulator.has_incomplete
    assert producer.accumulator.pool.available_bytes == settings.buffer_memory


def test_what_a_node_cannot_take_is_not_tried_again_where_the_connection_breaks() -> None:
    producer = PureProducer([1], Settings(compression="zstd"))
    producer.append(0, [b"a"])
    producer.ready()
    _of_version(producer, 1, 6)
    (request,) = producer.poll()
    producer.lose(request)
    (batch,) = producer.done()
    assert isinstance(batch.error, UnsupportedCompressionTypeException)
    assert not producer.accumulator.has_incomplete


@pytest.mark.parametrize(("version", "compression"), [(6, "lz4"), (7, "zstd"), (13, "zstd")])
def test_a_codec_goes_to_the_nodes_that_know_it(version: int, compression: str) -> None:
    producer = PureProducer([1], Settings(compression=compression))
    producer.append(0, [b"a"])
    producer.ready()
    _of_version(producer, 1, version)
    (request,) = producer.poll()
    producer.answer(request)
    (batch,) = producer.done()
    assert batch.state is BatchState.SUCCEEDED
