"""Interrupted callers (Ctrl-C): at any moment, with nothing lost, duplicated or stuck.

Each moment of a call is tried with a producer of its own, which reaches no broker. Rows in its
batches expire, and callers that wait for a row get the error with the row's partition.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from support.pure.interrupts import (
    AlarmError,
    InterruptError,
    interrupt_first,
    interrupted,
    interrupted_twice,
    places_of,
)
from support.pure.pure_transactions import PureTransactions
from support.pure.state_waits import wait_until
from support.pure.timed_waits import made, stop_time, update_metadata
from support.pure.transaction_answers import COORDINATOR, versions_of
from support.pure.unreachable import NOBODY, TOPIC, answer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.client import appender, unclosed
from spark_kafka_sink.client.appender import Slice, SliceAppender
from spark_kafka_sink.client.io_thread import Feeder, ProducerThread
from spark_kafka_sink.client.producer_state import ProducerState
from spark_kafka_sink.errors import (
    IllegalStateException,
    KafkaException,
    TimeoutException,
    TransactionAbortedException,
)
from spark_kafka_sink.model import AppendFailure, RecordMetadata, TopicPartition
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.error_actions import Call
from spark_kafka_sink.producer.transactions.state import TransactionState
from spark_kafka_sink.records.encoder import encode_rows

# How many moments of each call are tried; all with 0.
MOMENTS = int(os.environ.get("INTERRUPTS", "30"))
SEED = int(os.environ.get("INTERRUPTS_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
PARTITIONS = 3
OTHER = "other"
ENOUGH_S = 20


class World:
    """A producer whose rows fail as soon as they wait to be sent."""

    def __init__(self, **config: object) -> None:
        options = {name.replace("_", "."): value for name, value in config.items()}
        short = {"delivery.timeout.ms": 1, "request.timeout.ms": 1, "linger.ms": 0}
        self.producer = KafkaProducer({"bootstrap.servers": NOBODY, **short, **options})
        self.delivered: Counter[int] = Counter()
        self.futures: dict[int, Future[RecordMetadata]] = {}
        self.partitions: dict[int, int] = {}
        state = self.producer._state
        known = answer([1] * PARTITIONS)
        known.topics.append(replace(known.topics[0], name=OTHER))
        with state.lock:
            for topic in (TOPIC, OTHER):
                state.metadata.track(topic, time.monotonic())
            state.metadata.update(known, time.monotonic())

    def send(self, rows: range) -> None:
        """Send rows one by one, each with a partition that depends on its number."""
        for row in rows:

            def delivered(metadata: RecordMetadata, _: object, row: int = row) -> None:
                self.delivered[row] += 1
                self.partitions[row] = metadata.partition

            partition = row % PARTITIONS
            self.futures[row] = self.producer.send(
                OTHER if row % 7 == 0 else TOPIC,
                b"x" * 200,
                partition=partition,
                on_delivery=delivered,
            )

    def append(self, rows: range) -> None:
        """Append rows as one Arrow batch."""

        def delivered(failure: AppendFailure) -> None:
            self.delivered.update((failure.rows + rows.start).tolist())

        batch = pa.record_batch(
            {
                "value": ["x" * 200] * len(rows),
                "partition": pa.array([row % PARTITIONS for row in rows], pa.int32()),
            }
        )
        self.producer.append(TOPIC, batch, delivered)

    def check(self) -> None:
        """Check that another thread can use the producer, and that it becomes idle."""
        with contextlib.suppress(KafkaException):
            if self.producer._caller.is_closed:
                self.producer.close()
            else:
                self.producer.flush(ENOUGH_S)
        state = self.producer._state
        accumulator = state.accumulator
        # Where the producer is over, its I/O thread fails what is left.
        wait_until(self.producer, lambda: not accumulator.has_incomplete, ENOUGH_S)
        with state.lock:
            assert (accumulator.pool.waiters, accumulator.flushes) == (0, 0)
            if state.fatal_error is None:
                assert (accumulator._held, accumulator._packing) == (set(), set())
                assert accumulator.pool.available_bytes == accumulator.pool.total_bytes
            else:
                assert re.search("interrupted a change|closed force", str(state.fatal_error))
        for row, future in self.futures.items():
            assert future.exception(ENOUGH_S) is not None
            assert self.delivered[row] == 1, row
        for row, partition in self.partitions.items():
            assert partition in (-1, row % PARTITIONS), row
        assert set(self.delivered.values()) <= {1}


def in_another_thread(call: Callable[[], None]) -> None:
    """Make a call that has to end; its thread has no locks yet."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(2 * ENOUGH_S)
    assert not thread.is_alive(), "it hangs"
    if failures:
        raise failures[0]


def some_rows(world: World) -> None:
    world.send(range(50))


def partitioner(_: str, batch: pa.RecordBatch, __: int) -> list[int]:
    """Choose what does not count, since all rows name their partitions."""
    return [0] * batch.num_rows


def rows_and_a_flush(world: World) -> None:
    world.send(range(3))
    with contextlib.suppress(KafkaException):
        world.producer.flush()


def rows_and_a_close(world: World) -> None:
    world.send(range(3))
    world.producer.close()


def a_batch(world: World) -> None:
    world.append(range(60))


def rows_that_wait_for_memory(world: World) -> None:
    for first in range(0, 40, 20):
        world.append(range(first, first + 20))


SMALL: dict[str, object] = {"batch_size": 2_000, "buffer_memory": 40_000}
CALLS: dict[str, tuple[Callable[[World], None], dict[str, object]]] = {
    "rows": (some_rows, SMALL),
    "compressed rows": (some_rows, SMALL | {"compression_type": "lz4", "batch_size": 1_000}),
    "rows through a partitioner": (some_rows, SMALL | {"partitioner_class": partitioner}),
    "flush through a partitioner": (rows_and_a_flush, {"partitioner_class": partitioner}),
    "flush": (rows_and_a_flush, {}),
    "columns": (a_batch, SMALL | {"buffer_memory": 20_000}),
    "compressed columns": (a_batch, {"compression_type": "lz4", "batch_size": 1_000}),
    "close": (rows_and_a_close, {}),
    "memory": (rows_that_wait_for_memory, {"buffer_memory": 5_600}),
}


def moments_of(call: Callable[[World], None], config: dict[str, object]) -> list[int]:
    """Draw moments of a call, up to a little after its end."""
    end = 64
    while True:
        world = World(**config)
        with contextlib.suppress(KafkaException):
            over = interrupted(lambda: call(world), end) is None  # noqa: B023 - called at once
        world.producer.close(0)
        if over:
            break
        end *= 2
    moments = list(range(1, end))
    return moments if not MOMENTS else sorted(random.Random(SEED).sample(moments, MOMENTS))


@pytest.mark.parametrize("error", [InterruptError, AlarmError])
@pytest.mark.parametrize("name", CALLS)
def test_a_caller_that_is_interrupted_loses_nothing_and_leaves_nothing_that_hangs(
    name: str, error: type[BaseException]
) -> None:
    print(f"INTERRUPTS_SEED={SEED}")
    call, config = CALLS[name]
    cut = tried = 0
    for moment in moments_of(call, config):
        world = World(**config)
        where: str | None = "in a call that failed"
        with contextlib.suppress(KafkaException):
            where = interrupted(lambda: call(world), moment, error)  # noqa: B023 - called at once
        tried += where is not None
        try:
            in_another_thread(world.check)
            if world.producer._caller.is_closed:
                pass
            elif world.producer._state.fatal_error is None:
                in_another_thread(lambda: world.send(range(1000, 1010)))  # noqa: B023
            else:
                cut += 1
            in_another_thread(world.check)
            in_another_thread(lambda: world.producer.close(0))  # noqa: B023
            assert world.producer._thread.join(ENOUGH_S)
            assert world.producer._feeder._pending == {}
        except BaseException as failure:
            failure.add_note(f"interrupted at moment {moment}: {where}; INTERRUPTS_SEED={SEED}")
            raise
    print(f"{name}: {cut} of {tried} end the producer")


def test_a_close_that_gives_up_rows_can_be_repeated_wherever_it_was_interrupted() -> None:
    moment, where = 0, None
    while not moment or where is not None:
        moment += 1
        world = World(delivery_timeout_ms=60_000, request_timeout_ms=60_000)
        world.send(range(3))
        world.append(range(3, 9))
        where = interrupted(lambda: world.producer.close(0), moment)  # noqa: B023 - called at once
        try:
            in_another_thread(lambda: world.producer.close(0))  # noqa: B023
            in_another_thread(world.check)
            assert sum(world.delivered.values()) == 9
            # After an interrupt, the call itself has waited for the thread for a second only.
            assert world.producer._thread.join(ENOUGH_S)
        except BaseException as failure:
            failure.add_note(f"interrupted at moment {moment}: {where}")
            raise
    assert moment > 50


@contextlib.contextmanager
def in_transaction(
    now: float, **config: object
) -> Iterator[tuple[KafkaProducer, PureTransactions]]:
    """Yield a producer with a topic of one partition and a transaction that takes rows."""
    transactions = PureTransactions()
    with made(transactional_id="tid", max_block_ms=0, linger_ms=1000, **config) as producer:
        state = producer._state
        with state.lock:
            state.metadata.track(TOPIC, now)
        update_metadata(producer, answer([1]))
        assert state.transactions is not None
        transactions.manager = state.transactions
        transactions.manager.queue.coordinators.node_ready(COORDINATOR, versions_of(2))
        transactions.writing()
        yield producer, transactions


@pytest.mark.parametrize("end", [KafkaProducer.commit_transaction, KafkaProducer.abort_transaction])
def test_an_end_of_a_transaction_that_is_interrupted_can_be_repeated_and_waits_for_all_rows(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[KafkaProducer], None]
) -> None:
    clock = stop_time(monkeypatch)
    print(f"INTERRUPTS_SEED={SEED}")
    moments = random.Random(SEED).sample(range(1, 600), MOMENTS) if MOMENTS else range(1, 1000)
    for moment in moments:
        with in_transaction(clock.now) as (producer, transactions):
            state = producer._state
            producer.send(TOPIC, b"x", partition=0)
            with contextlib.suppress(TimeoutException):
                interrupted(lambda: end(producer), moment)
            if state._interruption is not None:  # as the I/O thread does
                state.give_up(state._interruption)
            sent = [request.call for request in transactions.run()]
            in_chunks = sum(map(len, producer._feeder._pending))
            assert not (in_chunks and Call.COMMIT in sent), moment
            if state.fatal_error is None:
                with contextlib.suppress(KafkaException):
                    end(producer)
                sent += [request.call for request in transactions.run()]
                assert len(sent) == 1, moment


@pytest.mark.parametrize("config", [{}, {"partitioner_class": partitioner}])
def test_an_abort_that_is_interrupted_returns_the_memory_of_the_rows_that_it_drops(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, object]
) -> None:
    clock = stop_time(monkeypatch)
    moment, where = 0, None
    while not moment or where is not None:
        moment += 1
        with in_transaction(clock.now, **config) as (producer, transactions):
            state, feeder = producer._state, producer._feeder
            sent = producer.send(TOPIC, b"x", partition=0)
            (queue,) = feeder._pending.values()
            where = None
            with contextlib.suppress(TimeoutException):
                where = interrupted(producer.abort_transaction, moment)
            if state._interruption is not None:
                continue
            # The I/O thread would try again and again to finish a chunk that is over.
            assert not any(chunk.is_over for chunk in feeder._pending), where
            transactions.run()
            with contextlib.suppress(KafkaException):
                producer.abort_transaction()
            transactions.run()
            state.make_calls()
            assert isinstance(sent.exception(0), TransactionAbortedException), where
            assert (feeder._pending, queue.under_way) == ({}, None), where
            pool = state.accumulator.pool
            assert pool.available_bytes == pool.total_bytes, where
    assert moment > 50


def clean_up(producer: KafkaProducer) -> None:
    """Do what the I/O thread does first."""
    state = producer._state
    with state.lock:
        state._clean_up_for_good()
        assert state.left_behind == {}


def append_rows(producer: KafkaProducer) -> None:
    producer.append(TOPIC, pa.record_batch({"value": ["x"] * 5}))


def append_slices(producer: KafkaProducer) -> None:
    rows = pa.record_batch({"value": ["x" * 30_000] * 40})
    producer.append(TOPIC, rows)


def send_row(producer: KafkaProducer) -> None:
    producer.send(TOPIC, b"x", partition=0)


def flush(producer: KafkaProducer) -> None:
    producer.flush(0)


@pytest.mark.parametrize(
    ("call", "first", "second"),
    [
        (append_rows, "_state.put_in", "_state.let_go"),
        (append_rows, "_state.hold", "_state.release"),
        (append_rows, "_appender.append", "_state.end_append"),
        (append_rows, "_state.give_back", "_state.release"),
        (append_slices, "_appender.pack", "_state.spoil_transaction"),
        (send_row, "_feeder.begin", "_state.release"),
        (flush, "_state.let_go", "_feeder._end"),
        (flush, "_feeder._end", "_state.give_back"),
        (flush, "_state.put_in", "_state.let_go"),
        (flush, "_state.wait", "_state.end_flush"),
        (append_rows, "_state.accumulator.append", "_state._change._interrupted"),
    ],
    ids=lambda given: given if isinstance(given, str) else given.__name__,
)
def test_what_two_interrupts_leave_behind_is_cleaned_up_by_the_io_thread(
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[KafkaProducer], None],
    first: str,
    second: str,
) -> None:
    clock = stop_time(monkeypatch)
    with in_transaction(clock.now, buffer_memory=2_000_000) as (producer, _):
        state, manager = producer._state, producer._state.transactions
        assert manager is not None
        if call is flush:
            send_row(producer)
        for name in (first, second):
            *owners, method = name.split(".")
            owner: object = producer
            for each in owners:
                owner = getattr(owner, each)
            interrupt_first(monkeypatch, owner, method)
        with pytest.raises(InterruptError):
            call(producer)
        clean_up(producer)
        accumulator, feeder = state.accumulator, producer._feeder
        held = (
            accumulator.pool.waiters,
            accumulator.flushes,
            accumulator._held,
            accumulator._packing,
        )
        assert held == (0, 0, set(), set())
        assert manager.open_appends == 0
        feeder.feed(clock.now + 10, hurry=True)  # as the I/O thread does
        assert feeder._pending == {}
        rows = sum(batch.record_count for batch in accumulator.incomplete)
        if call is append_slices:
            # The transaction of a part of an append can only be aborted.
            assert manager.state is TransactionState.ABORTABLE_ERROR
        elif call is append_rows:
            assert rows in (0, 5)
        else:
            assert rows <= 1
        if "accumulator" in first:
            assert "interrupted a change" in str(state.fatal_error)
            return
        state.give_up(KafkaException("the end"))
        assert accumulator.pool.available_bytes == accumulator.pool.total_bytes


def interrupt_commit_twice(
    monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer, transactions: PureTransactions
) -> None:
    """Interrupt a commit inside its change, and then what would end the producer."""
    interrupt_first(monkeypatch, transactions.manager.queue, "add")
    interrupt_first(monkeypatch, producer._state._change, "_interrupted")
    with pytest.raises(InterruptError):
        producer.commit_transaction()


def test_a_commit_after_an_interrupted_change_says_that_the_producer_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = stop_time(monkeypatch)
    with in_transaction(clock.now) as (producer, transactions):
        interrupt_commit_twice(monkeypatch, producer, transactions)
        check_open = producer._caller.check_open

        def check_and_go_on_late() -> None:
            check_open()
            clean_up(producer)

        monkeypatch.setattr(producer._caller, "check_open", check_and_go_on_late)
        with pytest.raises(KafkaException, match="interrupted a change to the producer's batches"):
            producer.commit_transaction()


def test_a_row_that_fails_at_once_because_of_an_interrupted_change_is_said_to_be_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = stop_time(monkeypatch)
    with in_transaction(clock.now) as (producer, transactions):
        state, feeder = producer._state, producer._feeder
        interrupt_first(monkeypatch, transactions.manager.queue, "add")
        for _ in range(2):
            send_row(producer)
        feeder.drain(None)
        send_row(producer)
        with contextlib.suppress(InterruptError), producer:
            try:
                producer.commit_transaction()
            finally:  # as the I/O thread does, before the caller goes on
                assert state._interruption is not None
                state.give_up(state._interruption)
                feeder.give_up(state._interruption)
                state.make_calls()
        assert f"3 record(s) ({TOPIC}: 3) were not delivered" in caplog.text


def test_a_change_of_the_io_thread_does_not_hide_that_the_change_before_it_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = stop_time(monkeypatch)
    with in_transaction(clock.now) as (producer, transactions):
        interrupt_commit_twice(monkeypatch, producer, transactions)
        producer._state.call_later(lambda: None)
        with pytest.raises(KafkaException, match="interrupted a change to the producer's batches"):
            producer.commit_transaction()


def test_cleaning_up_after_an_interrupted_caller_does_not_disturb_the_one_that_takes_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = stop_time(monkeypatch)
    with in_transaction(clock.now) as (producer, _):
        send_row(producer)
        held: list[set[TopicPartition]] = []

        def encode(*args: Any) -> Any:  # noqa: ANN401 - handed on
            if not held:
                held.append(set())
                raise InterruptError
            clean_up(producer)
            held.append(set(producer._state.accumulator._held))
            return encode_rows(*args)

        monkeypatch.setattr(appender, "encode_rows", encode)
        with pytest.raises(InterruptError):
            producer._feeder.drain()
        producer._feeder.drain()
        assert held == [set(), {TopicPartition(TOPIC, 0)}]
        assert producer._state.accumulator._held == set()


@pytest.mark.parametrize("gap", [1, 4])
def test_a_chunk_that_an_abort_did_not_finish_because_of_two_interrupts_is_finished_later(
    monkeypatch: pytest.MonkeyPatch, gap: int
) -> None:
    clock = stop_time(monkeypatch)
    moment, where = 0, [""]
    while where:
        moment += 1
        with in_transaction(clock.now) as (producer, _):
            state, feeder = producer._state, producer._feeder
            producer.send(TOPIC, b"x", partition=0)
            where = []
            with contextlib.suppress(TimeoutException, IllegalStateException):
                where = interrupted_twice(producer.abort_transaction, moment, gap)
            clean_up(producer)
            if state._interruption is None:
                feeder.feed(clock.now + 10, hurry=True)  # as the I/O thread does
                assert feeder._pending == {}, where
                pool = state.accumulator.pool
                state.give_up(KafkaException("the end"))
                assert pool.available_bytes == pool.total_bytes, where
    assert moment > 50


def test_a_constructor_that_is_interrupted_at_its_end_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[ProducerThread] = []
    start = ProducerThread.start

    def remember_thread(self: ProducerThread, feeder: Feeder | None = None) -> None:
        started.append(self)
        start(self, feeder)

    def interrupt(*_: object) -> None:
        raise InterruptError

    monkeypatch.setattr(ProducerThread, "start", remember_thread)
    monkeypatch.setattr(unclosed, "remember", interrupt)
    with pytest.raises(InterruptError):
        KafkaProducer({"bootstrap.servers": NOBODY})
    assert [thread.is_alive for thread in started] == [False]


def write_in_the_next_transaction(producer: KafkaProducer) -> None:
    """End the interrupted abort, and append a row in a new transaction."""
    with contextlib.suppress(IllegalStateException):  # the abort had ended
        producer.abort_transaction()
    producer.begin_transaction()
    producer.append(TOPIC, pa.record_batch({"value": ["y"]}))


@pytest.mark.parametrize("go_on", [write_in_the_next_transaction, KafkaProducer.close])
def test_an_error_of_rows_that_an_interrupted_abort_has_dropped_is_not_raised_later(
    monkeypatch: pytest.MonkeyPatch, go_on: Callable[[KafkaProducer], None]
) -> None:
    clock = stop_time(monkeypatch)
    moment, where = 0, None
    while not moment or where is not None:
        moment += 1
        with in_transaction(clock.now) as (producer, transactions):
            state = producer._state
            producer.append(TOPIC, pa.record_batch({"value": ["x"]}))
            with pytest.raises(TimeoutException):
                producer.abort_transaction()
            # As the I/O thread does: drop the batch, and end the transaction.
            state._sender._follow_transaction(transactions.manager)
            state._collect()
            transactions.run()
            assert isinstance(state.deliveries.error, TransactionAbortedException)
            where = interrupted(producer.abort_transaction, moment)
            # An interrupt in the middle of a change ends the producer, so it can only be closed.
            if state.fatal_error is not None and go_on is not KafkaProducer.close:
                continue
            try:
                go_on(producer)
            except KafkaException as error:
                error.add_note(f"interrupted at moment {moment}: {where}")
                raise
    assert moment > 30


def reserved(producer: KafkaProducer, _: pytest.MonkeyPatch) -> Callable[[], None]:
    """Reserve memory; return the call that returns it, as of rows of `send`."""
    state, pending = producer._state, PendingAppend()
    assert state.accumulator.pool.reserve(pending, 500)

    def give_back() -> None:
        if pending.size_bytes:
            state.give_back(pending)

    return give_back


def compressed(producer: KafkaProducer, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Append rows that fill batches; return the call that accounts for these, compressed."""
    state, pendings, packed = producer._state, list[PendingAppend](), ProducerState.packed
    with monkeypatch.context() as patch:
        patch.setattr(ProducerState, "packed", lambda _, pending: pendings.append(pending))
        producer.append(TOPIC, pa.record_batch({"value": ["x" * 200] * 30}))
    (pending,) = pendings
    return lambda: packed(state, pending)


@pytest.mark.parametrize("taken", [reserved, compressed])
def test_who_waits_for_memory_is_woken_also_where_the_caller_that_returns_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
    taken: Callable[[KafkaProducer, pytest.MonkeyPatch], Callable[[], None]],
) -> None:
    clock = stop_time(monkeypatch)
    moment, where, available = 0, None, set[int]()
    while not moment or where is not None:
        moment += 1
        with made(compression_type="lz4", batch_size=1_000) as producer:
            state = producer._state
            with state.lock:
                state.metadata.track(TOPIC, clock.now)
            update_metadata(producer, answer([1]))
            give_back = taken(producer, monkeypatch)
            signal = state._waiters.add()
            where = interrupted(give_back, moment)
            if state.fatal_error is not None:
                assert "interrupted a change" in str(state.fatal_error)
                continue
            give_back()  # as after the interrupt of a caller
            assert not signal.locked(), where
            assert state.accumulator._packing == set(), where
            available.add(state.accumulator.pool.available_bytes)
    assert moment > 5
    assert len(available) == 1


def test_a_delivery_error_is_kept_with_its_rows_until_a_call_returns_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop_time(monkeypatch)
    moment, where = 0, None
    while not moment or where is not None:
        moment += 1
        with made() as producer:
            state, error = producer._state, KafkaException("not delivered")
            state.count_lost()
            state.refuse(5, error, TOPIC)
            state._counts_rows_of_send = False
            state.keep_delivery_error(error)
            where = interrupted(state.take_delivery_error, moment)
            if where is not None:
                assert state.lost() == {TOPIC: 5}, where
                assert state.take_delivery_error() is error, where
            assert state.take_delivery_error() is None
            assert state.lost() == {}
    assert moment > 5


def test_rows_whose_caller_was_interrupted_go_before_those_that_are_sent_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append, appended, interrupts = SliceAppender.append, list[int](), [KeyboardInterrupt]

    def interrupted_once(
        self: SliceAppender,
        each: Slice,
        *args: Any,  # noqa: ANN401 - handed on
        **more: Any,  # noqa: ANN401
    ) -> None:
        if interrupts:
            raise interrupts.pop()
        appended.extend(each.rows.columns.timestamps_ms.tolist())
        append(self, each, *args, **more)

    monkeypatch.setattr(SliceAppender, "append", interrupted_once)
    config = {"delivery_timeout_ms": 120_000, "request_timeout_ms": 1000, "linger_ms": 60_000}
    world, sent = World(**config), 0
    while len(appended) < 200:
        with contextlib.suppress(KeyboardInterrupt):
            world.producer.send(TOPIC, b"x" * 200, partition=0, timestamp_ms=sent)
        sent += 1
    in_another_thread(lambda: world.producer.close(0))
    assert appended == sorted(appended)
    assert appended[0] == 0
    assert interrupts == []


# Nothing is sent, and no row is appended before its chunk is full.
SLOWLY = {"delivery_timeout_ms": 120_000, "request_timeout_ms": 1000, "linger_ms": 60_000}


class OneByOne:
    """Sends rows to one partition until the next row finds its chunk full."""

    def __init__(self, config: dict[str, object]) -> None:
        max_block = {"max_block_ms": ENOUGH_S * 1000}
        self.producer = World(**SLOWLY, **max_block, **config).producer
        self.futures: list[Future[RecordMetadata]] = []
        self._sent = 0
        self.send()
        self._queue = self.producer._rows._queues[TOPIC]
        self.fill_a_chunk()

    def fill_a_chunk(self) -> None:
        """Send rows until there is no room."""
        while self._queue.room >= 236:
            self.send()

    def send(self) -> None:
        """Send a row; its timestamp is its number."""
        number, self._sent = self._sent, self._sent + 1
        self.futures.append(self.producer.send(TOPIC, b"x" * 200, partition=0, timestamp_ms=number))

    def drain(self) -> None:
        """Put all rows into batches."""
        self.producer._feeder.drain()


@pytest.mark.parametrize("call", [OneByOne.send, OneByOne.drain])
@pytest.mark.parametrize("config", [{}, {"partitioner_class": partitioner}])
def test_rows_keep_their_order_wherever_the_hand_over_of_a_full_chunk_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, object],
    call: Callable[[OneByOne], None],
) -> None:
    append, appended = SliceAppender.append, list[int]()

    def append_and_note(
        self: SliceAppender,
        each: Slice,
        *args: Any,  # noqa: ANN401 - handed on
        **more: Any,  # noqa: ANN401
    ) -> None:
        append(self, each, *args, **more)
        appended.extend(each.rows.columns.timestamps_ms.tolist())

    monkeypatch.setattr(SliceAppender, "append", append_and_note)
    for _ in range(2):  # the first time, more is called, such as imports
        rows = OneByOne(config)
        places = places_of(lambda: call(rows))  # noqa: B023 - called at once
        rows.producer.close(0)
    ours = ("ChunkFeeder", "Partitioner", "RowQueue")
    moments = [moment for moment, place in enumerate(places, 1) if place.startswith(ours)]
    for moment in moments:
        appended.clear()
        rows = OneByOne(config)
        where = interrupted(lambda: call(rows), moment)  # noqa: B023 - called at once
        try:
            if rows.producer._state.fatal_error is not None:
                continue
            # The two chunks after it go the same way.
            for _ in range(3):
                rows.send()
                rows.fill_a_chunk()
            rows.drain()
            failed = [each.exception(0) for each in rows.futures if each.done()]
            assert failed == []
            assert appended == sorted(appended)
            batches, accepted = rows.producer._state.accumulator.incomplete, len(rows.futures)
            # The caller may have been interrupted before it got the row's future.
            assert sum(batch.record_count for batch in batches) in (accepted, accepted + 1)
        except BaseException as failure:
            failure.add_note(f"interrupted at moment {moment}: {where}")
            raise
        finally:
            rows.producer.close(0)
    assert len(moments) > 20
