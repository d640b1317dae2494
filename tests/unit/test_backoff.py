"""Exponential back-off, compared with the bounds of Java's ExponentialBackoff."""

from __future__ import annotations

from random import Random

import pytest

from spark_kafka_sink.backoff import ExponentialBackoff


@pytest.mark.parametrize(
    ("base", "most", "attempts", "low", "high"),
    [
        (100, 1000, 0, 80, 120),
        (100, 1000, 1, 160, 240),
        (100, 1000, 2, 320, 480),
        (100, 1000, 3, 640, 960),
        (100, 1000, 4, 800, 1000),
        (100, 1000, 10**9, 800, 1000),
        (10_000, 30_000, 2, 24_000, 30_000),
        (50, 50, 0, 50, 50),
        (50, 50, 9, 50, 50),
        (2000, 1000, 0, 1000, 1000),
        (0, 1000, 5, 0, 0),
        (10, 0, 5, 0, 0),
    ],
)
def test_waits_are_javas(base: int, most: int, attempts: int, low: float, high: float) -> None:
    backoff = ExponentialBackoff(base / 1000, most / 1000)
    random = Random(7)
    waits = [backoff.delay_s(attempts, random) * 1000 for _ in range(5000)]
    width = (high - low) * 0.01
    assert low <= min(waits) <= low + width
    assert high - width <= max(waits) <= high
