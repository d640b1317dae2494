"""DeliveryProgress: what a producer has delivered so far, and what it waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from spark_kafka_sink.errors import ApiException, KafkaException, error_code
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.completion import Deliveries
from spark_kafka_sink.producer.metadata import ClusterMetadata


class DeliveryProgress(NamedTuple):
    """The progress of a producer since `take_deliveries` was last called.

    records, bytes: acknowledged records, and their size before compression. pending: records that
    are in batches and not acknowledged. throttled: for each node, for how many more seconds it
    throttles this client. retried: for each node, the number of unfinished batches with a retry,
    as `ProducerBatch.retry` counts it. unreachable: for each needed node without a connection, the
    reason. awaited: the other things that calls and batches wait for, such as the metadata of a
    topic. Each value is the last error about that thing, or "" if there was no error.
    """

    records: int
    bytes: int
    pending: int
    is_waiting_for_memory: bool
    throttled: Mapping[int, float]
    retried: Mapping[int, int]
    unreachable: Mapping[int, str]
    awaited: Mapping[str, str]


def delivery_progress(
    accumulator: RecordAccumulator,
    metadata: ClusterMetadata,
    deliveries: Deliveries,
    *,
    topic_waits: Iterable[Collection[str]],
    prerequisite: Callable[[TopicPartition], tuple[str, KafkaException | None]],
    throttled: Mapping[int, float],
    troubles: Mapping[int, str],
    has_connection: bool,
) -> DeliveryProgress:
    """Return the progress of a producer. The caller holds its lock.

    topic_waits: the topics of each call that waits for metadata. prerequisite: a function that
    returns what the batches of a partition still need before they can be sent ("" for nothing), and
    the last error about that. throttled: see `DeliveryProgress`. troubles: for each node without a
    connection, the reason. The result contains the reasons of the nodes that are needed. A node is
    needed if it leads the partition of an unfinished batch. If there is no such node and no
    connection, every node counts as needed.
    """
    retried: Counter[int] = Counter()
    needed = set()
    unknown: dict[str, None] = {}
    leaderless: dict[TopicPartition, None] = {}
    awaited: dict[str, str] = {}
    for topics in topic_waits:
        # If all topics are known, the call waits until topics get more partitions.
        unknown.update(dict.fromkeys([t for t in topics if metadata.topic(t) is None] or topics))
    for batch in accumulator.incomplete:
        topic_partition, node_id = batch.topic_partition, batch.node_id
        if node_id is None:  # it is not in flight
            leader = metadata.leader(topic_partition)
            if leader is not None:
                node_id = leader.id
                what, error = prerequisite(topic_partition)
                if what:
                    awaited[what] = _name_of(error)
            elif metadata.topic(topic_partition.topic) is None:
                unknown[topic_partition.topic] = None
            else:
                leaderless[topic_partition] = None
        if node_id is not None:
            needed.add(node_id)
            if batch.retries:
                retried[node_id] += 1
    awaited |= {
        f"the metadata of topic {name}": _name_of(metadata.topic_error(name)) for name in unknown
    }
    awaited |= {f"the leader of {each}": "" for each in leaderless}
    delivered = deliveries.partitions.values()
    return DeliveryProgress(
        records=sum(each.records for each in delivered),
        bytes=sum(each.bytes for each in delivered),
        pending=accumulator.undelivered().total(),
        is_waiting_for_memory=accumulator.pool.waiters > 0,
        throttled=throttled,
        retried=retried,
        unreachable={
            node_id: why
            for node_id, why in troubles.items()
            if node_id in needed or not (needed or has_connection)
        },
        awaited=awaited,
    )


def _name_of(error: KafkaException | None) -> str:
    if isinstance(error, ApiException):
        return error_code(error.code).name
    return "" if error is None else str(error)
