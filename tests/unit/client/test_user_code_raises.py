"""User code that raises any exception: rows end, metrics count, and the producer continues.

No broker is reachable: rows fail as soon as they are due.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import NoReturn

import pyarrow as pa
import pytest
from support.pure.measured_metrics import measured
from support.pure.state_waits import wait_until
from support.pure.unreachable import NOBODY, TOPIC, answer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import KafkaException, RecordTooLargeException, TimeoutException
from spark_kafka_sink.model import AppendFailure, RecordMetadata
from spark_kafka_sink.plugins.interceptors import ProducerInterceptor

ENOUGH_S = 20
NOT_EXCEPTIONS = [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit]
RAISED = [ZeroDivisionError, *NOT_EXCEPTIONS]
raising = pytest.mark.parametrize("kind", RAISED)
ROW = pa.record_batch({"value": ["v"]})


@contextmanager
def giving_up(**options: object) -> Iterator[KafkaProducer]:
    """Yield a producer whose rows fail at once."""
    short = {"delivery.timeout.ms": 1, "request.timeout.ms": 1, "linger.ms": 0}
    given = {name.replace("_", "."): value for name, value in options.items()}
    producer = KafkaProducer({"bootstrap.servers": NOBODY, **short, **given})
    try:
        with producer._state.lock:
            producer._state.metadata.track(TOPIC, time.monotonic())
            producer._state.metadata.update(answer([1]), time.monotonic())
        yield producer
    finally:
        in_time(lambda: producer.close(0))


def in_time(call: Callable[[], object]) -> None:
    """Make a call that must not hang; raises what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(ENOUGH_S)
    assert not thread.is_alive(), "it hangs"
    if raised:
        raise raised[0]


def check_goes_on(producer: KafkaProducer) -> None:
    """See that nothing is kept, that rows still end, and that closing closes all."""
    thread, append_lock = producer._thread, producer._columns._appender.append_lock
    assert append_lock.acquire(timeout=ENOUGH_S)
    append_lock.release()
    called = threading.Event()
    later = producer.send(TOPIC, b"later", partition=0, on_delivery=lambda *_: called.set())
    in_time(producer.flush)
    assert called.is_set()
    assert isinstance(later.exception(0), TimeoutException)
    accumulator = producer._state.accumulator
    assert accumulator.pool.available_bytes == accumulator.pool.total_bytes
    assert thread.is_alive
    in_time(producer.close)
    assert not thread.is_alive
    assert thread._client._selector._wake_in.fileno() == -1, "its sockets are open"


class Raise:
    """Raises an exception of the given kind in every method, and counts the calls."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind, self.calls = kind, 0

    def __call__(self, *_: object) -> NoReturn:
        """Raise it."""
        self.calls += 1
        message = "of the user's own"
        raise self.kind(message)


class Interceptor(ProducerInterceptor):
    """Calls a function instead of one of its methods."""

    def __init__(self, **methods: Callable[..., object]) -> None:
        self.__dict__.update(methods)


# -- in the I/O thread ----------------------------------------------------------------------------


@raising
@pytest.mark.parametrize("role", ["on_delivery", "interceptor", "done callback"])
def test_what_a_callback_of_a_row_raises_is_logged_and_ends_nothing(
    role: str, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    user, others = Raise(kind), list[object]()
    chain = [Interceptor(on_acknowledgement=user)] if role == "interceptor" else []
    with giving_up(interceptor_classes=chain) as producer:
        held = threading.Event()
        # The I/O thread is held up, so that the callbacks below are added before any row ends.
        producer.send(TOPIC, b"v", on_delivery=lambda *_: held.wait(ENOUGH_S))
        futures = []
        for _ in range(3):
            future = producer.send(
                TOPIC, b"v", on_delivery=user if role == "on_delivery" else lambda *_: None
            )
            if role == "done callback":
                future.add_done_callback(user)
            future.add_done_callback(others.append)
            futures.append(future)
        held.set()
        in_time(producer.flush)
        assert [type(future.exception(0)) for future in futures] == [TimeoutException] * 3
        assert others == futures
        assert user.calls == (4 if role == "interceptor" else 3)
        assert measured(producer)["record-error-total"] == 4
        check_goes_on(producer)
    assert f"{role}" in caplog.text
    assert f"{kind.__name__}: of the user's own" in caplog.text
    no_effect = f"{kind.__name__} has no effect in the thread that delivers records"
    assert (no_effect in caplog.text) is (kind in NOT_EXCEPTIONS)


@raising
def test_an_on_failure_that_raises_keeps_no_other_owner_of_the_batch_from_being_told(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    user, failed_rows = Raise(kind), list[list[int]]()
    linger = {"linger_ms": 60_000, "delivery_timeout_ms": 120_000}
    with giving_up(**linger) as producer:
        producer.append(TOPIC, ROW, user)
        future = producer.send(TOPIC, b"v")
        producer.append(TOPIC, ROW, lambda failure: failed_rows.append(failure.rows.tolist()))
        assert len(producer._state.accumulator.incomplete) == 1, "they share a batch"
        in_time(lambda: producer.close(0))
        assert "closed forcefully" in str(future.exception(0))
        assert (user.calls, failed_rows) == (1, [[0]])
    assert "on_failure callback" in caplog.text
    assert "1 row(s) that were not delivered (Producer is closed forcefully.)" in caplog.text


def test_an_on_failure_that_raises_a_shared_error_logs_as_much_for_the_last_slice_as_for_the_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def check(failure: AppendFailure) -> None:
        raise failure.error

    def wrap(failure: AppendFailure) -> None:
        try:
            check(failure)
        except KafkaException as cause:
            message = "of the user's own"
            raise RuntimeError(message) from cause

    with giving_up(linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        for _ in range(20):
            producer.append(TOPIC, ROW, wrap)
        in_time(lambda: producer.close(0))
    lines = [record.exc_text.count("\n") for record in caplog.records if record.exc_text]
    assert len(lines) == 20
    assert max(lines) < 40


def test_a_second_callback_that_raises_while_all_ends_keeps_no_socket_open() -> None:
    user = Raise(SystemExit)
    linger = {"linger_ms": 60_000, "delivery_timeout_ms": 120_000}
    with giving_up(**linger) as producer:
        producer.append(TOPIC, ROW)
        sent = [producer.send(TOPIC, b"v", on_delivery=user) for _ in range(2)]
        in_time(lambda: producer.close(0))
        thread = producer._thread
        assert not thread.is_alive
        assert thread._client._selector._wake_in.fileno() == -1
        assert all(future.done() for future in sent)
    assert user.calls == 2


class Unspeakable(Raise):
    """Raises even when a log line prints it."""

    def __repr__(self) -> str:
        raise SystemExit


def test_user_code_that_cannot_even_be_logged_ends_nothing() -> None:
    with giving_up() as producer:
        producer.send(TOPIC, b"v", on_delivery=Unspeakable(SystemExit))
        check_goes_on(producer)


# -- in a caller's thread -------------------------------------------------------------------------


def row_through_interceptor(user: Raise) -> tuple[dict[str, object], Callable[..., object]]:
    chain = [Interceptor(on_send=user)]
    return {"interceptor_classes": chain}, lambda producer: producer.send(TOPIC, b"v", partition=0)


def row_through_serializer(user: Raise) -> tuple[dict[str, object], Callable[..., object]]:
    calls = [user]  # only the first row's
    first = lambda value: calls.pop()(value) if calls else value  # noqa: E731 - short
    return {"value_serializer": first}, lambda producer: producer.send(TOPIC, b"v")


def batch_through_partitioner(user: Raise) -> tuple[dict[str, object], Callable[..., object]]:
    return {"partitioner_class": user}, lambda producer: producer.append(TOPIC, ROW)


def refused_row(user: Raise) -> tuple[dict[str, object], Callable[..., object]]:
    return {"max_request_size": 1000}, lambda producer: producer.send(
        TOPIC, bytes(2000), on_delivery=user
    )


def refused_row_through_interceptors(
    user: Raise,
) -> tuple[dict[str, object], Callable[..., object]]:
    def only_refused(_: object, error: BaseException) -> None:
        if isinstance(error, RecordTooLargeException):
            user()

    chain = [Interceptor(on_acknowledgement=only_refused) for _ in range(2)]
    options = {"interceptor_classes": chain, "max_request_size": 1000}
    return options, lambda producer: producer.send(TOPIC, bytes(2000))


def finished_future(user: Raise) -> tuple[dict[str, object], Callable[..., object]]:
    def watch(producer: KafkaProducer) -> None:
        future = producer.send(TOPIC, b"v")
        in_time(producer.flush)
        future.add_done_callback(user)

    return {}, watch


@pytest.mark.parametrize("kind", NOT_EXCEPTIONS)
@pytest.mark.parametrize(
    ("way", "failed", "calls"),
    [
        (row_through_interceptor, 0, 1),
        (row_through_serializer, 0, 1),
        (batch_through_partitioner, 0, 1),
        (refused_row, 1, 1),
        (refused_row_through_interceptors, 1, 2),
        (finished_future, 1, 1),
    ],
)
def test_what_is_no_exception_reaches_the_caller_when_all_is_put_right(
    way: Callable[..., tuple[dict[str, object], Callable[..., object]]],
    failed: int,
    calls: int,
    kind: type[BaseException],
) -> None:
    user = Raise(kind)
    options, call = way(user)
    with giving_up(**options) as producer:
        with pytest.raises(kind, match="of the user's own"):
            call(producer)
        assert user.calls == calls
        assert measured(producer)["record-error-total"] == failed
        if way is row_through_interceptor:
            producer._user_code.interceptors._interceptors[0].__dict__.clear()
        check_goes_on(producer)


@pytest.mark.parametrize(
    "way", [refused_row, refused_row_through_interceptors, row_through_interceptor, finished_future]
)
def test_an_exception_is_logged_as_in_java(
    way: Callable[..., tuple[dict[str, object], Callable[..., object]]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    user = Raise(ZeroDivisionError)
    options, call = way(user)
    with giving_up(**options) as producer:
        call(producer)
        assert user.calls == (2 if way is refused_row_through_interceptors else 1)
        check_goes_on(producer)
    assert "ZeroDivisionError: of the user's own" in caplog.text


@pytest.mark.parametrize("kind", NOT_EXCEPTIONS)
def test_what_a_plugin_s_close_raises_reaches_the_caller_when_all_is_closed(
    kind: type[BaseException],
) -> None:
    closed: list[str] = []

    class Plugin(ProducerInterceptor):
        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, _: str, batch: pa.RecordBatch, partitions: int) -> list[int]:
            """Choose the first partition."""
            return [0] * batch.num_rows

        def serialize(self, _: str, value: bytes) -> bytes:
            """Return the value."""
            return value

        def close(self) -> None:
            """Note it, and raise."""
            closed.append(self.name)
            raise kind(self.name)

    with giving_up(
        interceptor_classes=[Plugin("one"), Plugin("two")],
        key_serializer=Plugin("key"),
        value_serializer=Plugin("value"),
        partitioner_class=Plugin("partitioner"),
    ) as producer:
        with pytest.raises(kind, match="one"):
            producer.close()
        assert closed == ["one", "two", "key", "value", "partitioner"]
        assert not producer._thread.is_alive
        producer.close()
    assert len(closed) == 5, "each is closed once"


# -- what a callback may call ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        "flush",
        "init_transactions",
        "send_offsets_to_transaction",
        "commit_transaction",
        "abort_transaction",
    ],
)
def test_a_call_that_waits_for_brokers_is_refused_inside_a_callback(call: str) -> None:
    arguments: list[object] = [{}, None] if call.startswith("send_offsets") else []
    found: list[str] = []
    with giving_up(transactional_id="tid", max_block_ms=60_000) as producer:

        def callback() -> None:
            with pytest.raises(KafkaException) as refused:
                getattr(producer, call)(*arguments)
            found.append(str(refused.value))

        producer._state.call_later(callback)
        wait_until(producer, lambda: found, ENOUGH_S)
    assert found == [
        f"KafkaProducer.{call}() invocation inside a callback is not permitted because it would "
        "never end: callbacks run in the thread that delivers records"
    ]


@pytest.mark.parametrize(
    "wait",
    [
        lambda future: future.result(ENOUGH_S),
        lambda future: future.exception(ENOUGH_S),
        lambda future: futures.wait([future], ENOUGH_S),
        lambda future: list(futures.as_completed([future], ENOUGH_S)),
    ],
    ids=["result", "exception", "wait", "as_completed"],
)
def test_waiting_for_an_open_record_is_refused_inside_a_callback(
    wait: Callable[[futures.Future[RecordMetadata]], object],
) -> None:
    """Of that record itself: it is done when its callback has returned."""
    found: list[BaseException] = []
    sent: list[futures.Future[RecordMetadata]] = []
    is_sent = threading.Event()

    def callback(*_: object) -> None:
        is_sent.wait(ENOUGH_S)
        try:
            wait(sent[0])
        except BaseException as error:  # noqa: BLE001 - looked at below
            found.append(error)

    with giving_up() as producer:
        sent.append(producer.send(TOPIC, b"v", on_delivery=callback))
        is_sent.set()
        in_time(producer.flush)
        (refused,) = found
        assert str(refused).startswith(
            "waiting for a record's future inside a callback is not permitted"
        )
        check_goes_on(producer)


def test_a_callback_may_send_and_append_and_ask_for_partitions() -> None:
    """Some callbacks send failed records to a dead letter topic."""
    found: list[object] = []
    with giving_up() as producer:

        def callback(*_: object) -> None:
            found.append(producer.partitions_for(TOPIC))
            found.append(producer.send(TOPIC, b"again"))
            producer.append(TOPIC, ROW, found.append)
            with pytest.raises(TimeoutException):
                producer.partitions_for("unknown")
            with pytest.raises(TimeoutException):
                producer.append("unknown", ROW)
            found.append(producer.send("unknown", b"v").exception(0))

        producer.send(TOPIC, b"v", on_delivery=callback)
        in_time(producer.flush)
        in_time(producer.flush)
        partitions, again, unknown, appended = found
        assert partitions == 1
        assert isinstance(again.exception(0), TimeoutException)  # type: ignore[attr-defined]
        assert isinstance(unknown, TimeoutException)
        assert isinstance(appended.error, TimeoutException)  # type: ignore[attr-defined]


# -- flush -----------------------------------------------------------------------------------------


def test_flush_raises_an_earlier_error_when_all_has_ended() -> None:
    with giving_up(delivery_timeout_ms=300) as producer:
        earlier = KafkaException("an earlier delivery")
        producer._state.deliveries.error = earlier
        called: list[object] = []
        sent = producer.send(TOPIC, b"v", on_delivery=lambda *_: called.append(1))
        with pytest.raises(KafkaException) as raised:
            producer.flush()
        assert raised.value is earlier
        assert sent.done()
        assert called == [1]
        producer.flush()


def test_a_flush_that_takes_too_long_leaves_an_earlier_error_to_the_next() -> None:
    with giving_up(linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        earlier = KafkaException("an earlier delivery")
        producer._state.deliveries.error = earlier
        producer.send(TOPIC, b"v")
        with pytest.raises(TimeoutException, match="not acknowledged"):
            producer.flush(0.01)
        assert producer._state.deliveries.error is earlier


# -- close -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 0.1])
def test_close_does_not_wait_for_a_callback_that_does_not_return(
    timeout: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("spark_kafka_sink.client.base_producer._LAST_CALLBACKS_S", 0.1)
    reached, may_return = threading.Event(), threading.Event()

    def callback(*_: object) -> None:
        reached.set()
        may_return.wait(2 * ENOUGH_S)

    with giving_up() as producer:
        producer.send(TOPIC, b"v", on_delivery=callback)
        assert reached.wait(ENOUGH_S)

        def close() -> None:
            try:
                producer.close(timeout)
            except TimeoutException as error:
                assert "callbacks have not ended in 0.1 s" in str(error)  # noqa: PT017

        in_time(close)
        assert producer._thread.is_alive
        assert "its I/O thread has not ended: a callback may hold it up" in caplog.text
        may_return.set()
        assert producer._thread.join(ENOUGH_S)
        assert producer._thread._client._selector._wake_in.fileno() == -1
