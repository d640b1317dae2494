"""The parts that all exactly-once state machines share: steps, replies and failures.

A state machine is a frozen value. It lets the caller send requests to brokers, each as a
`Question`. ``step(machine, answer, now)`` takes a request with its reply (`Answer`). It returns the
machine in its next state, and the next requests to send. The machine has ended once its `outcome`
is set. It ignores the reply to a request that it does not wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.attempts import Plan
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
from spark_kafka_sink.commit.trees import TreeSet
from spark_kafka_sink.commit.verdicts import END_TXN_1, END_TXN_2, Call, Verdict, verdict
from spark_kafka_sink.errors import (
    ConfigException,
    KafkaException,
    ProducerFencedException,
    TransactionAbortedException,
    advice,
    api_exception,
    error_code,
)
from spark_kafka_sink.model import ProducerIdAndEpoch

# Seconds until a request is sent again. The short pause is for CONCURRENT_TRANSACTIONS: brokers
# write a marker within a few milliseconds. A new leader or coordinator takes longer.
_SHORT_PAUSE_S: Final = 0.02
PAUSE_S: Final = 0.1
# Coordinators respond to EndTxn before they have written the markers of the transaction.
MARKER_PAUSE_S: Final = 0.1
# How long a broker may respond as coordinator after another has replaced it (KAFKA-21181).
STALE_S: Final = 5.0
# How long a broker may respond as leader after another has replaced it. If a broker is cut off, its
# partitions get new leaders after broker.session.timeout.ms, 9 s by default.
OLD_LEADER_S: Final = 10.0

# The client multiplies each pause by a random number up to this, and down to 2 minus this.
JITTER: Final = 1.2

M = TypeVar("M")


class Step(NamedTuple, Generic[M]):
    """A state machine in its new state, and the requests to send now."""

    machine: M
    questions: tuple[Question, ...] = ()


class Waiting(Protocol):
    """A state machine that can wait for the replies to several requests at once."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def waiting(self) -> TreeSet[Ask]:
        """The requests that have no reply yet."""


W = TypeVar("W", bound=Waiting)


def asking(machine: W, *asks: Ask, pause_s: float = 0.0, looks_up: bool = False) -> Step[W]:
    """Return the step in which a state machine sends these requests and waits for their replies."""
    questions = tuple(Question(ask, pause_s, looks_up) for ask in asks)
    return Step(replace(machine, waiting=TreeSet.of(asks)), questions)


class Received(NamedTuple):
    """A request, the reply to it, what the reply means, and the time when it arrived."""

    ask: Ask
    reply: Reply
    found: Verdict
    now: float

    @property
    def asks_again(self) -> bool:
        """Whether the same request has to be sent again."""
        return self.found in (Verdict.RETRY, Verdict.LOOK_UP)

    @property
    def is_missing(self) -> bool:
        """Whether a broker does not know the partition of a DescribeProducers request.

        The partition may be so new that the broker does not know it yet, or it was deleted.
        """
        is_unknown = self.reply.error == codes.UNKNOWN_TOPIC_OR_PARTITION
        return is_unknown and isinstance(self.ask, DescribeProducers)

    def again(self) -> Question:
        """Return the same request, to be sent again after a pause."""
        error = self.reply.error
        pause_s = _SHORT_PAUSE_S if error == codes.CONCURRENT_TRANSACTIONS else PAUSE_S
        lost = error in (codes.NETWORK_EXCEPTION, codes.REQUEST_TIMED_OUT)
        return Question(self.ask, pause_s, looks_up=lost or self.found is Verdict.LOOK_UP)

    def failure(self, what: str) -> Failure:
        """Return the failure with which a state machine ends after this reply.

        what: what could not be done.
        """
        name, error = call_of(self.ask).value, self.reply.error
        found = error_code(error)
        kind = FailureKind.NO_ANSWER if self.asks_again else FailureKind.REFUSED
        said = f"; {self.reply.reason}" if self.reply.reason else ""
        partition = getattr(self.ask, "partition", None)
        topic = None if partition is None else partition.topic
        return Failure(kind, f"{what}: {name} got {found.name} ({error}){said}", error, name, topic)


class FailureKind(Enum):
    """The reason why a state machine failed."""

    SUPERSEDED = "superseded by a newer run"
    TIMED_OUT = "the transaction is no longer open, or times out too soon"
    REFUSED = "a broker refused"
    NO_ANSWER = "no broker has answered in time"
    CONFLICT = "two attempts wrote to one partition"
    LOST = "a partition does not hold what was acknowledged"
    IN_DOUBT = "committed or aborted, but it can no longer be found out which"
    NOT_FIT = "the broker is not fit for mode single"
    BELOW_FLOOR = "the version is too old"
    NEWER_FORMAT = "the commit log was written by a newer version"


# The exception classes for failures without an error code. For a kind that is not listed, the class
# is TransactionAbortedException.
_EXCEPTIONS: Final[Mapping[FailureKind, type[KafkaException]]] = {
    FailureKind.SUPERSEDED: ProducerFencedException,
    FailureKind.NO_ANSWER: KafkaException,
    FailureKind.IN_DOUBT: KafkaException,
    FailureKind.BELOW_FLOOR: ConfigException,
    FailureKind.NEWER_FORMAT: KafkaException,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a state machine.

    sentence: the message for the user. error: the error code of a broker, or 0 if there is none.
    api: the name of the API that returned the code. topic: the topic in the field `partition` of
    the request, or None if the request has no such field.
    """

    kind: FailureKind
    sentence: str
    error: int = codes.NONE
    api: str | None = None
    topic: str | None = None

    def exception(self) -> KafkaException:
        """Return the exception for the user."""
        if self.error:
            # The advice for topics is about WRITE, but READ may be the missing permission.
            is_advised = self.error != codes.TOPIC_AUTHORIZATION_FAILED
            parts = (self.sentence, advice(self.error) if is_advised else None)
            message = "; ".join(part for part in parts if part)
            return api_exception(self.error, message, topic=self.topic, api=self.api)
        return _EXCEPTIONS.get(self.kind, TransactionAbortedException)(self.sentence)


_CALLS: Final[dict[type, Call]] = {
    ListTransactions: Call.LIST_TRANSACTIONS,
    DescribeTransaction: Call.DESCRIBE_TRANSACTIONS,
    InitProducerId: Call.INIT_PRODUCER_ID,
    AddPartitions: Call.ADD_PARTITIONS_TO_TXN,
    WriteRecord: Call.PRODUCE,
    DescribeProducers: Call.DESCRIBE_PRODUCERS,
    ReadLog: Call.READ_LOG,
    ReadAllRecords: Call.READ_LOG,
    ReadMarker: Call.READ_MARKER,
}


def call_of(ask: Ask) -> Call:
    """Return the kind of API call that a request (`Ask`) makes."""
    if isinstance(ask, EndTxn):
        return Call.COMMIT if ask.commit else Call.ABORT
    return _CALLS[type(ask)]


def received(ask: Ask, reply: Reply, now: float) -> Received:
    """Return a reply together with the meaning of its error code."""
    version = ask.version if isinstance(ask, EndTxn) else END_TXN_2
    return Received(ask, reply, verdict(call_of(ask), reply.error, version), now)


def asks_of(questions: Iterable[Question]) -> TreeSet[Ask]:
    """Return the requests (`Ask`) in `questions` as a set."""
    return TreeSet.of(question.ask for question in questions)


def end_txn(
    transactional_id: str, producer: ProducerIdAndEpoch, level: int, *, commit: bool
) -> EndTxn:
    """Return the EndTxn request that commits or aborts a transaction.

    level: the transaction.version that the cluster has finalized, which selects the EndTxn version.
    """
    version = END_TXN_2 if level >= 2 else END_TXN_1
    return EndTxn(transactional_id, producer, commit, version)


def is_newer(described: Described, plan: Plan) -> bool:
    """Return whether a newer run has raised the epoch of the driver's transactional id.

    A transaction timeout raises the epoch by one. If no transaction was open, InitProducerId of a
    newer run raises it by one, too. The state of the transaction shows which of the two has
    happened. At level 2 (transaction.version 2), each abort of the driver also raises the epoch,
    and with Kafka 4.0 a timeout raises it by two. So at level 2, the higher epoch of an aborted
    transaction does not prove that there is a newer run.
    """
    found, producer = described.producer, plan.producer
    if found.producer_id != producer.producer_id:
        return True
    is_aborted = described.state in (PREPARE_ABORT, COMPLETE_ABORT)
    if plan.run.level < 2 and found.epoch > producer.epoch + 1:
        return True
    return found.epoch > producer.epoch and not is_aborted


def superseded(owner: Owner) -> Failure:
    """Return the failure of a run that a newer run of the same owner has fenced."""
    return Failure(FailureKind.SUPERSEDED, f"superseded by a newer run of {owner}")
