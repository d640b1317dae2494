"""A producer without an I/O thread, in which time passes only during waits.

During a wait, time advances from one scheduled event to the next, until an event notifies the
waiter or the wait times out. As with a real condition, a waiter that is not notified continues to
wait.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.client import deadlines, io_thread, unclosed
from spark_kafka_sink.wire.messages import MetadataResponse
from support.pure.pure_transactions import PureTransactions
from support.pure.transaction_answers import COORDINATOR, versions_of
from support.pure.unreachable import NOBODY


class Clock:
    """The time, and the events scheduled for later times."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._coming: list[tuple[float, Callable[[], None]]] = []

    def after(self, delay_s: float | None, call: Callable[[], None]) -> None:
        """Schedule `call` in `delay_s` seconds; never if that is None."""
        if delay_s is not None:
            self._coming.append((self.now + delay_s, call))
            self._coming.sort(key=lambda event: event[0])

    def next_until(self, end: float) -> Callable[[], None] | None:
        """Advance the time to the next event and return it, None if that is after `end`."""
        if not self._coming or self._coming[0][0] > end:
            self.now = max(self.now, end)
            return None
        at, happen = self._coming.pop(0)
        self.now = max(self.now, at)
        return happen


class TimedSignal:
    """A signal of `client.deadlines`; to wait for it lets the clock's time pass."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_taken = False

    def locked(self) -> bool:
        """Whether the signal is not set."""
        return self._is_taken

    def release(self) -> None:
        """Set the signal."""
        self._is_taken = False

    def acquire(self, *, timeout: float | None = None) -> bool:
        """Run the next events until the signal is set; the first call takes it at once."""
        if self._is_taken:
            assert timeout is None or timeout <= threading.TIMEOUT_MAX, "OverflowError of a lock"
            end = math.inf if timeout is None else self._clock.now + timeout
            while self._is_taken:
                happen = self._clock.next_until(end)
                assert happen is not None or timeout is not None, "it would wait for ever"
                if happen is None:
                    return False
                happen()
        self._is_taken = True
        return True


class NoThread:
    """Replaces the I/O thread and does nothing."""

    def __init__(self, **_: object) -> None: ...

    def start(self) -> None:
        """Do nothing."""

    def join(self, timeout: float | None = None) -> None:
        """Do nothing."""

    def is_alive(self) -> bool:
        """Return False."""
        return False


def stop_time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Make the producers of the test use the returned clock."""
    clock = Clock()
    threads = SimpleNamespace(Thread=NoThread, current_thread=threading.current_thread)
    monkeypatch.setattr(io_thread, "threading", threads)
    monkeypatch.setattr(deadlines, "new_signal", partial(TimedSignal, clock))
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


class StuckThread(NoThread):
    """An I/O thread that does not end, because a callback does not return."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def join(self, timeout: float | None = None) -> None:
        """Let the time pass, and give up at once if there is no limit."""
        self._clock.now += timeout or 0

    def is_alive(self) -> bool:
        """Return True."""
        return True


def stop_time_and_thread(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """As `stop_time`, but the I/O threads do not end, and no earlier producer is open."""
    clock = stop_time(monkeypatch)
    monkeypatch.setattr(unclosed, "_unclosed", {})
    thread = "spark_kafka_sink.client.io_thread.threading.Thread"
    monkeypatch.setattr(thread, lambda **_: StuckThread(clock))
    return clock


def press_ctrl_c() -> None:
    """Raise KeyboardInterrupt."""
    raise KeyboardInterrupt


@contextmanager
def made(**config: object) -> Iterator[KafkaProducer]:
    """Yield a producer without metadata; options with _ instead of dots."""
    options = {name.replace("_", "."): value for name, value in config.items()}
    producer = KafkaProducer({"bootstrap.servers": NOBODY, **options})
    try:
        yield producer
    finally:
        producer.close(0)
        producer._thread._client.close()  # as the I/O thread does


def in_transaction(producer: KafkaProducer) -> PureTransactions:
    """Begin a transaction of a transactional producer, with the test as its coordinator."""
    transactions = PureTransactions()
    assert producer._state.transactions is not None
    transactions.manager = producer._state.transactions
    transactions.manager.queue.coordinators.node_ready(COORDINATOR, versions_of(2))
    return transactions.writing()


def update_metadata(producer: KafkaProducer, response: MetadataResponse) -> None:
    """Deliver a response to a metadata request, as the I/O thread does."""
    state = producer._state
    state.metadata.update(response, time.monotonic())
    state.notify()
