"""What all machines of exactly once share: a step, a failure, and when a question is asked again.

A machine is a frozen value. ``step(machine, answer, now)`` returns the next one and the questions
to send. It is over once it has an outcome. An answer to a question that the machine no longer has
is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.names import Owner
from spark_kafka_sink.commit.questions import (
    COMPLETE_ABORT,
    PREPARE_ABORT,
    AddPartitions,
    Ask,
    Described,
    DescribeProducers,
    DescribeTransaction,
    EndTxn,
    InitProducerId,
    ListTransactions,
    Question,
    ReadAllRecords,
    ReadLog,
    ReadMarker,
    Reply,
    WriteRecord,
)
from spark_kafka_sink.commit.verdicts import END_TXN_1, END_TXN_2, Call, Verdict, verdict
from spark_kafka_sink.errors import (
    KafkaException,
    ProducerFencedException,
    TransactionAbortedException,
    advice,
    api_exception,
    error_code,
)
from spark_kafka_sink.model import ProducerIdAndEpoch

# A marker takes a few milliseconds; a leader or a coordinator that moves takes longer.
_SHORT_PAUSE_S: Final = 0.02
PAUSE_S: Final = 0.1
# Coordinators answer before they have written the markers of a transaction.
MARKER_PAUSE_S: Final = 0.1
# A broker that is no longer the coordinator may answer from its old state for so long
# (KAFKA-21181).
STALE_S: Final = 5.0

M = TypeVar("M")


class Step(NamedTuple, Generic[M]):
    """A machine, and the questions to send now."""

    machine: M
    questions: tuple[Question, ...] = ()


class Waiting(Protocol):
    """A machine that waits for the answers to several questions."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def waiting(self) -> frozenset[Ask]:
        """The questions without an answer."""


W = TypeVar("W", bound=Waiting)


def asking(machine: W, *asks: Ask, pause_s: float = 0.0, looks_up: bool = False) -> Step[W]:
    """Return the step of a machine that asks these questions, and waits for their answers."""
    questions = tuple(Question(ask, pause_s, looks_up) for ask in asks)
    return Step(replace(machine, waiting=frozenset(asks)), questions)


class Received(NamedTuple):
    """An answer, its meaning, and the time when it came."""

    ask: Ask
    reply: Reply
    found: Verdict
    now: float

    @property
    def asks_again(self) -> bool:
        """Whether the question is to be asked again."""
        return self.found in (Verdict.RETRY, Verdict.LOOK_UP)

    def again(self) -> Question:
        """Return the question to ask again."""
        error = self.reply.error
        pause_s = _SHORT_PAUSE_S if error == codes.CONCURRENT_TRANSACTIONS else PAUSE_S
        lost = error in (codes.NETWORK_EXCEPTION, codes.REQUEST_TIMED_OUT)
        return Question(self.ask, pause_s, looks_up=lost or self.found is Verdict.LOOK_UP)

    def failure(self, what: str) -> Failure:
        """Return the failure for a reply that ends a machine; what: what could not be done."""
        name, error = call_of(self.ask).value, self.reply.error
        found = error_code(error)
        kind = FailureKind.NO_ANSWER if found.retriable else FailureKind.REFUSED
        said = f"; {self.reply.reason}" if self.reply.reason else ""
        return Failure(kind, f"{what}: {name} got {found.name} ({error}){said}", error, name)


class FailureKind(Enum):
    """Why a machine failed."""

    SUPERSEDED = "superseded by a newer run"
    TIMED_OUT = "the transaction is no longer open, or not for long enough"
    REFUSED = "a broker refused"
    NO_ANSWER = "no broker has answered in time"
    CONFLICT = "two attempts wrote to one partition"
    LOST = "a partition does not hold what was acknowledged"
    IN_DOUBT = "committed or aborted: it can no longer be found out"
    NOT_FIT = "the broker is not fit for mode single"
    BELOW_FLOOR = "the version is too old"
    NEWER_FORMAT = "the commit log was written by a newer version"


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason of a failure: a kind, and a sentence. error: the code of a broker, 0 if none."""

    kind: FailureKind
    sentence: str
    error: int = codes.NONE
    api: str | None = None

    def exception(self) -> KafkaException:
        """Return the exception for a user."""
        if self.kind is FailureKind.SUPERSEDED:
            return ProducerFencedException(self.sentence, api=self.api)
        if self.error:
            parts = (self.sentence, advice(self.error))
            message = "; ".join(part for part in parts if part)
            return api_exception(self.error, message, api=self.api)
        return TransactionAbortedException(self.sentence)


_CALLS: Final[dict[type, Call]] = {
    ListTransactions: Call.LIST_TRANSACTIONS,
    DescribeTransaction: Call.DESCRIBE_TRANSACTIONS,
    InitProducerId: Call.INIT_PRODUCER_ID,
    AddPartitions: Call.ADD_PARTITIONS_TO_TXN,
    WriteRecord: Call.PRODUCE,
    DescribeProducers: Call.DESCRIBE_PRODUCERS,
    ReadLog: Call.FETCH,
    ReadAllRecords: Call.FETCH,
    ReadMarker: Call.FETCH,
}


def call_of(ask: Ask) -> Call:
    """Return the call by which a question is asked."""
    if isinstance(ask, EndTxn):
        return Call.COMMIT if ask.commit else Call.ABORT
    return _CALLS[type(ask)]


def received(ask: Ask, reply: Reply, now: float) -> Received:
    """Return what an answer means."""
    version = ask.version if isinstance(ask, EndTxn) else END_TXN_2
    return Received(ask, reply, verdict(call_of(ask), reply.error, version), now)


def asks_of(questions: Iterable[Question]) -> frozenset[Ask]:
    """Return what the questions ask."""
    return frozenset(question.ask for question in questions)


def end_txn(
    transactional_id: str, producer: ProducerIdAndEpoch, level: int, *, commit: bool
) -> EndTxn:
    """Return the ask that ends a transaction, in the version of the level."""
    version = END_TXN_2 if level >= 2 else END_TXN_1
    return EndTxn(transactional_id, producer, commit, version)


def is_newer(described: Described, producer: ProducerIdAndEpoch) -> bool:
    """Return whether a newer run has the id; else a timeout has raised the epoch of `producer`.

    A timeout raises the epoch by one, and so does InitProducerId if nothing was open.
    """
    found = described.producer
    if found.producer_id != producer.producer_id or found.epoch > producer.epoch + 1:
        return True
    is_aborted = described.state in (PREPARE_ABORT, COMPLETE_ABORT)
    return found.epoch > producer.epoch and not is_aborted


def superseded(owner: Owner) -> Failure:
    """Return the failure of a run that a newer run of its owner has fenced."""
    return Failure(FailureKind.SUPERSEDED, f"superseded by a newer run of {owner}")
