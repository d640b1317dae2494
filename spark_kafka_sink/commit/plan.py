"""The plan of a run: what the driver does before its tasks, in both modes.

D0 lists the owner's open transactions. D1 asks for the driver's next epoch, which fences every
older driver. D2 reads the owner's record, only then. D3 commits what is decided, and writes DONE.
D4 aborts what the list has, each exactly: by the producer id and epoch that were listed. D5 looks
at the version.

The list is older than D1, and a newer driver's transactions begin after its own D1, so a driver
that was overtaken between any two steps harms nobody. To end what is open by InitProducerId would
destroy transactions that a newer driver has decided.

A version that is written already needs no plan. It is found before D0, and nothing is fenced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from spark_kafka_sink.commit import read_back, resolve
from spark_kafka_sink.commit.attempts import Plan, Run
from spark_kafka_sink.commit.leftovers import (
    Leftovers,
    aborts,
    decided_by,
    open_transaction,
    own_tasks,
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
    ReadLog,
    WriteRecord,
    Written,
)
from spark_kafka_sink.commit.resolve import Resolving
from spark_kafka_sink.commit.states import PLAN, PlanState, ResolveState, moved
from spark_kafka_sink.commit.steps import (
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
from spark_kafka_sink.commit.verdicts import Verdict
from spark_kafka_sink.model import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition

_S = PlanState


Outcome: TypeAlias = Planned | Skipped | Torn | Failure


@dataclass(frozen=True, slots=True)
class Planning:
    """The state of a plan.

    version: of a batch; None for a stream, whose tasks know their micro-batch. partitions: all of
    the target topics in mode `single`. accepts_torn: whether an operator lets the owner go on if
    rows of its last run are lost. leftovers: open transactions that D0 has found, without those
    that the record commits. offset: of the record DONE that the plan has written. is_proved:
    whether that record is committed, so that none of the leftovers is decided.
    """

    state: PlanState
    run: Run
    deadline: float
    lists: bool
    version: int | None
    partitions: tuple[TopicPartition, ...]
    accepts_torn: bool = False
    waiting: frozenset[Ask] = frozenset()
    leftovers: Leftovers = frozenset()
    producer: ProducerIdAndEpoch = NO_PRODUCER_ID
    record: CommitRecord | None = None
    ends: tuple[Resolving, ...] = ()
    offset: int = -1
    is_proved: bool = False
    outcome: Outcome | None = None


def begin(
    run: Run,
    *,
    deadline: float,
    lists: bool = True,
    version: int | None = None,
    partitions: tuple[TopicPartition, ...] = (),
    accepts_torn: bool = False,
) -> Step[Planning]:
    """Return the machine, and its first question.

    lists: whether an older run may have left open transactions: at the first plan of a process, and
    after a run that failed.
    """
    machine = Planning(_S.PEEKING, run, deadline, lists, version, partitions, accepts_torn)
    if version is not None:
        return asking(machine, ReadLog(run.driver_id))
    ask, state = _first_of_plan(machine)
    return asking(replace(machine, state=state), ask)


def step(machine: Planning, answer: Answer, now: float) -> Step[Planning]:
    """Return the machine after an answer."""
    if answer.ask not in machine.waiting:
        return Step(machine)
    at = received(*answer, now)
    if machine.state is _S.ENDING:
        return _end(machine, answer, now)
    if at.asks_again and now < machine.deadline:
        return Step(machine, (at.again(),))
    if at.asks_again or at.found is Verdict.FATAL:
        return _over(machine, at.failure(f"{machine.run.owner} could not be planned"))
    return _STEPS[machine.state](machine, at)


# -- before the fence -----------------------------------------------------------------------------


def _peeked(machine: Planning, at: Received) -> Step[Planning]:
    reading = _reading(at)
    if reading.newer_format is not None:
        return _over(machine, _newer_format(machine, reading))
    record, version = reading.record, machine.version
    place = Place.NEW if record is None or version is None else record.versions.place(version)
    if record is None or version is None or place is Place.NEW:
        ask, state = _first_of_plan(machine)
        return asking(_moved(machine, state), ask)
    if place is Place.BELOW_FLOOR:
        return _over(machine, _below_floor(version, record))
    machine = replace(machine, record=record)
    if record.state is RecordState.DONE:
        return _over(machine, Skipped(record))
    return _roll_forward(machine, record)


def _first_of_plan(machine: Planning) -> tuple[Ask, PlanState]:
    """Return the first question of a plan that is needed, and its state."""
    if machine.lists:
        return ListTransactions(f"{machine.run.driver_id}/"), _S.LISTING
    return InitProducerId(machine.run.driver_id, machine.run.timeout_ms), _S.FENCING


def _listed(machine: Planning, at: Received) -> Step[Planning]:
    found = at.reply.transactions if isinstance(at.reply, Listed) else frozenset()
    own = own_tasks(machine.run.owner, found)
    if not own:
        return _fence(machine)
    return asking(_moved(machine, _S.DESCRIBING), *map(DescribeTransaction, own))


def _described(machine: Planning, at: Received) -> Step[Planning]:
    leftovers = machine.leftovers | open_transaction(at)
    machine = replace(machine, waiting=machine.waiting - {at.ask}, leftovers=leftovers)
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
    if record is not None and record.state is RecordState.DECIDED:
        decided = decided_by(machine.run.owner, record)
        machine = replace(machine, leftovers=machine.leftovers - decided)
        return _roll_forward(machine, record)
    return _clean(machine)


def _roll_forward(machine: Planning, record: CommitRecord) -> Step[Planning]:
    ends, questions = resolve.begin_all(
        machine.run.owner, record.transactions, level=machine.run.level, deadline=machine.deadline
    )
    machine = replace(_moved(machine, _S.ENDING), ends=ends, waiting=asks_of(questions))
    return Step(machine, questions) if ends else _ended_all(machine, record)


def _end(machine: Planning, answer: Answer, now: float) -> Step[Planning]:
    """Pass an answer on to the transaction that has asked."""
    ends, waiting, questions = resolve.step_all(machine.ends, machine.waiting, answer, now)
    machine = replace(machine, ends=ends, waiting=waiting)
    if machine.waiting or machine.record is None:
        return Step(machine, questions)
    return _ended_all(machine, machine.record)


def _ended_all(machine: Planning, record: CommitRecord) -> Step[Planning]:
    failures = (each.failure for each in machine.ends if each.failure is not None)
    unknown = next((each for each in failures if not _accepts(machine, each)), None)
    if unknown is not None:
        return _over(machine, unknown)
    is_fenced = machine.producer.is_valid
    if _lost(machine):
        return _abort_leftovers(machine) if is_fenced else _over(machine, _torn(machine, record))
    return _add_log(machine) if is_fenced else _over(machine, Skipped(record))


def _add_log(machine: Planning) -> Step[Planning]:
    """Add the log to the driver's transaction, which only level 1 needs, and write DONE."""
    if machine.run.level >= 2:
        return _write_done(machine)
    ask = AddPartitions(machine.run.driver_id, machine.producer, (machine.run.log,))
    return asking(_moved(machine, _S.ADDING_LOG), ask)


def _added_log(machine: Planning, at: Received) -> Step[Planning]:
    if at.found is not Verdict.DONE:
        return _over(machine, superseded(machine.run.owner))
    return _write_done(machine)


def _done_record(machine: Planning) -> CommitRecord:
    # It is no run's: a commit that finds its own name in the log takes itself for decided.
    nothing = CommitRecord(RecordState.DONE, run="", rows=0, written_at=0)
    return (machine.record or nothing).done()


def _write_done(machine: Planning) -> Step[Planning]:
    record, run = _done_record(machine), machine.run
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
    name = _done_record(machine).run
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
        return _over(machine, superseded(machine.run.owner))
    machine = replace(machine, is_proved=True)
    if machine.run.level < 2 or not at.reply.producer.is_valid:
        # The epoch is the same as before, and a late EndTxn would end the next transaction. With
        # another epoch the record has to be read again: a newer run may have been in between.
        return _fence(replace(machine, ends=()))
    record = _done_record(machine)
    return _clean(replace(machine, producer=at.reply.producer, record=record))


# -- what older runs left, and the version --------------------------------------------------------


def _clean(machine: Planning) -> Step[Planning]:
    """Abort what is left, once it is proved that the log has no newer record that commits it."""
    if not machine.leftovers:
        return _finish(machine)
    return _abort_leftovers(machine) if machine.is_proved else _add_log(machine)


def _abort_leftovers(machine: Planning) -> Step[Planning]:
    if not machine.leftovers:
        return _finish(machine)
    asks = aborts(machine.leftovers, machine.run.level)
    return asking(_moved(machine, _S.CLEANING), *asks)


def _cleaned(machine: Planning, at: Received) -> Step[Planning]:
    # Any other answer than a request to wait means that it is no longer open.
    machine = replace(machine, waiting=machine.waiting - {at.ask})
    return Step(machine) if machine.waiting else _finish(machine)


def _finish(machine: Planning) -> Step[Planning]:
    record, version = machine.record, machine.version
    if record is not None and _lost(machine):
        return _over(machine, _torn(machine, record))
    if record is not None and version is not None:
        place = record.versions.place(version)
        if place is Place.WRITTEN:
            return _over(machine, Skipped(record))
        if place is Place.BELOW_FLOOR:
            return _over(machine, _below_floor(version, record))
    if machine.run.level >= 2 or not machine.partitions:
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
    is_lost = any(each.state is ResolveState.ABORTED for each in machine.ends)
    return is_lost and not machine.accepts_torn


def _accepts(machine: Planning, failure: Failure) -> bool:
    """Return whether an operator accepts that the outcome of a transaction is unknown."""
    return machine.accepts_torn and failure.kind is FailureKind.IN_DOUBT


def _torn(machine: Planning, record: CommitRecord) -> Torn:
    return Torn(record, resolve.lost(machine.ends, record.transactions))


def _reading(at: Received) -> LogReading:
    return at.reply.reading if isinstance(at.reply, LogRead) else LogReading()


def _newer_format(machine: Planning, reading: LogReading) -> Failure:
    sentence = (
        f"the record of {machine.run.owner} at offset {reading.offset} of {machine.run.log} "
        f"cannot be read: {reading.newer_format}; use the newer version of spark-kafka-sink"
    )
    return Failure(FailureKind.NEWER_FORMAT, sentence)


def _below_floor(version: int, record: CommitRecord) -> Failure:
    sentence = (
        f"version {version} is below {record.versions.floor}, the lowest of which the commit log "
        "still knows whether it was written"
    )
    return Failure(FailureKind.BELOW_FLOOR, sentence)


def _moved(machine: Planning, state: PlanState) -> Planning:
    return replace(machine, state=moved(PLAN, machine.state, state), waiting=frozenset())


def _over(machine: Planning, outcome: Outcome) -> Step[Planning]:
    return Step(replace(_moved(machine, _END_OF[type(outcome)]), outcome=outcome))
