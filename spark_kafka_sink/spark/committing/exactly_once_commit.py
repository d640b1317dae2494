"""The commit and the abort of an exactly-once write, on the driver.

The process that commits is not the process that made the plan. All that the commit needs is in the
plan, which is pickled with the writer or with the commit messages of the tasks. `single_commit` and
`two_phase_commit` contain the parts that differ between the two modes.

A run is one batch job or one micro-batch. An owner is a txnAppId and its target topic. The
commit log contains a record for each owner. The record lists what the owner has written.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql.datasource import WriterCommitMessage

from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan
from spark_kafka_sink.commit.log_record import CommitRecord, RecordState, StreamMark
from spark_kafka_sink.commit.names import Owner
from spark_kafka_sink.commit.outcomes import not_aborted_now
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.logs import masked
from spark_kafka_sink.spark.committing import single_commit, two_phase_commit
from spark_kafka_sink.spark.committing.job_commit import (
    AbortResult,
    commit_report,
    failure_report,
    publish,
    say,
    trace_of,
)
from spark_kafka_sink.spark.exactly_once import ExactlyOnce, Mode
from spark_kafka_sink.spark.kept_plans import kept_plan
from spark_kafka_sink.spark.micro_batch import MicroBatch
from spark_kafka_sink.spark.options import SinkOptions, name_kafka_options
from spark_kafka_sink.spark.replays import warning_of_new_query
from spark_kafka_sink.spark.report import (
    CommitReport,
    ExactlyOnceReport,
    SinkCommitMessage,
    SkippedMessage,
    counted,
)


@name_kafka_options()
def commit_batch(
    options: SinkOptions,
    plan: Plan | CommitRecord,
    messages: Sequence[WriterCommitMessage | None],
    batch_id: int | None = None,
) -> None:
    """Commit a batch job, and publish its report.

    plan: the plan of the run. If the version of this job was written before, `plan` is the owner's
    commit log record instead. In that case, nothing is committed, and the report says that the
    version was written before. batch_id: the batch id if the job writes a micro-batch, else None.
    Raise KafkaException if the job is not committed.
    """
    if isinstance(plan, CommitRecord):
        skips = [message for message in messages if isinstance(message, SkippedMessage)]
        _publish(options, messages, skipped_report(options, plan, skips, batch_id))
        return
    report = _report(options, messages, batch_id)
    record = _next_record(options, plan, _rows_read(report)).after_version(_version(options))
    _commit(options, plan, record, messages, report)
    _publish(options, messages, report)


@name_kafka_options()
def commit_micro_batch(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int
) -> None:
    """Commit a micro-batch of a stream, and publish its report.

    If the micro-batch was written before (a replay), only its row count is checked. Raise
    KafkaException if the micro-batch is not committed, or if the row count of a replay differs from
    that of the first write.
    """
    if not messages:
        end_unused(options, kept_plan(_owner(options)))
        _publish(options, messages, _report(options, messages, batch_id))
        return
    if all(isinstance(message, SkippedMessage) for message in messages):
        _compare(options, [m for m in messages if isinstance(m, SkippedMessage)])
        return
    report = _report(options, messages, batch_id)
    written = [message for message in messages if isinstance(message, SinkCommitMessage)]
    plan, micro_batch = _common(written)
    rows = _rows_read(report)
    mark = StreamMark(micro_batch.query_id, batch_id, rows, micro_batch.run_id)
    if rows:
        record = _next_record(options, plan, rows, micro_batch.query_name).after_batch(mark)
        _commit(options, plan, record, messages, report)
        warning = warning_of_new_query(plan, micro_batch)
        if warning is not None:
            say(f"pykafka: {warning}")
    else:
        end_unused(options, plan)
    _publish(options, messages, report)


def _rows_read(report: CommitReport) -> int:
    """Return the number of rows that the tasks read: the written rows and the bad rows."""
    return report.rows + (0 if report.bad_rows is None else report.bad_rows.rows)


def end_unused(options: SinkOptions, plan: Plan | None) -> None:
    """Abort the transaction of a run that wrote no rows, if a transaction is open.

    In mode `single` at level 1 (transaction.version 1), planning has already begun the transaction,
    and read_committed consumers wait until it ends. If the abort fails, print how long they may
    have to wait.
    """
    if plan is None or _mode(options) is not Mode.SINGLE or plan.run.level >= 2:
        return
    try:
        line = single_commit.end_unused(options, plan)
    except KafkaException as error:
        line = not_aborted_now(plan.run, error)
    if line is not None:
        say(f"pykafka: {line}")


def _compare(options: SinkOptions, skips: Sequence[SkippedMessage]) -> None:
    """Publish the report of a replayed micro-batch, which was written before.

    Raise KafkaException if its row count differs from the row count when it was written.
    """
    plan, micro_batch = _common(skips)
    end_unused(options, plan)
    last = None if plan.record is None else plan.record.last_batch(micro_batch.query_id)
    rows = sum(message.rows or 0 for message in skips)
    if last is None or last.rows != rows:
        message = (
            f"{micro_batch} has {counted(rows, 'row')} now, and had "
            f"{'none' if last is None else last.rows} when it was written as {plan.run.owner}: its "
            "source returned other rows for the same offsets"
        )
        raise KafkaException(message)
    why = f"{micro_batch} was written before, with {counted(rows, 'row')}"
    report = _without_rows(options, why, len(skips), micro_batch.batch_id)
    report.query_id = micro_batch.query_id
    _publish(options, skips, report)


def _common(
    messages: Sequence[SinkCommitMessage | SkippedMessage],
) -> tuple[Plan, MicroBatch]:
    """Return the one plan and micro-batch of all tasks. Raise KafkaException if tasks differ."""
    found = {(message.plan, message.micro_batch) for message in messages}
    (plan, micro_batch), *others = found
    if others or plan is None or micro_batch is None:
        message = f"the tasks of one micro-batch had {len(found)} plans; this is a bug"
        raise KafkaException(message)
    return plan, micro_batch


def _attempts(messages: Sequence[WriterCommitMessage | None]) -> list[AttemptTransaction]:
    return [
        message.transaction
        for message in messages
        if isinstance(message, SinkCommitMessage) and message.transaction is not None
    ]


def _how(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    skipped: str | None = None,
) -> ExactlyOnceReport:
    """Return the exactly-once part of the report."""
    selected = _selected(options)
    transactions = sum(1 for each in _attempts(messages) if each.written)
    if selected.mode is Mode.SINGLE:
        transactions = min(transactions, 1)
    return ExactlyOnceReport(
        mode=selected.mode.value,
        app_id=selected.app_id or "",
        version=selected.version,
        transactions=transactions,
        skipped=skipped,
    )


def skipped_report(
    options: SinkOptions,
    record: CommitRecord,
    skips: Sequence[SkippedMessage] = (),
    batch_id: int | None = None,
) -> CommitReport:
    """Return the report of a batch job whose version was written before.

    record: the owner's commit log record. skips: the commit messages of the tasks, if any task ran.
    """
    why = why_skipped(options, record)
    counts = [message.rows for message in skips if message.rows is not None]
    if counts:
        why += f"; it has {counted(sum(counts), 'row')} now, which were counted, but not written"
    return _without_rows(options, why, len(skips), batch_id)


def why_skipped(options: SinkOptions, record: CommitRecord) -> str:
    """Return a sentence that says when the version was written, according to the owner's record."""
    version = _version(options)
    at = datetime.fromtimestamp(record.written_at / 1000, UTC).isoformat(timespec="milliseconds")
    is_last = record.version == version
    when = f"at {at}, with {counted(record.rows, 'row')}" if is_last else f"before {at}"
    return f"version {version} of txnAppId {_selected(options).app_id!r} was written {when}"


def _without_rows(options: SinkOptions, why: str, tasks: int, batch_id: int | None) -> CommitReport:
    """Return the report of a write that was skipped. why: the reason."""
    return replace(_report(options, (), batch_id, why), tasks=tasks)


def _report(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    batch_id: int | None,
    skipped: str | None = None,
) -> CommitReport:
    """Return the report of a write. skipped: why the write was skipped, None if it was not."""
    return commit_report(
        messages,
        batch_id,
        _how(options, messages, skipped),
        compression=options.producer.compression_type,
        write_id=options.write_id,
    )


def _next_record(options: SinkOptions, plan: Plan, rows: int, query_name: str = "") -> CommitRecord:
    """Return the next commit log record. The caller adds the version or the micro-batch to it."""
    nothing = CommitRecord(RecordState.DONE, plan.run.name, rows=0, written_at=0)
    selected = _selected(options)
    return replace(
        (plan.record or nothing).done(),
        run=plan.run.name,
        rows=rows,
        written_at=time.time_ns() // 1_000_000,
        application=selected.application,
        query=query_name,
        checkpoint=masked(selected.checkpoint),
    )


@name_kafka_options()
def abort_batch(
    options: SinkOptions,
    plan: Plan | CommitRecord,
    messages: Sequence[WriterCommitMessage | None],
    batch_id: int | None = None,
    *,
    replayed: MicroBatch | None = None,
) -> None:
    """Abort a batch job that has failed, print the result, and publish the report of the failure.

    plan, batch_id: as in `commit_batch`. If `plan` is the owner's record, there is nothing to
    abort. replayed: the micro-batch, if it was written before and the job only counted its rows.
    None otherwise.
    """
    if isinstance(plan, CommitRecord):
        _publish_failed_skip(options, messages, why_skipped(options, plan), batch_id)
    elif replayed is not None:
        _abort_replay(options, plan, messages, replayed)
    else:
        is_committed = _abort(options, plan, messages)
        _publish_failure(options, messages, batch_id, is_committed=is_committed)


@name_kafka_options()
def abort_micro_batch(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int
) -> None:
    """Abort a micro-batch that has failed, as `abort_batch` does with a job.

    The plan comes from the commit messages or from the driver's folder. If neither contains it,
    nothing is aborted here. In that case, the open transactions are aborted when the next
    micro-batch is planned, or by the brokers after transaction.timeout.ms.
    """
    plans = [m.plan for m in messages if isinstance(m, SinkCommitMessage | SkippedMessage)]
    plan = next((each for each in plans if each is not None), None) or kept_plan(_owner(options))
    replayed = _replayed(messages)
    is_committed = False
    if plan is not None and replayed is not None:
        _abort_replay(options, plan, messages, replayed)
        return
    if plan is not None:
        is_committed = _abort(options, plan, messages, batch_id=batch_id)
    else:
        say(
            f"pykafka: the write of {_owner(options)} is not aborted now, because its plan is not "
            "in the folder of the driver; if a transaction is open, brokers abort it within "
            f"{options.producer.transaction_timeout_ms} ms, and read_committed consumers may have "
            "to wait until then"
        )
    _publish_failure(options, messages, batch_id, is_committed=is_committed)


def _publish(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    report: CommitReport,
    *,
    quiet: bool = False,
) -> None:
    trace = trace_of(messages, options.trace)
    publish(report, options.report_path, quiet=quiet or options.quiet, trace=trace)


def _publish_failure(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    batch_id: int | None,
    *,
    is_committed: bool,
) -> None:
    """Publish the report of a write that has failed. Call this after printing the abort's result.

    is_committed: whether the abort has found that the write is committed.
    """
    report = failure_report(
        messages,
        batch_id,
        _how(options, messages),
        compression=options.producer.compression_type,
        write_id=options.write_id,
    )
    report.complete = is_committed
    _publish(options, messages, report, quiet=True)


def _publish_failed_skip(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    why: str,
    batch_id: int | None,
    query_id: str | None = None,
) -> None:
    """Publish the report of a failed write whose rows an earlier write had already written.

    The failed write sent no rows. why: a sentence about the earlier write.
    """
    skips = sum(isinstance(message, SkippedMessage) for message in messages)
    report = _without_rows(options, why, skips, batch_id)
    report.query_id = query_id
    report.complete, report.unreported_tasks = False, len(messages) - skips
    _publish(options, messages, report)


def _selected(options: SinkOptions) -> ExactlyOnce:
    if options.exactly_once is None:
        message = "a write without exactlyOnce has no mode; this is a bug"
        raise KafkaException(message)
    return options.exactly_once


def _mode(options: SinkOptions) -> Mode:
    return _selected(options).mode


def _owner(options: SinkOptions) -> Owner:
    return _selected(options).owner(options.topic)


def _commit(
    options: SinkOptions,
    plan: Plan,
    record: CommitRecord,
    messages: Sequence[WriterCommitMessage | None],
    report: CommitReport,
) -> None:
    """Commit the rows of a run together with the new commit log record `record`.

    Raise KafkaException if they are not committed.
    """
    attempts = _attempts(messages)
    written = f"{counted(report.rows, 'row')} written in {report.seconds:.0f} s"
    if _mode(options) is Mode.SINGLE:
        single_commit.commit_record(options, plan, record, attempts, written)
    else:
        two_phase_commit.commit_record(options, plan, record, attempts, written)


def _abort(
    options: SinkOptions,
    plan: Plan,
    messages: Sequence[WriterCommitMessage | None],
    *,
    batch_id: int | None = None,
) -> bool:
    """Abort a run, and print the result. batch_id: the batch id of a stream's micro-batch, or None.

    Return True if the run cannot be aborted, because it is committed.
    """
    try:
        if _mode(options) is Mode.SINGLE:
            result = single_commit.abort_run(options, plan)
        else:
            result = two_phase_commit.abort_run(
                options,
                plan,
                _attempts(messages),
                is_missing=any(message is None for message in messages),
            )
    except Exception as error:  # noqa: BLE001 - Spark raises why the job failed
        result = AbortResult(not_aborted_now(plan.run, error))
    say(f"pykafka: {result.line}{'' if any(messages) else _if_replay(plan, batch_id)}")
    return result.is_committed


def _abort_replay(
    options: SinkOptions,
    plan: Plan,
    messages: Sequence[WriterCommitMessage | None],
    replayed: MicroBatch,
) -> None:
    """End a failed replay: a job that only counted rows, because they were written before.

    Do not print that no row is visible: the rows of the earlier write are visible.
    """
    try:
        end_unused(options, plan)
    except Exception as error:  # noqa: BLE001 - Spark raises why the job failed
        say(f"pykafka: {not_aborted_now(plan.run, error)}")
    why = f"{replayed} was written before"
    _publish_failed_skip(options, messages, why, replayed.batch_id, replayed.query_id)


def _if_replay(plan: Plan, batch_id: int | None) -> str:
    """Return the end of an abort message: what is true if the micro-batch was a replay.

    If no task has sent a commit message, the abort of a micro-batch cannot find out its query, or
    whether it was a replay. Return "" if `batch_id` is not in the owner's commit log record, which
    shows that it was no replay.
    """
    streams = () if plan.record is None else plan.record.streams
    last = next((each for each in streams if each.batch_id == batch_id), None)
    if last is None:
        return ""
    replay = MicroBatch(last.query_id, last.batch_id, last.run_id)
    return (
        f"; if this run was a replay of {replay}, the rows are visible, because an earlier run "
        "wrote them"
    )


def _replayed(messages: Sequence[WriterCommitMessage | None]) -> MicroBatch | None:
    """Return the micro-batch if its tasks only counted rows (a replay), else None."""
    skips = [message for message in messages if isinstance(message, SkippedMessage)]
    is_replay = len(skips) == sum(message is not None for message in messages)
    return skips[0].micro_batch if skips and is_replay else None


def _version(options: SinkOptions) -> int:
    version = _selected(options).version
    if version is None:
        message = "a batch job without txnVersion reached the exactly-once commit; this is a bug"
        raise KafkaException(message)
    return version
