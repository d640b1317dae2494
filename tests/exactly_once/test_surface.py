"""What a user sees of exactly once: the report, what is skipped and why, refusals and warnings."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import need_kafka, running_cluster, topic_maker
from support.brokers import fetch_kafka
from support.brokers.access import allow_all_but, allow_only
from support.brokers.kafka_cluster import KafkaCluster
from support.pure.broker_replies import replies_to
from support.spark import exactly_once_connect, exactly_once_surface
from support.spark.single_job import SingleJob, handed_over
from support.spark.spark_processes import ConnectServer

from spark_kafka_sink.commit.log_record import CommitRecord
from spark_kafka_sink.commit.names import app_id_of_checkpoint
from spark_kafka_sink.commit.questions import LogRead, ReadLog
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import AuthorizationException, ProducerFencedException

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]

ROWS = {0: ["a", "b"], 1: ["c"], 3: ["d", "e", "f"]}


def run(program: ModuleType, *arguments: str) -> dict[str, Any]:
    """Run a program, and return what it found."""
    done = subprocess.run(
        [sys.executable, str(program.__file__), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def new_job(cluster: KafkaCluster, mode: str, **options: str) -> SingleJob:
    """Return a job that writes to a topic with four partitions."""
    new_topic = topic_maker(cluster)
    log = new_topic(1, {"cleanup.policy": "compact"})
    return SingleJob(cluster, new_topic(4), 4, log, exactlyOnce=mode, **options)


def record_of(bootstrap: str, log: str, key: str) -> CommitRecord:
    """Return the record of an owner by its driver id."""
    config = producer_config({"bootstrap.servers": bootstrap})
    with CommitClient(config, log) as client:
        (found,) = replies_to(client, [ReadLog(key)])
    assert isinstance(found, LogRead)
    assert found.reading.record is not None
    return found.reading.record


def test_the_report_says_how_a_version_was_written_and_why_it_is_skipped(
    cluster: KafkaCluster, mode: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    job = new_job(cluster, mode, reportPath=str(path))
    job.run(ROWS)
    transactions = 1 if mode == "single" else 3
    report = json.loads(path.read_text())
    assert report["rows"] == 6
    assert report["exactly_once"] == {
        "mode": mode,
        "app_id": "job",
        "version": 1,
        "transactions": transactions,
        "skipped": None,
    }
    (said,) = capfd.readouterr().err.splitlines()
    many = "1 transaction" if mode == "single" else "3 transactions"
    assert said.endswith(f"; committed version 1 of txnAppId 'job', exactlyOnce={mode}, {many}")

    job.run(ROWS)
    (said,) = capfd.readouterr().err.splitlines()
    assert re.match(r"pykafka: skipped: version 1 of txnAppId 'job' was written at 20", said)
    report = json.loads(path.read_text())
    assert (report["rows"], report["exactly_once"]["transactions"]) == (0, 0)
    assert f"pykafka: skipped: {report['exactly_once']['skipped']}" == said


def test_the_loser_of_two_runs_says_one_sentence(
    cluster: KafkaCluster, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    job = new_job(cluster, mode)
    old = job.plan()
    messages = job.write(old, ROWS)
    new = job.plan()
    capfd.readouterr()
    with pytest.raises(ProducerFencedException, match=r"^superseded by a newer run of"):
        handed_over(old).commit(messages)
    handed_over(old).abort(messages)
    (said,) = capfd.readouterr().err.splitlines()
    assert "was superseded by a newer run" in said
    handed_over(new).commit(job.write(new, {0: ["new"]}))
    assert job.committed == ["new"]


def test_an_abort_after_the_commit_blames_no_newer_run(
    cluster: KafkaCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    job = new_job(cluster, "single")
    writer = job.plan()
    messages = job.write(writer, ROWS)
    handed_over(writer).commit(messages)
    capfd.readouterr()
    handed_over(writer).abort(messages)
    (said,) = capfd.readouterr().err.splitlines()
    assert "failed after its transaction had ended: it IS committed" in said


@pytest.mark.parametrize("operation", ["WRITE", "READ", "DESCRIBE"])
@pytest.mark.parametrize("which", ["rows", "log", "ids"])
def test_a_right_that_is_missing_is_named_before_a_row_is_sent(
    guarded_kafka: KafkaCluster, mode: str, which: str, operation: str
) -> None:
    if which == "ids" and operation == "READ":
        pytest.skip("transactional ids have no right to read")
    job = new_job(guarded_kafka, mode, txnAppId=uuid.uuid4().hex)
    resources = {
        "rows": ("TOPIC", job.topic),
        "log": ("TOPIC", job.log),
        "ids": ("TRANSACTIONAL_ID", f"pykafka/{job.options['txnAppId']}/"),
    }
    kind, name = resources[which]
    allow_all_but(guarded_kafka.bootstrap, operation, kind, name)
    with pytest.raises(AuthorizationException) as refused:
        job.plan()
    said = str(refused.value)
    assert f"--operation {operation}" in said
    named = f"--topic {name}" if kind == "TOPIC" else "prefixed --transactional-id pykafka/"
    assert named in said


@pytest.mark.long(reason="it has a node of its own, because a right on the cluster is for all")
def test_a_log_that_may_not_be_created_is_an_error_with_the_command(scratch: Path) -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    need_kafka()
    folder = scratch / "no-create"
    with running_cluster(fetch_kafka.NEWEST, folder, 1, settings=settings) as cluster:
        job = new_job(cluster, "two-phase")
        allow_all_but(cluster.bootstrap, "CREATE", "BROKER", "kafka-cluster")
        log = f"{job.topic}-log"
        allow_only(cluster.bootstrap, log, "READ", "WRITE")
        with pytest.raises(AuthorizationException, match=f"commitLogTopic={log}") as refused:
            job.plan(commitLogTopic=log)
        command = f"kafka-topics.sh --create --topic {log} --partitions 1 --replication-factor 1"
        assert f"{command} --config cleanup.policy=compact" in str(refused.value)
        assert job.run(ROWS), "with a log that exists, no right to create is needed"
        assert job.committed == ["a", "b", "c", "d", "e", "f"]


@pytest.mark.long(reason="it starts an application of Spark of its own")
@pytest.mark.spark
def test_what_a_classic_session_shows(kafka: KafkaCluster, tmp_path: Path) -> None:
    topics = [topic_maker(kafka)(2) for _ in range(3)]
    log = topic_maker(kafka)(1, {"cleanup.policy": "compact"})
    found = run(exactly_once_surface, kafka.bootstrap, *topics, log, str(tmp_path))
    assert found["a stream with the checkpoint of its session"] == ["a", "b"]
    assert "set the option txnAppId" in str(found["a stream without a name"])
    how = {"mode": "two-phase", "app_id": "job", "version": 1, "skipped": None}
    rows, of_version = found["a version"]
    assert (rows, {**of_version, "transactions": None}) == (3, how | {"transactions": None})
    assert of_version["transactions"] >= 1
    assert found["the version again"] == [0, 0, False]
    why = str(found["why it was skipped"])
    assert re.match(r"version 1 of txnAppId 'job' was written at 20\S+, with 3 rows$", why)
    assert found["a topic column again"] == [0, True]
    assert str(found["what was counted"]).endswith(
        "it has 3 rows now, which were counted, but not written"
    )
    assert found["values"] == [["0", "1", "2"]] * 2
    record = record_of(kafka.bootstrap, log, f"pykafka/job/{topics[1]}")
    assert (record.application, record.query, record.checkpoint) == ("surface", "", "")
    checkpoint = f"{tmp_path}/checkpoints/arrivals"
    owner = f"pykafka/{app_id_of_checkpoint(checkpoint)}/{topics[0]}"
    record = record_of(kafka.bootstrap, log, owner)
    assert (record.application, record.query) == ("surface", "arrivals")
    assert record.checkpoint == checkpoint


@pytest.mark.long(reason="it starts a Connect server of its own")
@pytest.mark.spark
def test_write_batch_over_spark_connect_needs_the_name_of_the_application(
    kafka: KafkaCluster, connect: ConnectServer, mode: str, tmp_path: Path
) -> None:
    job = new_job(kafka, mode)
    options = {name: text for name, text in job.options.items() if not name.startswith("txn")}
    path = tmp_path / "reports.jsonl"
    found = run(exactly_once_connect, connect.remote, json.dumps(options), str(path))
    assert "needs the option txnAppId: with Spark Connect" in str(found["refusal"])
    assert job.committed == sorted(["0", "1", "2"] * 2)
    reports = [json.loads(line) for line in path.read_text().splitlines()]
    assert "has already saved micro-batch 0 with txnAppId 'connected'" in str(
        found["a second save"]
    )
    assert [(r["batch_id"], r["exactly_once"]["skipped"]) for r in reports] == [
        (0, None),
        (1, None),
    ]
