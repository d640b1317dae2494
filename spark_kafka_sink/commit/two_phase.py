"""Mode `two-phase`: the driver records the decision to commit, then commits all transactions.

A task takes a free transactional id (`two_phase_claim`), writes its records, and leaves its
transaction open. This module contains the commit of the driver:

  C2  Check the transactions of all tasks.
  C3  Write a record in state DECIDED to the commit log, in the driver's own transaction. Check the
      tasks' transactions again, and commit the driver's transaction. Now the run is "decided".
  C4  Commit the tasks' transactions.
  C5  Find out whether each of them was committed or aborted.
  C6  Write the record in state DONE. If this succeeds, no newer driver has fenced this one. Only
      in this case, abort the transactions that other attempts of the tasks left open. Before
      DONE, list them. If a broker does not respond to such a request, do not wait for it: all rows
      are visible. The owner's next plan or `recover --abort` ends these transactions, or brokers
      abort them when they time out.

Before the run is decided, no row is visible. After that, the transactions can only be committed: by
this process, the owner's next plan, or `recover`. An owner is a txnAppId and its target topic.

If a driver cannot commit, it aborts the transactions (`two_phase_abort`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit import guards, read_back, resolve
from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan
from spark_kafka_sink.commit.leftovers import Leftovers, aborts, own_tasks, with_open
from spark_kafka_sink.commit.log_record import (
    CommitRecord,
    DecidedTransaction,
    RecordState,
)
from spark_kafka_sink.commit.names import TaskSlot
from spark_kafka_sink.commit.outcomes import Committed, Torn, Undecided, Unfinished
from spark_kafka_sink.commit.questions import (
    ONGOING,
    AddPartitions,
    Answer,
    Ask,
    Described,
    DescribeProducers,
    DescribeTransaction,
    Ended,
    Listed,
    ListTransactions,
    LogRead,
    MarkerRead,
    ProducersDescribed,
    Question,
    ReadLog,
    ReadMarker,
    Unanswered,
    WriteRecord,
    Written,
)
from spark_kafka_sink.commit.resolve import NO_RESOLVINGS, Resolvings
from spark_kafka_sink.commit.states import COMMIT, CommitState, ResolveState, moved
from spark_kafka_sink.commit.steps import (
    JITTER,
    MARKER_PAUSE_S,
    PAUSE_S,
    STALE_S,
    Failure,
    FailureKind,
    Received,
    Step,
    asking,
    asks_of,
    end_txn,
    is_newer,
    received,
    superseded,
)
from spark_kafka_sink.commit.trees import NO_ITEMS, TreeSet
from spark_kafka_sink.commit.verdicts import Verdict
from spark_kafka_sink.model import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.records.batch import Marker

_MARGIN_SHARE: Final = 0.2
_MAX_MARGIN_MS: Final = 60_000
_SHARE_AFTER_DECISION: Final = 0.5
# The time for each commit of a transaction after the decision. A coordinator replicates each commit
# before it answers. In bench/studies/commits.py, on one broker without replicas, the commit of a
# job takes 1 ms for each task.
_COMMIT_MS: Final = 5

_S = CommitState
# In these states, all rows are visible, and a request is not sent again if it gets no response.
_FINDS_LEFTOVERS: Final = frozenset((_S.LISTING, _S.DESCRIBING, _S.CLEANING))
Outcome: TypeAlias = Committed | Torn | Unfinished | Undecided | Failure


@dataclass(frozen=True, slots=True)
class Committing:
    """The state of a commit.

    record: the record in state DECIDED with the attempts' transactions; in state DONE if no attempt
    wrote records. by_slot: the attempts by their slots. by_partition: what they wrote, by
    partition. next_producer: the driver's producer id and epoch after the run is decided. ends: the
    state machines that commit the attempts' transactions. leftovers: open transactions of other
    attempts. offset: the offset of the record in the log. asked_again: whether EndTxn was sent
    again, because the first response did not show whether the driver's transaction was committed.
    failure: the meaning of that first response, or why a check failed.

    ends_at: when the first of the attempts' transactions times out. begun_at: when the driver's
    transaction began. These two are by the brokers' clock, and all other times by the client's.
    asked_at: when the last check ended, before the first request of the driver's transaction.
    decides_by: the last time at which EndTxn may be sent for the driver's transaction.
    missing_until, behind_until: see `begin`.
    """

    state: CommitState
    plan: Plan
    level: int
    deadline: float
    record: CommitRecord
    attempts: tuple[AttemptTransaction, ...] = ()
    by_slot: Mapping[TaskSlot | None, AttemptTransaction] = field(
        default_factory=dict, compare=False, repr=False
    )
    by_partition: guards.ByPartition = field(default_factory=dict, compare=False, repr=False)
    waiting: TreeSet[Ask] = NO_ITEMS
    ends_at: int | None = None
    begun_at: int | None = None
    asked_at: float = 0.0
    decides_by: float = 0.0
    next_producer: ProducerIdAndEpoch = NO_PRODUCER_ID
    ends: Resolvings = NO_RESOLVINGS
    leftovers: Leftovers = NO_ITEMS
    offset: int = -1
    missing_until: float = math.inf
    behind_until: float = -math.inf
    asked_again: bool = False
    failure: Failure | None = None
    outcome: Outcome | None = None


def begin(
    plan: Plan,
    attempts: tuple[AttemptTransaction, ...],
    record: CommitRecord,
    *,
    level: int,
    deadline: float,
    missing_until: float = math.inf,
    behind_until: float = -math.inf,
) -> Step[Committing]:
    """Return the state machine that commits, and its first requests to brokers.

    record: the owner's next record, as it is after the commit (state DONE). level: the
    transaction.version that the cluster has finalized now. missing_until: if brokers do not know a
    partition, look it up again until this time, but at most until `deadline`. behind_until: if the
    leader of a partition lacks acknowledged records, repeat the request until this time, because it
    may be an old leader.
    """
    written = tuple(each for each in attempts if each.written)
    if not written:
        machine = Committing(_S.CHECKING, plan, level, deadline, record.done())
        return _add(machine, _S.ADDING, _S.WRITING)
    decided = replace(
        record, state=RecordState.DECIDED, transactions=tuple(map(_decided_one, written))
    )
    machine = Committing(
        _S.CHECKING, plan, level, deadline, decided, written,
        by_slot={each.slot: each for each in written},
        by_partition=guards.by_partition(written),
        missing_until=missing_until, behind_until=behind_until,
    )  # fmt: skip
    looks = [DescribeTransaction(each) for each in _ids(machine)]
    return asking(machine, *looks, *map(DescribeProducers, sorted(machine.by_partition)))


def begin_forward(
    plan: Plan, record: CommitRecord, *, level: int, deadline: float
) -> Step[Committing]:
    """Return the state machine that completes a commit whose record DECIDED is in the log."""
    ours = plan.producer
    raised = ProducerIdAndEpoch(ours.producer_id, ours.epoch + 1) if level >= 2 else ours
    machine = Committing(_S.DECIDING, plan, level, deadline, record, next_producer=raised)
    return _forward(machine)


def step(machine: Committing, answer: Answer, now: float) -> Step[Committing]:
    """Return the state machine after a reply, with the next requests to send to brokers."""
    if answer.ask not in machine.waiting:
        return Step(machine)
    if machine.state is _S.ENDING:
        ends, waiting, questions = resolve.step_all(machine.ends, machine.waiting, answer, now)
        machine = replace(machine, ends=ends, waiting=waiting)
        return Step(machine, questions) if machine.waiting else _ended_all(machine)
    at = received(*answer, now)
    decides = machine.state in (_S.DECIDING, _S.ASKING_AGAIN)
    until = machine.decides_by if decides else machine.deadline
    if at.is_missing:
        until = min(until, machine.missing_until)
    if machine.state in _FINDS_LEFTOVERS and isinstance(at.reply, Unanswered):
        until = now
    if at.asks_again and now < until:
        return Step(machine, (at.again(),))
    return _STEPS[machine.state](machine, at)


def _checked(machine: Committing, at: Received) -> Step[Committing]:
    if at.now < min(machine.behind_until, machine.deadline) and guards.is_behind(
        at, machine.by_partition
    ):
        return Step(machine, (Question(at.ask, PAUSE_S, looks_up=True),))
    failure = _check(machine, at)
    if failure is not None:
        return _explain(machine, failure)
    machine = replace(machine, waiting=machine.waiting.without(at.ask), asked_at=at.now)
    return Step(machine) if machine.waiting else _add(machine, _S.ADDING, _S.WRITING)


def _explain(machine: Committing, failure: Failure) -> Step[Committing]:
    """Fail. If a transaction has ended or lacks records, first check if a newer run caused this."""
    if failure.kind not in (FailureKind.TIMED_OUT, FailureKind.LOST):
        return _over(machine, _S.FAILED, failure)
    machine = replace(_moved(machine, _S.EXPLAINING), failure=failure)
    return asking(machine, DescribeTransaction(machine.plan.run.driver_id))


def _explained(machine: Committing, at: Received) -> Step[Committing]:
    plan, reply = machine.plan, at.reply
    is_known = at.found is Verdict.DONE and isinstance(reply, Described)
    newer = is_known and isinstance(reply, Described) and is_newer(reply, plan)
    failure = None if newer else machine.failure
    return _over(machine, _S.FAILED, failure or superseded(plan.run.owner))


def _check(machine: Committing, at: Received) -> Failure | None:
    """Return a failure if a transaction is not as its attempt left it (C2), else None."""
    ask, reply = at.ask, at.reply
    if isinstance(ask, DescribeTransaction) and isinstance(reply, Described):
        attempt = _attempt(machine, ask)
        if attempt is not None and at.found in (Verdict.DONE, Verdict.NOT_FOUND):
            return _not_open(machine, ask, reply, attempt.producer)
    if isinstance(ask, DescribeProducers) and isinstance(reply, ProducersDescribed):
        if at.is_missing:
            sentence = f"{ask.partition} was deleted after rows were written to it"
            return Failure(FailureKind.LOST, sentence, reply.error)
        if at.found is Verdict.DONE:
            return _not_held(machine, ask, reply)
    return at.failure(f"the transactions of {machine.plan.run.owner} could not be checked")


def _not_held(
    machine: Committing, ask: DescribeProducers, reply: ProducersDescribed
) -> Failure | None:
    producers = guards.by_producer(reply.producers)
    for producer, written in machine.by_partition[ask.partition]:
        failure = guards.other_holdings(ask.partition, written, producers.get(producer))
        if failure is not None:
            return failure
    return None


def _not_open(
    machine: Committing, ask: DescribeTransaction, reply: Described, producer: ProducerIdAndEpoch
) -> Failure | None:
    if reply.state == ONGOING and reply.producer == producer:
        return None
    run = machine.plan.run
    sentence = (
        f"the transaction of {ask.transactional_id} is no longer open: it was aborted by a newer "
        f"run, or by the brokers after {run.timeout_ms} ms"
    )
    return Failure(FailureKind.TIMED_OUT, sentence)


def _add(machine: Committing, adding: CommitState, writing: CommitState) -> Step[Committing]:
    """Write the record. With transaction.version 1, first add the log to the transaction."""
    if machine.level >= 2:
        return _write(machine, writing)
    run = machine.plan.run
    ask = AddPartitions(run.driver_id, _driver(machine), (run.log,))
    return asking(_moved(machine, adding), ask)


def _added(machine: Committing, at: Received) -> Step[Committing]:
    if at.found is not Verdict.DONE:
        return _over(machine, _S.FAILED, _not_written(machine, at))
    return _write(machine, _S.WRITING)


def _write(machine: Committing, writing: CommitState) -> Step[Committing]:
    run, producer = machine.plan.run, _driver(machine)
    is_first = producer != machine.plan.producer or writing is _S.WRITING
    record = machine.record if writing is _S.WRITING else machine.record.done()
    ask = WriteRecord(run.driver_id, producer, 0 if is_first else 1, record, machine.level)
    return asking(_moved(machine, writing), ask)


def _driver(machine: Committing) -> ProducerIdAndEpoch:
    """Return the driver's producer id and epoch for its next request.

    They are in the plan before the run is decided, and in `next_producer` afterwards.
    """
    return machine.next_producer if machine.next_producer.is_valid else machine.plan.producer


def _written(machine: Committing, at: Received) -> Step[Committing]:
    if at.found is not Verdict.DONE:
        return _over(machine, _S.FAILED, _not_written(machine, at))
    if isinstance(at.reply, Written):
        machine = replace(machine, offset=at.reply.offset)
    driver = machine.plan.run.driver_id
    ids = (driver, *_ids(machine)) if machine.attempts else ()
    return asking(_moved(machine, _S.LOOKING), ReadLog(driver), *map(DescribeTransaction, ids))


def _not_written(machine: Committing, at: Received) -> Failure:
    owner = machine.plan.run.owner
    if at.found is Verdict.FENCED:
        return superseded(owner)
    return at.failure(f"the commit log record of {owner} could not be written")


def _looked_again(machine: Committing, at: Received) -> Step[Committing]:
    plan = machine.plan
    if isinstance(at.ask, ReadLog):
        again = read_back.again(at, machine.offset, machine.deadline)
        if again:
            return Step(machine, again)
        failure = read_back.check(at, plan.run.owner, plan.run.name, machine.offset, plan.record)
    else:
        failure, machine = _look_again(machine, at)
    if failure is not None:
        return _explain(machine, failure)
    machine = replace(machine, waiting=machine.waiting.without(at.ask))
    if machine.waiting:
        return Step(machine)
    return _decide_in_time(machine, at.now)


def _decide_in_time(machine: Committing, now: float) -> Step[Committing]:
    """Commit the driver's transaction, unless an attempt's transaction times out too soon.

    The time left until the first timeout is computed without comparing two clocks. By the brokers'
    clock, the driver's transaction began ends_at - begun_at before that timeout. By the client's
    clock, it began after `asked_at`, so at most now - asked_at of this time has passed. A margin
    has to remain: half of it for retries of EndTxn, and half for the commits that follow. If there
    are so many transactions that their commits may take longer than this half, more has to remain.
    """
    if machine.ends_at is None or machine.begun_at is None:
        return _decide(replace(machine, decides_by=machine.deadline))
    margin_ms = min(machine.plan.run.timeout_ms * _MARGIN_SHARE, _MAX_MARGIN_MS)
    half_ms = margin_ms * _SHARE_AFTER_DECISION
    commits_ms = max(half_ms, len(machine.attempts) * _COMMIT_MS)
    left_ms = machine.ends_at - machine.begun_at - round((now - machine.asked_at) * 1000)
    needed_ms = round(margin_ms - half_ms + commits_ms)
    if left_ms < needed_ms:
        return _over(machine, _S.FAILED, _too_late(machine, left_ms, needed_ms))
    latest = now + (left_ms - commits_ms) / 1000
    return _decide(replace(machine, decides_by=min(latest, machine.deadline)))


def _look_again(machine: Committing, at: Received) -> tuple[Failure | None, Committing]:
    """Check again that a transaction is open (C3). Store its time as `begun_at` or `ends_at`."""
    ask, reply, run = at.ask, at.reply, machine.plan.run
    is_known = at.found in (Verdict.DONE, Verdict.NOT_FOUND)
    if not isinstance(ask, DescribeTransaction) or not isinstance(reply, Described) or not is_known:
        return at.failure(f"the transactions of {run.owner} could not be checked"), machine
    attempt = _attempt(machine, ask)
    if attempt is None:
        failure = _not_open(machine, ask, reply, machine.plan.producer)
        return failure, replace(machine, begun_at=reply.start_ms)
    ends_at = reply.start_ms + reply.timeout_ms
    if machine.ends_at is not None:
        ends_at = min(ends_at, machine.ends_at)
    return _not_open(machine, ask, reply, attempt.producer), replace(machine, ends_at=ends_at)


def _too_late(machine: Committing, left_ms: int, needed_ms: int) -> Failure:
    timeout_ms = machine.plan.run.timeout_ms
    sentence = (
        f"the job took {timeout_ms - left_ms} ms from its first row on, and its transactions time "
        f"out after {timeout_ms} ms; {needed_ms} ms of this time are for the commit"
    )
    return Failure(FailureKind.TIMED_OUT, sentence)


def _decide(machine: Committing) -> Step[Committing]:
    return asking(_moved(machine, _S.DECIDING), _end_driver(machine))


def _end_driver(machine: Committing) -> Ask:
    plan = machine.plan
    ask = end_txn(plan.run.driver_id, plan.producer, machine.level, commit=True)
    return replace(ask, send_by=machine.decides_by)


def _decided(machine: Committing, at: Received) -> Step[Committing]:
    if at.found is Verdict.DONE:
        raised = at.reply.producer if isinstance(at.reply, Ended) else NO_PRODUCER_ID
        producer = raised if raised.is_valid else machine.plan.producer
        return _forward(replace(machine, next_producer=producer))
    if at.asks_again:
        return _over(machine, _S.UNDECIDED, Undecided(_not_ended(machine, at)))
    if machine.failure is None:
        machine = replace(machine, failure=_why_not(machine, at))
    return asking(_moved(machine, _S.READING), ReadLog(machine.plan.run.driver_id))


def _found(machine: Committing, at: Received) -> Step[Committing]:
    return _marker_read(machine, at) if isinstance(at.ask, ReadMarker) else _read(machine, at)


def _marker_read(machine: Committing, at: Received) -> Step[Committing]:
    """Find out from the marker of the driver's transaction whether the run is decided."""
    marker = at.reply.marker if isinstance(at.reply, MarkerRead) else None
    failure = machine.failure or superseded(machine.plan.run.owner)
    if marker is Marker.COMMIT:
        return _forward(replace(machine, next_producer=machine.plan.producer))
    if marker is Marker.ABORT:
        return _over(machine, _S.FAILED, failure)
    if at.now >= machine.deadline or at.found is Verdict.FATAL:
        return _over(machine, _S.UNDECIDED, Undecided(failure))
    return asking(machine, at.ask, pause_s=MARKER_PAUSE_S, looks_up=True)


def _read(machine: Committing, at: Received) -> Step[Committing]:
    run = machine.plan.run
    again = read_back.again(at, machine.offset, machine.deadline)
    if again:
        return Step(machine, again)
    if not isinstance(at.reply, LogRead) or at.found is not Verdict.DONE:
        failure = at.failure(f"the commit log record of {run.owner} could not be read")
        return _over(machine, _S.UNDECIDED, Undecided(failure))
    reading = at.reply.reading
    if reading.record is not None and reading.record.run == run.name:
        # If a newer run has fenced the driver's id, that run writes DONE, and this process cannot.
        return _forward(replace(machine, next_producer=machine.plan.producer))
    is_pending = reading.undecided is not None and reading.undecided.run == run.name
    failure = machine.failure or superseded(run.owner)
    pause_s = MARKER_PAUSE_S if is_pending else STALE_S
    is_too_late = at.now + JITTER * pause_s >= machine.decides_by
    if is_too_late and is_pending:
        return _over(machine, _S.UNDECIDED, Undecided(failure))
    if (machine.asked_again or is_too_late) and not is_pending:
        # A newer run may have written its record after this run's record. Then only the marker of
        # the driver's transaction shows whether this run's record is committed.
        ask = ReadMarker(run.log, machine.offset, machine.plan.producer, machine.deadline)
        return asking(replace(machine, failure=failure), ask)
    machine = replace(_moved(machine, _S.ASKING_AGAIN), asked_again=True)
    return asking(machine, _end_driver(machine), pause_s=pause_s, looks_up=True)


def _why_not(machine: Committing, at: Received) -> Failure:
    if at.reply.error == codes.PRODUCER_FENCED:
        return superseded(machine.plan.run.owner)
    return _not_ended(machine, at)


def _not_ended(machine: Committing, at: Received) -> Failure:
    return at.failure(f"the commit log record of {machine.plan.run.owner} could not be committed")


# -- after the decision ---------------------------------------------------------------------------


def _forward(machine: Committing) -> Step[Committing]:
    record = machine.record
    if not record.transactions:
        return _over(machine, _S.DONE, Committed(record))
    ends, questions = resolve.begin_all(
        machine.plan.run.owner, record.transactions, level=machine.level, deadline=machine.deadline
    )
    machine = replace(_moved(machine, _S.ENDING), ends=ends, waiting=asks_of(questions))
    return Step(machine, questions)


def _ended_all(machine: Committing) -> Step[Committing]:
    record = machine.record
    if any(each.state is ResolveState.ABORTED for each in machine.ends.machines):
        lost = resolve.lost(machine.ends.machines, record.transactions)
        torn = Torn(record, lost, resolve.unknown(machine.ends.machines))
        return _over(machine, _S.TORN, torn)
    failures = (each.failure for each in machine.ends.machines)
    unknown = next((each for each in failures if each is not None), None)
    if unknown is not None:
        return _over(machine, _S.UNFINISHED, Unfinished(record, unknown))
    return asking(_moved(machine, _S.LISTING), ListTransactions(f"{machine.plan.run.driver_id}/"))


def _listed(machine: Committing, at: Received) -> Step[Committing]:
    listed = at.reply.transactions if isinstance(at.reply, Listed) else frozenset()
    own = own_tasks(machine.plan.run.owner, listed)
    if not own:
        return _add(machine, _S.ADDING_DONE, _S.WRITING_DONE)
    return asking(_moved(machine, _S.DESCRIBING), *map(DescribeTransaction, own))


def _described(machine: Committing, at: Received) -> Step[Committing]:
    leftovers = with_open(machine.leftovers, at)
    machine = replace(machine, waiting=machine.waiting.without(at.ask), leftovers=leftovers)
    return Step(machine) if machine.waiting else _add(machine, _S.ADDING_DONE, _S.WRITING_DONE)


def _added_done(machine: Committing, at: Received) -> Step[Committing]:
    return _write(machine, _S.WRITING_DONE) if at.found is Verdict.DONE else _done(machine)


def _written_done(machine: Committing, at: Received) -> Step[Committing]:
    if at.found is not Verdict.DONE:
        return _done(machine)
    ask = end_txn(machine.plan.run.driver_id, _driver(machine), machine.level, commit=True)
    return asking(_moved(machine, _S.ENDING_DONE), ask)


def _ended_done(machine: Committing, at: Received) -> Step[Committing]:
    if at.found is not Verdict.DONE or not machine.leftovers:
        return _done(machine)
    return asking(_moved(machine, _S.CLEANING), *aborts(machine.leftovers, machine.level))


def _cleaned(machine: Committing, at: Received) -> Step[Committing]:
    machine = replace(machine, waiting=machine.waiting.without(at.ask))
    return Step(machine) if machine.waiting else _done(machine)


def _done(machine: Committing) -> Step[Committing]:
    # All rows are visible. If the record DONE could not be written, the next plan commits the
    # transactions again, which changes nothing, and writes DONE.
    return _over(machine, _S.DONE, Committed(machine.record.done()))


_STEPS: Final = {
    _S.CHECKING: _checked,
    _S.EXPLAINING: _explained,
    _S.ADDING: _added,
    _S.WRITING: _written,
    _S.LOOKING: _looked_again,
    _S.DECIDING: _decided,
    _S.READING: _found,
    _S.ASKING_AGAIN: _decided,
    _S.LISTING: _listed,
    _S.DESCRIBING: _described,
    _S.ADDING_DONE: _added_done,
    _S.WRITING_DONE: _written_done,
    _S.ENDING_DONE: _ended_done,
    _S.CLEANING: _cleaned,
}


def _decided_one(attempt: AttemptTransaction) -> DecidedTransaction:
    """Return the entry of an attempt's transaction in the record DECIDED.

    The entry contains only the first of the transaction's partitions. That is enough to find out
    the result, because all partitions of a transaction get the same marker.
    """
    first = attempt.written[0]
    slot = attempt.slot or TaskSlot(0, 0)
    return DecidedTransaction(slot, attempt.producer, first.partition, first.first_offset)


def _ids(machine: Committing) -> tuple[str, ...]:
    owner = machine.plan.run.owner
    return tuple(owner.task_id(each.slot) for each in machine.attempts if each.slot is not None)


def _attempt(machine: Committing, ask: DescribeTransaction) -> AttemptTransaction | None:
    """Return the attempt whose transaction `ask` is about, or None for the driver's."""
    return machine.by_slot.get(machine.plan.run.owner.slot_of(ask.transactional_id))


def _moved(machine: Committing, state: CommitState) -> Committing:
    return replace(machine, state=moved(COMMIT, machine.state, state), waiting=NO_ITEMS)


def _over(machine: Committing, state: CommitState, outcome: Outcome) -> Step[Committing]:
    return Step(replace(_moved(machine, state), outcome=outcome))
