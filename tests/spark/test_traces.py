"""Jobs and tasks of a real application are one OpenTelemetry trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.spark.otlp_receiver import otlp_receiver
from support.spark.spark_processes import SPARK_SUBMIT, environment, without_work_left

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="OpenTelemetry is missing")

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.long(reason="it starts Spark with executors of their own, for two writes"),
]

TASKS = 4
JOB = """
import sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from pyspark.sql import SparkSession
from spark_kafka_sink import register

bootstrap, topic = sys.argv[1:]
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
spark = SparkSession.builder.getOrCreate()
register(spark)
rows = spark.range(0, 400, 1, 4).selectExpr("'x' AS value")

def save(frame):
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", bootstrap)
    writer.option("topic", topic).option("openTelemetry", "true").save()

with trace.get_tracer("job").start_as_current_span("nightly"):
    save(rows)
try:
    save(rows.selectExpr("CAST(raise_error('broken') AS STRING) AS value"))
except Exception as error:
    assert "broken" in str(error)
spark.stop()
"""


def test_a_job_on_executors_is_a_span_with_one_for_each_of_its_tasks(
    kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    settings = {
        "spark.master": "local-cluster[2,1,1024]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.executor.memory": "900m",
        "spark.task.maxFailures": "1",
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    with otlp_receiver() as receiver, without_work_left():
        where = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        done = subprocess.run(
            [str(SPARK_SUBMIT), *conf, str(script), kafka.bootstrap, new_topic(1)],
            env={**environment(sys.executable), **where},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert done.returncode == 0, done.stderr[-5000:]
        (nightly,) = receiver.named("nightly")
        jobs = receiver.named("pykafka write")
        (job,) = [span for span in jobs if span.parent == nightly.span_id]
        (failed,) = [span for span in jobs if span is not job]
        tasks = [s for s in receiver.named("pykafka task") if s.parent == job.span_id]
    assert {span.trace_id for span in (job, *tasks)} == {nightly.trace_id}
    assert sorted(span.attributes["spark.task.partition"] for span in tasks) == list(range(TASKS))
    assert [span.attributes["pykafka.rows"] for span in tasks] == [100] * TASKS
    assert job.attributes["pykafka.rows"] == 400
    assert job.attributes["pykafka.tasks"] == TASKS
    assert failed.parent == ""
    assert failed.is_error
    assert failed.trace_id != nightly.trace_id
