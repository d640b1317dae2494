"""Both modes at their limits: many tasks, many batches, the last epoch, compaction."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from conftest import NewTopic, need_kafka, running_cluster, topic_maker
from support.brokers import fetch_kafka
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import committed_values
from support.spark.played_stream import PlayedStream
from support.spark.single_job import SingleJob, batches, handed_over

from exactly_once.transactions import (
    described,
    next_epoch,
    open_transactions,
)
from spark_kafka_sink import atomic_layout
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.spark.commit_clients import close_all
from spark_kafka_sink.spark.report import SkippedMessage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]

ROWS = {0: ["a", "b"], 1: ["c"], 3: ["d"]}
VALUES = ["a", "b", "c", "d"]
LAST_EPOCH = 32766


@pytest.mark.long(reason="an id has 32766 epochs")
def test_after_the_last_epoch_an_id_gets_another_producer_id(
    job: SingleJob, client: CommitClient
) -> None:
    driver = f"pykafka/job/{job.topic}"
    job.run(ROWS)
    first = described(client, driver).producer
    while next_epoch(client, driver).epoch < LAST_EPOCH - 3:
        pass
    for version in range(2, 8):
        job.run(ROWS, txnVersion=str(version))
    assert described(client, driver).producer.producer_id != first.producer_id
    assert isinstance(job.run({0: ["never"]}, txnVersion="7")[0], SkippedMessage)
    assert job.committed == sorted(7 * VALUES)


@pytest.mark.long(reason="it has 500 tasks of 100 partitions")
def test_many_tasks_with_many_partitions(cluster: KafkaCluster, new_topic: NewTopic) -> None:
    tasks, partitions = 500, 100
    log = new_topic(1, {"cleanup.policy": "compact"})
    job = SingleJob(cluster, new_topic(partitions), partitions, log, exactlyOnce="two-phase")
    job.options["kafka.transaction.timeout.ms"] = "900000"
    numbers = pa.array(range(partitions), pa.int32())

    def rows(task: int) -> pa.RecordBatch:
        values = pa.array([f"{task}.{number}" for number in range(partitions)])
        return pa.record_batch({"value": values, "partition": numbers})

    writer = job.plan()
    messages = [job.attempt(writer, task, [rows(task)]) for task in range(tasks)]
    began, began_cpu = time.monotonic(), time.process_time()
    handed_over(writer).commit(messages)
    seconds, cpu = time.monotonic() - began, time.process_time() - began_cpu
    found = committed_values(cluster.bootstrap, job.topic)
    visible = time.monotonic() - began
    expected = [f"{task}.{number}" for task in range(tasks) for number in range(partitions)]
    assert found == sorted(expected)
    markers = sum(end_offsets(cluster, job.topic, partitions)) - len(found)
    assert markers >= tasks * partitions
    print(
        f"{tasks} tasks of {partitions} partitions: commit {seconds:.1f} s ({cpu:.1f} s of CPU), "
        f"{markers} markers, visible and read {visible:.1f} s after its begin"
    )


def end_offsets(cluster: KafkaCluster, topic: str, partitions: int) -> list[int]:
    """Return the end of each partition, where markers count as records do."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "ends", "log_level": 0}
    )
    places = [TopicPartition(topic, number) for number in range(partitions)]
    ends = [consumer.get_watermark_offsets(place, timeout=30)[1] for place in places]
    consumer.close()
    return ends


@pytest.mark.long(reason="it starts a cluster for each")
@pytest.mark.parametrize("raised", [True, False], ids=["raised", "lowered"])
def test_the_level_changes_between_the_plan_and_the_commit(
    scratch: Path, mode: str, *, raised: bool
) -> None:
    need_kafka()
    folder = scratch / f"level-{mode}-{raised}"
    with running_cluster(fetch_kafka.NEWEST, folder, 1) as cluster:
        if raised:
            cluster.change_transaction_version(1)
        new_topic = topic_maker(cluster)
        log = new_topic(1, {"cleanup.policy": "compact"})
        job = SingleJob(cluster, new_topic(4), 4, log, exactlyOnce=mode)
        writer = job.plan()
        messages = job.write(writer, ROWS)
        cluster.change_transaction_version(2 if raised else 1)
        handed_over(writer).commit(messages)
        job.run({0: ["e"]}, txnVersion="2")  # by clients that know the level from before
        close_all()
        assert isinstance(job.run({0: ["never"]})[0], SkippedMessage)
        job.run({0: ["f"]}, txnVersion="3")
        assert job.committed == [*VALUES, "e", "f"]


@pytest.mark.long(reason="the log is compacted")
def test_the_newest_record_is_there_after_compaction(
    job: SingleJob, new_topic: NewTopic, driver_folder: Path
) -> None:
    log = new_topic(
        1,
        {
            "cleanup.policy": "compact",
            "segment.ms": "200",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "0",
            "min.compaction.lag.ms": "0",
        },
    )
    job.options["commitLogTopic"] = log
    stream = PlayedStream(job)
    for number in range(200):
        stream.run(number, {number % 4: [f"{number}"]})
    stream.restart()
    stream.run(199, {3: ["199"]})  # only compared
    assert job.committed == sorted(map(str, range(200)))


@pytest.mark.spark
@pytest.mark.long(reason="it has 300 micro-batches")
def test_300_micro_batches_of_spark_use_as_many_ids_as_a_few(
    spark: SparkSession,
    cluster: KafkaCluster,
    new_topic: NewTopic,
    mode: str,
    client: CommitClient,
    tmp_path: Path,
) -> None:
    from spark_kafka_sink.commit.names import app_id_of_checkpoint

    files, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    files.mkdir()
    for number in range(300):
        (files / f"{number}.txt").write_text(f"{number}\n")
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "topic": new_topic(2),
        "exactlyOnce": mode,
        "commitLogTopic": new_topic(1, {"cleanup.policy": "compact"}),
    }
    rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(str(files))
    rows = atomic_layout(rows, options) if mode == "single" else rows
    query = (
        rows.writeStream.format("pykafka")
        .options(**options, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None
    progress = query.lastProgress
    assert progress is not None
    assert progress["batchId"] == 299
    values = committed_values(cluster.bootstrap, options["topic"])
    assert values == sorted(map(str, range(300)))
    owner = f"pykafka/{app_id_of_checkpoint(f'file:{checkpoint}')}/{options['topic']}"
    assert described(client, owner).error == 0
    # A task takes another id while the markers of the last micro-batch are being written.
    assert [described(client, f"{owner}/{task}.4").error for task in range(2)] == [105, 105]
    assert open_transactions(client, options["topic"]) == []


@pytest.mark.long(reason="it has 200 tasks")
def test_200_tasks(cluster: KafkaCluster, new_topic: NewTopic, mode: str) -> None:
    log = new_topic(1, {"cleanup.policy": "compact"})
    job = SingleJob(cluster, new_topic(200), 200, log, exactlyOnce=mode)
    writer = job.plan()
    messages = [
        job.attempt(writer, number, batches(number, [f"{number}"])) for number in range(200)
    ]
    handed_over(writer).commit(messages)
    assert job.committed == sorted(map(str, range(200)))
