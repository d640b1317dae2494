"""last_reports(spark): what an application's writes and micro-batches have reported."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pyarrow as pa
import pytest
from conftest import NewTopic
from pyspark import SparkFiles
from pyspark.sql import SparkSession
from pyspark.sql.tvf import TableValuedFunction
from support.brokers.kafka_cluster import KafkaCluster
from support.pure.full_pipe import full_pipe
from support.spark.sink import registered_for_now, save

from spark_kafka_sink import KafkaStreamListener, MicroBatchRecord, last_reports, write_batch
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.tasks import task_progress
from spark_kafka_sink.spark.tasks.task import write_task

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_the_last_reports_are_those_of_jobs_and_micro_batches_in_order(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)
    save(spark.range(30).selectExpr("'x' AS value"), kafka.bootstrap, topic)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.txt").write_text("1\n2\n")
    query = (
        spark.readStream.format("text")
        .load(str(tmp_path / "source"))
        .writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    job, micro_batch = last_reports(spark, 2)
    assert (job["batch_id"], job["rows"], micro_batch["batch_id"], micro_batch["rows"]) == (
        None,
        30,
        0,
        2,
    )
    assert last_reports(spark, 1) == [micro_batch]
    assert last_reports(spark, 0) == []
    assert last_reports(spark)[-2:] == [job, micro_batch]
    for report in (job, micro_batch):
        assert {p["topic"] for p in report["partitions"]} == {topic}
        slowest = report["slowest_task"]
        assert 0 < slowest["seconds"] <= report["seconds"]
        assert slowest["host"]
        assert 0 <= slowest["task"] < report["tasks"]
    (file,) = Path(SparkFiles.getRootDirectory()).glob(".pykafka-report*")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.parent.stat().st_mode & 0o077 == 0, "others can reach the reports"


def test_a_job_that_fails_leaves_a_report_of_what_it_wrote(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    """The task that fails may be the first or the last to end."""
    topic = new_topic(1)
    frame = spark.range(0, 20, 1, 2).selectExpr(
        "CASE WHEN id >= 10 THEN raise_error('row ten') ELSE 'x' END AS value"
    )
    with registered_for_now(spark), pytest.raises(Exception, match="row ten"):
        save(frame, kafka.bootstrap, topic)
    (report,) = last_reports(spark, 1)
    assert not report["complete"]
    assert "row ten" in report["error"]
    assert report["tasks"] + report["unreported_tasks"] == 2
    assert report["rows"] == 10 * report["tasks"]


_ISOLATION = "spark.sql.artifact.isolation.enabled"


@pytest.fixture
def isolated(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with artifact isolation, which PySpark turns off in contexts that it makes itself.

    Its planning and committing processes have a folder of their own in SparkFiles.
    """
    assert spark.sparkContext._jsc is not None
    settings = spark.sparkContext._jsc.sc().conf()
    before = settings.get(_ISOLATION)
    settings.set(_ISOLATION, "true")
    session = spark.newSession()
    assert session.conf.get(_ISOLATION) == "true"
    settings.set(_ISOLATION, before)
    with registered_for_now(session):
        yield session


def test_reports_of_a_session_with_isolated_artifacts_reach_the_program(
    isolated: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, records = new_topic(1), Queue[MicroBatchRecord]()
    save(isolated.range(7).selectExpr("'x' AS value"), kafka.bootstrap, topic)
    (report,) = last_reports(isolated, 1)
    assert (report["rows"], report["partitions"][0]["topic"]) == (7, topic)

    values = "CASE WHEN id = 1 THEN raise_error('row one') ELSE 'x' END AS value"
    failing = isolated.range(0, 2, 1, 1).selectExpr(values)
    with pytest.raises(Exception, match="row one"):
        save(failing, kafka.bootstrap, topic)
    (report,) = last_reports(isolated, 1)
    assert not report["complete"]
    assert "row one" in report["error"]

    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.txt").write_text("1\n2\n")
    listener = KafkaStreamListener(records.put)
    isolated.streams.addListener(listener)
    try:
        writer = (
            isolated.readStream.format("text")
            .load(str(tmp_path / "source"))
            .writeStream.format("pykafka")
            .option("kafka.bootstrap.servers", kafka.bootstrap)
            .option("topic", topic)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        writer.start().awaitTermination()
        record = records.get(timeout=60)
    finally:
        isolated.streams.removeListener(listener)
    assert [each["rows"] for each in record.reports] == [2]


def test_write_batch_adds_a_line_for_every_micro_batch(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    path = tmp_path / "reports.jsonl"
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "topic": new_topic(1),
        "reportPath": str(path),
    }
    for batch_id, rows in ((7, 3), (8, 5)):
        write_batch(spark.range(rows).selectExpr("'x' AS value"), batch_id, options)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(report["batch_id"], report["rows"]) for report in found] == [(7, 3), (8, 5)]


def test_a_session_of_another_kind_is_told_about_report_path() -> None:
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    from spark_kafka_sink.errors import KafkaException

    session = ConnectSession.__new__(ConnectSession)
    session._session_id = None  # type: ignore[assignment]  # never connected
    with pytest.raises(KafkaException, match="needs a classic session"):
        last_reports(session)  # type: ignore[arg-type]  # which is the point


def test_a_task_prints_its_progress_while_it_waits_for_its_input(
    kafka: KafkaCluster, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr(task_progress, "_STDERR", writer)
    monkeypatch.setattr(task_progress, "PERIOD_S", 0.01)
    given = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": new_topic(1)}
    options = sink_options(given | {"progress": "true", "kafka.linger.ms": "0"})
    with os.fdopen(reader) as lines, os.fdopen(writer, "w"):

        def batches() -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"value": ["x" * 100] * 7})
            assert any(" 7 rows, 0.0 MB acknowledged" in line for line in lines)
            yield pa.record_batch({"value": ["x"]})

        assert write_task(options, batches()).report.rows == 8


# A partitioner that waits until a line of progress is logged.
WAITS_FOR_PROGRESS = """
import threading
from spark_kafka_sink.spark.tasks import task_progress

task_progress.PERIOD_S = 0.01
logged, log = threading.Event(), task_progress._log

def log_and_tell(line):
    log(line)
    logged.set()

task_progress._log = log_and_tell

def wait(topic, batch, partitions):
    assert logged.wait(60)
    return [0] * batch.num_rows
"""


@pytest.mark.skipif(
    not hasattr(TableValuedFunction, "python_worker_logs"),
    reason="Spark 4.0 does not collect the logs of workers",
)
def test_spark_collects_the_progress_of_tasks_if_it_collects_logs(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    module = tmp_path / "partitioner_that_waits_for_progress.py"
    module.write_text(WAITS_FOR_PROGRESS)
    spark.sparkContext.addPyFile(str(module))
    setting = "spark.sql.pyspark.worker.logging.enabled"
    spark.conf.set(setting, "true")
    try:
        save(
            spark.range(0, 3, 1, 1).selectExpr("'x' AS value"),
            kafka.bootstrap,
            new_topic(1),
            progress="true",
            kafka_partitioner_class=f"{module.stem}.wait",
        )
        logs = spark.tvf.python_worker_logs()
        found = [row.msg for row in logs.where("logger = 'spark_kafka_sink.progress'").collect()]
    finally:
        spark.conf.unset(setting)
    assert found[0].startswith("pykafka: task 0 (attempt 0): 0 rows, 0.0 MB acknowledged")


def test_a_task_whose_stderr_is_a_full_pipe_writes_all_its_rows(
    kafka: KafkaCluster, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_progress, "PERIOD_S", 0.01)
    printing, os_write = threading.Event(), os.write
    given = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": new_topic(1)}
    options = sink_options(given | {"progress": "true"})
    with full_pipe() as (_, writer):

        def write(file: int, text: bytes) -> int:
            if file == writer:
                printing.set()
            return os_write(file, text)

        def batches() -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"value": ["x"] * 7})
            assert printing.wait(60)
            yield pa.record_batch({"value": ["x"]})

        monkeypatch.setattr(task_progress, "_STDERR", writer)
        monkeypatch.setattr(os, "write", write)
        assert write_task(options, batches()).report.rows == 8
        assert task_progress._printing.locked(), "the first line still waits"
    with task_progress._printing:
        """It waits no longer, so the lines of other tests are printed."""


def test_throttling_of_a_task_is_reported(kafka: KafkaCluster, new_topic: NewTopic) -> None:
    topic, client_id = new_topic(1), f"throttled-{uuid.uuid4()}"
    options = sink_options(
        {
            "kafka.bootstrap.servers": kafka.bootstrap,
            "kafka.client.id": client_id,
            "topic": topic,
        }
    )
    batch = pa.record_batch({"value": ["x" * 100_000]})
    assert write_task(options, iter([batch])).throttle_ms == 0
    kafka.limit_bytes(client_id, 1000)
    # Ten seconds' worth of the quota is free, and brokers learn of it when they do.
    written = (write_task(options, iter([batch])).throttle_ms for _ in range(1000))
    assert next(throttled for throttled in written if throttled) > 0
