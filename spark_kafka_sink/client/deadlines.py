"""How callers wait, and until when: without a lock of the producer, and within the limits of locks.

Locks accept neither infinity nor the largest number of milliseconds that an option may have; this
module caps such times. And it has the wait itself. A `threading.Condition` makes its callers wait
inside ``with lock``. If an interrupt (Ctrl-C) comes while the condition has released the lock, the
caller then releases a lock that another thread holds. Here a caller leaves the block first, and
waits for a signal that only it has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple


def deadline_of(timeout_s: float | None) -> float | None:
    """Return when a wait that begins now is to end, None for never."""
    return None if timeout_s is None else time.monotonic() + timeout_s


def seconds_until(deadline: float | None) -> float | None:
    """Return the seconds from now to `deadline`, None for no limit."""
    return None if deadline is None else min(deadline - time.monotonic(), threading.TIMEOUT_MAX)


class Call(NamedTuple):
    """A public call: how long it may wait, and a check whether it may go on.

    check: called under the lock; raises if the call must end.
    """

    deadline: float
    check: Callable[[], None]


class Waiters:
    """The callers that wait for a change. The caller of each method holds the lock.

    A waiter is an acquired lock, which the notifying thread releases.
    """

    __slots__ = ("_signals",)

    def __init__(self) -> None:
        self._signals: list[threading.Lock] = []

    def add(self) -> threading.Lock:
        """Return a signal that the next `notify_all` sets; see `wait_for_signal`."""
        signal = new_signal()
        signal.acquire()
        self._signals.append(signal)
        return signal

    def discard(self, signal: threading.Lock) -> None:
        """Remove a signal that is no longer waited for."""
        if signal in self._signals:
            self._signals.remove(signal)

    def notify_all(self) -> None:
        """Wake everybody who waits; calling it again after an interrupt wakes the rest."""
        if self._signals:
            for signal in self._signals:
                if signal.locked():
                    signal.release()
            self._signals = []


def wait_for_signal(signal: threading.Lock, deadline: float | None) -> bool:
    """Wait until a signal is set; return False if the deadline passes first."""
    if deadline is None:
        return signal.acquire()
    return signal.acquire(timeout=max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX)))


# Named so that tests can have waits in which their own time passes.
new_signal: Callable[[], threading.Lock] = threading.Lock
