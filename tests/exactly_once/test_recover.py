"""`python -m spark_kafka_sink.recover` on real brokers, beside jobs that live and that died."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from conftest import NewTopic, topic_maker
from pyspark.sql.datasource import WriterCommitMessage
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.secured_kafka import PASSWORD, USER, SecuredKafka, quoted
from support.pure.broker_replies import replies_to
from support.spark import torn_application
from support.spark.single_job import SingleJob, handed_over

from spark_kafka_sink.commit import resolve, two_phase
from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan, WrittenPartition
from spark_kafka_sink.commit.log_record import CommitRecord, LogReading
from spark_kafka_sink.commit.questions import (
    Answer,
    Ended,
    EndTxn,
    Listed,
    ListTransactions,
    LogRead,
    ReadLog,
)
from spark_kafka_sink.commit.states import CommitState
from spark_kafka_sink.commit.steps import Step
from spark_kafka_sink.commit.two_phase import Committing
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import KafkaException, LostRows, TornCommitException
from spark_kafka_sink.recover import main
from spark_kafka_sink.spark.report import SinkCommitMessage, SkippedMessage

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]

ROWS = {0: ["a", "b"], 1: ["c"], 3: ["d", "e", "f"]}
VALUES = ["a", "b", "c", "d", "e", "f"]
EVERY_MODE = pytest.mark.parametrize("mode", ["two-phase", "single"])


@pytest.fixture
def job(cluster: KafkaCluster, new_topic: NewTopic) -> SingleJob:
    """A job of mode two-phase, with a commit log of its own."""
    log = new_topic(1, {"cleanup.policy": "compact"})
    return SingleJob(cluster, new_topic(4), 4, log, exactlyOnce="two-phase")


class Recover:
    """Runs the command for the log of a job. out, err: what the last run printed."""

    def __init__(self, job: SingleJob, capture: pytest.CaptureFixture[str]) -> None:
        self._job = job
        self._capture = capture
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        """Run it, and return its exit code."""
        self._capture.readouterr()
        servers = self._job.cluster.bootstrap
        code = main(
            ["--bootstrap", servers, "--commit-log-topic", self._job.log]
            + ([] if "--topic" in arguments else ["--topic", self._job.topic])
            + list(arguments)
        )
        self.out, self.err = self._capture.readouterr()
        return code


@pytest.fixture
def recover(job: SingleJob, capsys: pytest.CaptureFixture[str]) -> Recover:
    """The command."""
    return Recover(job, capsys)


class DriverDiedError(Exception):
    """The driver ends here."""


Messages = list[WriterCommitMessage | None]


def die_after_the_decision(job: SingleJob, monkeypatch: pytest.MonkeyPatch) -> Messages:
    """Run a job whose driver ends when it has decided, before it commits a transaction."""
    writer = job.plan()
    messages = job.write(writer, ROWS)

    def ended(*_: object, **__: object) -> None:
        raise DriverDiedError

    with monkeypatch.context() as patch:
        patch.setattr(resolve, "begin_all", ended)
        with pytest.raises(DriverDiedError):
            handed_over(writer).commit(messages)
    return messages


def transactions(messages: Messages) -> list[AttemptTransaction]:
    """Return the transactions of the tasks that have written."""
    sent = [message for message in messages if isinstance(message, SinkCommitMessage)]
    return [message.transaction for message in sent if message.transaction is not None]


@pytest.fixture
def client(job: SingleJob) -> Iterator[CommitClient]:
    """A client for the log of the job."""
    config = producer_config({"bootstrap.servers": job.cluster.bootstrap})
    with CommitClient(config, job.log) as made:
        yield made


def abort_transaction(client: CommitClient, job: SingleJob, lost: AttemptTransaction) -> None:
    """Abort a task's transaction, as its timeout would."""
    name = f"pykafka/job/{job.topic}/{lost.slot}"
    version = 5 if client.level(client.now() + 30) == 2 else 4
    (ended,) = replies_to(client, [EndTxn(name, lost.producer, False, version)])  # noqa: FBT003 - a field
    assert isinstance(ended, Ended)
    assert ended.error == 0


def open_ids(client: CommitClient, job: SingleJob) -> list[str]:
    """Return the open transactions of a job."""
    (listed,) = replies_to(client, [ListTransactions("pykafka/")])
    assert isinstance(listed, Listed)
    return sorted(e.transactional_id for e in listed.transactions if f"/{job.topic}" in e[0])


def reading(client: CommitClient, job: SingleJob) -> LogReading:
    """Return what the log has of a job."""
    (read,) = replies_to(client, [ReadLog(f"pykafka/job/{job.topic}")])
    assert isinstance(read, LogRead)
    return read.reading


@EVERY_MODE
def test_an_open_job_is_shown_and_not_disturbed(
    job: SingleJob, recover: Recover, mode: str, client: CommitClient
) -> None:
    job.options["exactlyOnce"] = mode
    job.run({0: ["before"]})
    writer = job.plan(txnVersion="2")
    messages = job.write(writer, ROWS)
    before = open_ids(client, job)
    for arguments in ([], ["--dry-run"], ["--app-id", "job"]):
        assert recover(*arguments) == 0
        assert f"txnAppId 'job' (topic {job.topic})" in recover.out
        assert "last written: version 1, 1 row, at 20" in recover.out
        count = "3 transactions" if mode == "two-phase" else "1 transaction"
        assert f"open: {count} without a decision to commit, since 20" in recover.out
    assert open_ids(client, job) == before
    handed_over(writer).commit(messages)
    assert job.committed == sorted([*VALUES, "before"])
    assert recover() == 0
    assert "no transaction is open" in recover.out


def test_what_is_decided_is_committed_once_the_driver_has_died(
    job: SingleJob, recover: Recover, client: CommitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_after_the_decision(job, monkeypatch)
    before = open_ids(client, job)
    assert recover("--dry-run") == 1
    assert "decided: 3 transactions: 3 are still to be committed" in recover.out
    assert "rows are lost if nobody commits them by 20" in recover.out
    assert open_ids(client, job) == before

    assert recover() == 0
    assert "decided: 3 transactions: 3 are committed" in recover.out
    assert "3 of them were open until now, since 20" in recover.out
    assert open_ids(client, job) == []
    assert job.committed == VALUES

    assert recover() == 0
    assert "decided: 3 transactions: 3 are committed" in recover.out
    assert "until now" not in recover.out
    assert isinstance(job.run({0: ["never"]})[0], SkippedMessage)
    job.run({0: ["g"]}, txnVersion="2")
    assert job.committed == [*VALUES, "g"]


def torn(
    job: SingleJob, client: CommitClient, monkeypatch: pytest.MonkeyPatch
) -> tuple[WrittenPartition, str]:
    """Make a job torn: its last task's transaction is aborted after the decision.

    Return what the task wrote, and the line about it.
    """
    job.run({0: ["before"]}, txnVersion="0")
    *_, lost = transactions(die_after_the_decision(job, monkeypatch))
    abort_transaction(client, job, lost)
    (written,) = lost.written
    line = f"3 records of task 3 in {written.partition} from offset {written.first_offset} on"
    return written, line


@pytest.mark.parametrize("looks", [["--dry-run"], []])
def test_a_torn_run_is_shown_with_its_exact_list(
    job: SingleJob,
    recover: Recover,
    client: CommitClient,
    monkeypatch: pytest.MonkeyPatch,
    looks: list[str],
) -> None:
    _, line = torn(job, client, monkeypatch)
    assert recover(*looks) == 1
    message = "version 1 was to be committed, but brokers have aborted 1 of its 3 transactions"
    assert f"TORN: {message}" in recover.out
    assert [each.strip() for each in recover.out.splitlines() if "records of task" in each] == [
        line
    ]
    if looks == []:
        assert job.committed == ["a", "b", "before", "c"]


@pytest.mark.long(reason="it waits for timeouts of transactions and requests")
def test_a_torn_owner_fails_until_it_is_accepted(
    job: SingleJob, recover: Recover, client: CommitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, line = torn(job, client, monkeypatch)
    for version in ("1", "2"):
        with pytest.raises(TornCommitException, match=line) as failed:
            job.plan(txnVersion=version)
        assert failed.value.written == "version 1"
        assert failed.value.committed == 2
        assert failed.value.lost == (
            LostRows(3, job.topic, written.partition.partition, written.first_offset, 3),
        )
    assert recover("--abort", "job") == 1
    assert "TORN" in recover.out

    assert recover("--accept-torn", "--app-id", "job") == 0
    assert line in recover.out
    assert "accepted: version 1 counts as written, and the next run can start" in recover.out
    assert recover("--accept-torn", "--app-id", "job") == 0
    assert "no rows of the last run are lost: there is nothing to accept" in recover.out
    assert isinstance(job.run({0: ["never"]})[0], SkippedMessage)
    job.run({0: ["g"]}, txnVersion="2")
    assert job.committed == ["a", "b", "before", "c", "g"]


@pytest.mark.spark
@pytest.mark.long(reason="starts Spark for one error; how its text is read is tested without")
def test_a_program_of_spark_can_catch_that_rows_are_lost(
    job: SingleJob, client: CommitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, _ = torn(job, client, monkeypatch)
    done = subprocess.run(
        [
            sys.executable,
            str(torn_application.__file__),
            json.dumps({**job.options, "txnVersion": "2"}),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["written"], found["committed"]) == ("version 1", 2)
    assert found["lost"] == [
        [3, job.topic, written.partition.partition, written.first_offset, written.records]
    ]


@EVERY_MODE
def test_an_abandoned_job_is_aborted(
    job: SingleJob, recover: Recover, mode: str, client: CommitClient
) -> None:
    job.options["exactlyOnce"] = mode
    writer = job.plan()
    messages = job.write(writer, ROWS)
    assert open_ids(client, job) != []
    assert recover("--abort", "job") == 0
    assert "aborted: the open transactions of the owner are ended" in recover.out
    assert open_ids(client, job) == []
    # In mode single, no record was needed to abort the only transaction, which is the driver's.
    assert recover("--app-id", "job") == (0 if mode == "two-phase" else 2)
    assert ("it has written nothing yet" in recover.out) == (mode == "two-phase")
    assert "1970" not in recover.out
    with pytest.raises(KafkaException):
        handed_over(writer).commit(messages)
    handed_over(writer).abort(messages)
    assert job.committed == []
    job.run({0: ["g"]})
    assert job.committed == ["g"]


@pytest.mark.long(reason="one more state of the log; the model and unit tests have it")
def test_an_abort_commits_what_is_decided(
    job: SingleJob, recover: Recover, client: CommitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_after_the_decision(job, monkeypatch)
    assert recover("--abort", "job") == 0
    assert job.committed == VALUES
    record = reading(client, job).record
    assert record is not None
    assert record.transactions == ()
    assert isinstance(job.run({0: ["never"]})[0], SkippedMessage)


@pytest.mark.long(reason="one more state of the log; the model and unit tests have it")
def test_a_commit_goes_on_whatever_it_does_while_recover_runs(
    job: SingleJob, recover: Recover, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = job.plan()
    messages = job.write(writer, ROWS)
    step = two_phase.step
    seen: list[CommitState] = []

    def stepping(machine: Committing, answer: Answer, now: float) -> Step[Committing]:
        if machine.state not in seen:
            seen.append(machine.state)
            assert recover() == 0, recover.out
        return step(machine, answer, now)

    with monkeypatch.context() as patch:
        patch.setattr(two_phase, "step", stepping)
        handed_over(writer).commit(messages)
    assert {CommitState.CHECKING, CommitState.DECIDING, CommitState.ENDING} < set(seen)
    assert job.committed == VALUES
    assert recover() == 0
    assert "no transaction is open" in recover.out
    job.run({0: ["g"]}, txnVersion="2")
    assert job.committed == [*VALUES, "g"]


@pytest.mark.long(reason="one more state of the log; the model and unit tests have it")
def test_who_wrote_is_printed_with_each_owner(
    job: SingleJob, recover: Recover, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_commit = two_phase.begin

    def begin(
        plan: Plan, attempts: tuple[object, ...], record: CommitRecord, **given: object
    ) -> object:
        named = replace(
            record, application="nightly", query="q7", checkpoint="s3a://key:s3cret@bucket/c\n"
        )
        start: Callable[..., object] = begin_commit
        return start(plan, attempts, named, **given)

    monkeypatch.setattr(two_phase, "begin", begin)
    job.run(ROWS)
    assert recover() == 0
    assert "application nightly, query q7, checkpoint s3a://***@bucket/c\\n" in recover.out
    assert "s3cret" not in recover.out


@pytest.mark.long(reason="one more state of the log; the model and unit tests have it")
def test_other_owners_are_left_out_and_a_wrong_name_is_refused(
    job: SingleJob, recover: Recover, new_topic: NewTopic
) -> None:
    job.run(ROWS)
    named = {"exactlyOnce": "two-phase", "txnAppId": "b"}
    other = SingleJob(job.cluster, new_topic(4), 4, job.log, **named)
    other.run(ROWS)
    assert recover("--topic", other.topic) == 0
    assert "txnAppId 'b'" in recover.out
    assert "txnAppId 'job'" not in recover.out
    assert recover("--app-id", "jbo") == 2
    assert recover.out == ""
    assert "txnAppId 'jbo'" in recover.err
    assert "known values of txnAppId: " in recover.err
    assert recover("--abort", "jbo") == 2


def test_a_log_that_is_not_there_is_named(
    cluster: KafkaCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--bootstrap", cluster.bootstrap, "--commit-log-topic", "nowhere"]) == 2
    assert "topic nowhere does not exist" in capsys.readouterr().err


@pytest.mark.long(reason="one more state of the log; the model and unit tests have it")
def test_a_forged_record_is_a_warning(
    job: SingleJob, recover: Recover, cluster: KafkaCluster
) -> None:
    from confluent_kafka import Producer

    job.run(ROWS)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(job.log, key=f"pykafka/job/{job.topic}", value=b"{}")
    producer.flush()
    assert recover() == 0
    assert f"warning: commit log {job.log}-0: the batch at offset" in recover.err
    assert "is ignored: it is outside a transaction" in recover.err
    assert "last written: version 1" in recover.out


def allow(
    cluster: KafkaCluster, kind: ResourceType, name: str, operation: AclOperation, user: str
) -> None:
    """Allow one user one operation, which denies it to all others."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    right = AclBinding(
        kind, name, ResourcePatternType.LITERAL, user, "*", operation, AclPermissionType.ALLOW
    )
    for created in admin.create_acls([right]).values():
        created.result()


def test_each_right_that_is_missing_is_named(
    guarded_kafka: KafkaCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    new_topic = topic_maker(guarded_kafka)
    log = new_topic(1, {"cleanup.policy": "compact"})
    job = SingleJob(guarded_kafka, new_topic(4), 4, log, exactlyOnce="two-phase")
    recover = Recover(job, capsys)
    die_after_the_decision(job, monkeypatch)
    driver, nobody = f"pykafka/job/{job.topic}", "User:somebody-else"
    task = f"{driver}/0.0"
    allow(guarded_kafka, ResourceType.TRANSACTIONAL_ID, task, AclOperation.DESCRIBE, "User:*")
    assert recover() == 1, "the other transactions are committed"
    assert "1 have a result that is not known now" in recover.out
    assert f"{task} could not be committed: EndTxn (commit) got" in recover.out
    allow(guarded_kafka, ResourceType.TRANSACTIONAL_ID, driver, AclOperation.DESCRIBE, nobody)
    assert recover() == 2
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53)" in recover.out
    needed = "--operation WRITE --operation DESCRIBE --resource-pattern-type prefixed"
    assert f"{needed} --transactional-id pykafka/\n" in recover.out
    allow(guarded_kafka, ResourceType.TOPIC, log, AclOperation.READ, nobody)
    assert recover() == 2
    assert f"--operation READ --operation DESCRIBE --topic {log}" in recover.err


def test_it_logs_in_by_a_file_and_prints_no_secret(
    secured_kafka: SecuredKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = topic_maker(secured_kafka)(1, {"cleanup.policy": "compact"})
    file = tmp_path / "client.properties"

    def run(password: str) -> int:
        jaas = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f"username={quoted(USER)} password={quoted(password)};"
        ).replace("\\", "\\\\")
        file.write_text(
            f"bootstrap.servers={secured_kafka.address('SASL_SSL')}\n"
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
            f"ssl.truststore.location={secured_kafka.ca}\n"
            f"sasl.jaas.config={jaas}\n",
            encoding="latin-1",
        )
        return main(["--config", str(file), "--commit-log-topic", log])

    assert run(PASSWORD) == 0
    found = capsys.readouterr()
    assert f"{log}-0 has no records for transactional ids that begin with 'pykafka/'" in found.out
    assert run("wrong-s3cret") == 2
    said = capsys.readouterr().err
    assert "SASL_AUTHENTICATION_FAILED" in said or "authenticat" in said.lower()
    assert "s3cret" not in said
