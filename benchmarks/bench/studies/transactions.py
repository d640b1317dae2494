"""The cost of transactions: rows laid out by partition, written with and without them.

``PYTHONPATH=benchmarks:tests:jobs python -m bench.studies.transactions``, in an environment of
``make bench``.

The same cached gigabyte, with one task per Kafka partition, is written in turns by the sink and by
tasks with a transaction of their own each. That costs more than one transaction for an entire job,
without the work of such a transaction on the driver. It prints medians: rows per second relative to
the sink's, CPU microseconds per row of JVM, Python and broker.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from support.brokers.own_broker import own_broker
from support.oracles.readers import create_topic, delete_topics
from support.spark.own_session import own_session

from bench.meter import Meter
from spark_kafka_sink import KafkaProducer, atomic_layout, register
from spark_kafka_sink.client.appender import SLICE_BYTES
from spark_kafka_sink.spark.options import SINK_DEFAULTS
from spark_kafka_sink.spark.tasks.task import append_coalesced
from spark_kafka_sink.spark.worker import keep_heap

if TYPE_CHECKING:
    import pyarrow as pa

VALUES: Final = {100: 10_000_000, 1_000: 1_000_000, 10_000: 100_000}
PARTITIONS: Final = 12
ROUNDS: Final = 9
WARM_UP_S: Final = 45.0
# A broker removes a deleted topic's files within a second, during no turn.
REMOVAL_S: Final = 2.0
NAMES: Final = ("pykafka", "transactions")


class _Transaction(DataSourceArrowWriter):
    """Writes each task's rows in a transaction of its own."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._configs = {**SINK_DEFAULTS, "bootstrap.servers": bootstrap}
        self._topic = topic

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        keep_heap()
        task = TaskContext.get().partitionId()  # type: ignore[union-attr]  # tasks have one
        own = {"transactional.id": f"{self._topic}-{task}"}
        with KafkaProducer({**self._configs, **own}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            append_coalesced(
                iterator,
                lambda batch, _since: producer.append(self._topic, batch),
                SLICE_BYTES,
                int(SINK_DEFAULTS["linger.ms"]) / 1000,
            )
            producer.commit_transaction()
        return WriterCommitMessage()


class Transactions(DataSource):
    """The sink's producers with transactions."""

    @classmethod
    def name(cls) -> str:
        """Return its name for `format`."""
        return "transactions"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's signature
        """Read brokers and topic from the options."""
        return _Transaction(self.options["kafka.bootstrap.servers"], self.options["topic"])


def laid_out(spark: SparkSession, options: dict[str, str], value_bytes: int) -> DataFrame:
    """Return a cached gigabyte, with the rows of each Kafka partition in one task."""
    pieces = -(-value_bytes // 128)
    made = spark.range(0, VALUES[value_bytes], 1, 2).selectExpr(
        "CAST(lpad(CAST(id AS STRING), 16, '0') AS BINARY) AS key",
        f"CAST(substr(repeat(sha2(CAST(id AS STRING), 512), {pieces}), 1, {value_bytes}) AS BINARY)"
        " AS value",
    )
    rows = atomic_layout(made, options).cache()
    rows.count()
    return rows


def measure(spark: SparkSession, bootstrap: str, value_bytes: int, meter: Meter) -> None:
    """Write both ways, in turns."""
    took: dict[str, list[tuple[float, ...]]] = {name: [] for name in NAMES}
    rows, warm_at, number = None, time.monotonic() + WARM_UP_S, 0
    while len(took["pykafka"]) < ROUNDS:
        is_warm, number = time.monotonic() >= warm_at, number + 1
        names = list(NAMES)
        Random(number).shuffle(names)
        for name in names:
            topic = f"{name}-{value_bytes}-{number}"
            create_topic(bootstrap, topic, PARTITIONS)
            options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
            rows = laid_out(spark, options, value_bytes) if rows is None else rows
            before, began = meter.read(), time.monotonic()
            rows.write.format(name).mode("append").options(**options).save()
            seconds, used = time.monotonic() - began, meter.read().since(before)
            if is_warm:
                count = VALUES[value_bytes]
                cpu = (each / count * 1e6 for each in (used.jvm, used.python, used.broker))
                took[name].append((seconds, *cpu))
            delete_topics(bootstrap, [topic])
            time.sleep(REMOVAL_S)
    ratios = [own[0] / other[0] for own, other in zip(*took.values(), strict=True)]
    print(f"values of {value_bytes:,} bytes: {statistics.median(ratios):.2f}x", end=" ")
    print(f"({min(ratios):.2f}-{max(ratios):.2f}) of the rows a second in transactions")
    for name, found in took.items():
        _, jvm, python, broker = (statistics.median(each) for each in zip(*found, strict=True))
        print(f"  {name:13} JVM {jvm:6.2f} us, Python {python:6.2f} us, broker {broker:6.2f} us")
    sys.stdout.flush()
    if rows is not None:
        rows.unpersist()


def main() -> None:
    """Measure three sizes, on a Kafka of its own."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    with own_broker() as cluster, own_session() as spark:
        register(spark)
        spark.dataSource.register(Transactions)
        meter = Meter([cluster.pid(1)])
        for value_bytes in VALUES:
            measure(spark, cluster.bootstrap, value_bytes, meter)


if __name__ == "__main__":
    main()
