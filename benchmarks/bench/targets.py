"""The targets of the sink as data; and a run's figures, with the bound for any sink.

A target is of one cell. The bound, where there is one, is the figure of a sink that has only the
costs of every sink written in Python, on all cores: the CPU time of the hop from the JVM (R1h), of
sending bytes (R0), of the codec, if there is one (R1c), and of the broker with the least work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from bench.cells import BASELINE, CELLS, CONTENDERS, OURS
from bench.results import Measured, Spread, cpu_ratio_of, cpu_s_of, rate_of, rate_ratio_of
from bench.rounds import Result

Cells: TypeAlias = "Mapping[str, Measured]"
_HOP, _RAW, _CODEC, _NOOP, _ONE_PARTITION = "R1h", "R0", "R1c", "noop", "R1p"
TO_TUNED: Final = "rows/s to R2t"
# Contenders that send large batches, as such a sink would.
_IN_BATCHES: Final = (_RAW, "R1", "R2", "R2t")


@dataclass(frozen=True, slots=True)
class Target:
    """A figure's target in a cell: `least` or more, and `most` or less.

    figure: computed from the cells by name and from this cell's name; raises KeyError if they lack
    something. bound: likewise, with the number of cores: the figure of a sink without costs of its
    own. on_one: the figure is only meaningful if everything runs on this machine.
    """

    what: str
    cell: str
    figure: Callable[[Cells, str], Spread | None]
    least: float = -math.inf
    most: float = math.inf
    unit: str = "x"
    bound: Callable[[Cells, str, int], float] | None = None
    on_one: bool = False

    @property
    def text(self) -> str:
        """The target in words."""
        if self.most == math.inf:
            return f"at least {self.least:g}{self.unit}"
        if self.least == -math.inf:
            return f"at most {self.most:g}{self.unit}"
        return f"{self.least:g}{self.unit} to {self.most:g}{self.unit}"


@dataclass(frozen=True, slots=True)
class Reached:
    """A run's figure for a target; bound: None if there is none."""

    target: Target
    figure: Spread
    bound: float | None

    @property
    def is_met(self) -> bool:
        """Whether the median meets the target."""
        return self.target.least <= self.figure.median <= self.target.most


def reached(cells: Cells, cores: int | None) -> Iterator[Reached]:
    """Yield the targets for which a run has complete cells.

    cores: those of this machine; None if others are used, whose CPU time is not counted.
    """
    unchanged = {name: one for name, one in cells.items() if one.cell == CELLS.get(name)}
    for target in TARGETS:
        if cores is None and target.on_one:
            continue
        try:
            figure = target.figure(unchanged, target.cell)
        except KeyError:
            continue
        if figure is not None:
            yield Reached(target, figure, _bound(target, unchanged, cores))


def _bound(target: Target, cells: Cells, cores: int | None) -> float | None:
    if target.bound is None or cores is None:
        return None
    try:
        return target.bound(cells, target.cell, cores)
    except KeyError:
        return None


def _result(cells: Cells, cell: str, name: str) -> Result:
    """Return a contender's result in a cell. Raise KeyError if it has none."""
    result = cells[cell].results[name]
    if not result.measurements:
        raise KeyError(name)
    return result


def _ours(cells: Cells, cell: str) -> Result:
    return _result(cells, cell, OURS)


def _rate_to(other: str) -> Callable[[Cells, str], Spread]:
    return lambda cells, cell: rate_ratio_of(_ours(cells, cell), _result(cells, cell, other))


def _cpu_to(other: str) -> Callable[[Cells, str], Spread | None]:
    return lambda cells, cell: cpu_ratio_of(_ours(cells, cell), _result(cells, cell, other))


def _over_tls(of: str, other: str) -> tuple[str, str]:
    """Return the names over TLS of two contenders."""
    names = {each.over_tls: name for name, each in CONTENDERS.items() if each.over_tls is not None}
    return names[of], names[other]


def _tls_rate_to(other: str) -> Callable[[Cells, str], Spread]:
    """Return how the sinks' rates over TLS compare."""
    ours, theirs = _over_tls(OURS, other)
    return _rate_between(ours, theirs)


def _tls_rate_to_plain(other: str) -> Callable[[Cells, str], Spread]:
    """Return the ratio of the sinks' rates over TLS, divided by the ratio over PLAINTEXT."""
    ours, theirs = _over_tls(OURS, other)

    def figure(cells: Cells, cell: str) -> Spread:
        used = (
            _result(cells, cell, theirs), _result(cells, cell, ours),
            _result(cells, cell, other), _ours(cells, cell),
        )  # fmt: skip
        rounds = zip(*(each.measurements for each in used), strict=True)
        return Spread.of(
            [
                (tls_theirs.seconds / tls_ours.seconds) / (theirs_s.seconds / ours_s.seconds)
                for tls_theirs, tls_ours, theirs_s, ours_s in rounds
            ]
        )

    return figure


def _log_to(other: str) -> Callable[[Cells, str], Spread | None]:
    def figure(cells: Cells, cell: str) -> Spread | None:
        ours, theirs = _ours(cells, cell), _result(cells, cell, other)
        if ours.log_bytes is None or not theirs.log_bytes:
            return None
        return Spread.of([ours.log_bytes / ours.rows * theirs.rows / theirs.log_bytes])

    return figure


def _seconds_over(other: str) -> Callable[[Cells, str], Spread]:
    return _seconds_between(OURS, other)


def _seconds_between(name: str, other: str) -> Callable[[Cells, str], Spread]:
    def figure(cells: Cells, cell: str) -> Spread:
        compared = (_result(cells, cell, each).measurements for each in (name, other))
        return Spread.of(
            [timing.seconds - theirs.seconds for timing, theirs in zip(*compared, strict=True)]
        )

    return figure


def _rate_between(name: str, other: str) -> Callable[[Cells, str], Spread]:
    return lambda cells, cell: rate_ratio_of(
        _result(cells, cell, name), _result(cells, cell, other)
    )


def free_sink_s(cells: Cells, cell: str) -> float:
    """Return the CPU seconds per row, of all processes, of a sink without costs of its own.

    Raise KeyError if a part of it was not measured.
    """
    parts = [_HOP, _RAW]
    if cells[cell].cell.compression != "none":
        parts.append(_CODEC)
    needed_s = sum(_client_s(_result(cells, cell, name)) for name in parts)
    return needed_s + _least_broker_s(cells[cell].results)


def _free_rate_to(other: str) -> Callable[[Cells, str, int], float]:
    def bound(cells: Cells, cell: str, cores: int) -> float:
        others = rate_of(_result(cells, cell, other)).median
        return cores / free_sink_s(cells, cell) / others

    return bound


def _free_cpu_to(other: str) -> Callable[[Cells, str, int], float]:
    def bound(cells: Cells, cell: str, _cores: int) -> float:
        needed_s = sum(_client_s(_result(cells, cell, name)) for name in (_HOP, _RAW))
        return needed_s / _client_s(_result(cells, cell, other))

    return bound


def _client_s(result: Result) -> float:
    """Return the CPU seconds of JVM and Python per row."""
    jvm_s, python_s, _ = cpu_s_of(result)
    return (jvm_s + python_s) / result.rows


def _least_broker_s(results: Mapping[str, Result]) -> float:
    """Return the smallest CPU seconds of the broker per row. Raise KeyError if there are none."""
    found = [cpu_s_of(each)[2] / each.rows for name, each in results.items()
             if name in _IN_BATCHES and each.measurements]  # fmt: skip
    least = min(found, default=0.0)
    if not least:
        raise KeyError(_RAW)
    return least


def _rates(
    what: str, other: str, limits: Mapping[str, float], *, on_one: bool = False
) -> Iterator[Target]:
    for cell, limit in limits.items():
        figure, bound = _rate_to(other), _free_rate_to(other)
        yield Target(what, cell, figure, least=limit, bound=bound, on_one=on_one)


def _targets() -> Iterator[Target]:
    sizes, tuned = ("100B", "1KB", "10KB"), BASELINE
    packed = [f"{size}-{codec}" for codec in ("lz4", "zstd") for size in sizes]
    yield from _rates(TO_TUNED, tuned, dict(zip(sizes, (2.0, 1.5, 1.5), strict=True)))
    yield from _rates("rows/s to R2", "R2", dict.fromkeys(sizes, 3.0))
    for cell, limit in zip(sizes, (0.5, 1.0, 1.0), strict=True):
        what, bound = "CPU a row to R2t", _free_cpu_to(tuned)
        yield Target(what, cell, _cpu_to(tuned), most=limit, bound=bound, on_one=True)
    shares = dict(zip(sizes, (0.6, 0.6, 0.8), strict=True))
    yield from _rates("rows/s to R0", _RAW, shares, on_one=True)
    yield from _rates(TO_TUNED, tuned, dict.fromkeys(packed, 1.5))
    for cell in packed:
        yield Target("bytes in the log to R2t", cell, _log_to(tuned), least=0.95, most=1.05)
    yield from _rates("rows/s to R3", "R3", {"100B": 3.0})
    what, bound = "CPU a row to R3", _free_cpu_to("R3")
    yield Target(what, "100B", _cpu_to("R3"), most=0.25, bound=bound, on_one=True)
    yield from _rates("rows/s to R4", "R4", {"100B": 50.0})
    for size in sizes:
        for cell, limit in ((f"{size}-100p", 0.9), (f"{size}-1000p", 0.75)):
            what, figure = "rows/s to one partition, R1p", _rate_to(_ONE_PARTITION)
            yield Target(what, cell, figure, least=limit)
        cell = f"{size}-tls"
        yield Target("rows/s over TLS, R1s to R2s", cell, _tls_rate_to("R2"), least=1.0)
        what = "rows/s over TLS, R1s to R2ts, to the same without TLS"
        yield Target(what, cell, _tls_rate_to_plain(tuned), least=1.0)
    for cell in ("1KB-4p-once", "1KB-100p-once"):
        for name, mode, limit in (("R1e", "true", 0.9), ("R1x", "single", 0.85)):
            figure = _rate_between(name, OURS)
            yield Target(f"rows/s with exactlyOnce={mode} to R1", cell, figure, least=limit)
    for name, mode in (("R1e", "true"), ("R1x", "single")):
        figure = _seconds_between(name, OURS)
        what = f"s of exactlyOnce={mode} over R1, a micro-batch"
        yield Target(what, "stream-once", figure, most=0.06, unit=" s")
    for cell, limit in (("avro-flat", 1.4), ("avro-nested", 1.1)):
        what = "CPU a row of Avro to R1j, which Spark's to_avro makes"
        yield Target(what, cell, _cpu_to("R1j"), most=limit, on_one=True)
    over_noop = _seconds_over(_NOOP)
    yield Target("s over Spark's noop sink", "1row", over_noop, most=0.3, unit=" s")


TARGETS: Final = tuple(_targets())
