"""The planning of a run: what the driver does before its tasks start, in both modes.

An owner is a txnAppId and its target topic. A run is one batch job or one micro-batch of an
owner. A run is "decided" in mode `two-phase` once its record in state DECIDED is committed in the
commit log: then its transactions have to be committed. The steps of the planning are:

  D0  List the open transactions of the owner's tasks.
  D1  Request the next epoch of the driver's transactional id. This fences every older driver.
  D2  Then read the owner's record in the commit log.
  D3  If the last run is decided, commit its transactions, and write the record in state DONE.
  D4  Abort the other transactions that D0 listed, each with the producer id and epoch that D0 got.
      Before that, commit a record to the log. If this succeeds, D2 has read the newest record.
  D5  For a batch job: check again whether its version (the option txnVersion) is written already.

D0 lists the transactions before D1. A newer driver's transactions begin after that driver's own D1.
So D4 never aborts a newer driver's transactions, even if that driver has overtaken this one between
any two steps. InitProducerId for the tasks' transactional ids would not be safe: it would abort
transactions that a newer driver has decided to commit.

If D0 or D1 fails, for example because one broker does not respond, no run is planned. But before
the plan fails, it commits the transactions of the last run if that run is decided (D2 and D3).
This needs neither the list nor the fence, and the rows are lost if it is done too late. So the plan
does it after the first request without a result already, and begins again at D0. When it fails, the
deadline has often passed, so this part of the plan, the rescue, has a deadline of its own. It does
not see a decision whose marker is not in the log yet, although the state of the driver's
transaction is PrepareCommit. The next plan or a recovery has to commit such a run in time.

Before D0, a batch job reads the log to find out whether its version is written already. If so, and
if its record is in state DONE, no plan is made, and no driver is fenced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit import read_back, resolve
from spark_kafka_sink.commit.attempts import Plan, Run
from spark_kafka_sink.commit.leftovers import (
    Leftovers,
    aborts,
    decided_by,
    own_tasks,
    with_open,
    without,
)
from spark_kafka_sink.commit.log_record import (
    CommitRecord,
    LogReading,
    Place,
    RecordState,
)
from spark_kafka_sink.commit.outcomes import Planned, Skipped, Torn
from spark_kafka_sink.commit.questions import (
    AddPartitions,
    Answer,
    Ask,
    DescribeTransaction,
    Ended,
    Initialized,
    InitProducerId,
    Listed,
    ListTransactions,
    LogRead,
    Question,
    ReadLog,
    WriteRecord,
    Written,
)
from spark_kafka_sink.commit.resolve import NO_RESOLVINGS, Resolvings
from spark_kafka_sink.commit.states import PLAN, PlanState, ResolveState, moved
from spark_kafka_sink.commit.steps import (
    STALE_S,
    Failure,
    FailureKind,
    Received,
    Step,
    asking,
    asks_of,
    end_txn,
    received,
    superseded,
)
from spark_kafka_sink.commit.trees import NO_ITEMS, TreeSet
from spark_kafka_sink.commit.verdicts import NEWER_EPOCH, Verdict
from spark_kafka_sink.model import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition

_S = PlanState
_BEFORE_READING: Final = frozenset((_S.LISTING, _S.DESCRIBING, _S.FENCING))
# The least time to commit what is decided after D0 or D1 has failed: EndTxn may have to be sent
# again after STALE_S.
_RESCUE_S: Final = 2 * STALE_S

Outcome: TypeAlias = Planned | Skipped | Torn | Failure


@dataclass(frozen=True, slots=True)
class Planning:
    """The state of the planning of a run.

    version: the version of a batch job. It is None for a stream, because only tasks know the batch
    id. partitions: in mode `single`, all partitions of the target topics; None in mode `two-phase`.
    accepts_torn: whether an administrator lets the owner write again although rows of its last run
    are lost. leftovers: the open transactions that were listed (D0), except those that the record
    lists as decided. record: the owner's record in the commit log. ends: the state machines that
    commit the decided transactions. offset: the offset of the record that this planning has
    written. is_proved: whether that record is committed, which proves that none of the leftovers is
    decided. asked_again: whether EndTxn was sent again, because the first response did not show
    whether the driver's transaction was committed. missed: why D0 or D1 has failed, or None. If it
    has, the plan only commits what is decided, and then fails or begins again. begins_again:
    whether it begins again then, or has already begun again. plans_until: the deadline of the plan
    if it begins again, because `deadline` may then be later.
    """

    state: PlanState
    run: Run
    deadline: float
    version: int | None
    partitions: tuple[TopicPartition, ...] | None
    accepts_torn: bool = False
    waiting: TreeSet[Ask] = NO_ITEMS
    leftovers: Leftovers = NO_ITEMS
    producer: ProducerIdAndEpoch = NO_PRODUCER_ID
    record: CommitRecord | None = None
    ends: Resolvings = NO_RESOLVINGS
    offset: int = -1
    is_proved: bool = False
    asked_again: bool = False
    missed: Failure | None = None
    begins_again: bool = False
    plans_until: float = 0.0
    outcome: Outcome | None = None


def begin(
    run: Run,
    *,
    deadline: float,
    version: int | None = None,
    partitions: tuple[TopicPartition, ...] | None = None,
    accepts_torn: bool = False,
) -> Step[Planning]:
    """Return the state machine that plans a run, and its first requests to brokers.

    See `Planning` for the arguments.
    """
    state, ask = (
        (_S.LISTING, _list(run)) if version is None else (_S.PEEKING, ReadLog(run.driver_id))
    )
    return asking(Planning(state, run, deadline, version, partitions, accepts_torn), ask)


def step(machine: Planning, answer: Answer, now: float) -> Step[Planning]:
    """Return the state machine after a reply, with the next requests to send to brokers."""
    if answer.ask not in machine.waiting:
        return Step(machine)
    at = received(*answer, now)
    if machine.state is _S.ENDING:
        return _end(machine, answer, now)
    if at.asks_again and now < machine.deadline:
        return _rescue_early(machine, at) or Step(machine, (at.again(),))
    if at.asks_again or at.found is Verdict.FATAL:
        return _failed(machine, at)
    return _STEPS[machine.state](machine, at)


def _rescue_early(machine: Planning, at: Received) -> Step[Planning] | None:
    """Commit what is decided, because a broker may not respond to D0 or D1 for a long time.

    Return None if this was done before, or if the reply shows that it takes only milliseconds.
    """
    # The command `recover --accept-torn` has committed what is decided just before the plan.
    is_done = machine.begins_again or machine.accepts_torn
    is_short = at.reply.error == codes.CONCURRENT_TRANSACTIONS
    if machine.state not in _BEFORE_READING or is_done or is_short:
        return None
    return _rescue(replace(machine, begins_again=True), at)


def _failed(machine: Planning, at: Received) -> Step[Planning]:
    """End the plan with a failure. If D0 or D1 has failed, commit what is decided before that."""
    if machine.missed is not None:
        return _rescued(machine, machine.missed, at.now, _not_planned(machine, at))
    if machine.state not in _BEFORE_READING:
        return _over(machine, _not_planned(machine, at))
    return _rescue(replace(machine, begins_again=False), at)


def _not_planned(machine: Planning, at: Received) -> Failure:
    return at.failure(f"the write of {machine.run.owner} could not be planned")


def _rescue(machine: Planning, at: Received) -> Step[Planning]:
    until, later = machine.deadline, max(machine.deadline, at.now + _RESCUE_S)
    machine = replace(machine, missed=_not_planned(machine, at), plans_until=until, deadline=later)
    machine = _moved(machine, _S.READING)
    return asking(machine, ReadLog(machine.run.driver_id))


def _rescued(
    machine: Planning, missed: Failure, now: float, failure: Failure | None = None
) -> Step[Planning]:
    """Begin again at D0, or fail.

    missed: why D0 or D1 has failed. failure: why the rescue has failed, or None. If an early rescue
    has taken all the time, the plan fails for this reason: D0 or D1 has failed only once.
    """
    if not machine.begins_again:
        return _over(machine, missed)
    if now >= machine.plans_until:
        return _over(machine, failure or missed)
    run, version, partitions = machine.run, machine.version, machine.partitions
    state = moved(PLAN, machine.state, _S.LISTING)
    again = Planning(state, run, machine.plans_until, version, partitions, begins_again=True)
    return asking(again, _list(run))


# -- before the fence -----------------------------------------------------------------------------


def _peeked(machine: Planning, at: Received) -> Step[Planning]:
    reading = _reading(at)
    if reading.newer_format is not None:
        return _over(machine, _newer_format(machine, reading))
    record, version = reading.record, machine.version
    place = Place.NEW if record is None or version is None else record.versions.place(version)
    if record is not None and version is not None and place is Place.BELOW_FLOOR:
        return _over(machine, _below_floor(version, record))
    if record is not None and place is Place.WRITTEN and record.state is RecordState.DONE:
        return _over(machine, Skipped(record))
    # If the record is in state DECIDED, the plan commits its transactions and writes DONE, even if
    # the version is written: after some days, brokers no longer know how transactions have ended.
    return asking(_moved(machine, _S.LISTING), _list(machine.run))


def _list(run: Run) -> ListTransactions:
    """Return the request to list the open transactions of an owner (D0)."""
    return ListTransactions(f"{run.driver_id}/")


def _listed(machine: Planning, at: Received) -> Step[Planning]:
    found = at.reply.transactions if isinstance(at.reply, Listed) else frozenset()
    own = own_tasks(machine.run.owner, found)
    if not own:
        return _fence(machine)
    return asking(_moved(machine, _S.DESCRIBING), *map(DescribeTransaction, own))


def _described(machine: Planning, at: Received) -> Step[Planning]:
    leftovers = with_open(machine.leftovers, at)
    machine = replace(machine, waiting=machine.waiting.without(at.ask), leftovers=leftovers)
    return Step(machine) if machine.waiting else _fence(machine)


# -- the fence, and what the log has --------------------------------------------------------------


def _fence(machine: Planning) -> Step[Planning]:
    ask = InitProducerId(machine.run.driver_id, machine.run.timeout_ms)
    return asking(_moved(machine, _S.FENCING), ask)


def _fenced(machine: Planning, at: Received) -> Step[Planning]:
    if not isinstance(at.reply, Initialized) or at.found is not Verdict.DONE:
        return _over(machine, superseded(machine.run.owner))
    machine = replace(machine, producer=at.reply.producer)
    return asking(_moved(machine, _S.READING), ReadLog(machine.run.driver_id))


def _read(machine: Planning, at: Received) -> Step[Planning]:
    reading = _reading(at)
    if reading.newer_format is not None:
        return _over(machine, _newer_format(machine, reading))
    record = reading.record
    machine = replace(machine, record=record)
    is_decided = record is not None and record.state is RecordState.DECIDED
    if machine.missed is not None and not is_decided:
        return _rescued(machine, machine.missed, at.now)
    if record is not None and is_decided:
        decided = decided_by(machine.run.owner, record)
        machine = replace(machine, leftovers=without(machine.leftovers, decided))
        return _roll_forward(machine, record, at.now)
    return _clean(machine)


def _roll_forward(machine: Planning, record: CommitRecord, now: float) -> Step[Planning]:
    ends, questions = resolve.begin_all(
        machine.run.owner, record.transactions, level=machine.run.level, deadline=machine.deadline
    )
    machine = replace(_moved(machine, _S.ENDING), ends=ends, waiting=asks_of(questions))
    return Step(machine, questions) if ends.machines else _ended_all(machine, now)


def _end(machine: Planning, answer: Answer, now: float) -> Step[Planning]:
    """Pass a reply on to the state machine in `ends` that sent the request."""
    ends, waiting, questions = resolve.step_all(machine.ends, machine.waiting, answer, now)
    machine = replace(machine, ends=ends, waiting=waiting)
    return Step(machine, questions) if machine.waiting else _ended_all(machine, now)


def _ended_all(machine: Planning, now: float) -> Step[Planning]:
    # If an administrator accepts it, the result of a decided transaction may be unknown.
    accepted = FailureKind.IN_DOUBT if machine.accepts_torn else None
    failures = (each.failure for each in machine.ends.machines if each.failure is not None)
    unknown = next((each for each in failures if each.kind is not accepted), None)
    if machine.missed is not None:
        return _rescued(machine, machine.missed, now, unknown)
    if unknown is not None:
        return _over(machine, unknown)
    return _clean(machine) if _lost(machine) else _add_log(machine)


def _add_log(machine: Planning) -> Step[Planning]:
    """Write the record. With transaction.version 1, first add the log to the transaction."""
    if machine.run.level >= 2:
        return _write_done(machine)
    ask = AddPartitions(machine.run.driver_id, machine.producer, (machine.run.log,))
    return asking(_moved(machine, _S.ADDING_LOG), ask)


def _added_log(machine: Planning, at: Received) -> Step[Planning]:
    if at.found is not Verdict.DONE:
        return _over(machine, superseded(machine.run.owner))
    return _write_done(machine)


def _next_record(machine: Planning) -> CommitRecord:
    """Return the record to write, in state DONE.

    If rows of the run in the owner's record are lost, that record is returned unchanged.
    """
    if machine.record is not None and _lost(machine):
        return machine.record
    # If the owner has no record yet, the record DONE names no run. It must not name this run,
    # because a commit that finds its own run's name in the log concludes that its run is decided.
    nothing = CommitRecord(RecordState.DONE, run="", rows=0, written_at=0)
    return (machine.record or nothing).done()


def _write_done(machine: Planning) -> Step[Planning]:
    record, run = _next_record(machine), machine.run
    ask = WriteRecord(run.driver_id, machine.producer, 0, record, run.level)
    return asking(_moved(machine, _S.WRITING_DONE), ask)


def _written_done(machine: Planning, at: Received) -> Step[Planning]:
    if at.found is not Verdict.DONE:
        return _over(machine, superseded(machine.run.owner))
    if isinstance(at.reply, Written):
        machine = replace(machine, offset=at.reply.offset)
    return asking(_moved(machine, _S.LOOKING), ReadLog(machine.run.driver_id))


def _looked(machine: Planning, at: Received) -> Step[Planning]:
    run = machine.run
    name = _next_record(machine).run
    again = read_back.again(at, machine.offset, machine.deadline)
    if again:
        return Step(machine, again)
    failure = read_back.check(at, run.owner, name, machine.offset, machine.record)
    if failure is not None:
        return _over(machine, failure)
    ask = end_txn(machine.run.driver_id, machine.producer, machine.run.level, commit=True)
    return asking(_moved(machine, _S.ENDING_DONE), ask)


def _ended_done(machine: Planning, at: Received) -> Step[Planning]:
    if at.found is not Verdict.DONE or not isinstance(at.reply, Ended):
        return _ask_again(machine, at)
    machine = replace(machine, is_proved=True)
    if machine.run.level < 2 or not at.reply.producer.is_valid:
        # The epoch is the same as before, so a late EndTxn could end the next transaction. So ask
        # for the next epoch. Then read the owner's record again, because a newer run may have
        # written a newer record.
        return _fence(replace(machine, ends=NO_RESOLVINGS))
    record = _next_record(machine)
    return _clean(replace(machine, producer=at.reply.producer, record=record))


def _ask_again(machine: Planning, at: Received) -> Step[Planning]:
    """Send EndTxn once more, because the broker may no longer be the coordinator.

    If EndTxn was already sent again, or if the deadline is too near, fail.
    """
    if not machine.asked_again and at.now + STALE_S < machine.deadline:
        machine = replace(machine, asked_again=True)
        return Step(machine, (Question(at.ask, STALE_S, looks_up=True),))
    if at.reply.error in NEWER_EPOCH:
        return _over(machine, superseded(machine.run.owner))
    what = f"the commit log record of {machine.run.owner} could not be committed"
    return _over(machine, at.failure(what))


# -- what older runs left, and the version --------------------------------------------------------


def _clean(machine: Planning) -> Step[Planning]:
    """Abort the transactions that older runs left open.

    Before that, commit a record to the log. If this succeeds, no newer run has decided to commit
    these transactions.
    """
    if not machine.leftovers:
        return _finish(machine)
    if not machine.is_proved:
        return _add_log(machine)
    asks = aborts(machine.leftovers, machine.run.level)
    return asking(_moved(machine, _S.CLEANING), *asks)


def _cleaned(machine: Planning, at: Received) -> Step[Planning]:
    # Any error code that is not retriable means that the transaction is no longer open.
    machine = replace(machine, waiting=machine.waiting.without(at.ask))
    return Step(machine) if machine.waiting else _finish(machine)


def _finish(machine: Planning) -> Step[Planning]:
    record, version = machine.record, machine.version
    if record is not None and _lost(machine):
        lost = resolve.lost(machine.ends.machines, record.transactions)
        return _over(machine, Torn(record, lost))
    if record is not None and version is not None:
        place = record.versions.place(version)
        if place is Place.WRITTEN:
            return _over(machine, Skipped(record))
        if place is Place.BELOW_FLOOR:
            return _over(machine, _below_floor(version, record))
    if machine.run.level >= 2 or machine.partitions is None:
        return _over(machine, _planned(machine))
    partitions = (*machine.partitions, machine.run.log)
    ask = AddPartitions(machine.run.driver_id, machine.producer, partitions)
    return asking(_moved(machine, _S.ADDING), ask)


def _added(machine: Planning, at: Received) -> Step[Planning]:
    if at.found is not Verdict.DONE:
        return _over(machine, superseded(machine.run.owner))
    return _over(machine, _planned(machine))


_STEPS: Final = {
    _S.PEEKING: _peeked,
    _S.LISTING: _listed,
    _S.DESCRIBING: _described,
    _S.FENCING: _fenced,
    _S.READING: _read,
    _S.ADDING_LOG: _added_log,
    _S.WRITING_DONE: _written_done,
    _S.LOOKING: _looked,
    _S.ENDING_DONE: _ended_done,
    _S.CLEANING: _cleaned,
    _S.ADDING: _added,
}
_END_OF: Final[dict[type, PlanState]] = {
    Planned: _S.PLANNED,
    Skipped: _S.SKIPPED,
    Torn: _S.TORN,
    Failure: _S.FAILED,
}


def _planned(machine: Planning) -> Planned:
    return Planned(Plan(machine.run, machine.producer, machine.record))


def _lost(machine: Planning) -> bool:
    is_lost = any(each.state is ResolveState.ABORTED for each in machine.ends.machines)
    return is_lost and not machine.accepts_torn


def _reading(at: Received) -> LogReading:
    return at.reply.reading if isinstance(at.reply, LogRead) else LogReading()


def _newer_format(machine: Planning, reading: LogReading) -> Failure:
    sentence = (
        f"the commit log record of {machine.run.owner} at offset {reading.offset} of "
        f"{machine.run.log} cannot be read: {reading.newer_format}; use the newer version of "
        "spark-kafka-sink"
    )
    return Failure(FailureKind.NEWER_FORMAT, sentence)


def _below_floor(version: int, record: CommitRecord) -> Failure:
    lowest = record.versions.lowest
    sentence = (
        f"the commit log does not store which versions below {lowest} were written, so version "
        f"{version} is not written: expected version {lowest} or higher"
    )
    return Failure(FailureKind.BELOW_FLOOR, sentence)


def _moved(machine: Planning, state: PlanState) -> Planning:
    return replace(machine, state=moved(PLAN, machine.state, state), waiting=NO_ITEMS)


def _over(machine: Planning, outcome: Outcome) -> Step[Planning]:
    return Step(replace(_moved(machine, _END_OF[type(outcome)]), outcome=outcome))
