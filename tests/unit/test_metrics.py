"""Statistics over windows are those of org.apache.kafka.common.metrics.stats."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from support.brokers.jvm import run_java

from spark_kafka_sink.metrics import (
    MetricName,
    Metrics,
    Sensor,
    count_meter,
    mean_and_maximum,
    meter,
)

# A value that was recorded: seconds, value.
Recorded = list[tuple[float, float]]


def sensor(recorded: Recorded, num_samples: int = 2, window_s: float = 30.0) -> Sensor:
    """Make a sensor that has recorded values."""
    made = Sensor(Metrics(num_samples=num_samples, window_s=window_s))
    for at, value in recorded:
        made.record(value, at)
    return made


def statistics(of: Sensor, now: float) -> list[float]:
    """Return all statistics of a sensor, in the order of MeasureStats.java."""
    return [
        of.average(now),
        of.maximum(now),
        of.rate(now),
        of.count_rate(now),
        of.ratio(now),
        of.total(now),
        of.count(now),
    ]


def test_a_young_sensor_s_rate_is_taken_over_all_windows_but_one_at_least() -> None:
    assert sensor([(0, 60)]).rate(0) == 60 / 30
    assert sensor([(0, 60)]).rate(10) == 60 / 40
    assert sensor([(0, 60)], num_samples=3).rate(10) == 60 / 70
    assert sensor([(0, 60)], num_samples=1).rate(10) == 60 / 10
    # At the very moment of the first value there is no time at all: Java takes a millisecond.
    assert sensor([(5, 60)], num_samples=1).rate(5) == 60 / 0.001


def test_a_rate_is_taken_over_the_time_since_the_oldest_window_that_counts() -> None:
    recorded: Recorded = [(0, 60), (20, 60), (40, 60)]
    assert sensor(recorded).rate(50) == 180 / 50
    # The first window had its last value at 20 s; at 80 s it is two windows old.
    assert sensor(recorded).rate(79) == 180 / 79
    assert sensor(recorded).rate(80) == 60 / 40
    assert sensor(recorded).rate(100) == 0


def test_counts_averages_and_maxima_forget_with_their_windows_and_totals_never() -> None:
    recorded: Recorded = [(0, 9), (1, 1), (40, 2), (41, 4)]
    assert statistics(sensor(recorded), 50)[:2] == [4, 9]
    assert sensor(recorded).count_rate(50) == 4 / 50
    assert statistics(sensor(recorded), 61)[:2] == [3, 4]
    forgotten = sensor(recorded)
    assert [math.isnan(value) for value in statistics(forgotten, 101)[:2]] == [True, True]
    assert statistics(forgotten, 101)[2:] == [0, 0, 0, 16, 4]


def test_a_sensor_without_values_has_no_average_and_no_maximum_but_rates_of_zero() -> None:
    found = statistics(sensor([]), 1000)
    assert [math.isnan(value) for value in found[:2]] == [True, True]
    assert found[2:] == [0, 0, 0, 0, 0]


def test_values_recorded_at_once_count_as_if_one_by_one() -> None:
    at_once, one_by_one = sensor([(0, 7)]), sensor([(0, 7), (1, 3), (1, 5), (1, 4)])
    at_once.record(12, 1, count=3, largest=5)
    assert statistics(at_once, 2) == statistics(one_by_one, 2)


def test_a_maximum_may_be_negative() -> None:
    assert sensor([(0, -3), (1, -2)]).maximum(2) == -2


def test_a_ratio_is_the_part_of_the_time_that_nanoseconds_are() -> None:
    assert sensor([(0, 4e9), (40, 6e9)]).ratio(40) == 0.25


def _script(rng: random.Random) -> tuple[int, int, int, list[tuple[int, float]]]:
    """Make samples, window, time of measuring, and values with their times; all times in ms.

    Times are multiples of 125 ms, which are the same numbers in seconds.
    """
    num_samples, window_ms = rng.choice([1, 2, 3, 7]), 125 * rng.choice([1, 8, 80, 240])
    steps = [0, 0, 125, window_ms - 125, window_ms, 3 * window_ms, 9 * window_ms]
    now, recorded = 125 * rng.randrange(10), []
    for _ in range(rng.randrange(30)):
        now += rng.choice(steps)
        recorded.append((now, float(rng.randrange(-1000, 1_000_000))))
    return num_samples, window_ms, now + rng.choice(steps), recorded


def test_java_s_statistics_say_the_same_of_the_same_values(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    scripts = [_script(rng) for _ in range(2000)]
    lines = [
        " ".join(map(str, [*script[:3], *(f"{at}:{value}" for at, value in script[3])]))
        for script in scripts
    ]
    stored = tmp_path / "scripts"
    stored.write_text("\n".join(lines))
    answers = run_java("MeasureStats", stored).splitlines()
    for (num_samples, window_ms, now, recorded), line, answer in zip(
        scripts, lines, answers, strict=True
    ):
        ours = sensor([(at / 1000, v) for at, v in recorded], num_samples, window_ms / 1000)
        theirs = [float(word) for word in answer.split()]
        found = statistics(ours, now / 1000)
        assert found == pytest.approx(theirs, rel=1e-12, nan_ok=True), (seed, line)


def test_looking_changes_nothing() -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(300):
        num_samples, window_ms, now, recorded = _script(rng)
        alone, looked_at = (sensor([], num_samples, window_ms / 1000) for _ in range(2))
        for at, value in recorded:
            statistics(looked_at, at / 1000)
            alone.record(value, at / 1000)
            looked_at.record(value, at / 1000)
        found, expected = (statistics(each, now / 1000) for each in (looked_at, alone))
        assert found == pytest.approx(expected, rel=0, nan_ok=True), seed


def test_values_added_are_seen_at_once_and_count_from_the_second_they_were_added_in() -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(300):
        num_samples, window_ms, end, script = _script(rng)
        metrics = Metrics(num_samples=num_samples, window_s=window_ms / 1000)
        added, recorded = metrics.sensor("g", []), Sensor(metrics)
        for at, value in script:
            metrics.fold(at / 1000)
            assert 0 <= at / 1000 - metrics.added_since < 1
            added.add(value)
            recorded.record(value, metrics.added_since)
            found, expected = (statistics(each, at / 1000) for each in (added, recorded))
            assert found == pytest.approx(expected, rel=1e-12, nan_ok=True), seed
        found, expected = (statistics(each, end / 1000) for each in (added, recorded))
        assert found == pytest.approx(expected, rel=1e-12, nan_ok=True), seed


def test_what_was_added_does_not_pile_up() -> None:
    metrics = Metrics()
    sensor = metrics.sensor("g", [])
    for second in range(5):
        metrics.fold(second)
        for _ in range(1000):
            sensor.add(1.0)
        assert len(sensor._state[1]) == 1000
    assert sensor.total(5) == 5000


def test_names_are_equal_by_name_group_and_tags() -> None:
    name = MetricName("byte-rate", "producer-topic-metrics", "said so", {"topic": "a"})
    same = MetricName("byte-rate", "producer-topic-metrics", "", {"topic": "a"})
    assert {name: 1}[same] == 1
    assert name != MetricName("byte-rate", "producer-topic-metrics", "said so", {"topic": "b"})
    assert name != MetricName("byte-rate", "producer-metrics", "said so", {"topic": "a"})


def test_a_registry_gives_the_metrics_of_its_sensors_with_the_client_s_tags() -> None:
    metrics = Metrics(tags={"client-id": "c"})
    requests = metrics.sensor(
        "g",
        [*count_meter("request", "requests", "sent"), *mean_and_maximum("size", "bytes", "size")],
        {"node-id": "node-1"},
    )
    sizes = metrics.sensor("g", meter("byte", "bytes", "bytes sent"))
    for size in (10, 30):
        requests.record(size, 0)
        sizes.record(size, 0)
    tags, node = {"client-id": "c"}, {"client-id": "c", "node-id": "node-1"}
    assert metrics.measure(10.0) == {
        MetricName("request-rate", "g", tags=node): 2 / 40,
        MetricName("request-total", "g", tags=node): 2,
        MetricName("size-avg", "g", tags=node): 20,
        MetricName("size-max", "g", tags=node): 30,
        MetricName("byte-rate", "g", tags=tags): 1,
        MetricName("byte-total", "g", tags=tags): 40,
    }
    by_name = {name.name: name.description for name in metrics.measure(10.0)}
    assert by_name["byte-rate"] == "bytes sent, per second"
