"""Call user code and ignore its result; queue such calls for the I/O thread.

Callbacks, interceptors and plugins may raise anything, even SystemExit or asyncio's CancelledError.
In the I/O thread, every exception is logged and dropped, because no caller could catch it. If an
exception ended the I/O thread, the producer would deliver nothing any more. In a caller's thread,
an Exception is logged, as in the Java client. Any other BaseException is returned, and the caller
raises it after all other work.

`UserCalls` is the queue of the calls that the I/O thread runs, in order and without a lock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

logger = logging.getLogger(__name__)


def call_in_io_thread(what: str, function: Callable[..., object], *arguments: object) -> None:
    """Call user code in the I/O thread; log and drop any exception.

    what: the role of the function, for the log message. The message also shows the first argument.
    """
    try:
        function(*arguments)
    except BaseException as error:  # noqa: BLE001 - see above
        # A logging handler or a __repr__ of the user may raise too.
        with suppress(BaseException):
            _log(what, function, arguments, error)


def call_in_caller(
    what: str, functions: Iterable[Callable[..., object]], *arguments: object
) -> BaseException | None:
    """Call user code in a caller's thread. Return the exception that the caller must raise, if any.

    All functions are called, even if one raises. Exceptions are logged. The first BaseException
    that is not an Exception is returned, even if a logging handler raised it.
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
    """The queue of user calls for the I/O thread.

    due: the number of calls that were ever queued. made: how many of them have returned. A flush
    waits until the calls that were queued before it have returned. If a call is queued after the
    I/O thread has ended, a new thread is started for it, because a caller may wait for this call.
    `add` and `end` are called with the producer's lock, `make` without it.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self.due = 0
        self.made = 0
        self._has_ended = False
        self._start_thread: Callable[[], None] = lambda: None

    def start_later_threads(self, start: Callable[[], None]) -> None:
        """Set the function that starts a thread to run calls after the I/O thread has ended."""
        self._start_thread = start

    def add(self, call: Callable[[], object]) -> None:
        """Queue a call after all calls that are queued already."""
        self._calls.append(call)
        self.due += 1
        if self._has_ended:
            self._start_thread()
            self._has_ended = False

    def make(self) -> int:
        """Run all queued calls, and the calls that these queue. Return how many calls were run.

        It runs in the I/O thread or the thread that replaces it, without the producer's lock.
        """
        made = 0
        while self._calls:
            # The queued call itself catches the exceptions of user code. An exception here is a
            # bug.
            call_in_io_thread("call", self._calls.popleft())
            made += 1
        return made

    def end(self) -> bool:
        """Return whether no call is queued. If so, the thread that runs the calls must end.

        The next `add` then starts a new thread.
        """
        self._has_ended = not self._calls
        return self._has_ended
