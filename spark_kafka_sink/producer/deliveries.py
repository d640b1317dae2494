"""What has been delivered, per partition: the numbers a commit message carries."""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.producer_batch import BatchState, ProducerBatch


@dataclass(kw_only=True)
class PartitionDelivery:
    """One partition's acknowledged records; without slots, so that `vars` gives its fields.

    Offsets are -1 where the broker does not say (acks=0). Between first_offset and last_offset may
    be records of others. bytes: of records before compression; compressed_bytes:
    of batches as sent, whatever the codec, with their headers.
    """

    records: int = 0
    bytes: int = 0
    batches: int = 0
    compressed_bytes: int = 0
    retries: int = 0
    first_offset: int = -1
    last_offset: int = -1


class Deliveries:
    """Sums over batches that are done, and the first failure that nobody else is told of."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionDelivery] = {}
        self.error: KafkaException | None = None
        self.failed_records = 0

    def add(self, batch: ProducerBatch) -> None:
        """Take a batch that succeeded or failed."""
        if batch.state is BatchState.FAILED:
            self.failed_records += batch.record_count
            # Who waits for records one by one is told of each; the first error is for the others.
            if batch.record_count > sum(span.records for span in batch.spans):
                self.error = self.error or batch.error
            return
        delivery = self.partitions.setdefault(batch.topic_partition, PartitionDelivery())
        delivery.records += batch.record_count
        delivery.bytes += batch.records_bytes
        delivery.batches += 1
        delivery.compressed_bytes += batch.sent_bytes
        delivery.retries += batch.attempts
        if batch.base_offset >= 0:
            last = batch.base_offset + batch.record_count - 1
            first = delivery.first_offset
            delivery.first_offset = (
                batch.base_offset if first < 0 else min(first, batch.base_offset)
            )
            delivery.last_offset = max(delivery.last_offset, last)

    def take_partitions(self) -> dict[TopicPartition, PartitionDelivery]:
        """Give what was acknowledged since the last call."""
        taken, self.partitions = self.partitions, {}
        return taken

    def take_error(self) -> KafkaException | None:
        """Give the first failure since the last call."""
        error, self.error = self.error, None
        return error
