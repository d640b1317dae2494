"""The abort of mode `two-phase`: every transaction is aborted, unless the run is decided.

A run is "decided" once its record in state DECIDED is committed in the commit log. The abort first
makes sure that this can no longer happen: it aborts the driver's own transaction (A1) and reads the
log. If the log contains the committed record, the outcome is `Decided`, and the caller has to
commit with `two_phase.begin_forward`. Otherwise the transactions of all tasks are aborted (A2). But
if A1 fails because a newer run has fenced the driver, that run aborts them.

Tasks may still run and open transactions during the abort. So the driver lists the open
transactions (A0) again and again until two lists in a row are empty, for at most `settles_s`
seconds (five, or more if linger.ms is long). If the driver has no commit message of a task, that
task may still be running and may open its transaction later. Then two empty lists prove nothing, so
the driver lists the open transactions until `settles_s` seconds have passed.

If a broker does not respond, the list is missing or incomplete. Then the driver first aborts the
transactions that it knows. After that, it asks for the list again until the deadline. The outcome
contains the reason why some transactions may still be open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan
from spark_kafka_sink.commit.leftovers import (
    Leftovers,
    Transaction,
    aborts,
    decided_by,
    own_tasks,
    with_open,
    without,
)
from spark_kafka_sink.commit.log_record import NOTHING
from spark_kafka_sink.commit.outcomes import Aborted, Decided, Superseded
from spark_kafka_sink.commit.questions import (
    COMPLETE_COMMIT,
    PREPARE_COMMIT,
    Answer,
    Ask,
    Described,
    DescribeTransaction,
    Ended,
    Listed,
    ListTransactions,
    LogRead,
    ReadLog,
)
from spark_kafka_sink.commit.states import ABORT, AbortState, moved
from spark_kafka_sink.commit.steps import (
    MARKER_PAUSE_S,
    STALE_S,
    Failure,
    FailureKind,
    Received,
    Step,
    asking,
    end_txn,
    received,
)
from spark_kafka_sink.commit.trees import NO_ITEMS, TreeSet
from spark_kafka_sink.commit.verdicts import Verdict
from spark_kafka_sink.model import ProducerIdAndEpoch

_LIST_PAUSE_S: Final = 0.2
# The default number of seconds that an abort waits for tasks that may still open transactions.
SETTLES_S: Final = 5.0

_S = AbortState
Outcome: TypeAlias = Aborted | Decided | Superseded | Failure


@dataclass(frozen=True, slots=True)
class Aborting:
    """The state of an abort.

    producer: the driver's producer id and epoch; at level 2 (transaction.version 2), each abort of
    the driver's transaction (A1) raises the epoch. leftovers: the open transactions to abort.
    is_proved: whether it is certain that the run is not decided, and cannot become decided.
    is_undecided: whether the result of A1 suggests that the run is not decided. To be certain, the
    abort also reads the log, which must not contain a committed record of the run. is_fenced:
    whether A1 was refused because the driver's epoch was raised, by another run or by the commit of
    this run. asked_again: whether A1 was sent a second time, to a coordinator that was looked up
    again. empty_lists: the number of empty lists in a row. settles_s: how many seconds to wait
    for running tasks. settles_at: when that wait ends, or None before the first list. is_missing:
    whether the driver lacks the commit message of a task. decided: transactions that another run
    has decided to commit. This abort does not end them. missed: why the last list may lack open
    transactions, or why a transaction could not be aborted; None if there is no such reason.
    outcome: how the abort has ended, or None before its end.
    """

    state: AbortState
    plan: Plan
    level: int
    deadline: float
    producer: ProducerIdAndEpoch
    leftovers: Leftovers
    waiting: TreeSet[Ask] = NO_ITEMS
    is_proved: bool = False
    is_undecided: bool = False
    is_fenced: bool = False
    asked_again: bool = False
    empty_lists: int = 0
    settles_s: float = SETTLES_S
    settles_at: float | None = None
    is_missing: bool = False
    decided: frozenset[Transaction] = frozenset()
    missed: Failure | None = None
    outcome: Outcome | None = None


def begin(
    plan: Plan,
    attempts: tuple[AttemptTransaction, ...],
    *,
    level: int,
    deadline: float,
    settles_s: float = SETTLES_S,
    is_missing: bool = False,
) -> Step[Aborting]:
    """Return the state machine that aborts, and its first request to a broker.

    attempts: the task attempts whose commit messages the driver has. There may be other attempts.
    is_missing: whether the commit message of a task is missing. The task may then still run.
    settles_s: for how many seconds to wait until such a task has opened its transaction. A task
    opens it within the linger time after its first row.
    """
    owner = plan.run.owner
    known = TreeSet.of(
        (owner.task_id(each.slot), each.producer) for each in attempts if each.slot is not None
    )
    machine = Aborting(
        _S.LISTING, plan, level, deadline, plan.producer, known,
        settles_s=settles_s, is_missing=is_missing,
    )  # fmt: skip
    return asking(machine, ListTransactions(f"{plan.run.driver_id}/"))


def resume(machine: Aborting, *, deadline: float) -> Step[Aborting]:
    """Return an abort that was interrupted, and the requests to send again.

    deadline: the new deadline. Once it is certain that the run is not decided, the old one counts.
    """
    deadline = machine.deadline if machine.is_proved else deadline
    return asking(replace(machine, deadline=deadline), *sorted(machine.waiting, key=repr))


def step(machine: Aborting, answer: Answer, now: float) -> Step[Aborting]:
    """Return the state machine after the reply to a request, and the next requests to brokers."""
    if answer.ask not in machine.waiting:
        return Step(machine)
    at = received(*answer, now)
    is_refused = at.found is Verdict.FATAL and machine.state is not _S.CLEANING
    if not at.asks_again and not is_refused:
        return _STEPS[machine.state](machine, at)
    if machine.state in _LOOKS:
        return _not_seen(machine, at)
    if at.asks_again and now < machine.deadline:
        return Step(machine, (at.again(),))
    return _not_done(machine, at)


def _not_done(machine: Aborting, at: Received) -> Step[Aborting]:
    """Continue after a request that has failed and is not sent again."""
    if machine.state is _S.CLEANING:
        missed = at.failure("a transaction of the run's tasks cannot be aborted")
        return _cleaned(replace(machine, missed=missed), at)
    if machine.is_proved:
        missed = at.failure("the open transactions of the run's tasks cannot be aborted")
        return _aborted(replace(machine, missed=missed), may_be_open=True)
    failure = at.failure(f"the transactions of {machine.plan.run.owner} could not be aborted")
    return _over(machine, _S.FAILED, failure)


def _not_seen(machine: Aborting, at: Received) -> Step[Aborting]:
    """Continue after a request to list transactions, or to describe one, has failed.

    The known transactions are aborted first. The request is sent again after that.
    """
    missed = at.failure("the open transactions of the run's tasks cannot be found")
    machine = replace(machine, missed=missed)
    if not machine.is_proved:
        return _prove(machine)
    if at.asks_again and at.now < machine.deadline and not _may_abort(machine):
        return Step(machine, (at.again(),))
    machine = replace(machine, waiting=machine.waiting.without(at.ask))
    if machine.waiting:
        return Step(machine)
    return _prove(machine) if machine.leftovers else _aborted(machine, may_be_open=True)


def _may_abort(machine: Aborting) -> bool:
    """Return whether there are transactions to abort, and only one request has no reply yet."""
    return bool(machine.leftovers) and len(machine.waiting) == 1


def _listed(machine: Aborting, at: Received) -> Step[Aborting]:
    machine = replace(machine, missed=None)
    found = at.reply.transactions if isinstance(at.reply, Listed) else frozenset()
    own = own_tasks(machine.plan.run.owner, found)
    if machine.settles_at is None:
        machine = replace(machine, settles_at=at.now + machine.settles_s)
    if own:
        machine = replace(_moved(machine, _S.DESCRIBING), empty_lists=0)
        return asking(machine, *map(DescribeTransaction, own))
    machine = replace(machine, empty_lists=machine.empty_lists + 1)
    return _list_again(machine, at.now) if machine.is_proved else _prove(machine)


def _described(machine: Aborting, at: Received) -> Step[Aborting]:
    leftovers = with_open(machine.leftovers, at, machine.decided)
    machine = replace(machine, waiting=machine.waiting.without(at.ask), leftovers=leftovers)
    return Step(machine) if machine.waiting else _prove(machine)


def _prove(machine: Aborting, pause_s: float = 0.0, *, looks_up: bool = False) -> Step[Aborting]:
    driver = machine.plan.run.driver_id
    ask = end_txn(driver, machine.producer, machine.level, commit=False)
    return asking(_moved(machine, _S.PROVING), ask, pause_s=pause_s, looks_up=looks_up)


def _proved(machine: Aborting, at: Received) -> Step[Aborting]:
    is_fenced = at.found in (Verdict.FENCED, Verdict.FENCED_OR_ABORTED)
    if is_fenced and machine.is_proved:
        return _over(machine, _S.SUPERSEDED, Superseded())
    if isinstance(at.reply, Ended) and at.reply.producer.is_valid:
        machine = replace(machine, producer=at.reply.producer)
    if machine.is_proved:
        return _abort_all(machine, at.now)
    driver = machine.plan.run.driver_id
    if at.found is Verdict.COMMITTED_OR_EMPTY:
        return asking(_moved(machine, _S.ASKING), DescribeTransaction(driver))
    # The log is read even if A1 succeeds: at level 1, EndTxn may have aborted the transaction of
    # the record DONE, and not the transaction of the record DECIDED. The log is also read if A1 was
    # fenced, because the commit of this run raises the epoch when it writes the record DONE.
    machine = replace(machine, is_undecided=at.found is Verdict.DONE, is_fenced=is_fenced)
    return asking(_moved(machine, _S.READING), ReadLog(driver))


def _asked(machine: Aborting, at: Received) -> Step[Aborting]:
    """Find out from the transaction's state why brokers refused the abort (A1) at level 1.

    The transaction is already committed, or it has no partition. But if the coordinator returns a
    different producer id or epoch, the driver is fenced. A coordinator that was replaced may not
    know the newest state (KAFKA-21181), and refuses A1 without writing to its log. So before the
    run counts as undecided, A1 is sent once more.
    """
    found = at.reply if isinstance(at.reply, Described) else Described()
    is_own = found.producer == machine.plan.producer
    is_committed = found.state in (PREPARE_COMMIT, COMPLETE_COMMIT)
    is_undecided = is_own and not is_committed
    # If no message is missing, the run may be decided, at a coordinator that has replaced this one.
    may_be_stale = is_undecided and not machine.is_missing and not machine.asked_again
    if may_be_stale and at.now + STALE_S < machine.deadline:
        return _prove(replace(machine, asked_again=True), pause_s=STALE_S, looks_up=True)
    machine = replace(machine, is_undecided=is_undecided, is_fenced=not is_own)
    ask_log, looks_up = ReadLog(machine.plan.run.driver_id), machine.asked_again
    return asking(_moved(machine, _S.READING), ask_log, looks_up=looks_up)


def _read(machine: Aborting, at: Received) -> Step[Aborting]:
    reading = at.reply.reading if isinstance(at.reply, LogRead) else NOTHING
    run = machine.plan.run
    if reading.record is not None and reading.record.run == run.name:
        return _over(machine, _S.DECIDED, Decided(reading.record))
    if reading.record is not None:
        decided = decided_by(run.owner, reading.record)
        machine = replace(machine, decided=decided, leftovers=without(machine.leftovers, decided))
    # The coordinator responds to EndTxn before it has written the marker.
    is_pending = reading.undecided is not None and reading.undecided.run == run.name
    # A broker that is no longer the leader of the log may return records only up to an old end.
    is_committed = not machine.is_undecided and not machine.is_fenced
    if (is_pending or is_committed) and at.now < machine.deadline:
        return asking(machine, at.ask, pause_s=MARKER_PAUSE_S, looks_up=is_committed)
    if machine.is_fenced:
        return _over(machine, _S.SUPERSEDED, Superseded())
    if machine.is_undecided and not is_pending:
        return _abort_all(machine, at.now)
    sentence = (
        f"the decision to commit the write of {run.owner} is recorded, but the leader of the "
        "commit log does not return it yet: nothing is aborted"
    )
    return _over(machine, _S.FAILED, Failure(FailureKind.NO_ANSWER, sentence))


def _abort_all(machine: Aborting, now: float) -> Step[Aborting]:
    machine = replace(machine, is_proved=True)
    if not machine.leftovers:
        return _list_again(machine, now)
    asks = aborts(machine.leftovers, machine.level)
    return asking(_moved(machine, _S.CLEANING), *asks)


def _cleaned(machine: Aborting, at: Received) -> Step[Aborting]:
    # Any error code that is not retriable means that the transaction is no longer open.
    machine = replace(machine, waiting=machine.waiting.without(at.ask))
    if machine.waiting:
        return Step(machine)
    return _list_again(replace(machine, leftovers=NO_ITEMS), at.now)


def _list_again(machine: Aborting, now: float) -> Step[Aborting]:
    """List again until two lists in a row are empty, because tasks may still open transactions.

    At level 2 (transaction.version 2), a task may begin after the abort of the driver's transaction
    (A1). It finds that its plan is no longer the newest, and stops. If a task still writes after
    its own transaction was aborted, brokers refuse its records. But a task that claimed its
    transactional id before A1 may open its transaction at any later time. At level 1, any task that
    still runs may open a transaction at any later time.
    """
    is_quiet = machine.empty_lists >= 2
    has_settled = machine.settles_at is not None and now >= machine.settles_at
    if machine.missed is not None and machine.missed.kind is FailureKind.NO_ANSWER:
        has_settled = now >= machine.deadline
    if has_settled or (is_quiet and not machine.is_missing):
        return _aborted(machine, may_be_open=not is_quiet or machine.is_missing)
    if machine.state is not _S.LISTING:
        machine = _moved(machine, _S.LISTING)
    ask = ListTransactions(f"{machine.plan.run.driver_id}/")
    return asking(machine, ask, pause_s=_LIST_PAUSE_S)


def _aborted(machine: Aborting, *, may_be_open: bool) -> Step[Aborting]:
    why = "" if machine.missed is None else machine.missed.sentence
    return _over(machine, _S.ABORTED, Aborted(may_be_open=may_be_open, missed=why))


# The states in which open transactions are looked for.
_LOOKS: Final = frozenset((_S.LISTING, _S.DESCRIBING))
_STEPS: Final = {
    _S.LISTING: _listed,
    _S.DESCRIBING: _described,
    _S.PROVING: _proved,
    _S.ASKING: _asked,
    _S.READING: _read,
    _S.CLEANING: _cleaned,
}


def _moved(machine: Aborting, state: AbortState) -> Aborting:
    return replace(machine, state=moved(ABORT, machine.state, state), waiting=NO_ITEMS)


def _over(machine: Aborting, state: AbortState, outcome: Outcome) -> Step[Aborting]:
    return Step(replace(_moved(machine, state), outcome=outcome))
