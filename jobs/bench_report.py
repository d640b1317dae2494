"""What the turns come to: ratios first, then rates; on the screen, and as a report.

A ratio is taken within a round, contender to baseline, and its median over the rounds is given with
the range: what slows a machine for a while slows both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import bench_cells
import bench_plot
import bench_ratios
import bench_results
import bench_targets
from bench_ratios import Measured, Spread
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import bench_turns

_WIDTH: Final = 150
# Jobs of fewer rows are told by the time and CPU of a job, not of a row.
_FEW_ROWS: Final = 20_000
_NONE: Final = "-"
_TARGETS_TITLE: Final = "Targets, which are of two cores that Spark and one node of Kafka share"
# What a run tells of itself, and what bounds are told for.
CORES: Final = "cores of the driver's machine"
MASTER: Final = "master"
BEGUN: Final = "begun"
TARGET_HEADINGS: Final = ("what", "cell", "target", "measured", "a free sink, at best", "")


@dataclass(frozen=True, slots=True)
class Row:
    """A contender's line; what is to the baseline is None without one."""

    name: str
    rate_ratio: Spread | None
    cpu_ratio: Spread | None
    rate: Spread
    milliseconds: Spread
    jvm_s: float
    python_s: float
    broker_s: float
    peak_mb: float | None
    log_bytes_per_row: float | None
    rows: int


def rows_of(results: Mapping[str, bench_turns.Result]) -> list[Row]:
    """Give the lines of a cell."""
    base = results.get(bench_cells.BASELINE)
    return [_row(result, base) for result in results.values() if result.turns]


def _row(result: bench_turns.Result, base: bench_turns.Result | None) -> Row:
    if base is not None and not base.turns:
        base = None
    peaks = [turn.peak_mb for turn in result.turns if turn.peak_mb is not None]
    jvm_s, python_s, broker_s = bench_ratios.cpu_s(result)
    return Row(
        name=result.name,
        rate_ratio=None if base is None else bench_ratios.rate_ratio(result, base),
        cpu_ratio=None if base is None else bench_ratios.cpu_ratio(result, base),
        rate=bench_ratios.rate(result),
        milliseconds=Spread.of([turn.seconds * 1e3 for turn in result.turns]),
        jvm_s=jvm_s,
        python_s=python_s,
        broker_s=broker_s,
        peak_mb=max(peaks, default=None),
        log_bytes_per_row=None if result.log_bytes is None else result.log_bytes / result.rows,
        rows=result.rows,
    )


def _ours_to_others(results: Mapping[str, bench_turns.Result]) -> str:
    """Give the rows a second and the CPU of this sink to every other contender's, as sentences."""
    ours = results.get(bench_cells.OURS)
    if ours is None or not ours.turns:
        return ""
    others = {
        name: other for name, other in results.items() if name != bench_cells.OURS and other.turns
    }
    rates = {name: bench_ratios.rate_ratio(ours, other) for name, other in others.items()}
    cpu = {name: bench_ratios.cpu_ratio(ours, other) for name, other in others.items()}
    return " ".join(
        f"{what} of {bench_cells.OURS} to: {', '.join(texts)}."
        for what, ratios in (("Rows/s", rates), ("CPU a row", cpu))
        if (texts := [f"{name} {ratio.text(2, 'x')}" for name, ratio in ratios.items() if ratio])
    )


def _headings(cell: bench_cells.Cell) -> list[str]:
    is_small = cell.rows <= _FEW_ROWS
    return [
        "",
        "rows/s to R2t",
        "CPU a row to R2t",
        "ms a job" if is_small else "k rows/s",
        f"CPU {'ms a job' if is_small else 'µs a row'}: JVM",
        "Python",
        "broker",
        "worker's peak MB" if cell.kind is bench_cells.Kind.COLD else "shared worker's peak MB",
        "log bytes a row",
        "rows",
    ]


def _texts(cell: bench_cells.Cell, row: Row) -> list[str]:
    is_small = cell.rows <= _FEW_ROWS
    rate = row.milliseconds if is_small else Spread(*(v / 1e3 for v in asdict(row.rate).values()))
    unit = 1e3 if is_small else 1e6 / row.rows
    return [
        row.name,
        _NONE if row.rate_ratio is None else row.rate_ratio.text(2, "x"),
        _NONE if row.cpu_ratio is None else row.cpu_ratio.text(2, "x"),
        rate.text(0 if rate.low >= 100 else 1),
        *(f"{cpu * unit:,.2f}" for cpu in (row.jvm_s, row.python_s, row.broker_s)),
        _NONE if row.peak_mb is None else f"{row.peak_mb:,.0f}",
        _NONE if row.log_bytes_per_row is None else f"{row.log_bytes_per_row:,.1f}",
        f"{row.rows:,}",
    ]


def print_table(name: str, measured: Measured) -> None:
    """Print a cell's table, and who is not in it."""
    table = Table(title=f"{name}: {measured.cell}", title_justify="left")
    for number, heading in enumerate(_headings(measured.cell)):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in rows_of(measured.results):
        table.add_row(*_texts(measured.cell, row))
    Console(width=_WIDTH).print(table)
    if told := _ours_to_others(measured.results):
        print(f"  {told}")
    for result in _left_out(measured.results):
        print(f"  {result.name} not run: {result.not_run}")


def _left_out(results: Mapping[str, bench_turns.Result]) -> Iterator[bench_turns.Result]:
    return (result for result in results.values() if result.not_run is not None)


def print_targets(cells: Mapping[str, Measured], about: Mapping[str, Any]) -> None:
    """Print what the cells that were measured say of the targets."""
    lines = list(target_lines(cells, about))
    if lines:
        table = Table(title=_TARGETS_TITLE, title_justify="left")
        for heading in TARGET_HEADINGS:
            table.add_column(heading, overflow="fold")
        for line in lines:
            table.add_row(*line)
        Console(width=_WIDTH).print(table)


def target_lines(
    cells: Mapping[str, Measured], about: Mapping[str, Any]
) -> Iterator[tuple[str, ...]]:
    """Give what there is to say of each target, as `TARGET_HEADINGS` has it."""
    # Elsewhere than here, the CPU time that is seen is a part of it.
    cores = int(about[CORES]) if str(about[MASTER]).startswith("local") else None
    for one in bench_targets.reached(cells, cores):
        target, unit = one.target, one.target.unit
        bound = _NONE if one.bound is None else f"{one.bound:,.2f}{unit}"
        met = "met" if one.is_met else "not met"
        figure = one.figure
        is_one = figure.low == figure.high
        text = f"{figure.median:.2f}{unit}" if is_one else figure.text(2, unit)
        yield target.what, target.cell, target.text, text, bound, met


def write(folder: Path, cells: Mapping[str, Measured], about: Mapping[str, Any]) -> None:
    """Write results.json, results.md and results.png to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    bench_results.write(folder, cells, about)
    (folder / "results.md").write_text("\n".join(_markdown(cells, about)) + "\n")
    lines = {name: rows_of(one.results) for name, one in cells.items()}
    bench_plot.write(folder / "results.png", lines)


def _markdown(cells: Mapping[str, Measured], about: Mapping[str, Any]) -> Iterator[str]:
    yield "# Results of `jobs/bench.py`\n"
    yield from (f"- {name}: {value}" for name, value in about.items())
    if targets := list(target_lines(cells, about)):
        yield f"\n## Targets\n\n{_TARGETS_TITLE}.\n"
        yield from markdown_table(TARGET_HEADINGS, targets)
    for name, one in cells.items():
        yield f"\n## {name}\n\n{one.cell}\n"
        lines = [_texts(one.cell, row) for row in rows_of(one.results)]
        yield from markdown_table(_headings(one.cell), lines)
        if told := _ours_to_others(one.results):
            yield f"\n{told}"
        left_out = [f"{result.name} ({result.not_run})" for result in _left_out(one.results)]
        if left_out:
            yield f"\nNot run: {'; '.join(left_out)}."


def markdown_table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """Give the lines of a table of Markdown."""
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    yield from (f"| {' | '.join(line)} |" for line in lines)
