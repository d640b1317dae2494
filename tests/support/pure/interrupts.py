"""Interrupts: exceptions raised from outside, at every point at which they can be raised.

Python calls signal handlers, which may raise KeyboardInterrupt or anything else, at the start of
Python functions and at the end of C functions. A profiler is called at the same points.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

import pytest


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


def places_of(call: Callable[[], object]) -> list[str]:
    """Make a call; return the places at which `interrupted` can interrupt it, by moment from 1."""
    places: list[str] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return"):
            places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno} ({event})")

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return places


def interrupted_twice(call: Callable[[], object], moment: int, gap: int) -> list[str]:
    """Make a call, and interrupt it as `interrupted` does; interrupt it again `gap` points later.

    The second interrupt comes while the call handles the first one. Return where the interrupts
    were, none if the call ended before. Raise what the call itself raises.
    """
    seen = 0
    is_over = False
    where: list[str] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen
        if event in ("call", "c_return") and not is_over:
            seen += 1
            if seen == moment or (where and seen == moment + gap):
                where.append(f"{frame.f_code.co_qualname}:{frame.f_lineno} ({event})")
                raise InterruptError

    def look_again(_: FrameType, __: str, ___: object) -> Any:  # noqa: ANN401 - a TraceFunction
        # Python removes a profiler that raises.
        if len(where) == 1 and sys.getprofile() is None:
            sys.setprofile(look)
        return look_again

    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    collects = gc.isenabled()
    gc.disable()
    sys.settrace(look_again)
    sys.setprofile(look)
    try:
        call()
    except InterruptError:
        pass
    finally:
        is_over = True
        sys.settrace(None)
        sys.setprofile(None)
        if collects:
            gc.enable()
        sys.unraisablehook = hook
    return where


def interrupt_first(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """Interrupt the first call of a method at its start."""
    method, calls = getattr(owner, name), count()

    def call(*args: object, **named: object) -> object:
        if next(calls) == 0:
            raise InterruptError
        return method(*args, **named)

    monkeypatch.setattr(owner, name, call)
