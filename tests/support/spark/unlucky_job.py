"""A Spark job that is damaged while it writes, one case after another, run by spark-submit.

    unlucky_job.py BOOTSTRAP FOLDER OPTIONS CASE=TOPIC…

Every row's value begins with its number. The damage happens in the first task that reaches it. In
most cases, some of its rows are in Kafka then, so that they are written again. A save that fails is
repeated once. FOLDER gets a file for every attempt of that task, and a report. OPTIONS are more
options of the write, as JSON; with exactlyOnce, each case is an application of its own. The output
is one line of JSON per case.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_kafka_sink.client.appender import SLICE_BYTES
from spark_kafka_sink.spark.layout_mark import as_metadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_VALUE_BYTES = 5000
TASKS = 2
# Twice the rows that the sink collects before it begins to send, for each task.
_TASK_ROWS = 2 * SLICE_BYTES // _VALUE_BYTES
ROWS = TASKS * _TASK_ROWS
_FRAME = (
    f"CAST(id DIV {_TASK_ROWS} AS INT) AS partition",
    f"concat(id, ':', repeat('x', {_VALUE_BYTES})) AS value",
)
_SCHEMA = "partition INT, value STRING"
_QUESTIONS = 1000
# A point before the first row of a task.
BEGINS = "begins"


def _raise() -> None:
    raise RuntimeError("the first attempt fails")


def _kill_the_executor() -> None:
    """Kill the JVM whose daemon started this Python worker."""
    executor = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(executor, signal.SIGKILL)
    signal.pause()


def _kill_the_workers() -> None:
    """Kill every Python worker of this executor: this one and the one in which the sink writes."""
    daemon = os.getppid()
    children = Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()
    for child in sorted(map(int, children), key=lambda pid: pid == os.getpid()):
        os.kill(child, signal.SIGKILL)


MISFORTUNES: dict[str, Callable[[], None]] = {
    "exception": _raise,
    "workers": _kill_the_workers,
    "executor": _kill_the_executor,
    "stage": _kill_the_executor,
    "barrier": _raise,
    "slow": signal.pause,
}
# The cases that are not about the middle of a task: what happens, and at which point of the task.
# The last two points are in the sink (`dying_tasks`).
AT_POINT: dict[str, tuple[str, str]] = {
    f"{misfortune}-{point}": (misfortune, point)
    for misfortune in ("workers", "executor")
    for point in (BEGINS, "acknowledged", "returns")
}


def _wait_until_written(bootstrap: str, topic: str, partition: int) -> None:
    """Wait until a partition has rows, which the sink sends while this task waits."""
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unlucky",
            "isolation.level": "read_uncommitted",
        }
    )
    place = confluent_kafka.TopicPartition(topic, partition)
    for _ in range(_QUESTIONS):
        if consumer.get_watermark_offsets(place, timeout=30)[1] > 0:
            consumer.close()
            return
        consumer.poll(0.1)
    raise TimeoutError("the sink sent nothing")


def _unlucky(
    bootstrap: str, topic: str, marks: Path, misfortune: Callable[[], None]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that passes rows on, and damages the first task that calls it."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        passed = 0
        for batch in batches:
            yield batch
            passed += batch.nbytes
            if passed < _TASK_ROWS * _VALUE_BYTES * 0.8:
                continue
            (marks / f"{context.partitionId()}-{context.attemptNumber()}").touch()
            try:
                (marks / "first").touch(exist_ok=False)
            except FileExistsError:
                yield from batches
                return
            _wait_until_written(bootstrap, topic, batch["partition"][0].as_py())
            misfortune()

    return pass_on


def _noted(
    marks: Path, misfortune: Callable[[], None] | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that notes an attempt, and damages the first one before its first row."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        (marks / f"{context.partitionId()}-{context.attemptNumber()}").touch()
        if misfortune is not None:
            try:
                (marks / "first").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                misfortune()
        yield from batches

    return pass_on


def _damaging(
    bootstrap: str, topic: str, case: str, marks: Path
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function through which the rows of a case pass, and prepare its misfortune."""
    if case not in AT_POINT:
        return _unlucky(bootstrap, topic, marks, MISFORTUNES[case])
    misfortune, point = AT_POINT[case]
    if point == BEGINS:
        return _noted(marks, MISFORTUNES[misfortune])
    if not (marks / "first").exists():
        (marks / "first").touch()
        (marks.parent / point).write_text(misfortune)
    return _noted(marks, None)


def _run(spark: SparkSession, given: dict[str, str], topic: str, case: str, folder: Path) -> None:
    marks = folder / case
    marks.mkdir(exist_ok=True)
    frame: DataFrame = spark.range(0, ROWS, 1, TASKS).selectExpr(*_FRAME)
    if case == "stage":
        frame = frame.repartition(TASKS, "partition")
    bootstrap = given["kafka.bootstrap.servers"]
    unlucky = _damaging(bootstrap, topic, case, marks)
    spark.sparkContext.setJobGroup(case, case)
    options = {**given, "topic": topic, "reportPath": str(folder / f"{case}.json")}
    if "exactlyOnce" in given:
        options |= {"txnAppId": case, "txnVersion": "1"}
    rows = frame.mapInArrow(unlucky, _SCHEMA, barrier=case == "barrier")
    if given.get("exactlyOnce") == "single":
        # The rows are laid out so already; a shuffle would part the misfortune from the sink.
        mark = as_metadata({topic: TASKS})
        rows = rows.withColumn("partition", F.col("partition").alias("partition", metadata=mark))
    rows.write.format("pykafka").mode("append").options(**options).save()


def _stage_attempts(spark: SparkSession, case: str) -> int:
    """Return the largest number of attempts of a stage of a case."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(case)]
    stages = itertools.chain.from_iterable(job.stageIds for job in jobs if job is not None)
    infos = [tracker.getStageInfo(stage) for stage in stages]
    return 1 + max(info.currentAttemptId for info in infos if info is not None)


def main() -> None:
    """Run the cases."""
    bootstrap, folder, options, *cases = sys.argv[1:]
    given = {"kafka.bootstrap.servers": bootstrap, **json.loads(options)}
    spark = SparkSession.builder.getOrCreate()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 50)
    for each in cases:
        case, _, topic = each.partition("=")
        failed = ""
        try:
            _run(spark, given, topic, case, Path(folder))
        except (Py4JJavaError, PySparkException) as error:
            failed = str(error)
            _run(spark, given, topic, case, Path(folder))
        attempts = [mark.name for mark in (Path(folder) / case).glob("?-?")]
        said = {"case": case, "attempts": attempts, "stages": _stage_attempts(spark, case)}
        said["failed"] = failed
        print(json.dumps(said), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
