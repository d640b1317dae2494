"""A producer in whose waits alone time passes, without an I/O thread.

Each wait lets time pass from one thing that happens to the next, up to the one that notifies it, or
to its own end: who is not told waits on, as with a real condition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.client import io_thread
from spark_kafka_sink.wire.messages import MetadataResponse
from support.pure.unreachable import NOBODY


class Clock:
    """The time, and what is to happen at which."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._coming: list[tuple[float, Callable[[], None]]] = []

    def after(self, delay_s: float | None, call: Callable[[], None]) -> None:
        """Have `call` made in `delay_s` seconds, never with None."""
        if delay_s is not None:
            self._coming.append((self.now + delay_s, call))
            self._coming.sort(key=lambda event: event[0])

    def next_until(self, end: float) -> Callable[[], None] | None:
        """Let time pass up to what happens next; None where that is the end."""
        if not self._coming or self._coming[0][0] > end:
            self.now = max(self.now, end)
            return None
        at, happen = self._coming.pop(0)
        self.now = max(self.now, at)
        return happen


class TimedCondition(threading.Condition):
    """A condition whose waits let the clock's time pass; only who is notified is woken."""

    def __init__(self, lock: threading.RLock, clock: Clock) -> None:
        super().__init__(lock)
        self._lock_of_all = lock
        self._clock = clock
        self._notified = 0

    def notify(self, n: int = 1) -> None:
        """Wake who waits; `notify_all` calls this, too."""
        super().notify(n)
        self._notified += 1

    def wait(self, timeout: float | None = None) -> bool:
        """Have happen what comes, without the lock, until something notifies."""
        assert timeout is not None
        assert timeout <= threading.TIMEOUT_MAX, "a lock would raise OverflowError"
        end, before = self._clock.now + timeout, self._notified
        while self._notified == before:
            happen = self._clock.next_until(end)
            if happen is None:
                return False
            self._lock_of_all.release()
            try:
                happen()
            finally:
                self._lock_of_all.acquire()
        return True


class NoThread:
    """Stands for the I/O thread, which does nothing here."""

    def __init__(self, **_: object) -> None: ...

    def start(self) -> None:
        """Do nothing."""

    def join(self, timeout: float | None = None) -> None:
        """Do nothing."""

    def is_alive(self) -> bool:
        """Return False."""
        return False


def stop_time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Have the producers that the test makes go by the clock that is given."""
    clock = Clock()
    threads = SimpleNamespace(
        RLock=threading.RLock,
        Condition=partial(TimedCondition, clock=clock),
        Thread=NoThread,
        current_thread=threading.current_thread,
    )
    monkeypatch.setattr(io_thread, "threading", threads)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


@contextmanager
def made(**config: object) -> Iterator[KafkaProducer]:
    """Make a producer that knows nothing; options with _ for the dots."""
    options = {name.replace("_", "."): value for name, value in config.items()}
    producer = KafkaProducer({"bootstrap.servers": NOBODY, **options})
    try:
        yield producer
    finally:
        producer.close(0)
        producer._thread._client.close()  # which the I/O thread does


def tell(producer: KafkaProducer, response: MetadataResponse) -> None:
    """Have an answer to a request for metadata come, as the I/O thread takes it."""
    thread = producer._thread
    with thread.changed:
        thread.metadata.update(response, time.monotonic())
        thread.changed.notify_all()
