"""Partitions beyond those that are known: brokers are asked anew, and their answer to that counts.

Time passes in waits alone, and there is no I/O thread; see `support.timed_waits`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from support.timed_waits import Clock, made, stop_time, tell
from support.unreachable import TOPIC, answer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import DataException
from spark_kafka_sink.wire.messages import MetadataRequest

OTHER = "other"
BEYOND = pa.record_batch({"value": ["v"], "partition": pa.array([1], pa.int32())})

# Each asks for two partitions of the topic, and gives how many there are; fewer is an error.
Look = Callable[[KafkaProducer], int]


def append(producer: KafkaProducer) -> int:
    """Append a row for the second partition."""
    try:
        producer.append(TOPIC, BEYOND)
    except DataException as error:
        said = re.search(f"topic {TOPIC} has ([0-9]+) partitions", str(error))
        return -1 if said is None else int(said[1])
    return 2


def count(producer: KafkaProducer) -> int:
    """Ask how many partitions there are."""
    return producer.partition_counts({TOPIC: 2})[TOPIC]


LOOKS = pytest.mark.parametrize("look", [append, count])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the producer goes by."""
    return stop_time(monkeypatch)


@pytest.fixture
def producer(clock: Clock) -> Iterator[KafkaProducer]:
    """A producer that was told of one partition, and may ask again at once."""
    with made(max_block_ms=3000) as producer:
        track(producer, TOPIC)
        ask(producer)
        tell(producer, answer([1]))
        clock.now += 1.0
        yield producer


def track(producer: KafkaProducer, topic: str) -> None:
    """Have the producer know that a topic is in use."""
    with producer._thread.lock:
        producer._thread.metadata.track(topic, producer._thread._clock())


def ask(producer: KafkaProducer) -> list[str | None]:
    """Have the request for metadata that is due go out; gives the topics that it names."""
    with producer._thread.lock:
        request = producer._thread.metadata.request(producer._thread._clock())
    assert isinstance(request, MetadataRequest)
    assert request.topics is not None
    return [topic.name for topic in request.topics]


def exchange(producer: KafkaProducer, *leaders: int) -> Callable[[], None]:
    """Give a call in which a request that names the topic is sent and answered."""

    def exchanged() -> None:
        assert TOPIC in ask(producer)
        tell(producer, answer([*leaders]))

    return exchanged


@LOOKS
@pytest.mark.parametrize("leaders", [[1], [1, 1]])
def test_the_answer_to_a_request_from_before_does_not_tell_that_there_are_too_few(
    clock: Clock, producer: KafkaProducer, leaders: list[int], look: Look
) -> None:
    began_at = clock.now
    with producer._thread.lock:
        producer._thread.metadata.request_update()
    ask(producer)
    clock.after(0.3, lambda: tell(producer, answer([1])))
    clock.after(0.6, exchange(producer, *leaders))
    assert look(producer) == len(leaders)
    assert clock.now - began_at == pytest.approx(0.6)


@LOOKS
def test_an_answer_about_another_topic_alone_does_not_either(
    clock: Clock, producer: KafkaProducer, look: Look
) -> None:
    began_at = clock.now
    track(producer, OTHER)
    assert ask(producer) == [OTHER]
    about_other = answer([1])
    about_other.topics[0].name = OTHER
    clock.after(0.3, lambda: tell(producer, about_other))
    clock.after(0.6, exchange(producer, 1, 1))
    assert look(producer) == 2
    assert clock.now - began_at == pytest.approx(0.6)


@LOOKS
def test_an_answer_from_before_that_tells_of_enough_is_taken(
    clock: Clock, producer: KafkaProducer, look: Look
) -> None:
    began_at = clock.now
    with producer._thread.lock:
        producer._thread.metadata.request_update()
    ask(producer)
    clock.after(0.3, lambda: tell(producer, answer([1, 1])))
    assert look(producer) == 2
    assert clock.now - began_at == pytest.approx(0.3)


@LOOKS
def test_that_there_are_too_few_is_told_with_the_first_answer_to_the_question(
    clock: Clock, producer: KafkaProducer, look: Look
) -> None:
    began_at = clock.now
    clock.after(0.3, exchange(producer, 1))
    assert look(producer) == 1
    assert clock.now - began_at == pytest.approx(0.3)
