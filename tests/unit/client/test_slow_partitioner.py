"""A user's partitioner that is slow or never returns: rows of other topics do not wait.

No broker can be reached: rows that passed the partitioner wait in batches.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from support.brokers.mock_cluster import MockCluster
from support.pure.log_handlers import handling
from support.pure.pure_producer import TOPIC
from support.pure.state_waits import wait_until
from support.pure.unreachable import NOBODY, answer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.client import chunk_feeder, partitioner_threads
from spark_kafka_sink.client.chunk import SMALLEST_CHUNK_BYTES
from spark_kafka_sink.client.partitioner_threads import PartitionerThreads
from spark_kafka_sink.errors import IllegalStateException, KafkaException, TimeoutException
from spark_kafka_sink.producer.buffer_pool import PendingAppend

OTHER = "other"
A_WHILE_S = 20
A_LONG_TIME_MS = 600_000
BIG = b"x" * (SMALLEST_CHUNK_BYTES // 2)

# Rows expire soon, but not before a busy machine calls the partitioner: then it is not called.
QUICKLY_OVER = {"linger_ms": 0, "request_timeout_ms": 500, "delivery_timeout_ms": 500}


class SlowPartitioner:
    """Does not return for rows of the topic until the test says so; records its calls."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.calls: list[tuple[str, int]] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, topic: str, batch: pa.RecordBatch, partitions: int) -> list[int]:
        """Choose the last partition."""
        self.threads.add(threading.current_thread())
        if topic == TOPIC:
            self.reached.set()
            assert self.opened.wait(A_WHILE_S)
        self.calls.append((topic, batch.num_rows))
        return [partitions - 1] * batch.num_rows


@contextmanager
def producing(partitioner: object, **options: object) -> Iterator[KafkaProducer]:
    """Yield a producer that knows two topics of two partitions and reaches no broker."""
    configs: dict[str, Any] = {
        "bootstrap.servers": NOBODY,
        "reconnect.backoff.ms": A_LONG_TIME_MS,
        "reconnect.backoff.max.ms": A_LONG_TIME_MS,
        "linger.ms": A_LONG_TIME_MS,
        "delivery.timeout.ms": 2 * A_LONG_TIME_MS,
        "partitioner.class": partitioner,
        **{name.replace("_", "."): value for name, value in options.items()},
    }
    producer = KafkaProducer(configs)
    try:
        known = answer([1, 1])
        known.topics.append(replace(known.topics[0], name=OTHER))
        with producer._state.lock:
            for topic in (TOPIC, OTHER):
                producer._state.metadata.track(topic, time.monotonic())
            producer._state.metadata.update(known, time.monotonic())
        yield producer
    finally:
        producer.close(0)


def wait_for(producer: KafkaProducer, what: Callable[[], object]) -> None:
    """Wait until the producer has come to something."""
    wait_until(producer, what, A_WHILE_S)


def rows_in_batches(producer: KafkaProducer) -> dict[str, int]:
    """Count by topic the rows in batches."""
    rows: dict[str, int] = {}
    for batch in producer._state.accumulator.incomplete:
        topic = batch.topic_partition.topic
        rows[topic] = rows.get(topic, 0) + batch.record_count
    return rows


def all_memory_is_free(producer: KafkaProducer) -> bool:
    accumulator = producer._state.accumulator
    return accumulator.pool.available_bytes == accumulator.pool.total_bytes


@contextmanager
def flushing(producer: KafkaProducer) -> Iterator[None]:
    """Flush in another thread meanwhile."""

    def flush_to_the_end() -> None:
        with suppress(KafkaException):  # it raises that the producer was closed
            producer.flush()

    flush = threading.Thread(target=flush_to_the_end)
    flush.start()
    yield
    producer.close(0)
    flush.join(A_WHILE_S)
    assert not flush.is_alive()


def send(producer: KafkaProducer, topic: str) -> None:
    producer.send(topic, b"v")


def send_to_a_partition(producer: KafkaProducer, topic: str) -> None:
    producer.send(topic, b"v", partition=0)


def append(producer: KafkaProducer, topic: str) -> None:
    producer.append(topic, pa.record_batch({"value": ["v"]}))


@pytest.mark.parametrize("put", [send, send_to_a_partition, append])
@pytest.mark.parametrize("by", ["linger", "flush"])
def test_rows_of_another_topic_do_not_wait(
    by: str, put: Callable[[KafkaProducer, str], None]
) -> None:
    slow = SlowPartitioner()
    with producing(slow, linger_ms=1 if by == "linger" else 100) as producer:
        producer.send(TOPIC, b"slow")
        with flushing(producer) if by == "flush" else nullcontext():
            assert slow.reached.wait(A_WHILE_S)
            put(producer, OTHER)
            wait_for(producer, lambda: rows_in_batches(producer) == {OTHER: 1})
            slow.opened.set()
            wait_for(producer, lambda: rows_in_batches(producer) == {OTHER: 1, TOPIC: 1})


@pytest.mark.parametrize("end", [KafkaProducer.flush, KafkaProducer.close])
def test_rows_of_another_topic_are_sent_while_a_flush_waits_for_the_partitioner(
    end: Callable[[KafkaProducer, float], None],
) -> None:
    slow = SlowPartitioner()
    with producing(slow) as producer:
        for put in (send, send_to_a_partition, append):
            put(producer, OTHER)
        producer.send(TOPIC, b"slow")

        def end_too_early() -> None:
            with pytest.raises(KafkaException):
                end(producer, 1)

        ending = threading.Thread(target=end_too_early)
        ending.start()
        # No batch lingers during a flush.
        accumulator = producer._state.accumulator
        wait_for(producer, lambda: accumulator.flushes and rows_in_batches(producer) == {OTHER: 3})
        ending.join(A_WHILE_S)
        slow.opened.set()


@pytest.mark.parametrize("end", [KafkaProducer.flush, KafkaProducer.close])
def test_a_flush_that_a_partitioner_outlasts_delivers_the_rows_of_other_topics(
    end: Callable[[KafkaProducer, float], None],
) -> None:
    slow = SlowPartitioner()
    with MockCluster() as cluster:
        for topic in (TOPIC, OTHER):
            cluster.create_topic(topic)
        config = {"bootstrap.servers": cluster.bootstrap, "linger.ms": A_LONG_TIME_MS}
        config |= {"delivery.timeout.ms": 2 * A_LONG_TIME_MS, "partitioner.class": slow}
        producer = KafkaProducer(config)
        try:
            producer._partition_counts({TOPIC: 1, OTHER: 1})
            quick = producer.send(OTHER, b"v")
            producer.send(TOPIC, b"slow")
            with pytest.raises(TimeoutException, match="has not chosen the partitions of 1 row"):
                end(producer, 2)
            assert quick.result(0).offset == 0
        finally:
            slow.opened.set()
            producer.close(0)


def rows_that_linger(producer: KafkaProducer) -> None:
    producer.send(TOPIC, b"v")
    wait_for(producer, lambda: rows_in_batches(producer))


def a_full_chunk(producer: KafkaProducer) -> None:
    for _ in range(4):
        producer.send(TOPIC, BIG)


def rows_that_others_want_the_memory_of(producer: KafkaProducer) -> None:
    producer.send(TOPIC, b"v")
    size_bytes = producer._state.accumulator.pool.available_bytes + 1
    producer._caller.reserve(PendingAppend(), size_bytes, producer._caller.row_call())


def a_flush(producer: KafkaProducer) -> None:
    producer.send(TOPIC, b"v")
    said = ""
    while "not acknowledged" not in said:  # until then, the partitioner has not returned
        with pytest.raises(KafkaException) as late:
            producer.flush(0.01)
        said = str(late.value)


def an_append_behind_rows(producer: KafkaProducer) -> None:
    producer.send(TOPIC, b"v")
    producer.append(TOPIC, pa.record_batch({"value": ["v"], "partition": pa.array([0], "int32")}))


def a_close(producer: KafkaProducer) -> None:
    producer.send(TOPIC, b"v")
    with pytest.raises(KafkaException):
        producer.close(0.5)  # long enough for a busy machine to call the partitioner before


WAYS: dict[Callable[[KafkaProducer], None], dict[str, object]] = {
    rows_that_linger: {"linger_ms": 0},
    a_full_chunk: {},
    rows_that_others_want_the_memory_of: {"buffer_memory": 150_000},
    a_flush: {},
    an_append_behind_rows: {},
    a_close: {},
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_send_are_partitioned_by_a_thread_that_has_neither_lock_nor_turn(
    way: Callable[[KafkaProducer], None],
) -> None:
    seen: list[tuple[bool, bool, bool]] = []
    made: list[KafkaProducer] = []

    def partitioner(_: str, batch: pa.RecordBatch, __: int) -> list[int]:
        thread, append_lock = made[0]._thread, made[0]._appender.append_lock
        state = made[0]._state
        locks: list[Any] = [state.lock, *(queue.lock for queue in made[0]._rows._queues.values())]
        # Nobody else has the turn for long.
        got_append_lock = append_lock.acquire(timeout=A_WHILE_S)
        append_lock.release()
        got_locks = all(lock.acquire(timeout=A_WHILE_S) for lock in locks)
        for lock in locks:
            lock.release()
        seen.append((thread.is_current, got_append_lock, got_locks))
        return [0] * batch.num_rows

    with producing(partitioner, **WAYS[way]) as producer:
        made.append(producer)
        way(producer)
    assert set(seen) == {(False, True, True)}


def test_rows_of_a_topic_keep_their_order_and_one_call_at_a_time() -> None:
    inside, most = [0], [0]
    counting = threading.Lock()

    def partitioner(_: str, batch: pa.RecordBatch, __: int) -> list[int]:
        with counting:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        try:
            return [0] * batch.num_rows
        finally:
            with counting:
                inside[0] -= 1

    with producing(partitioner, linger_ms=0, batch_size=10_000_000) as producer:
        timestamps: list[int] = []
        append_slice = producer._appender.append

        def append_and_note(each: Any, *args: Any, **more: Any) -> None:  # noqa: ANN401 - handed on
            timestamps.extend(each.rows.columns.timestamps_ms.tolist())
            append_slice(each, *args, **more)

        producer._appender.append = append_and_note  # type: ignore[method-assign] # to see the order
        for number in range(5000):
            producer.send(TOPIC, b"x" * 100, timestamp_ms=number)
        wait_for(producer, lambda: rows_in_batches(producer).get(TOPIC) == 5000)
    assert timestamps == list(range(5000))
    assert most == [1]


def test_a_wait_for_a_partitioner_is_as_long_as_it_may_be() -> None:
    slow = SlowPartitioner()
    with producing(slow, max_block_ms=50) as producer:
        first = producer.send(TOPIC, BIG)
        said = re.escape("partitioner.class SlowPartitioner has not chosen the partitions of 1 row")
        with pytest.raises(TimeoutException, match=said):
            producer.flush(0.01)
        # There is room in the next chunk for a while; the row that finds it full has to wait.
        for _ in range(10):
            sent = producer.send(TOPIC, BIG)
            if sent.done():
                break
        with pytest.raises(TimeoutException, match=said):
            sent.result(0)
        with pytest.raises(TimeoutException, match=said):
            append(producer, TOPIC)
        assert not first.done()
        slow.opened.set()
        wait_for(producer, lambda: rows_in_batches(producer))


def test_rows_whose_partitioner_never_returns_expire() -> None:
    slow = SlowPartitioner()
    with producing(slow, **QUICKLY_OVER) as producer:
        sent = producer.send(TOPIC, b"v")
        behind = None
        assert slow.reached.wait(A_WHILE_S)
        behind = producer.send(TOPIC, b"v")
        for future in (sent, behind):
            with pytest.raises(
                TimeoutException, match=r"=500: partitioner\.class SlowPartitioner has"
            ):
                future.result(A_WHILE_S)
        producer.flush()
        wait_for(producer, lambda: all_memory_is_free(producer))
        # Its result comes too late now.
        slow.opened.set()
        late = producer.send(TOPIC, b"v")
        wait_for(producer, lambda: len(slow.calls) == 2)
        assert "=500: waiting to be sent" in str(late.exception(A_WHILE_S))
        assert slow.calls == [(TOPIC, 1)] * 2


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_partitioner_that_raises_fails_its_rows_alone(kind: type[BaseException]) -> None:
    def partitioner(_: str, batch: pa.RecordBatch, __: int) -> list[int]:
        if b"bad" in batch["value"].to_pylist():
            raise kind("no place")
        return [0] * batch.num_rows

    with producing(partitioner, linger_ms=0) as producer:
        said = f"partitioner.class raised {kind.__name__} for 1 row.* of topic t, .*: no place"
        with pytest.raises(KafkaException, match=said):
            producer.send(TOPIC, b"bad").result(A_WHILE_S)
        wait_for(producer, lambda: all_memory_is_free(producer))
        producer.send(TOPIC, b"good")
        wait_for(producer, lambda: rows_in_batches(producer) == {TOPIC: 1})


class UnspeakableError(Exception):
    """An exception that does not say what it is."""

    def __str__(self) -> str:
        raise UnspeakableError


def test_a_partitioner_whose_exception_cannot_be_printed_fails_its_rows_alone() -> None:
    def partitioner(_: str, batch: pa.RecordBatch, __: int) -> list[int]:
        if b"bad" in batch["value"].to_pylist():
            raise UnspeakableError
        return [0] * batch.num_rows

    with producing(partitioner, linger_ms=0) as producer:
        said = "partitioner.class raised UnspeakableError for 1 row.*: <its __str__ raised>"
        with pytest.raises(KafkaException, match=said):
            producer.send(TOPIC, b"bad").result(A_WHILE_S)
        wait_for(producer, lambda: all_memory_is_free(producer))
        producer.send(TOPIC, b"good")
        wait_for(producer, lambda: rows_in_batches(producer) == {TOPIC: 1})


def raising_partitioner(_: str, batch: pa.RecordBatch, __: int) -> list[int]:
    """Choose the first partition; raise for bad rows."""
    if b"bad" in batch["value"].to_pylist():
        message = "no place"
        raise ValueError(message)
    return [0] * batch.num_rows


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_a_log_handler_that_raises_as_the_partitioner_does_keeps_no_row_from_its_end(
    kind: type[BaseException],
) -> None:
    def fail() -> None:
        raise kind

    with producing(raising_partitioner, linger_ms=0) as producer:
        with handling("partitioner.class failed", fail) as handler:
            error = producer.send(TOPIC, b"bad").exception(A_WHILE_S)
            assert "no place" in str(error)
            assert handler.came.wait(A_WHILE_S)
            producer.send(TOPIC, b"good")
            wait_for(producer, lambda: rows_in_batches(producer) == {TOPIC: 1})
        assert len(handler.lines) == 1


def test_the_text_of_a_partitioner_s_exception_is_made_without_the_lock() -> None:
    held = list[bool]()

    class SeeingError(Exception):
        def __str__(self) -> str:
            held.append(producer._appender.append_lock.locked())
            return "seen"

    def partitioner(_: str, __: pa.RecordBatch, ___: int) -> list[int]:
        raise SeeingError

    with producing(partitioner, linger_ms=0) as producer:
        with pytest.raises(KafkaException, match="seen"):
            producer.send(TOPIC, b"bad").result(A_WHILE_S)
        assert held
        assert not any(held)


def broken(*_: object) -> None:
    message = "broken"
    raise ValueError(message)


@pytest.mark.parametrize(
    ("words", "value", "partitioner"),
    [
        ("partitioner.class failed for rows of topic t", b"bad", raising_partitioner),
        ("rows for topic t could not be encoded", b"v", None),
    ],
)
def test_rows_that_fail_are_logged_with_neither_lock_nor_turn(
    words: str, value: bytes, partitioner: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    if partitioner is None:
        monkeypatch.setattr(chunk_feeder, "record_sizes", broken)
    found: list[bool] = []
    with producing(partitioner, linger_ms=0) as producer:

        def see_locks() -> None:
            def take() -> None:
                for lock in (producer._appender.append_lock, producer._state.lock):
                    found.append(lock.acquire(timeout=5))
                    lock.release()

            other = threading.Thread(target=take)
            other.start()
            other.join()

        with handling(words, see_locks) as handler:
            producer.send(TOPIC, value)
            assert handler.came.wait(A_WHILE_S)
    assert found == [True, True]


def test_a_partitioner_that_waits_for_the_producer_that_asks_it_is_refused() -> None:
    made: list[KafkaProducer] = []
    refused: list[str] = []

    def partitioner(_: str, batch: pa.RecordBatch, __: int) -> list[int]:
        for wait in (sent.result, made[0].flush, partial(append, made[0], TOPIC)):
            with pytest.raises(IllegalStateException) as refusal:
                wait()
            refused.append(str(refusal.value))
        return [0] * batch.num_rows

    with producing(partitioner, max_block_ms=A_LONG_TIME_MS) as producer:
        made.append(producer)
        sent = producer.send(TOPIC, b"v")
        with flushing(producer):
            wait_for(producer, lambda: rows_in_batches(producer))
    assert len(refused) == 3
    assert all("would wait for the partitioner" in each for each in refused)


@pytest.mark.parametrize("topic", [TOPIC, OTHER, "unknown"])
def test_a_partitioner_that_sends_to_its_own_producer_is_refused_from_the_first_row_on(
    topic: str,
) -> None:
    """The call would wait if memory or a chunk were full. Another producer accepts the rows."""
    refused: list[str] = []

    def append_nothing() -> None:
        own.append(topic, pa.record_batch({"value": pa.array([], pa.string())}))

    def partitioner(_: str, batch: pa.RecordBatch, __: int) -> list[int]:
        puts = (send, send_to_a_partition, append)
        calls: list[Callable[[], None]] = [partial(put, own, topic) for put in puts]
        for call in (*calls, append_nothing):
            with pytest.raises(IllegalStateException) as refusal:
                call()
            refused.append(str(refusal.value))
        send(other, OTHER)
        return [0] * batch.num_rows

    with (
        producing(None, max_block_ms=A_LONG_TIME_MS) as other,
        producing(partitioner, max_block_ms=A_LONG_TIME_MS) as own,
    ):
        send(own, OTHER)
        send(own, TOPIC)
        with flushing(own):
            wait_for(own, lambda: rows_in_batches(own) == {TOPIC: 1, OTHER: 1})
        other._feeder.drain()
        assert rows_in_batches(other) == {OTHER: 2}
    assert len(refused) == 8
    assert all("a partitioner has called its own producer" in each for each in refused)


def test_rows_that_no_thread_can_be_started_for_are_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_thread(*_: object) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    with producing(SlowPartitioner()) as producer:
        monkeypatch.setattr(producer._feeder._threads, "run", no_thread)
        sent = producer.send(TOPIC, b"v")
        producer.flush()
        said = (
            "the thread that calls partitioner.class could not be started: can't start new thread"
        )
        with pytest.raises(KafkaException, match=said):
            sent.result(A_WHILE_S)
        wait_for(producer, lambda: all_memory_is_free(producer))


def test_the_permanent_thread_suffices_where_no_other_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This happens when the program ends, from Python 3.12 on."""

    def no_thread(*_: object) -> None:
        message = "can't create new thread at interpreter shutdown"
        raise RuntimeError(message)

    def partitioner(_: str, batch: pa.RecordBatch, __: int) -> list[int]:
        return [0] * batch.num_rows

    with producing(partitioner) as producer:
        refusing = SimpleNamespace(start_new_thread=no_thread)
        monkeypatch.setattr(partitioner_threads, "_thread", refusing)
        for topic in (TOPIC, OTHER):
            producer.send(topic, b"v")
        producer._feeder.feed(time.monotonic(), hurry=True)
        wait_for(producer, lambda: rows_in_batches(producer) == {TOPIC: 1, OTHER: 1})
        for topic in (TOPIC, OTHER):
            producer.send(topic, b"v")
        producer._feeder.drain()
        assert rows_in_batches(producer) == {TOPIC: 2, OTHER: 2}


def test_rows_that_wait_for_a_thread_give_the_io_thread_nothing_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partitioner_threads, "MOST_THREADS", 1)
    slow = SlowPartitioner()
    with producing(slow) as producer:
        feeder = producer._feeder
        producer.send(TOPIC, b"v")
        feeder.feed(time.monotonic(), hurry=True)
        assert slow.reached.wait(A_WHILE_S)
        producer.send(OTHER, b"v")
        for _ in range(3):
            feeder.feed(time.monotonic(), hurry=True)
            assert len(feeder._threads._to_run) == 1
            assert feeder.next_feed_at(hurry=True) > time.monotonic() + A_WHILE_S
        slow.opened.set()
        wait_for(producer, lambda: rows_in_batches(producer) == {TOPIC: 1, OTHER: 1})


def test_a_callback_that_would_wait_for_a_partitioner_fails_at_once() -> None:
    slow, delivered = SlowPartitioner(), threading.Event()
    failures: list[BaseException | None] = []
    with producing(slow, max_block_ms=A_LONG_TIME_MS, **QUICKLY_OVER) as producer:

        def send_more(*_: object) -> None:
            sent = [producer.send(TOPIC, BIG) for _ in range(10)]
            failures.extend(each.exception(0) for each in sent if each.done())
            delivered.set()

        producer.send(TOPIC, b"v")
        assert slow.reached.wait(A_WHILE_S)
        producer.send(OTHER, b"v", on_delivery=send_more)
        assert delivered.wait(A_WHILE_S)
        assert failures
        assert all(isinstance(failure, TimeoutException) for failure in failures)
        slow.opened.set()


def test_only_an_append_of_a_callback_calls_the_partitioner_in_the_io_thread() -> None:
    in_io_thread: dict[str, set[bool]] = {}
    sent = threading.Event()

    def partitioner(topic: str, batch: pa.RecordBatch, _: int) -> list[int]:
        in_io_thread.setdefault(topic, set()).add(producer._thread.is_current)
        return [0] * batch.num_rows

    def send_more(*_args: object) -> None:
        for _ in range(3):  # they fill more than a chunk
            producer.send(OTHER, BIG)
        append(producer, TOPIC)
        sent.set()

    with producing(partitioner, **QUICKLY_OVER) as producer:
        producer.send(OTHER, b"v", partition=0, on_delivery=send_more)
        assert sent.wait(A_WHILE_S)
        wait_for(producer, lambda: not producer._feeder._pending)
        assert in_io_thread[TOPIC] == {True}
        assert True not in in_io_thread[OTHER]


def test_a_call_that_raises_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioner_threads, "MOST_THREADS", 2)
    threads, came = PartitionerThreads(), threading.Semaphore(0)
    threads.start()
    for _ in range(4):
        threads.run(broken)
    for _ in range(4):
        threads.run(came.release)
        assert came.acquire(timeout=A_WHILE_S)
    threads.stop()


def test_very_many_topics_share_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioner_threads, "MOST_THREADS", 2)
    threads, started, opened = PartitionerThreads(), threading.Semaphore(0), threading.Event()
    ended = threading.Semaphore(0)

    def call() -> None:
        assert threads.is_current
        started.release()
        assert opened.wait(A_WHILE_S)
        ended.release()

    for _ in range(2):
        threads.run(call)
        assert started.acquire(timeout=A_WHILE_S)
    for _ in range(5):
        threads.run(call)
    assert not started.acquire(blocking=False)
    opened.set()
    assert all(ended.acquire(timeout=A_WHILE_S) for _ in range(7))
    assert not threads.is_current


def test_topics_that_get_rows_at_the_same_time_start_no_more_threads_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Callable[[], None]] = []

    def start_later(run: Callable[..., None], arguments: tuple[bool]) -> None:
        started.append(partial(run, *arguments))

    # The threads do not begin to run before all calls are handed over.
    later = SimpleNamespace(start_new_thread=start_later)
    monkeypatch.setattr(partitioner_threads, "_thread", later)
    monkeypatch.setattr(partitioner_threads, "MOST_THREADS", 3)
    threads, ran = PartitionerThreads(), list[int]()
    threads.start()
    for number in range(10):
        threads.run(partial(ran.append, number))
    assert len(started) == 3
    threads.stop()
    for run in started:
        run()
    assert ran == list(range(10))
    threads.run(partial(ran.append, 10))
    assert len(started) == 4


def test_the_permanent_thread_ends_when_it_is_told_to_and_has_nothing_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[threading.Thread] = []
    ran: list[threading.Thread] = []

    def start(run: Callable[..., None], arguments: tuple[bool]) -> None:
        started.append(threading.Thread(target=run, args=arguments, daemon=True))
        started[-1].start()

    monkeypatch.setattr(partitioner_threads, "_thread", SimpleNamespace(start_new_thread=start))
    threads = PartitionerThreads()
    threads.start()
    threads.run(lambda: ran.append(threading.current_thread()))
    threads.stop()
    threads.stop()
    started[0].join(A_WHILE_S)
    assert not started[0].is_alive()
    threads.run(lambda: ran.append(threading.current_thread()))
    started[1].join(A_WHILE_S)
    assert ran == started


def test_closing_a_producer_ends_the_permanent_thread() -> None:
    with producing(SlowPartitioner()) as producer:
        threads = producer._feeder._threads
        assert threads._one_stays
        producer.close(0)
        assert not threads._one_stays
