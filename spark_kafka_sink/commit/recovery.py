"""The recovery of an owner: find open, decided, lost transactions, and commit the decided ones.

An owner is a txnAppId and its target topic. A run of an owner is "decided" once its record in
state DECIDED is committed in the commit log. Then all transactions in the record have to be
committed. A decided transaction is "lost" if brokers have aborted it.

An administrator runs the recovery, possibly while a job of the owner is running. So the recovery
never sends InitProducerId, aborts no transaction and writes no record. It only sends EndTxn(commit)
for the transactions of a record in state DECIDED. The running job or the owner's next plan would
also do this. The record stays DECIDED, because only a driver with the current epoch can write DONE.

`survey` finds the owners. The recovery of an owner queries the state of each transaction and then
commits the decided transactions. With `commits=False`, it commits nothing and only finds out their
results.

If a broker is silent, some transactions cannot be described. To commit what is decided, a recovery
needs only the record. So after the first request without a response, it commits the decided
transactions, and continues to query the others after that. If a broker was silent during the survey
already, it commits them first.

The survey may read a record in state DECIDED before its transaction has a marker. If the
coordinator says that the driver's transaction is committed, the run is decided. Then the recovery
reads the log again until it returns the record as committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit import resolve
from spark_kafka_sink.commit.log_record import DecidedTransaction, LogReading
from spark_kafka_sink.commit.names import Owner
from spark_kafka_sink.commit.outcomes import LostTransaction
from spark_kafka_sink.commit.questions import (
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_COMMIT,
    Answer,
    Ask,
    Described,
    DescribeTransaction,
    LogRead,
    MarkerRead,
    Question,
    ReadLog,
    ReadMarker,
)
from spark_kafka_sink.commit.resolve import NO_RESOLVINGS, Resolving, Resolvings
from spark_kafka_sink.commit.states import RECOVERY, RecoveryState, ResolveState, moved
from spark_kafka_sink.commit.steps import (
    MARKER_PAUSE_S,
    Failure,
    FailureKind,
    Received,
    Step,
    asking,
    asks_of,
    received,
)
from spark_kafka_sink.commit.survey import FoundOwner, decided_of
from spark_kafka_sink.commit.trees import NO_ITEMS, TreeSet
from spark_kafka_sink.commit.verdicts import Verdict
from spark_kafka_sink.records.batch import Marker

_S = RecoveryState


class Fate(Enum):
    """The result of a decided transaction."""

    COMMITTED = "its rows are visible"
    OPEN = "it is still to be committed"
    LOST = "its rows are lost"
    IN_DOUBT = "committed or aborted, but it can no longer be found out which"
    UNKNOWN = "not known now"


class OpenSince(NamedTuple):
    """An open transaction. Both times are in milliseconds.

    start_ms: since 1970, by the coordinator's clock. timeout_ms: the transaction timeout.
    """

    transactional_id: str
    start_ms: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of the recovery of one owner.

    found: the owner, with a newer reading than that of the survey if the recovery has read the log
    again. fates: the results of the decided transactions, in the order of the record; empty if the
    record is not DECIDED. was_open: the decided transactions that were open before the recovery.
    undecided: the open transactions that no record lists. lost: the decided transactions whose rows
    are lost. failures: for each decided transaction whose result is not known, the reason. missed:
    why some of the transactions could not be described, or None if all were. If it is not None,
    `was_open` and `undecided` may lack transactions, and so may the record.
    """

    found: FoundOwner
    fates: tuple[Fate, ...] = ()
    was_open: tuple[OpenSince, ...] = ()
    undecided: tuple[OpenSince, ...] = ()
    lost: tuple[LostTransaction, ...] = ()
    failures: tuple[Failure, ...] = ()
    missed: Failure | None = None


@dataclass(frozen=True, slots=True)
class Recovering:
    """The state of the recovery of one owner.

    commits: whether to commit the decided transactions, or only to find out their results.
    more_s, ends_early: see `begin`. missed: why a transaction could not be described, or None.
    later: the requests to send after the decided transactions are committed, if they are committed
    before all transactions are described. describes_until: the deadline of these requests, because
    `deadline` may then be later. described: pairs of a transactional id and the state of its
    transaction. markers: pairs of a request for a marker and the reply. ends: the state machines
    that commit the decided transactions.
    """

    state: RecoveryState
    found: FoundOwner
    level: int
    deadline: float
    more_s: float
    commits: bool
    ends_early: bool = False
    missed: Failure | None = None
    waiting: TreeSet[Ask] = NO_ITEMS
    later: TreeSet[Ask] = NO_ITEMS
    describes_until: float = 0.0
    described: TreeSet[tuple[str, Described]] = NO_ITEMS
    markers: TreeSet[tuple[Ask, MarkerRead | Failure]] = NO_ITEMS
    ends: Resolvings = NO_RESOLVINGS
    outcome: Recovered | Failure | None = None


Outcome: TypeAlias = Recovered | Failure


def begin(
    found: FoundOwner,
    *,
    level: int,
    deadline: float,
    more_s: float,
    commits: bool = True,
    ends_early: bool = False,
) -> Step[Recovering]:
    """Return the state machine that recovers one owner, and its first requests to brokers.

    The driver's transaction is described even if it is not listed as open. If an ACL is missing,
    brokers omit the transaction from the list without an error. But they respond with an error to
    the request to describe it.

    more_s: the least number of seconds for the rest of the recovery, which begins when all
    transactions are described, or when a request to describe one has had no response. ends_early:
    whether to end once the decided transactions are committed, because another recovery follows.
    """
    machine = Recovering(_S.DESCRIBING, found, level, deadline, more_s, commits, ends_early)
    of_records = (*_decided(machine), *_decided_without_marker(found.reading))
    decided = (found.owner.task_id(each.slot) for each in of_records)
    ids = dict.fromkeys([found.owner.driver_id, *(found.open_ids or ()), *decided])
    describing = asking(machine, *map(DescribeTransaction, ids))
    early = _commit_early(describing.machine, deadline) if found.open_ids is None else None
    if early is None or not ends_early:
        return early or describing
    # The machine does not wait for these replies. They show what was open before the commit.
    tasks = (found.owner.task_id(each.slot) for each in _decided(machine))
    looks = (Question(DescribeTransaction(each)) for each in tasks)
    pairs = zip(looks, early.questions, strict=True)
    return Step(early.machine, tuple(chain.from_iterable(pairs)))


def step(machine: Recovering, answer: Answer, now: float) -> Step[Recovering]:
    """Return the state machine after a reply, with the next requests to send to brokers."""
    if machine.state is _S.ENDING and machine.ends_early:
        machine = _with_open(machine, answer)
    if answer.ask not in machine.waiting:
        return Step(machine)
    if machine.state is _S.ENDING:
        ends, waiting, questions = resolve.step_all(machine.ends, machine.waiting, answer, now)
        machine = replace(machine, ends=ends, waiting=waiting)
        return Step(machine, questions) if machine.waiting else _ended(machine)
    at = received(*answer, now)
    if at.asks_again and now < machine.deadline:
        return _commit_early(machine, _rest_until(machine, now)) or Step(machine, (at.again(),))
    return _STEPS[machine.state](machine, at)


def _with_open(machine: Recovering, answer: Answer) -> Recovering:
    """Keep the description of a transaction that is open."""
    ask, reply = answer
    if not isinstance(ask, DescribeTransaction) or not isinstance(reply, Described):
        return machine
    if reply.error != codes.NONE or reply.state != ONGOING:
        return machine
    entry = (ask.transactional_id, reply)
    return replace(machine, described=machine.described.including(entry))


def _rest_until(machine: Recovering, now: float) -> float:
    """Return the deadline of the rest of the recovery, which begins now."""
    return max(machine.deadline, now + machine.more_s)


def _commit_early(machine: Recovering, deadline: float) -> Step[Recovering] | None:
    """Commit what is decided before all transactions are described, because a broker is silent.

    Return None if nothing is decided or if it is committed already.
    """
    if machine.state is not _S.DESCRIBING or not machine.commits or machine.ends.machines:
        return None
    until, later = machine.deadline, machine.waiting
    machine = replace(machine, later=later, describes_until=until, deadline=deadline)
    if _is_decided_without_marker(machine):
        return _read_again(machine)
    return _commit(machine) if _decided(machine) else None


def _described_one(machine: Recovering, at: Received) -> Step[Recovering]:
    ask, reply = at.ask, at.reply
    is_known = at.found is Verdict.DONE
    if is_known and isinstance(ask, DescribeTransaction) and isinstance(reply, Described):
        entry = (ask.transactional_id, reply)
        machine = replace(machine, described=machine.described.including(entry))
    elif at.found is not Verdict.NOT_FOUND:
        owner = machine.found.owner
        failure = at.failure(f"the transactions of {owner} could not be described")
        if not at.asks_again and not machine.ends.machines:
            return _over(machine, failure)
        machine = replace(machine, missed=failure)
    machine = replace(machine, waiting=machine.waiting.without(ask))
    if machine.waiting:
        return Step(machine)
    machine = replace(machine, deadline=_rest_until(machine, at.now))
    return _read_again(machine) if _is_decided_without_marker(machine) else _end_or_look(machine)


def _read_again(machine: Recovering) -> Step[Recovering]:
    return asking(_moved(machine, _S.READING), ReadLog(machine.found.owner.driver_id))


def _is_decided_without_marker(machine: Recovering) -> bool:
    driver = dict(machine.described).get(machine.found.owner.driver_id)
    is_committed = driver is not None and driver.state in (PREPARE_COMMIT, COMPLETE_COMMIT)
    return is_committed and bool(_decided_without_marker(machine.found.reading))


def _read(machine: Recovering, at: Received) -> Step[Recovering]:
    owner, before = machine.found.owner, machine.found.reading
    if at.found is not Verdict.DONE or not isinstance(at.reply, LogRead):
        failure = at.failure(f"the commit log record of {owner} could not be read")
        return _over(machine, failure)
    if at.reply.reading.offset > before.offset:
        found = machine.found._replace(reading=at.reply.reading)
        # The description of the driver's transaction says nothing about a later record.
        described = (each for each in machine.described if each[0] != owner.driver_id)
        machine = replace(machine, found=found, described=TreeSet.of(described))
        return _end_or_look(replace(machine, ends=NO_RESOLVINGS))
    if at.now < machine.deadline:
        return asking(machine, at.ask, pause_s=MARKER_PAUSE_S, looks_up=True)
    sentence = (
        f"the decision to commit the write of {owner} is recorded, but the leader of the commit "
        "log does not return it yet"
    )
    return _over(machine, Failure(FailureKind.NO_ANSWER, sentence))


def _end_or_look(machine: Recovering) -> Step[Recovering]:
    if machine.ends.machines:
        return _committed(machine)
    return _commit(machine) if machine.commits else _read_markers(machine)


# -- to commit ------------------------------------------------------------------------------------


def _commit(machine: Recovering) -> Step[Recovering]:
    ends, questions = resolve.begin_all(
        machine.found.owner, _decided(machine), level=machine.level, deadline=machine.deadline
    )
    if not ends.machines:
        return _ended(machine)
    machine = _moved(machine, _S.ENDING)
    return Step(replace(machine, ends=ends, waiting=asks_of(questions)), questions)


_FATES: Final = {
    ResolveState.COMMITTED: Fate.COMMITTED,
    ResolveState.ABORTED: Fate.LOST,
}


def _ended(machine: Recovering) -> Step[Recovering]:
    if not machine.later or machine.ends_early:
        return _committed(machine)
    asks = sorted(machine.later, key=repr)
    machine = replace(machine, later=NO_ITEMS, deadline=machine.describes_until)
    return asking(_moved(machine, _S.DESCRIBING), *asks)


def _committed(machine: Recovering) -> Step[Recovering]:
    ends = machine.ends.machines
    fates = tuple(map(_fate_of_end, ends))
    outcome = replace(
        _recovered(machine, fates),
        lost=resolve.lost(ends, _decided(machine)),
        failures=tuple(each.failure for each in ends if each.failure is not None),
    )
    return _over(machine, outcome)


def _fate_of_end(end: Resolving) -> Fate:
    if end.failure is None:
        return _FATES[end.state]
    return Fate.IN_DOUBT if end.failure.kind is FailureKind.IN_DOUBT else Fate.UNKNOWN


# -- to look only ---------------------------------------------------------------------------------


def _read_markers(machine: Recovering) -> Step[Recovering]:
    described = dict(machine.described)
    asks = [
        _marker_ask(machine, each)
        for each in _decided(machine)
        if _fate_at_coordinator(machine.found.owner, described, each) is None
    ]
    if not asks:
        return _looked(machine)
    return asking(_moved(machine, _S.READING_MARKERS), *asks)


def _fate_at_coordinator(
    owner: Owner, described: Mapping[str, Described], decided: DecidedTransaction
) -> Fate | None:
    """Return the result of a transaction, or None if its coordinator does not know it."""
    found = described.get(owner.task_id(decided.slot))
    if found is None:
        return None
    if found.state == ONGOING:
        return Fate.OPEN if found.producer == decided.producer else None
    is_committed = found.state in (PREPARE_COMMIT, COMPLETE_COMMIT)
    is_same = resolve.is_same_transaction(found.producer, decided.producer)
    return Fate.COMMITTED if is_committed and is_same else None


def _marker_ask(machine: Recovering, decided: DecidedTransaction) -> ReadMarker:
    partition, producer = decided.partition, decided.producer
    return ReadMarker(partition, decided.first_offset, producer, machine.deadline)


def _marker_read(machine: Recovering, at: Received) -> Step[Recovering]:
    found: MarkerRead | Failure
    if isinstance(at.reply, MarkerRead) and at.found is Verdict.DONE:
        found = at.reply
    else:
        found = at.failure("the marker of a transaction could not be read")
    entry = (at.ask, found)
    waiting = machine.waiting.without(at.ask)
    machine = replace(machine, waiting=waiting, markers=machine.markers.including(entry))
    return Step(machine) if machine.waiting else _looked(machine)


def _looked(machine: Recovering) -> Step[Recovering]:
    described, markers = dict(machine.described), dict(machine.markers)
    fates: list[Fate] = []
    lost: list[LostTransaction] = []
    failures: list[Failure] = []
    for each in _decided(machine):
        fate = _fate_at_coordinator(machine.found.owner, described, each)
        read = markers.get(_marker_ask(machine, each), MarkerRead())
        if fate is None:
            fate = _fate_of_marker(read)
        if fate is Fate.LOST and isinstance(read, MarkerRead):
            lost.append(LostTransaction(each, read.records))
        if fate in (Fate.IN_DOUBT, Fate.UNKNOWN):
            failures.append(_why(machine.found.owner, each, read))
        fates.append(fate)
    outcome = replace(_recovered(machine, tuple(fates)), lost=tuple(lost), failures=tuple(failures))
    return _over(machine, outcome)


def _fate_of_marker(read: MarkerRead | Failure) -> Fate:
    if isinstance(read, Failure):
        return Fate.IN_DOUBT if read.error in resolve.NO_LONGER_FOUND else Fate.UNKNOWN
    if read.marker is None:
        return Fate.IN_DOUBT if read.is_gone else Fate.UNKNOWN
    return Fate.COMMITTED if read.marker is Marker.COMMIT else Fate.LOST


def _why(owner: Owner, decided: DecidedTransaction, read: MarkerRead | Failure) -> Failure:
    if isinstance(read, Failure):
        if read.error not in resolve.NO_LONGER_FOUND:
            return read
        why = resolve.NO_LONGER_FOUND[read.error]
    else:
        why = resolve.RECORDS_ARE_GONE if read.is_gone else resolve.NO_MARKER
    return resolve.in_doubt(
        owner.task_id(decided.slot), decided.partition, decided.first_offset, why
    )


# -- what is known --------------------------------------------------------------------------------

_STEPS: Final = {
    _S.DESCRIBING: _described_one,
    _S.READING: _read,
    _S.READING_MARKERS: _marker_read,
}


def _decided(machine: Recovering) -> tuple[DecidedTransaction, ...]:
    return decided_of(machine.found.reading.record)


def _decided_without_marker(reading: LogReading) -> tuple[DecidedTransaction, ...]:
    return decided_of(reading.undecided)


def _recovered(machine: Recovering, fates: Iterable[Fate]) -> Recovered:
    owner = machine.found.owner
    decided = {(owner.task_id(each.slot), each.producer) for each in _decided(machine)}
    was_open: list[OpenSince] = []
    undecided: list[OpenSince] = []
    for transactional_id, described in sorted(machine.described, key=itemgetter(0)):
        if described.state == ONGOING:
            is_decided = (transactional_id, described.producer) in decided
            since = OpenSince(transactional_id, described.start_ms, described.timeout_ms)
            (was_open if is_decided else undecided).append(since)
    found = Recovered(machine.found, tuple(fates), tuple(was_open), tuple(undecided))
    return replace(found, missed=machine.missed)


_NOT_KNOWN: Final = frozenset((Fate.IN_DOUBT, Fate.UNKNOWN))


def merged(early: Recovered, later: Recovered) -> Recovered:
    """Return the result of two recoveries of one record, the first of which has ended early.

    The results that only one of them has found are kept.
    """
    fates: list[Fate] = []
    left: list[Failure] = []
    failures = iter(later.failures)
    for before, after in zip(early.fates, later.fates, strict=True):
        failure = next(failures) if after in _NOT_KNOWN else None
        if failure is not None and before in _NOT_KNOWN:
            left.append(failure)
        fates.append(after if failure is None or before in _NOT_KNOWN else before)
    was_open = {each.transactional_id: each for each in (*early.was_open, *later.was_open)}
    lost = {each.transaction: each for each in (*early.lost, *later.lost)}
    return replace(
        later,
        fates=tuple(fates),
        was_open=tuple(was_open.values()),
        lost=tuple(lost.values()),
        failures=tuple(left),
    )


def _moved(machine: Recovering, state: RecoveryState) -> Recovering:
    return replace(machine, state=moved(RECOVERY, machine.state, state), waiting=NO_ITEMS)


def _over(machine: Recovering, outcome: Outcome) -> Step[Recovering]:
    state = _S.FAILED if isinstance(outcome, Failure) else _S.RECOVERED
    return Step(replace(_moved(machine, state), outcome=outcome))
