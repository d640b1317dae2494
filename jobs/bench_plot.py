"""What the turns come to, as a plot: a line of bars for every cell.

On the left this sink and Spark's own, to a linear scale with marks where targets are; beside it all
contenders, by powers of ten. A contender has the same colour in all plots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import bench_cells
import bench_targets
from bench_ratios import Spread

if TYPE_CHECKING:
    import bench_report

_SINKS: Final = (bench_cells.OURS, "R2")
_MOST: Final = 3.5  # of the linear scale; bars that are longer end there
_THICK: Final = 0.85  # of the room that a cell has
_COLOURS: Final = dict(
    zip(
        bench_cells.CONTENDERS,
        (
            *("tab:blue", "tab:orange", "tab:green", "tab:red", "lightcoral", "tab:purple"),
            *("tab:brown", "tab:pink", "tab:gray", "tab:olive", "tab:cyan"),
            *("lightblue", "navajowhite", "lightgreen"),
        ),
        strict=True,
    )
)


def write(path: Path, cells: Mapping[str, Sequence[bench_report.Row]]) -> None:
    """Write the cells' lines as a PNG."""
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
    cells: Mapping[str, Sequence[bench_report.Row]],
    ratio: Callable[[bench_report.Row], Spread | None],
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
    cells: Iterable[Sequence[bench_report.Row]],
    contender: str,
    ratio: Callable[[bench_report.Row], Spread | None],
) -> list[tuple[int, Spread]]:
    return [
        (number, spread)
        for number, rows in enumerate(cells)
        for row in rows
        if row.name == contender and (spread := ratio(row)) is not None
    ]


def _targets(cells: Sequence[str]) -> Iterator[tuple[float, int]]:
    """Give the rows a second to R2t that are asked for, and the number of their cell."""
    for target in bench_targets.TARGETS:
        if target.what == bench_targets.TO_TUNED and target.cell in cells:
            yield target.least, cells.index(target.cell)
