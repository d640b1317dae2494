"""Owners and their records in the commit log, on real brokers: none harms another, none forgets."""

from __future__ import annotations

import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import add_partitions
from support.spark.single_job import SingleJob, handed_over

from exactly_once.transactions import (
    answer,
    described,
    next_epoch,
    open_transactions,
    wait_for_end,
)
from spark_kafka_sink.commit.log_record import LOG_PARTITION, CommitRecord, RecordState
from spark_kafka_sink.commit.questions import AddPartitions, WriteRecord, Written
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.report import SkippedMessage

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]

ROWS = {0: ["a", "b"], 1: ["c"], 3: ["d"]}
VALUES = ["a", "b", "c", "d"]
# The longest is 200 bytes of UTF-8.
APPLICATIONS = ("a", "a.1", "a/1", "a%2F1", "%", "a/1/0.0", "b/", "é" * 100)


def is_written(job: SingleJob, version: int) -> bool:
    """Return whether a version is written before, without writing it."""
    found = job.run({0: [f"never {version}"]}, txnVersion=str(version))
    return isinstance(found[0], SkippedMessage)


def test_versions_are_written_once_in_any_order_and_with_gaps(job: SingleJob) -> None:
    versions = (20260107, 3, 202601071155, 1, 2, 20260106, 0)
    for version in versions:
        job.run({version % 4: [str(version)]}, txnVersion=str(version))
    assert [version for version in versions if not is_written(job, version)] == []
    assert job.committed == sorted(map(str, versions))


def test_no_application_takes_the_transaction_of_another_for_its_own(
    job: SingleJob, mode: str, client: CommitClient
) -> None:
    dotted = f"{job.topic}.with.dots"
    job.cluster.run_topics_script(
        "--bootstrap-server", job.cluster.bootstrap, "--create", "--topic", dotted,
        "--partitions", "4",
    )  # fmt: skip
    runs = {}
    for topic in (job.topic, dotted):
        for name in APPLICATIONS:
            one = SingleJob(job.cluster, topic, 4, job.log, exactlyOnce=mode, txnAppId=name)
            writer = one.plan()
            runs[topic, name] = one, writer, one.write(writer, {0: [name], 2: [f"{name} too"]})
    for _, writer, messages in runs.values():
        handed_over(writer).commit(messages)
    for (topic, name), (one, _, _) in runs.items():
        assert is_written(one, 1), (topic, name)
    expected = sorted(text for name in APPLICATIONS for text in (name, f"{name} too"))
    for topic in (job.topic, dotted):
        (one,) = [one for (to, name), (one, _, _) in runs.items() if (to, name) == (topic, "a")]
        assert one.committed == expected
        assert open_transactions(client, topic) == []


def test_an_open_transaction_of_another_owner_in_the_log_hides_nothing(
    job: SingleJob, client: CommitClient
) -> None:
    """A reader up to the last stable offset would miss the record and write the version again."""
    neighbour = f"pykafka/neighbour/{job.topic}"
    producer = next_epoch(client, neighbour)
    with CommitClient(
        producer_config({"bootstrap.servers": job.cluster.bootstrap}), job.log
    ) as one:
        level = one.level(one.now() + 30)
        answer(one, AddPartitions(neighbour, producer, (TopicPartition(job.log, LOG_PARTITION),)))
        record = CommitRecord(RecordState.DONE, "open", rows=0, written_at=0).after_version(9)
        written = answer(one, WriteRecord(neighbour, producer, 0, record, level))
        assert isinstance(written, Written)
        assert written.error == 0, written
    job.run(ROWS)
    assert is_written(job, 1)
    assert described(client, neighbour).state == "Ongoing"
    assert job.committed == VALUES


def test_the_log_is_partition_0_also_once_its_topic_has_more(
    job: SingleJob, cluster: KafkaCluster
) -> None:
    job.run({0: ["a"]})
    add_partitions(cluster.bootstrap, job.log, 5)
    assert is_written(job, 1)
    job.run({0: ["b"]}, txnVersion="2")
    assert is_written(job, 2)
    assert is_written(job, 1)
    assert job.committed == ["a", "b"]


def test_a_record_that_the_log_does_not_accept_fails_before_the_decision(
    job: SingleJob, new_topic: NewTopic
) -> None:
    log = new_topic(1, {"cleanup.policy": "compact", "max.message.bytes": "300"})
    with pytest.raises(KafkaException, match="MESSAGE_TOO_LARGE"):
        job.run(ROWS, commitLogTopic=log)
    assert job.committed == []
    job.run(ROWS)
    assert job.committed == VALUES


def test_an_owner_s_ids_are_used_again(job: SingleJob, mode: str, client: CommitClient) -> None:
    for version in range(12):
        job.run(ROWS, txnVersion=str(version))
        # A task takes another id while the markers of the last job are being written.
        for each in ids(job, mode):
            wait_for_end(client, each)
        if version == 0:
            begun = [described(client, each).producer for each in ids(job, mode)]
    assert [described(client, each).producer.producer_id for each in ids(job, mode)] == [
        each.producer_id for each in begun
    ]
    for partition in (0, 1, 3) if mode == "two-phase" else ():
        assert described(client, f"pykafka/job/{job.topic}/{partition}.1").error == 105


def ids(job: SingleJob, mode: str) -> list[str]:
    """Return the transactional ids of a job."""
    driver = f"pykafka/job/{job.topic}"
    tasks = [f"{driver}/{partition}.0" for partition in (0, 1, 3)]
    return [driver, *(tasks if mode == "two-phase" else ())]
