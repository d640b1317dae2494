"""A user's own partitioner that takes long: rows of another topic are acknowledged meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent
from support.pure.state_waits import wait_until

from spark_kafka_sink import KafkaProducer

pytestmark = pytest.mark.kafka

A_WHILE_S = 30


def by_send(producer: KafkaProducer, topic: str) -> None:
    """Send a row and see that it is acknowledged."""
    assert producer.send(topic, b"quick").result(A_WHILE_S).offset == 0


def by_append(producer: KafkaProducer, topic: str) -> None:
    """Append a row, and see that it is acknowledged."""
    producer.append(topic, pa.record_batch({"value": ["quick"]}))

    def is_acknowledged() -> bool:
        return topic in {place.topic for place in producer._state.take_deliveries()}

    wait_until(producer, is_acknowledged, A_WHILE_S)


@pytest.mark.parametrize("put", [by_send, by_append])
@pytest.mark.parametrize("by", ["linger", "flush"])
def test_rows_of_another_topic_are_acknowledged_while_a_partitioner_takes_long(
    kafka: KafkaCluster, new_topic: NewTopic, by: str, put: Callable[[KafkaProducer, str], None]
) -> None:
    slow, quick = new_topic(2), new_topic(2)
    reached, opened = threading.Event(), threading.Event()

    def partitioner(topic: str, batch: pa.RecordBatch, _: int) -> list[int]:
        if topic == slow:
            reached.set()
            assert opened.wait(2 * A_WHILE_S)
        return [1] * batch.num_rows

    config = {
        "bootstrap.servers": kafka.bootstrap,
        "linger.ms": 1 if by == "linger" else 200,
        "partitioner.class": partitioner,
    }
    with KafkaProducer(config) as producer:
        producer._partition_counts({slow: 2, quick: 2})
        waits = producer.send(slow, b"slow")
        flush = threading.Thread(target=producer.flush)
        try:
            if by == "flush":
                flush.start()
            assert reached.wait(A_WHILE_S)
            put(producer, quick)
            (record,) = read_with_confluent(kafka.bootstrap, quick)
            assert (record.partition, record.value) == (1, b"quick")
            assert not waits.done()
        finally:
            opened.set()
        assert waits.result(A_WHILE_S).partition == 1
        if by == "flush":
            flush.join(A_WHILE_S)
            assert not flush.is_alive()
