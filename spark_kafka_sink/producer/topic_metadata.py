"""TopicMetadata: one topic as last told, and how an answer about it is taken.

Owns which of two answers is the newer one, which leader epochs and topic ids tell: brokers learn of
changes one after another, so that the next one asked may know less than the last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from spark_kafka_sink.wire.messages import MetadataResponsePartition, MetadataResponseTopic
from spark_kafka_sink.wire.primitives import ZERO_UUID

NO_NODE: Final = -1
NO_LEADER_EPOCH: Final = -1


@dataclass(slots=True, kw_only=True)
class TopicMetadata:
    """One topic: its id, and leader and leader epoch by partition (leader -1: none known).

    Callers keep it while newer answers come in, so that it is replaced and never changed.
    """

    topic_id: UUID
    leaders: list[int]
    leader_epochs: list[int]
    available: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.available = [p for p, leader in enumerate(self.leaders) if leader != NO_NODE]


def newer(
    before: TopicMetadata | None, answer: MetadataResponseTopic, *, reliable_epochs: bool
) -> tuple[TopicMetadata, bool]:
    """Give what is known of a topic after an answer, and whether any leader is news.

    before: what was known, None if nothing. reliable_epochs: see ClusterMetadata.update.
    """
    if before is not None and answer.topic_id not in (ZERO_UUID, before.topic_id):
        before = None  # deleted and made anew: its epochs begin again
    size = len(answer.partitions)
    leaders, epochs = [NO_NODE] * size, [NO_LEADER_EPOCH] * size
    has_news = False
    for partition in answer.partitions:
        index = partition.partition_index
        if not 0 <= index < size:
            continue
        leaders[index], epochs[index], is_news = _newer_leader(
            before, partition, reliable_epochs=reliable_epochs
        )
        has_news = has_news or is_news
    topic = TopicMetadata(topic_id=answer.topic_id, leaders=leaders, leader_epochs=epochs)
    return topic, has_news


def _newer_leader(
    before: TopicMetadata | None, partition: MetadataResponsePartition, *, reliable_epochs: bool
) -> tuple[int, int, bool]:
    """Give leader, epoch, and whether that is news: who lags must not undo what is newer."""
    index, epoch = partition.partition_index, partition.leader_epoch
    if not reliable_epochs or epoch < 0:
        return partition.leader_id, NO_LEADER_EPOCH, True
    known = NO_LEADER_EPOCH
    if before is not None and index < len(before.leader_epochs):
        known = before.leader_epochs[index]
        if epoch < known:
            return before.leaders[index], known, False
    return partition.leader_id, epoch, epoch > known
