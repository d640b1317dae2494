"""While a call waits for the metadata of topics, the producer's progress says so.

Time passes only in waits, and there is no I/O thread; see `support.pure.timed_waits`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pytest
from support.pure.interrupts import interrupted
from support.pure.timed_waits import Clock, made, stop_time, update_metadata
from support.pure.unreachable import TOPIC, answer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import KafkaException, TimeoutException
from spark_kafka_sink.producer.sender import SenderPoll
from spark_kafka_sink.wire.messages import MetadataResponse, MetadataResponseTopic

MAX_BLOCK_S = 1.0
THE_METADATA = f"the metadata of topic {TOPIC}"
ROWS = pa.record_batch({"value": ["v"]})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the producer goes by."""
    return stop_time(monkeypatch)


@pytest.fixture
def producer(clock: Clock) -> Iterator[KafkaProducer]:
    """A producer that knows no topic."""
    assert clock.now == time.monotonic()
    with made(max_block_ms=MAX_BLOCK_S * 1000) as producer:
        yield producer


def refused(code: int) -> MetadataResponse:
    """Return metadata with an error of the topic."""
    return MetadataResponse(
        brokers=answer([1]).brokers,
        topics=[MetadataResponseTopic(error_code=code, name=TOPIC, partitions=[])],
    )


def test_a_call_that_waits_for_a_topic_says_so_with_the_last_error(
    clock: Clock, producer: KafkaProducer
) -> None:
    seen: list[object] = []

    def look() -> None:
        seen.append(producer._state.progress().awaited)

    def refuse(code: int) -> None:
        update_metadata(producer, refused(code))

    look()
    clock.after(0.1, look)
    clock.after(0.2, lambda: refuse(codes.UNKNOWN_TOPIC_OR_PARTITION))
    clock.after(0.3, look)
    clock.after(0.4, lambda: refuse(codes.LEADER_NOT_AVAILABLE))
    clock.after(0.5, look)
    clock.after(0.6, lambda: update_metadata(producer, answer([1])))
    producer.append(TOPIC, ROWS)
    assert seen == [
        {},
        {THE_METADATA: ""},
        {THE_METADATA: "UNKNOWN_TOPIC_OR_PARTITION"},
        {THE_METADATA: "LEADER_NOT_AVAILABLE"},
    ]
    assert not any("metadata" in what for what in producer._state.progress().awaited)


def test_a_call_that_waits_for_more_partitions_says_so(
    clock: Clock, producer: KafkaProducer
) -> None:
    producer._state.metadata.track(TOPIC, clock.now)
    update_metadata(producer, answer([1]))
    seen: list[object] = []
    clock.after(0.1, lambda: seen.append(producer._state.progress().awaited))
    rows = pa.record_batch({"value": ["v"], "partition": pa.array([1], pa.int32())})
    with pytest.raises(TimeoutException):
        producer.append(TOPIC, rows)
    assert seen == [{THE_METADATA: ""}]


def test_a_call_names_only_the_topics_that_it_does_not_know(
    clock: Clock, producer: KafkaProducer
) -> None:
    producer._state.metadata.track(TOPIC, clock.now)
    update_metadata(producer, answer([1]))
    seen: list[object] = []
    clock.after(0.1, lambda: seen.append(producer._state.progress().awaited))
    with pytest.raises(TimeoutException):
        producer.append(None, pa.record_batch({"value": ["v", "w"], "topic": [TOPIC, "other"]}))
    assert seen == [{"the metadata of topic other": ""}]


def test_a_call_that_has_ended_waits_for_nothing_wherever_it_was_interrupted(
    producer: KafkaProducer,
) -> None:
    moment, where = 0, None
    while not moment or where is not None:
        moment += 1
        where = None
        with suppress(KafkaException):  # it has timed out
            where = interrupted(lambda: producer.partitions_for(TOPIC), moment)
        producer._state.poll(SenderPoll(), [], lambda: False)  # as the I/O thread does
        assert producer._state.progress().awaited == {}, f"moment {moment}: {where}"
    assert moment > 50
