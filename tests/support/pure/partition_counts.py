"""The counts in a task's commit message."""

from __future__ import annotations

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.completion import PartitionDelivery
from spark_kafka_sink.spark.report import PartitionCounts, PartitionReport


def counts_of(*written: PartitionReport) -> PartitionCounts:
    """Return the counts of a task that wrote to these partitions."""
    return PartitionCounts.of(
        {
            TopicPartition(each.topic, each.partition): PartitionDelivery(
                records=each.records,
                bytes=each.bytes,
                batches=each.batches,
                compressed_bytes=each.compressed_bytes,
                retries=each.retries,
                first_offset=each.first_offset,
                last_offset=each.last_offset,
            )
            for each in written
        }
    )
