"""Threads for slow calls, such as requesting a ticket from a KDC, outside the network's thread.

A thread executes its calls one after the other. A call may never return, for example if a KDC
accepts connections but does not respond. If a call is slow, another thread is started for the
waiting calls. The number of threads is limited.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from spark_kafka_sink.errors import KafkaException, as_options_are_named_here

_T = TypeVar("_T")
# How long to keep an object that no connection takes. Kerberos tokens expire in minutes.
_STALE_S: Final = 60.0
# If a call takes longer than this, another thread is started for the other calls.
_SLOW_S: Final = 2.0
_MOST_THREADS: Final = 8


class HelperThreads:
    """Executes calls in a helper thread, which ends when no call is waiting.

    If every thread is busy with a slow call, another one is started, up to `_MOST_THREADS`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], object]] = deque()
        # When each thread began its current call.
        self._since: dict[object, float] = {}

    def run(self, call: Callable[[], object]) -> None:
        """Execute `call`, which must not raise, in a helper thread. Any thread may use this method.

        Raise RuntimeError if no thread can be started and no other thread is running. The call is
        then dropped. It is also dropped if an interrupt ends this method before a thread has begun
        the call.
        """
        try:
            with self._lock:
                self._calls.append(call)
            self.look()
        except BaseException:
            self.drop(call)
            raise

    def look(self) -> None:
        """Start a thread if calls wait and every thread is busy with a slow call.

        Raise RuntimeError if no thread can be started and no other thread is running.
        """
        thread = object()
        with self._lock:
            now, since = time.monotonic(), self._since
            is_busy = any(now < at + _SLOW_S for at in since.values())
            if not self._calls or len(since) >= _MOST_THREADS or is_busy:
                return
            since[thread] = now
            try:
                # Thread.start is not used, because an interrupt inside it would produce a thread
                # that fails before it runs anything. That thread would count as busy for ever.
                _thread.start_new_thread(self._run, (thread,))
            except RuntimeError:
                del since[thread]
                if not since:
                    raise

    def drop(self, call: Callable[[], object]) -> None:
        """Remove a call that has not begun."""
        with self._lock, suppress(ValueError):
            self._calls.remove(call)

    def _run(self, thread: object) -> None:
        threading.current_thread().name = "kafka-login"
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
    """A placeholder for an object that is being made, with the call that makes it."""

    call: Callable[[], object]


class MadeAhead(Generic[_T]):
    """Objects that helper threads make in advance, by key. Each object can be taken only once.

    make: a function that returns a new object for a key. This may take a long time. It raises
    KafkaException on failure. wake: called from a helper thread when an object is ready.
    """

    def __init__(self, make: Callable[[str], _T], wake: Callable[[], None]) -> None:
        self._make = make
        self._wake = wake
        self._threads = HelperThreads()
        # Each change is one atomic operation, so no lock is needed.
        self._made: dict[str, _Made[_T] | _Making] = {}

    def is_there(self, key: str) -> bool:
        """Return whether the object of a key is ready, or could not be made (`take` raises why).

        If not, start to make the object, unless a thread is making it already.
        """
        found = self._made.get(key)
        if isinstance(found, _Making):
            with suppress(RuntimeError):
                self._threads.look()
            return False
        if found is not None and time.monotonic() < found.at + _STALE_S:
            return True
        making = _Making()
        making.call = as_options_are_named_here(lambda: self._run(key, making))
        try:
            self._made[key] = making
            self._threads.run(making.call)
        except RuntimeError:
            # The interpreter is exiting, or the system cannot start another thread.
            error = KafkaException("no thread can be started to log in")
            self._made[key] = _Made(None, error, time.monotonic())
            return True
        except BaseException:
            # After an interrupt, no thread makes the object. The next call starts to make it.
            self._made.pop(key, None)
            raise
        return False

    def take(self, key: str) -> _T | None:
        """Return and remove the object of a key, or return None while it is being made.

        If it was not requested before, start to make it (see `is_there`). Raise KafkaException if
        it could not be made. After the object is removed, the next call starts to make another one.
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
        """Discard the object that is being made. The next `is_there` starts to make another one."""
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
