"""The writers of the data source pass the span of a job to its tasks, and end it.

The test plays Spark in a process of its own, because a process keeps its tracer provider.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.brokers.mock_cluster import MockCluster
from support.spark.job_server import ROOT
from support.spark.otlp_receiver import otlp_receiver

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="OpenTelemetry is missing")

PLAYED = """
import os, pickle, sys
from contextlib import suppress
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructType
from spark_kafka_sink.spark.micro_batch import BATCH_ID, QUERY_ID
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.tasks.task_rows import TaskRows
from support.spark.played_tasks import in_task

def handed_over(thing):
    return pickle.loads(pickle.dumps(thing))

options = {"kafka.bootstrap.servers": sys.argv[1], "topic": "t", "openTelemetry": "true"}
schema = StructType().add("value", BinaryType())
source = KafkaDataSource(options)
job = handed_over(source.writer(schema, overwrite=False))
messages = []
for number in range(3):
    with in_task(number):
        rows = pa.record_batch({"value": [b"x"] * (number + 1)})
        messages.append(handed_over(job.write(iter([rows]))))
handed_over(job).commit(messages)

stream = handed_over(source.streamWriter(schema, overwrite=True))
with in_task(0, properties={QUERY_ID: "q", BATCH_ID: "7"}):
    message = handed_over(stream.write(iter([pa.record_batch({"value": [b"x"] * 10})])))
handed_over(source).streamWriter(schema, overwrite=True).commit([message], 7)
handed_over(source).streamWriter(schema, overwrite=True).abort([None], 8)

flush = TaskRows.flush

def flush_and_fail(self):
    flush(self)
    raise OSError("no")

TaskRows.flush = flush_and_fail
with in_task(0), suppress(OSError):
    job.write(iter([pa.record_batch({"value": [b"x"] * 4})]))
print("ended", flush=True)
os._exit(0)  # as a worker of Spark ends
"""


def test_each_job_and_micro_batch_is_a_trace_of_its_own() -> None:
    with MockCluster() as cluster, otlp_receiver() as receiver:
        cluster.create_topic("t")
        done = subprocess.run(
            [sys.executable, "-c", PLAYED, cluster.bootstrap],
            env=os.environ
            | {
                "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
                "PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT / 'jobs'}",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "ended\n", done.stderr
        job, micro_batch, failed = receiver.named("pykafka write")
        tasks = receiver.named("pykafka task")
    (broken,) = (task for task in tasks if task.is_error)
    assert broken.parent == job.span_id
    assert broken.attributes["pykafka.rows"] == 4
    tasks.remove(broken)
    rows = {
        each.span_id: sorted(
            task.attributes["pykafka.rows"] for task in tasks if task.parent == each.span_id
        )
        for each in (job, micro_batch, failed)
    }
    assert rows == {job.span_id: [1, 2, 3], micro_batch.span_id: [10], failed.span_id: []}
    assert job.attributes["pykafka.rows"] == 6
    names = ("pykafka.rows", "pykafka.query_id", "pykafka.batch_id")
    assert [micro_batch.attributes[name] for name in names] == [10, "q", 7]
    assert [each.is_error for each in (job, micro_batch, failed)] == [False, False, True]
    assert len({each.trace_id for each in (job, micro_batch, failed)}) == 3
