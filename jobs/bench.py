"""Measures ways to write a DataFrame to Kafka, side by side in one Spark application.

Contenders take turns, round by round, on the same cached rows and the same topic settings; the
first turn of each is reported apart, as cold. What counts are the ratios within one run.

  spark-submit --jars <jars of Spark's own Kafka sink> jobs/bench.py --bootstrap host:port

R0 raw socket (the broker's ceiling) · R1 this sink · R1h a Python writer that discards its rows
(the JVM-to-Python hop alone) · R2 Spark's JVM sink with its defaults · R2t the same, tuned
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from jobs import raw_socket
else:
    import raw_socket

TUNED: Final = {"linger.ms": "50", "batch.size": "1048576", "buffer.memory": "268435456"}
_BASELINE: Final = "R2t"
_BATCH_BYTES: Final = 512 * 1024


class DiscardingWriter(DataSourceArrowWriter):
    """Takes every Arrow batch and does nothing with it."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Run a task."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class DiscardingSource(DataSource):
    """The hop from the JVM to Python, and nothing else."""

    @classmethod
    def name(cls) -> str:
        """Give the format's name."""
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DiscardingWriter:  # noqa: ARG002, FBT001 - Spark's signature
        """Plan a write."""
        return DiscardingWriter()


@dataclass(slots=True)
class Turn:
    """One measured write: seconds, and CPU seconds by who used them."""

    seconds: float
    cpu: dict[str, float]


@dataclass(slots=True)
class Result:
    """A contender's turns; the first one is cold."""

    name: str
    rows: int
    turns: list[Turn] = field(default_factory=list)

    @property
    def warm(self) -> list[float]:
        """Rows per second of the warm turns."""
        return [self.rows / turn.seconds for turn in self.turns[1:]]

    def cpu(self, who: str) -> float:
        """Median CPU seconds of the warm turns."""
        return statistics.median(turn.cpu.get(who, 0.0) for turn in self.turns[1:])


class CpuMeter:
    """CPU seconds of the JVM, its Python workers, and a broker on this machine."""

    def __init__(self, broker_pids: list[int]) -> None:
        import psutil  # noqa: PLC0415 - only the benchmark needs it

        self._psutil = psutil
        self._broker_pids = broker_pids
        # spark-submit makes the JVM the parent of this process and of the Python workers.
        parent = psutil.Process(os.getpid()).parent()
        is_jvm = parent is not None and parent.name() == "java"
        self._root = parent if is_jvm else psutil.Process(os.getpid())

    def read(self) -> dict[str, float]:
        """Give the CPU seconds used so far."""
        used = {"jvm": 0.0, "python": 0.0, "broker": 0.0}
        for process in (self._root, *self._root.children(recursive=True)):
            if process.pid not in self._broker_pids:
                used["jvm" if process.name() == "java" else "python"] += self._seconds(process)
        for pid in self._broker_pids:
            used["broker"] += self._seconds(self._psutil.Process(pid))
        return used

    def _seconds(self, process: object) -> float:
        try:
            times = process.cpu_times()  # type: ignore[attr-defined]
        except self._psutil.NoSuchProcess:
            return 0.0
        return float(times.user + times.system)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured: the rows, and the topic they go to."""

    rows: int
    value_bytes: int
    key_bytes: int
    partitions: int
    compression: str


def rows_of(spark: SparkSession, cell: Cell) -> DataFrame:
    """Make the rows, cached; values are text that compresses about three to one."""
    words = max(1, cell.value_bytes // 16)
    value = f"rpad(repeat(concat(hex(xxhash64(id)), 'abcdefgh'), {words}), {cell.value_bytes}, 'x')"
    columns = [f"CAST({value} AS BINARY) AS value"]
    if cell.key_bytes:
        columns.insert(0, f"CAST(lpad(CAST(id AS STRING), {cell.key_bytes}, '0') AS BINARY) AS key")
    frame = spark.range(0, cell.rows, 1, spark.sparkContext.defaultParallelism).selectExpr(*columns)
    frame.cache().count()
    return frame


def contenders(
    spark: SparkSession, frame: DataFrame, cell: Cell, bootstrap: str, topic: str
) -> dict[str, Callable[[], object]]:
    """Give what can be measured here, by name."""
    spark.dataSource.register(DiscardingSource)
    options = {"topic": topic, "kafka.bootstrap.servers": bootstrap}
    options["kafka.compression.type"] = cell.compression
    tuned = options | {f"kafka.{name}": value for name, value in TUNED.items()}
    found: dict[str, Callable[[], object]] = {
        "R1": lambda: frame.write.format("pykafka").mode("append").options(**options).save(),
        "R1h": lambda: frame.write.format("discard").mode("append").save(),
        "R0": _raw_socket(cell, bootstrap, topic, spark.sparkContext.defaultParallelism),
    }
    try:
        spark._jvm.java.lang.Class.forName(  # type: ignore[union-attr]  # noqa: SLF001 - is it there?
            "org.apache.spark.sql.kafka010.KafkaSourceProvider",
            True,  # noqa: FBT003 - Java's signature
            spark._jvm.Thread.currentThread().getContextClassLoader(),  # type: ignore[union-attr]  # noqa: SLF001
        )
    except Exception:  # noqa: BLE001 - whatever py4j raises, the jars are not there
        print("Spark's own Kafka sink is not on the class path: R2 and R2t are left out")
        return found
    found["R2"] = lambda: frame.write.format("kafka").options(**options).save()
    found["R2t"] = lambda: frame.write.format("kafka").options(**tuned).save()
    return found


def _raw_socket(cell: Cell, bootstrap: str, topic: str, connections: int) -> Callable[[], float]:
    host, _, port = bootstrap.split(",", maxsplit=1)[0].rpartition(":")
    count = max(1, _BATCH_BYTES // (cell.value_bytes + cell.key_bytes + 10))
    keys = [str(n).zfill(cell.key_bytes).encode() for n in range(count)] if cell.key_bytes else []
    values = [
        (f"{n:016x}abcdefgh".encode() * cell.value_bytes)[: cell.value_bytes] for n in range(count)
    ]
    batch = raw_socket.encoded_batch(keys, values, cell.compression, round(time.time() * 1000))
    address = (host, int(port))
    return lambda: raw_socket.write(address, topic, cell.partitions, batch, cell.rows, connections)


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Make a topic; its name tells where it came from."""
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - only here
    from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415 - only here

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, num_partitions=partitions)]).values():
        future.result()


def delete_topic(bootstrap: str, topic: str) -> None:
    """Remove a topic of this benchmark."""
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - only here

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.delete_topics([topic]).values():
        future.result()


def measure(
    runs: dict[str, Callable[[], object]], rows: int, rounds: int, meter: CpuMeter
) -> list[Result]:
    """Let the contenders take turns."""
    results = {name: Result(name, rows) for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            before, started = meter.read(), time.perf_counter()
            run()
            seconds = time.perf_counter() - started
            cpu = {who: used - before[who] for who, used in meter.read().items()}
            results[name].turns.append(Turn(seconds, cpu))
            print(
                f"  round {number}{' (cold)' if not number else ''}: {name:4} "
                f"{rows / seconds / 1e3:9.0f} k rows/s",
                flush=True,
            )
    return list(results.values())


def table(results: list[Result]) -> str:
    """Give the results as a table, ratios to the tuned JVM sink first."""
    by_name = {result.name: result for result in results}
    base = by_name.get(_BASELINE)
    lines = [
        f"{'':4} {'ratio':>7} {'median k rows/s':>16} {'range':>15} {'cold':>8} "
        f"{'CPU s: JVM':>11} {'Python':>7} {'broker':>7}"
    ]
    for result in results:
        median = statistics.median(result.warm)
        ratio = f"{median / statistics.median(base.warm):.2f}x" if base else "-"
        low, high = min(result.warm) / 1e3, max(result.warm) / 1e3
        cold = result.rows / result.turns[0].seconds / 1e3
        cpu = [result.cpu(who) for who in ("jvm", "python", "broker")]
        lines.append(
            f"{result.name:4} {ratio:>7} {median / 1e3:16.0f} {f'{low:.0f}-{high:.0f}':>15} "
            f"{cold:8.0f} {cpu[0]:11.2f} {cpu[1]:7.2f} {cpu[2]:7.2f}"
        )
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="bench.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--key-bytes", type=int, default=16, help="0 for rows without keys")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--compression", default="none")
    parser.add_argument("--rounds", type=int, default=5, help="warm rounds, after a cold one")
    parser.add_argument("--only", nargs="+", metavar="R", help="contenders to measure")
    parser.add_argument("--broker-pid", type=int, nargs="*", default=[], help="for its CPU time")
    parser.add_argument("--json", type=Path, help="append the results to this file")
    return parser.parse_args()


def main() -> int:
    """Measure one cell."""
    args = arguments()
    cell = Cell(args.rows, args.value_bytes, args.key_bytes, args.partitions, args.compression)
    topic = f"pykafka-bench-{uuid.uuid4().hex[:8]}"
    spark = SparkSession.builder.appName("bench").getOrCreate()
    print(f"{cell}", flush=True)
    create_topic(args.bootstrap, topic, cell.partitions)
    try:
        frame = rows_of(spark, cell)
        runs = contenders(spark, frame, cell, args.bootstrap, topic)
        if args.only:
            runs = {name: run for name, run in runs.items() if name in args.only}
        results = measure(runs, cell.rows, args.rounds, CpuMeter(args.broker_pid))
    finally:
        delete_topic(args.bootstrap, topic)
        spark.stop()
    print(table(results))
    if args.json is not None:
        line = {"cell": asdict(cell), "results": [asdict(result) for result in results]}
        with args.json.open("a") as out:
            out.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
