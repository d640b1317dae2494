"""KafkaStreamListener hears of the micro-batches of real streams."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from queue import Queue

import pytest
from conftest import NewTopic
from pyspark.sql import SparkSession
from support.brokers.kafka_cluster import KafkaCluster
from support.spark.spark_processes import ConnectServer

from spark_kafka_sink import KafkaStreamListener, MicroBatchRecord, write_batch

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

LIMIT_S = 60


def test_two_streams_at_once_have_a_record_for_each_micro_batch(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topics = {name: new_topic(1) for name in ("stream", "function")}
    records: Queue[MicroBatchRecord] = Queue()
    listener = KafkaStreamListener(records.put)
    queries = {}
    spark.streams.addListener(listener)
    try:
        for name, topic in topics.items():
            source = tmp_path / name
            source.mkdir()
            for number in (1, 2):
                rows = number if name == "stream" else 10 * number
                (source / f"{number}.txt").write_text("x\n" * rows)
            options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic, "quiet": "true"}
            frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
            writer = frame.load(str(source)).writeStream.queryName(name)
            if name == "stream":
                writer = writer.format("pykafka").options(**options)
            else:
                writer = writer.foreachBatch(partial(write_batch, options=options))
            writer = writer.option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
            queries[name] = writer.trigger(availableNow=True).start()
        for query in queries.values():
            query.awaitTermination()
        found = [records.get(timeout=LIMIT_S) for _ in range(4)]
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


CLIENT = """
import faulthandler, json, queue, sys
faulthandler.dump_traceback_later(120, exit=True)  # show where it hangs
from pyspark.sql import SparkSession
from spark_kafka_sink import KafkaStreamListener, register

remote, source, checkpoint, options = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
register(spark)
records = queue.Queue()
listener = KafkaStreamListener(records.put)
spark.streams.addListener(listener)
writer = spark.readStream.format("text").load(source).writeStream.format("pykafka")
writer = writer.options(**json.loads(options)).option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start().awaitTermination()
record = records.get(timeout=60)
print(json.dumps([record.progress.numInputRows, record.reports, record.where]))
spark.streams.removeListener(listener)
"""


@pytest.mark.long(
    reason="the client did not end in one of nine runs, which it now shows; the cause is not known"
)
def test_over_connect_a_record_has_sparks_progress(
    connect: ConnectServer, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.txt").write_text("x\n" * 7)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": new_topic(1)}
    folders = [str(tmp_path / "source"), str(tmp_path / "checkpoint")]
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, connect.remote, *folders, json.dumps(options)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    rows, reports, where = json.loads(done.stdout.splitlines()[-1])
    assert (rows, reports) == (7, [])
    assert "reportPath" in where
