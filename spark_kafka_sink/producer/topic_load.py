"""How a topic's partitions stand, for the partitioner: put together from metadata and queues.

It only reads; the caller holds the producer's lock.
"""

from __future__ import annotations

from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.node_latency import NodeLatencies
from spark_kafka_sink.producer.partitioner import TopicLoad
from spark_kafka_sink.producer.topic_metadata import TopicMetadata


def topic_load(
    name: str,
    topic: TopicMetadata,
    accumulator: RecordAccumulator,
    latencies: NodeLatencies,
    *,
    adaptive: bool,
) -> TopicLoad:
    """Give the partitions to spread rows over, and what each has waiting.

    They are the ones with a leader; where none has one, all. adaptive: whether queues weigh, and
    partitions whose leader takes no data are left out while others do (KIP-794).
    """
    with_leader = topic.available or list(range(len(topic.leaders)))
    batch_bytes = accumulator.full_bytes(name)
    if not adaptive:
        return TopicLoad(available=with_leader, queue_lengths=None, batch_bytes=batch_bytes)
    quick = [p for p in with_leader if not latencies.is_slow(topic.leaders[p])]
    available = quick or with_leader
    queue_lengths = accumulator.queue_lengths(name, available)
    return TopicLoad(available=available, queue_lengths=queue_lengths, batch_bytes=batch_bytes)
