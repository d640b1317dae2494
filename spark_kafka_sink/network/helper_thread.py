"""A thread beside the network's thread, for slow calls such as asking a KDC for a ticket."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from spark_kafka_sink.errors import KafkaException, as_options_are_named_here

_T = TypeVar("_T")
# What was made for a connection that did not come about; tickets' tokens are good for minutes.
_STALE_S: Final = 60.0


class HelperThread:
    """A thread that makes calls one after the other, and is there as long as there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], object]] = deque()
        self._is_there = False

    def run(self, call: Callable[[], object]) -> None:
        """Run a call in the thread; it must not raise. Any thread may call this.

        Raise RuntimeError, and run nothing, if no thread can be started.
        """
        with self._lock:
            self._calls.append(call)
            if self._is_there:
                return
            self._is_there = True
        try:
            threading.Thread(target=self._run, name="kafka-login", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._calls.clear()
                self._is_there = False
            raise

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._is_there = False
                    return
                call = self._calls.popleft()
            call()


@dataclass(frozen=True, slots=True)
class _Made(Generic[_T]):
    value: _T | None
    error: KafkaException | None
    at: float


class MadeAhead(Generic[_T]):
    """Objects that the helper thread makes in advance, by key; each is taken once.

    make: may take long, and raises KafkaException on failure. wake: called from the helper thread
    when an object is ready.
    """

    def __init__(self, make: Callable[[str], _T], wake: Callable[[], None]) -> None:
        self._make = make
        self._wake = wake
        self._thread = HelperThread()
        # None: it is being made. Each change is one step, which no other thread sees half done.
        self._made: dict[str, _Made[_T] | None] = {}

    def is_there(self, key: str) -> bool:
        """Return whether `take` returns or raises; otherwise it is being made from now on."""
        made = self._made.get(key)
        if made is not None and time.monotonic() < made.at + _STALE_S:
            return True
        if key not in self._made or made is not None:
            self._made[key] = None
            try:
                self._thread.run(as_options_are_named_here(lambda: self._run(key)))
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
        made = self._made.pop(key)
        if made is None:
            return None
        if made.error is not None:
            raise made.error
        return made.value

    def _run(self, key: str) -> None:
        value, error = None, None
        try:
            value = self._make(key)
        except KafkaException as failure:
            error = failure
        except BaseException as failure:  # noqa: BLE001 - the thread goes on, whatever it is
            error = KafkaException(f"the login cannot be made: {type(failure).__name__}")
        self._made[key] = _Made(value, error, time.monotonic())
        self._wake()
