"""Tables of more than one run of ``make bench``: targets with variants, and the effect of changes.

`figures` has the tables of a single run, and writes all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from bench.report import CORES, TARGET_HEADINGS, markdown_table, target_lines
from bench.results import Measured, cpu_ratio_of, rate_of, rate_ratio_of
from bench.rounds import Result, Turn
from bench.targets import TARGETS, free_sink_s

SIZES: Final = {"100B": "100 bytes", "1KB": "1,000 bytes", "10KB": "10,000 bytes"}
_OURS, _OTHER, _USUAL, _TUNED = "R1", "R1b", "R2", "R2t"
_ONE_PARTITION, _RAW = "R1p", "R0"
# Runs of cells with 1,000 partitions, each with the state before a change as R1b.
FOR_MANY_PARTITIONS: Final = {
    "slices": "slices of 16 MiB",
    "partitions": "no slices kept of which little is referenced, and each batch looked at once",
    "room": "no more batches sent than make room, while memory is short",
}

Cells = Mapping[str, Measured]
Run = tuple[Cells, Mapping[str, Any]]


def targets(reported: Run, settings: Run) -> str:
    """Return a machine's results for each target: of the sink, and of its variants."""
    runs = (reported, settings, (_from_r1b(settings[0]), settings[1]))
    as_it_is, otherwise, in_between = (
        {line[:3]: line[3:] for line in target_lines(*run)} for run in runs
    )

    def lines() -> Iterator[Sequence[str]]:
        for target, (figure, free, met) in as_it_is.items():
            figure_otherwise, free_otherwise, _ = otherwise.get(target, ("", "", ""))
            figure_in_between, *_ = in_between.get(target, ("", "", ""))
            figures = (figure, figure_otherwise, figure_in_between)
            yield *target, *figures, free, free_otherwise, met

    headings = [*TARGET_HEADINGS[:3], "as it is", "Spark set otherwise"]
    headings += ["and the task's own thread", "a free sink", "a free sink, Spark set otherwise", ""]
    return "".join(f"{line}\n" for line in markdown_table(headings, lines()))


def _from_r1b(cells: Cells) -> Cells:
    """Return the cells with the other checkout, R1b, in the place of this sink."""
    return {
        name: replace(one, results={**one.results, _OURS: one.results[_OTHER]})
        for name, one in cells.items()
        if _OTHER in one.results
    }


def what_targets_leave(reported: Run, settings: Run) -> str:
    """Return the CPU time per row that targets allow, and the CPU time used, with both settings."""
    others = (_TUNED, _USUAL, _RAW)

    def texts(run: Run, cell: str) -> Iterator[str]:
        cells, _ = run
        results = cells[cell].results
        yield from (left_text(run, cell, name) for name in others)
        yield f"{free_sink_s(cells, cell) * 1e6:,.2f}"
        for name in (_OURS, _OTHER):
            turns = results[name].turns if name in results else []
            yield f"{used_s(results[name]) * 1e6:,.2f}" if turns else ""
            yield f"{cores_busy(results[name]):.1f}" if turns else ""

    lines = (
        [what + kind, *texts(run, size)]
        for size, what in SIZES.items()
        for kind, run in (("", reported), (", Spark set otherwise", settings))
    )
    headings = ["CPU µs a row", *(f"left by {name}" for name in others)]
    headings += ["a free sink", _OURS, "cores busy"]
    headings += ["from the task's own thread", "cores busy"]
    return "".join(f"{line}\n" for line in markdown_table(headings, lines))


def from_the_tasks_thread(here: Cells, there: Cells) -> str:
    """Return the results of the other checkout, R1b, relative to the sink, for each cell."""

    def texts(results: Mapping[str, Result]) -> Iterator[str]:
        other, ours = results[_OTHER], results[_OURS]
        yield rate_ratio_of(other, ours).text(2, "x")
        cpu = cpu_ratio_of(other, ours)
        yield "-" if cpu is None else cpu.text(2, "x")

    headings = ["", "rows/s to R1", "CPU a row to R1", "rows/s, Xeon", "CPU a row, Xeon"]
    lines = ([name, *texts(one.results), *texts(there[name].results)] for name, one in here.items())
    return "".join(f"{line}\n" for line in markdown_table(headings, lines))


def for_many_partitions(runs: Mapping[str, Cells]) -> str:
    """Return each change's effect with 1,000 partitions: relative to before, and to 1 partition."""

    def lines() -> Iterator[Sequence[str]]:
        for size, what in SIZES.items():
            for name, cells in runs.items():
                results = cells[f"{size}-1000p"].results
                ours, before, one = (results[each] for each in (_OURS, _OTHER, _ONE_PARTITION))
                cpu = cpu_ratio_of(ours, before)
                yield [
                    what,
                    f"[{FOR_MANY_PARTITIONS[name]}](benchmarks/{name}/results.md)",
                    rate_ratio_of(ours, before).text(2, "x"),
                    "-" if cpu is None else cpu.text(2, "x"),
                    rate_ratio_of(ours, one).text(2, "x"),
                    rate_ratio_of(before, one).text(2, "x"),
                ]

    headings = ["rows of", "change", "rows/s to those before", "CPU a row"]
    headings += ["rows/s to one partition", "before"]
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
    """Return the CPU seconds per row of all processes, in the median turn."""
    return statistics.median(_cpu_s(turn) for turn in result.turns) / result.rows


def cores_busy(result: Result) -> float:
    """Return the number of cores that the processes kept busy in the median turn."""
    return statistics.median(_cpu_s(turn) / turn.seconds for turn in result.turns)


def _cpu_s(turn: Turn) -> float:
    return turn.cpu.jvm + turn.cpu.python + turn.cpu.broker
