"""Until when a caller waits, and how: with no lock of the producer's, and for no time too long.

Owns that no time limit is too long to wait for: locks know neither infinity nor the longest
milliseconds that an option takes. And the wait itself. A `threading.Condition` makes its callers
wait inside ``with lock``, and an interrupt (Ctrl-C) that comes when the condition has let go of the
lock leaves a caller who releases what another thread has. Here a caller leaves the block first and
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
    """Return how long a wait until `deadline` is from now on, None for as long as it takes."""
    return None if deadline is None else min(deadline - time.monotonic(), threading.TIMEOUT_MAX)


class Call(NamedTuple):
    """A public call: until when it may wait, and what raises where it must not go on.

    check: called under the lock.
    """

    deadline: float
    check: Callable[[], None]


class Waiters:
    """Those who wait for something to change. The caller of each method holds the lock.

    A waiter is a lock that is taken, and that whoever notifies releases.
    """

    __slots__ = ("_signals",)

    def __init__(self) -> None:
        self._signals: list[threading.Lock] = []

    def add(self) -> threading.Lock:
        """Return a signal that the next `notify_all` gives; see `wait_for_signal`."""
        signal = new_signal()
        signal.acquire()
        self._signals.append(signal)
        return signal

    def discard(self, signal: threading.Lock) -> None:
        """Forget a signal that nobody waits for any more."""
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
    """Wait until a signal is given; return False where the deadline passes before."""
    if deadline is None:
        return signal.acquire()
    return signal.acquire(timeout=max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX)))


# Named so that tests can have waits in which their own time passes.
new_signal: Callable[[], threading.Lock] = threading.Lock
