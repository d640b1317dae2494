"""Transactions that time out, on real brokers: nothing is lost in silence."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from support.spark.single_job import SingleJob, batches, handed_over

from exactly_once.moments import Moments, before_end
from exactly_once.transactions import wait_for_timeouts
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.spark.report import SkippedMessage

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]

# So long that no run reaches it, and so short that a test can wait for it.
TIMEOUT_MS = 5000
ROWS = {0: ["a", "b"], 1: ["c"], 3: ["d"]}
VALUES = ["a", "b", "c", "d"]


@pytest.fixture
def job(job: SingleJob) -> SingleJob:
    """A job whose transactions time out soon, and whose rows do not linger."""
    job.options |= {"kafka.transaction.timeout.ms": str(TIMEOUT_MS), "kafka.linger.ms": "5"}
    return job


@pytest.mark.long(reason="it waits for timeouts of transactions; two such tests are in make test")
def test_a_task_whose_transaction_times_out_says_which_option_to_raise(
    job: SingleJob, mode: str, client: CommitClient
) -> None:
    writer = job.plan()
    if mode == "single":
        job.attempt(writer, 1, batches(1, ["first"]))  # it begins the transaction at level 2

    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches(0, ["a"])
        wait_for_begin(job, client)
        wait_for_timeouts(client, job.topic, TIMEOUT_MS)
        yield from batches(0, ["b"])

    said = (
        r"after [12] rows and .*: it took longer than "
        rf"kafka\.transaction\.timeout\.ms={TIMEOUT_MS}.*"
        "nothing of the job becomes visible; raise the option"
    )
    with pytest.raises(KafkaException, match=said):
        job.attempt(writer, 0, rows())
    handed_over(writer).abort([None] * 4)
    assert job.committed == []
    job.run(ROWS)
    assert job.committed == VALUES


def wait_for_begin(job: SingleJob, client: CommitClient) -> None:
    """Wait until a transaction of the job is open."""
    from exactly_once.transactions import open_transactions, wait_until

    wait_until(lambda: open_transactions(client, job.topic) != [], "no transaction has begun")


def test_a_job_that_times_out_before_its_commit_fails_and_runs_again(
    job: SingleJob, mode: str, client: CommitClient
) -> None:
    writer = job.plan()
    messages = job.write(writer, ROWS)
    wait_for_timeouts(client, job.topic, TIMEOUT_MS)
    with pytest.raises(KafkaException, match=f"by the brokers after {TIMEOUT_MS} ms") as failed:
        handed_over(writer).commit(messages)
    assert "transaction.timeout.ms" in str(failed.value)
    assert "4 rows" in str(failed.value)
    handed_over(writer).abort(messages)
    assert job.committed == []
    job.run(ROWS)
    assert job.committed == VALUES


@pytest.mark.parametrize("mode", ["two-phase"], indirect=True)
def test_a_timeout_between_the_commits_of_transactions_is_torn_and_says_what_is_lost(
    job: SingleJob, moments: Moments, client: CommitClient
) -> None:
    writer = job.plan()
    messages = job.write(writer, ROWS)

    def commit() -> None:
        with pytest.raises(KafkaException, match=f"records of task 3 in {job.topic}-3 from"):
            handed_over(writer).commit(messages)

    # The first EndTxn is the decision.
    moment = before_end(4, of="pykafka/")
    assert moments.pauses(moment, lambda: wait_for_timeouts(client, job.topic, TIMEOUT_MS), commit)
    handed_over(writer).abort(messages)
    assert job.committed == ["a", "b", "c"]
    with pytest.raises(KafkaException, match=f"records of task 3 in {job.topic}-3 from"):
        job.run(ROWS)


@pytest.mark.long(reason="it waits for timeouts of transactions; two such tests are in make test")
def test_a_job_that_times_out_before_its_decision_is_aborted_cleanly(
    job: SingleJob, moments: Moments, client: CommitClient
) -> None:
    writer = job.plan()
    messages = job.write(writer, ROWS)

    def commit() -> None:
        with pytest.raises(KafkaException):
            handed_over(writer).commit(messages)

    moment = before_end(1, of="pykafka/")
    assert moments.pauses(moment, lambda: wait_for_timeouts(client, job.topic, TIMEOUT_MS), commit)
    handed_over(writer).abort(messages)
    assert job.committed == []
    assert not isinstance(job.run(ROWS)[0], SkippedMessage)
    assert job.committed == VALUES
