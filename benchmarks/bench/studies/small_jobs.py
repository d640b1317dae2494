"""The time of a small job, and the share of each part of the sink.

``PYTHONPATH=benchmarks:tests:jobs python -m bench.studies.small_jobs``, in an environment of ``make
bench``.

A warm session writes the same cached rows in turns: with a sink that discards them, but avoids the
wait that `spark.quick_ack` avoids, with one that also plans as this sink does, with one whose tasks
also write, and so on up to the complete sink. Each has one part more than the one before it. It
prints medians and quartiles in milliseconds.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from support.brokers.own_broker import own_broker
from support.oracles.readers import create_topic
from support.spark.own_session import own_session

from spark_kafka_sink import register
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.worker import acknowledge_now
from spark_kafka_sink.spark.writer import KafkaArrowWriter

if TYPE_CHECKING:
    import pyarrow as pa

ROWS: Final = (1, 10_000)
ROUNDS: Final = 150
WARM_UP_S: Final = 30.0


class _Discarding(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        acknowledge_now()
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Discards(DataSource):
    """A sink that accepts rows and does nothing."""

    @classmethod
    def name(cls) -> str:
        """Return its name for `format`."""
        return "discards"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's signature
        """Plan nothing."""
        return _Discarding()


class _Planned(KafkaArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        return _Discarding().write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        pass


class Plans(KafkaDataSource):
    """This sink's planning, with tasks that discard rows."""

    @classmethod
    def name(cls) -> str:
        """Return its name for `format`."""
        return "plans"

    def writer(self, schema: StructType, overwrite: bool) -> KafkaArrowWriter:  # noqa: FBT001 - Spark's signature
        """Plan as the sink does."""
        planned = super().writer(schema, overwrite)
        assert isinstance(planned, KafkaArrowWriter)
        planned.__class__ = _Planned
        return planned


class _Silent(KafkaArrowWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        pass


class Writes(KafkaDataSource):
    """This sink's planning and tasks, without a report at the end."""

    @classmethod
    def name(cls) -> str:
        """Return its name for `format`."""
        return "writes"

    def writer(self, schema: StructType, overwrite: bool) -> KafkaArrowWriter:  # noqa: FBT001 - Spark's signature
        """Plan as the sink does."""
        planned = super().writer(schema, overwrite)
        assert isinstance(planned, KafkaArrowWriter)
        planned.__class__ = _Silent
        return planned


class Reports(KafkaDataSource):
    """The complete sink without the early checks in the user's process."""

    @classmethod
    def name(cls) -> str:
        """Return its name for `format`."""
        return "reports"


PARTS: Final = {
    "discards": "a writer that discards its rows",
    "plans": "with a plan: options, brokers, topic",
    "writes": "with tasks that write to Kafka",
    "reports": "with the report at the commit",
    "pykafka": "with the early checks in the user's process: the complete sink",
}


def measure(frame: DataFrame, rows: int, options: dict[str, str]) -> None:
    """Write in turns, in another order each round."""
    took: dict[str, list[float]] = {name: [] for name in PARTS}
    warm_at, number = time.monotonic() + WARM_UP_S, 0
    while len(took["pykafka"]) < ROUNDS:
        is_warm, number = time.monotonic() >= warm_at, number + 1
        names = list(PARTS)
        Random(number).shuffle(names)
        for name in names:
            began = time.monotonic()
            frame.write.format(name).mode("append").options(**options).save()
            if is_warm:
                took[name].append((time.monotonic() - began) * 1000)
    print(f"{rows:,} rows" if rows > 1 else "1 row")
    for name, found in took.items():
        low, median, high = statistics.quantiles(found, n=4)
        print(f"  {PARTS[name]:50} {median:6.1f} ({low:.1f}-{high:.1f})", flush=True)


def main() -> None:
    """Measure jobs of one row, and of as many as a micro-batch of the benchmark has."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    with own_broker() as cluster, own_session() as spark:
        register(spark)
        for source in (Discards, Plans, Writes, Reports):
            spark.dataSource.register(source)
        create_topic(cluster.bootstrap, "small-jobs", 12)
        options = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": "small-jobs"}
        for rows in ROWS:
            measure(cached(spark, rows), rows, options)


def cached(spark: SparkSession, rows: int) -> DataFrame:
    """Return cached rows of 100 bytes with keys."""
    made = spark.range(0, rows, 1, min(rows, 2)).selectExpr(
        "lpad(CAST(id AS STRING), 16, '0') AS key",
        "substr(sha2(CAST(id AS STRING), 512), 1, 100) AS value",
    )
    made.cache().count()
    return made


if __name__ == "__main__":
    main()
