"""A topic whose brokers cannot be reached; the test sets the producer's metadata."""

from __future__ import annotations

from spark_kafka_sink.wire.messages import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC = "t"
NOBODY = "127.0.0.1:1"


def answer(leaders: list[int]) -> MetadataResponse:
    """Return metadata of the topic with these leaders, none of which can be reached."""
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=number, host="127.0.0.1", port=1)
            for number in sorted(set(leaders))
        ],
        topics=[
            MetadataResponseTopic(
                error_code=0,
                name=TOPIC,
                partitions=[
                    MetadataResponsePartition(
                        error_code=0,
                        partition_index=index,
                        leader_id=leader,
                        replica_nodes=[],
                        isr_nodes=[],
                    )
                    for index, leader in enumerate(leaders)
                ],
            )
        ],
    )
