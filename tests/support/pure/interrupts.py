"""Interrupts: exceptions that come from outside, at every moment at which they can come.

Python looks for signals, whose handlers raise KeyboardInterrupt or anything else, where a function
of Python begins and where one of C ends. A profiler is called at the same moments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


class InterruptError(BaseException):
    """What a signal's handler raises, as KeyboardInterrupt."""


class AlarmError(Exception):
    """What a handler of SIGALRM raises that ends what takes too long."""


def interrupted(
    call: Callable[[], object], moment: int, error: type[BaseException] = InterruptError
) -> str | None:
    """Make a call, and interrupt it at the moment of a number, from 1 on.

    Gives where that was, None where the call was over before. Raises what the call does by itself.
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

    # What is raised where Python forgets an object, it prints and passes over.
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    sys.setprofile(look)
    try:
        call()
    except error:
        return where
    finally:
        sys.setprofile(None)
        sys.unraisablehook = hook
    return where or None
