"""DeliveryTimeout: determines when delivery.timeout.ms of a batch has passed. Pure.

For a batch, delivery.timeout.ms begins when the batch is created, as in the Java client (KIP-91).
In the producer of a Spark task, it begins again each time the leader of the batch's partition
acknowledges a batch, until an attempt to send this batch has failed. The reason: a task fills
buffer.memory in a moment, also if the cluster is slow or a quota limits the job. Batches would then
fail only because they wait behind many others, although the leader accepts one after the other.
"""

from __future__ import annotations

from spark_kafka_sink.errors import Option
from spark_kafka_sink.producer.metadata import ClusterMetadata
from spark_kafka_sink.producer.producer_batch import ProducerBatch


class DeliveryTimeout:
    """The time limit of all batches of a producer. Times are seconds of the producer's clock.

    is_of_task: whether the time begins again at acknowledgements. progress_at: for the producer of
    a task, the time of the last acknowledgement by any node; -inf if there is none.
    """

    def __init__(self, timeout_s: float, metadata: ClusterMetadata, *, is_of_task: bool) -> None:
        self._timeout_s = timeout_s
        self._metadata = metadata
        self._is_of_task = is_of_task
        self._acknowledged_at: dict[int, float] = {}
        self.progress_at = float("-inf")

    def __str__(self) -> str:
        return f"{Option('delivery.timeout.ms')}={round(self._timeout_s * 1000)}"

    def acknowledged(self, node_id: int, now: float) -> None:
        """Record that a node has acknowledged a batch."""
        if self._is_of_task:
            self._acknowledged_at[node_id] = self.progress_at = now

    def failed(self, batch: ProducerBatch) -> None:
        """Record that an attempt to send a batch has failed. Call this before the batch changes."""
        batch.progress_at = self._progress_at(batch)

    def ends_at(self, batch: ProducerBatch) -> float:
        """Return the time at which delivery.timeout.ms will have passed, if nothing happens."""
        return max(batch.created_at, self._progress_at(batch)) + self._timeout_s

    def ends_at_first(self, batch: ProducerBatch) -> float:
        """Return the earliest time at which delivery.timeout.ms can have passed."""
        return batch.created_at + self._timeout_s

    def _progress_at(self, batch: ProducerBatch) -> float:
        if batch.attempts or not self._is_of_task:
            return batch.progress_at
        leader = self._metadata.leader(batch.topic_partition)
        if leader is None:
            return batch.progress_at
        return self._acknowledged_at.get(leader.id, batch.progress_at)
