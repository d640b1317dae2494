"""UserCalls: the I/O thread's calls into user code, in order and without a lock.

It owns the queue of calls and the number of finished ones: a flush waits for the calls that were
due before it. After the end of the I/O thread, another thread replaces it for as long as there are
calls, because a caller may wait for one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from spark_kafka_sink.plugins.guarded_call import call_in_io_thread


class UserCalls:
    """due, made: how many calls there are to make and how many were made, ever.

    But for `make`, the caller of each method holds the producer's lock.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self.due = 0
        self.made = 0
        self._has_ended = False
        self._start_thread: Callable[[], None] = lambda: None

    def start_later_threads(self, start: Callable[[], None]) -> None:
        """Set the function that starts a thread in place of the ended I/O thread."""
        self._start_thread = start

    def add(self, call: Callable[[], object]) -> None:
        """Queue a call after the others."""
        self._calls.append(call)
        self.due += 1
        if self._has_ended:
            self._start_thread()
            self._has_ended = False

    def make(self) -> int:
        """Make the calls that are due, also those that they cause; return how many there were.

        By the thread that makes calls, without the lock.
        """
        made = 0
        while self._calls:
            # User code is guarded at its call, so an exception here is a bug.
            call_in_io_thread("call", self._calls.popleft())
            made += 1
        return made

    def end(self) -> bool:
        """End the thread that makes calls, unless there are more; return whether it ends."""
        self._has_ended = not self._calls
        return self._has_ended
