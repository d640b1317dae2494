"""The writers Spark calls: planned on the driver, run in tasks, committed on the driver.

A writer is pickled into every task, and commit and abort run on another copy of it in another
process, so it holds nothing but options. `write_task` is the task's whole work: a producer
that the worker process keeps for its next task, every Arrow batch appended, and success only when
every row is acknowledged.
"""

from __future__ import annotations

import os
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
from spark_kafka_sink.spark.bad_rows import TaskRows
from spark_kafka_sink.spark.coalesce import coalesce
from spark_kafka_sink.spark.commit import SinkCommitMessage, commit_report, publish
from spark_kafka_sink.spark.memory import freeze_imports, keep_heap
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.producer_pool import POOL
from spark_kafka_sink.spark.report import PartitionReport, TaskReport
from spark_kafka_sink.spark.save_mode import CONTINUOUS_REFUSAL

if TYPE_CHECKING:
    import pyarrow as pa


class KafkaArrowWriter(DataSourceArrowWriter):
    """Writes a batch job."""

    # Of the micro-batch that the job writes, if it does.
    _batch_id: int | None = None

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Run a task."""
        return write_task(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report what all tasks wrote. Raises KafkaException where one did not say."""
        freeze_imports()
        publish(commit_report(messages, self._batch_id), self._options.report_path)

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
            raise ConfigException(CONTINUOUS_REFUSAL)
        publish(commit_report(messages, batchId), self._options.report_path)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: what tasks have written is in Kafka and stays there."""


def write_task(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
    """Write all batches and wait until every row is acknowledged.

    Raises what made that impossible; what was sent until then may be in Kafka (at-least-once).
    """
    freeze_imports()
    keep_heap()
    started_at, started = time.time(), time.monotonic()
    context = TaskContext.get()
    task, attempt = (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
    with (
        POOL.producer(options.producer) as producer,
        TaskRows(options, producer, task, attempt) as task_rows,
    ):
        throttle_ms = producer.throttle_time_ms
        for batch in coalesce(batches):
            task_rows.append(batch)
        rows = task_rows.flush()
        delivered = producer.take_deliveries()
        throttle_ms = producer.throttle_time_ms - throttle_ms
        bad_rows = task_rows.finish()
    partitions = [
        PartitionReport(topic=tp.topic, partition=tp.partition, **asdict(delivery))
        for tp, delivery in delivered.items()
    ]
    dead_letter_topic = options.bad_rows.topic
    expected = rows + (bad_rows.rows if dead_letter_topic else 0)
    acknowledged = sum(partition.records for partition in partitions)
    if acknowledged != expected:
        message = f"the task had {expected} rows, but {acknowledged} were acknowledged; a bug"
        raise KafkaException(message)
    bad_rows.partitions = [p for p in partitions if p.topic == dead_letter_topic]
    return SinkCommitMessage(
        report=TaskReport(
            task=task,
            attempt=attempt,
            host=os.uname().nodename,
            rows=rows,
            seconds=time.monotonic() - started,
        ),
        started_at=started_at,
        throttle_ms=throttle_ms,
        bad_rows=bad_rows,
        partitions=[p for p in partitions if p.topic != dead_letter_topic],
    )
