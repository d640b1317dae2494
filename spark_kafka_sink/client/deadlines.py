"""Deadlines, and waits of callers that hold no lock.

Python's locks accept neither infinity nor the largest number of milliseconds that an option may
have, so this module caps timeouts. It also implements waits without `threading.Condition`. With a
condition, a caller waits inside ``with lock``. If an interrupt (Ctrl-C) comes while the condition
has released the lock, the end of the ``with`` block releases a lock that another thread holds.
Here, a caller first ends the ``with`` block, and then waits for its own signal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple


def deadline_of(timeout_s: float | None) -> float | None:
    """Return the time at which a wait that begins now must end; None if it has no limit."""
    return None if timeout_s is None else time.monotonic() + timeout_s


def seconds_until(deadline: float | None) -> float | None:
    """Return the seconds from now to `deadline`; None if there is no deadline."""
    return None if deadline is None else min(deadline - time.monotonic(), threading.TIMEOUT_MAX)


class Call(NamedTuple):
    """A public call: its deadline, and a check whether it may continue.

    check: called under the lock; raises if the call must end. max_block_s: how
    long the call may wait; 0 in a callback.
    """

    deadline: float
    check: Callable[[], None]
    max_block_s: float


class Waiters:
    """The callers that wait for a change.

    The thread that calls a method must hold the lock that guards the change. Each waiting caller
    has its own signal: an acquired lock, which the notifying thread releases.
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
        """Remove a signal for which no caller waits any more."""
        if signal in self._signals:
            self._signals.remove(signal)

    def notify_all(self) -> None:
        """Wake all waiting callers. If this call is interrupted, a second call wakes the rest."""
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


# A module attribute, so that tests can replace it and simulate the time of waits.
new_signal: Callable[[], threading.Lock] = threading.Lock
