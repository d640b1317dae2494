"""Calls of user code whose result the producer does not need, and the queue of the I/O thread's.

Callbacks, interceptors and plugins may raise anything, also SystemExit or asyncio's CancelledError.
In the I/O thread everything is logged and dropped: nobody could catch it, and a producer whose I/O
thread ends delivers nothing any more. In a caller's thread an Exception is logged, as in the Java
client. Other exceptions are returned to the caller, who raises them after all other work.

`UserCalls` has the calls of the I/O thread, which it makes in order and without a lock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

logger = logging.getLogger(__name__)


def call_in_io_thread(what: str, function: Callable[..., object], *arguments: object) -> None:
    """Call user code from the I/O thread; log and drop whatever it raises.

    what: the function's role for the log line, which also has the first argument.
    """
    try:
        function(*arguments)
    except BaseException as error:  # noqa: BLE001 - see above
        # A handler or a __repr__ of the user may raise as well.
        with suppress(BaseException):
            _log(what, function, arguments, error)


def call_in_caller(
    what: str, functions: Iterable[Callable[..., object]], *arguments: object
) -> BaseException | None:
    """Call user code from a caller's thread; return the exception that the caller must raise.

    functions: all are called, whatever others raise. Exceptions are logged; the first BaseException
    that is not an Exception is returned, also if a log handler raised it.
    """
    raised: BaseException | None = None
    for function in functions:
        try:
            try:
                function(*arguments)
            except Exception as error:  # noqa: BLE001 - see above
                with suppress(Exception):
                    _log(what, function, arguments, error)
        except BaseException as error:  # noqa: BLE001 - returned
            if raised is None:
                raised = error
    return raised


def _log(
    what: str,
    function: Callable[..., object],
    arguments: tuple[object, ...],
    error: BaseException,
) -> None:
    about = f" for {arguments[0]}" if arguments else ""
    if not isinstance(error, Exception):
        about += f": {type(error).__name__} has no effect in the thread that delivers records"
    logger.error("%s %r failed%s", what, function, about, exc_info=error)


class UserCalls:
    """The I/O thread's calls. due, made: how many are to make and how many were made, ever.

    A flush waits for the calls that were due before it. After the end of the I/O thread, another
    thread replaces it for as long as there are calls, because a caller may wait for one of them.
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
