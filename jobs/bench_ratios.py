"""What is told of turns: medians with their ranges, and ratios, which are taken within a round.

What slows a machine for a while slows both contenders of a round. Here are numbers only;
`bench_report` makes text of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import bench_cells
    import bench_turns


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell, and what became of each contender in it."""

    cell: bench_cells.Cell
    results: Mapping[str, bench_turns.Result]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and between what its values lie."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Give the spread of some values."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int, unit: str = "") -> str:
        """Give it as text."""
        median, low, high = (f"{v:,.{digits}f}" for v in (self.median, self.low, self.high))
        return f"{median}{unit} ({low}-{high})"


def rate(result: bench_turns.Result) -> Spread:
    """Give the rows a second."""
    return Spread.of([result.rows / turn.seconds for turn in result.turns])


def rate_ratio(result: bench_turns.Result, other: bench_turns.Result) -> Spread:
    """Give the rows a second of one to those of another."""
    share = result.rows / other.rows
    pairs = zip(result.turns, other.turns, strict=True)
    return Spread.of([share * theirs.seconds / turn.seconds for turn, theirs in pairs])


def cpu_ratio(result: bench_turns.Result, other: bench_turns.Result) -> Spread | None:
    """Give the CPU time of JVM and Python for a row to that of another; None where it has none."""
    if not all(_client_s(theirs) > 0 for theirs in other.turns):
        return None
    share = result.rows / other.rows
    pairs = zip(result.turns, other.turns, strict=True)
    return Spread.of([_client_s(turn) / _client_s(theirs) / share for turn, theirs in pairs])


def cpu_s(result: bench_turns.Result) -> tuple[float, float, float]:
    """Give the CPU seconds of a turn, each the median: of the JVM, of Python, of brokers."""
    used = [turn.cpu for turn in result.turns]
    jvm, python, broker = (
        statistics.median(each)
        for each in zip(*((one.jvm, one.python, one.broker) for one in used), strict=True)
    )
    return jvm, python, broker


def _client_s(turn: bench_turns.Turn) -> float:
    return turn.cpu.jvm + turn.cpu.python
