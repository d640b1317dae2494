"""KafkaStreamListener: one record for each micro-batch, and one for each query that fails.

Spark knows the sources, the rates and the durations of a micro-batch. The sink's report contains
its topics, offsets, bad rows and retries. The listener combines the two by the id of the query and
the number of the micro-batch. When a query fails, Spark knows the error, and the sink's newest
report shows what was written last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from spark_kafka_sink.model import check_callable
from spark_kafka_sink.spark.committing.job_commit import say
from spark_kafka_sink.spark.committing.report_files import newest_report_of, reports_of
from spark_kafka_sink.spark.driver.hooks.failed_writes import cause_of
from spark_kafka_sink.spark.driver.hooks.queries import report_file_of
from spark_kafka_sink.spark.driver.hooks.worker_failures import sentence_of_sink
from spark_kafka_sink.spark.report import counted
from spark_kafka_sink.spark.session import driver_folder, is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ON_THE_SERVER: Final = "with Spark Connect, reports are only available on the server"
# If rows may go to Kafka through a sink, Spark's description of it contains one of these strings.
# The first is for Python data sources, whose names Spark does not show. The second is for
# foreachBatch.
_SINKS: Final = ("PythonTable", "ForeachBatchSink")


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchRecord:
    """What is known about one micro-batch.

    progress: Spark's progress. reports: the sink's reports, as dictionaries with the fields of
    docs/reference/report.md. There are several if a function of foreachBatch calls `write_batch`
    several times. where: None if this process can read the reports. With Spark Connect, it cannot;
    then this is a sentence that says where they are. The sentence contains the option reportPath of
    a stream that this process started after `register`.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedQueryRecord:
    """What is known about a streaming query that has failed.

    id, run_id, name: those of the query. The name is None if the query has no name, or started
    before the listener was added. error: the cause of the failure, from the exception of the query,
    without stack traces. If the exception contains a message of the sink, the cause is that
    message. batch_id: the number of the last micro-batch that was written, None if it is not known.
    report: the sink's last report of that micro-batch, None if this process cannot read one. where:
    as in `MicroBatchRecord`.
    """

    id: UUID
    run_id: UUID
    name: str | None
    error: str
    batch_id: int | None
    report: dict[str, Any] | None
    where: str | None

    def summary(self) -> str:
        """Return a summary of the record in one line, with the error at its end."""
        named = "" if self.name is None else f"{self.name} "
        line = f"pykafka: query {named}(id {self.id}, run {self.run_id}) failed"
        if self.batch_id is None:
            parts = [f"{line} before it wrote a micro-batch in this program"]
        else:
            parts = [f"{line} after micro-batch {self.batch_id}"]
        if self.report is not None:
            parts[0] += f", which {_described(self.report)}"
        parts += [] if self.where is None else [self.where]
        return "; ".join([*parts, " ".join(self.error.split())])


@dataclass(slots=True)
class _Run:
    """What the listener knows about a run of a query.

    batch_id: the number of the last micro-batch with rows. is_elsewhere: whether the query is known
    to write to a different sink. is_ours: whether it is known to write to this sink. report: the
    last report of a micro-batch that was written. The application's file may no longer contain it.
    """

    name: str | None = None
    batch_id: int | None = None
    is_elsewhere: bool = False
    is_ours: bool = False
    report: dict[str, Any] | None = None


class KafkaStreamListener(StreamingQueryListener):
    """Makes a record of each micro-batch that this sink has written, and of each failed query.

    >>> spark.streams.addListener(KafkaStreamListener())  # doctest: +SKIP

    on_micro_batch: called with each `MicroBatchRecord`, in a thread of Spark. on_failed_query:
    called with each `FailedQueryRecord`. If one of the two is None, the listener prints a summary
    of each of these records on stderr instead. In that case, set the option quiet=true on the
    streams. Otherwise, the sink also prints its own line for each micro-batch.

    No record is made of a micro-batch without rows. A query to a different sink gets a record only
    if it fails before its first micro-batch with rows has ended.

    With Spark Connect, a record contains Spark's information, and says where the sink's reports
    are. No record is made of a micro-batch whose numInputRows is 0, even if the sink wrote rows.
    Records are also made of queries to any other Python data source or foreachBatch function.

    Raise IllegalArgumentException if on_micro_batch or on_failed_query is not callable.
    """

    def __init__(
        self,
        on_micro_batch: Callable[[MicroBatchRecord], object] | None = None,
        on_failed_query: Callable[[FailedQueryRecord], object] | None = None,
    ) -> None:
        check_callable("on_micro_batch", on_micro_batch, "a callable that takes a record")
        check_callable("on_failed_query", on_failed_query, "a callable that takes a record")
        self._hand_on = on_micro_batch or _print
        self._hand_on_failure = on_failed_query or _print
        self._runs: dict[UUID, _Run] = {}
        self._is_connect = False

    def _set_spark_session(self, session: SparkSession) -> None:
        """Patch the session's listener bus, because its `remove` may wait for ever (SPARK-59623).

        Spark Connect calls this when it adds a listener. This method checks whether the session is
        one of Spark Connect. A SparkContext in this process does not show that it is classic,
        because the server may run in the same process.
        """
        super()._set_spark_session(session)
        self._is_connect = is_connect(session)
        if self._is_connect:
            from spark_kafka_sink.spark.driver.listener_bus import patch_listener_bus  # noqa: PLC0415 - needs grpc

            patch_listener_bus(session)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Store the name of a query, because the event about the query's end has no name."""
        self._runs[event.runId] = _Run(event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Make the record of a micro-batch, if it has rows and was written to this sink."""
        progress = event.progress
        run = self._runs.setdefault(progress.runId, _Run(progress.name))
        run.is_elsewhere = not any(name in progress.sink.description for name in _SINKS)
        if run.is_elsewhere:
            return
        if progress.numInputRows:
            run.batch_id = progress.batchId
        if not self._has_reports():
            if progress.numInputRows:
                self._hand_on(
                    MicroBatchRecord(progress=progress, reports=[], where=_where(progress.runId))
                )
            return
        # Spark's timestamp is the start of the micro-batch, for example 2026-01-31T12:00:00.000Z.
        since = progress.timestamp.removesuffix("Z")
        found = reports_of(str(progress.id), progress.batchId, since)
        run.is_ours = run.is_ours or bool(found)
        reports = [report for report in found if _is_written(report)]
        if reports:
            run.report = reports[-1]
            self._hand_on(MicroBatchRecord(progress=progress, reports=reports, where=None))

    def _has_reports(self) -> bool:
        """Return whether this process can read the reports of the queries."""
        return not self._is_connect and driver_folder() is not None

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Make the record of a query that has failed, unless it wrote to a different sink."""
        run = self._runs.pop(event.runId, _Run())
        if event.exception is None or run.is_elsewhere:
            return
        is_here = self._has_reports()
        query_id = str(event.id)
        if is_here and run.batch_id is not None and not run.is_ours:
            # Spark's description does not distinguish this sink from other Python data sources and
            # foreachBatch functions. If nothing shows that the query wrote to this sink, it wrote
            # to one of the others.
            has_report = newest_report_of(query_id, lambda _: True) is not None
            if not has_report and sentence_of_sink(event.exception) is None:
                return
        report = (newest_report_of(query_id, _is_written) or run.report) if is_here else None
        self._hand_on_failure(
            FailedQueryRecord(
                id=event.id,
                run_id=event.runId,
                name=run.name,
                error=cause_of(event.exception),
                batch_id=run.batch_id if report is None else report["batch_id"],
                report=report,
                where=None if is_here else _where(event.runId),
            )
        )


def _where(run_id: UUID) -> str:
    """Return where the reports of a run are, if this process cannot read them."""
    path = report_file_of(str(run_id))
    if path is None:
        how = "set the option reportPath of the stream to write them to a file there"
        return f"{_ON_THE_SERVER}: {how}"
    return f"{_ON_THE_SERVER}, in the file {path}"


def _is_written(report: dict[str, Any]) -> bool:
    """Return whether a report is about a complete micro-batch that has rows.

    Also return True for a micro-batch that exactlyOnce has skipped, because an earlier attempt has
    written its rows.
    """
    bad = (report["bad_rows"] or {}).get("rows", 0)
    is_skipped = bool((report["exactly_once"] or {}).get("skipped"))
    return bool(report["complete"] and (report["rows"] or bad or is_skipped))


def _print(record: MicroBatchRecord | FailedQueryRecord) -> None:
    say(record.summary())
