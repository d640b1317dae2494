"""A program is started by its Python's path, and the ``python3`` of the PATH is another Python."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import NewTopic
from pyspark.sql import SparkSession
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent

from spark_kafka_sink import register
from spark_kafka_sink.errors import ConfigException

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_SCRIPT = """
import sys
from functools import partial

from pyspark.sql import SparkSession

from spark_kafka_sink import atomic_layout, register, write_batch

bootstrap, topic, source, *settings = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
for setting in settings:
    builder = builder.config(*setting.split("="))
spark = builder.getOrCreate()
register(spark)
options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
columns = ("CAST(id AS STRING) AS value", "CAST(id AS STRING) AS key")


def run(writer, checkpoint):
    writer = writer.option("checkpointLocation", f"{source}-{checkpoint}")
    writer.trigger(availableNow=True).start().awaitTermination()


rows = spark.range(0, 100).selectExpr(*columns)
rows.write.format("pykafka").options(**options).save()
laid_out = atomic_layout(spark.range(100, 200).selectExpr(*columns), options)
laid_out.write.format("pykafka").options(**options).save()
spark.range(200, 300).selectExpr(*columns).write.parquet(source)
stream = spark.readStream.schema("value STRING, key STRING").parquet(source)
run(stream.writeStream.format("pykafka").options(**options), "stream")
run(stream.writeStream.foreachBatch(partial(write_batch, options=options)), "batches")
"""


def run_script(
    folder: Path, python3: Path | None, kafka: KafkaCluster, topic: str, *settings: str
) -> subprocess.CompletedProcess[str]:
    """Run the script by this Python's path, with `python3` first on the PATH."""
    (folder / "path").mkdir()
    if python3 is not None:
        (folder / "path" / "python3").symlink_to(python3)
    (folder / "script.py").write_text(_SCRIPT)
    (folder / "empty").mkdir()
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("PYSPARK", "PYTHON"))}
    return subprocess.run(
        [sys.executable, folder / "script.py", kafka.bootstrap, topic, folder / "rows", *settings],
        cwd=folder / "empty",
        env={**kept, "PATH": f"{folder / 'path'}{os.pathsep}{kept['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_workers_run_the_python_of_the_program(
    kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    bare = Path(sys.base_prefix) / "bin" / "python3"
    assert subprocess.run([bare, "-Ic", "import spark_kafka_sink"], check=False).returncode == 1
    topic = new_topic(3)
    done = run_script(tmp_path, bare, kafka, topic)
    assert done.returncode == 0, done.stderr[-5000:]
    found = Counter(int(r.value or b"") for r in read_with_confluent(kafka.bootstrap, topic))
    assert found == Counter({**dict.fromkeys(range(200), 1), **dict.fromkeys(range(200, 300), 2)})


def test_a_python_without_the_sink_is_refused_before_any_job(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = str(Path(sys.base_prefix) / "bin" / "python3")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare)
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup
    before = jobs()
    with pytest.raises(ConfigException) as refused:
        register(spark)
    assert jobs() == before
    said = str(refused.value)
    # In the folder of the checkout this Python finds the sink, and nothing that the sink needs.
    assert said.startswith(f"Spark's workers would run {bare}, which has no module ")
    assert f". The driver runs {sys.executable} (Python " in said
    assert "): set PYSPARK_PYTHON to that before the Spark session starts" in said
