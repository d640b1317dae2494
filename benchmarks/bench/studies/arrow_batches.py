"""The cost of a write with different sizes of Spark's Arrow batches.

``PYTHONPATH=benchmarks:tests:jobs python -m bench.studies.arrow_batches``, in an environment of
``make bench``.

One session writes the same cached rows with one limit after another, in turns. It prints medians:
rows per second relative to Spark's own limits in the same round (with the range), thousands of rows
per second, and CPU microseconds per row of the JVM and of Python's workers.
"""

from __future__ import annotations

import statistics
import time
from random import Random
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from support.brokers.own_broker import own_broker
from support.oracles.readers import create_topic, delete_topics
from support.spark.own_session import own_session

from bench.meter import Meter

LIMITS: Final = tuple(
    f"spark.sql.execution.arrow.{name}" for name in ("maxBytesPerBatch", "maxRecordsPerBatch")
)
# With this byte limit, Spark does not check the size of the batch after every row.
UNLIMITED: Final = 2**31 - 1
SPARKS_RECORDS: Final = 10_000
# Bytes and records: the first are Spark's defaults, the second are those of `register`. Without a
# byte limit, 10,000 rows of 10,000 bytes are a batch of 100 MB.
CHOICES: Final = (
    *((kibibytes << 10, SPARKS_RECORDS) for kibibytes in (65_536, 7680, 16_384, 9216, 4096, 2048)),
    *((7680 << 10, records) for records in (8 * SPARKS_RECORDS, SPARKS_RECORDS // 4)),
    *((UNLIMITED, SPARKS_RECORDS // part) for part in (1, 4, 10, 20)),
)
# Numbers of rows, and the sizes of their values in bytes.
FRAMES: Final = ((60_000, 10_000), (400_000, 1000), (3_000_000, 100))
ROUNDS: Final = 7
WARM_UP_S: Final = 30.0


def frame(spark: SparkSession, rows: int, size: int) -> DataFrame:
    """Return cached rows with keys of 16 bytes."""
    value = f"substr(repeat(sha2(CAST(id AS STRING), 512), {size // 128 + 1}), 1, {size})"
    made = spark.range(0, rows, 1, 2).selectExpr(
        "lpad(CAST(id AS STRING), 16, '0') AS key", f"{value} AS value"
    )
    made.cache().count()
    return made


def measure(spark: SparkSession, bootstrap: str, meter: Meter, rows: int, size: int) -> None:
    """Write one frame with every limit in turn."""
    written, warm_at = frame(spark, rows, size), time.monotonic() + WARM_UP_S
    took: dict[tuple[int, int], list[tuple[float, float, float]]] = {each: [] for each in CHOICES}
    choices, chance, number = list(CHOICES), Random(1), 0
    while len(took[choices[0]]) < ROUNDS:
        is_warm, number = time.monotonic() >= warm_at, number + 1
        topic = f"arrow-{size}-{number}"
        create_topic(bootstrap, topic, 12)
        chance.shuffle(choices)
        for choice in choices:
            for name, limit in zip(LIMITS, choice, strict=True):
                spark.conf.set(name, str(limit))
            before, started = meter.read(), time.monotonic()
            options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
            written.write.format("pykafka").mode("append").options(**options).save()
            seconds, used = time.monotonic() - started, meter.read().since(before)
            if is_warm:
                jvm, python = used.jvm / rows * 1e6, used.python / rows * 1e6
                took[choice].append((rows / seconds, jvm, python))
        delete_topics(bootstrap, [topic])
    written.unpersist()
    print(f"\n{rows:,} rows of {size:,} bytes")
    print("   bytes records   rows/s to Spark's own   k rows/s   JVM us   Python us")
    spark_s = [each[0] for each in took[CHOICES[0]]]
    for (most_bytes, records), each in took.items():
        rates, jvms, pythons = zip(*each, strict=True)
        ratios = [rate / theirs for rate, theirs in zip(rates, spark_s, strict=True)]
        ratio = f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})"
        rate, jvm, python = map(statistics.median, (rates, jvms, pythons))
        shown = "any" if most_bytes == UNLIMITED else f"{most_bytes / (1 << 20):g} MiB"
        row = f"{rate / 1000:8.1f}   {jvm:6.2f}   {python:6.2f}"
        print(f"{shown:>8} {records:7}   {ratio:>21}   {row}", flush=True)


def main() -> None:
    """Measure every frame on a Kafka of its own."""
    with own_broker() as cluster, own_session() as spark:
        meter = Meter([cluster.pid(1)])
        for rows, size in FRAMES:
            measure(spark, cluster.bootstrap, meter, rows, size)


if __name__ == "__main__":
    main()
