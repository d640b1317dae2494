"""The commit and the abort of mode `single`: run the state machines of `commit.single`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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
from spark_kafka_sink.errors import KafkaException, Option
from spark_kafka_sink.spark.commit_clients import (
    commit_client,
    exception_of,
    has_newer_run,
    reply_to,
)
from spark_kafka_sink.spark.committing.job_commit import AbortResult
from spark_kafka_sink.spark.layout_mark import laid_out_partitions
from spark_kafka_sink.spark.options import SinkOptions

# The bootstrap servers of clusters whose brokers report duplicates, as a probe has found. They are
# not probed again.
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
    if the run is not committed, or if this is not known. If it is not known, the next run finds
    out, and writes the rows only if they are not committed.
    """
    run, config = plan.run, options.producer
    with commit_client(config, run.log.topic, options.brokers) as client:
        deadline = client.now() + config.delivery_timeout_ms / 1000
        begun = single.begin_commit(
            plan,
            tuple(attempts),
            record,
            level=client.level(deadline, Option("delivery.timeout.ms", config.delivery_timeout_ms)),
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
        raise exception_of(outcome, run, client.acls, written)
    message = f"the commit ended with {outcome!r}; this is a bug"
    raise KafkaException(message)


def end_unused(options: SinkOptions, plan: Plan) -> str | None:
    """Abort the transaction of a run that has written nothing.

    Return a sentence for the user if the transaction may still be open, else None.
    """
    with commit_client(options.producer, plan.run.log.topic, options.brokers) as client:
        deadline = client.now() + options.producer.max_block_ms / 1000
        begun = single.begin_abort(plan, level=client.level(deadline), deadline=deadline)
        outcome = client.run(begun, single.step).outcome
    if isinstance(outcome, Failure):
        return not_aborted_now(plan.run, outcome.sentence)
    return None


def abort_run(options: SinkOptions, plan: Plan) -> AbortResult:
    """Abort the transaction of a failed run, and return the result."""
    try:
        return _abort_run(options, plan)
    except KafkaException as error:
        return AbortResult(not_aborted_now(plan.run, error) + _IF_COMMITTED)


def _abort_run(options: SinkOptions, plan: Plan) -> AbortResult:
    config, owner = options.producer, plan.run.owner
    with commit_client(config, plan.run.log.topic, options.brokers) as client:
        deadline = client.now() + config.max_block_ms / 1000
        level = client.level(deadline)
        begun = single.begin_abort(plan, level=level, deadline=deadline)
        outcome = client.run(begun, single.step).outcome
        if isinstance(outcome, CommittedBefore | Superseded):
            is_committed = _is_committed(client, plan)
            # At level 1, the driver requests a new epoch after the commit, which fences an abort.
            if is_committed or isinstance(outcome, CommittedBefore):
                end = ": it IS committed" if is_committed else _NOT_KNOWN
                line = f"the write of {owner} failed after its transaction had ended{end}"
                return AbortResult(line, is_committed=bool(is_committed))
            why = _why_fenced(client, plan, level, is_known=is_committed is not None)
            return AbortResult(f"the write of {owner} {why}")
    if isinstance(outcome, Aborted):
        return AbortResult(f"the write of {owner} was aborted: no row is visible")
    said = outcome.sentence if isinstance(outcome, Failure) else str(outcome)
    return AbortResult(not_aborted_now(plan.run, said) + _IF_COMMITTED)


_NOT_KNOWN: Final = "; the next run finds out whether it is committed"
# The commit of the run may have been sent before, without a response.
_IF_COMMITTED: Final = "; if its commit had begun, the next run finds out whether it is committed"


def _why_fenced(client: CommitClient, plan: Plan, level: int, *, is_known: bool) -> str:
    """Return why brokers refused the abort of a plan's run, and whether its rows are visible.

    is_known: whether it is known that the run is not committed.
    """
    is_newer = has_newer_run(client, plan)
    if is_newer:
        return "was superseded by a newer run"
    timed_out = f"the brokers aborted it after {plan.run.timeout_ms} ms"
    # At level 2, a newer run that has just aborted the transaction looks like a timeout.
    if is_newer is None or not is_known or level >= 2:
        return f"was superseded by a newer run, or {timed_out}{_NOT_KNOWN}"
    return f"timed out: {timed_out}, and no row is visible"


def _is_committed(client: CommitClient, plan: Plan) -> bool | None:
    """Return whether the run of a plan is committed, or None if that cannot be found out.

    The run is committed if it wrote the owner's newest committed record in the commit log.
    """
    found = reply_to(client, ReadLog(plan.run.driver_id))
    if not isinstance(found, LogRead) or found.error:
        return None
    record = found.reading.record
    return record is not None and record.run == plan.run.name
