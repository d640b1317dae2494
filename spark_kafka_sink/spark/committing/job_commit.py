"""The end of a job: check that every task has reported, and publish the report.

A failed job also has a report. It covers the tasks that had ended before the failure.

A summary is printed on stderr, because Spark does not show the logs of the Python process that
commits. The report is written to the file in the option `reportPath`. It is also appended to the
application's file, which `last_reports` reads.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.logs import masked, without_path
from spark_kafka_sink.spark.committing.report_files import (
    add_error_to_line,
    add_error_to_remembered,
    append_report,
    is_special,
    locked_folder,
    open_to_append,
    open_to_write,
    remember,
)
from spark_kafka_sink.spark.report import (
    BadRowsReport,
    CommitReport,
    ExactlyOnceReport,
    ExpiredRowsReport,
    JobTrace,
    SinkCommitMessage,
    SkippedMessage,
    merged,
)


class AbortResult(NamedTuple):
    """The result of the abort of an exactly-once write.

    line: a sentence for the user. is_committed: whether the write is committed in spite of the
    abort.
    """

    line: str
    is_committed: bool = False


def commit_report(
    messages: Sequence[WriterCommitMessage | None],
    batch_id: int | None = None,
    exactly_once: ExactlyOnceReport | None = None,
    *,
    compression: str = "none",
    write_id: str | None = None,
) -> CommitReport:
    """Return the report of a job: the sum of the commit messages of all tasks.

    exactly_once: the exactly-once part of the report, None for at-least-once writes. compression:
    the codec of the option kafka.compression.type. write_id: as in `CommitReport`. Raise
    KafkaException if a task did not report, because its rows may be missing from Kafka.
    """
    reported = [m for m in messages if isinstance(m, SinkCommitMessage)]
    if len(reported) != len(messages):
        message = (
            f"{len(messages) - len(reported)} of {len(messages)} tasks did not report what they "
            "wrote: their rows may be missing from Kafka, so the write fails"
        )
        raise KafkaException(message)
    return _report(reported, batch_id, exactly_once, compression, write_id)


def failure_report(
    messages: Sequence[WriterCommitMessage | None],
    batch_id: int | None = None,
    exactly_once: ExactlyOnceReport | None = None,
    *,
    compression: str = "none",
    write_id: str | None = None,
) -> CommitReport:
    """Return the report of a failed job, about the tasks that had ended before the failure.

    The parameters are those of `commit_report`.
    """
    reported = [m for m in messages if isinstance(m, SinkCommitMessage)]
    report = _report(reported, batch_id, exactly_once, compression, write_id)
    report.complete = False
    report.unreported_tasks = sum(message is None for message in messages)
    return report


def _report(
    reported: Sequence[SinkCommitMessage],
    batch_id: int | None,
    exactly_once: ExactlyOnceReport | None,
    compression: str,
    write_id: str | None,
) -> CommitReport:
    partitions = merged(message.partitions for message in reported)
    bad_rows = (
        BadRowsReport.of([m.bad_rows for m in reported], (m.dead_letters for m in reported))
        if reported
        else None
    )
    now = time.time()
    tasks = [message.report for message in reported]
    return CommitReport(
        batch_id=batch_id,
        query_id=next((m.query_id for m in reported if m.query_id is not None), None),
        complete=True,
        unreported_tasks=0,
        error=None,
        write_id=write_id,
        committed_at=datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
        # The clock of a task's host may be ahead of the clock of this host.
        seconds=max(0.0, now - min((m.started_at for m in reported), default=now)),
        tasks=len(reported),
        rows=sum(task.rows for task in tasks),
        bytes=sum(p.bytes for p in partitions),
        compressed_bytes=sum(p.compressed_bytes for p in partitions),
        compression=compression,
        retries=sum(p.retries for p in partitions),
        throttle_ms=sum(message.throttle_ms for message in reported),
        slowest_task=max(tasks, key=lambda task: task.seconds, default=None),
        bad_rows=bad_rows,
        expired_rows=ExpiredRowsReport.of(part for m in reported for part in m.expired_rows),
        exactly_once=exactly_once,
        partitions=partitions,
    )


def trace_of(
    messages: Sequence[WriterCommitMessage | None], planned: JobTrace | None
) -> JobTrace | None:
    """Return the span of the job that the tasks belong to.

    planned: the span in the writer that commits. It is used only if no commit message contains a
    span. Commit messages come first, because the tasks of a stream have a different writer.
    """
    traces = (m.trace for m in messages if isinstance(m, SinkCommitMessage | SkippedMessage))
    return next((each for each in traces if each is not None), planned)


def publish(
    report: CommitReport,
    path: Path | None,
    *,
    quiet: bool = False,
    trace: JobTrace | None = None,
) -> None:
    """Print a summary of the report, and write the report to the file `path`.

    quiet: if True, print no summary. If the write is complete, the warning about rows older than
    retention.ms is printed nevertheless. No summary is printed for a micro-batch without rows.
    trace: the span of the job; this function ends it.

    The report of a batch job replaces the content of the file. The report of a micro-batch is
    appended as a line. If the report cannot be written, print the error on stderr and raise
    nothing, because the job has already ended.
    """
    if not quiet and not report.is_empty:
        _say_summary(report)
    if report.expired_rows and (report.complete or not quiet):
        say(ExpiredRowsReport.summary(report.expired_rows))
    if trace is not None:
        from spark_kafka_sink.spark.tracing import end_job  # noqa: PLC0415 - few jobs have a trace

        end_job(trace, report)
    try:
        remember(report.to_json())
    except Exception as error:  # noqa: BLE001 - whatever it is, the job has ended
        say(f"pykafka: last_reports will not return this report: {error}")
    if path is None:
        return
    try:
        if report.batch_id is None:
            _replace(path, json.dumps(report.to_json(), indent=2) + "\n")
        else:
            with open_to_append(path) as lines:
                append_report(lines, report.to_json())
    except Exception as error:  # noqa: BLE001 - whatever it is, the job has ended
        shown = masked(str(path))
        why = without_path(error)
        say(f"pykafka: the report could not be written to reportPath {shown}: {why}")


def add_error(write_id: str, error: str, path: Path | None, *, has_lines: bool) -> None:
    """Add the error of a failed write to its last report, in the application's file and in `path`.

    path: the file in the option `reportPath`, None if it is not set. has_lines: whether each report
    is a line of that file, as for streams and micro-batches. Raise OSError or ValueError if a file
    cannot be changed.
    """
    with suppress(BlockingIOError):
        add_error_to_remembered(write_id, error)
    if path is None or is_special(path) or not path.is_file():
        return
    if has_lines:
        with path.open("r+b") as lines:
            add_error_to_line(lines, write_id, error)
        return
    path = path.resolve()
    with locked_folder(path.parent):
        report = json.loads(path.read_text())
        if report["write_id"] == write_id and not report["complete"]:
            _replace_locked(path, json.dumps(report | {"error": error}, indent=2) + "\n")


def _say_summary(report: CommitReport) -> None:
    say(report.summary())
    if report.bad_rows is not None and report.bad_rows.rows:
        say(report.bad_rows.summary())


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically. If that is impossible, write into the existing file.

    In the second case, a regular file is overwritten. To a special file, such as a pipe, the text
    is appended.
    """
    if is_special(path):
        _write_into(path, os.O_APPEND, text)
        return
    path = path.resolve()
    with locked_folder(path.parent):
        _replace_locked(path, text)


def _replace_locked(path: Path, text: str) -> None:
    """Replace a regular file as `_replace` does. path: resolved, and its folder is locked."""
    if path.exists() and not os.access(path.parent, os.W_OK | os.X_OK):
        _write_into(path, os.O_TRUNC, text)
        return
    # The jobs of a program may write their reports into one folder at the same time.
    partial = path.with_name(f".pykafka-report.{uuid.uuid4().hex}")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write_into(path: Path, flag: int, text: str) -> None:
    with open_to_write(path, flag) as there:
        there.write(text.encode())


def say(line: str) -> None:
    """Print a line on stderr."""
    # stderr may be closed, or None.
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
