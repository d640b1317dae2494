"""A standalone cluster of two workers: the sink shipped by --py-files, and by --archives."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import NewTopic
from support import environments, flights
from support.flights import check_every_row_once
from support.kafka_cluster import KafkaCluster
from support.readers import read_with_confluent
from support.spark_processes import environment, standalone_cluster, submit

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

COUNT, TASKS, PARTITIONS = 40_000, 4, 6

_JOB = f"""
import sys

from pyspark.sql import SparkSession

from spark_kafka_sink import register

tests, bootstrap, topic, report = sys.argv[1:]
sys.path.append(tests)
from support.flights import rows

spark = SparkSession.builder.getOrCreate()
register(spark)
(
    rows(spark, {COUNT}, {TASKS})
    .write.format("pykafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", topic)
    .option("reportPath", report)
    .save()
)
hosts = spark.sparkContext.parallelize(range(8), 8).map(
    lambda _: (__import__("os").environ["SPARK_LOCAL_IP"], __import__("sys").executable)
)
print(sorted(set(hosts.collect())))
"""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the sink's dependencies but not the sink."""
    return environments.python_without_the_sink(tmp_path_factory.mktemp("bare") / "venv")


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory, bare_python: Path) -> Iterator[str]:
    """The address of a standalone cluster whose workers do not have the sink."""
    with standalone_cluster(tmp_path_factory.mktemp("standalone"), bare_python) as address:
        yield address


def run_job(
    master: str, arguments: list[str | Path], env: dict[str, str], kafka: KafkaCluster, topic: str,
    folder: Path,
) -> str:  # fmt: skip
    """Submit the job; check every row and that both workers took part; give its output."""
    script, report = folder / "job.py", folder / "report.json"
    script.write_text(_JOB)
    tests = Path(flights.__file__).parent.parent
    common: list[str | Path] = ["--master", master, "--conf", "spark.ui.enabled=false"]
    common += ["--conf", "spark.driver.bindAddress=127.0.0.1", "--executor-memory", "900m"]
    common += ["--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0"]
    done = submit(
        [*common, *arguments, script, tests, kafka.bootstrap, topic, report], cwd=folder, env=env
    )
    assert done.returncode == 0, done.stderr[-5000:]
    check_every_row_once(read_with_confluent(kafka.bootstrap, topic), COUNT, TASKS, PARTITIONS)
    assert json.loads(report.read_text())["rows"] == COUNT
    assert "127.0.0.1" in done.stdout
    assert "127.0.0.2" in done.stdout
    return done.stdout


def test_the_sink_shipped_by_py_files(
    master: str, bare_python: Path, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    sink = environments.zip_of_the_sink(tmp_path / "spark_kafka_sink.zip")
    env = environment(bare_python) | {"PYSPARK_DRIVER_PYTHON": str(bare_python)}
    run_job(master, ["--py-files", sink], env, kafka, new_topic(PARTITIONS), tmp_path)


def test_the_sink_shipped_in_an_archive(
    master: str, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    packed = environments.archive_of_an_environment(tmp_path / "environment.tar.gz")
    # The driver plans the write with the same Python, so it has the environment unpacked as well.
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path / "environment", filter="fully_trusted")
    env = environment("./environment/bin/python") | {"PYSPARK_DRIVER_PYTHON": sys.executable}
    output = run_job(
        master,
        ["--archives", f"{packed}#environment"],
        env,
        kafka,
        new_topic(PARTITIONS),
        tmp_path,
    )
    assert "environment/bin/python" in output
