"""Counts rows whose timestamp is older than their topic's retention.ms.

Such rows occur if the timestamps are event times, for example when old data is written again.
Brokers accept the rows and delete them later. The job succeeds, so tasks count such rows. The
driver prints the counts once per job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.model import TOPIC_NAME
from spark_kafka_sink.serde.row_rules import milliseconds
from spark_kafka_sink.spark.report import ExpiredRowsReport

_PER_MS: Final = {"ms": 1, "us": 1000, "ns": 1_000_000}
# The retention of topics in a topic column is read only if a row is older than this.
_YOUNG_MS: Final = 60_000


class ExpiredRows:
    """Counts the rows of a task that are older than their topic's retention.

    topic, retention_ms: the topic of all rows and its retention. topic is None if each row names
    its topic in the topic column. Then `look` is called once for each topic, and returns its
    retention. Rows of a topic whose retention is None are not counted. clock: returns seconds
    since 1970.
    """

    def __init__(
        self,
        topic: str | None,
        retention_ms: int | None,
        look: Callable[[Sequence[str]], Mapping[str, int | None]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._topic = topic
        self._retention_ms: dict[str, int | None] = {} if topic is None else {topic: retention_ms}
        self._look = look
        self._clock = clock
        self._found: dict[str, ExpiredRowsReport] = {}

    def count(self, batch: pa.RecordBatch) -> None:
        """Count the expired rows in a batch that has a timestamp column.

        Call this after the batch was appended. Then its topics exist, and no timestamp is before
        1970, because such rows are bad rows.
        """
        if self._topic is not None and self._retention_ms[self._topic] is None:
            return
        times = batch.column("timestamp")
        unit = times.type.unit if pa.types.is_timestamp(times.type) else "ms"
        if unit == "s":
            times, unit = milliseconds(times), "ms"
        per_ms = _PER_MS[unit]
        times = times.cast(pa.int64())
        oldest = pc.min(times).as_py()
        if oldest is None:
            return
        if self._topic is not None:
            limit = self._limit(self._topic, per_ms)
            if limit is not None and oldest < limit:
                self._count_all(self._topic, times, per_ms)
        elif oldest < (int(self._clock() * 1000) - _YOUNG_MS) * per_ms:
            self._count_by_topic(batch.column("topic"), times, per_ms)

    def _count_by_topic(self, topics: pa.Array, times: pa.Array, per_ms: int) -> None:
        topics = topics.cast(pa.large_binary())
        there = topics.unique().drop_null()
        names = [name.decode(errors="replace") for name in there.to_pylist()]
        new = [name for name in names if name not in self._retention_ms and TOPIC_NAME.match(name)]
        if new:
            self._retention_ms.update(self._look(new))
        limits = pa.array([self._limit(name, per_ms) for name in names], pa.int64())
        rows = pa.table({"topic": topics, "time": times})
        old = rows.filter(_is_old(times, limits.take(pc.index_in(topics, there))))
        counts = old.group_by("topic").aggregate([("time", "count"), ("time", "min")])
        for row in counts.to_pylist():
            self._found_rows(row["topic"].decode(), row["time_count"], row["time_min"] // per_ms)

    def _count_all(self, topic: str, times: pa.Array, per_ms: int) -> None:
        old = times.filter(_is_old(times, self._limit(topic, per_ms)))
        if len(old):
            self._found_rows(topic, len(old), pc.min(old).as_py() // per_ms)

    def _limit(self, topic: str, per_ms: int) -> int | None:
        """Return the oldest timestamp that has not expired, or None if no timestamp can expire."""
        retention_ms, now_ms = self._retention_ms.get(topic), int(self._clock() * 1000)
        # A retention that reaches back before 1970 deletes nothing, either. In the calculation
        # below, the largest retention would exceed 64 bits.
        if retention_ms is None or retention_ms >= now_ms:
            return None
        return (now_ms - retention_ms) * per_ms

    def _found_rows(self, topic: str, rows: int, oldest_ms: int) -> None:
        found = ExpiredRowsReport(
            topic=topic,
            rows=rows,
            oldest_timestamp_ms=oldest_ms,
            retention_ms=self._retention_ms[topic] or 0,
        )
        known = self._found.get(topic)
        if known is not None:
            (found,) = ExpiredRowsReport.of([known, found])
        self._found[topic] = found

    def report(self) -> list[ExpiredRowsReport]:
        """Return the counts of expired rows, by topic."""
        return [self._found[topic] for topic in sorted(self._found)]


def _is_old(times: pa.Array, limits: pa.Array | int | None) -> pa.Array:
    return pc.and_(pc.less(times, limits), pc.greater_equal(times, 0))
