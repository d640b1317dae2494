"""A micro-batch that ``write_batch`` writes as a batch job: its writer, which knows its number.

Spark tells a batch job nothing of the stream that it belongs to, so ``write_batch`` hands the
number over as an option. It is no option of users, and no document lists it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql.datasource import WriterCommitMessage

from spark_kafka_sink.spark.commit import commit_report, publish
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.writer import KafkaArrowWriter

BATCH_ID: Final = "pykafka.batch.id"


class MicroBatchWriter(KafkaArrowWriter):
    """Writes a micro-batch as a batch job; its report is a line, as a stream's."""

    def __init__(self, options: SinkOptions, batch_id: int) -> None:
        super().__init__(options)
        self._batch_id = batch_id

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report what the micro-batch wrote. Raises KafkaException where a task did not say."""
        publish(commit_report(messages, self._batch_id), self._options.report_path)
