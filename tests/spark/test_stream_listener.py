"""KafkaStreamListener hears of the micro-batches and the failures of real streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from conftest import NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.brokers.kafka_cluster import KafkaCluster
from support.spark.sink import registered_for_now
from support.spark.spark_processes import ConnectServer

from spark_kafka_sink import (
    FailedQueryRecord,
    KafkaStreamListener,
    MicroBatchRecord,
    write_batch,
)

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

LIMIT_S = 60


def save_batch(frame: DataFrame, _: int, /, options: dict[str, str]) -> None:
    frame.write.format("pykafka").mode("append").options(**options).save()


def test_streams_at_once_have_a_record_for_each_micro_batch(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    functions = {"write_batch": write_batch, "save": save_batch}
    topics = {name: new_topic(1) for name in ("stream", *functions)}
    records: Queue[MicroBatchRecord] = Queue()
    listener = KafkaStreamListener(records.put)
    queries = {}
    spark.streams.addListener(listener)
    try:
        with registered_for_now(spark):
            for name, topic in topics.items():
                source = tmp_path / name
                source.mkdir()
                for number in (1, 2):
                    rows = number if name == "stream" else 10 * number
                    (source / f"{number}.txt").write_text("x\n" * rows)
                options = {
                    "kafka.bootstrap.servers": kafka.bootstrap,
                    "topic": topic,
                    "quiet": "true",
                }
                frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
                writer = frame.load(str(source)).writeStream.queryName(name)
                if name == "stream":
                    writer = writer.format("pykafka").options(**options)
                else:
                    writer = writer.foreachBatch(partial(functions[name], options=options))
                writer = writer.option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
                queries[name] = writer.trigger(availableNow=True).start()
            for query in queries.values():
                query.awaitTermination()
        found = [records.get(timeout=LIMIT_S) for _ in range(6)]
    finally:
        spark.streams.removeListener(listener)
    assert records.empty()
    seen: dict[str, list[tuple[int, int, str]]] = {name: [] for name in queries}
    for record in found:
        assert record.progress.name is not None
        (report,) = record.reports
        assert report["query_id"] == str(record.progress.id)
        assert report["rows"] == record.progress.numInputRows
        (partition,) = report["partitions"]
        written = record.progress.batchId, report["rows"], partition["topic"]
        seen[record.progress.name].append(written)
        sink = record.progress.sink.description
        assert ("PythonTable" if record.progress.name == "stream" else "ForeachBatchSink") in sink
    for name, topic in topics.items():
        by_file = sorted(rows for _, rows, _ in seen[name])
        assert by_file == ([1, 2] if name == "stream" else [10, 20])
        assert [(batch, where) for batch, _, where in seen[name]] == [(0, topic), (1, topic)]


def failing_source(folder: Path) -> Path:
    """Make a source of two micro-batches, of which the second has a row over 1000 bytes."""
    folder.mkdir()
    for number, row in enumerate(("x", "y" * 2000)):
        file = folder / f"{number}.txt"
        file.write_text(f"{row}\n")
        os.utime(file, (number, number))  # Spark reads the oldest first
    return folder


SMALL_ROWS = {"kafka.max.request.size": "1000", "quiet": "true"}
TOO_LARGE = "spark_kafka_sink.errors.RecordTooLargeException: "


def test_of_two_streams_at_once_the_one_that_fails_has_a_record_of_it(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    records, failures = Queue[MicroBatchRecord](), Queue[FailedQueryRecord]()
    listener = KafkaStreamListener(records.put, failures.put)
    (tmp_path / "good").mkdir()
    for number in range(2):
        (tmp_path / "good" / f"{number}.txt").write_text("x\n")
    failing_source(tmp_path / "bad")
    spark.streams.addListener(listener)
    try:
        queries = {}
        for name in ("good", "bad"):
            options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": new_topic(1)}
            frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
            writer = frame.load(str(tmp_path / name)).writeStream.format("pykafka").queryName(name)
            writer = writer.options(**options, **SMALL_ROWS).trigger(availableNow=True)
            writer = writer.option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
            queries[name] = writer.start()
        queries["good"].awaitTermination()
        with pytest.raises(PySparkException):
            queries["bad"].awaitTermination()
        failure = failures.get(timeout=LIMIT_S)
        found = [records.get(timeout=LIMIT_S) for _ in range(3)]
    finally:
        spark.streams.removeListener(listener)
    assert failures.empty()
    assert sorted((each.progress.name, each.progress.batchId) for each in found) == [
        ("bad", 0),
        ("good", 0),
        ("good", 1),
    ]
    bad = queries["bad"]
    assert (str(failure.id), str(failure.run_id), failure.name) == (bad.id, bad.runId, "bad")
    assert failure.error.startswith(f"{TOO_LARGE}row 0 of task 0")
    assert failure.batch_id == 0
    assert failure.report is not None
    assert (failure.report["query_id"], failure.report["rows"]) == (bad.id, 1)


# The event about the failed query is passed on when the server has ended the events, which is while
# the listener is removed. With Spark's own bus of listeners, this client would never end.
CLIENT = """
import faulthandler, json, queue, sys, threading, traceback
faulthandler.dump_traceback_later(120, exit=True)  # show where it hangs
from pyspark.sql import SparkSession
from spark_kafka_sink import KafkaStreamListener, register

remote, good, bad, options, removes = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
register(spark)

bus, kept, came = spark.streams._sqlb, [], threading.Event()
post_to_all, query_event_handler = bus.post_to_all, bus._query_event_handler

def keep_failures(event):
    if getattr(event, "exception", None) is None:
        post_to_all(event)
    else:
        kept.append(event)
        came.set()

def post_late(events):
    query_event_handler(events)
    for event in kept:
        post_to_all(event)

bus.post_to_all, bus._query_event_handler = keep_failures, post_late

records, failures = queue.Queue(), queue.Queue()
listener = KafkaStreamListener(records.put, failures.put)
spark.streams.addListener(listener)
queries = []
for source in (good, bad):
    frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(source)
    writer = frame.writeStream.format("pykafka").options(**json.loads(options))
    writer = writer.option("checkpointLocation", source + "-checkpoint")
    queries.append(writer.trigger(availableNow=True).start())
queries[0].awaitTermination()
said = []
for wait in (queries[1].awaitTermination, spark.streams.awaitAnyTermination):
    try:
        wait()
    except Exception as error:
        said.append("".join(traceback.format_exception(error)).splitlines()[-1])
found = [records.get(timeout=60) for _ in range(2)]
print(json.dumps([[r.progress.numInputRows, r.reports, r.where] for r in found]))
print(json.dumps(said))
if removes == "removes":
    assert came.wait(60)
    spark.streams.removeListener(listener)
    failure = failures.get_nowait()
    is_bad = str(failure.id) == queries[1].id and str(failure.run_id) == queries[1].runId
    print(json.dumps([is_bad, failure.error, failure.batch_id, failure.report, failure.where]))
"""


def run_client(
    connect: ConnectServer, kafka: KafkaCluster, topic: str, folder: Path, end: str
) -> list[Any]:
    """Run the client; return what it prints. end: whether it removes its listener."""
    (folder / "good").mkdir()
    (folder / "good" / "1.txt").write_text("x\n" * 7)
    failing_source(folder / "bad")
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic, **SMALL_ROWS}
    folders = [str(folder / name) for name in ("good", "bad")]
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, connect.remote, *folders, json.dumps(options), end],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_over_connect_records_have_what_spark_tells_and_the_listener_can_be_removed(
    connect: ConnectServer, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    records, said, failure = run_client(connect, kafka, new_topic(1), tmp_path, "removes")
    assert sorted((rows, reports) for rows, reports, _ in records) == [(1, []), (7, [])]
    assert all("reportPath" in where for _, _, where in records)
    is_bad, error, batch_id, report, where = failure
    assert (is_bad, batch_id, report) == (True, 0, None)
    assert error.startswith(f"{TOO_LARGE}row 0 of task 0")
    assert "reportPath" in where
    assert said == [error, error], "the last line of what both ways of waiting raise"


@pytest.mark.long(reason="a program over Connect takes seconds, and another test is as this one")
def test_over_connect_a_program_ends_without_removing_its_listener(
    connect: ConnectServer, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    records, _ = run_client(connect, kafka, new_topic(1), tmp_path, "forgets")
    assert len(records) == 2
