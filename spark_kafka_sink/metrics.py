"""Sensors and the statistics over them, as org.apache.kafka.common.metrics has them.

A `Sensor` takes the values of one kind (the sizes of batches, say) and answers for their average,
maximum, rate and total. All but totals look at windows of time: metrics.num.samples windows of
metrics.sample.window.ms each, a window beginning with the first value after the one before it was
over. Windows without a value for num.samples times sample.window.ms no longer count (SampledStat).

In two things this differs from the Java classes. The statistics of a sensor share its windows, and
values may be added to them by the second, so that a value costs no more than an append to a list.
And measuring changes nothing; there, a window found obsolete is begun anew by whoever looks.

No clock and no lock: the time is an argument, and a sensor has one writer at a time, while any
thread may measure; what it sees of a sensor is always whole, because a sensor's state is replaced
by one assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

_NAN: Final = float("nan")
_MINUS_INFINITY: Final = float("-inf")
# A rate over no time at all is not defined; Java takes the least that its clock can tell.
_SHORTEST_S: Final = 0.001
_FOLD_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class MetricName:
    """What a metric is known by; equal names have equal name, group and tags.

    tags: client-id, and topic or node-id where the metric is of one.
    """

    name: str
    group: str
    description: str = field(default="", compare=False)
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __hash__(self) -> int:
        return hash((self.name, self.group, frozenset(self.tags.items())))


class _Window(NamedTuple):
    """One window of time: how many values it has, their sum, the largest; times in seconds."""

    start: float
    last: float
    values: int
    sum: float
    largest: float


class _Past(NamedTuple):
    """The windows before the present one that may still count, and all values before it."""

    windows: tuple[_Window, ...]
    values: int
    sum: float


# What is past, then the fields of the present window. A plain tuple, because a NamedTuple takes
# three times as long to make.
_Windows: TypeAlias = tuple[_Past, float, float, int, float, float]
_NONE_YET: Final[_Windows] = (
    _Past((), 0, 0.0), _MINUS_INFINITY, _MINUS_INFINITY, 0, 0.0, _MINUS_INFINITY
)  # fmt: skip


class Sensor:
    """The values of one kind, in windows and in total. Times are seconds of the producer's clock.

    `add` takes a value: it appends to a list, since that is all that a request can afford; the
    registry puts what was added into the windows once a second. `record` puts it there at once.
    """

    __slots__ = ("_metrics", "_state", "add")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        added: list[float] = []
        self._state: tuple[_Windows, list[float]] = (_NONE_YET, added)
        self.add: Callable[[float], None] = added.append

    def record(
        self, value: float, now: float, count: int = 1, largest: float | None = None
    ) -> None:
        """Take a value, or `count` values at once by their sum and the largest of them."""
        windows, added = self._state
        most = value if largest is None else largest
        self._state = (self._recorded(windows, value, now, count, most), added)

    def fold(self) -> None:
        """Put what was added into the windows; only who adds may do this."""
        if self._state[1]:
            added: list[float] = []
            self._state = (self._read(), added)
            self.add = added.append

    def _read(self) -> _Windows:
        """Give the windows with what was added."""
        windows, added = self._state
        values = tuple(added)
        if not values:
            return windows
        at = self._metrics.added_since
        return self._recorded(windows, sum(values), at, len(values), max(values))

    def _recorded(
        self, windows: _Windows, value: float, now: float, count: int, largest: float
    ) -> _Windows:
        past, start, last, values, summed, most = windows
        if now - start < self._metrics.window_s:
            return past, start, now, values + count, summed + value, max(most, largest)
        if start != _MINUS_INFINITY:
            closed = (*past.windows, _Window(start, last, values, summed, most))
            kept = closed[-self._metrics.num_samples :]
            past = _Past(kept, past.values + values, past.sum + summed)
        return past, now, now, count, value, largest

    def total(self, _now: float) -> float:
        """Give the sum of all values ever (CumulativeSum)."""
        past, _, _, _, summed, _ = self._read()
        return past.sum + summed

    def count(self, _now: float) -> float:
        """Give how many values there ever were (CumulativeCount)."""
        past, _, _, values, _, _ = self._read()
        return float(past.values + values)

    def average(self, now: float) -> float:
        """Give the mean of the values in the windows; NaN without any (Avg)."""
        windows = self._live(now)
        values = sum(window.values for window in windows)
        return sum(window.sum for window in windows) / values if values else _NAN

    def maximum(self, now: float) -> float:
        """Give the largest value in the windows; NaN without any (Max)."""
        return max((window.largest for window in self._live(now)), default=_NAN)

    def rate(self, now: float) -> float:
        """Give the sum of the values in the windows per second (Rate of a WindowedSum)."""
        windows = self._live(now)
        return sum(window.sum for window in windows) / self._elapsed_s(windows, now)

    def ratio(self, now: float) -> float:
        """Give the part of the time that recorded nanoseconds are (Rate in nanoseconds)."""
        return self.rate(now) / 1e9

    def count_rate(self, now: float) -> float:
        """Give how many values the windows have per second (Rate of a WindowedCount)."""
        windows = self._live(now)
        return sum(window.values for window in windows) / self._elapsed_s(windows, now)

    def _live(self, now: float) -> list[_Window]:
        """Give the windows that count: also ones that began earlier, if their last value counts."""
        past, start, last, values, summed, most = self._read()
        expire_age = self._metrics.num_samples * self._metrics.window_s
        windows = (*past.windows, _Window(start, last, values, summed, most))
        return [w for w in windows if now - w.last < expire_age]

    def _elapsed_s(self, windows: list[_Window], now: float) -> float:
        """Give the time that the windows stand for (Rate.windowSize).

        Never less than all windows but one: a rate shall not be high only because it is young.
        """
        elapsed = now - min((window.start for window in windows), default=now)
        window_s = self._metrics.window_s
        missing = self._metrics.num_samples - 1 - int(elapsed / window_s)
        return max(elapsed + max(0, missing) * window_s, _SHORTEST_S)


# What a metric says of its sensor: one of the methods above, with the time.
Statistic: TypeAlias = Callable[[Sensor, float], float]


class MetricTemplate(NamedTuple):
    """A metric of which there may be several, told apart by tags; Java's MetricNameTemplate.

    statistic: how it follows from its sensor; None where it is asked for when metrics are measured.
    """

    name: str
    statistic: Statistic | None
    unit: str
    description: str


def mean_and_maximum(name: str, unit: str, what: str) -> tuple[MetricTemplate, MetricTemplate]:
    """Make the templates of `name`-avg and `name`-max."""
    return (
        MetricTemplate(f"{name}-avg", Sensor.average, unit, f"{what}, on average"),
        MetricTemplate(f"{name}-max", Sensor.maximum, unit, f"{what}, at most"),
    )


def meter(name: str, unit: str, what: str) -> tuple[MetricTemplate, MetricTemplate]:
    """Make the templates of `name`-rate and `name`-total over a sensor's values (Meter)."""
    return (
        MetricTemplate(f"{name}-rate", Sensor.rate, f"{unit}/s", f"{what}, per second"),
        MetricTemplate(f"{name}-total", Sensor.total, unit, f"{what}, in total"),
    )


def count_meter(name: str, unit: str, what: str) -> tuple[MetricTemplate, MetricTemplate]:
    """Make the templates of `name`-rate and `name`-total over how many values there were."""
    return (
        MetricTemplate(f"{name}-rate", Sensor.count_rate, f"{unit}/s", f"{what}, per second"),
        MetricTemplate(f"{name}-total", Sensor.count, unit, f"{what}, in total"),
    )


class Metrics:
    """All metrics of a client; `tags` are on every one of them. The defaults are Java's."""

    def __init__(
        self,
        *,
        num_samples: int = 2,
        window_s: float = 30.0,
        tags: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.num_samples = num_samples
        self.window_s = window_s
        self.added_since = 0.0
        self._sensors: list[Sensor] = []
        self._tags = MappingProxyType(dict(tags))
        self._measures: dict[MetricName, Callable[[float], float]] = {}

    def sensor(
        self, group: str, templates: Iterable[MetricTemplate], tags: Mapping[str, str] | None = None
    ) -> Sensor:
        """Make a sensor and the metrics that follow from it."""
        sensor = Sensor(self)
        self._sensors.append(sensor)
        # A client may write to thousands of topics: one mapping for all metrics of the sensor.
        all_tags = MappingProxyType({**self._tags, **(tags or {})})
        for template in templates:
            if template.statistic is not None:
                name = MetricName(template.name, group, template.description, all_tags)
                self._measures[name] = partial(template.statistic, sensor)
        return sensor

    def gauge(
        self, group: str, template: MetricTemplate, measure: Callable[[float], float]
    ) -> None:
        """Have a metric asked of `measure`, with the time, whenever metrics are measured."""
        name = MetricName(template.name, group, template.description, self._tags)
        self._measures[name] = measure

    def fold(self, now: float) -> None:
        """Put what was added to sensors since the last time into their windows, once a second.

        To be called by the thread that adds, after every wait and before it adds anything: what
        was added belongs to the second in which the wait began, however long it was.
        """
        if now - self.added_since >= _FOLD_EVERY_S:
            for sensor in self._sensors:
                sensor.fold()
            self.added_since = now

    def measure(self, now: float) -> dict[MetricName, float]:
        """Give every metric's value; NaN where there is none."""
        return {name: float(measure(now)) for name, measure in list(self._measures.items())}
