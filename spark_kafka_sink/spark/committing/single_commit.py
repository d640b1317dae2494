"""The commit and the abort of mode `single`: run the state machines of `commit.single`."""

from __future__ import annotations

from collections.abc import Sequence

from spark_kafka_sink.commit import single
from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan
from spark_kafka_sink.commit.log_record import CommitRecord
from spark_kafka_sink.commit.outcomes import (
    Aborted,
    Committed,
    CommittedBefore,
    Superseded,
    Undecided,
    not_aborted_now,
)
from spark_kafka_sink.commit.questions import LogRead, ReadLog
from spark_kafka_sink.commit.steps import OLD_LEADER_S, Failure
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.commit_clients import commit_client, exception_of, reply_to
from spark_kafka_sink.spark.layout_mark import laid_out_partitions
from spark_kafka_sink.spark.options import SinkOptions

# The bootstrap servers of the clusters whose brokers were found to report duplicates.
_fit: set[str] = set()


def commit_record(
    options: SinkOptions,
    plan: Plan,
    record: CommitRecord,
    attempts: Sequence[AttemptTransaction],
    written: str,
) -> None:
    """Commit the rows of a run together with the new commit log record `record`.

    written: a description of how many rows were written, for error messages. Raise KafkaException
    if the run is not committed, or if this is not known. In the latter case the next run finds out,
    and writes the rows only if they are not committed.
    """
    run, config = plan.run, options.producer
    with commit_client(config, run.log.topic, options.brokers) as client:
        deadline = client.now() + config.delivery_timeout_ms / 1000
        begun = single.begin_commit(
            plan,
            tuple(attempts),
            record,
            level=client.level(deadline),
            targets=laid_out_partitions(options.laid_out),
            probes=config.bootstrap_servers not in _fit,
            deadline=deadline,
            missing_until=client.now() + config.max_block_ms / 1000,
            behind_until=client.now() + OLD_LEADER_S,
        )
        outcome = client.run(begun, single.step).outcome
    if isinstance(outcome, Committed):
        _fit.add(config.bootstrap_servers)
        return
    if isinstance(outcome, Undecided):
        raise outcome.exception(run.owner) from outcome.failure.exception()
    if isinstance(outcome, Failure):
        raise exception_of(outcome, run, config, written)
    message = f"the commit ended with {outcome!r}; this is a bug"
    raise KafkaException(message)


def abort_run(options: SinkOptions, plan: Plan) -> str:
    """Abort the transaction of a failed run. Return a sentence for the user about the result."""
    config = options.producer
    with commit_client(config, plan.run.log.topic, options.brokers) as client:
        deadline = client.now() + config.max_block_ms / 1000
        begun = single.begin_abort(plan, level=client.level(deadline), deadline=deadline)
        outcome = client.run(begun, single.step).outcome
        # After a commit at level 1, the driver asks for a new epoch. So an abort with its old epoch
        # is fenced although no newer run exists.
        found = _record(client, plan) if isinstance(outcome, Superseded) else None
    owner = plan.run.owner
    if isinstance(outcome, Aborted):
        return f"the write of {owner} was aborted: nothing of it is visible"
    if isinstance(outcome, CommittedBefore):
        return f"the write of {owner} failed after its transaction had ended"
    if isinstance(outcome, Superseded) and found is not None and found.run == plan.run.name:
        return f"the write of {owner} failed after its transaction had ended: it IS committed"
    if isinstance(outcome, Superseded) and plan.run.level >= 2:
        return f"the write of {owner} was superseded by a newer run"
    if isinstance(outcome, Superseded):
        return (
            f"the write of {owner} was superseded by a newer run, or timed out; the commit log "
            "says whether its version is written"
        )
    said = outcome.sentence if isinstance(outcome, Failure) else str(outcome)
    return not_aborted_now(plan.run, said)


def _record(client: CommitClient, plan: Plan) -> CommitRecord | None:
    """Return the commit log record of the plan's owner, None if it cannot be read now."""
    found = reply_to(client, ReadLog(plan.run.driver_id))
    return found.reading.record if isinstance(found, LogRead) else None
