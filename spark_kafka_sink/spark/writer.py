"""The writers Spark calls: planned on the driver, run in tasks, committed on the driver.

A writer is pickled into every task, and commit and abort run on another copy of it in another
process, so it holds nothing but options. `write_task` is the task's whole work: one producer, every
Arrow batch appended, and success only when every row is acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from spark_kafka_sink.errors import ConfigException, KafkaException
from spark_kafka_sink.kafka_producer import KafkaProducer
from spark_kafka_sink.spark.coalesce import coalesce
from spark_kafka_sink.spark.commit import (
    PartitionReport,
    SinkCommitMessage,
    commit_report,
    publish,
)
from spark_kafka_sink.spark.continuous import REFUSAL as CONTINUOUS
from spark_kafka_sink.spark.memory import keep_heap
from spark_kafka_sink.spark.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa


class KafkaArrowWriter(DataSourceArrowWriter):
    """Writes a batch job."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Run a task."""
        return write_task(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report what all tasks wrote. Raises KafkaException where one did not say."""
        publish(commit_report(messages), self._options.report_path)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: what tasks have written is in Kafka and stays there."""


class KafkaStreamArrowWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Run a task of a micro-batch."""
        return write_task(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Report what a micro-batch wrote. Raises KafkaException where a task did not say."""
        if messages and all(message is None for message in messages):
            raise ConfigException(CONTINUOUS)
        publish(commit_report(messages, batchId), self._options.report_path)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: what tasks have written is in Kafka and stays there."""


def write_task(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
    """Write all batches and wait until every row is acknowledged.

    Raises what made that impossible; what was sent until then may be in Kafka (at-least-once).
    """
    keep_heap()
    started = time.monotonic()
    context = TaskContext.get()
    rows = 0
    with KafkaProducer(options.producer) as producer:
        for batch in coalesce(batches):
            producer.append(options.topic, batch)
            rows += batch.num_rows
        producer.flush()
        delivered = producer.deliveries()
    acknowledged = sum(delivery.records for delivery in delivered.values())
    if acknowledged != rows:
        message = f"the task had {rows} rows, but {acknowledged} were acknowledged; this is a bug"
        raise KafkaException(message)
    return SinkCommitMessage(
        task=-1 if context is None else context.partitionId(),
        attempt=-1 if context is None else context.attemptNumber(),
        rows=rows,
        seconds=time.monotonic() - started,
        partitions=[
            PartitionReport(topic=tp.topic, partition=tp.partition, **asdict(delivery))
            for tp, delivery in delivered.items()
        ],
    )
