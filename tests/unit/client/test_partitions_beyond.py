"""Partitions beyond the known ones: metadata is requested again, and its response counts.

Time passes only in waits, and there is no I/O thread; see `support.pure.timed_waits`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pyarrow as pa
import pytest
from support.pure.row_broker import sent_rows
from support.pure.timed_waits import Clock, made, stop_time, update_metadata
from support.pure.unreachable import TOPIC, answer

from spark_kafka_sink import KafkaProducer, RecordMetadata
from spark_kafka_sink.client.chunk import RowChunk, RowQueue
from spark_kafka_sink.errors import DataException, TimeoutException
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.wire.messages import MetadataRequest

OTHER = "other"
BEYOND = pa.record_batch({"value": ["v"], "partition": pa.array([1], pa.int32())})

# Each requires two partitions of the topic, and returns their number; fewer is an error.
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
    return producer._partition_counts({TOPIC: 2})[TOPIC]


LOOKS = pytest.mark.parametrize("look", [append, count])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the producer goes by."""
    return stop_time(monkeypatch)


@pytest.fixture
def producer(clock: Clock) -> Iterator[KafkaProducer]:
    """A producer that knows one partition and may request metadata again at once."""
    with made(max_block_ms=3000) as producer:
        track(producer, TOPIC)
        ask(producer)
        update_metadata(producer, answer([1]))
        clock.now += 1.0
        yield producer


def track(producer: KafkaProducer, topic: str) -> None:
    """Note in the producer's metadata that a topic is in use."""
    with producer._state.lock:
        producer._state.metadata.track(topic, producer._state.now())


def ask(producer: KafkaProducer) -> list[str | None]:
    """Take the metadata request that is due; return its topics."""
    with producer._state.lock:
        request = producer._state.metadata.request(producer._state.now())
    assert isinstance(request, MetadataRequest)
    assert request.topics is not None
    return [topic.name for topic in request.topics]


def exchange(producer: KafkaProducer, *leaders: int) -> Callable[[], None]:
    """Return a call that sends and answers a request for the topic."""

    def exchanged() -> None:
        assert TOPIC in ask(producer)
        update_metadata(producer, answer([*leaders]))

    return exchanged


@LOOKS
@pytest.mark.parametrize("leaders", [[1], [1, 1]])
def test_the_answer_to_a_request_from_before_does_not_tell_that_there_are_too_few(
    clock: Clock, producer: KafkaProducer, leaders: list[int], look: Look
) -> None:
    began_at = clock.now
    with producer._state.lock:
        producer._state.metadata.request_update()
    ask(producer)
    clock.after(0.3, lambda: update_metadata(producer, answer([1])))
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
    clock.after(0.3, lambda: update_metadata(producer, about_other))
    clock.after(0.6, exchange(producer, 1, 1))
    assert look(producer) == 2
    assert clock.now - began_at == pytest.approx(0.6)


@LOOKS
def test_an_answer_from_before_that_tells_of_enough_is_taken(
    clock: Clock, producer: KafkaProducer, look: Look
) -> None:
    began_at = clock.now
    with producer._state.lock:
        producer._state.metadata.request_update()
    ask(producer)
    clock.after(0.3, lambda: update_metadata(producer, answer([1, 1])))
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


# -- rows, whose chunk has metadata of its own ----------------------------------------------------

MANY, FEW = [1] * 10, [1] * 5
LAST = len(MANY) - 1


@pytest.fixture
def rows(producer: KafkaProducer) -> KafkaProducer:
    """The producer, whose last chunk had a row for the last of ten partitions."""
    update_metadata(producer, answer(MANY))
    producer.send(TOPIC, b"v", partition=LAST)
    producer._feeder.drain()
    return producer


def known(producer: KafkaProducer) -> TopicMetadata:
    """Return the topic's metadata."""
    topic = producer._state.metadata.topic(TOPIC)
    assert topic is not None
    return topic


def chunk_of(producer: KafkaProducer, topic: TopicMetadata) -> RowChunk:
    """Make a chunk that has its memory."""
    with producer._state.lock:
        pending = PendingAppend()
        assert producer._state.accumulator.pool.reserve(pending, 1000)
    return RowChunk(TOPIC, topic, pending, 0.0, sent_rows())


def check_in_batches(producer: KafkaProducer, *sent: Future[RecordMetadata]) -> None:
    """See that rows find their places in batches."""
    producer._feeder.drain()
    producer._state.make_calls()
    assert [future.exception(0) for future in sent if future.done()] == []
    accumulator = producer._state.accumulator
    assert sum(batch.record_count for batch in accumulator.incomplete) == len(sent) + 1


@pytest.mark.parametrize("begun", [True, False])
def test_a_row_for_a_partition_that_is_gone_waits_and_fails_alone(
    clock: Clock, rows: KafkaProducer, *, begun: bool
) -> None:
    update_metadata(rows, answer(FEW))
    others = [rows.send(TOPIC, b"v")] if begun else []
    began_at = clock.now
    error = rows.send(TOPIC, b"v", partition=LAST).exception(0)
    assert isinstance(error, TimeoutException)
    assert str(error).startswith("Partition 9 of topic t with partition count 5 is not present in")
    assert clock.now - began_at == pytest.approx(3.0)
    check_in_batches(rows, *others, rows.send(TOPIC, b"v", partition=4))


def test_a_row_waits_for_a_broker_that_knows_its_partition(
    clock: Clock, rows: KafkaProducer
) -> None:
    update_metadata(rows, answer(FEW))
    began_at = clock.now
    clock.after(0.6, exchange(rows, *MANY))
    sent = rows.send(TOPIC, b"v", partition=LAST)
    assert clock.now - began_at == pytest.approx(0.6)
    check_in_batches(rows, sent)


class Before:
    """A queue's lock, which another thread takes once before; after how many times that it does."""

    def __init__(self, queue: RowQueue, after: int, happen: Callable[[], None]) -> None:
        self._queue, self._lock, self._happen, self._after = queue, queue.lock, happen, after

    def __enter__(self) -> None:
        if self._after == 0:
            self._queue.lock = self._lock
            self._happen()
        self._after -= 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("after", [0, 1])
def test_a_chunk_that_another_thread_begins_by_what_was_known_before_takes_no_row_beyond(
    rows: KafkaProducer, after: int
) -> None:
    queue = rows._rows._queues[TOPIC]
    update_metadata(rows, answer(FEW))
    chunk = chunk_of(rows, known(rows))
    update_metadata(rows, answer(MANY))
    before = Before(queue, after, lambda: rows._feeder.begin(chunk, queue))
    queue.lock = before  # type: ignore[assignment] # a double
    check_in_batches(rows, rows.send(TOPIC, b"v", partition=LAST))


def test_a_chunk_that_has_a_row_for_a_new_partition_does_not_forget_that_it_is_there(
    rows: KafkaProducer,
) -> None:
    update_metadata(rows, answer(FEW))
    before = known(rows)
    update_metadata(rows, answer(MANY))
    sent = rows.send(TOPIC, b"v", partition=LAST)
    # Another thread, which has asked before, comes only now.
    rows._rows._queues[TOPIC].learn(before)
    check_in_batches(rows, sent)
