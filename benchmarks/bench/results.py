"""The results of a run: spreads, ratios, and results.json, which later runs and documents read.

A ratio is taken within a round, because a temporary slowdown of the machine affects both
contenders. `report` makes text and a plot of these numbers.
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
from bench.rounds import Measurement, Result


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell with each contender's result."""

    cell: Cell
    results: Mapping[str, Result]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, with the minimum and maximum of its values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of some values."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int, unit: str = "") -> str:
        """Return it as text."""
        median, low, high = (f"{v:,.{digits}f}" for v in (self.median, self.low, self.high))
        return f"{median}{unit} ({low}-{high})"


def rate_of(result: Result) -> Spread:
    """Return the rows per second."""
    return Spread.of([result.rows / timing.seconds for timing in result.measurements])


def rate_ratio_of(result: Result, other: Result) -> Spread:
    """Return the rows per second relative to another contender."""
    share = result.rows / other.rows
    pairs = zip(result.measurements, other.measurements, strict=True)
    return Spread.of([share * theirs.seconds / timing.seconds for timing, theirs in pairs])


def cpu_ratio_of(result: Result, other: Result) -> Spread | None:
    """Return the CPU time per row of JVM and Python relative to another; None if that has none."""
    if not all(_client_s(theirs) > 0 for theirs in other.measurements):
        return None
    share = result.rows / other.rows
    pairs = zip(result.measurements, other.measurements, strict=True)
    return Spread.of([_client_s(timing) / _client_s(theirs) / share for timing, theirs in pairs])


def cpu_s_of(result: Result) -> tuple[float, float, float]:
    """Return the median CPU seconds per round: of the JVM, of Python, of brokers."""
    used = [timing.cpu for timing in result.measurements]
    jvm, python, broker = (
        statistics.median(each)
        for each in zip(*((one.jvm, one.python, one.broker) for one in used), strict=True)
    )
    return jvm, python, broker


def _client_s(timing: Measurement) -> float:
    return timing.cpu.jvm + timing.cpu.python


_NAME: Final = "results.json"


def read_results(folder: Path) -> tuple[dict[str, Measured], dict[str, Any]]:
    """Return a folder's cells and the facts of their run, empty if there is no such file.

    Raise JobError if the file was not written by this release.
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
    """Write the results."""
    found = {
        name: {
            "cell": asdict(one.cell) | {"kind": one.cell.kind.value},
            "results": [asdict(result) for result in one.results.values()],
        }
        for name, one in cells.items()
    }
    text = json.dumps({"about": about, "cells": found}, indent=1)
    (folder / _NAME).write_text(text + "\n")
