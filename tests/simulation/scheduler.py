"""Simulated time: events in one order per seed, and their log."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class SimulationError(AssertionError):
    """An error found by the simulation: a broken guarantee, a hang, a busy loop."""


class Scheduler:
    """A clock that jumps from event to event; times are in seconds.

    Events at the same time happen in the order in which they were scheduled. `trace` prints one
    line per event if it is enabled. Runs of one seed are identical, so a failing one is simply
    repeated.
    """

    def __init__(self, *, tracing: bool = False) -> None:
        self.now = 0.0
        self._tracing = tracing
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:  # noqa: ANN401 - whatever the call takes
        """Schedule a call in `delay_s` seconds."""
        self.at(self.now + delay_s, call, *args)

    def at(self, time: float, call: Callable[..., None], *args: Any) -> None:  # noqa: ANN401 - whatever the call takes
        """Schedule a call at a time, at the earliest now.

        Events that must stay in order are scheduled by time, because adding delays may round
        differently.
        """
        self._count += 1
        heapq.heappush(self._events, (max(self.now, time), self._count, call, args))

    def next_at(self) -> float:
        """Return the time of the next event, infinity if there is none."""
        return self._events[0][0] if self._events else float("inf")

    def run_next(self) -> None:
        """Run the next event."""
        at, _, call, args = heapq.heappop(self._events)
        self.now = at
        call(*args)

    def run_until(self, time: float) -> None:
        """Run all events up to `time`."""
        while self.next_at() <= time:
            self.run_next()
        self.now = max(self.now, time)

    def trace(self, who: str, text: str, *args: object) -> None:
        """Log an event."""
        if self._tracing:
            print(f"{self.now:10.4f}  {who:<10} {text.format(*args)}")
