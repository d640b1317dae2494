"""Futures of rows: each finds its own record, through all chunks, batches and splits."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_EXCEPTION, Future, as_completed, wait
from random import Random
from types import SimpleNamespace
from typing import NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracles.record_batches import BYTES, HEADERS, TIMESTAMPS
from support.pure.pure_producer import TOPIC, Settings
from support.pure.row_broker import RowBroker, SentRow, StoredRecord, sent_rows

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.client import future as row_futures
from spark_kafka_sink.client.future import OnDelivery, RowFuture, SentRows
from spark_kafka_sink.errors import KafkaException, RecordTooLargeException
from spark_kafka_sink.model import RecordMetadata, TopicPartition
from spark_kafka_sink.plugins.interceptors import ProducerInterceptor, ProducerInterceptors
from spark_kafka_sink.producer.producer_batch import ProducerBatch, RecordSpan

ONE_BATCH_A_REQUEST = 1  # bytes of max.request.size
A_WHILE_S = 20


def broker(partitions: int = 3, batch_size: int = 1000, *, split: bool = False) -> RowBroker:
    """Make a broker."""
    settings = Settings(
        batch_size=batch_size, max_request_size=ONE_BATCH_A_REQUEST, buffer_memory=10**9
    )
    return RowBroker(partitions, settings, Random(1), split=split)


ROWS = st.builds(
    SentRow,
    st.none() | BYTES,
    st.none() | BYTES,
    st.none() | st.integers(0, 2),
    st.none() | TIMESTAMPS,
    st.just(()) | HEADERS,
)
CHUNKS = st.lists(st.lists(ROWS, min_size=1, max_size=20), min_size=1, max_size=5)


@given(
    chunks=CHUNKS,
    batch_size=st.integers(1, 3000),
    split=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_the_place_a_future_tells_holds_exactly_its_row(
    *, chunks: list[list[SentRow]], batch_size: int, split: bool, seed: int
) -> None:
    kafka = broker(batch_size=batch_size, split=split)
    kafka.random.seed(seed)
    futures: list[RowFuture] = []
    for rows in chunks:
        futures += kafka.send(rows)
        if kafka.random.random() < 0.5:
            kafka.deliver()
    kafka.deliver()
    places = set()
    for row, future in zip((row for rows in chunks for row in rows), futures, strict=True):
        found = future.result(0)
        stored = kafka.log[found.partition][found.offset]
        timestamp = 5000 if row.timestamp_ms is None else row.timestamp_ms
        assert stored == StoredRecord(row.value, row.key, timestamp, row.headers)
        assert row.partition in (None, found.partition)
        assert found == RecordMetadata(
            TOPIC,
            found.partition,
            found.offset,
            timestamp,
            -1 if row.key is None else len(row.key),
            -1 if row.value is None else len(row.value),
        )
        places.add((found.partition, found.offset))
    assert len(places) == len(futures)
    check_order(futures)


@pytest.mark.parametrize("keys", [[b""], [b"", b""], [b"", None], [None, None]])
def test_an_empty_key_is_a_key_though_no_row_has_another(keys: list[bytes | None]) -> None:
    kafka = broker()
    futures = kafka.send([SentRow(b"v", key) for key in keys])
    kafka.deliver()
    found = [future.result(0) for future in futures]
    stored = [kafka.log[place.partition][place.offset] for place in found]
    assert [record and record.key for record in stored] == keys
    assert [place.serialized_key_size for place in found] == [-1 if k is None else 0 for k in keys]
    # The Java client's hash sends an empty key to partition 0 of 3.
    assert {place.partition for place, key in zip(found, keys, strict=True) if key == b""} <= {0}


def check_order(futures: list[RowFuture]) -> None:
    """Check that offsets rise in the order of sending, in every partition."""
    last: dict[int, int] = {}
    for future in futures:
        found = future.result(0)
        assert found.offset > last.get(found.partition, -1)
        last[found.partition] = found.offset


@given(
    CHUNKS,
    st.lists(st.sampled_from([0, codes.TOPIC_AUTHORIZATION_FAILED, codes.UNKNOWN_SERVER_ERROR])),
)
def test_every_row_of_a_batch_that_fails_and_no_other_fails(
    chunks: list[list[SentRow]], answers: list[int]
) -> None:
    kafka = broker(batch_size=100)
    called: list[tuple[RecordMetadata, BaseException | None]] = []
    futures: list[RowFuture] = []
    for rows in chunks:

        def callback(metadata: RecordMetadata, error: BaseException | None) -> None:
            called.append((metadata, error))

        futures += kafka.send(rows, dict.fromkeys(range(len(rows)), callback))
    kafka.deliver(lambda: answers.pop() if answers else 0)
    assert all(future.done() for future in futures)
    stored = sum(map(len, kafka.log))
    failed = [future for future in futures if future.exception(0) is not None]
    assert stored + len(failed) == len(futures) == len(called)
    assert {m for m, error in called if error is None} == {
        future.result(0) for future in futures if future not in failed
    }
    for metadata, error in called:
        assert (metadata.offset == -1) == (error is not None)


def test_callbacks_come_in_order_per_partition_before_their_futures_are_done() -> None:
    kafka = broker()
    called: list[tuple[RecordMetadata, bool]] = []
    futures: list[RowFuture] = []

    def note(metadata: RecordMetadata, error: BaseException | None) -> None:
        assert error is None
        called.append((metadata, any(future.done() for future in futures)))

    rows = [SentRow(b"%d" % number, partition=number % 2) for number in range(10)]
    futures += kafka.send(rows, dict.fromkeys(range(10), note))
    kafka.deliver()
    for partition in (0, 1):
        offsets = [m.offset for m, _ in called if m.partition == partition]
        assert offsets == sorted(offsets)
        assert len(offsets) == 5
    first_partition = called[0][0].partition
    assert not any(done for m, done in called if m.partition == first_partition)
    assert all(future.done() for future in futures)


def test_a_callback_that_raises_is_logged_and_skipped(caplog: pytest.LogCaptureFixture) -> None:
    def fail(metadata: RecordMetadata, error: BaseException | None) -> None:
        raise ZeroDivisionError

    kafka, called = broker(), []
    futures = kafka.send(
        [SentRow(b"a", partition=0), SentRow(b"b", partition=0)],
        {0: fail, 1: lambda metadata, error: called.append(metadata.offset)},
    )
    with caplog.at_level(logging.ERROR):
        kafka.deliver()
    assert called == [1]
    assert [future.result(0).offset for future in futures] == [0, 1]
    assert "on_delivery callback" in caplog.text


def test_rows_that_never_came_into_a_batch_fail_with_their_callbacks() -> None:
    sent, called = sent_rows(), []
    sent.callbacks[1] = lambda metadata, error: called.append((metadata, error))
    futures = [RowFuture(sent, number) for number in range(3)]
    assert not any(future.done() for future in futures)
    error = KafkaException("Producer is closed forcefully.")
    sent.fail(3, error)
    assert [future.exception(0) for future in futures] == [error] * 3
    assert called == [(RecordMetadata(TOPIC, -1, -1, -1, -1, -1), error)]


def test_a_shared_error_does_not_grow_with_every_row_that_raises_it() -> None:
    sent = sent_rows()
    error = RecordTooLargeException("too large")
    sent.fail(1000, error)
    for number in range(1000):
        with pytest.raises(RecordTooLargeException):
            RowFuture(sent, number).result()
    depth, trace = 0, error.__traceback__
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    assert depth < 10


def raise_it(_: object, error: BaseException | None) -> None:
    """Raise the error of a row."""
    if error is not None:
        raise error


def log_it(_: object, error: BaseException | None) -> None:
    """Raise the error of a row, and log it."""
    try:
        raise_it(_, error)
    except KafkaException:
        logging.getLogger(__name__).exception("row failed")


def wrap_it(_: object, error: BaseException | None) -> None:
    """Raise another error because of that of a row."""
    try:
        raise_it(_, error)
    except KafkaException as cause:
        message = "row failed"
        raise RuntimeError(message) from cause


@pytest.mark.parametrize("callback", [raise_it, log_it, wrap_it])
def test_callbacks_that_raise_a_shared_error_log_as_much_for_the_last_row_as_for_the_first(
    caplog: pytest.LogCaptureFixture, callback: OnDelivery
) -> None:
    interceptor = SimpleNamespace(on_acknowledgement=callback)
    chain = ProducerInterceptors([cast("ProducerInterceptor", interceptor)])
    sent = SentRows(TOPIC, chain, lambda: None, lambda: None)
    sent.callbacks = dict.fromkeys(range(100), callback)
    metadata = RecordMetadata(TOPIC, -1, -1, -1, -1, -1)
    for row in range(100):
        RowFuture(sent, row).add_done_callback(lambda row: callback(metadata, row.exception()))
    sent.fail(100, RecordTooLargeException("too large"))
    lines = [record.exc_text.count("\n") for record in caplog.records if record.exc_text]
    assert len(lines) == 300
    assert max(lines) < 40


def test_a_record_under_way_runs_cannot_be_cancelled_and_times_out() -> None:
    (future,) = broker().send([SentRow(b"a")])
    assert (future.running(), future.done(), future.cancel(), future.cancelled()) == (
        True,
        False,
        False,
        False,
    )
    with pytest.raises(TimeoutError):
        future.result(0)
    with pytest.raises(TimeoutError):
        future.exception(0)
    assert "pending" in repr(future)


def waits_for(
    futures: list[Future[RecordMetadata]],
) -> list[Callable[[], Collection[object]]]:
    """Return the ways in which `concurrent.futures` waits."""
    return [lambda: wait(futures, A_WHILE_S).done, lambda: list(as_completed(futures, A_WHILE_S))]


def test_waiting_where_it_would_never_end_is_refused() -> None:
    def check() -> None:
        raise KafkaException("inside a callback")

    sent = SentRows(TOPIC, ProducerInterceptors(), check, lambda: None)
    future = RowFuture(sent, 0)
    ways: list[Callable[[], object]] = [future.result, future.exception, *waits_for([future])]
    for way in ways:
        with pytest.raises(KafkaException, match="inside a callback"):
            way()
    sent.fail(1, ZeroDivisionError())
    assert isinstance(future.exception(), ZeroDivisionError)
    for wait_for in waits_for([future]):
        assert future in wait_for()


def in_thread(kafka: RowBroker) -> threading.Thread:
    """Deliver from another thread, as the I/O thread does."""
    thread = threading.Thread(target=kafka.deliver)
    thread.start()
    return thread


def test_result_wait_and_as_completed_wake_when_another_thread_delivers() -> None:
    kafka = broker()
    futures: list[Future[RecordMetadata]]
    futures = [f for _ in range(3) for f in kafka.send([SentRow(b"a"), SentRow(b"b")])]
    waiting = [
        threading.Thread(target=futures[0].result),
        threading.Thread(target=wait, args=(futures,)),
        threading.Thread(target=lambda: list(as_completed(reversed(futures)))),
    ]
    for thread in waiting:
        thread.start()
    delivering = in_thread(kafka)
    for thread in [*waiting, delivering]:
        thread.join(30)
        assert not thread.is_alive()
    done, not_done = wait(futures, timeout=0)
    assert (len(done), len(not_done)) == (6, 0)
    assert set(as_completed(futures)) == set(futures)


def test_wait_for_the_first_exception_ends_at_it() -> None:
    bad, good = sent_rows(), sent_rows()
    futures = [RowFuture(bad, 0), RowFuture(good, 0)]
    found: list[set[object]] = []
    waiting = threading.Thread(
        target=lambda: found.append(wait(futures, return_when=FIRST_EXCEPTION).done)  # type: ignore[arg-type]
    )
    waiting.start()
    bad.fail(1, ZeroDivisionError())
    waiting.join(30)
    assert not waiting.is_alive()
    assert found == [{futures[0]}]


def test_done_callbacks_run_once_each_now_or_later_and_their_failures_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka = broker()
    (future,) = kafka.send([SentRow(b"a")])
    called: list[int] = []

    def note(found: object) -> None:
        assert found is future
        called.append(future.result(0).offset)

    def fail(found: object) -> None:
        raise ZeroDivisionError

    future.add_done_callback(fail)
    future.add_done_callback(note)
    assert called == []
    kafka.deliver()
    future.add_done_callback(note)
    assert called == [0, 0]
    assert "done callback" in caplog.text


def test_asyncio_awaits_a_row() -> None:
    kafka = broker()
    (future,) = kafka.send([SentRow(b"a")])

    async def send() -> RecordMetadata:
        wrapped = asyncio.wrap_future(future)
        delivering = in_thread(kafka)
        try:
            return await wrapped
        finally:
            delivering.join()

    assert asyncio.run(send()).offset == 0


def test_a_snapshot_of_a_row_is_what_asyncio_copies_since_python_3_15() -> None:
    kafka = broker()
    (future,) = kafka.send([SentRow(b"a")])
    assert future._get_snapshot() == (False, False, None, None)
    kafka.deliver()
    assert future._get_snapshot() == (True, False, future.result(0), None)
    sent, error = sent_rows(), KafkaException("no")
    sent.fail(1, error)
    assert RowFuture(sent, 0)._get_snapshot() == (True, False, None, error)


# -- who begins to watch while the row ends ----------------------------------------------------


class NoticingLock:
    """A lock that reports waiters."""

    def __init__(self, noticed: threading.Event) -> None:
        self._lock = threading.Lock()
        self._noticed = noticed

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._noticed.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def before_waiting(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[threading.Event], None]
) -> None:
    """Call `call` when `wait` or `as_completed` begins to wait, with the event it waits for."""

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            call(self)
            return super().wait(timeout)

    own = SimpleNamespace(Event=Event, Lock=threading.Lock, Condition=threading.Condition)
    monkeypatch.setattr("concurrent.futures._base.threading", own)


@pytest.mark.parametrize("ends", ["before the first watches", "while it begins to", "after that"])
@pytest.mark.parametrize("how", ["callback", "wait", "as_completed", "asyncio"])
def test_whoever_watches_a_row_while_another_thread_begins_to_is_told_as_well(
    ends: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = sent_rows()
    future = RowFuture(sent, 0)
    futures: list[Future[RecordMetadata]] = [future]
    called: list[str] = []
    second: list[threading.Thread] = []
    is_there = threading.Event()  # the second one watches, or waits for the first to do so
    monkeypatch.setattr(row_futures, "_making_watches", NoticingLock(is_there))
    before_waiting(monkeypatch, lambda _: is_there.set())

    async def await_it() -> None:
        wrapped = asyncio.wrap_future(future)
        is_there.set()
        await asyncio.wait([wrapped])

    def watch_second() -> None:
        if how == "callback":
            future.add_done_callback(lambda _: called.append("second"))
            is_there.set()
            return
        if how == "wait":
            assert wait([future]).done == {future}
        elif how == "as_completed":
            assert set(as_completed(futures)) == {future}
        else:
            asyncio.run(await_it())
        called.append("second")

    watch = SentRows.watch

    def watch_late(rows: SentRows, row: int, it: row_futures._Watch) -> bool:
        second.append(threading.Thread(target=watch_second, daemon=True))
        second[0].start()
        assert is_there.wait(30)
        if ends == "before the first watches":
            sent.fail(1, ZeroDivisionError())
        is_watched = watch(rows, row, it)
        if ends == "while it begins to":
            sent.fail(1, ZeroDivisionError())
        return is_watched

    monkeypatch.setattr(SentRows, "watch", watch_late)
    future.add_done_callback(lambda _: called.append("first"))
    if ends == "after that":
        sent.fail(1, ZeroDivisionError())
    second[0].join(10)
    assert sorted(called) == ["first", "second"]


class EndsWhenLookedAt(RowFuture):
    """A row that another thread ends while `wait` or `as_completed` looks at its state."""

    def __init__(self, looks_before: int) -> None:
        super().__init__(sent_rows(), 0)
        self.looks_before = looks_before
        self.ending = threading.Thread(target=self._rows.fail, args=(1, ZeroDivisionError()))

    @property
    def _state(self) -> str:  # type: ignore[override] # as that of RowFuture
        self.looks_before -= 1
        if self.looks_before == -1:
            self.ending.start()
            assert isinstance(self.exception(30), ZeroDivisionError)
        return super()._state


@pytest.mark.parametrize("looks_before", [0, 1])
def test_a_row_that_ends_while_it_is_looked_at_does_not_count_for_another(
    looks_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, ends = sent_rows(), EndsWhenLookedAt(looks_before)
    futures: list[Future[RecordMetadata]] = [ends, RowFuture(other, 0)]

    def end_the_other(waits_for: threading.Event) -> None:
        ends.ending.join()
        if not waits_for.is_set():
            other.fail(1, ZeroDivisionError())

    before_waiting(monkeypatch, end_the_other)
    assert wait(futures, timeout=30).not_done == set()


def test_a_row_that_ends_while_it_is_looked_at_is_completed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = sent_rows()
    futures: list[Future[RecordMetadata]] = [EndsWhenLookedAt(0), RowFuture(other, 0)]

    def end_the_other(waits_for: threading.Event) -> None:
        if not waits_for.is_set():
            other.fail(1, ZeroDivisionError())

    before_waiting(monkeypatch, end_the_other)
    completed = list(as_completed(futures, timeout=30))
    assert (len(completed), set(completed)) == (2, set(futures))


def test_a_row_whose_result_is_there_is_done_for_wait_before_those_who_watch_it_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = sent_rows()
    future = RowFuture(sent, 0)
    found: list[set[object]] = []
    future.add_done_callback(lambda _: None)
    notify = row_futures._Watch.notify

    def look_and_notify(watch: row_futures._Watch) -> None:
        assert future.exception(0) is not None
        found.append(wait([future], timeout=0).done)  # type: ignore[arg-type]
        notify(watch)

    monkeypatch.setattr(row_futures._Watch, "notify", look_and_notify)
    sent.fail(1, ZeroDivisionError())
    assert found == [{future}]


class RefusedBatch(NamedTuple):
    """A batch of which the broker rejected some records."""

    record_errors: dict[int, KafkaException]
    record_count: int = 10
    topic_partition: TopicPartition = TopicPartition(TOPIC, 2)
    base_offset: int = -1
    log_append_time_ms: int = -1
    error: KafkaException = KafkaException("refused")


def test_refused_records_fail_with_what_was_said_of_them_and_the_others_with_that() -> None:
    kafka, called = broker(partitions=1), dict[int, BaseException | None]()
    errors = {number: KafkaException(f"record {number}") for number in (1, 5, 6, 9)}
    kafka.send([SentRow(b"another's")] * 5)
    sent = kafka.send(
        [SentRow(b"%d" % number) for number in range(4)],
        {number: lambda _, error, n=number: called.update({n: error}) for number in range(4)},  # type: ignore[misc]
    )
    refused = cast("ProducerBatch", RefusedBatch(errors))
    sent[0]._rows.completed(RecordSpan(sent[0]._rows, 0, 5, 4), refused)
    found = [future.exception(0) for future in sent]
    assert found[:2] == [errors[5], errors[6]]
    assert ["refused 4 record(s)" in str(error) for error in found] == [False, False, True, True]
    assert called == dict(enumerate(found))
    with pytest.raises(KafkaException, match="record 6"):
        sent[1].result(0)
