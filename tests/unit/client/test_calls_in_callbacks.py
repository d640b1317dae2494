"""Calls inside a callback do not wait, and their errors say so; no limit is named.

The test is the I/O thread, which runs callbacks; see `support.pure.timed_waits`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest
from support.pure.timed_waits import Clock, made, stop_time, update_metadata
from support.pure.unreachable import TOPIC, answer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.wire.messages import MetadataResponse, MetadataResponseTopic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the producer goes by."""
    return stop_time(monkeypatch)


def send(producer: KafkaProducer) -> None:
    """Send a row, and raise the error of its future."""
    future = producer.send(TOPIC, b"v")
    if future.done():
        future.result(0)


def append(producer: KafkaProducer) -> None:
    """Append a row."""
    producer.append(TOPIC, pa.record_batch({"value": [b"v"]}))


def ask(producer: KafkaProducer) -> None:
    """Ask for the partitions of a topic."""
    producer.partitions_for(TOPIC)


def error_in_callback(
    producer: KafkaProducer, clock: Clock, call: Callable[[KafkaProducer], object]
) -> KafkaException:
    """Return the error of a call inside a callback, which takes no time."""
    producer._thread._thread = threading.current_thread()
    began_at = clock.now
    with pytest.raises(KafkaException) as raised:
        call(producer)
    assert clock.now == began_at
    assert "max.block.ms" not in str(raised.value)
    assert "no broker has answered" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize("call", [send, append, ask])
def test_a_topic_that_is_not_known_yet(
    clock: Clock, call: Callable[[KafkaProducer], object]
) -> None:
    with made() as producer:
        error = error_in_callback(producer, clock, call)
        assert str(error) == (
            f"Topic {TOPIC} not present in metadata: its metadata has been requested, but a call "
            "inside a callback does not wait for the response; call again later, or call "
            "partitions_for before the callback"
        )


def test_a_topic_that_does_not_exist(clock: Clock) -> None:
    with made() as producer:
        unknown = MetadataResponseTopic(
            error_code=codes.UNKNOWN_TOPIC_OR_PARTITION, name=TOPIC, partitions=[]
        )
        producer._state.metadata.track(TOPIC, clock.now)
        update_metadata(producer, MetadataResponse(brokers=answer([1]).brokers, topics=[unknown]))
        error = error_in_callback(producer, clock, ask)
        assert "UNKNOWN_TOPIC_OR_PARTITION" in str(error)
        assert str(error).endswith("a call inside a callback does not wait")
        assert error.__cause__ is not None


@pytest.mark.parametrize("call", [send, append])
def test_memory_that_is_full(clock: Clock, call: Callable[[KafkaProducer], object]) -> None:
    with made() as producer:
        producer._state.metadata.track(TOPIC, clock.now)
        update_metadata(producer, answer([1]))
        producer._state.accumulator.pool.available_bytes = 0
        error = error_in_callback(producer, clock, call)
        assert str(error).startswith("no room for ")
        assert "bytes: buffer.memory=33554432 is full of records" in str(error)
        assert str(error).endswith("a call inside a callback does not wait")


def test_a_partition_that_is_not_known(clock: Clock) -> None:
    with made() as producer:
        producer._state.metadata.track(TOPIC, clock.now)
        update_metadata(producer, answer([1]))

        def send_to_5(producer: KafkaProducer) -> None:
            producer.send(TOPIC, b"v", partition=5).result(0)

        error = error_in_callback(producer, clock, send_to_5)
        assert str(error) == (
            f"Partition 5 of topic {TOPIC} with partition count 1 is not present in metadata; a "
            "call inside a callback does not wait"
        )
