"""Commit and abort of mode `single`, on the driver: `commit.single` against the cluster.

The process that commits is not the one that planned. All that it needs is in the plan, which the
writer carries, and in the messages of the tasks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql.datasource import WriterCommitMessage

from spark_kafka_sink.commit import single
from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan, Run
from spark_kafka_sink.commit.log_record import CommitRecord, RecordState, StreamMark
from spark_kafka_sink.commit.names import Owner
from spark_kafka_sink.commit.outcomes import (
    Aborted,
    Committed,
    CommittedBefore,
    Superseded,
    Undecided,
)
from spark_kafka_sink.commit.steps import Failure, FailureKind
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.spark.commit_clients import commit_client, exception_of
from spark_kafka_sink.spark.committing.job_commit import commit_report, publish, say
from spark_kafka_sink.spark.kept_plans import kept_plan
from spark_kafka_sink.spark.micro_batch import MicroBatch
from spark_kafka_sink.spark.options import SinkOptions, name_kafka_options
from spark_kafka_sink.spark.report import SinkCommitMessage, SkippedMessage

# The clusters whose brokers were found to flag duplicates, by the bootstrap servers.
_fit: set[str] = set()


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
    commit_record(options, plan, record, _attempts(messages))
    publish(report, options.report_path)
    say(f"pykafka: committed version {version} of application {name} in one transaction")


@name_kafka_options()
def commit_micro_batch(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int
) -> None:
    """Commit a micro-batch of a stream, and publish its report; a replay is only compared.

    Raise KafkaException if it is not committed, or if a replay has another number of rows.
    """
    if all(isinstance(message, SkippedMessage) for message in messages):
        skips = [message for message in messages if isinstance(message, SkippedMessage)]
        if skips:
            _compare(options, skips)
        return
    report = commit_report(messages, batch_id)
    written = [message for message in messages if isinstance(message, SinkCommitMessage)]
    plan, micro_batch = _common(written)
    mark = StreamMark(micro_batch.query_id, batch_id, report.rows, micro_batch.run_id)
    record = _next_record(plan, report.rows).after_batch(mark)
    if report.rows:
        commit_record(options, plan, record, _attempts(messages))
    else:
        _end_unused(options, plan)
    publish(report, options.report_path)


def _end_unused(options: SinkOptions, plan: Plan) -> None:
    """End a transaction without rows, which level 1 has begun at the plan: it holds up readers."""
    if plan.run.level < 2:
        abort_run(plan, options.producer, options.brokers)


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
def abort_batch(options: SinkOptions, plan: Plan | CommitRecord) -> None:
    """Abort a batch job that has failed, and say what came of it."""
    if isinstance(plan, Plan):
        _abort(options, plan)


@name_kafka_options()
def abort_micro_batch(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], owner: Owner
) -> None:
    """Abort a micro-batch that has failed; without a plan, the next one or the timeout does."""
    plans = [m.plan for m in messages if isinstance(m, SinkCommitMessage | SkippedMessage)]
    plan = next((each for each in plans if each is not None), None) or kept_plan(owner)
    if plan is not None:
        _abort(options, plan)


def _abort(options: SinkOptions, plan: Plan) -> None:
    try:
        line = abort_run(plan, options.producer, options.brokers)
    except Exception as error:  # noqa: BLE001 - Spark raises why the job failed
        line = (
            f"the write of {plan.run.owner} could not be aborted now ({error}); the "
            f"brokers abort it within {plan.run.timeout_ms} ms"
        )
    say(f"pykafka: {line}")


def _of(options: SinkOptions) -> tuple[int, str]:
    """Return the version and the name of the application."""
    selected = options.exactly_once
    if selected is None or selected.version is None or selected.app_id is None:
        message = "a write without txnAppId and txnVersion is not exactly once; this is a bug"
        raise KafkaException(message)
    return selected.version, selected.app_id


def commit_record(
    options: SinkOptions, plan: Plan, record: CommitRecord, attempts: Sequence[AttemptTransaction]
) -> None:
    """Commit what the tasks of a run wrote, with the record that says so.

    Raise KafkaException if it is not committed, or if that is not known: another run finds out, and
    writes nothing if it is.
    """
    run, config = plan.run, options.producer
    targets = tuple(
        TopicPartition(topic, number)
        for topic, partitions in sorted(options.laid_out.items())
        for number in range(partitions)
    )
    with commit_client(config, run.log.topic, options.brokers) as client:
        deadline = client.now() + config.delivery_timeout_ms / 1000
        begun = single.begin_commit(
            plan,
            tuple(attempts),
            record,
            level=client.level(deadline),
            targets=targets,
            probes=config.bootstrap_servers not in _fit,
            deadline=deadline,
        )
        outcome = client.run(begun, single.step).outcome
    if isinstance(outcome, Committed):
        _fit.add(config.bootstrap_servers)
        return
    if isinstance(outcome, Undecided):
        message = (
            f"it is not known whether the write of {run.owner} is committed: "
            f"{outcome.failure.sentence}; run it again, which writes the rows only if they are not"
        )
        raise KafkaException(message) from outcome.failure.exception()
    if isinstance(outcome, Failure):
        raise _explained(outcome, record.rows, run, config)
    message = f"the commit ended with {outcome!r}; this is a bug"
    raise KafkaException(message)


def _explained(failure: Failure, rows: int, run: Run, config: ProducerConfig) -> KafkaException:
    error = exception_of(failure, run, config)
    if failure.kind is not FailureKind.TIMED_OUT:
        return error
    message = (
        f"{error.message} (kafka.transaction.timeout.ms), before its {rows} rows were committed: "
        "nothing of the job is visible; raise the option, up to transaction.max.timeout.ms of the "
        "brokers, or write less in one job"
    )
    return error.with_message(message)


def abort_run(plan: Plan, config: ProducerConfig, brokers: Sequence[Node]) -> str:
    """Abort the transaction of a run that has failed; return what came of it, in a sentence."""
    with commit_client(config, plan.run.log.topic, brokers) as client:
        deadline = client.now() + config.max_block_ms / 1000
        begun = single.begin_abort(plan, level=client.level(deadline), deadline=deadline)
        outcome = client.run(begun, single.step).outcome
    owner = plan.run.owner
    if isinstance(outcome, Aborted):
        return f"the write of {owner} was aborted: nothing of it is visible"
    if isinstance(outcome, CommittedBefore):
        return f"the write of {owner} failed after its transaction had ended"
    if isinstance(outcome, Superseded):
        return f"the write of {owner} failed: a newer run has its id, or its transaction timed out"
    said = outcome.sentence if isinstance(outcome, Failure) else str(outcome)
    return (
        f"the write of {owner} could not be aborted now ({said}); the brokers abort it within "
        f"{plan.run.timeout_ms} ms"
    )
