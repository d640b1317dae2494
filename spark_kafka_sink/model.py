"""The values every layer speaks of: topic-partitions, nodes, producer ids, records' places.

Owns no behaviour and imports nothing of the package, so that every layer may import it.
``TopicPartition`` is a NamedTuple because it is the key of every per-partition table of the
producer: a tuple hashes in C, a dataclass in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

# Topics that brokers keep for themselves (Topic.INTERNAL_TOPICS), and the client.id for which they
# take records nevertheless (AdminUtils.ADMIN_CLIENT_ID).
INTERNAL_TOPICS: Final = frozenset(
    ("__consumer_offsets", "__share_group_state", "__transaction_state")
)
ADMIN_CLIENT_ID: Final = "__admin_client"


class TopicPartition(NamedTuple):
    """A topic name and a partition number; prints as ``topic-3`` like the Java client's."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class RecordMetadata(NamedTuple):
    """Where a record is in the log (RecordMetadata of the Java client).

    partition: -1 where a record failed before one was chosen. offset: -1 where the broker does not
    say (acks=0) or the record failed. timestamp: milliseconds since 1970, the broker's where the
    topic has LogAppendTime. Sizes are bytes as serialized, -1 for null.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A broker's address. Bootstrap addresses carry negative ids, as in the Java client."""

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        name = "bootstrap" if self.id < 0 else f"node {self.id}"
        return f"{name} ({self.host}:{self.port})"


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """What InitProducerId gives; ``NO_PRODUCER_ID`` where a producer is not idempotent."""

    producer_id: int
    epoch: int

    @property
    def is_valid(self) -> bool:
        """Whether a broker assigned this id (brokers never assign a negative one)."""
        return self.producer_id >= 0


NO_PRODUCER_ID = ProducerIdAndEpoch(-1, -1)


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """Where a consumer group goes on reading: the offset of the next record of a partition."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """A consumer group, and who of it commits offsets (KIP-447); without a member, nobody does.

    With generation and member id of a consumer the group refuses the offsets of one that it has
    meanwhile taken the partitions from.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
