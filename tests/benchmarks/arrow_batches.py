"""What sizes of Spark's Arrow batches cost a write.

``PYTHONPATH=tests python -m benchmarks.arrow_batches``, in an environment of ``make bench``.

One session writes the same cached rows with one limit after the other, in turns. Prints medians:
thousands of rows a second, and CPU microseconds a row of the JVM and of Python's workers.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from support import fetch_kafka
from support.kafka_cluster import KafkaCluster
from support.readers import create_topic, delete_topics

from jobs.bench_meter import Meter

LIMIT: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
MEBIBYTES: Final = (64, 16, 8, 4, 2)
# Rows, and bytes of their values.
FRAMES: Final = ((30_000, 10_000), (200_000, 1000), (1_000_000, 100))
ROUNDS: Final = 5


def frame(spark: SparkSession, rows: int, size: int) -> DataFrame:
    """Give cached rows with keys of 16 bytes."""
    value = f"substr(repeat(sha2(CAST(id AS STRING), 512), {size // 128 + 1}), 1, {size})"
    made = spark.range(0, rows, 1, 2).selectExpr(
        "lpad(CAST(id AS STRING), 16, '0') AS key", f"{value} AS value"
    )
    made.cache().count()
    return made


def measure(spark: SparkSession, bootstrap: str, rows: int, size: int) -> None:
    """Write one frame with every limit in turn."""
    written, meter = frame(spark, rows, size), Meter([])
    took: dict[int, list[tuple[float, float, float]]] = {limit: [] for limit in MEBIBYTES}
    for number in range(ROUNDS + 1):
        topic = f"arrow-{size}-{number}"
        create_topic(bootstrap, topic, 12)
        for limit in (*MEBIBYTES[number % len(MEBIBYTES) :], *MEBIBYTES[: number % len(MEBIBYTES)]):
            spark.conf.set(LIMIT, str(limit << 20))
            before, started = meter.read(), time.monotonic()
            options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
            written.write.format("pykafka").mode("append").options(**options).save()
            seconds, used = time.monotonic() - started, meter.read().since(before)
            if number:
                jvm, python = used.jvm / rows * 1e6, used.python / rows * 1e6
                took[limit].append((rows / seconds / 1000, jvm, python))
        delete_topics(bootstrap, [topic])
    written.unpersist()
    print(f"\n{rows:,} rows of {size:,} bytes\nMiB   k rows/s   JVM us   Python us")
    for limit, each in took.items():
        rate, jvm, python = (statistics.median(one) for one in zip(*each, strict=True))
        print(f"{limit:3}   {rate:8.1f}   {jvm:6.2f}   {python:6.2f}", flush=True)


def main() -> int:
    """Measure every frame on a Kafka of its own."""
    if not fetch_kafka.fetch(fetch_kafka.NEWEST):
        print(fetch_kafka.missing(), file=sys.stderr)
        return 2
    settings = {"log.retention.check.interval.ms": "5000", "log.segment.delete.delay.ms": "1000"}
    with tempfile.TemporaryDirectory() as folder:
        cluster = KafkaCluster(fetch_kafka.libs(fetch_kafka.NEWEST), Path(folder), 1, settings)
        try:
            cluster.start()
            builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
            builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
            spark = builder.config("spark.driver.memory", "4g").getOrCreate()
            for rows, size in FRAMES:
                measure(spark, cluster.bootstrap, rows, size)
            spark.stop()
        finally:
            cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
