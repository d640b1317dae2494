"""The messages that read records: ListOffsets and Fetch.

The classes are declared in the same way as in `messages`. Fetch sessions (KIP-227) are not used:
every request lists all partitions to read and belongs to no session (`session_id` 0,
`session_epoch` -1). Fetch versions before 4 cannot carry v2 record batches and are not supported.
Every broker since 0.11 supports later versions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final
from uuid import UUID

from spark_kafka_sink.wire.message_codecs import (
    Int8,
    Int16,
    Int32,
    Int64,
    Nullable,
    Since,
    Tag,
    Until,
)
from spark_kafka_sink.wire.primitives import ZERO_UUID

EARLIEST_TIMESTAMP: Final = -2
LATEST_TIMESTAMP: Final = -1
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

_CONSUMER: Final = -1
_NO_SESSION: Final = -1


@dataclass(slots=True, kw_only=True)
class ListOffsetsPartition:
    """A partition and the timestamp (ms) to look up; -1: the latest offset, -2: the earliest."""

    partition_index: Int32
    current_leader_epoch: Annotated[Int32, Since(4)] = -1
    timestamp: Int64


@dataclass(slots=True, kw_only=True)
class ListOffsetsTopic:
    """The partitions of one topic."""

    name: str
    partitions: list[ListOffsetsPartition]


@dataclass(slots=True, kw_only=True)
class ListOffsetsRequest:
    """The request for offsets by timestamp, sent to the leader of the partitions.

    With isolation level 1 (read_committed), the latest offset is the last stable offset.
    """

    replica_id: Int32 = _CONSUMER
    isolation_level: Annotated[Int8, Since(2)] = READ_UNCOMMITTED
    topics: list[ListOffsetsTopic]
    timeout_ms: Annotated[Int32, Since(10)] = 0


@dataclass(slots=True, kw_only=True)
class ListOffsetsPartitionResponse:
    """The offset found in one partition.

    offset: the first record with this timestamp or a later one; -1 if there is no such record.
    """

    partition_index: Int32
    error_code: Int16
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Since(4)] = -1


@dataclass(slots=True, kw_only=True)
class ListOffsetsTopicResponse:
    """The offsets of one topic."""

    name: str
    partitions: list[ListOffsetsPartitionResponse]


@dataclass(slots=True, kw_only=True)
class ListOffsetsResponse:
    """The offsets, one per partition."""

    throttle_time_ms: Annotated[Int32, Since(2)] = 0
    topics: list[ListOffsetsTopicResponse]


@dataclass(slots=True, kw_only=True)
class FetchPartition:
    """A partition to read, and the first offset to read.

    The fields that only followers and fetch sessions use keep their default values.
    """

    partition: Int32
    current_leader_epoch: Annotated[Int32, Since(9)] = -1
    fetch_offset: Int64
    last_fetched_epoch: Annotated[Int32, Since(12)] = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1
    partition_max_bytes: Int32
    replica_directory_id: Annotated[UUID, Since(17), Tag(0)] = ZERO_UUID


@dataclass(slots=True, kw_only=True)
class FetchTopic:
    """The partitions to read of one topic. From version 13 on, the topic is set by id (KIP-516)."""

    topic: Annotated[str, Until(12)] = ""
    topic_id: Annotated[UUID, Since(13)] = ZERO_UUID
    partitions: list[FetchPartition]


@dataclass(slots=True, kw_only=True)
class ForgottenTopic:
    """Partitions to remove from a fetch session."""

    topic: Annotated[str, Since(7), Until(12)] = ""
    topic_id: Annotated[UUID, Since(13)] = ZERO_UUID
    partitions: Annotated[list[Int32], Since(7)]


@dataclass(slots=True, kw_only=True)
class ReplicaState:
    """The sender of the request if it is a follower broker; not used by clients (KIP-903)."""

    replica_id: Annotated[Int32, Since(15)] = _CONSUMER
    replica_epoch: Annotated[Int64, Since(15)] = -1


@dataclass(slots=True, kw_only=True)
class FetchRequest:
    """The request for record batches, sent to the leader of the partitions.

    The broker waits at most `max_wait_ms` until `min_bytes` are available. The response contains at
    most `max_bytes` of records. If the first batch is larger, it is still returned completely
    (KIP-74).
    """

    cluster_id: Annotated[str | None, Since(12), Nullable(12), Tag(0)] = None
    replica_id: Annotated[Int32, Until(14)] = _CONSUMER
    replica_state: Annotated[ReplicaState | None, Since(15), Tag(1)] = None
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32
    isolation_level: Int8
    session_id: Annotated[Int32, Since(7)] = 0
    session_epoch: Annotated[Int32, Since(7)] = _NO_SESSION
    topics: list[FetchTopic]
    forgotten_topics_data: Annotated[list[ForgottenTopic], Since(7)] = field(default_factory=list)
    rack_id: Annotated[str, Since(11)] = ""


@dataclass(slots=True, kw_only=True)
class EpochEndOffset:
    """The point at which the reader's log diverges from the leader's log (KIP-595)."""

    epoch: Annotated[Int32, Since(12)] = -1
    end_offset: Annotated[Int64, Since(12)] = -1


@dataclass(slots=True, kw_only=True)
class LeaderIdAndEpoch:
    """The current leader, in the response of a broker that is not the leader (KIP-951)."""

    leader_id: Annotated[Int32, Since(12)] = -1
    leader_epoch: Annotated[Int32, Since(12)] = -1


@dataclass(slots=True, kw_only=True)
class SnapshotId:
    """The snapshot to read if the log begins after the requested offset; only for controllers."""

    end_offset: Int64 = -1
    epoch: Int32 = -1


@dataclass(slots=True, kw_only=True)
class AbortedTransaction:
    """An aborted transaction: the producer id and the offset of the transaction's first record."""

    producer_id: Int64
    first_offset: Int64


@dataclass(slots=True, kw_only=True)
class PartitionData:
    """The records of one partition. The last batch can be incomplete."""

    partition_index: Int32
    error_code: Int16
    high_watermark: Int64
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1
    diverging_epoch: Annotated[EpochEndOffset | None, Since(12), Tag(0)] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, Since(12), Tag(1)] = None
    snapshot_id: Annotated[SnapshotId | None, Since(12), Tag(2)] = None
    aborted_transactions: Annotated[list[AbortedTransaction] | None, Nullable(4)]
    preferred_read_replica: Annotated[Int32, Since(11)] = -1
    records: Annotated[memoryview | None, Nullable(0)]


@dataclass(slots=True, kw_only=True)
class FetchableTopicResponse:
    """The records of one topic."""

    topic: Annotated[str, Until(12)] = ""
    topic_id: Annotated[UUID, Since(13)] = ZERO_UUID
    partitions: list[PartitionData]


@dataclass(slots=True, kw_only=True)
class NodeEndpoint:
    """The address of a leader in `current_leader`."""

    node_id: Annotated[Int32, Since(16)]
    host: Annotated[str, Since(16)]
    port: Annotated[Int32, Since(16)]
    rack: Annotated[str | None, Since(16), Nullable(16)] = None


@dataclass(slots=True, kw_only=True)
class FetchResponse:
    """The records of the requested partitions."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(7)] = 0
    session_id: Annotated[Int32, Since(7)] = 0
    responses: list[FetchableTopicResponse]
    node_endpoints: Annotated[list[NodeEndpoint], Since(16), Tag(0)] = field(default_factory=list)
