"""What the machines of exactly once ask of brokers, and the replies.

A machine returns questions, and gets each reply as an `Answer`. `commit_client` sends them: it
knows which node coordinates a transactional id and which leads a partition. It decides nothing. A
question that got no response has the reply `Unanswered`.

All of it is frozen and hashable, so that a model can keep, copy and compare states of machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.log_record import NOTHING, CommitRecord, LogReading
from spark_kafka_sink.model import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.batch import Marker

# The states of a transaction at its coordinator, by the names that DescribeTransactions has.
ONGOING: Final = "Ongoing"
EMPTY: Final = "Empty"
PREPARE_COMMIT: Final = "PrepareCommit"
PREPARE_ABORT: Final = "PrepareAbort"
COMPLETE_COMMIT: Final = "CompleteCommit"
COMPLETE_ABORT: Final = "CompleteAbort"


@dataclass(frozen=True, slots=True)
class ListTransactions:
    """To every broker: which transactions are open.

    prefix: the beginning of the ids to list. A reply may have other ids, too.
    """

    prefix: str


@dataclass(frozen=True, slots=True)
class DescribeTransaction:
    """To the coordinator of the id: the state of its transaction."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """To the coordinator: the next epoch. This fences the producer that has the present one."""

    transactional_id: str
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """To the coordinator: make partitions part of the transaction (AddPartitionsToTxn 3)."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """To the leader of the log's partition: a record in the transaction (Produce, acks=-1).

    sequence: of the record, for this producer. again: whether it was sent before, so that the
    broker has to report a duplicate. level: the transaction.version; at 1, Produce 11 is the last
    version to send.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    sequence: int
    record: CommitRecord
    level: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class EndTxn:
    """To the coordinator: commit or abort the transaction, in exactly this version of EndTxn."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    commit: bool
    version: int


@dataclass(frozen=True, slots=True)
class ReadLog:
    """To the leader of the log's partition: the records of an owner, read up to the high watermark.

    A `LogReader` takes every batch up to the end, which ListOffsets 5 returns.
    """

    key: str


@dataclass(frozen=True, slots=True)
class ReadAllRecords:
    """To the leader of the log's partition: the records of all owners, as `ReadLog` reads one.

    prefix: the beginning of the driver ids that are wanted.
    """

    prefix: str


@dataclass(frozen=True, slots=True)
class DescribeProducers:
    """To the leader: the producers of a partition."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class ReadMarker:
    """To the leader: the next marker of a producer in a partition, from an offset on."""

    partition: TopicPartition
    offset: int
    producer_id: int


Ask: TypeAlias = (
    ListTransactions
    | DescribeTransaction
    | InitProducerId
    | AddPartitions
    | WriteRecord
    | EndTxn
    | ReadLog
    | ReadAllRecords
    | DescribeProducers
    | ReadMarker
)


@dataclass(frozen=True, slots=True)
class Question:
    """A message to send after a pause.

    looks_up: find the coordinator or the leader again first, because the known one may be stale.
    """

    ask: Ask
    pause_s: float = 0.0
    looks_up: bool = False


class OpenTransaction(NamedTuple):
    """An entry of a list of open transactions."""

    transactional_id: str
    producer_id: int


@dataclass(frozen=True, slots=True)
class Listed:
    """The open transactions of all brokers."""

    transactions: frozenset[OpenTransaction] = frozenset()
    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Described:
    """The transaction of an id; start_ms is the coordinator's clock, -1 if nothing is open."""

    state: str = EMPTY
    producer: ProducerIdAndEpoch = NO_PRODUCER_ID
    timeout_ms: int = 0
    start_ms: int = -1
    partitions: frozenset[TopicPartition] = frozenset()
    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Initialized:
    """The producer id and the epoch of a transactional id."""

    producer: ProducerIdAndEpoch = NO_PRODUCER_ID
    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Added:
    """Partitions are part of the transaction; error: the first of any partition."""

    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """The record is in the log; is_duplicate: the response has a log append time."""

    offset: int = -1
    is_duplicate: bool = False
    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The transaction has ended; producer: for the next one, from version 5 on."""

    producer: ProducerIdAndEpoch = NO_PRODUCER_ID
    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LogRead:
    """The records of an owner in the log, up to the offset `end`."""

    reading: LogReading = NOTHING
    error: int = codes.NONE
    reason: str = ""
    end: int = 0


@dataclass(frozen=True, slots=True)
class AllRecordsRead:
    """What the log has of each owner, by its driver id."""

    readings: tuple[tuple[str, LogReading], ...] = ()
    error: int = codes.NONE
    reason: str = ""


class ActiveProducer(NamedTuple):
    """A producer of a partition: its last sequence, and the start of its transaction or -1."""

    producer: ProducerIdAndEpoch
    last_sequence: int
    transaction_start: int


@dataclass(frozen=True, slots=True)
class ProducersDescribed:
    """The producers of a partition."""

    producers: tuple[ActiveProducer, ...] = ()
    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MarkerRead:
    """The next marker; None if the log has none up to its end.

    records: of the producer, from the offset up to the marker. is_gone: the offset is below the
    log's start, so the marker may have been deleted.
    """

    marker: Marker | None = None
    records: int = 0
    is_gone: bool = False
    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No response: NETWORK_EXCEPTION or REQUEST_TIMED_OUT. A broker may have acted nevertheless."""

    error: int
    reason: str = ""


Reply: TypeAlias = (
    Listed
    | Described
    | Initialized
    | Added
    | Written
    | Ended
    | LogRead
    | AllRecordsRead
    | ProducersDescribed
    | MarkerRead
    | Unanswered
)


class Answer(NamedTuple):
    """A question and its reply: the event that a machine steps on."""

    ask: Ask
    reply: Reply
