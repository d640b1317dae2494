"""Callers that wait for memory continue as soon as some is free, for any reason, in order.

Time passes only in waits, and there is no I/O thread; see `support.pure.timed_waits`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from support.pure.timed_waits import Clock, made, stop_time, update_metadata
from support.pure.unreachable import NOBODY, TOPIC, answer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import BufferExhaustedException
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.produce_requests import DrainedBatches
from spark_kafka_sink.producer.sender import SenderPoll
from spark_kafka_sink.task_producer import TaskProducer

FREED_AFTER_S = 0.3
MEMORY_BYTES = 100_000
# Rows whose encoded size is far below its bound, and rows that compress well.
EMPTY = pa.record_batch({"value": [""] * 2_000})
EVEN = pa.record_batch({"value": ["x" * 1_000] * 60})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the producer goes by."""
    return stop_time(monkeypatch)


@contextmanager
def with_memory(**config: object) -> Iterator[KafkaProducer]:
    """Make a producer that knows its topic and has little memory."""
    with made(buffer_memory=MEMORY_BYTES, max_block_ms=1000, **config) as producer:
        with producer._state.lock:
            producer._state.metadata.track(TOPIC, time.monotonic())
        update_metadata(producer, answer([1]))
        yield producer


class Gate:
    """Blocks appends at a certain point until the test continues."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __enter__(self) -> None:
        self.reached.set()
        assert self.opened.wait(20)

    def __exit__(self, *_: object) -> None: ...


def reserve(producer: KafkaProducer, size_bytes: int, deadline: float | None = None) -> None:
    """Wait for memory as a call of the producer does."""
    call = producer._caller.row_call()
    call = call if deadline is None else call._replace(deadline=deadline)
    producer._caller.reserve(PendingAppend(), size_bytes, call)


def check_goes_on_when(producer: KafkaProducer, clock: Clock, free: Callable[[], None]) -> None:
    """Want a byte more than there is, and see that the wait ends when `free` was called."""
    began_at = clock.now
    clock.after(FREED_AFTER_S, free)
    reserve(producer, producer._state.accumulator.pool.available_bytes + 1)
    assert clock.now - began_at == pytest.approx(FREED_AFTER_S)


def test_an_append_that_ends_frees_what_it_reserved_too_much(clock: Clock) -> None:
    with with_memory() as producer:
        gate = producer._columns._appender.append_lock = Gate()  # type: ignore[assignment] # a double
        other = threading.Thread(target=producer.append, args=(TOPIC, EMPTY))
        other.start()
        assert gate.reached.wait(20)

        def end() -> None:
            gate.opened.set()
            other.join()

        check_goes_on_when(producer, clock, end)


@contextmanager
def packing_later(
    producer: KafkaProducer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[PendingAppend]]:
    """Let appends pack no full batches; yield the appends that have some."""
    filled: list[PendingAppend] = []
    with monkeypatch.context() as patch:
        patch.setattr(producer._columns._appender, "pack", filled.append)
        yield filled


def test_what_compressing_a_batch_frees_is_free_at_once(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_memory(compression_type="zstd", batch_size=20_000) as producer:
        with packing_later(producer, monkeypatch) as filled:
            producer.append(TOPIC, EVEN)
        appender, filled = producer._columns._appender, [each for each in filled if each.full]
        assert filled

        def pack() -> None:
            for pending in filled:
                appender.pack(pending)

        check_goes_on_when(producer, clock, pack)


def test_what_compressing_a_batch_to_be_sent_frees_is_free_at_once(clock: Clock) -> None:
    with with_memory(compression_type="zstd", batch_size=90_000) as producer:
        producer.append(TOPIC, EVEN)
        state = producer._state
        drained = DrainedBatches(1, state.accumulator.incomplete)

        def sent() -> None:
            for batch in drained.batches:
                batch.seal()
                batch.pack()
            with state.lock:
                state._take_in(SenderPoll(drained=[drained]), [], clock.now)

        check_goes_on_when(producer, clock, sent)


def test_rows_that_linger_do_so_no_longer_where_memory_is_short(clock: Clock) -> None:
    with with_memory(linger_ms=60_000) as producer:
        producer.send(TOPIC, b"v")
        feeder = producer._feeder
        assert feeder.next_feed_at(hurry=False) == clock.now + 60
        assert feeder.next_feed_at(hurry=True) <= clock.now
        # A chunk of rows has reserved more than these rows take.
        check_goes_on_when(producer, clock, lambda: feeder.feed(clock.now, hurry=True))


def test_memory_that_came_when_the_time_was_over_is_found(clock: Clock) -> None:
    with with_memory() as producer:
        accumulator = producer._state.accumulator
        accumulator.pool.available_bytes = 0

        def too_late_to_be_woken() -> None:
            accumulator.pool.available_bytes = MEMORY_BYTES

        clock.after(1.0, too_late_to_be_woken)
        reserve(producer, 100, clock.now + 1.0)
        assert accumulator.pool.available_bytes == MEMORY_BYTES - 100
        accumulator.pool.available_bytes = MEMORY_BYTES


def test_who_has_no_time_left_gets_nothing_before_who_came_first(clock: Clock) -> None:
    with with_memory() as producer:
        accumulator = producer._state.accumulator
        accumulator.pool.available_bytes = 50
        began_at = clock.now

        def later() -> None:
            with pytest.raises(BufferExhaustedException, match="no room for 10 bytes"):
                reserve(producer, 10, began_at + 0.2)
            assert accumulator.pool.available_bytes == 50

        clock.after(0.1, later)
        clock.after(0.3, lambda: producer._state.give_back(PendingAppend(50)))
        reserve(producer, 100, began_at + 1.0)
        assert clock.now - began_at == pytest.approx(0.3)
        accumulator.pool.available_bytes = MEMORY_BYTES


def test_for_who_is_next_and_wants_more_the_io_thread_looks_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_memory() as producer:
        state = producer._state
        state.accumulator.pool.available_bytes, began, woken_at = 0, clock.now, []
        monkeypatch.setattr(state, "_wake", lambda: woken_at.append(clock.now))
        first = PendingAppend()
        state.accumulator.pool.wait(first)
        clock.after(FREED_AFTER_S, lambda: state._stop_waiting(first))
        clock.after(2 * FREED_AFTER_S, lambda: state.give_back(PendingAppend(MEMORY_BYTES)))
        reserve(producer, MEMORY_BYTES * 4 // 5, clock.now + 1)
        state.accumulator.pool.available_bytes = MEMORY_BYTES
    assert began + FREED_AFTER_S in woken_at


@pytest.mark.parametrize("frees", [True, False])
def test_a_task_waits_for_memory_as_long_as_brokers_acknowledge_records(
    clock: Clock, *, frees: bool
) -> None:
    config = {"bootstrap.servers": NOBODY, "buffer.memory": 100_000, "max.block.ms": 1000}
    producer = TaskProducer(producer_config(config))
    state, began_at = producer._state, clock.now
    state.accumulator.pool.available_bytes = 50
    for at in (0.9, 1.8, 2.7):
        clock.after(at, lambda: state.accumulator.acknowledged(1, clock.now))
    call = producer._caller.column_call()
    if frees:
        clock.after(3.6, lambda: state.give_back(PendingAppend(50)))
        producer._caller.reserve(PendingAppend(), 100, call)
        assert clock.now - began_at == pytest.approx(3.6)
    else:
        with pytest.raises(BufferExhaustedException, match="no room for 100 bytes"):
            producer._caller.reserve(PendingAppend(), 100, call)
        assert clock.now - began_at == pytest.approx(3.7)
    producer.close(0)
    producer._thread._client.close()  # as the I/O thread does
