"""Calls of user code whose result the producer does not need.

Callbacks, interceptors and plugins may raise anything, also SystemExit or asyncio's CancelledError.
In the I/O thread everything is logged and dropped: nobody could catch it, and a producer whose I/O
thread ends delivers nothing any more. In a caller's thread an Exception is logged, as in the Java
client. Other exceptions are returned to the caller, who raises them after all other work.
"""

from __future__ import annotations

import logging
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
