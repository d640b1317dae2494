"""A stream with exactly once, without a JVM: the test plays Spark's part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql.datasource import WriterCommitMessage

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.micro_batch import BATCH_ID, DESCRIPTION, QUERY_ID
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.writer import ExactlyOnceStreamWriter
from support.spark.played_tasks import in_task
from support.spark.single_job import SingleJob, batches, handed_over

Messages = list[WriterCommitMessage | None]


class PlayedStream:
    """A stream that writes to the topic of a job.

    run_id: of the query's run; `restart` makes another one, as Spark does.
    """

    def __init__(self, job: SingleJob) -> None:
        self._job = job
        self._runs = 0
        self.run_id = ""
        self.query_id = "query"
        self.options = {
            name: value for name, value in job.options.items() if not name.startswith("txn")
        } | {"checkpointLocation": f"file:/checkpoints/{job.topic}"}
        self.restart()

    def restart(self) -> None:
        """Begin another run of the query."""
        self._runs += 1
        self.run_id = f"00000000-0000-0000-0000-{self._runs:012}"

    def plan(self) -> tuple[KafkaDataSource, ExactlyOnceStreamWriter]:
        """Plan a micro-batch; return the source that Spark keeps, and the writer of the tasks."""
        source = KafkaDataSource(self.options)
        writer = source.streamWriter(self._job.schema, overwrite=True)
        assert isinstance(writer, ExactlyOnceStreamWriter)
        return handed_over(source), handed_over(writer)

    def write(
        self, writer: ExactlyOnceStreamWriter, batch_id: int, rows: Mapping[int, Sequence[str]]
    ) -> Messages:
        """Run the tasks of a micro-batch."""
        properties = {
            QUERY_ID: self.query_id,
            BATCH_ID: str(batch_id),
            DESCRIPTION: f"id = {self.query_id}\nrunId = {self.run_id}\nbatch = {batch_id}",
        }
        messages: Messages = []
        for number in range(self._job.partitions):
            with in_task(number, properties=properties):
                found = batches(number, rows.get(number, ()))
                messages.append(handed_over(handed_over(writer).write(iter(found))))
        return messages

    def ended_by(self, source: KafkaDataSource) -> ExactlyOnceStreamWriter:
        """Return the writer that Spark makes to commit or abort."""
        writer = source.streamWriter(self._job.schema, overwrite=True)
        assert isinstance(writer, ExactlyOnceStreamWriter)
        return writer

    def run(self, batch_id: int, rows: Mapping[int, Sequence[str]]) -> None:
        """Run a micro-batch, which is aborted if it fails."""
        source, writer = self.plan()
        messages: Messages = [None] * self._job.partitions
        try:
            messages = self.write(writer, batch_id, rows)
            self.ended_by(source).commit(messages, batch_id)
        except KafkaException:
            self.ended_by(source).abort(messages, batch_id)
            raise

    @property
    def committed(self) -> list[str]:
        """The values that readers see."""
        return self._job.committed
