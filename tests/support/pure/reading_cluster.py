"""Metadata of one topic with leaders that a test sets."""

from __future__ import annotations

from random import Random
from uuid import UUID

from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.consumer.list_offsets import reader_advice
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.wire.messages import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC = "t"
TOPIC_ID = UUID(int=7)
BACKOFF = ExponentialBackoff(0.1, 1.0)


def metadata_of(leaders: list[int]) -> ClusterMetadata:
    """Return the metadata of a client that knows these leaders, -1 for none."""
    advice = reader_advice(Acls("alice", servers="broker:9092"))
    metadata = ClusterMetadata(300.0, BACKOFF, Random(1), advice=advice)
    metadata.track(TOPIC, 0.0)
    lead(metadata, leaders, 0.0)
    return metadata


def lead(
    metadata: ClusterMetadata,
    leaders: list[int],
    now: float,
    epoch: int = 0,
    topic_id: UUID = TOPIC_ID,
) -> None:
    """Update the metadata with these leaders of the partitions."""
    metadata.request(now)
    partitions = [
        MetadataResponsePartition(
            error_code=0,
            partition_index=number,
            leader_id=leader,
            leader_epoch=epoch,
            replica_nodes=[],
            isr_nodes=[],
        )
        for number, leader in enumerate(leaders)
    ]
    topic = MetadataResponseTopic(
        error_code=0, name=TOPIC, topic_id=topic_id, partitions=partitions
    )
    brokers = [
        MetadataResponseBroker(node_id=n, host="h", port=n) for n in {1, 2, *leaders} if n > 0
    ]
    metadata.update(MetadataResponse(brokers=brokers, topics=[topic]), now)
