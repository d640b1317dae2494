"""DeliveryProgress: how far a producer is, and what it waits for, while it sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.completion import Deliveries
from spark_kafka_sink.producer.metadata import ClusterMetadata


class DeliveryProgress(NamedTuple):
    """The progress of a producer since `take_deliveries` was last called.

    records, bytes: acknowledged records, and their size before compression. pending: records that
    are in batches and not acknowledged. throttled: for how many seconds each node still throttles
    this client. retried: for each node, the number of batches that are sent again to partitions
    that it leads; -1 stands for partitions without a leader. unreachable: why a node has no
    connection, for each node that is needed.
    """

    records: int
    bytes: int
    pending: int
    is_waiting_for_memory: bool
    throttled: Mapping[int, float]
    retried: Mapping[int, int]
    unreachable: Mapping[int, str]


def delivery_progress(
    accumulator: RecordAccumulator,
    metadata: ClusterMetadata,
    deliveries: Deliveries,
    *,
    throttled: Mapping[int, float],
    troubles: Mapping[int, str],
    has_connection: bool,
) -> DeliveryProgress:
    """Return the progress of a producer. The caller holds its lock.

    throttled: as in the result. troubles: why a node has no connection, for each node without one.
    A node is needed if it leads the partition of an unfinished batch. If there is no such node and
    no connection, every node counts as needed.
    """
    retried: Counter[int] = Counter()
    needed = set()
    for batch in accumulator.incomplete:
        leader = metadata.leader(batch.topic_partition)
        node_id = -1 if leader is None else leader.id
        needed.add(node_id)
        if batch.attempts:
            retried[node_id] += 1
    needed.discard(-1)
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
    )
