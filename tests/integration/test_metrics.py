"""The producer's metrics on real brokers: what they say is what readers and deliveries say."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent
from support.pure.measured_metrics import measured

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import (
    BufferExhaustedException,
    ConfigException,
    RecordTooLargeException,
    TimeoutException,
)

pytestmark = pytest.mark.kafka


def rows(count: int) -> pa.RecordBatch:
    """Make rows of 100 bytes with keys."""
    numbers = range(count)
    return pa.record_batch(
        {
            "key": pa.array([b"%d" % number for number in numbers]),
            "value": pa.array([b"%0100d" % number for number in numbers]),
        }
    )


def of_nodes(producer: KafkaProducer) -> dict[str, dict[str, float]]:
    """Measure every node that the producer spoke with."""
    found = producer.metrics()
    nodes = {name.tags["node-id"] for name in found if name.group == "producer-node-metrics"}
    return {node: measured(producer, "producer-node-metrics", node_id=node) for node in nodes}


def test_records_bytes_and_requests_are_those_that_were_delivered(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic, count = new_topic(3), 5000
    config = {
        "bootstrap.servers": kafka.bootstrap,
        "client.id": "measured",
        "compression.type": "lz4",
        "linger.ms": 60_000,
    }
    with KafkaProducer(config) as producer:
        for _ in range(4):
            producer.append(topic, rows(count // 4))
            producer.flush()
        deliveries = producer._state.take_deliveries().values()
        all_of, of_topic = (
            measured(producer),
            measured(producer, "producer-topic-metrics", topic=topic),
        )
        nodes = of_nodes(producer)
    assert len(read_with_confluent(kafka.bootstrap, topic)) == count
    assert {name.tags["client-id"] for name in producer.metrics()} == {"measured"}

    assert (all_of["record-send-total"], of_topic["record-send-total"]) == (count, count)
    assert (all_of["record-retry-total"], all_of["record-error-total"]) == (0, 0)
    assert all_of["record-send-rate"] > 0
    batches = sum(delivery.batches for delivery in deliveries)
    batch_bytes = sum(delivery.compressed_bytes for delivery in deliveries)
    record_bytes = sum(delivery.bytes for delivery in deliveries)
    assert of_topic["byte-total"] == batch_bytes
    assert all_of["batch-size-avg"] == pytest.approx(batch_bytes / batches)
    assert 0 < all_of["compression-rate-avg"] == of_topic["compression-rate"] < 0.6
    # The bound of a record's size is at most a few bytes high.
    assert record_bytes <= all_of["record-size-avg"] * count <= record_bytes + 8 * count
    assert 100 < all_of["record-size-max"] < 130

    produced = round(count / all_of["records-per-request-avg"])
    assert 4 <= produced <= batches
    assert produced < all_of["request-total"] == all_of["response-total"]
    assert (
        batch_bytes < all_of["outgoing-byte-total"] < batch_bytes + 1000 * all_of["request-total"]
    )
    for name in ("outgoing-byte-total", "incoming-byte-total", "request-total", "response-total"):
        assert sum(node[name] for node in nodes.values()) == all_of[name] > 0
    latencies = [n["request-latency-max"] for n in nodes.values() if n["request-latency-max"] > 0]
    assert max(latencies) == all_of["request-latency-max"] >= all_of["request-latency-avg"]
    # The I/O thread has waited for each response, but not for each of a cluster's nodes alone.
    assert all_of["select-total"] >= produced / len(nodes)
    assert all_of["flush-time-ns-total"] > 0 < all_of["metadata-wait-time-ns-total"]
    assert 0 <= all_of["metadata-age"] < 300

    assert all_of["requests-in-flight"] == 0
    assert all_of["buffer-available-bytes"] == all_of["buffer-total-bytes"] == 33_554_432
    assert all_of["connection-count"] == all_of["connection-creation-total"] >= 1


# Here, how often records are sent is counted: of one node, no leader ever moves, which would have
# some sent again.


def test_a_closed_producer_still_says_what_it_measured(
    old_kafka: KafkaCluster, new_old_topic: NewTopic
) -> None:
    topic = new_old_topic(1)
    with KafkaProducer({"bootstrap.servers": old_kafka.bootstrap}) as producer:
        producer.append(topic, rows(10))
    closed = measured(producer)
    assert closed["record-send-total"] == 10
    assert closed["connection-count"] == 0
    assert closed["connection-close-total"] == closed["connection-creation-total"] > 0
    assert closed["buffer-available-bytes"] == closed["buffer-total-bytes"]


def test_windows_are_as_long_and_as_many_as_configured(
    old_kafka: KafkaCluster, new_old_topic: NewTopic
) -> None:
    topic = new_old_topic(1)
    config = {"metrics.num.samples": "1", "metrics.sample.window.ms": 1}
    with KafkaProducer({"bootstrap.servers": old_kafka.bootstrap, **config}) as producer:
        producer.append(topic, rows(10))
        producer.flush()
        # With the defaults this would be so after a minute.
        while not math.isnan(measured(producer)["batch-size-avg"]):
            pass
        assert measured(producer)["record-send-total"] == 10


def test_there_must_be_a_sample() -> None:
    name = "metrics.num.samples"
    with pytest.raises(ConfigException, match=f"{name} is '0': expected an integer from 1 to"):
        KafkaProducer({"bootstrap.servers": "127.0.0.1:1", name: "0"})


def test_samples_may_take_no_time(old_kafka: KafkaCluster, new_old_topic: NewTopic) -> None:
    topic = new_old_topic(1)
    config = {"bootstrap.servers": old_kafka.bootstrap, "metrics.sample.window.ms": 0}
    with KafkaProducer(config) as producer:
        producer.append(topic, rows(10))
        producer.flush()
        assert measured(producer)["record-send-total"] == 10


def test_rows_that_are_refused_or_given_up_are_errors(
    old_kafka: KafkaCluster, new_old_topic: NewTopic
) -> None:
    topic = new_old_topic(1, {"max.message.bytes": "1000"})
    config = {"bootstrap.servers": old_kafka.bootstrap, "max.block.ms": 3000, "batch.size": 100}
    producer = KafkaProducer(config)
    producer.append(topic, rows(2))
    producer.flush()
    with pytest.raises(RecordTooLargeException):
        producer.append(topic, pa.record_batch({"value": pa.array(["x", "x" * 2_000_000])}))
    assert measured(producer)["record-error-total"] == 2
    with pytest.raises(TimeoutException):
        producer.append("not-there", rows(3))
    assert measured(producer)["record-error-total"] == 5
    assert measured(producer)["buffer-exhausted-total"] == 0
    available = producer._state.accumulator.pool.available_bytes
    producer._state.accumulator.pool.available_bytes = 10
    with pytest.raises(BufferExhaustedException):
        producer.append(topic, rows(4))
    producer._state.accumulator.pool.available_bytes = available
    all_of = measured(producer)
    assert (all_of["record-error-total"], all_of["buffer-exhausted-total"]) == (9, 4)
    assert all_of["bufferpool-wait-time-ns-total"] > 0
    producer.append(topic, pa.record_batch({"value": pa.array(["x" * 3000])}))
    with pytest.raises(RecordTooLargeException, match="MESSAGE_TOO_LARGE"):
        producer.close()
    assert measured(producer)["record-error-total"] == 10
    assert measured(producer, "producer-topic-metrics", topic=topic)["record-error-total"] == 1
    assert measured(producer)["record-send-total"] == 3
