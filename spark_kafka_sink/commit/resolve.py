"""Commit one decided transaction, and find out whether its rows are visible.

A transaction is decided once a commit log record that lists it is committed. The steps are:

  1. Send EndTxn(commit). Most error codes do not show whether it is committed or aborted.
  2. After such a code, wait for five seconds, look up the coordinator, and send EndTxn again.
  3. If the result is still unclear, describe the transaction. The response is used only if it shows
     that this very transaction is committed. Other responses prove nothing, because a coordinator
     forgets an id after seven days. Also, with transaction.version 1, a late request may open an
     empty transaction with the same epoch.
  4. Otherwise, read the next marker of the producer in one of the partitions, from the first record
     of the transaction on. Look up the partition's leader before that: a former leader that is cut
     off never gets the marker.

If there is no marker when the time runs out, the failure depends on the description. If the
transaction has ended, its marker can no longer be found, for example because the topic was
recreated (IN_DOUBT). Otherwise, the marker may only be slow (NO_ANSWER). If the topic was deleted,
the marker can no longer be found, either. If a batch in front of the marker is damaged, all steps
are repeated, because another replica may have the batch undamaged. If the transaction has ended and
the batch is still damaged, the marker can no longer be found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.log_record import DecidedTransaction
from spark_kafka_sink.commit.names import Owner
from spark_kafka_sink.commit.outcomes import LostTransaction
from spark_kafka_sink.commit.questions import (
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    Answer,
    Ask,
    Described,
    DescribeTransaction,
    EndTxn,
    MarkerRead,
    Question,
    ReadMarker,
)
from spark_kafka_sink.commit.states import RESOLVE, ResolveState, moved
from spark_kafka_sink.commit.steps import (
    MARKER_PAUSE_S,
    STALE_S,
    Failure,
    FailureKind,
    Received,
    Step,
    end_txn,
    received,
)
from spark_kafka_sink.commit.trees import TreeSet, TreeTuple
from spark_kafka_sink.commit.verdicts import Verdict
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.batch import Marker

RECORDS_ARE_GONE: Final = "its records are no longer in the log"
_IS_DAMAGED: Final = "a batch of the partition is damaged"
NO_MARKER: Final = "it has no marker yet"
# The errors after which the marker in a partition can no longer be found.
NO_LONGER_FOUND: Final[Mapping[int, str]] = {
    codes.UNKNOWN_TOPIC_OR_PARTITION: "its topic no longer exists",
    codes.CORRUPT_MESSAGE: _IS_DAMAGED,
}
_FINAL: Final = frozenset((ResolveState.COMMITTED, ResolveState.ABORTED, ResolveState.UNKNOWN))
_NOT_ENDED: Final = frozenset((ONGOING, PREPARE_COMMIT, PREPARE_ABORT))
# An abort raises the epoch by two if Kafka 4.0 makes it after a timeout.
_MOST_BUMPS: Final = 2
_ENDS: Final = {Marker.COMMIT: ResolveState.COMMITTED, Marker.ABORT: ResolveState.ABORTED}
_S = ResolveState


@dataclass(frozen=True, slots=True)
class Resolving:
    """The state of the commit of one transaction.

    partition, first_offset: the location of one record of the transaction. asked: the request that
    has no reply yet. records: the number of the transaction's records in the partition, if its
    marker was read. failure: why the result is UNKNOWN. has_ended: whether the coordinator's last
    response shows that the transaction is neither open nor waiting for its markers. is_damaged:
    whether the last read for the marker has found a damaged batch.
    """

    state: ResolveState
    transactional_id: str
    producer: ProducerIdAndEpoch
    partition: TopicPartition
    first_offset: int
    level: int
    deadline: float
    asked: Ask | None
    records: int = 0
    failure: Failure | None = None
    has_ended: bool = False
    is_damaged: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the search has ended: the result was found, or the time ran out."""
        return self.state in _FINAL


def begin(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partition: TopicPartition,
    first_offset: int,
    *,
    level: int,
    deadline: float,
) -> Step[Resolving]:
    """Return the state machine that commits one transaction, and its first request to a broker."""
    ask = end_txn(transactional_id, producer, level, commit=True)
    machine = Resolving(
        _S.ENDING, transactional_id, producer, partition, first_offset, level, deadline, ask
    )
    return Step(machine, (Question(ask),))


@dataclass(frozen=True, slots=True)
class Resolvings:
    """The state machines that commit several transactions.

    places: the indexes of the machines, by transactional id and by producer id.
    """

    machines: TreeTuple[Resolving]
    places: Mapping[str | int, Sequence[int]] = field(compare=False, repr=False)


NO_RESOLVINGS: Final = Resolvings(TreeTuple.of(()), {})


def begin_all(
    owner: Owner, transactions: Iterable[DecidedTransaction], *, level: int, deadline: float
) -> Step[Resolvings]:
    """Return a state machine for each transaction, and the first request of each machine."""
    begun = [
        begin(
            owner.task_id(each.slot),
            each.producer,
            each.partition,
            each.first_offset,
            level=level,
            deadline=deadline,
        )
        for each in transactions
    ]
    questions = tuple(question for each in begun for question in each.questions)
    machines = tuple(each.machine for each in begun)
    places: dict[str | int, list[int]] = {}
    for place, machine in enumerate(machines):
        for name in (machine.transactional_id, machine.producer.producer_id):
            places.setdefault(name, []).append(place)
    return Step(Resolvings(TreeTuple.of(machines), places), questions)


def _name_of(ask: Ask) -> str | int:
    """Return the id in a request, which is a key of `Resolvings.places`."""
    if isinstance(ask, EndTxn | DescribeTransaction):
        return ask.transactional_id
    return ask.producer_id if isinstance(ask, ReadMarker) else ""


class Stepped(NamedTuple):
    """The state machines of all transactions after one of them has processed a reply.

    waiting: the requests, of all machines, that have no reply yet. questions: the next requests to
    send.
    """

    machines: Resolvings
    waiting: TreeSet[Ask]
    questions: tuple[Question, ...]


def step_all(machines: Resolvings, waiting: TreeSet[Ask], answer: Answer, now: float) -> Stepped:
    """Pass a reply to the state machine that waits for it. waiting: requests without a reply."""
    every = machines.machines
    questions: tuple[Question, ...] = ()
    waiting = waiting.without(answer.ask)
    for place in machines.places[_name_of(answer.ask)]:
        if every[place].asked == answer.ask:
            machine, questions = step(every[place], answer, now)
            every = every.replacing(place, machine)
            waiting = waiting if machine.asked is None else waiting.including(machine.asked)
    return Stepped(replace(machines, machines=every), waiting, questions)


def lost(
    machines: Iterable[Resolving], transactions: Sequence[DecidedTransaction]
) -> tuple[LostTransaction, ...]:
    """Return the transactions that were aborted.

    machines: the machine of each transaction, in the order of `transactions`.
    """
    pairs = zip(machines, transactions, strict=True)
    return tuple(
        LostTransaction(each, machine.records)
        for machine, each in pairs
        if machine.state is ResolveState.ABORTED
    )


def unknown(machines: Iterable[Resolving]) -> int:
    """Return the number of transactions that may be committed, aborted or still open."""
    return sum(1 for each in machines if each.state is ResolveState.UNKNOWN)


def step(machine: Resolving, answer: Answer, now: float) -> Step[Resolving]:
    """Return the state machine after a reply, with the next requests to send to brokers."""
    if machine.asked != answer.ask:
        return Step(machine)
    at = received(*answer, now)
    if at.asks_again and now < machine.deadline:
        return Step(machine, (at.again(),))
    # An error of DescribeTransactions is not final: a client that may not describe the
    # transactional id may still have the permission (ACL) to read the marker.
    # Another replica may have a damaged batch undamaged.
    is_final = at.asks_again or (at.found is Verdict.FATAL and not _has_found_damage(machine, at))
    if is_final and machine.state is not _S.DESCRIBING:
        failure = at.failure(f"{machine.transactional_id} could not be committed")
        why = NO_LONGER_FOUND.get(at.reply.error)
        if why is not None and machine.state is _S.READING_MARKER:
            failure = _in_doubt(machine, why)
        return _over(replace(machine, failure=failure), _S.UNKNOWN)
    return _STEPS[machine.state](machine, at)


def _ended(machine: Resolving, at: Received) -> Step[Resolving]:
    if at.found is Verdict.DONE:
        return _over(machine, _S.COMMITTED)
    return _ask(machine, _S.ASKING_AGAIN, at.ask, STALE_S, looks_up=True)


def _ended_again(machine: Resolving, at: Received) -> Step[Resolving]:
    if at.found is Verdict.DONE:
        return _over(machine, _S.COMMITTED)
    return _ask(machine, _S.DESCRIBING, DescribeTransaction(machine.transactional_id))


def is_same_transaction(
    described: ProducerIdAndEpoch, producer: ProducerIdAndEpoch, *, most_bumps: int = 1
) -> bool:
    """Return whether a coordinator's response describes this transaction.

    The transaction may be open or ended. described: the producer id and epoch in the response.
    producer: those of the transaction. From version 5 of EndTxn on, the coordinator bumps the epoch
    by one when the transaction ends. most_bumps: how many bumps are accepted.
    """
    is_near = producer.epoch <= described.epoch <= producer.epoch + most_bumps
    return described.producer_id == producer.producer_id and is_near


def _described(machine: Resolving, at: Received) -> Step[Resolving]:
    if at.found is Verdict.DONE and isinstance(at.reply, Described):
        is_same = is_same_transaction(at.reply.producer, machine.producer)
        if at.reply.state == COMPLETE_COMMIT and is_same:
            return _over(machine, _S.COMMITTED)
    machine = replace(machine, has_ended=_has_ended(machine, at))
    ask = ReadMarker(machine.partition, machine.first_offset, machine.producer, machine.deadline)
    return _ask(machine, _S.READING_MARKER, ask, looks_up=True)


def _has_ended(machine: Resolving, at: Received) -> bool:
    if at.found is not Verdict.DONE or not isinstance(at.reply, Described):
        return at.found is Verdict.NOT_FOUND
    found = at.reply.producer
    is_same = is_same_transaction(found, machine.producer, most_bumps=_MOST_BUMPS)
    return not is_same or at.reply.state not in _NOT_ENDED


def _has_found_damage(machine: Resolving, at: Received) -> bool:
    return machine.state is _S.READING_MARKER and at.reply.error == codes.CORRUPT_MESSAGE


def _marker_read(machine: Resolving, at: Received) -> Step[Resolving]:
    read = at.reply if isinstance(at.reply, MarkerRead) else MarkerRead()
    if read.marker is not None:
        return _over(replace(machine, records=read.records), _ENDS[read.marker])
    is_damaged = _has_found_damage(machine, at)
    stays_damaged = is_damaged and machine.is_damaged and machine.has_ended
    if read.is_gone or stays_damaged or at.now >= machine.deadline:
        why = _IS_DAMAGED if is_damaged else NO_MARKER
        failure = _in_doubt(machine, RECORDS_ARE_GONE if read.is_gone else why)
        if not read.is_gone and not machine.has_ended:
            failure = replace(failure, kind=FailureKind.NO_ANSWER)
        return _over(replace(machine, failure=failure), _S.UNKNOWN)
    machine = replace(machine, is_damaged=is_damaged)
    ask = end_txn(machine.transactional_id, machine.producer, machine.level, commit=True)
    return _ask(machine, _S.ENDING, ask, MARKER_PAUSE_S)


def in_doubt(
    transactional_id: str, partition: TopicPartition, first_offset: int, why: str
) -> Failure:
    """Return the failure for a transaction whose result is not known. why: the reason."""
    sentence = (
        f"the records that {transactional_id} wrote to {partition} from offset {first_offset} on "
        f"may be committed or aborted: {why}"
    )
    return Failure(FailureKind.IN_DOUBT, sentence)


_STEPS: Final = {
    _S.ENDING: _ended,
    _S.ASKING_AGAIN: _ended_again,
    _S.DESCRIBING: _described,
    _S.READING_MARKER: _marker_read,
}


def _in_doubt(machine: Resolving, why: str) -> Failure:
    return in_doubt(machine.transactional_id, machine.partition, machine.first_offset, why)


def _over(machine: Resolving, state: ResolveState) -> Step[Resolving]:
    return Step(replace(machine, state=moved(RESOLVE, machine.state, state), asked=None))


def _ask(
    machine: Resolving,
    state: ResolveState,
    ask: Ask,
    pause_s: float = 0.0,
    *,
    looks_up: bool = False,
) -> Step[Resolving]:
    moved_on = replace(machine, state=moved(RESOLVE, machine.state, state), asked=ask)
    return Step(moved_on, (Question(ask, pause_s, looks_up),))
