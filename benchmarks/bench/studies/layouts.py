"""Rows written as they come, compared with rows laid out by their Kafka partition first.

``PYTHONPATH=benchmarks:tests:jobs python -m bench.studies.layouts``, in an environment of ``make
bench``.

One session writes the same cached rows of 100 bytes with keys both ways, in turns. For the second,
Spark shuffles them (`atomic_layout`), so that a task writes to one partition. It prints medians:
thousands of rows per second, and CPU microseconds per row: of the JVM, of Python, of the broker.
"""

from __future__ import annotations

import statistics
import time
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from support.brokers.own_broker import own_broker
from support.oracles.readers import create_topic, delete_topics
from support.spark.own_session import own_session

from bench.meter import Meter
from spark_kafka_sink import atomic_layout, register

ROWS: Final = 3_000_000
PARTITIONS: Final = (12, 100, 1000)
ROUNDS: Final = 6
WARM_UP_S: Final = 30.0


def frame(spark: SparkSession) -> DataFrame:
    """Return cached rows."""
    made = spark.range(0, ROWS, 1, 2).selectExpr(
        "lpad(CAST(id AS STRING), 16, '0') AS key",
        "substr(sha2(CAST(id AS STRING), 512), 1, 100) AS value",
    )
    made.cache().count()
    return made


def measure(rows: DataFrame, bootstrap: str, partitions: int, meter: Meter) -> None:
    """Write both ways, in turns."""
    names = ("as they come", "laid out")
    took: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    warm_at, number = time.monotonic() + WARM_UP_S, 0
    while len(took[names[0]]) < ROUNDS:
        is_warm, number = time.monotonic() >= warm_at, number + 1
        topic = f"layouts-{partitions}-{number}"
        create_topic(bootstrap, topic, partitions)
        options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
        for name in names if number % 2 else reversed(names):
            before, began = meter.read(), time.monotonic()
            written = rows if name == names[0] else atomic_layout(rows, options)
            written.write.format("pykafka").mode("append").options(**options).save()
            seconds, used = time.monotonic() - began, meter.read().since(before)
            if is_warm:
                cpu = (each / ROWS * 1e6 for each in (used.jvm, used.python, used.broker))
                took[name].append((ROWS / seconds / 1000, *cpu))
        delete_topics(bootstrap, [topic])
    print(f"{partitions:,} partitions   k rows/s   JVM us   Python us   broker us")
    for name, found in took.items():
        rate, jvm, python, broker = (statistics.median(each) for each in zip(*found, strict=True))
        print(
            f"  {name:14}   {rate:8,.0f}   {jvm:6.2f}   {python:9.2f}   {broker:9.2f}", flush=True
        )


def main() -> None:
    """Measure a few partitions and many, on a Kafka of its own."""
    with own_broker() as cluster, own_session() as spark:
        register(spark)
        rows, meter = frame(spark), Meter([cluster.pid(1)])
        for partitions in PARTITIONS:
            measure(rows, cluster.bootstrap, partitions, meter)


if __name__ == "__main__":
    main()
