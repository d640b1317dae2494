"""A batch job of mode `single` without a JVM: the test plays Spark's part.

Writers and messages are pickled between Spark's processes, as Spark does it.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from spark_kafka_sink.spark.layout_mark import as_metadata
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.writer import ExactlyOnceWriter
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import committed_values

_T = TypeVar("_T")


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
        self, writer: ExactlyOnceWriter, rows: Mapping[int, Sequence[str]]
    ) -> list[WriterCommitMessage | None]:
        """Run a task for each partition, some of them without rows."""
        return [
            handed_over(handed_over(writer).write(iter(batches(number, rows.get(number, ())))))
            for number in range(self.partitions)
        ]

    def run(self, rows: Mapping[int, Sequence[str]], **options: str) -> list[object]:
        """Run the whole job; return the messages of its tasks."""
        writer = self.plan(**options)
        messages = self.write(writer, rows)
        handed_over(writer).commit(messages)
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
