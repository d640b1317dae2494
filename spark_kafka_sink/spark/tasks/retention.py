"""Rows whose timestamp is older than the topic's retention.ms: brokers accept and delete them.

This happens if timestamps are event times from a column, for example when old data is written
again. Brokers reject nothing and the job succeeds. So tasks count such rows, and the driver warns
once per job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.spark.report import ExpiredRowsReport

_PER_MS: Final = {"ms": 1, "us": 1000, "ns": 1_000_000}


class ExpiredRows:
    """Count the rows of a task that are older than the retention.

    retention_ms: None to count nothing; `clock` returns seconds since 1970.
    """

    def __init__(self, retention_ms: int | None, clock: Callable[[], float] = time.time) -> None:
        self._retention_ms = retention_ms
        self._clock = clock
        self._found: ExpiredRowsReport | None = None

    def count(self, batch: pa.RecordBatch) -> None:
        """Count those of an Arrow batch; no record can have a time before 1970."""
        if self._retention_ms is None or "timestamp" not in batch.schema.names:
            return
        times = batch.column("timestamp")
        per_ms = _PER_MS[times.type.unit] if pa.types.is_timestamp(times.type) else 1
        times = times.cast(pa.int64())
        limit = (int(self._clock() * 1000) - self._retention_ms) * per_ms
        oldest = pc.min(times).as_py()
        if oldest is None or oldest >= limit:
            return
        old = times.filter(pc.and_(pc.less(times, limit), pc.greater_equal(times, 0)))
        if not len(old):
            return
        found = ExpiredRowsReport(
            rows=len(old),
            oldest_timestamp_ms=pc.min(old).as_py() // per_ms,
            retention_ms=self._retention_ms,
        )
        self._found = ExpiredRowsReport.of([self._found, found])

    def report(self) -> ExpiredRowsReport | None:
        """Return what was counted, None if there was no such row."""
        return self._found
