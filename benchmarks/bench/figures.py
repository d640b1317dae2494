"""The tables of the pages about speed, and the chart of one of them, made from stored results.

``PYTHONPATH=benchmarks:tests:jobs python -m bench.figures`` generates them from
docs/benchmarks/reported/results.json and from the other folders there, together with each run's
results.md and .png. With ``--check`` the exit code is 1 if a table or the chart does not match
these results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from support.documents.made_tables import with_tables

from bench import figures_of_runs, speed_chart
from bench.figures_of_runs import SIZES
from bench.report import markdown_table, rows_of, write_report
from bench.results import Measured, Spread, rate_ratio_of, read_results
from bench.rounds import Result
from bench.targets import free_sink_s

DOCS: Final = Path(__file__).parents[2] / "docs"
# The folders of the runs: with conf/spark-defaults.conf; set otherwise, and so for large rows; and
# on another machine.
RUNS: Final = ("reported", "settings", "large_rows", "xeon/reported")
DOCUMENTS: Final = (
    DOCS / "contributing" / "benchmarks.md",
    DOCS / "contributing" / "performance.md",
    DOCS / "explanation" / "performance.md",
)
CHART: Final = DOCS / "pictures" / "speed.svg"
_OURS, _USUAL, _TUNED, _HOP, _RAW, _PERF_TEST = "R1", "R2", "R2t", "R1h", "R0", "R6"
# Suffixes of the names of cells.
_SHOWN: Final = {"no compression": "", "lz4": "-lz4", "zstd": "-zstd"}
_BY_PARTITIONS: Final = {"12 partitions": "", "100": "-100p", "1,000": "-1000p"}

_Cells = Mapping[str, Measured]
_Table = Callable[[_Cells, Mapping[str, Any]], Iterable[str]]


def tables() -> dict[str, Callable[[], str]]:
    """Return the function that makes each table, by the table's name."""
    runs = {name: read_results(DOCS / "benchmarks" / name) for name in RUNS}
    reported = runs["reported"]
    settings = (runs["settings"][0] | runs["large_rows"][0], runs["settings"][1])
    return {
        **{name: partial(_text, lines, *reported) for name, lines in _TABLES.items()},
        "targets": partial(figures_of_runs.targets, reported, settings),
    }


def _text(lines: _Table, cells: _Cells, about: Mapping[str, Any]) -> str:
    return "".join(f"{line}\n" for line in lines(cells, about))


def _sizes(cells: _Cells, _about: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of every contender at every size."""

    def lines() -> Iterator[Sequence[str]]:
        for size, what in SIZES.items():
            for row in rows_of(cells[size].results):
                cpu = [
                    f"{s / row.rows * 1e6:,.2f}" for s in (row.jvm_s, row.python_s, row.broker_s)
                ]
                ratios = [
                    "-" if ratio is None else ratio.text(2, "x")
                    for ratio in (row.rate_ratio, row.cpu_ratio)
                ]
                yield [what, row.name, *ratios, f"{row.rate.median / 1e3:,.0f}", *cpu]

    headings = ["values of", "", "rows/s to R2t", "CPU a row to R2t", "k rows/s"]
    headings += ["CPU µs a row: JVM", "Python", "broker"]
    yield from markdown_table(headings, lines())


def chart() -> str:
    """Return the chart of the reported run's codecs."""
    cells, _ = read_results(DOCS / "benchmarks" / "reported")

    def ratio(cell: str) -> Spread:
        return rate_ratio_of(cells[cell].results[_OURS], cells[cell].results[_TUNED])

    return speed_chart.chart(
        {
            kind: [(what, ratio(size + ending)) for size, what in SIZES.items()]
            for kind, ending in _SHOWN.items()
        }
    )


def _matrix(kinds: Mapping[str, str], other: str = _TUNED, title: str | None = None) -> _Table:
    """Return a table of R1 relative to another: sizes down, kinds (name suffixes) across."""

    def table(cells: _Cells, _about: Mapping[str, Any]) -> Iterator[str]:
        lines = (
            [what, *(_to(other, cells, size + ending) for ending in kinds.values())]
            for size, what in SIZES.items()
        )
        yield from markdown_table([title or f"R1, rows/s to {other}", *kinds], lines)

    return table


def _to(other: str, cells: _Cells, cell: str) -> str:
    results = cells[cell].results if cell in cells else {}
    ours, theirs = results.get(_OURS), results.get(other)
    if ours is None or theirs is None or not (ours.measurements and theirs.measurements):
        return "-"
    return rate_ratio_of(ours, theirs).text(2, "x")


def _perf_test(cells: _Cells, _about: Mapping[str, Any]) -> Iterator[str]:
    """Yield both sinks' rows per second relative to kafka-producer-perf-test."""

    def texts(results: Mapping[str, Result]) -> Iterator[str]:
        for name in (_OURS, _TUNED):
            yield rate_ratio_of(results[name], results[_PERF_TEST]).text(2, "x")

    lines = (
        [what, *texts(cells[f"{size}-nokey"].results)]
        for size, what in SIZES.items()
        if f"{size}-nokey" in cells
    )
    yield from markdown_table(["no keys, rows/s to R6", _OURS, _TUNED], lines)


def _partitions(cells: _Cells, _about: Mapping[str, Any]) -> Iterator[str]:
    """Yield R1's rows per second by the number of partitions."""

    def texts(size: str) -> Iterator[str]:
        one = cells[f"{size}-100p"].results["R1p"]  # a topic of one partition
        others = (cells[size + ending].results[_OURS] for ending in _BY_PARTITIONS.values())
        for ours in (one, *others):
            thousands = [ours.rows / timing.seconds / 1e3 for timing in ours.measurements]
            yield Spread.of(thousands).text(0 if size != "10KB" else 1)

    lines = ([what, *texts(size)] for size, what in SIZES.items() if f"{size}-1000p" in cells)
    yield from markdown_table(["R1, k rows/s", "1 partition", *_BY_PARTITIONS], lines)


def _jobs(cells: _Cells, _about: Mapping[str, Any]) -> Iterator[str]:
    """Yield the milliseconds of small and cold jobs and of micro-batches."""
    contenders = (_OURS, _HOP, "noop", _USUAL, _TUNED)

    def texts(cell: str) -> Iterator[str]:
        for name in contenders:
            result = cells[cell].results.get(name)
            if result is None or not result.measurements:
                yield "-"
            else:
                spread = Spread.of([timing.seconds * 1e3 for timing in result.measurements])
                yield spread.text(0)

    names = [name for name in ("1row", "1000rows", "stream", "cold", "cold-1000p") if name in cells]
    lines = ([name, f"{cells[name].cell.rows:,}", *texts(name)] for name in names)
    yield from markdown_table(["ms a job", "rows", *contenders], lines)


def _cpu_in(kinds: Mapping[str, str]) -> _Table:
    """Return a table of a row's CPU time, of all processes together, in cells of these kinds."""

    def texts(run: figures_of_runs.Run, cell: str) -> Iterator[str]:
        cells, _ = run
        for name in (_TUNED, _HOP, _RAW, "R1c"):
            result = cells[cell].results[name]
            yield f"{figures_of_runs.used_s(result) * 1e6:,.2f}" if result.measurements else "-"
        yield f"{free_sink_s(cells, cell) * 1e6:,.2f}"
        yield figures_of_runs.left_text(run, cell, _TUNED)
        ours = cells[cell].results[_OURS]
        yield f"{figures_of_runs.used_s(ours) * 1e6:,.2f}"
        yield f"{figures_of_runs.cores_busy(ours):.1f}"

    def table(cells: _Cells, about: Mapping[str, Any]) -> Iterator[str]:
        lines = (
            [what + kind, *texts((cells, about), size + end)]
            for kind, end in kinds.items()
            for size, what in SIZES.items()
            if size + end in cells
        )
        headings = ["CPU µs a row, of all processes", _TUNED, _HOP, _RAW, "R1c", "a free sink"]
        headings += ["for the target", _OURS, "cores busy with R1"]
        yield from markdown_table(headings, lines)

    return table


_TABLES: Final[Mapping[str, _Table]] = {
    "sizes": _sizes,
    "codecs": _matrix(_SHOWN),
    "tuned": _matrix(_SHOWN, title="rows of"),
    "default": _matrix(_SHOWN, _USUAL, title="rows of"),
    "kinds": _matrix({"keys": "", "no keys": "-nokey"}),
    "perf_test": _perf_test,
    "partitions_to": _matrix(_BY_PARTITIONS),
    "partitions_to_usual": _matrix(_BY_PARTITIONS, _USUAL),
    "partitions": _partitions,
    "jobs": _jobs,
    "cpu": _cpu_in({"": "", ", lz4": "-lz4", ", zstd": "-zstd"}),
}


def main() -> int:
    """Write or check the documents."""
    made, stale = tables(), 0
    for document in (*DOCUMENTS, CHART):
        text = document.read_text()
        fresh = chart() if document == CHART else with_tables(text, made)
        if "--check" not in sys.argv:
            document.write_text(fresh)
        elif text != fresh:
            command = "PYTHONPATH=benchmarks:tests:jobs python -m bench.figures"
            print(f"{document.relative_to(DOCS.parent)} is stale: {command}", file=sys.stderr)
            stale = 1
    if "--check" not in sys.argv:
        for folder in (DOCS / "benchmarks" / name for name in RUNS):
            write_report(folder, *read_results(folder))
    return stale


if __name__ == "__main__":
    sys.exit(main())
