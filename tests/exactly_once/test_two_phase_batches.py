"""Mode `two-phase` for batch jobs, as Spark calls writers, on real brokers."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import WriterCommitMessage
from support.pure.broker_replies import replies_to
from support.spark.single_job import SingleJob, batches, handed_over

from spark_kafka_sink.commit.questions import Listed, ListTransactions
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.errors import KafkaException, ProducerFencedException
from spark_kafka_sink.spark.report import SinkCommitMessage, SkippedMessage

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]

ROWS = {0: ["a", "b"], 1: ["c"], 3: ["d", "e", "f"]}
VALUES = ["a", "b", "c", "d", "e", "f"]


@pytest.fixture
def mode() -> str:
    """Mode `two-phase` alone."""
    return "two-phase"


def test_a_version_is_written_once(
    job: SingleJob, client: CommitClient, capfd: pytest.CaptureFixture[str]
) -> None:
    messages = job.run(ROWS)
    assert job.committed == VALUES
    assert "committed version 1 of txnAppId 'job'" in capfd.readouterr().err
    without_rows = messages[2]
    assert isinstance(without_rows, SinkCommitMessage)
    assert without_rows.transaction is None
    assert isinstance(job.run({0: ["never"]})[0], SkippedMessage)
    job.run({}, txnVersion="2")
    assert isinstance(job.run({0: ["never"]}, txnVersion="2")[0], SkippedMessage)
    assert job.committed == VALUES
    (listed,) = replies_to(client, [ListTransactions("pykafka/job/")])
    assert isinstance(listed, Listed)
    assert [e for e in listed.transactions if f"/{job.topic}/" in e.transactional_id] == []


def test_of_two_attempts_of_a_task_the_one_that_spark_takes_counts(job: SingleJob) -> None:
    writer = job.plan()
    first = handed_over(writer).write(iter(batches(0, ["row"])))
    second = handed_over(writer).write(iter(batches(0, ["row"])))
    assert first is not second
    handed_over(writer).commit([second])
    assert job.committed == ["row"]


@pytest.mark.parametrize("has_messages", [True, False])
def test_an_aborted_job_is_invisible_and_can_be_run_again(
    job: SingleJob, capfd: pytest.CaptureFixture[str], *, has_messages: bool
) -> None:
    writer = job.plan()
    messages = job.write(writer, ROWS)
    handed_over(writer).abort(messages if has_messages else [None] * 4)
    assert "no row is visible" in capfd.readouterr().err
    assert job.committed == []
    job.run(ROWS)
    assert job.committed == VALUES


def test_a_job_that_died_is_cleaned_up_by_the_next(job: SingleJob) -> None:
    job.write(job.plan(), ROWS)
    job.run({0: ["z"]})
    assert job.committed == ["z"]


def test_an_overtaken_job_fails_and_changes_nothing(job: SingleJob) -> None:
    old = job.plan()
    old_messages = job.write(old, {0: ["old"]})
    new = job.plan()
    with pytest.raises(KafkaException, match="superseded by a newer run of txnAppId 'job'"):
        job.write(old, {0: ["late"]})
    messages = job.write(new, {0: ["new"]})
    with pytest.raises((ProducerFencedException, KafkaException)):
        handed_over(old).commit(old_messages)
    handed_over(old).abort(old_messages)
    handed_over(new).commit(messages)
    assert job.committed == ["new"]


def test_an_abort_after_the_decision_rolls_forward(
    job: SingleJob, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = job.plan()
    messages: list[WriterCommitMessage | None] = job.write(writer, ROWS)
    handed_over(writer).commit(messages)
    handed_over(writer).abort(messages)
    assert "so it IS committed" in capfd.readouterr().err
    assert job.committed == VALUES
    assert isinstance(job.run({0: ["never"]})[0], SkippedMessage)
