"""Calls inside a callback do not wait, and their errors say so; no limit is named.

The test is the I/O thread, which runs callbacks; see `support.pure.timed_waits`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from support.pure.timed_waits import Clock, made, stop_time, update_metadata
from support.pure.unreachable import TOPIC, answer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import DataException, KafkaException, TimeoutException
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


@contextmanager
def knowing_one_partition(clock: Clock, **config: object) -> Iterator[KafkaProducer]:
    """Yield a producer that knows one partition of the topic, and has no request under way."""
    with made(**config) as producer:
        producer._state.metadata.track(TOPIC, clock.now)
        with producer._state.lock:
            producer._state.metadata.request(clock.now)
        update_metadata(producer, answer([1]))
        yield producer


WITHOUT_A_WAIT = pytest.mark.parametrize("max_block_ms", [None, 0])


def let_not_wait(producer: KafkaProducer, max_block_ms: int | None) -> None:
    """Let the test be a callback of the producer, unless max.block.ms is 0 and no call waits."""
    if max_block_ms is None:
        producer._thread._thread = threading.current_thread()


def config_of(max_block_ms: int | None) -> dict[str, object]:
    """Return the options of a producer."""
    return {} if max_block_ms is None else {"max_block_ms": max_block_ms}


@WITHOUT_A_WAIT
def test_a_call_that_may_not_wait_goes_by_the_known_number_of_partitions(
    clock: Clock, max_block_ms: int | None
) -> None:
    beyond = pa.record_batch({"value": ["v"], "partition": pa.array([7], pa.int32())})
    with knowing_one_partition(clock, **config_of(max_block_ms)) as producer:
        let_not_wait(producer, max_block_ms)
        assert producer.partitions_for(TOPIC, 9) == 1
        with pytest.raises(DataException, match=f"has 7, but topic {TOPIC} has 1 partitions"):
            producer.append(TOPIC, beyond)
        # A topic that is not known is still an error, though another is.
        with pytest.raises(TimeoutException, match=r"^Topic other not present in metadata"):
            producer._partition_counts({TOPIC: 9, "other": 1})


@WITHOUT_A_WAIT
def test_a_call_that_may_not_wait_requests_the_metadata_for_the_next_call(
    clock: Clock, max_block_ms: int | None
) -> None:
    with knowing_one_partition(clock, **config_of(max_block_ms)) as producer:
        state, woken = producer._state, list[str]()
        state._wakeup = lambda: woken.append("woken")
        state._is_asleep = True
        let_not_wait(producer, max_block_ms)
        assert producer.partitions_for(TOPIC, 2) == 1
        assert woken
        clock.now += 1.0
        with state.lock:
            assert state.metadata.request(clock.now) is not None
        update_metadata(producer, answer([1, 1]))
        assert producer.partitions_for(TOPIC, 2) == 2


def test_a_topic_that_is_known_is_never_said_not_to_be(clock: Clock) -> None:
    """Brokers that do not answer in time are no reason to say that a known topic is not there."""
    with knowing_one_partition(clock, max_block_ms=3000) as producer:
        with pytest.raises(TimeoutException) as late:
            producer.partitions_for(TOPIC, 6)
        assert str(late.value).startswith(
            f"Partition 5 of topic {TOPIC} with partition count 1 is not present in metadata after "
            "max.block.ms=3000"
        )
        assert late.value.__cause__ is None


def test_a_partition_that_is_not_known(clock: Clock) -> None:
    with knowing_one_partition(clock) as producer:

        def send_to_5(producer: KafkaProducer) -> None:
            producer.send(TOPIC, b"v", partition=5).result(0)

        error = error_in_callback(producer, clock, send_to_5)
        assert str(error) == (
            f"Partition 5 of topic {TOPIC} with partition count 1 is not present in metadata; a "
            "call inside a callback does not wait"
        )
