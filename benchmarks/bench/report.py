"""The report of a run: tables for the screen, results.md, and results.png.

Ratios come first. A ratio is taken within a round, contender to baseline. The report has its median
over the rounds, and the range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.cells import BASELINE, CONTENDERS, OURS, Cell, Kind
from bench.results import (
    Measured,
    Spread,
    cpu_ratio_of,
    cpu_s_of,
    rate_of,
    rate_ratio_of,
    write_results,
)
from bench.rounds import Result
from bench.targets import TARGETS, TO_TUNED, reached

_WIDTH: Final = 150
# For jobs with fewer rows, time and CPU are reported per job, not per row.
_FEW_ROWS: Final = 20_000
_NONE: Final = "-"
_TARGETS_TITLE: Final = "Targets, which are of two cores that Spark and one node of Kafka share"
# The facts of a run, and the contenders with bounds.
CORES: Final = "cores of the driver's machine"
MASTER: Final = "master"
BEGUN: Final = "begun"
TARGET_HEADINGS: Final = ("what", "cell", "target", "measured", "a free sink, at best", "")


@dataclass(frozen=True, slots=True)
class Row:
    """A contender's line; fields relative to the baseline are None without one."""

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


def rows_of(results: Mapping[str, Result]) -> list[Row]:
    """Return the lines of a cell."""
    base = results.get(BASELINE)
    return [_row(result, base) for result in results.values() if result.measurements]


def _row(result: Result, base: Result | None) -> Row:
    if base is not None and not base.measurements:
        base = None
    peaks = [timing.peak_mb for timing in result.measurements if timing.peak_mb is not None]
    jvm_s, python_s, broker_s = cpu_s_of(result)
    return Row(
        name=result.name,
        rate_ratio=None if base is None else rate_ratio_of(result, base),
        cpu_ratio=None if base is None else cpu_ratio_of(result, base),
        rate=rate_of(result),
        milliseconds=Spread.of([timing.seconds * 1e3 for timing in result.measurements]),
        jvm_s=jvm_s,
        python_s=python_s,
        broker_s=broker_s,
        peak_mb=max(peaks, default=None),
        log_bytes_per_row=None if result.log_bytes is None else result.log_bytes / result.rows,
        rows=result.rows,
    )


def _ours_to_others(results: Mapping[str, Result]) -> str:
    """Return sentences on this sink's rows per second and CPU relative to the other contenders."""
    ours = results.get(OURS)
    if ours is None or not ours.measurements:
        return ""
    others = {name: other for name, other in results.items() if name != OURS and other.measurements}
    rates = {name: rate_ratio_of(ours, other) for name, other in others.items()}
    cpu = {name: cpu_ratio_of(ours, other) for name, other in others.items()}
    return " ".join(
        f"{what} of {OURS} to: {', '.join(texts)}."
        for what, ratios in (("Rows/s", rates), ("CPU a row", cpu))
        if (texts := [f"{name} {ratio.text(2, 'x')}" for name, ratio in ratios.items() if ratio])
    )


def _headings(cell: Cell) -> list[str]:
    is_small = cell.rows <= _FEW_ROWS
    return [
        "",
        "rows/s to R2t",
        "CPU a row to R2t",
        "ms a job" if is_small else "k rows/s",
        f"CPU {'ms a job' if is_small else 'µs a row'}: JVM",
        "Python",
        "broker",
        "worker's peak MB" if cell.kind is Kind.COLD else "shared worker's peak MB",
        "log bytes a row",
        "rows",
    ]


def _texts(cell: Cell, row: Row) -> list[str]:
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
    """Print a cell's table, and the contenders that are missing in it."""
    table = Table(title=f"{name}: {measured.cell}", title_justify="left")
    for number, heading in enumerate(_headings(measured.cell)):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in rows_of(measured.results):
        table.add_row(*_texts(measured.cell, row))
    Console(width=_WIDTH).print(table)
    if ratios := _ours_to_others(measured.results):
        print(f"  {ratios}")
    for result in _left_out(measured.results):
        print(f"  {result.name} not run: {result.not_run}")


def _left_out(results: Mapping[str, Result]) -> Iterator[Result]:
    return (result for result in results.values() if result.not_run is not None)


def print_targets(cells: Mapping[str, Measured], about: Mapping[str, Any]) -> None:
    """Print the targets and the figures of the measured cells."""
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
    """Yield the lines of the targets, with the columns of `TARGET_HEADINGS`."""
    # On other machines, only a part of the CPU time is counted.
    cores = int(about[CORES]) if str(about[MASTER]).startswith("local") else None
    for one in reached(cells, cores):
        target, unit = one.target, one.target.unit
        bound = _NONE if one.bound is None else f"{one.bound:,.2f}{unit}"
        met = "met" if one.is_met else "not met"
        figure = one.figure
        is_one = figure.low == figure.high
        text = f"{figure.median:.2f}{unit}" if is_one else figure.text(2, unit)
        yield target.what, target.cell, target.text, text, bound, met


def write_report(folder: Path, cells: Mapping[str, Measured], about: Mapping[str, Any]) -> None:
    """Write results.json, results.md and results.png to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_results(folder, cells, about)
    (folder / "results.md").write_text("\n".join(_markdown(cells, about)) + "\n")
    lines = {name: rows_of(one.results) for name, one in cells.items()}
    _write_plot(folder / "results.png", lines)


def _markdown(cells: Mapping[str, Measured], about: Mapping[str, Any]) -> Iterator[str]:
    yield "# Results of `benchmarks/run.py`\n"
    yield from (f"- {name}: {value}" for name, value in about.items())
    if targets := list(target_lines(cells, about)):
        yield f"\n## Targets\n\n{_TARGETS_TITLE}.\n"
        yield from markdown_table(TARGET_HEADINGS, targets)
    for name, one in cells.items():
        yield f"\n## {name}\n\n{one.cell}\n"
        lines = [_texts(one.cell, row) for row in rows_of(one.results)]
        yield from markdown_table(_headings(one.cell), lines)
        if ratios := _ours_to_others(one.results):
            yield f"\n{ratios}"
        left_out = [f"{result.name} ({result.not_run})" for result in _left_out(one.results)]
        if left_out:
            yield f"\nNot run: {'; '.join(left_out)}."


def markdown_table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    yield from (f"| {' | '.join(line)} |" for line in lines)


_SINKS: Final = (OURS, "R2")
_MOST: Final = 3.5  # the end of the linear scale; longer bars are cut
_THICK: Final = 0.85  # a fraction of a cell's height
_COLOURS: Final = dict(
    zip(
        CONTENDERS,
        (
            *("tab:blue", "tab:orange", "tab:green", "tab:red", "lightcoral", "tab:purple"),
            *("tab:brown", "tab:pink", "tab:gray", "tab:olive", "tab:cyan"),
            *("lightblue", "navajowhite", "black", "lightgreen"),
            *("navy", "darkred", "sienna"),
            *("teal", "indigo", "gold", "plum"),
        ),
        strict=True,
    )
)


def _write_plot(path: Path, cells: Mapping[str, Sequence[Row]]) -> None:
    """Write a PNG with a line of bars for each cell.

    On the left are this sink and Spark's own, on a linear scale with marks for the targets. The
    other two plots have all contenders, on a logarithmic scale. Colours are the same in all plots.
    """
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and needed at the end only

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - likewise, and after the backend

    figure, (sinks, rates, cpu) = plt.subplots(
        1, 3, figsize=(17, 1.5 + 0.9 * len(cells)), sharey=True
    )
    _bars(sinks, _SINKS, cells, lambda row: row.rate_ratio)
    sinks.set(title="rows/s to R2t, and targets", xlim=(0, _MOST))
    places = list(_targets(list(cells)))
    sinks.scatter(
        [limit for limit, _ in places],
        [cell for _, cell in places],
        s=700,
        marker="|",
        color="black",
        zorder=3,
    )
    present = {row.name for rows in cells.values() for row in rows}
    everybody = [name for name in _COLOURS if name in present]
    _bars(rates, everybody, cells, lambda row: row.rate_ratio)
    rates.set(title="rows/s to R2t (more is better)", xscale="log")
    _bars(cpu, everybody, cells, lambda row: row.cpu_ratio)
    cpu.set(title="client CPU a row to R2t (less is better)", xscale="log")
    for axis in (sinks, rates, cpu):
        axis.axvline(1, color="black", linewidth=0.8)
    sinks.set_yticks(range(len(cells)), list(cells))
    sinks.set_ylim(len(cells) - 0.5, -0.5)
    cpu.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _bars(
    axis: Any,  # noqa: ANN401 - matplotlib has no types
    contenders: Sequence[str],
    cells: Mapping[str, Sequence[Row]],
    ratio: Callable[[Row], Spread | None],
) -> None:
    height = _THICK / max(1, len(contenders))
    for number, contender in enumerate(contenders):
        found = _points(cells.values(), contender, ratio)
        axis.barh(
            [cell + (number - (len(contenders) - 1) / 2) * height for cell, _ in found],
            [spread.median for _, spread in found],
            height,
            label=contender,
            color=_COLOURS[contender],
            xerr=[
                [spread.median - spread.low for _, spread in found],
                [spread.high - spread.median for _, spread in found],
            ],
            error_kw={"linewidth": 0.6},
        )


def _points(
    cells: Iterable[Sequence[Row]],
    contender: str,
    ratio: Callable[[Row], Spread | None],
) -> list[tuple[int, Spread]]:
    return [
        (number, spread)
        for number, rows in enumerate(cells)
        for row in rows
        if row.name == contender and (spread := ratio(row)) is not None
    ]


def _targets(cells: Sequence[str]) -> Iterator[tuple[float, int]]:
    """Yield the targets in rows per second relative to R2t, with the number of their cell."""
    for target in TARGETS:
        if target.what == TO_TUNED and target.cell in cells:
            yield target.least, cells.index(target.cell)
