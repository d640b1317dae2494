"""Threads beside the network's thread, for slow calls such as asking a KDC for a ticket.

Calls are made one after the other. A call may never return, for example if a KDC accepts
connections and does not answer. So the other calls get a new thread after a while, up to a limit.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from spark_kafka_sink.errors import KafkaException, as_options_are_named_here

_T = TypeVar("_T")
# For how long an object is kept that no connection has taken. Kerberos tokens expire in minutes.
_STALE_S: Final = 60.0
# If a call takes longer, the other calls get another thread.
_SLOW_S: Final = 2.0
_MOST_THREADS: Final = 8


class HelperThreads:
    """Makes calls in a thread, which ends when there are no more calls.

    If all threads are at slow calls, another one is started, up to `_MOST_THREADS`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], object]] = deque()
        # When each thread began its present call.
        self._since: dict[object, float] = {}

    def run(self, call: Callable[[], object]) -> None:
        """Make a call in a thread; it must not raise. Any thread may call this.

        Raise RuntimeError, and make no call, if no thread can be started.
        """
        with self._lock:
            self._calls.append(call)
        try:
            self.look()
        except RuntimeError:
            self.drop(call)
            raise

    def look(self) -> None:
        """Start a thread if calls wait and all threads are slow.

        Raise RuntimeError if that is not possible, and no other thread will make them.
        """
        thread = object()
        with self._lock:
            now = time.monotonic()
            is_full = len(self._since) >= _MOST_THREADS
            if not self._calls or is_full or any(now < at + _SLOW_S for at in self._since.values()):
                return
            self._since[thread] = now
        try:
            threading.Thread(
                target=self._run, args=(thread,), name="kafka-login", daemon=True
            ).start()
        except RuntimeError:
            with self._lock:
                del self._since[thread]
                if not self._since:
                    raise

    def drop(self, call: Callable[[], object]) -> None:
        """Do not make a call that has not begun."""
        with self._lock, suppress(ValueError):
            self._calls.remove(call)

    def _run(self, thread: object) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    del self._since[thread]
                    return
                call = self._calls.popleft()
                self._since[thread] = time.monotonic()
            call()


@dataclass(frozen=True, slots=True)
class _Made(Generic[_T]):
    value: _T | None
    error: KafkaException | None
    at: float


class _Making:
    """An object that is being made, and the call that makes it."""

    call: Callable[[], object]


class MadeAhead(Generic[_T]):
    """Objects that helper threads make in advance, by key; each is taken once.

    make: may take long, and raises KafkaException on failure. wake: called from a helper thread
    when an object is ready.
    """

    def __init__(self, make: Callable[[str], _T], wake: Callable[[], None]) -> None:
        self._make = make
        self._wake = wake
        self._threads = HelperThreads()
        # Each change is one step, which no other thread sees half done.
        self._made: dict[str, _Made[_T] | _Making] = {}

    def is_there(self, key: str) -> bool:
        """Return whether `take` returns or raises; otherwise it is being made from now on."""
        found = self._made.get(key)
        if isinstance(found, _Making):
            with suppress(RuntimeError):
                self._threads.look()
            return False
        if found is not None and time.monotonic() < found.at + _STALE_S:
            return True
        making = _Making()
        making.call = as_options_are_named_here(lambda: self._run(key, making))
        self._made[key] = making
        try:
            self._threads.run(making.call)
        except RuntimeError:
            # The program ends, or the system has no room for a thread.
            error = KafkaException("no thread can be started to log in")
            self._made[key] = _Made(None, error, time.monotonic())
            return True
        return False

    def take(self, key: str) -> _T | None:
        """Return the object, None while it is being made. Raise KafkaException if that failed.

        The next one is not started.
        """
        if not self.is_there(key):
            return None
        found = self._made.pop(key)
        if isinstance(found, _Making):
            return None
        if found.error is not None:
            raise found.error
        return found.value

    def give_up(self, key: str) -> None:
        """Stop waiting for the object that is being made. The next `is_there` makes another."""
        found = self._made.get(key)
        if isinstance(found, _Making):
            del self._made[key]
            self._threads.drop(found.call)

    def _run(self, key: str, making: _Making) -> None:
        value, error = None, None
        try:
            value = self._make(key)
        except KafkaException as failure:
            error = failure
        except BaseException as failure:  # noqa: BLE001 - the thread goes on, whatever it is
            error = KafkaException(f"the login cannot be made: {type(failure).__name__}")
        made = _Made(value, error, time.monotonic())
        if self._made.get(key) is making:
            self._made[key] = made
            self._wake()
