"""What tables of runs of ``make bench`` are made of: targets of two runs, CPU time, busy cores.

`figures` has the tables of a single run, and writes all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bench.report import CORES, TARGET_HEADINGS, markdown_table, target_lines
from bench.results import Measured, rate_of
from bench.rounds import Measurement, Result
from bench.targets import TARGETS

SIZES: Final = {"100B": "100 bytes", "1KB": "1,000 bytes", "10KB": "10,000 bytes"}
Cells = Mapping[str, Measured]
Run = tuple[Cells, Mapping[str, Any]]


def targets(reported: Run, settings: Run) -> str:
    """Return a machine's results for each target: as the sink is, and with Spark set otherwise."""
    as_it_is, otherwise = (
        {line[:3]: line[3:] for line in target_lines(*run)} for run in (reported, settings)
    )

    def lines() -> Iterator[Sequence[str]]:
        for target, (figure, free, met) in as_it_is.items():
            figure_otherwise, *_ = otherwise.get(target, ("", "", ""))
            yield *target, figure, figure_otherwise, free, met

    headings = [*TARGET_HEADINGS[:3], "as it is", "Spark set otherwise", "a free sink", ""]
    return "".join(f"{line}\n" for line in markdown_table(headings, lines()))


def left_text(run: Run, cell: str, other: str) -> str:
    """Return the CPU µs per row that the target relative to another contender allows.

    All cores are busy then. Without such a target, return a dash.
    """
    cells, about = run
    for target in TARGETS:
        if (target.cell, target.what) == (cell, f"rows/s to {other}"):
            rate = rate_of(cells[cell].results[other]).median
            return f"{int(about[CORES]) / target.least / rate * 1e6:,.2f}"
    return "-"


def used_s(result: Result) -> float:
    """Return the CPU seconds per row of all processes, in the median round."""
    return statistics.median(_cpu_s(timing) for timing in result.measurements) / result.rows


def cores_busy(result: Result) -> float:
    """Return the number of cores that the processes kept busy in the median round."""
    return statistics.median(_cpu_s(timing) / timing.seconds for timing in result.measurements)


def _cpu_s(timing: Measurement) -> float:
    return timing.cpu.jvm + timing.cpu.python + timing.cpu.broker
