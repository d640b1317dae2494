"""A batch job with exactly once, without a JVM: the test plays Spark's part.

Writers and messages are pickled between Spark's processes, as Spark does it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.layout_mark import as_metadata
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.writer import ExactlyOnceMicroBatchWriter, ExactlyOnceWriter
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import committed_values
from support.spark.played_tasks import in_task

_T = TypeVar("_T")
Writer: TypeAlias = ExactlyOnceWriter | ExactlyOnceMicroBatchWriter


class SingleJob:
    """A batch job that writes to one topic."""

    def __init__(
        self, cluster: KafkaCluster, topic: str, partitions: int, log: str, **options: str
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.partitions = partitions
        self.log = log
        self.options = {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "topic": topic,
            "exactlyOnce": "single",
            "txnAppId": "job",
            "txnVersion": "1",
            "commitLogTopic": log,
            "kafka.transaction.timeout.ms": "60000",
            **options,
        }

    @property
    def schema(self) -> StructType:
        """The columns, with the mark of `atomic_layout`."""
        counts = {self.topic: self.partitions}
        return StructType(
            [
                StructField("value", StringType()),
                StructField("partition", IntegerType(), metadata=as_metadata(counts)),
            ]
        )

    def plan(self, **options: str) -> ExactlyOnceWriter:
        """Plan the job."""
        source = KafkaDataSource({**self.options, **options})
        writer = source.writer(self.schema, overwrite=False)
        assert isinstance(writer, ExactlyOnceWriter)
        return handed_over(writer)

    def write(
        self, writer: Writer, rows: Mapping[int, Sequence[str]]
    ) -> list[WriterCommitMessage | None]:
        """Run a task for each partition, some of them without rows."""
        return [
            self.attempt(writer, number, batches(number, rows.get(number, ())))
            for number in range(self.partitions)
        ]

    def attempt(
        self,
        writer: Writer,
        partition: int,
        found: Iterable[pa.RecordBatch],
        number: int = 0,
    ) -> WriterCommitMessage:
        """Run one attempt of a task; number: of the attempt."""
        with in_task(partition, number):
            return handed_over(handed_over(writer).write(iter(found)))

    def run(self, rows: Mapping[int, Sequence[str]], **options: str) -> list[object]:
        """Run the whole job, which is aborted if it fails; return the messages of its tasks."""
        writer = self.plan(**options)
        messages: list[WriterCommitMessage | None] = [None] * self.partitions
        try:
            for number in range(self.partitions):
                found = batches(number, rows.get(number, ()))
                messages[number] = self.attempt(writer, number, found)
            handed_over(writer).commit(messages)
        except KafkaException:
            handed_over(writer).abort(messages)
            raise
        return list(messages)

    @property
    def committed(self) -> list[str]:
        """The values that readers see."""
        return committed_values(self.cluster.bootstrap, self.topic)


def handed_over(thing: _T) -> _T:
    """Return a thing as the next of Spark's processes gets it."""
    found: _T = pickle.loads(pickle.dumps(thing))
    return found


def batches(partition: int, values: Sequence[str]) -> list[pa.RecordBatch]:
    """Return rows for a partition, in one batch or none."""
    if not values:
        return []
    numbers = pa.array([partition] * len(values), pa.int32())
    return [pa.record_batch({"value": pa.array(values), "partition": numbers})]
