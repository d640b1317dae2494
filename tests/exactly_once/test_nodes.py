"""Both modes on three nodes, of which one is killed or restarted: each row once, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from conftest import NewTopic, need_kafka, running_cluster, topic_maker
from support.brokers import fetch_kafka
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import committed_values, read_with_confluent
from support.spark.played_stream import PlayedStream
from support.spark.single_job import SingleJob, batches, handed_over

from exactly_once.moments import Moments, When, before_end
from spark_kafka_sink.commit.questions import Ask, WriteRecord
from spark_kafka_sink.spark.report import SkippedMessage

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.exactly_once,
    pytest.mark.long(reason="nodes of a cluster are killed and started again"),
]

ROWS = {0: ["a", "b"], 1: ["c"], 3: ["d"]}
VALUES = ["a", "b", "c", "d"]
BATCHES = 100


@pytest.fixture(scope="module", params=[fetch_kafka.NEWEST, fetch_kafka.OLD])
def cluster(request: pytest.FixtureRequest, scratch: Path) -> Iterator[KafkaCluster]:
    """Three nodes that a test may kill: Kafka 4 at level 2, and Kafka 3.9 at level 1."""
    need_kafka()
    with running_cluster(request.param, scratch / f"nodes-{request.param}", 3) as found:
        yield found


@pytest.fixture
def job(job: SingleJob) -> SingleJob:
    """A job whose transactions do not end while nodes do, however slow the machine is."""
    job.options["kafka.transaction.timeout.ms"] = "900000"
    return job


@pytest.fixture
def new_topic(cluster: KafkaCluster) -> NewTopic:
    """Makes a topic with three replicas."""
    return topic_maker(cluster, replicas=3)


@pytest.fixture
def kill(cluster: KafkaCluster) -> Iterator[Callable[[int], None]]:
    """Kills a node, which is started again after the test."""
    killed: list[int] = []

    def kill_one(node: int) -> None:
        cluster.kill(node)
        killed.append(node)

    yield kill_one
    for node in killed:
        cluster.start_node(node)


def leader(cluster: KafkaCluster, topic: str, partition: int) -> int:
    """Return the leader of a partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    found: int = admin.list_topics(topic, timeout=30).topics[topic].partitions[partition].leader
    return found


def coordinator(cluster: KafkaCluster, transactional_id: str) -> int:
    """Return the node that coordinates an id: the leader of the partition of its hash in Java."""
    hashed = 0
    for character in transactional_id:
        hashed = (31 * hashed + ord(character)) & 0xFFFFFFFF
    hashed = hashed - (1 << 32) if hashed >> 31 else hashed
    return leader(cluster, "__transaction_state", abs(hashed) % 3)


def driver_of(job: SingleJob) -> str:
    """Return the driver's id."""
    return f"pykafka/job/{job.topic}"


def is_record(_: int, ask: Ask) -> bool:
    """Whether a record is written next."""
    return isinstance(ask, WriteRecord)


@pytest.mark.parametrize("comes", ["record", "decision"])
def test_the_coordinator_dies_while_a_job_commits(
    job: SingleJob,
    cluster: KafkaCluster,
    kill: Callable[[int], None],
    moments: Moments,
    comes: str,
) -> None:
    moment: When = is_record if comes == "record" else before_end(1, of="pykafka/")
    writer = job.plan()
    messages = job.write(writer, ROWS)
    died: list[int] = []

    def kill_once() -> None:
        if not died:
            died.append(coordinator(cluster, driver_of(job)))
            kill(died[0])

    assert moments.pauses(moment, kill_once, lambda: handed_over(writer).commit(messages))
    assert isinstance(job.run({0: ["never"]})[0], SkippedMessage)
    assert job.committed == VALUES


def test_the_leader_of_the_commit_log_dies_while_the_record_is_written(
    job: SingleJob, cluster: KafkaCluster, kill: Callable[[int], None], moments: Moments
) -> None:
    writer = job.plan()
    messages = job.write(writer, ROWS)
    died: list[int] = []

    def kill_once() -> None:
        if not died:
            died.append(leader(cluster, job.log, 0))
            kill(died[0])

    assert moments.pauses(is_record, kill_once, lambda: handed_over(writer).commit(messages))
    assert isinstance(job.run({0: ["never"]})[0], SkippedMessage)
    assert job.committed == VALUES


def test_the_coordinator_dies_while_tasks_write(
    job: SingleJob, cluster: KafkaCluster, kill: Callable[[int], None]
) -> None:
    writer = job.plan()
    messages = [job.attempt(writer, 0, batches(0, ["a", "b"]))]
    kill(coordinator(cluster, driver_of(job)))
    messages += [job.attempt(writer, n, batches(n, ROWS.get(n, ()))) for n in range(1, 4)]
    handed_over(writer).commit(messages)
    assert job.committed == VALUES


def test_the_leader_of_a_partition_dies_while_a_task_writes(
    job: SingleJob, cluster: KafkaCluster, kill: Callable[[int], None]
) -> None:
    job.options |= {"kafka.linger.ms": "5"}
    expected = [f"{number}" for number in range(2000)]

    def rows() -> Iterator[pa.RecordBatch]:
        for first in range(0, 2000, 100):
            if first == 1000:
                kill(leader(cluster, job.topic, 0))
            yield from batches(0, expected[first : first + 100])

    writer = job.plan()
    messages = [job.attempt(writer, 0, rows())]
    messages += [job.attempt(writer, number, []) for number in range(1, 4)]
    handed_over(writer).commit(messages)
    assert job.committed == sorted(expected)
    records = read_with_confluent(cluster.bootstrap, job.topic)
    assert [each.value.decode() for each in records if each.value] == expected


def restart_each(cluster: KafkaCluster) -> None:
    """Restart one node after the other."""
    for node in (1, 2, 3):
        cluster.terminate(node)
        cluster.start_node(node)


def test_a_stream_goes_on_while_each_node_is_restarted(
    job: SingleJob, cluster: KafkaCluster, driver_folder: Path
) -> None:
    stream = PlayedStream(job)
    with ThreadPoolExecutor(1) as executor:
        restarts = executor.submit(restart_each, cluster)
        written = 0
        while written < BATCHES or not restarts.done():
            stream.run(written, {number: [f"{written:05}.{number}"] for number in range(4)})
            written += 1
        restarts.result()
    expected = [f"{batch:05}.{number}" for batch in range(written) for number in range(4)]
    assert committed_values(cluster.bootstrap, job.topic) == sorted(expected)
    records = read_with_confluent(cluster.bootstrap, job.topic)
    for number in range(4):
        values = [r.value.decode() for r in records if r.value and r.partition == number]
        assert values == sorted(values)
