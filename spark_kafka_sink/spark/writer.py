"""The writers Spark calls: planned on the driver, run in tasks, committed on the driver.

A writer is pickled into every task, and commit and abort run on another copy of it in another
process. It holds the tasks' options as bytes, so that the process which commits imports nothing of
what they are and what tasks do with them: of a job with new processes, a third of a second.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.committing.job_commit import commit_report, publish
from spark_kafka_sink.spark.report import SinkCommitMessage
from spark_kafka_sink.spark.worker import freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_kafka_sink.spark.options import SinkOptions


CONTINUOUS_REFUSAL: Final = (
    "the continuous trigger loses every row of a Python data source: Spark hands it no rows then. "
    'Use .trigger(processingTime="1 second") or .trigger(availableNow=True)'
)


def mode_refusal(mode: str) -> str:
    """Return the sentence about a save mode that is not append, by the name that it was given."""
    afresh = "; to start afresh, delete or truncate the topic first"
    return (
        f"Save mode {mode} not allowed for Kafka, expected append: records of a topic can be added "
        f'and not replaced. Use .mode("append"){afresh if mode.lower() == "overwrite" else ""}'
    )


class _TaskWriter:
    """What the writers of jobs and of streams have in common: their tasks."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = pickle.dumps(options)
        self._report_path = options.report_path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Run a task."""
        from spark_kafka_sink.spark.tasks.task import write_task  # noqa: PLC0415 - tasks alone need it

        options: SinkOptions = pickle.loads(self._options)  # noqa: S301 - what `__init__` pickled
        return write_task(options, iterator)


class KafkaArrowWriter(_TaskWriter, DataSourceArrowWriter):
    """Writes a batch job."""

    # Of the micro-batch that the job writes, if it does.
    _batch_id: int | None = None

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report what all tasks wrote. Raise KafkaException if a task sent no report."""
        freeze_imports()
        publish(commit_report(messages, self._batch_id), self._report_path)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: what tasks have written is in Kafka and stays there."""


class KafkaStreamArrowWriter(_TaskWriter, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Report what a micro-batch wrote. Raise KafkaException if a task sent no report."""
        if messages and all(message is None for message in messages):
            raise ConfigException(CONTINUOUS_REFUSAL)
        publish(commit_report(messages, batchId), self._report_path)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: what tasks have written is in Kafka and stays there."""


BATCH_ID: Final = "pykafka.batch.id"
_FROM_HERE: Final = re.compile("write_batch:(-?[0-9]+)")


def as_option(batch_id: int) -> dict[str, str]:
    """Return the option that hands a number over."""
    return {BATCH_ID: f"write_batch:{batch_id}"}


def handed_over(options: Mapping[str, str]) -> int | None:
    """Return the number that `as_option` put among options with names in lower case, if it did."""
    found = _FROM_HERE.fullmatch(options.get(BATCH_ID, ""))
    return int(found[1]) if found else None


class MicroBatchWriter(KafkaArrowWriter):
    """Writes a micro-batch as a batch job; its report is a line, as a stream's."""

    def __init__(self, options: SinkOptions, batch_id: int) -> None:
        super().__init__(options)
        self._batch_id = batch_id
