"""Mode `single` for batch jobs: plan, tasks, commit and abort as Spark calls them, on real brokers.

Spark's part is played here: writers and messages are pickled between its processes.
"""

from __future__ import annotations

import pytest
from conftest import NewTopic
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import IntegerType, StringType, StructField, StructType
from support.pure.broker_replies import replies_to
from support.spark.single_job import SingleJob, batches, handed_over

from spark_kafka_sink.commit.questions import (
    Described,
    DescribeTransaction,
    Initialized,
    InitProducerId,
    Listed,
    ListTransactions,
)
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.errors import ConfigException, KafkaException, ProducerFencedException
from spark_kafka_sink.spark.layout_mark import as_metadata
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.report import SinkCommitMessage, SkippedMessage
from spark_kafka_sink.spark.writer import ExactlyOnceWriter

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]


@pytest.fixture
def mode() -> str:
    """Mode `single` alone."""
    return "single"


ROWS = {0: ["a", "b"], 1: ["c"], 3: ["d", "e", "f"]}
VALUES = ["a", "b", "c", "d", "e", "f"]


def test_a_version_is_written_once_and_its_rows_become_visible_together(
    job: SingleJob, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = job.plan()
    messages = job.write(writer, ROWS)
    handed_over(writer).commit(messages)
    assert job.committed == VALUES
    assert "committed version 1 of txnAppId 'job', exactlyOnce=single" in capfd.readouterr().err

    again = job.run({0: ["never"]})
    assert all(isinstance(message, SkippedMessage) for message in again)
    assert job.committed == VALUES
    assert "skipped: version 1 of txnAppId 'job' was written" in capfd.readouterr().err

    job.run({2: ["g"]}, txnVersion="7")
    job.run({2: ["h"]}, txnVersion="3")  # a back-fill
    job.run({2: ["never"]}, txnVersion="7")
    assert job.committed == [*VALUES, "g", "h"]


def test_a_version_without_rows_is_written_too(job: SingleJob) -> None:
    job.run({})
    assert isinstance(job.run({0: ["never"]})[0], SkippedMessage)
    assert job.committed == []


def test_a_version_without_rows_is_written_too_if_rows_would_name_their_topic(
    job: SingleJob,
) -> None:
    schema = StructType(
        [
            StructField("value", StringType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType(), metadata=as_metadata({})),
        ]
    )
    del job.options["topic"]

    def plan() -> ExactlyOnceWriter:
        writer = KafkaDataSource(job.options).writer(schema, overwrite=False)
        assert isinstance(writer, ExactlyOnceWriter)
        return handed_over(writer)

    writer = plan()
    handed_over(writer).commit(job.write(writer, {}))
    counted = job.attempt(plan(), 0, batches(0, ["never"]))
    assert isinstance(counted, SkippedMessage)
    assert counted.rows == 1


def test_a_version_without_rows_is_written_after_a_run_of_the_other_mode_that_died(
    job: SingleJob,
) -> None:
    other = SingleJob(job.cluster, job.topic, 4, job.log, exactlyOnce="two-phase")
    other.write(other.plan(), ROWS)
    job.run({})
    assert isinstance(job.run({0: ["never"]})[0], SkippedMessage)
    assert job.committed == []


def test_an_aborted_job_is_invisible_and_can_be_run_again(
    job: SingleJob, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = job.plan()
    job.write(writer, ROWS)
    handed_over(writer).abort([None] * 4)
    assert "no row is visible" in capfd.readouterr().err
    assert job.committed == []
    job.run(ROWS)
    assert job.committed == VALUES


def test_a_job_that_died_is_cleaned_up_by_the_next(job: SingleJob) -> None:
    job.write(job.plan(), ROWS)
    job.run({0: ["z"]})
    assert job.committed == ["z"]


def test_an_overtaken_job_fails_and_changes_nothing(job: SingleJob) -> None:
    old, new = job.plan(), job.plan()
    with pytest.raises(KafkaException, match="superseded by a newer run of txnAppId 'job'"):
        job.write(old, {0: ["old"]})
    messages = job.write(new, {0: ["new"]})
    old_messages: list[WriterCommitMessage | None] = []
    with pytest.raises(ProducerFencedException, match="superseded by a newer run"):
        handed_over(old).commit(old_messages)
    handed_over(old).abort([None])
    handed_over(new).commit(messages)
    assert job.committed == ["new"]


def test_a_second_attempt_of_a_task_that_has_written_fails_the_job(job: SingleJob) -> None:
    writer = job.plan()
    handed_over(writer).write(iter(batches(0, ["first"])))
    with pytest.raises(KafkaException, match="another attempt of this task has written to"):
        handed_over(writer).write(iter(batches(0, ["first"])))
    handed_over(writer).abort([None])
    assert job.committed == []


def test_two_tasks_on_one_partition_fail_and_name_it(job: SingleJob) -> None:
    writer = job.plan()
    first = handed_over(writer).write(iter(batches(0, ["one"])))
    assert isinstance(first, SinkCommitMessage)
    with pytest.raises(KafkaException, match=f"two tasks wrote to {job.topic}-0"):
        handed_over(writer).commit([first, first])
    assert job.committed == []


def test_what_single_cannot_do_is_refused_before_a_row_is_sent(
    job: SingleJob, new_topic: NewTopic
) -> None:
    schema = StructType([StructField("value", StringType())])
    with pytest.raises(ConfigException, match="call atomic_layout"):
        KafkaDataSource(job.options).writer(schema, overwrite=False)
    by_append = new_topic(4, {"message.timestamp.type": "LogAppendTime"})
    other = SingleJob(job.cluster, by_append, 4, job.log)
    with pytest.raises(ConfigException, match=r"whose message\.timestamp\.type is LogAppendTime"):
        other.plan()
    with pytest.raises(ConfigException, match=r"has cleanup\.policy=delete: set it to compact"):
        job.plan(commitLogTopic=new_topic(1))
    with pytest.raises(KafkaException, match=r"kafka\.transaction\.timeout\.ms is 2000000"):
        job.plan(**{"kafka.transaction.timeout.ms": "2000000"})


def test_the_log_is_created(job: SingleJob) -> None:
    log = f"{job.topic}-log"
    job.run(ROWS, commitLogTopic=log)
    with pytest.raises(ConfigException):
        job.plan(commitLogTopic="no topic")
    assert isinstance(job.run(ROWS, commitLogTopic=log)[0], SkippedMessage)
    assert job.committed == VALUES


def test_no_transaction_stays_open(job: SingleJob, client: CommitClient) -> None:
    job.run(ROWS)
    (listed,) = replies_to(client, [ListTransactions("pykafka/job/")])
    assert isinstance(listed, Listed)
    of_job = [e for e in listed.transactions if e.transactional_id.endswith(f"/{job.topic}")]
    assert of_job == []


def test_another_owner_s_open_transaction_in_the_log_hides_nothing(
    job: SingleJob, new_topic: NewTopic
) -> None:
    neighbour = SingleJob(job.cluster, new_topic(4), 4, job.log, txnAppId="neighbour")
    write_an_open_record(neighbour)
    job.run(ROWS)
    assert isinstance(job.run({0: ["never"]})[0], SkippedMessage)
    assert job.committed == VALUES


def write_an_open_record(job: SingleJob) -> None:
    """Write a record of the owner into the log, in a transaction that nobody ends."""
    from spark_kafka_sink.commit.log_record import CommitRecord, RecordState
    from spark_kafka_sink.commit.questions import AddPartitions, WriteRecord, Written
    from spark_kafka_sink.config import producer_config
    from spark_kafka_sink.model import TopicPartition

    config = producer_config({"bootstrap.servers": job.cluster.bootstrap})
    tid = f"pykafka/neighbour/{job.topic}"
    with CommitClient(config, job.log) as client:
        level = client.level(client.now() + 30)
        for _ in range(100):
            (found,) = replies_to(client, [InitProducerId(tid, 60_000)])
            if found.error == 0:
                break
        assert isinstance(found, Initialized)
        log = TopicPartition(job.log, 0)
        replies_to(client, [AddPartitions(tid, found.producer, (log,))])
        record = CommitRecord(RecordState.DONE, "open", rows=0, written_at=0).after_version(9)
        (written,) = replies_to(client, [WriteRecord(tid, found.producer, 0, record, level)])
        assert isinstance(written, Written)
        assert written.error == 0, written
        (described,) = replies_to(client, [DescribeTransaction(tid)])
        assert isinstance(described, Described)
        assert described.state == "Ongoing"
