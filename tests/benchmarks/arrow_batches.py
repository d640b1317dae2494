"""What sizes of Spark's Arrow batches cost a write.

``PYTHONPATH=tests python -m benchmarks.arrow_batches``, in an environment of ``make bench``.

One session writes the same cached rows with one limit after the other, in turns. Prints medians:
thousands of rows a second, and CPU microseconds a row of the JVM and of Python's workers.
"""

from __future__ import annotations

import statistics
import time
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from support.own_broker import own_broker
from support.readers import create_topic, delete_topics

from jobs.bench_meter import Meter

LIMITS: Final = tuple(
    f"spark.sql.execution.arrow.{name}" for name in ("maxBytesPerBatch", "maxRecordsPerBatch")
)
# With this limit of bytes, Spark does not look after every row how large the batch has become.
UNLIMITED: Final = 2**31 - 1
SPARKS_RECORDS: Final = 10_000
# Bytes and records; 9 MiB are what `register` sets. Without a limit of bytes, rows of 10,000 bytes
# make batches of 100 MB.
CHOICES: Final = (
    *((mebibytes << 20, SPARKS_RECORDS) for mebibytes in (64, 16, 9, 4, 2)),
    (9 << 20, 8 * SPARKS_RECORDS),
    *((UNLIMITED, records) for records in (SPARKS_RECORDS, SPARKS_RECORDS // 4)),
)
# Rows, and bytes of their values.
FRAMES: Final = ((60_000, 10_000), (400_000, 1000), (3_000_000, 100))
ROUNDS: Final = 5


def frame(spark: SparkSession, rows: int, size: int) -> DataFrame:
    """Give cached rows with keys of 16 bytes."""
    value = f"substr(repeat(sha2(CAST(id AS STRING), 512), {size // 128 + 1}), 1, {size})"
    made = spark.range(0, rows, 1, 2).selectExpr(
        "lpad(CAST(id AS STRING), 16, '0') AS key", f"{value} AS value"
    )
    made.cache().count()
    return made


def measure(spark: SparkSession, bootstrap: str, meter: Meter, rows: int, size: int) -> None:
    """Write one frame with every limit in turn."""
    written = frame(spark, rows, size)
    took: dict[tuple[int, int], list[tuple[float, float, float]]] = {each: [] for each in CHOICES}
    for number in range(ROUNDS + 1):
        topic = f"arrow-{size}-{number}"
        create_topic(bootstrap, topic, 12)
        first = number % len(CHOICES)
        for choice in (*CHOICES[first:], *CHOICES[:first]):
            for name, limit in zip(LIMITS, choice, strict=True):
                spark.conf.set(name, str(limit))
            before, started = meter.read(), time.monotonic()
            options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
            written.write.format("pykafka").mode("append").options(**options).save()
            seconds, used = time.monotonic() - started, meter.read().since(before)
            if number:
                jvm, python = used.jvm / rows * 1e6, used.python / rows * 1e6
                took[choice].append((rows / seconds / 1000, jvm, python))
        delete_topics(bootstrap, [topic])
    written.unpersist()
    print(f"\n{rows:,} rows of {size:,} bytes\n   bytes records   k rows/s   JVM us   Python us")
    for (most_bytes, records), each in took.items():
        rate, jvm, python = (statistics.median(one) for one in zip(*each, strict=True))
        shown = "any" if most_bytes == UNLIMITED else f"{most_bytes >> 20} MiB"
        print(f"{shown:>8} {records:7}   {rate:8.1f}   {jvm:6.2f}   {python:6.2f}", flush=True)


def main() -> None:
    """Measure every frame on a Kafka of its own."""
    with own_broker() as cluster:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
        spark = builder.config("spark.driver.memory", "4g").getOrCreate()
        for rows, size in FRAMES:
            measure(spark, cluster.bootstrap, Meter([cluster.pid(1)]), rows, size)
        spark.stop()


if __name__ == "__main__":
    main()
