"""The messages about transactions (KIP-98, KIP-447, KIP-664, KIP-890).

The classes are declared in the same way as in `messages`. AddPartitionsToTxn is declared up to
version 3, because only brokers use later versions. If a client sends EndTxn 5 or TxnOffsetCommit 5,
the broker assumes transaction.version 2. Callers therefore use lower versions if the cluster has
not finalized that feature level. From version 4 on, a FindCoordinator request can contain several
keys. The version is chosen after the request is constructed, so the client sets both `key` and
`coordinator_keys`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from spark_kafka_sink.wire.message_codecs import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Nullable,
    Since,
    Until,
)


@dataclass(slots=True, kw_only=True)
class FindCoordinatorRequest:
    """The request for the coordinator of a group (key type 0) or transactional id (key type 1)."""

    key: Annotated[str, Until(3)] = ""
    key_type: Annotated[Int8, Since(1)] = 0
    coordinator_keys: Annotated[list[str], Since(4)] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Coordinator:
    """The coordinator of one key, or an error code."""

    key: Annotated[str, Since(4)]
    node_id: Annotated[Int32, Since(4)]
    host: Annotated[str, Since(4)]
    port: Annotated[Int32, Since(4)]
    error_code: Annotated[Int16, Since(4)]
    error_message: Annotated[str | None, Since(4), Nullable(4)] = None


@dataclass(slots=True, kw_only=True)
class FindCoordinatorResponse:
    """The coordinator. From version 4 on, it is in `coordinators`, before that in the other fields.

    In the protocol, host is never null. But librdkafka's mock cluster returns null with an error.
    """

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Annotated[Int16, Until(3)] = 0
    error_message: Annotated[str | None, Since(1), Until(3), Nullable(1)] = ""
    node_id: Annotated[Int32, Until(3)] = 0
    host: Annotated[str | None, Until(3), Nullable(0)] = ""
    port: Annotated[Int32, Until(3)] = 0
    coordinators: Annotated[list[Coordinator], Since(4)] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnTopic:
    """Partitions of one topic."""

    name: str
    partitions: list[Int32]


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnRequest:
    """Adds partitions to the transaction, before records are produced to them."""

    v3_and_below_transactional_id: Annotated[str, Until(3)]
    v3_and_below_producer_id: Annotated[Int64, Until(3)]
    v3_and_below_producer_epoch: Annotated[Int16, Until(3)]
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], Until(3)]


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnPartitionResult:
    """Whether one partition was added: an error code, 0 for success."""

    partition_index: Int32
    partition_error_code: Int16


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnTopicResult:
    """The results for one topic's partitions."""

    name: str
    results_by_partition: list[AddPartitionsToTxnPartitionResult]


@dataclass(slots=True, kw_only=True)
class AddPartitionsToTxnResponse:
    """Whether the partitions were added. If one partition is rejected, no partition is added."""

    throttle_time_ms: Int32 = 0
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], Until(3)]


@dataclass(slots=True, kw_only=True)
class AddOffsetsToTxnRequest:
    """Adds a group's offsets to the transaction.

    This request must precede a TxnOffsetCommit of version 4 or lower. From version 5 on,
    TxnOffsetCommit adds the offsets itself (KIP-890).
    """

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    group_id: str


@dataclass(slots=True, kw_only=True)
class AddOffsetsToTxnResponse:
    """Whether the group's offsets were added to the transaction."""

    throttle_time_ms: Int32 = 0
    error_code: Int16


@dataclass(slots=True, kw_only=True)
class EndTxnRequest:
    """Commits or aborts the transaction."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


@dataclass(slots=True, kw_only=True)
class EndTxnResponse:
    """Whether the transaction has ended, and from version 5 on, the next producer id and epoch."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Annotated[Int64, Since(5)] = -1
    producer_epoch: Annotated[Int16, Since(5)] = -1


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitRequestPartition:
    """The offset to commit for one partition, which is the offset of the next record to read."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(2)] = -1
    committed_metadata: Annotated[str | None, Nullable(0)]


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitRequestTopic:
    """The offsets to commit for one topic."""

    name: str
    partitions: list[TxnOffsetCommitRequestPartition]


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitRequest:
    """Commits a group's offsets as part of the transaction."""

    transactional_id: str
    group_id: str
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Annotated[Int32, Since(3)] = -1
    member_id: Annotated[str, Since(3)] = ""
    group_instance_id: Annotated[str | None, Since(3), Nullable(3)] = None
    topics: list[TxnOffsetCommitRequestTopic]


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitResponsePartition:
    """The result for one partition's offset."""

    partition_index: Int32
    error_code: Int16


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitResponseTopic:
    """The results for one topic's offsets."""

    name: str
    partitions: list[TxnOffsetCommitResponsePartition]


@dataclass(slots=True, kw_only=True)
class TxnOffsetCommitResponse:
    """The results of an offset commit, one per partition."""

    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic]


@dataclass(slots=True, kw_only=True)
class ListTransactionsRequest:
    """The request for the transactions that a broker coordinates and that match all filters.

    An empty list, a negative duration (ms) and a pattern of None match every transaction.
    """

    state_filters: list[str] = field(default_factory=list)
    producer_id_filters: list[Int64] = field(default_factory=list)
    duration_filter: Annotated[Int64, Since(1)] = -1
    transactional_id_pattern: Annotated[str | None, Since(2), Nullable(2)] = None


@dataclass(slots=True, kw_only=True)
class TransactionState:
    """One transactional id and the state of its transaction."""

    transactional_id: str
    producer_id: Int64
    transaction_state: str


@dataclass(slots=True, kw_only=True)
class ListTransactionsResponse:
    """The transactions of one coordinator, and the state filters that it does not know."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    unknown_state_filters: list[str] = field(default_factory=list)
    transaction_states: list[TransactionState] = field(default_factory=list)
