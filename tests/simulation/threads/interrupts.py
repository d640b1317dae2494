"""Interrupt: KeyboardInterrupt in a user's thread, at a moment that a seed draws.

Python checks for signals at the start of a function, at the end of a C function
(`support.pure.interrupts`), and while a thread waits for a lock or a condition. The driver's own
code is not interrupted; in a real system it would be C.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from simulation.threads.world import World

_DRIVER: Final = str(Path(__file__).parents[1])
# An append has some 800 of them, the shortest calls have less than 30.
_MOST_MOMENTS: Final = (30, 150, 1000)
_MOST_WAITS: Final = 6


class Interrupt:
    """One interrupt. where: the place at which it was raised, empty before."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._in_a_wait = world.random.random() < 0.2
        most = _MOST_WAITS if self._in_a_wait else world.random.choice(_MOST_MOMENTS)
        self._left = world.random.randint(1, most)
        self.where = ""

    def during(self, call: Callable[[], object]) -> None:
        """Make a call that is interrupted. Raise KeyboardInterrupt, unless it ends before."""
        task = self._world.current
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        if self._in_a_wait:
            task.interrupt_at = self._left
        else:
            sys.setprofile(self._look)
        try:
            call()
        finally:
            sys.setprofile(None)
            sys.unraisablehook = hook
            task.interrupt_at = 0

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "c_return") or self._world.is_inside:
            return
        if frame.f_code.co_filename.startswith(_DRIVER) or self.where:
            return
        self._left -= 1
        if not self._left:
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno} ({event})"
            raise KeyboardInterrupt
