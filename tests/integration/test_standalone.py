"""A standalone cluster of two workers: the sink shipped by --py-files, and by --archives."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import NewTopic
from support import environments, flights
from support.flights import check_every_row_once
from support.kafka_cluster import KafkaCluster
from support.readers import read_with_confluent
from support.spark_processes import (
    environment,
    plain_environment,
    standalone_cluster,
    submit,
)

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

README = Path(__file__).parents[2] / "README.md"
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
print("driver", sys.executable)
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


def job_arguments(
    master: str, kafka: KafkaCluster, topic: str, folder: Path
) -> tuple[list[str], list[str]]:
    """Write the job; give spark-submit's arguments for every job here, and the job with its own."""
    script = folder / "job.py"
    script.write_text(_JOB)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "900m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }
    common = ["--master", master]
    for name, value in settings.items():
        common += ["--conf", f"{name}={value}"]
    tests = Path(flights.__file__).parent.parent
    own = [str(each) for each in (script, tests, kafka.bootstrap, topic, folder / "report.json")]
    return common, own


def check_job(
    done: subprocess.CompletedProcess[str], kafka: KafkaCluster, topic: str, folder: Path
) -> None:
    """Check every row, the report, and that both workers took part."""
    assert done.returncode == 0, done.stderr[-5000:]
    check_every_row_once(read_with_confluent(kafka.bootstrap, topic), COUNT, TASKS, PARTITIONS)
    assert json.loads((folder / "report.json").read_text())["rows"] == COUNT
    assert "127.0.0.1" in done.stdout
    assert "127.0.0.2" in done.stdout


def recipe_of_archives() -> str:
    """Give what the README tells to do with a packed environment."""
    blocks = README.read_text().split("```")[1::2]
    (recipe,) = (block for block in blocks if "--archives" in block)
    return recipe


def test_the_sink_shipped_by_py_files(
    master: str, bare_python: Path, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(PARTITIONS)
    sink = environments.zip_of_the_sink(tmp_path / "spark_kafka_sink.zip")
    env = environment(bare_python) | {"PYSPARK_DRIVER_PYTHON": str(bare_python)}
    common, job = job_arguments(master, kafka, topic, tmp_path)
    done = submit([*common, "--py-files", sink, *job], cwd=tmp_path, env=env)
    check_job(done, kafka, topic, tmp_path)


def test_the_readme_s_recipe_for_a_packed_environment(
    master: str, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(PARTITIONS)
    common, job = job_arguments(master, kafka, topic, tmp_path)
    packing, _, running = recipe_of_archives().partition("mkdir ")
    # The environment is made as venv-pack makes it; all that follows is done as it is written.
    assert packing.endswith("venv-pack -p environment -o environment.tar.gz\n")
    environments.archive_of_an_environment(tmp_path / "environment.tar.gz")
    for example, ours in (("--master spark://host:7077", common), ("job.py", job)):
        assert running.count(example) == 1
        running = running.replace(example, shlex.join(ours))
    done = subprocess.run(
        ["sh", "-e", "-c", f"mkdir {running}"],
        cwd=tmp_path,
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    check_job(done, kafka, topic, tmp_path)
    (driver,) = re.findall(r"^driver (.*)$", done.stdout, re.MULTILINE)
    assert driver == str(tmp_path / "run" / "environment" / "bin" / "python")
