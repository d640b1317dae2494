"""Commit and abort of mode `single`, on the driver: `commit.single` against the cluster.

The process that commits is not the one that planned. All that it needs is in the plan, which the
writer carries, and in the messages of the tasks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql.datasource import WriterCommitMessage

from spark_kafka_sink.commit import single
from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan
from spark_kafka_sink.commit.log_record import CommitRecord, RecordState
from spark_kafka_sink.commit.outcomes import (
    Aborted,
    Committed,
    CommittedBefore,
    Undecided,
)
from spark_kafka_sink.commit.steps import Failure, FailureKind
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.spark.commit_clients import commit_client
from spark_kafka_sink.spark.committing.job_commit import commit_report, publish, say
from spark_kafka_sink.spark.options import SinkOptions, name_kafka_options
from spark_kafka_sink.spark.report import SinkCommitMessage

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
    attempts = [
        message.transaction
        for message in messages
        if isinstance(message, SinkCommitMessage) and message.transaction is not None
    ]
    commit_version(
        plan,
        version,
        attempts,
        report.rows,
        options.laid_out,
        options.producer,
        options.brokers,
    )
    publish(report, options.report_path)
    say(f"pykafka: committed version {version} of application {name} in one transaction")


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
    if isinstance(plan, CommitRecord):
        return
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


def commit_version(
    plan: Plan,
    version: int,
    attempts: Sequence[AttemptTransaction],
    rows: int,
    laid_out: Mapping[str, int],
    config: ProducerConfig,
    brokers: Sequence[Node],
) -> CommitRecord:
    """Commit the version of a batch job, and return the record of its owner.

    Raise KafkaException if it is not committed, or if that is not known: another run of the same
    version finds out, and writes nothing if it is.
    """
    run = plan.run
    nothing = CommitRecord(RecordState.DONE, run.name, rows=0, written_at=0)
    record = replace(
        (plan.record or nothing).done(),
        run=run.name,
        rows=rows,
        written_at=time.time_ns() // 1_000_000,
    ).after_version(version)
    targets = tuple(
        TopicPartition(topic, number)
        for topic, partitions in sorted(laid_out.items())
        for number in range(partitions)
    )
    with commit_client(config, run.log.topic, brokers) as client:
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
        return outcome.record
    if isinstance(outcome, Undecided):
        message = (
            f"it is not known whether version {version} of {run.owner} is committed: "
            f"{outcome.failure.sentence}; run the job again, which writes it only if it is not"
        )
        raise KafkaException(message) from outcome.failure.exception()
    if isinstance(outcome, Failure):
        raise _explained(outcome, rows)
    message = f"the commit ended with {outcome!r}; this is a bug"
    raise KafkaException(message)


def _explained(failure: Failure, rows: int) -> KafkaException:
    error = failure.exception()
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
    said = outcome.sentence if isinstance(outcome, Failure) else str(outcome)
    return (
        f"the write of {owner} could not be aborted now ({said}); the brokers abort it within "
        f"{plan.run.timeout_ms} ms"
    )
