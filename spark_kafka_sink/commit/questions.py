"""The requests that the exactly-once state machines let the caller send, and the replies.

A state machine returns objects of the class `Question`. Each contains a request (an object of a
class in `Ask`) and states how to send it. The machine gets each request with its reply as an
`Answer`. `commit_client` sends the requests. It finds the coordinator of a transactional id and the
leader of a partition, but it does not decide what to send. If a request gets no response, the reply
is `Unanswered`.

All classes are frozen and hashable, so that a model checker can keep, copy and compare the states
of the machines. An owner is a txnAppId and its target topic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.commit.log_record import NOTHING, CommitRecord, LogReading
from spark_kafka_sink.model import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.batch import Marker

# The states of a transaction at its coordinator, as DescribeTransactions names them.
ONGOING: Final = "Ongoing"
EMPTY: Final = "Empty"
PREPARE_COMMIT: Final = "PrepareCommit"
PREPARE_ABORT: Final = "PrepareAbort"
COMPLETE_COMMIT: Final = "CompleteCommit"
COMPLETE_ABORT: Final = "CompleteAbort"


@dataclass(frozen=True, slots=True)
class ListTransactions:
    """Request the list of open transactions from every broker.

    prefix: the prefix of the transactional ids to list. Ids of other applications may have it, too.
    """

    prefix: str


@dataclass(frozen=True, slots=True)
class DescribeTransaction:
    """Request the state of a transaction from the coordinator of its transactional id."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """Request a transactional id's next epoch from its coordinator, to fence older producers.

    producer: the producer id and epoch that the caller has, if it must not fence a newer producer
    (KIP-360). If there is none, all producers are fenced.
    """

    transactional_id: str
    timeout_ms: int
    producer: ProducerIdAndEpoch = NO_PRODUCER_ID


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Request that the coordinator adds partitions to a transaction (AddPartitionsToTxn 3)."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Send a commit log record in a transaction to the leader of the log (Produce, acks=-1).

    sequence: the sequence number of the record for this producer. again: whether the same record
    was sent before. The broker then has to report a duplicate. level: the transaction.version that
    the cluster has finalized. At level 1, Produce 11 is the highest version that may be sent.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    sequence: int
    record: CommitRecord
    level: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class EndTxn:
    """Request the commit or abort of a transaction.

    version: the version of EndTxn to send. send_by: the request must not be sent after this time.
    """

    transactional_id: str
    producer: ProducerIdAndEpoch
    commit: bool
    version: int
    send_by: float = field(default=math.inf, compare=False)


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read an owner's records from the leader of the commit log, up to the high watermark.

    key: the driver id of the owner. The high watermark is found with ListOffsets 5 or later.
    """

    key: str


@dataclass(frozen=True, slots=True)
class ReadAllRecords:
    """Read the records of several owners from the leader of the log, as `ReadLog` does for one.

    prefix: the prefix of the owners' driver ids.
    """

    prefix: str


@dataclass(frozen=True, slots=True)
class DescribeProducers:
    """Request the active producers of a partition from its leader."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class ReadMarker:
    """Read the marker of a producer's transaction in a partition.

    offset: the offset of a record of the transaction. producer: the producer id and epoch of the
    transaction's records. deadline: the time to stop reading if the marker is far from the offset.
    """

    partition: TopicPartition
    offset: int
    producer: ProducerIdAndEpoch
    deadline: float = field(default=math.inf, compare=False)

    @property
    def producer_id(self) -> int:
        """The producer id of the transaction's records."""
        return self.producer.producer_id


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
    """A request to send, and how to send it.

    pause_s: the seconds to wait before it is sent. looks_up: whether to look up the coordinator or
    the leader again first, because the known one may be outdated.
    """

    ask: Ask
    pause_s: float = 0.0
    looks_up: bool = False


class OpenTransaction(NamedTuple):
    """An open transaction in the response to ListTransactions."""

    transactional_id: str
    producer_id: int


@dataclass(frozen=True, slots=True)
class Listed:
    """The reply to `ListTransactions`: the open transactions of all brokers."""

    transactions: frozenset[OpenTransaction] = frozenset()
    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Described:
    """The reply to `DescribeTransaction`.

    start_ms: when the transaction began, by the coordinator's clock; -1 if none is open.
    """

    state: str = EMPTY
    producer: ProducerIdAndEpoch = NO_PRODUCER_ID
    timeout_ms: int = 0
    start_ms: int = -1
    partitions: frozenset[TopicPartition] = frozenset()
    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Initialized:
    """The reply to `InitProducerId`: the producer id and the epoch of the transactional id."""

    producer: ProducerIdAndEpoch = NO_PRODUCER_ID
    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Added:
    """The reply to `AddPartitions`. error: the error code of the first partition that failed."""

    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """The reply to `WriteRecord`.

    is_duplicate: whether the response contains a log append time, which marks a duplicate.
    """

    offset: int = -1
    is_duplicate: bool = False
    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The reply to `EndTxn`.

    producer: the producer id and epoch for the next transaction, if EndTxn 5 or later was used.
    """

    producer: ProducerIdAndEpoch = NO_PRODUCER_ID
    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LogRead:
    """The reply to `ReadLog`: the owner's records below the offset `end`."""

    reading: LogReading = NOTHING
    error: int = codes.NONE
    reason: str = ""
    end: int = 0


@dataclass(frozen=True, slots=True)
class AllRecordsRead:
    """The reply to `ReadAllRecords`: pairs of a driver id and the records of that owner."""

    readings: tuple[tuple[str, LogReading], ...] = ()
    error: int = codes.NONE
    reason: str = ""


class ActiveProducer(NamedTuple):
    """An active producer of a partition.

    last_sequence: its last sequence number. transaction_start: the first offset of its open
    transaction, or -1 if none is open.
    """

    producer: ProducerIdAndEpoch
    last_sequence: int
    transaction_start: int


@dataclass(frozen=True, slots=True)
class ProducersDescribed:
    """The reply to `DescribeProducers`: the active producers of the partition."""

    producers: tuple[ActiveProducer, ...] = ()
    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MarkerRead:
    """The reply to `ReadMarker`: the marker, or None if there is none up to the end of the log.

    records: the number of the producer's records between the offset and the marker. is_gone:
    whether the marker may have been deleted. This is so if the offset is below the start of the
    log, or if the log contains a later transaction of the producer but no marker of this one.
    """

    marker: Marker | None = None
    records: int = 0
    is_gone: bool = False
    error: int = codes.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The reply for a request that got no response. The broker may have processed the request.

    error: NETWORK_EXCEPTION or REQUEST_TIMED_OUT.
    """

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
    """A request and the reply to it: the event that moves a state machine to its next state."""

    ask: Ask
    reply: Reply
