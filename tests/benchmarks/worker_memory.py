"""What memory one long task takes in its Python worker, minute by minute.

``PYTHONPATH=tests python -m benchmarks.worker_memory [SECONDS]``, in an environment of
``make bench``; SECONDS for the sink, 600 if they are not given.

First for a minute the writer that discards its rows, then this sink with its defaults writes rows
of 1,000 bytes with keys, in a single task that has more than enough of them. Prints the most
resident memory of each minute.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from support.own_broker import FEW_BYTES, own_broker
from support.own_session import own_session
from support.readers import create_topic

from jobs.bench_meter import Meter
from spark_kafka_sink import register

TOPIC: Final = "memory"
PARTITIONS: Final = 12
MORE_THAN_ENOUGH: Final = 10**10
SECONDS: Final = 600.0
MINUTE_S: Final = 60.0


class _Discard(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class DiscardSource(DataSource):
    """The hop from the JVM to Python, and nothing else; pickled whole, as it is of a script."""

    @classmethod
    def name(cls) -> str:
        """Give the name to use in ``format``."""
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's signature
        """Make the writer."""
        return _Discard()


def measure(
    spark: SparkSession, rows: DataFrame, name: str, bootstrap: str, seconds: float
) -> bool:
    """Write for so long, and print what the worker takes; false if the job ended before."""
    options = {"kafka.bootstrap.servers": bootstrap, "topic": TOPIC}
    ended, cancelled, peaks = threading.Event(), threading.Event(), list[float]()

    def watch() -> None:
        try:
            meter, end = Meter([]), time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0 and not ended.is_set():
                meter.forget_peaks()
                ended.wait(min(MINUTE_S, left))
                peaks.append(meter.peak_mb() or 0)
        finally:
            if not ended.is_set():
                cancelled.set()
                spark.sparkContext.cancelAllJobs()

    # The job is this thread's: in another one, Spark knows of no source that a session registers.
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        rows.write.format(name).mode("append").options(**options).save()
    except Exception:  # what Spark raises for a cancelled job depends on the source
        if not cancelled.is_set():
            raise
    finally:
        ended.set()
        watcher.join()
    print(f"{name}: MB by minute:", *(f"{peak:.0f}" for peak in peaks), flush=True)
    if not cancelled.is_set():
        print(f"{name}: the job ended by itself", file=sys.stderr)
    return cancelled.is_set()


def main() -> int:
    """Measure both on a Kafka of their own."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with own_broker() as cluster, own_session(cores=1) as spark:
        create_topic(cluster.bootstrap, TOPIC, PARTITIONS, FEW_BYTES)
        register(spark)
        spark.dataSource.register(DiscardSource)
        rows = spark.range(0, MORE_THAN_ENOUGH, 1, 1).selectExpr(
            "lpad(CAST(id AS STRING), 16, '0') AS key",
            "substr(repeat(sha2(CAST(id AS STRING), 512), 8), 1, 1000) AS value",
        )
        lasted = [
            measure(spark, rows, name, cluster.bootstrap, lasting)
            for name, lasting in ((DiscardSource.name(), MINUTE_S), ("pykafka", seconds))
        ]
    return 0 if all(lasted) else 1


if __name__ == "__main__":
    sys.exit(main())
