"""Commit and abort of a write with exactly once, on the driver.

The process that commits is not the one that planned. All that it needs is in the plan, which the
writer or the messages of the tasks carry. What is committed and how is the modes' own.
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
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.committing import single_commit, two_phase_commit
from spark_kafka_sink.spark.committing.job_commit import commit_report, publish, say
from spark_kafka_sink.spark.exactly_once import ExactlyOnce, Mode
from spark_kafka_sink.spark.kept_plans import kept_plan
from spark_kafka_sink.spark.micro_batch import MicroBatch
from spark_kafka_sink.spark.options import SinkOptions, name_kafka_options
from spark_kafka_sink.spark.report import SinkCommitMessage, SkippedMessage


@name_kafka_options()
def commit_batch(
    options: SinkOptions,
    plan: Plan | CommitRecord,
    messages: Sequence[WriterCommitMessage | None],
) -> None:
    """Commit a batch job, and publish its report; say so if its version was written before.

    plan: the owner's record in that case. Raise KafkaException if it is not committed.
    """
    version, name = _of(options)
    if isinstance(plan, CommitRecord):
        say(skipped(plan, version, name))
        return
    report = commit_report(messages)
    record = _next_record(plan, report.rows).after_version(version)
    _commit(options, plan, record, _attempts(messages))
    publish(report, options.report_path)
    mode = _mode(options).value
    say(f"pykafka: committed version {version} of application {name}, exactlyOnce={mode}")


@name_kafka_options()
def commit_micro_batch(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int
) -> None:
    """Commit a micro-batch of a stream, and publish its report; a replay is only compared.

    Raise KafkaException if it is not committed, or if a replay has another number of rows.
    """
    if not messages:
        _end_unused(options, kept_plan(_owner(options)))
        return
    if all(isinstance(message, SkippedMessage) for message in messages):
        _compare(options, [m for m in messages if isinstance(m, SkippedMessage)])
        return
    report = commit_report(messages, batch_id)
    written = [message for message in messages if isinstance(message, SinkCommitMessage)]
    plan, micro_batch = _common(written)
    mark = StreamMark(micro_batch.query_id, batch_id, report.rows, micro_batch.run_id)
    record = _next_record(plan, report.rows).after_batch(mark)
    if report.rows:
        _commit(options, plan, record, _attempts(messages))
    else:
        _end_unused(options, plan)
    publish(report, options.report_path)


def _end_unused(options: SinkOptions, plan: Plan | None) -> None:
    """End a transaction without rows, which level 1 has begun at the plan: it holds up readers."""
    if plan is not None and _mode(options) is Mode.SINGLE and plan.run.level < 2:
        single_commit.abort_run(options, plan)


def _compare(options: SinkOptions, skips: Sequence[SkippedMessage]) -> None:
    """Check that a micro-batch that was written before has as many rows as then."""
    plan, micro_batch = _common(skips)
    _end_unused(options, plan)
    last = None if plan.record is None else plan.record.last_batch(micro_batch.query_id)
    rows = sum(message.rows or 0 for message in skips)
    if last is None or last.rows != rows:
        message = (
            f"{micro_batch} has {rows} rows now, and had {'none' if last is None else last.rows} "
            f"when {plan.run.owner} wrote it: its source gave other rows for the same offsets"
        )
        raise KafkaException(message)
    say(f"pykafka: skipped: {micro_batch} was written before, with its {rows} rows")


def _common(
    messages: Sequence[SinkCommitMessage | SkippedMessage],
) -> tuple[Plan, MicroBatch]:
    """Return the plan and the micro-batch that all tasks had."""
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


def _next_record(plan: Plan, rows: int) -> CommitRecord:
    """Return the record of the owner as this run writes it, before what it adds."""
    nothing = CommitRecord(RecordState.DONE, plan.run.name, rows=0, written_at=0)
    return replace(
        (plan.record or nothing).done(),
        run=plan.run.name,
        rows=rows,
        written_at=time.time_ns() // 1_000_000,
    )


def skipped(record: CommitRecord, version: int, app_id: str) -> str:
    """Return the line about a version that is written already."""
    at = datetime.fromtimestamp(record.written_at / 1000, UTC).isoformat(timespec="milliseconds")
    return (
        f"pykafka: skipped: version {version} of application {app_id} was written before; its last "
        f"write was at {at}"
    )


@name_kafka_options()
def abort_batch(
    options: SinkOptions,
    plan: Plan | CommitRecord,
    messages: Sequence[WriterCommitMessage | None],
) -> None:
    """Abort a batch job that has failed, and say what came of it."""
    if isinstance(plan, Plan):
        _abort(options, plan, _attempts(messages))


@name_kafka_options()
def abort_micro_batch(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Abort a micro-batch that has failed; without a plan, the next one or the timeout does."""
    plans = [m.plan for m in messages if isinstance(m, SinkCommitMessage | SkippedMessage)]
    plan = next((each for each in plans if each is not None), None) or kept_plan(_owner(options))
    if plan is not None:
        _abort(options, plan, _attempts(messages))


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
    options: SinkOptions, plan: Plan, record: CommitRecord, attempts: Sequence[AttemptTransaction]
) -> None:
    """Commit what the tasks of a run wrote, with the record that says so. Raise KafkaException."""
    if _mode(options) is Mode.SINGLE:
        single_commit.commit_record(options, plan, record, attempts)
    else:
        two_phase_commit.commit_record(options, plan, record, attempts)


def _abort(options: SinkOptions, plan: Plan, attempts: Sequence[AttemptTransaction]) -> None:
    try:
        if _mode(options) is Mode.SINGLE:
            line = single_commit.abort_run(options, plan)
        else:
            line = two_phase_commit.abort_run(options, plan, attempts)
    except Exception as error:  # noqa: BLE001 - Spark raises why the job failed
        line = (
            f"the write of {plan.run.owner} could not be aborted now ({error}); the "
            f"brokers abort it within {plan.run.timeout_ms} ms"
        )
    say(f"pykafka: {line}")


def _of(options: SinkOptions) -> tuple[int, str]:
    """Return the version and the name of the application."""
    selected = _selected(options)
    if selected.version is None or selected.app_id is None:
        message = "a write without txnAppId and txnVersion is not exactly once; this is a bug"
        raise KafkaException(message)
    return selected.version, selected.app_id
