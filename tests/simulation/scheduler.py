"""Simulated time: what happens when, in one order for one seed, and the log of it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class SimulationError(AssertionError):
    """What the simulation found: a broken promise, a hang, a busy loop."""


class Scheduler:
    """A clock that jumps from event to event; times are seconds.

    Events at the same time happen in the order they were asked for. `trace` prints a line an event
    where it is switched on; runs of one seed are alike, so a failing one is simply run again.
    """

    def __init__(self, *, tracing: bool = False) -> None:
        self.now = 0.0
        self._tracing = tracing
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:  # noqa: ANN401 - whatever the call takes
        """Have `call` made in `delay_s` seconds."""
        self.at(self.now + delay_s, call, *args)

    def at(self, time: float, call: Callable[..., None], *args: Any) -> None:  # noqa: ANN401 - whatever the call takes
        """Have `call` made at a time, now at the earliest.

        What must stay in order is asked for by time: a delay added again may round otherwise.
        """
        self._count += 1
        heapq.heappush(self._events, (max(self.now, time), self._count, call, args))

    def next_at(self) -> float:
        """Give when the next event happens, infinity if none is left."""
        return self._events[0][0] if self._events else float("inf")

    def run_next(self) -> None:
        """Let the next event happen."""
        at, _, call, args = heapq.heappop(self._events)
        self.now = at
        call(*args)

    def run_until(self, time: float) -> None:
        """Let everything up to `time` happen."""
        while self.next_at() <= time:
            self.run_next()
        self.now = max(self.now, time)

    def trace(self, who: str, text: str, *args: object) -> None:
        """Note what happened."""
        if self._tracing:
            print(f"{self.now:10.4f}  {who:<10} {text.format(*args)}")
