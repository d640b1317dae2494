"""A task of an exactly-once stream. The task finds out whether to write its micro-batch.

After a restart, Spark runs a micro-batch again with the same rows, even if it was committed. The
task must detect this, because the planning process does not know which micro-batch it plans.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext

from spark_kafka_sink.commit.attempts import Plan
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.micro_batch import MicroBatch, micro_batch_of
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.replays import is_written
from spark_kafka_sink.spark.report import SinkCommitMessage, SkippedMessage
from spark_kafka_sink.spark.tasks.task import skip_task, write_task


def write_micro_batch(
    options: SinkOptions, plan: Plan, batches: Iterator[pa.RecordBatch]
) -> SinkCommitMessage | SkippedMessage:
    """Write the rows of a task, or only count them if their micro-batch was already written.

    Raise KafkaException if the micro-batch is not the next one of its query.
    """
    micro_batch = _micro_batch()
    if is_written(plan, micro_batch):
        return skip_task(options, batches, plan, micro_batch)
    message = write_task(options, batches, plan)
    message.plan, message.micro_batch = plan, micro_batch
    return message


def _micro_batch() -> MicroBatch:
    context = TaskContext.get()
    found = None if context is None else micro_batch_of(context.getLocalProperty)
    if found is None:
        message = "a task of a stream does not know its micro-batch; this is a bug"
        raise KafkaException(message)
    return found
