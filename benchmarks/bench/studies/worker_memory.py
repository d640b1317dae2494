r"""What memory one long task takes in its Python worker, minute by minute.

    PYTHONPATH=benchmarks:tests:jobs \
    python -m bench.studies.worker_memory [SECONDS] [--cells CELL …]

Run it in an environment of ``make bench``. SECONDS for the sink, 600 if they are not given.
The cells are the warm ones with keys and without headers of ``make bench ARGS="--list"``, 1KB if
none is named.

First for a minute the writer that discards its rows, then this sink with its defaults writes a
cell's sizes to its partitions, in a single task that has more than enough rows. Each has a worker
of its own. Prints the most resident memory of each minute.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from support.brokers.own_broker import own_broker
from support.oracles.readers import create_topic
from support.spark.own_session import own_session

from bench.cells import CELLS, Cell, Kind
from bench.meter import Meter
from spark_kafka_sink import register

MORE_THAN_ENOUGH: Final = 10**10
# Rows of more columns take longer to make.
LARGE: Final = {
    name: cell
    for name, cell in CELLS.items()
    if cell.key_bytes and not cell.headers and cell.kind is Kind.WARM
}
SECONDS: Final = 600.0
MINUTE_S: Final = 60.0


class _Discard(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class DiscardSource(DataSource):
    """Only the hop from the JVM to Python; a script's class is pickled completely."""

    @classmethod
    def name(cls) -> str:
        """Return its name for ``format``."""
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's signature
        """Return the writer."""
        return _Discard()


def measure(
    spark: SparkSession, rows: DataFrame, name: str, options: dict[str, str], seconds: float
) -> bool:
    """Write for `seconds`, and print the worker's memory; return False if the job ended before."""
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

    # The job runs in this thread: in another one, Spark does not find a session's sources.
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        rows.write.format(name).mode("append").options(**options).save()
    except Exception:  # Spark's exception for a cancelled job depends on the source
        if not cancelled.is_set():
            raise
    finally:
        ended.set()
        watcher.join()
    print(
        f"{options['topic']}, {name}: MB by minute:", *(f"{peak:.0f}" for peak in peaks), flush=True
    )
    if not cancelled.is_set():
        print(f"{name}: the job ended by itself", file=sys.stderr)
    return cancelled.is_set()


def rows_of(spark: SparkSession, cell: Cell) -> DataFrame:
    """Return more rows than a task needs, which are fast to make."""
    pieces = -(-cell.value_bytes // 128)
    return spark.range(0, MORE_THAN_ENOUGH, 1, 1).selectExpr(
        f"lpad(CAST(id AS STRING), {cell.key_bytes}, '0') AS key",
        f"substr(repeat(sha2(CAST(id AS STRING), 512), {pieces}), 1, {cell.value_bytes}) AS value",
    )


def main() -> int:
    """Measure both on a Kafka of their own."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("seconds", type=float, nargs="?", default=SECONDS)
    given.add_argument("--cells", nargs="+", choices=LARGE, default=["1KB"], metavar="CELL")
    own, lasted = given.parse_args(), []
    with own_broker() as cluster, own_session(cores=1) as spark:
        register(spark)
        spark.dataSource.register(DiscardSource)
        for topic in dict.fromkeys(own.cells):
            cell = LARGE[topic]
            create_topic(cluster.bootstrap, topic, cell.partitions)
            options = {
                "kafka.bootstrap.servers": cluster.bootstrap,
                "topic": topic,
                "kafka.compression.type": cell.compression,
            }
            for name, lasting in ((DiscardSource.name(), MINUTE_S), ("pykafka", own.seconds)):
                lasted.append(measure(spark, rows_of(spark, cell), name, options, lasting))
    return 0 if all(lasted) else 1


if __name__ == "__main__":
    sys.exit(main())
