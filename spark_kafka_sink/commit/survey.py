"""The survey of all owners: find the owners that have a record or an open transaction.

An owner is a txnAppId and its target topic. `begin_survey` starts a state machine that reads the
records of all owners and lists the open transactions. It changes nothing. `recovery` continues with
each owner that it finds.

If a broker is silent, the open transactions cannot be listed. To commit what is decided, a recovery
needs only the records. So if a record lists transactions that have to be committed, a survey with
`ends_early` ends once the records are read and one request for the list has had no response. The
caller commits these transactions, and then makes another survey.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.log_record import (
    NOTHING,
    CommitRecord,
    DecidedTransaction,
    LogReading,
    RecordState,
)
from spark_kafka_sink.commit.names import Owner, read_id
from spark_kafka_sink.commit.questions import (
    AllRecordsRead,
    Answer,
    Ask,
    Listed,
    ListTransactions,
    ReadAllRecords,
    Unanswered,
)
from spark_kafka_sink.commit.steps import Failure, FailureKind, Received, Step, asking, received
from spark_kafka_sink.commit.trees import NO_ITEMS, TreeSet
from spark_kafka_sink.commit.verdicts import Verdict


class FoundOwner(NamedTuple):
    """An owner, its records in the commit log, and the ids of its open transactions.

    open_ids is None if the open transactions could not be listed.
    """

    owner: Owner
    reading: LogReading
    open_ids: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The owners that have a record or an open transaction, sorted.

    missed: why the open transactions could not be listed, or None if they were. Without the list,
    the owners are only those that have a record. is_early: whether the survey has ended early.
    """

    owners: tuple[FoundOwner, ...]
    missed: Failure | None = None
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class Surveying:
    """The state of a survey of all owners whose txnIdPrefix is `prefix`.

    ends_early: whether the survey may end early, to commit what is decided. missed: why the last
    request for the list of open transactions has failed, or None.
    """

    prefix: str
    deadline: float
    ends_early: bool
    waiting: TreeSet[Ask] = NO_ITEMS
    readings: tuple[tuple[str, LogReading], ...] = ()
    open_ids: frozenset[str] = frozenset()
    missed: Failure | None = None
    outcome: Surveyed | Failure | None = None


def begin(prefix: str, *, deadline: float, ends_early: bool = False) -> Step[Surveying]:
    """Return the state machine of a survey, and its requests.

    prefix: the option txnIdPrefix. ends_early: whether the survey may end early, to commit what is
    decided.
    """
    beginning = f"{prefix}/"
    machine = Surveying(prefix, deadline, ends_early)
    return asking(machine, ReadAllRecords(beginning), ListTransactions(beginning))


def step(machine: Surveying, answer: Answer, now: float) -> Step[Surveying]:
    """Return the state machine after a reply, with the next requests to send to brokers.

    If only the list of open transactions fails, the survey continues: to commit what is decided, a
    recovery needs only the records.
    """
    if answer.ask not in machine.waiting:
        return Step(machine)
    at = received(*answer, now)
    is_listing = isinstance(at.ask, ListTransactions)
    if is_listing and isinstance(at.reply, Unanswered):
        machine = replace(machine, missed=_failure(machine, at))
    # Do not wait for a missing log. No application has written yet, or the log has another name.
    is_missing = at.reply.error == codes.UNKNOWN_TOPIC_OR_PARTITION
    has_time = now < machine.deadline and not _is_urgent(machine)
    if at.asks_again and not is_missing and has_time:
        return Step(machine, (at.again(),))
    if isinstance(at.reply, AllRecordsRead) and at.found is Verdict.DONE:
        machine = replace(machine, readings=at.reply.readings)
    elif isinstance(at.reply, Listed) and at.found is Verdict.DONE:
        listed = frozenset(each.transactional_id for each in at.reply.transactions)
        machine = replace(machine, open_ids=listed, missed=None)
    elif is_listing:
        machine = replace(machine, missed=_failure(machine, at))
    else:
        return Step(replace(machine, waiting=NO_ITEMS, outcome=_failure(machine, at)))
    machine = replace(machine, waiting=machine.waiting.without(at.ask))
    if machine.waiting and not _is_urgent(machine):
        return Step(machine)
    outcome = Surveyed(_owners(machine), machine.missed, _is_urgent(machine))
    return Step(replace(machine, waiting=NO_ITEMS, outcome=outcome))


def _failure(machine: Surveying, at: Received) -> Failure:
    beginning = f"{machine.prefix}/"
    return at.failure(f"the transactional ids that begin with {beginning!r} could not be listed")


def _is_urgent(machine: Surveying) -> bool:
    """Return whether transactions have to be committed, and the list may take too long."""
    if not machine.ends_early or machine.missed is None:
        return False
    is_silent = machine.missed.kind is FailureKind.NO_ANSWER
    return is_silent and any(has_decided(reading) for _, reading in machine.readings)


def has_decided(reading: LogReading) -> bool:
    """Return whether a record of an owner lists transactions that may have to be committed."""
    return bool(decided_of(reading.record) or decided_of(reading.undecided))


def decided_of(record: CommitRecord | None) -> tuple[DecidedTransaction, ...]:
    """Return the decided transactions in a record, or () if its state is not DECIDED."""
    if record is None or record.state is not RecordState.DECIDED:
        return ()
    return record.transactions


def _owners(machine: Surveying) -> tuple[FoundOwner, ...]:
    readings: dict[Owner, LogReading] = {}
    open_ids: dict[Owner, list[str]] = {}
    for key, reading in machine.readings:
        found = read_id(key)
        if found is not None and found[1] is None:
            readings[found[0]] = reading
    for transactional_id in sorted(machine.open_ids):
        found = read_id(transactional_id)
        if found is not None:
            open_ids.setdefault(found[0], []).append(transactional_id)
    is_listed = machine.missed is None
    return tuple(
        FoundOwner(
            owner,
            readings.get(owner, NOTHING),
            tuple(open_ids.get(owner, ())) if is_listed else None,
        )
        for owner in sorted({*readings, *open_ids})
        if owner.prefix == machine.prefix
    )
