"""Interrupts: exceptions raised from outside, at every point at which they can be raised.

Python calls signal handlers, which may raise KeyboardInterrupt or anything else, at the start of
Python functions and at the end of C functions. A profiler is called at the same points.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType


class InterruptError(BaseException):
    """The exception of a signal handler, as KeyboardInterrupt is."""


class AlarmError(Exception):
    """The exception of a SIGALRM handler that ends a call that takes too long."""


def interrupted(
    call: Callable[[], object], moment: int, error: type[BaseException] = InterruptError
) -> str | None:
    """Make a call, and interrupt it at the point with number `moment`, counted from 1.

    Return where that was, None if the call ended before. Raise what the call itself raises.
    """
    seen = 0
    where = ""

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen, where
        if event in ("call", "c_return"):
            seen += 1
            if seen == moment:
                where = f"{frame.f_code.co_qualname}:{frame.f_lineno} ({event})"
                raise error

    # Python prints and ignores exceptions that are raised while it deletes an object.
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    # Callbacks of weak references to the garbage of other tests would swallow the exception.
    collects = gc.isenabled()
    gc.disable()
    sys.setprofile(look)
    try:
        call()
    except error:
        return where
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()
        sys.unraisablehook = hook
    return where or None
