"""An append in progress when all batches fail: nothing of it is left.

The failure comes between the two times at which an append holds the lock: it has held its
partitions and encoded its rows, and is about to add them to batches. There is no I/O thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from support.pure.interrupts import InterruptError, interrupt_first
from support.pure.timed_waits import Clock, made, stop_time, update_metadata
from support.pure.unreachable import TOPIC, answer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.client import appender, row_producer
from spark_kafka_sink.client.chunk import RowChunk
from spark_kafka_sink.errors import IllegalStateException, KafkaException
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.encoder import EncodedRecords, encode_rows
from spark_kafka_sink.records.layout import Cut, OpenBatch, Runs
from spark_kafka_sink.wire.exchange import NodeReady
from spark_kafka_sink.wire.versions import NodeApiVersions

NODE = 1
ROWS = pa.record_batch({"value": ["v" * 100] * 10})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the producer goes by."""
    return stop_time(monkeypatch)


@pytest.fixture
def producer(clock: Clock) -> Iterator[KafkaProducer]:
    """A producer that knows its topic, whose leader is ready to be sent to."""
    with made(linger_ms=0, enable_idempotence=False) as producer:
        with producer._state.lock:
            producer._state.metadata.track(TOPIC, clock.now)
            producer._state._sender.handle(NodeReady(NODE, NodeApiVersions({})), clock.now)
        update_metadata(producer, answer([NODE]))
        yield producer


def close(producer: KafkaProducer) -> None:
    """Close at once, as another thread may; then the I/O thread ends."""
    producer.close(0)
    producer._thread._end()


def fail(producer: KafkaProducer) -> None:
    """End the producer with an error, as the I/O thread does."""
    with producer._state.lock:
        producer._state.give_up(KafkaException("over for good"))


ENDS = [
    (close, IllegalStateException, "after producer has been closed"),
    (fail, KafkaException, "over for good"),
]


def sent(producer: KafkaProducer) -> int:
    """Return the number of batches that the sender would send now."""
    with producer._state.lock:
        polled = producer._state._sender.poll(time.monotonic())
    return sum(len(drained.batches) for drained in polled.drained)


def is_empty(producer: KafkaProducer) -> bool:
    """Return whether nothing is left to send, and all memory is free."""
    accumulator = producer._state.accumulator
    is_free = accumulator.pool.available_bytes == accumulator.pool.total_bytes
    return is_free and not accumulator.has_incomplete and sent(producer) == 0


class AppendLock:
    """The lock of an appender. has_waited: whether a thread has had to wait for the lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.has_waited = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.has_waited.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def have_it_end_under_way(
    monkeypatch: pytest.MonkeyPatch,
    producer: KafkaProducer,
    end: Callable[[KafkaProducer], None],
    error: type[BaseException] | None = None,
) -> threading.Thread:
    """End the producer when the next rows are encoded, but not in a batch yet.

    The returned thread ends the producer: the append goes on when the thread has ended, or waits
    for the append. error: interrupts the append then.
    """
    lock = AppendLock()
    monkeypatch.setattr(producer._appender, "append_lock", lock)

    def end_it() -> None:
        try:
            end(producer)
        finally:
            lock.has_waited.set()

    thread = threading.Thread(target=end_it, daemon=True)

    def encode_until_the_end(
        columns: RecordColumns, runs: Runs, opens: list[OpenBatch]
    ) -> tuple[list[Cut], EncodedRecords]:
        encoded = encode_rows(columns, runs, opens)
        thread.start()
        lock.has_waited.wait()
        if error is not None:
            raise error
        return encoded

    monkeypatch.setattr(appender, "encode_rows", encode_until_the_end)
    return thread


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize(("end", "kind", "said"), ENDS)
def test_an_append_that_everything_is_given_up_under_fails_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
    producer: KafkaProducer,
    end: Callable[[KafkaProducer], None],
    kind: type[KafkaException],
    said: str,
    *,
    goes_on: bool,
) -> None:
    if goes_on:  # it goes on with a batch that is given up under it
        producer.append(TOPIC, ROWS)
    have_it_end_under_way(monkeypatch, producer, end)
    with pytest.raises(kind, match=said):
        producer.append(TOPIC, ROWS)
    assert is_empty(producer)


@pytest.mark.parametrize(("end", "said"), [(close, "closed forcefully"), (fail, "over for good")])
def test_rows_that_everything_is_given_up_under_are_told_so_and_leave_nothing(
    monkeypatch: pytest.MonkeyPatch,
    producer: KafkaProducer,
    end: Callable[[KafkaProducer], None],
    said: str,
) -> None:
    future = producer.send(TOPIC, b"v")
    thread = have_it_end_under_way(monkeypatch, producer, end)
    producer._feeder.drain()
    thread.join()
    producer._state.make_calls()
    assert said in str(future.exception(0))
    assert is_empty(producer)


def test_rows_fail_if_their_producer_is_closed_while_their_caller_is_interrupted_twice(
    monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer
) -> None:
    future = producer.send(TOPIC, b"v")
    thread = have_it_end_under_way(monkeypatch, producer, close, InterruptError)
    interrupt_first(monkeypatch, producer._state, "packed")
    with pytest.raises(InterruptError):
        producer._feeder.drain()
    thread.join()
    assert "closed forcefully" in str(future.exception(0))
    assert producer._feeder._pending == {}


def test_a_row_that_finds_room_when_its_producer_is_closed_is_refused_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer
) -> None:
    def chunk_after_the_end(*arguments: Any) -> RowChunk:  # noqa: ANN401 - as they come
        close(producer)
        return RowChunk(*arguments)

    monkeypatch.setattr(row_producer, "RowChunk", chunk_after_the_end)
    with pytest.raises(IllegalStateException, match="after producer has been closed"):
        producer.send(TOPIC, b"v")
    assert is_empty(producer)


def test_what_is_appended_before_the_end_is_sent(producer: KafkaProducer) -> None:
    producer.append(TOPIC, ROWS)
    assert sent(producer) == 1
