"""A task's whole work: every Arrow batch appended, and success only when every row is acknowledged.

The producer is one that the worker process keeps for its next task. Only tasks import this module,
and with it the producer, Arrow and numpy: who plans and who commits does not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

from pyspark import TaskContext

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.bad_rows import TaskRows
from spark_kafka_sink.spark.coalesce import append_coalesced
from spark_kafka_sink.spark.commit import SinkCommitMessage
from spark_kafka_sink.spark.memory import freeze_imports, keep_heap
from spark_kafka_sink.spark.missing_topics import suggest_create_topics
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.producer_pool import POOL
from spark_kafka_sink.spark.quick_ack import acknowledge_now
from spark_kafka_sink.spark.report import PartitionReport, TaskReport
from spark_kafka_sink.spark.retention import ExpiredRows

if TYPE_CHECKING:
    import pyarrow as pa


def write_task(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
    """Write all batches and wait until every row is acknowledged.

    Raises what made that impossible; what was sent until then may be in Kafka (at-least-once).
    """
    acknowledge_now()
    freeze_imports()
    keep_heap()
    started_at, started = time.time(), time.monotonic()
    context = TaskContext.get()
    task, attempt = (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
    with (
        suggest_create_topics(options),
        POOL.producer(options.producer, options.brokers) as producer,
        TaskRows(options, producer, task, attempt) as task_rows,
    ):
        producer.spread_evenly(_first_partition(context))
        throttle_ms = producer.throttle_time_ms
        expired_rows = ExpiredRows(options.retention_ms)

        def append(batch: pa.RecordBatch, since: float) -> None:
            expired_rows.count(batch)
            task_rows.append(batch, since)

        slice_bytes = producer.slice_bytes(options.partitions)
        append_coalesced(batches, append, slice_bytes, options.producer.linger_ms / 1000)
        rows = task_rows.flush()
        delivered = producer.take_deliveries()
        throttle_ms = producer.throttle_time_ms - throttle_ms
        bad_rows = task_rows.finish()
    partitions = [
        PartitionReport(topic=tp.topic, partition=tp.partition, **vars(delivery))
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
        expired_rows=expired_rows.report(),
        partitions=[p for p in partitions if p.topic != dead_letter_topic],
    )


def _first_partition(context: TaskContext | None) -> int:
    """Return the number of the partition that a task's rows without a key go to first.

    The tasks of a stage have numbers side by side, so that tasks of few rows fill all partitions.
    Which number the first task has differs by stage: a stream has a stage for each micro-batch.
    """
    if context is None:
        return 0
    of_stage = Random(context.stageId()).randrange(2**31)  # noqa: S311 - no secrets
    return of_stage + context.partitionId()
