"""Mode `two-phase`: a transaction for each task attempt, a decision that lasts, then the commits.

A task claims a free transactional id (`begin_task`), writes, and leaves its transaction open. The
driver looks at all of them (C2), writes the record DECIDED in a transaction of its own, looks again
and commits the record (C3): that is the decision. Before it nothing is visible and nothing is lost.
After it there is only one way: each transaction is committed (C4, C5), by this process, by the next
plan or by `recover`. Last, DONE is written, which proves that this driver is still the newest, and
what other attempts left is aborted (C6).

An abort proves first that the decision can never appear, by aborting the driver's own transaction
(A1), or finds that it did and hands it over to be rolled forward (`begin_forward`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit import guards, resolve
from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan
from spark_kafka_sink.commit.log_record import (
    NOTHING,
    CommitRecord,
    DecidedTransaction,
    RecordState,
)
from spark_kafka_sink.commit.names import TaskSlot
from spark_kafka_sink.commit.outcomes import (
    Aborted,
    Claimed,
    Committed,
    Decided,
    Superseded,
    Torn,
    Undecided,
    Unfinished,
)
from spark_kafka_sink.commit.questions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    AddPartitions,
    Answer,
    Ask,
    Described,
    DescribeProducers,
    DescribeTransaction,
    Ended,
    Initialized,
    InitProducerId,
    Listed,
    ListTransactions,
    LogRead,
    ProducersDescribed,
    Question,
    ReadLog,
    WriteRecord,
)
from spark_kafka_sink.commit.resolve import Resolving
from spark_kafka_sink.commit.states import (
    ABORT,
    COMMIT,
    TASK,
    AbortState,
    CommitState,
    ResolveState,
    TaskState,
    moved,
)
from spark_kafka_sink.commit.steps import (
    STALE_S,
    Failure,
    FailureKind,
    Received,
    Step,
    asking,
    asks_of,
    end_txn,
    own_tasks,
    received,
    superseded,
)
from spark_kafka_sink.commit.verdicts import Verdict
from spark_kafka_sink.errors import Option
from spark_kafka_sink.model import NO_PRODUCER_ID, ProducerIdAndEpoch

Leftovers: TypeAlias = frozenset[tuple[str, ProducerIdAndEpoch]]

_FREE: Final = frozenset((EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT))
_MARGIN_SHARE: Final = 0.2
_MAX_MARGIN_MS: Final = 60_000
_PENDING_PAUSE_S: Final = 0.1
_LIST_PAUSE_S: Final = 0.2
# How long an abort waits for tasks that open transactions while it runs.
_SETTLES_S: Final = 5.0


# -- a task before its first row ------------------------------------------------------------------

_T = TaskState


@dataclass(frozen=True, slots=True)
class Claiming:
    """A task that looks for a transactional id: slots from the number of its attempt on."""

    state: TaskState
    plan: Plan
    slot: TaskSlot
    deadline: float
    asked: Ask | None
    outcome: Claimed | Failure | None = None


def begin_task(
    plan: Plan, partition: int, attempt_number: int, *, deadline: float
) -> Step[Claiming]:
    """Return the machine of a task, and its first question."""
    ask = DescribeTransaction(plan.run.driver_id)
    slot = TaskSlot(partition, attempt_number)
    return Step(Claiming(_T.CHECKING, plan, slot, deadline, ask), (Question(ask),))


def step_task(machine: Claiming, answer: Answer, now: float) -> Step[Claiming]:
    """Return the machine after an answer."""
    if answer.ask != machine.asked:
        return Step(machine)
    at = received(*answer, now)
    if now >= machine.deadline and at.found is not Verdict.DONE:
        return _fail_task(machine, at.failure(f"no transactional id for {_task(machine)}"))
    if at.asks_again and machine.state is not _T.CLAIMING:
        return Step(machine, (at.again(),))
    if at.found is Verdict.FATAL:
        return _fail_task(machine, at.failure(f"no transactional id for {_task(machine)}"))
    return _TASK_STEPS[machine.state](machine, at)


def _checked_plan(machine: Claiming, at: Received) -> Step[Claiming]:
    described = at.reply if isinstance(at.reply, Described) else Described()
    if described.producer != machine.plan.producer:
        return _fail_task(machine, superseded(machine.plan.run.owner))
    return _look(machine)


def _looked(machine: Claiming, at: Received) -> Step[Claiming]:
    described = at.reply if isinstance(at.reply, Described) else Described()
    if at.found is Verdict.DONE and described.state not in _FREE:
        slot = machine.slot
        return _look(replace(machine, slot=slot._replace(slot=slot.slot + 1)))
    # At once: another attempt that claims the same id in between would be aborted.
    run = machine.plan.run
    ask = InitProducerId(run.owner.task_id(machine.slot), run.timeout_ms)
    state = moved(TASK, machine.state, _T.CLAIMING)
    return Step(replace(machine, state=state, asked=ask), (Question(ask),))


def _claimed(machine: Claiming, at: Received) -> Step[Claiming]:
    if not isinstance(at.reply, Initialized) or at.found is not Verdict.DONE:
        return _look(machine, at.again().pause_s)
    state = moved(TASK, machine.state, _T.CLAIMED)
    outcome = Claimed(machine.slot, at.reply.producer)
    return Step(replace(machine, state=state, asked=None, outcome=outcome))


_TASK_STEPS: Final = {_T.CHECKING: _checked_plan, _T.LOOKING: _looked, _T.CLAIMING: _claimed}


def _look(machine: Claiming, pause_s: float = 0.0) -> Step[Claiming]:
    ask = DescribeTransaction(machine.plan.run.owner.task_id(machine.slot))
    is_next_slot = machine.state is _T.LOOKING
    state = machine.state if is_next_slot else moved(TASK, machine.state, _T.LOOKING)
    return Step(replace(machine, state=state, asked=ask), (Question(ask, pause_s),))


def _fail_task(machine: Claiming, failure: Failure) -> Step[Claiming]:
    state = moved(TASK, machine.state, _T.FAILED)
    return Step(replace(machine, state=state, asked=None, outcome=failure))


def _task(machine: Claiming) -> str:
    return f"partition {machine.slot.partition} of {machine.plan.run.owner}"


# -- the commit -----------------------------------------------------------------------------------

_C = CommitState
CommitOutcome: TypeAlias = Committed | Torn | Unfinished | Undecided | Failure


@dataclass(frozen=True, slots=True)
class Committing:
    """A commit.

    record: DECIDED with the attempts' transactions; DONE if there are none. next_producer: of the
    driver, after the decision. ends_at, begun_at: the earliest end of a transaction, and the begin
    of the driver's, by the brokers' clock. failure: why an answer was not believed.
    """

    state: CommitState
    plan: Plan
    level: int
    deadline: float
    record: CommitRecord
    attempts: tuple[AttemptTransaction, ...] = ()
    waiting: frozenset[Ask] = frozenset()
    ends_at: int | None = None
    begun_at: int | None = None
    next_producer: ProducerIdAndEpoch = NO_PRODUCER_ID
    ends: tuple[Resolving, ...] = ()
    leftovers: Leftovers = frozenset()
    asked_again: bool = False
    failure: Failure | None = None
    outcome: CommitOutcome | None = None


def begin_commit(
    plan: Plan,
    attempts: tuple[AttemptTransaction, ...],
    record: CommitRecord,
    *,
    level: int,
    deadline: float,
) -> Step[Committing]:
    """Return the machine that commits, and its first questions.

    record: what DONE is to say. level: as the cluster has it now.
    """
    written = tuple(each for each in attempts if each.written)
    if not written:
        machine = Committing(_C.CHECKING, plan, level, deadline, record.done())
        return _add(machine, _C.ADDING, _C.WRITING)
    decided = replace(
        record, state=RecordState.DECIDED, transactions=tuple(map(_decided_one, written))
    )
    machine = Committing(_C.CHECKING, plan, level, deadline, decided, written)
    looks = [DescribeTransaction(each) for each in _ids(machine)]
    partitions = {each.partition for attempt in written for each in attempt.written}
    return asking(machine, *looks, *(DescribeProducers(each) for each in sorted(partitions)))


def begin_forward(
    plan: Plan, record: CommitRecord, *, level: int, deadline: float
) -> Step[Committing]:
    """Return the machine that goes on after a decision of the plan's run that the log has."""
    ours = plan.producer
    raised = ProducerIdAndEpoch(ours.producer_id, ours.epoch + 1) if level >= 2 else ours
    machine = Committing(_C.DECIDING, plan, level, deadline, record, next_producer=raised)
    return _forward(machine)


def step(machine: Committing, answer: Answer, now: float) -> Step[Committing]:
    """Return the machine after an answer."""
    if answer.ask not in machine.waiting:
        return Step(machine)
    if machine.state is _C.ENDING:
        ends, waiting, questions = resolve.step_all(machine.ends, machine.waiting, answer, now)
        machine = replace(machine, ends=ends, waiting=waiting)
        return Step(machine, questions) if machine.waiting else _ended_all(machine)
    at = received(*answer, now)
    if at.asks_again and now < machine.deadline:
        return Step(machine, (at.again(),))
    return _COMMIT_STEPS[machine.state](machine, at)


def _checked(machine: Committing, at: Received) -> Step[Committing]:
    failure = _check(machine, at)
    if failure is not None:
        return _over(machine, _C.FAILED, failure)
    machine = replace(machine, waiting=machine.waiting - {at.ask})
    return Step(machine) if machine.waiting else _add(machine, _C.ADDING, _C.WRITING)


def _check(machine: Committing, at: Received) -> Failure | None:
    """Return the failure if a transaction is not as its attempt left it (C2)."""
    ask, reply = at.ask, at.reply
    if isinstance(ask, DescribeTransaction) and isinstance(reply, Described):
        attempt = _attempt(machine, ask)
        if attempt is not None and at.found in (Verdict.DONE, Verdict.NOT_FOUND):
            return _not_open(machine, ask, reply, attempt.producer)
    if isinstance(ask, DescribeProducers) and isinstance(reply, ProducersDescribed):
        if at.found is Verdict.NOT_FOUND:
            sentence = f"{ask.partition} was deleted after rows were written to it"
            return Failure(FailureKind.LOST, sentence, reply.error)
        if at.found is Verdict.DONE:
            return _not_held(machine, ask, reply)
    return at.failure(f"the transactions of {machine.plan.run.owner} could not be checked")


def _not_held(
    machine: Committing, ask: DescribeProducers, reply: ProducersDescribed
) -> Failure | None:
    producers = guards.by_producer(reply.producers)
    for attempt in machine.attempts:
        for written in attempt.written:
            if written.partition == ask.partition:
                found = producers.get(attempt.producer)
                failure = guards.other_holdings(ask.partition, written, found)
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
    """Add the log to the driver's transaction, which only level 1 needs, and write the record."""
    if machine.level >= 2:
        return _write(machine, writing)
    run = machine.plan.run
    ask = AddPartitions(run.driver_id, _driver(machine), (run.log,))
    return asking(_moved(machine, adding), ask)


def _added(machine: Committing, at: Received) -> Step[Committing]:
    if at.found is not Verdict.DONE:
        return _over(machine, _C.FAILED, _not_written(machine, at))
    return _write(machine, _C.WRITING)


def _write(machine: Committing, writing: CommitState) -> Step[Committing]:
    run, producer = machine.plan.run, _driver(machine)
    is_first = producer != machine.plan.producer or writing is _C.WRITING
    record = machine.record if writing is _C.WRITING else machine.record.done()
    ask = WriteRecord(run.driver_id, producer, 0 if is_first else 1, record, machine.level)
    return asking(_moved(machine, writing), ask)


def _driver(machine: Committing) -> ProducerIdAndEpoch:
    """Return the driver's producer id and epoch: those of the plan, until the decision."""
    return machine.next_producer if machine.next_producer.is_valid else machine.plan.producer


def _written(machine: Committing, at: Received) -> Step[Committing]:
    if at.found is not Verdict.DONE:
        return _over(machine, _C.FAILED, _not_written(machine, at))
    if not machine.attempts:
        return _decide(machine)
    ids = (machine.plan.run.driver_id, *_ids(machine))
    return asking(_moved(machine, _C.LOOKING), *map(DescribeTransaction, ids))


def _not_written(machine: Committing, at: Received) -> Failure:
    owner = machine.plan.run.owner
    if at.found is Verdict.FENCED:
        return superseded(owner)
    return at.failure(f"the decision of {owner} could not be written")


def _looked_again(machine: Committing, at: Received) -> Step[Committing]:
    failure, machine = _look_again(machine, at)
    if failure is not None:
        return _over(machine, _C.FAILED, failure)
    machine = replace(machine, waiting=machine.waiting - {at.ask})
    if machine.waiting:
        return Step(machine)
    if machine.ends_at is not None and machine.begun_at is not None:
        timeout_ms = machine.plan.run.timeout_ms
        margin_ms = min(timeout_ms * _MARGIN_SHARE, _MAX_MARGIN_MS)
        left_ms = machine.ends_at - machine.begun_at
        if left_ms < margin_ms:
            return _over(machine, _C.FAILED, _too_late(machine, left_ms))
    return _decide(machine)


def _look_again(machine: Committing, at: Received) -> tuple[Failure | None, Committing]:
    """Look at a transaction again: whether it is open, and for how long (C3)."""
    ask, reply, run = at.ask, at.reply, machine.plan.run
    is_known = at.found in (Verdict.DONE, Verdict.NOT_FOUND)
    if not isinstance(ask, DescribeTransaction) or not isinstance(reply, Described) or not is_known:
        return at.failure(f"the transactions of {run.owner} could not be checked"), machine
    attempt = _attempt(machine, ask)
    if attempt is None:
        if reply.state != ONGOING or reply.producer != machine.plan.producer:
            return superseded(run.owner), machine
        return None, replace(machine, begun_at=reply.start_ms)
    ends_at = reply.start_ms + reply.timeout_ms
    if machine.ends_at is not None:
        ends_at = min(ends_at, machine.ends_at)
    return _not_open(machine, ask, reply, attempt.producer), replace(machine, ends_at=ends_at)


def _too_late(machine: Committing, left_ms: int) -> Failure:
    timeout_ms = machine.plan.run.timeout_ms
    sentence = (
        f"the job took {timeout_ms - left_ms} ms from its first row on, and its transactions end "
        f"after {timeout_ms} ms: raise {Option('transaction.timeout.ms')} (and the brokers' "
        "transaction.max.timeout.ms where needed), or write less at a time"
    )
    return Failure(FailureKind.TIMED_OUT, sentence)


def _decide(machine: Committing) -> Step[Committing]:
    return asking(_moved(machine, _C.DECIDING), _end_driver(machine))


def _end_driver(machine: Committing) -> Ask:
    plan = machine.plan
    return end_txn(plan.run.driver_id, plan.producer, machine.level, commit=True)


def _decided(machine: Committing, at: Received) -> Step[Committing]:
    if at.found is Verdict.DONE:
        raised = at.reply.producer if isinstance(at.reply, Ended) else NO_PRODUCER_ID
        producer = raised if raised.is_valid else machine.plan.producer
        return _forward(replace(machine, next_producer=producer))
    if at.asks_again:
        return _over(machine, _C.UNDECIDED, Undecided(_not_ended(machine, at)))
    if machine.failure is None:
        machine = replace(machine, failure=_why_not(machine, at))
    return asking(_moved(machine, _C.READING), ReadLog(machine.plan.run.driver_id))


def _read(machine: Committing, at: Received) -> Step[Committing]:
    run = machine.plan.run
    if not isinstance(at.reply, LogRead) or at.found is not Verdict.DONE:
        failure = at.failure(f"the record of {run.owner} could not be read")
        return _over(machine, _C.UNDECIDED, Undecided(failure))
    reading = at.reply.reading
    if reading.record is not None and reading.record.run == run.name:
        # Somebody newer may have the driver's id: DONE is theirs to write.
        return _forward(replace(machine, next_producer=machine.plan.producer))
    is_pending = reading.undecided is not None and reading.undecided.run == run.name
    failure = machine.failure or superseded(run.owner)
    if at.now >= machine.deadline and is_pending:
        return _over(machine, _C.UNDECIDED, Undecided(failure))
    if machine.asked_again and not is_pending:
        return _over(machine, _C.FAILED, failure)
    machine = replace(_moved(machine, _C.ASKING_AGAIN), asked_again=True)
    pause_s = _PENDING_PAUSE_S if is_pending else STALE_S
    return asking(machine, _end_driver(machine), pause_s=pause_s, looks_up=True)


def _why_not(machine: Committing, at: Received) -> Failure:
    if at.reply.error == codes.PRODUCER_FENCED:
        return superseded(machine.plan.run.owner)
    return _not_ended(machine, at)


def _not_ended(machine: Committing, at: Received) -> Failure:
    return at.failure(f"the decision of {machine.plan.run.owner} could not be committed")


# -- after the decision ---------------------------------------------------------------------------


def _forward(machine: Committing) -> Step[Committing]:
    record = machine.record
    if not record.transactions:
        return _over(machine, _C.DONE, Committed(record))
    ends, questions = resolve.begin_all(
        machine.plan.run.owner, record.transactions, level=machine.level, deadline=machine.deadline
    )
    machine = replace(_moved(machine, _C.ENDING), ends=ends, waiting=asks_of(questions))
    return Step(machine, questions)


def _ended_all(machine: Committing) -> Step[Committing]:
    record = machine.record
    if any(each.state is ResolveState.ABORTED for each in machine.ends):
        torn = Torn(record, resolve.lost(machine.ends, record.transactions))
        return _over(machine, _C.TORN, torn)
    unknown = next((each.failure for each in machine.ends if each.failure is not None), None)
    if unknown is not None:
        return _over(machine, _C.UNFINISHED, Unfinished(record, unknown))
    return asking(_moved(machine, _C.LISTING), ListTransactions(f"{machine.plan.run.driver_id}/"))


def _listed(machine: Committing, at: Received) -> Step[Committing]:
    if not isinstance(at.reply, Listed) or at.found is not Verdict.DONE:
        return _done(machine)
    own = own_tasks(machine.plan.run.owner, at.reply.transactions)
    if not own:
        return _add(machine, _C.ADDING_DONE, _C.WRITING_DONE)
    return asking(_moved(machine, _C.DESCRIBING), *map(DescribeTransaction, own))


def _described(machine: Committing, at: Received) -> Step[Committing]:
    leftovers = machine.leftovers | _open(at)
    machine = replace(machine, waiting=machine.waiting - {at.ask}, leftovers=leftovers)
    return Step(machine) if machine.waiting else _add(machine, _C.ADDING_DONE, _C.WRITING_DONE)


def _added_done(machine: Committing, at: Received) -> Step[Committing]:
    return _write(machine, _C.WRITING_DONE) if at.found is Verdict.DONE else _done(machine)


def _written_done(machine: Committing, at: Received) -> Step[Committing]:
    if at.found is not Verdict.DONE:
        return _done(machine)
    ask = end_txn(machine.plan.run.driver_id, _driver(machine), machine.level, commit=True)
    return asking(_moved(machine, _C.ENDING_DONE), ask)


def _ended_done(machine: Committing, at: Received) -> Step[Committing]:
    if at.found is not Verdict.DONE or not machine.leftovers:
        return _done(machine)
    return asking(_moved(machine, _C.CLEANING), *_aborts(machine.leftovers, machine.level))


def _cleaned(machine: Committing, at: Received) -> Step[Committing]:
    machine = replace(machine, waiting=machine.waiting - {at.ask})
    return Step(machine) if machine.waiting else _done(machine)


def _done(machine: Committing) -> Step[Committing]:
    # All rows are visible. If DONE is missing, the next plan commits again, and writes it.
    return _over(machine, _C.DONE, Committed(machine.record.done()))


_COMMIT_STEPS: Final = {
    _C.CHECKING: _checked,
    _C.ADDING: _added,
    _C.WRITING: _written,
    _C.LOOKING: _looked_again,
    _C.DECIDING: _decided,
    _C.READING: _read,
    _C.ASKING_AGAIN: _decided,
    _C.LISTING: _listed,
    _C.DESCRIBING: _described,
    _C.ADDING_DONE: _added_done,
    _C.WRITING_DONE: _written_done,
    _C.ENDING_DONE: _ended_done,
    _C.CLEANING: _cleaned,
}


def _decided_one(attempt: AttemptTransaction) -> DecidedTransaction:
    """Return the entry of an attempt in the record; one partition will do: markers are alike."""
    first = attempt.written[0]
    slot = attempt.slot or TaskSlot(0, 0)
    return DecidedTransaction(slot, attempt.producer, first.partition, first.first_offset)


def _ids(machine: Committing) -> tuple[str, ...]:
    owner = machine.plan.run.owner
    return tuple(owner.task_id(each.slot) for each in machine.attempts if each.slot is not None)


def _attempt(machine: Committing, ask: DescribeTransaction) -> AttemptTransaction | None:
    """Return the attempt whose transaction is asked for, None for the driver's."""
    slot = machine.plan.run.owner.slot_of(ask.transactional_id)
    return next((each for each in machine.attempts if each.slot == slot), None)


def _open(at: Received) -> Leftovers:
    """Return the transaction that a reply describes, if it is open."""
    if not isinstance(at.ask, DescribeTransaction) or not isinstance(at.reply, Described):
        return frozenset()
    if at.found is not Verdict.DONE or at.reply.state != ONGOING:
        return frozenset()
    return frozenset({(at.ask.transactional_id, at.reply.producer)})


def _aborts(leftovers: Iterable[tuple[str, ProducerIdAndEpoch]], level: int) -> list[Ask]:
    ordered = sorted(leftovers, key=lambda each: (each[0], each[1].producer_id, each[1].epoch))
    return [end_txn(name, producer, level, commit=False) for name, producer in ordered]


def _moved(machine: Committing, state: CommitState) -> Committing:
    return replace(machine, state=moved(COMMIT, machine.state, state), waiting=frozenset())


def _over(machine: Committing, state: CommitState, outcome: CommitOutcome) -> Step[Committing]:
    return Step(replace(_moved(machine, state), outcome=outcome))


# -- the abort ------------------------------------------------------------------------------------

_A = AbortState
AbortOutcome: TypeAlias = Aborted | Decided | Superseded | Failure


@dataclass(frozen=True, slots=True)
class Aborting:
    """An abort.

    producer: the driver's, raised by each A1 at level 2. is_proved: the decision can never appear.
    is_undecided: unless the log has the decision, A1 shows that there is none.
    empty_lists: how many in a row. settles_at: the end of the wait for tasks that still run.
    """

    state: AbortState
    plan: Plan
    level: int
    deadline: float
    producer: ProducerIdAndEpoch
    leftovers: Leftovers
    waiting: frozenset[Ask] = frozenset()
    is_proved: bool = False
    is_undecided: bool = False
    empty_lists: int = 0
    settles_at: float | None = None
    outcome: AbortOutcome | None = None


def begin_abort(
    plan: Plan,
    attempts: tuple[AttemptTransaction, ...],
    *,
    level: int,
    deadline: float,
) -> Step[Aborting]:
    """Return the machine that aborts, and its first question.

    attempts: those whose messages the driver has; there may be others.
    """
    owner = plan.run.owner
    known = frozenset(
        (owner.task_id(each.slot), each.producer) for each in attempts if each.slot is not None
    )
    machine = Aborting(_A.LISTING, plan, level, deadline, plan.producer, known)
    return asking(machine, ListTransactions(f"{plan.run.driver_id}/"))


def step_abort(machine: Aborting, answer: Answer, now: float) -> Step[Aborting]:
    """Return the machine after an answer."""
    if answer.ask not in machine.waiting:
        return Step(machine)
    at = received(*answer, now)
    if at.asks_again and now < machine.deadline:
        return Step(machine, (at.again(),))
    if at.asks_again or (at.found is Verdict.FATAL and machine.state is not _A.CLEANING):
        failure = at.failure(f"the transactions of {machine.plan.run.owner} could not be aborted")
        return _end_abort(machine, _A.FAILED, failure)
    return _ABORT_STEPS[machine.state](machine, at)


def _listed_open(machine: Aborting, at: Received) -> Step[Aborting]:
    found = at.reply.transactions if isinstance(at.reply, Listed) else frozenset()
    own = own_tasks(machine.plan.run.owner, found)
    if machine.settles_at is None:
        machine = replace(machine, settles_at=at.now + _SETTLES_S)
    if own:
        machine = replace(_moved_abort(machine, _A.DESCRIBING), empty_lists=0)
        return asking(machine, *map(DescribeTransaction, own))
    machine = replace(machine, empty_lists=machine.empty_lists + 1)
    return _list_again(machine, at.now) if machine.is_proved else _prove(machine)


def _described_open(machine: Aborting, at: Received) -> Step[Aborting]:
    leftovers = machine.leftovers | _open(at)
    machine = replace(machine, waiting=machine.waiting - {at.ask}, leftovers=leftovers)
    return Step(machine) if machine.waiting else _prove(machine)


def _prove(machine: Aborting) -> Step[Aborting]:
    driver = machine.plan.run.driver_id
    ask = end_txn(driver, machine.producer, machine.level, commit=False)
    return asking(_moved_abort(machine, _A.PROVING), ask)


def _proved(machine: Aborting, at: Received) -> Step[Aborting]:
    if at.found in (Verdict.FENCED, Verdict.FENCED_OR_ABORTED):
        return _end_abort(machine, _A.SUPERSEDED, Superseded())
    if isinstance(at.reply, Ended) and at.reply.producer.is_valid:
        machine = replace(machine, producer=at.reply.producer)
    if machine.is_proved:
        return _abort_all(machine, at.now)
    # Also after an abort: at level 1 it may have hit the transaction of the record DONE.
    is_aborted = at.found in (Verdict.DONE, Verdict.COMMITTED_OR_EMPTY)
    machine = replace(machine, is_undecided=is_aborted)
    return asking(_moved_abort(machine, _A.READING), ReadLog(machine.plan.run.driver_id))


def _read_decision(machine: Aborting, at: Received) -> Step[Aborting]:
    reading = at.reply.reading if isinstance(at.reply, LogRead) else NOTHING
    run = machine.plan.run
    if reading.record is not None and reading.record.run == run.name:
        return _end_abort(machine, _A.DECIDED, Decided(reading.record))
    # The coordinator answers before it has written the marker.
    is_pending = reading.undecided is not None and reading.undecided.run == run.name
    if is_pending and at.now < machine.deadline:
        return asking(machine, at.ask, pause_s=_PENDING_PAUSE_S)
    if machine.is_undecided and not is_pending:
        return _abort_all(machine, at.now)
    sentence = (
        f"the decision of {run.owner} is committed, and the commit log does not have it yet: "
        "nothing is aborted"
    )
    return _end_abort(machine, _A.FAILED, Failure(FailureKind.NO_ANSWER, sentence))


def _abort_all(machine: Aborting, now: float) -> Step[Aborting]:
    machine = replace(machine, is_proved=True)
    if not machine.leftovers:
        return _list_again(machine, now)
    asks = _aborts(machine.leftovers, machine.level)
    return asking(_moved_abort(machine, _A.CLEANING), *asks)


def _aborted_one(machine: Aborting, at: Received) -> Step[Aborting]:
    # Any other answer than a request to wait means that it is no longer open.
    machine = replace(machine, waiting=machine.waiting - {at.ask})
    if machine.waiting:
        return Step(machine)
    return _list_again(replace(machine, leftovers=frozenset()), at.now)


def _list_again(machine: Aborting, now: float) -> Step[Aborting]:
    """List again until two lists in a row are empty, because tasks may still open transactions."""
    is_quiet = machine.empty_lists >= 2
    if is_quiet or (machine.settles_at is not None and now >= machine.settles_at):
        return _end_abort(machine, _A.ABORTED, Aborted(may_be_open=not is_quiet))
    if machine.state is not _A.LISTING:
        machine = _moved_abort(machine, _A.LISTING)
    ask = ListTransactions(f"{machine.plan.run.driver_id}/")
    return asking(machine, ask, pause_s=_LIST_PAUSE_S)


_ABORT_STEPS: Final = {
    _A.LISTING: _listed_open,
    _A.DESCRIBING: _described_open,
    _A.PROVING: _proved,
    _A.READING: _read_decision,
    _A.CLEANING: _aborted_one,
}


def _moved_abort(machine: Aborting, state: AbortState) -> Aborting:
    return replace(machine, state=moved(ABORT, machine.state, state), waiting=frozenset())


def _end_abort(machine: Aborting, state: AbortState, outcome: AbortOutcome) -> Step[Aborting]:
    return Step(replace(_moved_abort(machine, state), outcome=outcome))
