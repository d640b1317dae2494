"""What a run measured: spreads, ratios, and results.json, which later runs and documents read.

A ratio is taken within a round, because what slows a machine for a while slows both contenders.
`report` makes text and a plot of these numbers.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from job import running

from bench.cells import Cell
from bench.rounds import Result, Turn


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell, and what became of each contender in it."""

    cell: Cell
    results: Mapping[str, Result]


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


def rate_of(result: Result) -> Spread:
    """Give the rows a second."""
    return Spread.of([result.rows / turn.seconds for turn in result.turns])


def rate_ratio_of(result: Result, other: Result) -> Spread:
    """Give the rows a second of one to those of another."""
    share = result.rows / other.rows
    pairs = zip(result.turns, other.turns, strict=True)
    return Spread.of([share * theirs.seconds / turn.seconds for turn, theirs in pairs])


def cpu_ratio_of(result: Result, other: Result) -> Spread | None:
    """Give the CPU time of JVM and Python for a row to that of another; None where it has none."""
    if not all(_client_s(theirs) > 0 for theirs in other.turns):
        return None
    share = result.rows / other.rows
    pairs = zip(result.turns, other.turns, strict=True)
    return Spread.of([_client_s(turn) / _client_s(theirs) / share for turn, theirs in pairs])


def cpu_s_of(result: Result) -> tuple[float, float, float]:
    """Give the CPU seconds of a turn, each the median: of the JVM, of Python, of brokers."""
    used = [turn.cpu for turn in result.turns]
    jvm, python, broker = (
        statistics.median(each)
        for each in zip(*((one.jvm, one.python, one.broker) for one in used), strict=True)
    )
    return jvm, python, broker


def _client_s(turn: Turn) -> float:
    return turn.cpu.jvm + turn.cpu.python


_NAME: Final = "results.json"


def read_results(folder: Path) -> tuple[dict[str, Measured], dict[str, Any]]:
    """Give a folder's cells, and what is told of their run; nothing where it has no such file.

    Raises JobError where the file is not what `write` of this release makes.
    """
    path = folder / _NAME
    if not path.exists():
        return {}, {}
    try:
        return _cells_of(json.loads(path.read_text()))
    except (ValueError, LookupError, TypeError, AttributeError, msgspec.MsgspecError) as error:
        message = (
            f"{path} is not a report of this release's benchmark ({error}): give --output a "
            "folder that has one, or none"
        )
        raise running.JobError(message) from None


def _cells_of(found: Any) -> tuple[dict[str, Measured], dict[str, Any]]:  # noqa: ANN401 - what a file has
    cells = {}
    for name, one in found["cells"].items():
        results = msgspec.convert(one["results"], list[Result])
        cell = msgspec.convert(one["cell"], Cell)
        cells[name] = Measured(cell, {result.name: result for result in results})
    return cells, found["about"]


def write_results(folder: Path, cells: Mapping[str, Measured], about: Mapping[str, Any]) -> None:
    """Write what was measured."""
    found = {
        name: {
            "cell": asdict(one.cell) | {"kind": one.cell.kind.value},
            "results": [asdict(result) for result in one.results.values()],
        }
        for name, one in cells.items()
    }
    text = json.dumps({"about": about, "cells": found}, indent=1)
    (folder / _NAME).write_text(text + "\n")
