"""Queries and jobs that are stopped while the user's own code in a task does not return."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from conftest import NewTopic
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame, SparkSession
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_at_least, read_with_confluent
from support.spark.sink import registered_for_now

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.long(reason="Spark gives a worker time before it ends it; nothing of this changes"),
]

A_WHILE_S = 120
ROWS = 100
# Blocks at rows with the value "stand": it writes its process id, and waits for a file that never
# comes.
USER_CODE = """
import os

from spark_kafka_sink import KafkaProducer

def wait():
    if not os.path.exists({go!r}):
        with open({standing!r} + ".part", "w") as told:
            told.write(str(os.getpid()))
        os.rename({standing!r} + ".part", {standing!r})
        open({never!r}).read()

def stand(topic, batch, partitions):
    if "stand" in batch["value"].to_pylist():
        wait()
    return [0] * batch.num_rows

class Writer:
    def __init__(self, bootstrap, topic):
        self.configs, self.topic = {{"bootstrap.servers": bootstrap}}, topic

    def open(self, partition, epoch):
        self.producer = KafkaProducer(self.configs)
        return True

    def process(self, row):
        def called(metadata, error):
            if row.value == "stand":
                wait()
        self.producer.send(self.topic, row.value, on_delivery=called)

    def close(self, error):
        self.producer.close()

def write(rows, bootstrap, topic):
    writer = Writer(bootstrap, topic)
    writer.open(0, 0)
    for row in rows:
        writer.process(row)
    writer.close(None)
"""


class Stand(NamedTuple):
    """User code that does not return, in a module, with the files for its messages."""

    module: str
    standing: Path
    never: Path
    go: Path

    @property
    def partitioner(self) -> str:
        """The name of a partitioner."""
        return f"{self.module}.stand"

    def wait(self, problem: Callable[[], object]) -> int:
        """Wait until a task stands; return the process id of its worker.

        problem: returns why no task will, None while one may.
        """
        while not self.standing.exists():
            found = problem()
            assert found is None, found
            time.sleep(0.05)
        return int(self.standing.read_text())

    def release(self) -> None:
        """Let the user code return that stands now, unless Spark has ended it."""
        with suppress(OSError):
            os.close(os.open(self.never, os.O_WRONLY | os.O_NONBLOCK))


@pytest.fixture
def stand(spark: SparkSession, tmp_path: Path) -> Stand:
    """User code of the test's own, which workers can import."""
    name = f"standing_{tmp_path.name}"
    files = {each: tmp_path / each for each in ("standing", "never", "go")}
    os.mkfifo(files["never"])
    module = tmp_path / f"{name}.py"
    module.write_text(USER_CODE.format(**{each: str(path) for each, path in files.items()}))
    spark.sparkContext.addPyFile(str(module))
    return Stand(name, **files)


def wait_for_end(process: int) -> None:
    """Wait until a worker process is gone: what it has not sent by then, it never sends."""
    deadline = time.monotonic() + A_WHILE_S
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(process, 0)
            time.sleep(0.05)
        message = f"worker {process} goes on"
        raise TimeoutError(message)


def values_in(kafka: KafkaCluster, topic: str) -> Counter[str]:
    """Count how often each value is in a topic."""
    records = read_with_confluent(kafka.bootstrap, topic)
    return Counter(record.value.decode() for record in records if record.value is not None)


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """Rows in two partitions; the second one ends with the row that a partitioner stands at."""
    return spark.range(ROWS, numPartitions=2).selectExpr(
        f"IF(id = {ROWS - 1}, 'stand', string(id)) AS value"
    )


COMPLETE = Counter({**{str(number): 1 for number in range(ROWS - 1)}, "stand": 1})


def test_a_query_stops_while_a_partitioner_does_not_return(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path, stand: Stand
) -> None:
    topic, source = new_topic(1), tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("1\n2\nstand\n")
    writer = (
        spark.readStream.format("text")
        .load(str(source))
        .writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("kafka.partitioner.class", stand.partitioner)
        .option("topic", topic)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    query = writer.start()
    worker = stand.wait(lambda: None if query.isActive else query.exception() or "it has ended")
    query.stop()
    wait_for_end(worker)
    assert query.exception() is None
    assert values_in(kafka, topic) == Counter()

    stand.go.touch()
    writer.start().awaitTermination()
    assert values_in(kafka, topic) == Counter(["1", "2", "stand"])


def test_a_job_that_was_cancelled_leaves_nothing_to_the_next_one(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, rows: DataFrame, stand: Stand
) -> None:
    """One task is through and left its producer to the next; the other one is killed."""
    cancelled, complete = new_topic(1), new_topic(1)

    def save(topic: str) -> None:
        spark.sparkContext.setJobGroup(topic, "of a test")
        (
            rows.write.format("pykafka")
            .option("kafka.bootstrap.servers", kafka.bootstrap)
            .option("kafka.partitioner.class", stand.partitioner)
            .option("topic", topic)
            .mode("append")
            .save()
        )

    # Without register, save() needs a session of its own thread.
    with registered_for_now(spark), ThreadPoolExecutor(1) as beside:
        job = beside.submit(save, cancelled)
        worker = stand.wait(lambda: job.exception() or "it has ended" if job.done() else None)
        assert len(read_at_least(kafka.bootstrap, cancelled, ROWS // 2)) >= ROWS // 2
        spark.sparkContext.cancelJobGroup(cancelled)
        with pytest.raises(Py4JJavaError, match="cancelled part of cancelled job group"):
            job.result(A_WHILE_S)
    wait_for_end(worker)
    found = values_in(kafka, cancelled)
    assert set(found.values()) == {1}
    assert "stand" not in found

    stand.go.touch()
    save(complete)
    assert values_in(kafka, complete) == COMPLETE
    assert values_in(kafka, cancelled) == found


@pytest.fixture
def user_code(stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The same module for the driver, which sends what it has of it by its name."""
    monkeypatch.syspath_prepend(tmp_path)
    return import_module(stand.module)


def test_a_query_stops_while_a_callback_does_not_return(
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    tmp_path: Path,
    stand: Stand,
    user_code: ModuleType,
) -> None:
    """The producer is of the user's own, in a writer for each task."""
    topic, source = new_topic(1), tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("1\n2\nstand\n")
    writer = (
        spark.readStream.format("text")
        .load(str(source))
        .writeStream.foreach(user_code.Writer(kafka.bootstrap, topic))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    query = writer.start()
    worker = stand.wait(lambda: None if query.isActive else query.exception() or "it has ended")
    query.stop()
    assert query.exception() is None
    # Spark ends the task and closes the worker's socket. The worker ends when its code returns.
    stand.release()
    wait_for_end(worker)
    assert values_in(kafka, topic) == Counter(["1", "2", "stand"])

    stand.go.touch()
    writer.start().awaitTermination()
    assert values_in(kafka, topic) == Counter(["1", "2", "stand"] * 2)


def test_a_job_that_was_cancelled_while_a_callback_does_not_return_leaves_nothing_to_the_next_one(
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    rows: DataFrame,
    stand: Stand,
    user_code: ModuleType,
) -> None:
    cancelled, complete = new_topic(1), new_topic(1)

    def save(topic: str) -> None:
        spark.sparkContext.setJobGroup(topic, "of a test")
        write = partial(user_code.write, bootstrap=kafka.bootstrap, topic=topic)
        rows.foreachPartition(write)

    with ThreadPoolExecutor(1) as beside:
        job = beside.submit(save, cancelled)
        worker = stand.wait(lambda: job.exception() or "it has ended" if job.done() else None)
        spark.sparkContext.cancelJobGroup(cancelled)
        with pytest.raises(Py4JJavaError, match="cancelled part of cancelled job group"):
            job.result(A_WHILE_S)
    wait_for_end(worker)
    found = values_in(kafka, cancelled)
    assert found["stand"] == 1
    assert set(found.values()) == {1}

    stand.go.touch()
    save(complete)
    assert values_in(kafka, complete) == COMPLETE
