"""UserCalls: calls into user code that the I/O thread makes, in order and without a lock.

Owns which are to be made, and how many have been: a flush waits for those that were due before it.
After the end of the I/O thread another thread takes its place for as long as there are calls, since
whoever waits for what one of them does has nobody else.
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
        """Know what starts a thread in place of the I/O thread, which has ended."""
        self._start_thread = start

    def add(self, call: Callable[[], object]) -> None:
        """Have a call made, behind the others."""
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
            # User code is guarded where it is called: what raises here is a bug.
            call_in_io_thread("call", self._calls.popleft())
            made += 1
        return made

    def end(self) -> bool:
        """Have the thread that makes calls end, unless there are more; return whether it does."""
        self._has_ended = not self._calls
        return self._has_ended
