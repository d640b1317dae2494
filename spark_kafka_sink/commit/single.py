"""Mode `single`: one transaction for all rows of a job or a micro-batch, ended by one EndTxn.

All tasks write with the driver's producer id and epoch, and each partition is written by one task.
The commit log record of the owner (a txnAppId and its target topic) is written in the same
transaction. So the rows and the record become visible together, or never. There is no recovery,
because an uncommitted transaction is aborted after its timeout or by the next plan.

Each task checks its partitions before its first record (`single_check`). This module contains the
driver's commit and abort. If a check fails, the commit also aborts the transaction, because Spark
does not always call abort().
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit import guards, read_back
from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan
from spark_kafka_sink.commit.log_record import CommitRecord, RecordState
from spark_kafka_sink.commit.outcomes import (
    Aborted,
    Committed,
    CommittedBefore,
    Superseded,
    Undecided,
)
from spark_kafka_sink.commit.questions import (
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_COMMIT,
    Answer,
    Ask,
    Described,
    DescribeProducers,
    DescribeTransaction,
    InitProducerId,
    LogRead,
    MarkerRead,
    ProducersDescribed,
    Question,
    ReadLog,
    ReadMarker,
    WriteRecord,
    Written,
)
from spark_kafka_sink.commit.states import SINGLE, SingleState, moved
from spark_kafka_sink.commit.steps import (
    MARKER_PAUSE_S,
    PAUSE_S,
    STALE_S,
    Failure,
    FailureKind,
    Received,
    Step,
    asking,
    end_txn,
    is_newer,
    received,
    superseded,
)
from spark_kafka_sink.commit.trees import NO_ITEMS, TreeSet
from spark_kafka_sink.commit.verdicts import Verdict
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.records.batch import Marker

# The states of the driver's transaction before anything is written in it.
_NOTHING_OPEN: Final = frozenset((EMPTY, PREPARE_COMMIT, COMPLETE_COMMIT))

_S = SingleState


Outcome: TypeAlias = Committed | Aborted | CommittedBefore | Superseded | Undecided | Failure


@dataclass(frozen=True, slots=True)
class Single:
    """The state of a commit or an abort in mode `single`.

    missing_until, behind_until: see `begin_commit`. record: the record to write into the commit
    log. attempts: what the tasks wrote. by_partition: the same, by partition. It is computed once,
    because each check needs it. targets: all partitions of the target topics. probes: whether the
    record is sent twice, to test that the broker reports duplicates. failure: why a check failed.
    offset: the offset of the written record. asked_again: whether EndTxn was sent again, because
    the first response did not show whether the transaction was committed. wrote_again: whether the
    record was sent again, because there was no response or a retriable error code.
    """

    state: SingleState
    plan: Plan
    level: int
    deadline: float
    record: CommitRecord
    attempts: tuple[AttemptTransaction, ...] = ()
    by_partition: guards.ByPartition = field(default_factory=dict, compare=False, repr=False)
    targets: tuple[TopicPartition, ...] = ()
    probes: bool = False
    waiting: TreeSet[Ask] = NO_ITEMS
    failure: Failure | None = None
    offset: int = -1
    missing_until: float = math.inf
    behind_until: float = -math.inf
    asked_again: bool = False
    wrote_again: bool = False
    outcome: Outcome | None = None


def begin_commit(  # noqa: PLR0913 - three of them are limits of time
    plan: Plan,
    attempts: tuple[AttemptTransaction, ...],
    record: CommitRecord,
    *,
    level: int,
    targets: tuple[TopicPartition, ...],
    probes: bool,
    deadline: float,
    missing_until: float = math.inf,
    behind_until: float = -math.inf,
) -> Step[Single]:
    """Return the state machine that commits, and its first requests to brokers.

    level: the transaction.version that the cluster has finalized now. probes: True for the first
    commit of a process to a cluster. The commit then tests whether the broker reports duplicates,
    because check G4 (see `guards`) relies on it. missing_until: if brokers do not know a partition,
    look it up again until this time, but at most until `deadline`. behind_until: if the leader of a
    partition lacks acknowledged records, repeat the request until this time, because it may be an
    old leader.
    """
    written = tuple(each for each in attempts if each.written)
    machine = Single(
        _S.CHECKING, plan, level, deadline, record, written,
        by_partition=guards.by_partition(written), targets=targets, probes=probes,
        missing_until=missing_until, behind_until=behind_until,
    )  # fmt: skip
    conflict = guards.two_writers(written) or _other_transaction(plan, written)
    if conflict is not None:
        return _abort(machine, conflict)
    covered = machine.by_partition
    # At level 1 all target partitions are part of the transaction. A late writer can be found only
    # if all of them are described.
    described = {*covered, *targets} if plan.run.level < 2 else set(covered)
    asks = [DescribeProducers(each) for each in sorted(described)]
    return asking(machine, DescribeTransaction(plan.run.driver_id), *asks)


def begin_abort(plan: Plan, *, level: int, deadline: float) -> Step[Single]:
    """Return the state machine that aborts, and its first request to a broker."""
    nothing = CommitRecord(RecordState.DONE, plan.run.name, rows=0, written_at=0)
    machine = Single(_S.ABORTING, plan, level, deadline, nothing)
    return asking(machine, _end(machine, commit=False))


def step(machine: Single, answer: Answer, now: float) -> Step[Single]:
    """Return the state machine after a reply, with the next requests to send to brokers."""
    if answer.ask not in machine.waiting:
        return Step(machine)
    at = received(*answer, now)
    until = min(machine.deadline, machine.missing_until) if at.is_missing else machine.deadline
    if machine.state is _S.RENEWING and at.reply.error != codes.CONCURRENT_TRANSACTIONS:
        return _renewed(machine, at)
    if at.asks_again and now < until:
        if isinstance(at.ask, WriteRecord):
            machine = replace(machine, wrote_again=True)
        return Step(machine, (at.again(),))
    return _STEPS[machine.state](machine, at)


# -- before the decision --------------------------------------------------------------------------


def _checked(machine: Single, at: Received) -> Step[Single]:
    may_be_behind = at.now < min(machine.behind_until, machine.deadline)
    if may_be_behind and guards.is_behind(at, machine.by_partition):
        return Step(machine, (Question(at.ask, PAUSE_S, looks_up=True),))
    failure = _check(machine, at)
    if failure is not None:
        return _explain(machine, failure)
    machine = replace(machine, waiting=machine.waiting.without(at.ask))
    return Step(machine) if machine.waiting else _write(machine, _S.WRITING)


def _explain(machine: Single, failure: Failure) -> Step[Single]:
    """Abort after a check has failed.

    If rows or the log record are missing, or if the transaction has ended, first find out whether a
    newer run is the reason.
    """
    if failure.kind not in (FailureKind.LOST, FailureKind.TIMED_OUT):
        return _abort(machine, failure)
    machine = replace(_moved(machine, _S.EXPLAINING), failure=failure)
    return asking(machine, DescribeTransaction(machine.plan.run.driver_id))


def _explained(machine: Single, at: Received) -> Step[Single]:
    reply, failure = at.reply, machine.failure
    is_known = at.found is Verdict.DONE and isinstance(reply, Described)
    if is_known and isinstance(reply, Described) and reply.producer != machine.plan.producer:
        failure = _check_transaction(machine, reply, frozenset())
    return _abort(machine, failure or _timed_out(machine.plan))


def _check(machine: Single, at: Received) -> Failure | None:
    reply, plan = at.reply, machine.plan
    covered = machine.by_partition
    if isinstance(at.ask, DescribeProducers) and isinstance(reply, ProducersDescribed):
        partition = at.ask.partition
        if at.is_missing:
            if partition not in covered:
                return None
            sentence = f"{partition} was deleted after rows were written to it"
            return Failure(FailureKind.LOST, sentence, reply.error)
        if at.found is Verdict.DONE:
            found = guards.by_producer(reply.producers).get(plan.producer)
            # No other task has written to the partition (G1).
            written = next((each for _, each in covered.get(partition, ())), None)
            return guards.other_holdings(partition, written, found)
    if isinstance(reply, Described) and at.found is Verdict.DONE:
        return _check_transaction(machine, reply, frozenset(covered))
    return at.failure(f"the transaction of {plan.run.owner} could not be checked")


def _check_transaction(
    machine: Single, described: Described, covered: frozenset[TopicPartition]
) -> Failure | None:
    plan = machine.plan
    if described.producer != plan.producer:
        newer = is_newer(described, plan)
        return superseded(plan.run.owner) if newer else _timed_out(plan)
    # At level 2, if the plan has written the record DONE and nothing was written after it, the
    # response describes the transaction of DONE. This one has ended, but its markers may not be
    # written yet.
    is_nothing = described.state in _NOTHING_OPEN and not covered and plan.run.level >= 2
    if described.state != ONGOING and not is_nothing:
        return _timed_out(plan)
    others = described.partitions - covered - {plan.run.log}
    if plan.run.level >= 2 and (others or covered - described.partitions):
        one = min(others or covered - described.partitions)
        sentence = f"{one} is in the transaction or in a task's report, but not in both"
        return Failure(FailureKind.CONFLICT, sentence)
    return None


def _other_transaction(plan: Plan, attempts: tuple[AttemptTransaction, ...]) -> Failure | None:
    if all(each.producer == plan.producer for each in attempts):
        return None
    sentence = f"a task of {plan.run.owner} wrote in the transaction of another run"
    return Failure(FailureKind.CONFLICT, sentence)


def _timed_out(plan: Plan) -> Failure:
    sentence = (
        f"the transaction of {plan.run.owner} was aborted by the brokers after "
        f"{plan.run.timeout_ms} ms"
    )
    return Failure(FailureKind.TIMED_OUT, sentence)


def _write(machine: Single, state: SingleState) -> Step[Single]:
    plan, record = machine.plan, machine.record
    is_second = state is _S.PROBING
    ask = WriteRecord(plan.run.driver_id, plan.producer, 0, record, plan.run.level, again=is_second)
    return asking(_moved(machine, state), ask)


def _written(machine: Single, at: Received) -> Step[Single]:
    if at.found is not Verdict.DONE:
        return _abort(machine, _not_written(machine, at))
    if isinstance(at.reply, Written):
        if at.reply.is_duplicate and not machine.wrote_again:
            return _abort(machine, _flagged(machine.plan))
        machine = replace(machine, offset=at.reply.offset)
    return _write(machine, _S.PROBING) if machine.probes else _look(machine)


def _probed(machine: Single, at: Received) -> Step[Single]:
    if at.found is not Verdict.DONE:
        return _abort(machine, _not_written(machine, at))
    if isinstance(at.reply, Written) and not at.reply.is_duplicate:
        sentence = (
            "the commit log record was sent twice as a test, and the broker's response does not "
            "mark the second batch as a duplicate, so mode single could lose rows without an "
            "error: use exactlyOnce=two-phase"
        )
        return _abort(machine, Failure(FailureKind.NOT_FIT, sentence))
    return _look(machine)


def _flagged(plan: Plan) -> Failure:
    """Return the failure for a record that was sent once, but is reported as a duplicate."""
    sentence = (
        f"the broker reports the commit log record of {plan.run.owner} as a duplicate, though it "
        f"was sent once: topic {plan.run.log.topic} may have "
        "message.timestamp.type=LogAppendTime, where mode single could lose rows without an "
        "error: set CreateTime, or use exactlyOnce=two-phase"
    )
    return Failure(FailureKind.NOT_FIT, sentence)


def _not_written(machine: Single, at: Received) -> Failure:
    owner = machine.plan.run.owner
    if at.found is Verdict.FENCED:
        return superseded(owner)
    return at.failure(f"the commit log record of {owner} could not be written")


def _look(machine: Single) -> Step[Single]:
    return asking(_moved(machine, _S.LOOKING), ReadLog(machine.plan.run.driver_id))


def _looked(machine: Single, at: Received) -> Step[Single]:
    plan = machine.plan
    again = read_back.again(at, machine.offset, machine.deadline)
    if again:
        return Step(machine, again)
    failure = read_back.check(at, plan.run.owner, plan.run.name, machine.offset, plan.record)
    return _decide(machine) if failure is None else _explain(machine, failure)


# -- the decision ---------------------------------------------------------------------------------


def _decide(machine: Single) -> Step[Single]:
    return asking(_moved(machine, _S.DECIDING), _end(machine, commit=True))


def _decided(machine: Single, at: Received) -> Step[Single]:
    if at.found is Verdict.DONE:
        return _done(machine) if machine.level >= 2 else _renew(machine)
    if at.asks_again:
        return _over(machine, _S.UNDECIDED, Undecided(_not_ended(machine, at)))
    if machine.failure is None:
        machine = replace(machine, failure=_why_not(machine, at))
    return asking(_moved(machine, _S.READING), ReadLog(machine.plan.run.driver_id))


def _found(machine: Single, at: Received) -> Step[Single]:
    return _marker_read(machine, at) if isinstance(at.ask, ReadMarker) else _read(machine, at)


def _marker_read(machine: Single, at: Received) -> Step[Single]:
    """Find out from the transaction's marker in the commit log whether it was committed."""
    marker = at.reply.marker if isinstance(at.reply, MarkerRead) else None
    failure = machine.failure or _timed_out(machine.plan)
    if marker is Marker.COMMIT:
        return _done(machine)
    if marker is Marker.ABORT:
        return _over(machine, _S.FAILED, failure)
    if at.now >= machine.deadline or at.found is Verdict.FATAL:
        return _over(machine, _S.UNDECIDED, Undecided(failure))
    return asking(machine, at.ask, pause_s=MARKER_PAUSE_S, looks_up=True)


def _read(machine: Single, at: Received) -> Step[Single]:
    again = read_back.again(at, machine.offset, machine.deadline)
    if again:
        return Step(machine, again)
    if not isinstance(at.reply, LogRead) or at.found is not Verdict.DONE:
        failure = at.failure(f"the commit log record of {machine.plan.run.owner} could not be read")
        return _over(machine, _S.UNDECIDED, Undecided(failure))
    reading, run = at.reply.reading, machine.plan.run.name
    if reading.record is not None and reading.record.run == run:
        return _done(machine)
    is_pending = reading.undecided is not None and reading.undecided.run == run
    failure = machine.failure or _timed_out(machine.plan)
    if at.now >= machine.deadline and is_pending:
        return _over(machine, _S.UNDECIDED, Undecided(failure))
    if machine.asked_again and not is_pending:
        # A newer run may have written its record after this run's record. Then only the marker of
        # the transaction shows whether this run's record is committed.
        plan = machine.plan
        ask = ReadMarker(plan.run.log, machine.offset, plan.producer, machine.deadline)
        return asking(replace(machine, failure=failure), ask)
    machine = replace(_moved(machine, _S.ASKING_AGAIN), asked_again=True)
    pause_s = MARKER_PAUSE_S if is_pending else STALE_S
    return asking(machine, _end(machine, commit=True), pause_s=pause_s, looks_up=True)


def _renew(machine: Single) -> Step[Single]:
    """Request the next epoch, so that brokers refuse late requests with the current epoch.

    EndTxn 4 does not raise the epoch itself. A newer run may begin at any time, and should not be
    fenced. So the request has the current epoch, and it is sent again only if the coordinator still
    writes markers. In Kafka 3, a coordinator does not compare the epoch if a transaction is open:
    then a run that has begun since the last request, 20 ms ago, is fenced.
    """
    run = machine.plan.run
    ask = InitProducerId(run.driver_id, run.timeout_ms, machine.plan.producer)
    return asking(_moved(machine, _S.RENEWING), ask)


def _renewed(machine: Single, _: Received) -> Step[Single]:
    return _done(machine)  # it is committed in any case


def _done(machine: Single) -> Step[Single]:
    return _over(machine, _S.DONE, Committed(machine.record))


def _why_not(machine: Single, at: Received) -> Failure:
    if at.found is Verdict.FATAL:
        return _not_ended(machine, at)
    is_fenced = at.reply.error == codes.PRODUCER_FENCED
    return superseded(machine.plan.run.owner) if is_fenced else _timed_out(machine.plan)


def _not_ended(machine: Single, at: Received) -> Failure:
    return at.failure(f"the transaction of {machine.plan.run.owner} could not be committed")


# -- the abort ------------------------------------------------------------------------------------


def _abort(machine: Single, failure: Failure) -> Step[Single]:
    machine = replace(_moved(machine, _S.ABORTING), failure=failure)
    return asking(machine, _end(machine, commit=False))


def _aborted(machine: Single, at: Received) -> Step[Single]:
    was_committed = at.found in (Verdict.COMMITTED, Verdict.COMMITTED_OR_EMPTY)
    if machine.failure is not None:
        return _over(machine, _S.FAILED, machine.failure)
    if was_committed:
        return _over(machine, _S.DONE, CommittedBefore())
    if at.found in (Verdict.FENCED, Verdict.FENCED_OR_ABORTED):
        return _over(machine, _S.SUPERSEDED, Superseded())
    if at.found is Verdict.DONE:
        return _over(machine, _S.ABORTED, Aborted())
    failure = at.failure(f"the transaction of {machine.plan.run.owner} could not be aborted")
    return _over(machine, _S.FAILED, failure)


_STEPS: Final = {
    _S.CHECKING: _checked,
    _S.EXPLAINING: _explained,
    _S.WRITING: _written,
    _S.PROBING: _probed,
    _S.LOOKING: _looked,
    _S.DECIDING: _decided,
    _S.READING: _found,
    _S.ASKING_AGAIN: _decided,
    _S.RENEWING: _renewed,
    _S.ABORTING: _aborted,
}


def _end(machine: Single, *, commit: bool) -> Ask:
    plan = machine.plan
    return end_txn(plan.run.driver_id, plan.producer, machine.level, commit=commit)


def _moved(machine: Single, state: SingleState) -> Single:
    return replace(machine, state=moved(SINGLE, machine.state, state), waiting=NO_ITEMS)


def _over(machine: Single, state: SingleState, outcome: Outcome) -> Step[Single]:
    return Step(replace(_moved(machine, state), outcome=outcome))
