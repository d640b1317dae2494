"""Rows that are older than the retention of their topic, as a task counts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pytest

from spark_kafka_sink.spark.report import ExpiredRowsReport
from spark_kafka_sink.spark.tasks import retention
from spark_kafka_sink.spark.tasks.retention import ExpiredRows

HOUR_MS: Final = 3_600_000
NOW_MS: Final = 1_700_000_000_000
RETENTION_MS: Final = {"hour": HOUR_MS, "day": 24 * HOUR_MS, "forever": None, "longest": 2**63 - 1}


class Asked:
    """The cluster, as the task asks it about topics of the column."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    def __call__(self, topics: Sequence[str]) -> dict[str, int | None]:
        """Answer, and note the question."""
        self.topics += topics
        return {topic: RETENTION_MS.get(topic) for topic in topics}


def batch(*rows: tuple[str | None, float | None]) -> pa.RecordBatch:
    """Rows of topics, each so many hours old; None has no timestamp."""
    times = [None if age is None else NOW_MS * 1000 - int(age * HOUR_MS * 1000) for _, age in rows]
    return pa.record_batch(
        {
            "value": ["v"] * len(rows),
            "topic": [topic for topic, _ in rows],
            "timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
        }
    )


def test_topics_of_a_column_have_their_own_count_and_each_is_asked_for_once() -> None:
    asked = Asked()
    rows = ExpiredRows(None, None, asked, lambda: NOW_MS / 1000)
    rows.count(batch(("hour", 0.0), ("hour", 0.001)))
    assert asked.topics == []  # while all is young
    # Neither of before 1970, nor of no time or topic, nor of a name that no topic has.
    others = [("hour", 1e6), ("hour", None), (None, 5.0), ("no topic", 5.0)]
    rows.count(batch(("hour", 2), ("day", 2), ("hour", 5), ("forever", 9999), ("hour", 3), *others))
    rows.count(batch(("day", 25), ("hour", 4), ("day", 24), ("longest", 9999)))
    assert sorted(asked.topics) == ["day", "forever", "hour", "longest"]
    assert rows.report() == [
        ExpiredRowsReport(
            topic="day",
            rows=1,
            oldest_timestamp_ms=NOW_MS - 25 * HOUR_MS,
            retention_ms=24 * HOUR_MS,
        ),
        ExpiredRowsReport(
            topic="hour", rows=4, oldest_timestamp_ms=NOW_MS - 5 * HOUR_MS, retention_ms=HOUR_MS
        ),
    ]


def test_many_topics_cost_a_task_a_few_reports_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Counted(ExpiredRowsReport):
        def __init__(
            self, *, topic: str, rows: int, oldest_timestamp_ms: int, retention_ms: int
        ) -> None:
            made.append(topic)
            super().__init__(
                topic=topic,
                rows=rows,
                oldest_timestamp_ms=oldest_timestamp_ms,
                retention_ms=retention_ms,
            )

    monkeypatch.setattr(retention, "ExpiredRowsReport", Counted)
    topics = [f"t{number:03}" for number in range(1000)]
    rows = ExpiredRows(None, None, lambda _: dict.fromkeys(topics, HOUR_MS), lambda: NOW_MS / 1000)
    for age in (2, 3):
        rows.count(batch(*((topic, age) for topic in reversed(topics))))
    oldest_ms = NOW_MS - 3 * HOUR_MS
    found = [(each.topic, each.rows, each.oldest_timestamp_ms) for each in rows.report()]
    assert found == [(topic, 2, oldest_ms) for topic in topics]
    assert len(made) <= 3 * len(topics)


def test_seconds_are_counted_too() -> None:
    times = [NOW_MS // 1000, NOW_MS // 1000 - 7200, None]
    seconds = pa.array(times, pa.timestamp("s", tz="UTC"))
    for topic, retention_ms in ((None, None), ("hour", HOUR_MS)):
        rows = ExpiredRows(topic, retention_ms, Asked(), lambda: NOW_MS / 1000)
        rows.count(
            pa.record_batch({"value": ["v"] * 3, "topic": ["hour"] * 3, "timestamp": seconds})
        )
        (found,) = rows.report()
        assert (found.rows, found.oldest_timestamp_ms) == (1, NOW_MS - 2 * HOUR_MS)


def test_the_line_names_the_topics_with_most_of_them() -> None:
    found = [
        ExpiredRowsReport(topic=f"t{number}", rows=number, oldest_timestamp_ms=0, retention_ms=1)
        for number in range(1, 13)
    ]
    said = ExpiredRowsReport.summary(found)
    assert said.startswith("pykafka: 78 rows are older than the retention.ms of their topic: 12 of")
    third = "3 of t3 (retention.ms=1, the oldest is from 1970-01-01T00:00:00.000+00:00)"
    assert f", {third} and 2 more" in said
