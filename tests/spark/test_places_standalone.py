"""A standalone cluster of two hosts: each documented way to ship the sink, and a copied folder.

The commands are taken from docs/how-to/deploy.md.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.documents import pages
from support.oracles.readers import read_with_confluent
from support.programs import environments
from support.spark import flights, unlucky_job
from support.spark.flights import check_every_row_once
from support.spark.spark_processes import (
    environment,
    plain_environment,
    standalone_cluster,
    submit,
    without_work_left,
)
from support.spark.unlucky import run_unlucky_job
from support.spark.unlucky_job import ROWS

import spark_kafka_sink

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
DEPLOYMENT = ROOT / "docs" / "how-to" / "deploy.md"
COUNT, TASKS, PARTITIONS = 40_000, 4, 6

_JOB = f"""
import sys

from pyspark.sql import SparkSession

from spark_kafka_sink import KafkaDataSource, register

tests, bootstrap, topic, report, how = sys.argv[1:]
sys.path.append(tests)
from support.spark.flights import rows

spark = SparkSession.builder.getOrCreate()
if how == "registered":
    register(spark)
elif how == "source":
    spark.dataSource.register(KafkaDataSource)
writer = rows(spark, {COUNT}, {TASKS}).write
if how != "registered":
    writer.mode("append")
(
    writer.format("pykafka")
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

# Tries Pythons of workers that cannot run the sink, and prints what each write ends with.
_FAILING_JOB = """
import sys

from pyspark.sql import SparkSession

from spark_kafka_sink import register
from spark_kafka_sink.errors import KafkaException

bootstrap, topic, folder, *pythons = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
value = "CAST(value AS STRING) AS value"
rows = spark.range(10).withColumnRenamed("id", "value").selectExpr(value)
batches = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()


def stream():
    writer = batches.selectExpr(value).writeStream.format("pykafka").options(**options)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


def show(write):
    try:
        write()
    except KafkaException as error:
        print(f"says {error}")
        print(f"because of {type(error.__cause__).__module__}")


for python in pythons:
    spark.sparkContext.pythonExec = python
    register(spark)
    show(rows.write.format("pykafka").options(**options).save)
show(stream)
"""

# Writes with a rack that the environment names, and prints how each write ends.
_RACKS_JOB = """
import sys
import traceback

from pyspark.sql import SparkSession

from spark_kafka_sink import register

bootstrap, topic, *variables = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)
for variable in variables:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "topic": topic,
        "kafka.partitioner.rack.aware": "true",
        "kafka.client.rack": "${env:%s}" % variable,
    }
    frame = spark.createDataFrame([(variable,)], "value string")
    try:
        frame.write.format("pykafka").options(**options).save()
        print(f"{variable}: written")
    except Exception as error:
        print(f"{variable}: {traceback.format_exception(error)[-1].splitlines()[-1]}")
"""

# Writes with progress lines, and then a row that is too large, and prints how that write ends.
_STDERR_JOB = """
import sys
import traceback

from pyspark.sql import SparkSession

from spark_kafka_sink import register

bootstrap, topic, module = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)
spark.sparkContext.addPyFile(module)
options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
rows = spark.range(0, 2, 1, 2).selectExpr("'x' AS value")
writer = rows.write.format("pykafka").options(**options).option("progress", "true")
writer.option("kafka.partitioner.class", "waits_for_progress.wait").save()
too_large = spark.range(0, 1, 1, 1).selectExpr("repeat('x', 2000000) AS value")
try:
    too_large.write.format("pykafka").options(**options).save()
except Exception as error:
    print(traceback.format_exception(error)[-1].splitlines()[-1])
"""

# A partitioner that waits until its task has printed a line of progress, without a wait of 10 s.
_WAITS_FOR_PROGRESS = """
import threading

from spark_kafka_sink.spark.tasks import task_progress

printed, write = threading.Event(), task_progress.os.write
task_progress.PERIOD_S = 0.01


def write_and_tell(file, text):
    count = write(file, text)
    printed.set()
    return count


def wait(topic, batch, partitions):
    task_progress.os.write = write_and_tell
    assert printed.wait(60)
    return [0] * batch.num_rows
"""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the sink's dependencies but not the sink."""
    return environments.python_without_the_sink(tmp_path_factory.mktemp("bare") / "venv")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a standalone cluster, with the output of its executors."""
    return tmp_path_factory.mktemp("standalone")


@pytest.fixture(scope="module")
def master(work: Path, bare_python: Path) -> Iterator[str]:
    """The address of a standalone cluster whose workers do not have the sink."""
    with standalone_cluster(work, bare_python) as address:
        yield address


def job_arguments(
    master: str, kafka: KafkaCluster, topic: str, folder: Path, how: str = "registered"
) -> tuple[list[str], list[str]]:
    """Write the job; return spark-submit's arguments, and the job with its own.

    how: "registered" by our `register`, "source" by Spark's own, or "installed", where Spark finds
    the sink.
    """
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
    tests = Path(flights.__file__).parents[2]
    own = [script, tests, kafka.bootstrap, topic, folder / "report.json", how]
    return common, [str(each) for each in own]


def check_job(
    done: subprocess.CompletedProcess[str], kafka: KafkaCluster, topic: str, folder: Path
) -> None:
    """Check every row, the report, and that both workers took part."""
    assert done.returncode == 0, done.stderr[-5000:]
    check_every_row_once(read_with_confluent(kafka.bootstrap, topic), COUNT, TASKS, PARTITIONS)
    assert json.loads((folder / "report.json").read_text())["rows"] == COUNT
    assert "127.0.0.1" in done.stdout
    assert "127.0.0.2" in done.stdout


def recipe_of(heading: str) -> str:
    """Return all commands in a section of docs/how-to/deploy.md."""
    _, _, section = DEPLOYMENT.read_text().partition(f"\n## {heading}\n")
    return "".join(pages.blocks(section.partition("\n## ")[0], "bash"))


def run_recipe(
    recipe: str,
    common: list[str],
    job: list[str],
    folder: Path,
    more: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run commands of the docs with the tests' values instead of the examples.

    common, job: as `job_arguments` returns them. more: further replacements.
    """
    replaced = {
        **(more or {}),
        "--master spark://host:7077": shlex.join(common),
        " job.py": f" {shlex.join(job)}",
    }
    for example, ours in replaced.items():
        assert recipe.count(example) == 1, f"{example!r} is not once in {recipe}"
        recipe = recipe.replace(example, ours)
    return subprocess.run(
        ["sh", "-e", "-c", recipe],
        cwd=folder,
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a clone with the files that the sink is built from."""
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / "spark_kafka_sink", folder / "spark_kafka_sink")
    for name in ("pyproject.toml", "README.md", "LICENSE", "pyspark_pykafka.py"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.long(reason="pip makes an environment and builds the wheel")
@pytest.mark.timeout(900)
def test_pip_on_the_workers(
    master: str, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path, clone: Path
) -> None:
    topic = new_topic(PARTITIONS)
    common, job = job_arguments(master, kafka, topic, tmp_path, "installed")
    python = tmp_path / "spark-python"
    subprocess.run([sys.executable, "-m", "venv", python], check=True)
    pythons = {
        "/opt/spark-python/bin/pip": f"{python}/bin/pip",
        "/opt/spark-python/bin/python": f"{python}/bin/python",
    }
    done = run_recipe(recipe_of("pip on the workers"), common, job, clone, pythons)
    check_job(done, kafka, topic, tmp_path)
    assert str(python) in done.stdout


@pytest.mark.long(reason="Spark ships files; what a worker lacks is found below")
@pytest.mark.parametrize("how", ["registered", "source"])
def test_the_sink_shipped_by_py_files(
    master: str,
    bare_python: Path,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    tmp_path: Path,
    how: str,
) -> None:
    topic = new_topic(PARTITIONS)
    common, job = job_arguments(master, kafka, topic, tmp_path, how)
    common += ["--conf", f"spark.pyspark.python={bare_python}"]
    (tmp_path / "spark_kafka_sink").symlink_to(Path(spark_kafka_sink.__file__).parent)
    done = run_recipe(recipe_of("--py-files"), common, job, tmp_path)
    check_job(done, kafka, topic, tmp_path)


@pytest.mark.long(reason="it makes an environment; a worker lacks the sink itself below")
def test_a_worker_that_lacks_a_module_is_told_by_its_name(
    master: str, bare_python: Path, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    lacking = environments.python_without_the_sink(tmp_path / "venv")
    (module,) = tmp_path.glob("venv/lib/python3.*/site-packages/crc32c")
    module.unlink()
    # The driver's machine and one worker have it, the other worker has not.
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'case "$SPARK_LOCAL_IP" in 127.0.0.2) exec {lacking} "$@" ;; esac\n'
        f'exec {bare_python} "$@"\n'
    )
    python.chmod(0o755)
    sink = environments.zip_of_the_sink(tmp_path / "spark_kafka_sink.zip")
    common, job = job_arguments(master, kafka, new_topic(PARTITIONS), tmp_path)
    common += ["--conf", f"spark.pyspark.python={python}", "--py-files", str(sink)]
    common += ["--conf", "spark.task.maxFailures=1"]
    done = submit([*common, *job], cwd=tmp_path, env=plain_environment())
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert f"ModuleNotFoundError: No module named 'crc32c' for {lacking} on " in said
    assert "--py-files cannot ship it; install it there" in said
    assert re.search(
        rf"\nspark_kafka_sink\.errors\.KafkaException: {lacking} on \S+ has no module named "
        "'crc32c': install crc32c there with pip",
        said,
    )


@pytest.mark.parametrize(
    "place",
    [
        "local-cluster[1,1,1024]",
        pytest.param(
            "standalone", marks=pytest.mark.long(reason="local-cluster has such executors, too")
        ),
    ],
)
def test_a_worker_that_cannot_run_the_sink_is_told_in_a_sentence(
    place: str,
    request: pytest.FixtureRequest,
    bare_python: Path,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    # Other Pythons run on executors than on the driver's machine, where Spark plans.
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(
        "import collections, sys\n"
        "kind = collections.namedtuple('kind', 'major minor micro releaselevel serial')\n"
        "sys.version_info = kind(3, 99, 0, 'final', 0)\n"
    )
    executors = {
        "without": f'exec {bare_python} "$@"',
        "other": f'PYTHONPATH={modules}:$PYTHONPATH exec {bare_python} "$@"',
    }
    pythons = [str(bare_python), str(tmp_path / "not-there")]
    for name, runs in executors.items():
        python = tmp_path / name
        python.write_text(
            f'#!/bin/sh\n[ -z "$SPARK_EXECUTOR_DIRS" ] && exec {sys.executable} "$@"\n{runs}\n'
        )
        python.chmod(0o755)
        pythons.append(str(python))
    master = request.getfixturevalue("master") if place == "standalone" else place
    common, _ = job_arguments(master, kafka, "", tmp_path)
    common += ["--conf", "spark.task.maxFailures=1"]
    failing = tmp_path / "failing.py"
    failing.write_text(_FAILING_JOB)
    job = [str(failing), kafka.bootstrap, new_topic(1), str(tmp_path), *pythons]
    env = {**plain_environment(), "PYSPARK_DRIVER_PYTHON": sys.executable}
    with without_work_left():
        done = submit([*common, *job], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-5000:]
    drivers = f"{sys.version_info[0]}.{sys.version_info[1]}"
    has_none = "has no module named 'spark_kafka_sink': install spark-kafka-sink there with pip"
    on_driver = "on the driver's machine"
    expected = [
        rf"{bare_python}, which Spark runs {on_driver} to plan the write, {has_none}",
        rf"{tmp_path}/not-there cannot be started {on_driver}: set PYSPARK_PYTHON to a Python",
        rf"{tmp_path}/without, which Spark runs on .*, {has_none}",
        rf"{tmp_path}/other, which Spark runs on .*, is Python 3\.99, but the driver runs Python "
        rf"{drivers}: set PYSPARK_PYTHON to a Python {drivers} with spark-kafka-sink",
        rf"{tmp_path}/other, which Spark runs on .*, is Python 3\.99",
    ]
    said = [line for line in done.stdout.splitlines() if line.startswith("says ")]
    assert len(said) == len(expected), done.stdout
    for line, sentence in zip(said, expected, strict=True):
        assert re.match(f"says {sentence}", line)
    causes = [line for line in done.stdout.splitlines() if line.startswith("because of ")]
    assert len(causes) == len(expected), done.stdout
    assert all(re.match(r"because of (pyspark|py4j)\.", cause) for cause in causes), causes


@pytest.mark.long(reason="it needs executors whose environment is not that of the driver")
def test_a_rack_is_read_from_the_environment_of_the_executors(
    master: str, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    common, _ = job_arguments(master, kafka, topic, tmp_path)
    sink = environments.zip_of_the_sink(tmp_path / "spark_kafka_sink.zip")
    common += ["--py-files", str(sink), "--conf", "spark.task.maxFailures=1"]
    common += ["--conf", "spark.executorEnv.ZONE_OF_EXECUTORS=eu-1a"]
    racks = tmp_path / "racks.py"
    racks.write_text(_RACKS_JOB)
    job = [str(racks), kafka.bootstrap, topic, "ZONE_OF_EXECUTORS", "ZONE_OF_DRIVER"]
    env = environment() | {"ZONE_OF_DRIVER": "eu-1a"}
    done = submit([*common, *job], cwd=tmp_path, env=env)
    written, refused = done.stdout.splitlines()
    assert written == "ZONE_OF_EXECUTORS: written"
    assert refused.endswith(
        "ConfigException: kafka.client.rack has ${env:ZONE_OF_DRIVER}: the variable "
        "'ZONE_OF_DRIVER' is not set on this executor"
    )
    values = [record.value for record in read_with_confluent(kafka.bootstrap, topic)]
    assert values == [b"ZONE_OF_EXECUTORS"]


@pytest.mark.long(reason="it needs executors with a stderr of their own")
def test_executors_print_the_progress_of_tasks_and_the_error_of_each_attempt(
    master: str, work: Path, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    common, _ = job_arguments(master, kafka, topic, tmp_path)
    sink = environments.zip_of_the_sink(tmp_path / "spark_kafka_sink.zip")
    common += ["--py-files", str(sink), "--conf", "spark.task.maxFailures=2"]
    (tmp_path / "waits_for_progress.py").write_text(_WAITS_FOR_PROGRESS)
    (tmp_path / "job.py").write_text(_STDERR_JOB)
    before = set(work.glob("work-*/*"))
    job = [str(tmp_path / name) for name in ("job.py", "waits_for_progress.py")]
    job[1:1] = [kafka.bootstrap, topic]
    done = submit([*common, *job], cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr[-5000:]
    folders = set(work.glob("work-*/*")) - before
    printed = "".join(path.read_text() for each in folders for path in each.glob("*/stderr"))
    for task in (0, 1):
        line = rf"^pykafka: task {task} \(attempt 0\): 0 rows, 0\.0 MB acknowledged, 0\.0 MB/s"
        assert re.search(line, printed, re.MULTILINE), printed[-5000:]
    (sentence,) = done.stdout.splitlines()
    # Spark logs the exception of an attempt twice; the sink itself prints nothing.
    logged = re.findall(
        r" ERROR (?:Utils|Executor): (.*?)(?: in stage .*)?$", printed, re.MULTILINE
    )
    attempts = ["Exception in task 0.0", "Exception in task 0.1"]
    assert sorted(logged) == [*["Aborting task"] * 2, *attempts]
    assert sentence.startswith("spark_kafka_sink.errors.RecordTooLargeException: row 0 of task 0: ")
    assert printed.count(f"\n{sentence}\n") == 4
    assert printed.count("RecordTooLargeException") == 4


@pytest.mark.long(reason="it archives a whole environment")
def test_a_packed_environment(
    master: str, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(PARTITIONS)
    common, job = job_arguments(master, kafka, topic, tmp_path)
    packing, _, running = recipe_of("--archives").partition("mkdir ")
    # The environment is made as venv-pack does; the following commands run as written.
    assert packing.endswith("venv-pack -p environment -o environment.tar.gz\n")
    environments.archive_of_an_environment(tmp_path / "environment.tar.gz")
    done = run_recipe(f"mkdir {running}", common, job, tmp_path)
    check_job(done, kafka, topic, tmp_path)
    (driver,) = re.findall(r"^driver (.*)$", done.stdout, re.MULTILINE)
    assert driver == str(tmp_path / "run" / "environment" / "bin" / "python")


@pytest.mark.long(reason="pip makes an environment and venv-pack packs it")
@pytest.mark.timeout(900)
def test_an_environment_that_venv_pack_packed(
    master: str, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path, clone: Path
) -> None:
    topic = new_topic(PARTITIONS)
    common, job = job_arguments(master, kafka, topic, tmp_path)
    python = {"python -m venv": f"{sys.executable} -m venv"}
    done = run_recipe(recipe_of("--archives"), common, job, clone, python)
    check_job(done, kafka, topic, tmp_path)


@pytest.mark.long(reason="it waits for Spark to find a task slow")
def test_a_speculative_copy_writes_its_rows_as_well(
    master: str, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    conf = {
        "spark.master": master,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.executor.memory": "900m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
        # No attempt may fail, so that a second one is a copy.
        "spark.task.maxFailures": "1",
    }
    env = environment(sys.executable)
    found = run_unlucky_job(
        conf, kafka.bootstrap, {"slow": new_topic(unlucky_job.TASKS)}, tmp_path, env
    )
    copies = {mark for mark in found["slow"].attempts if not mark.endswith("-0")}
    assert len(copies) == 1, "no copy was made"
    assert 0 < found["slow"].duplicates <= ROWS // unlucky_job.TASKS
