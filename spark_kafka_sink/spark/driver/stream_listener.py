"""KafkaStreamListener: one record for each micro-batch, with Spark's progress and our report.

Spark knows the sources, the rates and the durations of a micro-batch; the sink's report knows its
topics, offsets, bad rows and retries. They belong together by the query's id and the number of the
micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from spark_kafka_sink.model import check_callable
from spark_kafka_sink.spark.committing.job_commit import say
from spark_kafka_sink.spark.committing.report_files import reports_of
from spark_kafka_sink.spark.report import counted
from spark_kafka_sink.spark.session import driver_folder

_WITH_THE_SERVER: Final = (
    "over Spark Connect the reports stay with the server: the option reportPath of the stream "
    "names their file there"
)
# Parts of Spark's descriptions of the sinks through which rows may go to Kafka: Python data sources
# (which Spark does not name), and foreachBatch.
_SINKS: Final = ("PythonTable", "ForeachBatchSink")


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchRecord:
    """What is known about one micro-batch.

    progress: Spark's progress. reports: the sink's reports, as dictionaries with the fields of
    docs/reference/report.md. There are several if a function of foreachBatch calls `write_batch`
    several times. where: where the reports are if they cannot be read here, else None.
    """

    progress: StreamingQueryProgress
    reports: list[dict[str, Any]]
    where: str | None

    def summary(self) -> str:
        """Return a summary of the record in one line."""
        progress = self.progress
        seconds = progress.batchDuration / 1000
        line = (
            f"pykafka: query {progress.name or progress.id}, micro-batch {progress.batchId}: "
            f"{counted(progress.numInputRows or 0, 'row')} in, {seconds:.2f} s, "
            f"{progress.processedRowsPerSecond or 0:.0f} rows/s"
        )
        parts = [_described(report) for report in self.reports]
        return "; ".join([line, *parts, *([] if self.where is None else [self.where])])


def _described(report: dict[str, Any]) -> str:
    skipped = (report["exactly_once"] or {}).get("skipped")
    if skipped:
        return f"skipped: {skipped}"
    topics = sorted({each["topic"] for each in report["partitions"]})
    where = ", ".join(topics) if len(topics) <= 3 else f"{len(topics)} topics"
    line = f"wrote {counted(report['rows'], 'row')} ({report['bytes']} bytes)"
    line += f" to {where or 'no topic'}, {counted(len(report['partitions']), 'partition')}"
    bad = (report["bad_rows"] or {}).get("rows", 0)
    line += f", {counted(bad, 'bad row')}" if bad else ""
    return line + (f", {counted(report['retries'], 'retry', 'retries')}" * bool(report["retries"]))


class KafkaStreamListener(StreamingQueryListener):
    """Makes a `MicroBatchRecord` of each micro-batch that this sink has written.

    >>> spark.streams.addListener(KafkaStreamListener())  # doctest: +SKIP

    on_micro_batch: called with each record, in a thread of Spark. Without it, the summary of the
    record is printed on stderr. Set quiet=true on the streams then, so that their own lines are not
    printed, too. Micro-batches without rows have no record. Over Spark Connect, a record has only
    Spark's progress, and says where the reports are. Raise IllegalArgumentException if
    on_micro_batch is not callable.
    """

    def __init__(self, on_micro_batch: Callable[[MicroBatchRecord], object] | None = None) -> None:
        check_callable("on_micro_batch", on_micro_batch, "a callable that takes a record")
        self._hand_on = on_micro_batch or _print

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: no micro-batch has run yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Make the record of a micro-batch, unless it was without rows, or went elsewhere."""
        progress = event.progress
        if driver_folder() is None:
            if progress.numInputRows and any(n in progress.sink.description for n in _SINKS):
                self._hand_on(
                    MicroBatchRecord(progress=progress, reports=[], where=_WITH_THE_SERVER)
                )
            return
        # Spark's timestamp is the start of the micro-batch, as 2026-01-31T12:00:00.000Z.
        since = progress.timestamp.removesuffix("Z")
        reports = [
            report
            for report in reports_of(str(progress.id), progress.batchId, since)
            if report["complete"] and not _is_empty(report)
        ]
        if reports:
            self._hand_on(MicroBatchRecord(progress=progress, reports=reports, where=None))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: Spark raises the error of a query itself."""


def _is_empty(report: dict[str, Any]) -> bool:
    bad = (report["bad_rows"] or {}).get("rows", 0)
    return not (report["rows"] or bad or (report["exactly_once"] or {}).get("skipped"))


def _print(record: MicroBatchRecord) -> None:
    say(record.summary())
