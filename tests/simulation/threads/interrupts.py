"""Interrupt: KeyboardInterrupt in a user's thread, at a moment that a seed draws.

Some interrupts are followed by another one, while the call handles the first.

Python checks for signals at the start of a function, at the end of a C function
(`support.pure.interrupts`), and while a thread waits for a lock or a condition. The driver's own
code is not interrupted; in a real system it would be C. But some of it stands for calls at whose
end an interrupt can come: a lock that is released, and a thread that is woken.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from simulation.threads.world import SimulatedCondition, SimulatedLock, World

_DRIVER: Final = str(Path(__file__).parents[1])
# Where an interrupt can come when they return: the thread has been woken, the lock is free.
_AS_IN_C: Final = {
    SimulatedLock.__exit__.__code__,
    SimulatedCondition.notify.__code__,
    SimulatedCondition.notify_all.__code__,
}
# An append has some 800 of them, the shortest calls have less than 30.
_MOST_MOMENTS: Final = (30, 150, 1000)
_MOST_WAITS: Final = 6
_MOST_IN_C: Final = 40
# The probability of a second interrupt, and how many moments after the first it comes at most.
_TWICE: Final = 0.4
_MOST_GAPS: Final = (3, 12, 60)
# How many moments before the interrupt a call pauses at most, and for how long.
_MOMENTS_AFTER_A_PAUSE: Final = (2, 10, 50, 200)
_PAUSE_S: Final = 0.1


class Interrupt:
    """One interrupt, or two.

    where: the place at which the first was raised, empty before; again: the place of the second.
    pauses: whether the call pauses before the first interrupt, and not between the two; has_paused:
    whether it has begun to pause. Other threads run meanwhile.
    """

    def __init__(self, world: World, *, pauses: bool = False) -> None:
        random = world.random
        self._world = world
        self._in_a_wait = random.random() < 0.2
        # These are few, but what a thread has just done for others is half done there.
        self._in_c = not self._in_a_wait and random.random() < 0.3
        most = _MOST_WAITS if self._in_a_wait else random.choice(_MOST_MOMENTS)
        most = _MOST_IN_C if self._in_c else most
        self._left = random.randint(1, most)
        twice = random.random() < _TWICE
        self._gap = random.randint(1, random.choice(_MOST_GAPS)) if twice else 0
        self.where = ""
        self.again = ""
        self._pause_at = random.choice(_MOMENTS_AFTER_A_PAUSE) if pauses else 0
        self.has_paused = False

    def during(self, call: Callable[[], object]) -> None:
        """Make a call that is interrupted. Raise KeyboardInterrupt, unless it ends before."""
        task = self._world.current
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        if self._in_a_wait:
            task.interrupt_at = self._left
        if self._gap:
            sys.settrace(self._look_again)
        if self._gap or not self._in_a_wait:
            sys.setprofile(self._look)
        try:
            call()
        finally:
            sys.settrace(None)
            sys.setprofile(None)
            sys.unraisablehook = hook
            task.interrupt_at = 0

    def _look_again(self, _: FrameType, __: str, ___: object) -> Any:  # noqa: ANN401 - a TraceFunction
        # Python removes a profiler that raises.
        if self._gap and sys.getprofile() is None:
            sys.setprofile(self._look)
        return None

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        if self._world.is_inside or not _can_be_interrupted(frame, event):
            return
        if self._left <= self._pause_at and not self.has_paused:
            self.has_paused = True
            self._world.user_slept_s += _PAUSE_S
            self._world.sleep(_PAUSE_S)
        if self._in_a_wait:
            if self._world.current.interrupt_at:
                return
            self.where = self.where or "a wait"
        if self._in_c and event != "return" and not self.where:
            return
        seen = frame.f_back if event == "return" and frame.f_back is not None else frame
        place = f"{seen.f_code.co_qualname}:{seen.f_lineno} ({event})"
        if not self.where:
            self._left -= 1
            if not self._left:
                self.where = place
                raise KeyboardInterrupt
        elif self._gap:
            self._gap -= 1
            if not self._gap:
                self.again = place
                raise KeyboardInterrupt


def _can_be_interrupted(frame: FrameType, event: str) -> bool:
    if not frame.f_code.co_filename.startswith(_DRIVER):
        return event in ("call", "c_return")
    if event != "return" or frame.f_code not in _AS_IN_C:
        return False
    if frame.f_back is None or frame.f_back.f_code.co_filename.startswith(_DRIVER):
        return False
    raised = frame.f_locals.get("_")
    # At the end of a `with` block that raises, an interrupt comes later.
    return not raised or raised[0] is None
