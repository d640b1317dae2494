"""Sensors and their statistics, as in org.apache.kafka.common.metrics.

A `Sensor` records values of one kind (for example batch sizes) and returns their average, maximum,
rate and total. The total counts all values. The other statistics use time windows:
metrics.num.samples windows of metrics.sample.window.ms each. A window begins with the first value
after the previous window ended. A window expires when it has had no value for num.samples times
sample.window.ms (SampledStat).

Three things differ from the Java classes. All statistics of a sensor use the same windows. Values
can be collected in a list that is moved into the windows once a second, so that recording a value
costs only one append to a list. Measuring does not change a sensor, while in Java it resets expired
windows.

There is no clock and no lock: the time is an argument. Only one thread at a time may write to a
sensor, but any thread may measure. The state of a sensor is replaced by one assignment, so readers
never see half of a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

_NAN: Final = float("nan")
_MINUS_INFINITY: Final = float("-inf")
# A rate over 0 s is undefined, so at least 1 ms is used, the smallest unit of Java's clock.
_MIN_ELAPSED_S: Final = 0.001
_FOLD_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class MetricName:
    """The name of a metric. Two names are equal if name, group and tags are equal.

    tags: always `client-id`. Metrics of one topic also have `topic`, and metrics of one node also
    have `node-id`.
    """

    name: str
    group: str
    description: str = field(default="", compare=False)
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __hash__(self) -> int:
        return hash((self.name, self.group, frozenset(self.tags.items())))


class _Window(NamedTuple):
    """One time window; start, last: the times of its first and last value, in seconds."""

    start: float
    last: float
    values: int
    sum: float
    largest: float


class _Past(NamedTuple):
    """The closed windows that are kept, and the totals of all closed windows, expired or not."""

    windows: tuple[_Window, ...]
    values: int
    sum: float


# The `_Past`, then the fields of the current window. Constructing a plain tuple takes a third of
# the time that a NamedTuple takes.
_Windows: TypeAlias = tuple[_Past, float, float, int, float, float]
_NONE_YET: Final[_Windows] = (
    _Past((), 0, 0.0), _MINUS_INFINITY, _MINUS_INFINITY, 0, 0.0, _MINUS_INFINITY
)  # fmt: skip


class Sensor:
    """Records values of one kind, in time windows and in total.

    Times are seconds of the producer's clock. `add` appends a value to a list, which is cheap
    enough for every request. `Metrics.fold` moves the added values into the windows once a second.
    `record` puts a value into the windows at once.
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
        """Put one value, or the sum of several values, into the windows immediately.

        value: the value, or the sum of `count` values. largest: the largest of these values, None
        for a single value.
        """
        windows, added = self._state
        most = value if largest is None else largest
        self._state = (self._recorded(windows, value, now, count, most), added)

    def fold(self) -> None:
        """Move added values into the windows. Only the thread that adds values may call this."""
        if self._state[1]:
            added: list[float] = []
            self._state = (self._read(), added)
            self.add = added.append

    def _read(self) -> _Windows:
        """Return the windows, including the values that were added but not folded yet."""
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
        """Return the sum of all values (CumulativeSum)."""
        past, _, _, _, summed, _ = self._read()
        return past.sum + summed

    def count(self, _now: float) -> float:
        """Return the number of all values (CumulativeCount)."""
        past, _, _, values, _, _ = self._read()
        return float(past.values + values)

    def average(self, now: float) -> float:
        """Return the mean of the values in the windows, NaN if there are none (Avg)."""
        windows = self._live(now)
        values = sum(window.values for window in windows)
        return sum(window.sum for window in windows) / values if values else _NAN

    def maximum(self, now: float) -> float:
        """Return the largest value in the windows, NaN if there are none (Max)."""
        return max((window.largest for window in self._live(now)), default=_NAN)

    def rate(self, now: float) -> float:
        """Return the sum of the values per second, over all windows (Rate of a WindowedSum)."""
        windows = self._live(now)
        return sum(window.sum for window in windows) / self._elapsed_s(windows, now)

    def ratio(self, now: float) -> float:
        """Return the sum of durations as a fraction of the elapsed time (Rate in nanoseconds).

        The values of the sensor must be durations in nanoseconds.
        """
        return self.rate(now) / 1e9

    def count_rate(self, now: float) -> float:
        """Return the number of values per second, over all windows (Rate of a WindowedCount)."""
        windows = self._live(now)
        return sum(window.values for window in windows) / self._elapsed_s(windows, now)

    def _live(self, now: float) -> list[_Window]:
        """Return the windows that have not expired. A window is as old as its last value."""
        past, start, last, values, summed, most = self._read()
        expire_age = self._metrics.num_samples * self._metrics.window_s
        windows = (*past.windows, _Window(start, last, values, summed, most))
        return [w for w in windows if now - w.last < expire_age]

    def _elapsed_s(self, windows: list[_Window], now: float) -> float:
        """Return the time that the windows cover, in seconds (Rate.windowSize).

        The result is at least (metrics.num.samples - 1) * metrics.sample.window.ms. Otherwise, the
        rate of a new sensor would be too high.
        """
        elapsed = now - min((window.start for window in windows), default=now)
        window_s = self._metrics.window_s
        missing = self._metrics.num_samples - 1 - int(elapsed / window_s)
        return max(elapsed + max(0, missing) * window_s, _MIN_ELAPSED_S)


# The method of `Sensor` that computes a metric.
Statistic: TypeAlias = Callable[[Sensor, float], float]


class MetricTemplate(NamedTuple):
    """The template of metrics that differ only in their tags (MetricNameTemplate).

    statistic: the method of `Sensor` that computes the metric; None for a gauge.
    """

    name: str
    statistic: Statistic | None
    unit: str
    description: str


def mean_and_maximum(name: str, unit: str, what: str) -> tuple[MetricTemplate, MetricTemplate]:
    """Return the templates of the metrics `name`-avg and `name`-max."""
    return (
        MetricTemplate(f"{name}-avg", Sensor.average, unit, f"{what}, on average"),
        MetricTemplate(f"{name}-max", Sensor.maximum, unit, f"{what}, at most"),
    )


def meter(name: str, unit: str, what: str) -> tuple[MetricTemplate, MetricTemplate]:
    """Return the templates of `name`-rate and `name`-total for the sum of the values (Meter)."""
    return (
        MetricTemplate(f"{name}-rate", Sensor.rate, f"{unit}/s", f"{what}, per second"),
        MetricTemplate(f"{name}-total", Sensor.total, unit, f"{what}, in total"),
    )


def count_meter(name: str, unit: str, what: str) -> tuple[MetricTemplate, MetricTemplate]:
    """Return the templates of `name`-rate and `name`-total for the number of the values."""
    return (
        MetricTemplate(f"{name}-rate", Sensor.count_rate, f"{unit}/s", f"{what}, per second"),
        MetricTemplate(f"{name}-total", Sensor.count, unit, f"{what}, in total"),
    )


class Metrics:
    """All metrics of a client. The default arguments are the same as in the Java client.

    tags: the tags that every metric has.
    """

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
        """Create a sensor and the metrics that are computed from it, and return the sensor."""
        sensor = Sensor(self)
        self._sensors.append(sensor)
        # All metrics of a sensor share one mapping of tags, to save memory: a client may write to
        # thousands of topics.
        all_tags = MappingProxyType({**self._tags, **(tags or {})})
        for template in templates:
            if template.statistic is not None:
                name = MetricName(template.name, group, template.description, all_tags)
                self._measures[name] = partial(template.statistic, sensor)
        return sensor

    def gauge(
        self, group: str, template: MetricTemplate, measure: Callable[[float], float]
    ) -> None:
        """Add a metric whose value is computed by `measure(now)` when metrics are measured."""
        name = MetricName(template.name, group, template.description, self._tags)
        self._measures[name] = measure

    def fold(self, now: float) -> None:
        """Move the values that were added to sensors into the windows, at most once a second.

        The thread that adds values must call this after every wait, before it adds more values. A
        value is recorded with the time of the last move before it was added. So values from before
        a long wait do not look new.
        """
        if now - self.added_since >= _FOLD_EVERY_S:
            for sensor in self._sensors:
                sensor.fold()
            self.added_since = now

    def measure(self, now: float) -> dict[MetricName, float]:
        """Return the value of every metric, NaN if a metric has no value."""
        return {name: float(measure(now)) for name, measure in list(self._measures.items())}
