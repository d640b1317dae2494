"""Producers of tasks in a transaction that a driver begins and ends, on real brokers."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from confluent_kafka import IsolationLevel
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import committed_values
from support.pure.broker_replies import replies_to

from spark_kafka_sink.commit.questions import (
    Added,
    AddPartitions,
    Ask,
    Described,
    DescribeProducers,
    DescribeTransaction,
    Ended,
    EndTxn,
    Initialized,
    InitProducerId,
    ProducersDescribed,
)
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    InvalidProducerEpochException,
    InvalidTxnStateException,
    ProducerFencedException,
    TransactionAbortableException,
)
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.task_producer import TaskProducer

pytestmark = [pytest.mark.kafka, pytest.mark.exactly_once]

_IN_TIME_S = 30.0
NewClient = Callable[[], CommitClient]
NewTaskProducer = Callable[[], TaskProducer]


class Driver:
    """What a driver does: it begins a transaction and ends it, without machines."""

    def __init__(self, client: CommitClient, transactional_id: str) -> None:
        self._client = client
        self.transactional_id = transactional_id
        self.level = client.level(client.now() + _IN_TIME_S)
        self.producer = self.next_epoch()

    def ask(self, ask: Ask) -> object:
        """Ask one question; ask it again while a transaction is completing."""
        for _ in range(200):
            (reply,) = replies_to(self._client, [ask])
            if getattr(reply, "error", 0) not in (51, 14, 15, 16):
                return reply
            time.sleep(0.02)
        raise TimeoutError(str(reply))

    def next_epoch(self) -> ProducerIdAndEpoch:
        """Fence everybody with the id."""
        reply = self.ask(InitProducerId(self.transactional_id, 60_000))
        assert isinstance(reply, Initialized)
        assert reply.error == 0, reply
        return reply.producer

    def add(self, *partitions: TopicPartition) -> int:
        """Add partitions; return the error code."""
        reply = self.ask(AddPartitions(self.transactional_id, self.producer, partitions))
        assert isinstance(reply, Added)
        return reply.error

    def end(self, version: int | None = None, *, commit: bool = True) -> int:
        """End the transaction; return the error code."""
        version = version or (5 if self.level == 2 else 4)
        reply = self.ask(EndTxn(self.transactional_id, self.producer, commit, version))
        assert isinstance(reply, Ended)
        return reply.error

    def described(self) -> Described:
        """Return the state of the transaction."""
        reply = self.ask(DescribeTransaction(self.transactional_id))
        assert isinstance(reply, Described)
        return reply

    def wait_for(self, state: str) -> None:
        """Wait until the transaction is in a state."""
        deadline = time.monotonic() + _IN_TIME_S
        while (found := self.described().state) != state:
            assert time.monotonic() < deadline, found
            time.sleep(0.02)

    def last_sequence(self, partition: TopicPartition) -> tuple[int, int]:
        """Return the last sequence of the transaction's producer, and where it begins there."""
        reply = self.ask(DescribeProducers(partition))
        assert isinstance(reply, ProducersDescribed)
        assert reply.error == 0, reply
        for producer, last_sequence, start in reply.producers:
            if producer == self.producer:
                return last_sequence, start
        return -1, -1

    def join(self, producer: TaskProducer, *, adds: bool = True, withholds: bool = False) -> None:
        """Let a task join."""
        version = 2 if self.level == 2 else 0
        producer.join_transaction(
            self.transactional_id, self.producer, version,
            adds_partitions=adds, withholds=withholds, checks_duplicates=True,
        )  # fmt: skip


def stable_ends(bootstrap: str, topic: str, partitions: int) -> list[int]:
    """Return up to where readers see committed records, by partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    latest = {ConfluentPartition(topic, n): OffsetSpec.latest() for n in range(partitions)}  # type: ignore[no-untyped-call] # theirs
    found = admin.list_offsets(latest, isolation_level=IsolationLevel.READ_COMMITTED)
    return [found[each].result().offset for each in latest]


@pytest.fixture
def driver(client: CommitClient, new_topic: NewTopic) -> Driver:
    """A driver that has begun a transaction."""
    return Driver(client, f"pykafka/{new_topic(1)}/t")


def rows(partition: int, *texts: str) -> pa.RecordBatch:
    """Return rows for one partition."""
    return pa.record_batch(
        {"value": pa.array(texts), "partition": pa.array([partition] * len(texts), pa.int32())}
    )


@pytest.mark.parametrize("added", [False, True], ids=["tasks add partitions", "all are added"])
def test_many_tasks_write_into_one_transaction_and_all_rows_become_visible_at_once(
    driver: Driver,
    cluster: KafkaCluster,
    new_topic: NewTopic,
    new_producer: NewTaskProducer,
    *,
    added: bool,
) -> None:
    topic = new_topic(8)
    if added and driver.level == 1:
        assert driver.add(*(TopicPartition(topic, number) for number in range(8))) == 0
    producers = [new_producer() for _ in range(8)]

    def write(number: int) -> None:
        producer = producers[number]
        producer.append(topic, rows(number, f"before {number}"))
        producer.flush()
        driver.join(producer, adds=not added)
        for number_ in range(3):
            producer.append(topic, rows(number, *(f"{number}.{number_}.{n}" for n in range(100))))
        written = producer.detach_transaction()
        partition = TopicPartition(topic, number)
        assert set(written) == {partition}
        assert (written[partition].records, written[partition].last_sequence) == (300, 299)
        assert written[partition].first_offset == 1
        assert written[partition].went_back is None
        assert [each for each in written[partition].duplicates if not each.attempts] == []
        producer.append(topic, rows(number, f"after {number}"))
        producer.flush()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(8)))
    described = driver.described()
    assert (described.state, described.producer) == ("Ongoing", driver.producer)
    assert described.partitions == {TopicPartition(topic, number) for number in range(8)}
    for number in range(8):
        assert driver.last_sequence(TopicPartition(topic, number)) == (299, 1)
    assert stable_ends(cluster.bootstrap, topic, 8) == [1] * 8, "what is open is visible"
    assert driver.end() == 0
    inside = [f"{n}.{number_}.{i}" for n in range(8) for number_ in range(3) for i in range(100)]
    outside = [f"{when} {number}" for when in ("before", "after") for number in range(8)]
    assert committed_values(cluster.bootstrap, topic) == sorted(inside + outside)


def test_what_a_killed_task_wrote_is_committed_from_another_process(
    driver: Driver, cluster: KafkaCluster, config: ProducerConfig, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    program = f"""
import os, pickle, signal, sys
import pyarrow as pa
from spark_kafka_sink.task_producer import TaskProducer
config, transactional_id, producer_id, version = pickle.loads(sys.stdin.buffer.read())
producer = TaskProducer(config, allow_auto_create_topics=False)
producer.join_transaction(
    transactional_id, producer_id, version,
    adds_partitions=True, withholds=False, checks_duplicates=False,
)
producer.append({topic!r}, pa.record_batch({{"value": pa.array(["1", "2", "3"])}}))
producer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    given = (config, driver.transactional_id, driver.producer, 2 if driver.level == 2 else 0)
    killed = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(given), check=False, timeout=60
    )
    assert killed.returncode == -9
    assert driver.end() == 0
    assert committed_values(cluster.bootstrap, topic) == ["1", "2", "3"]


def test_late_rows_of_a_task_are_refused_once_its_transaction_has_ended(
    driver: Driver, cluster: KafkaCluster, new_topic: NewTopic, new_producer: NewTaskProducer
) -> None:
    topic = new_topic(1)
    partition = TopicPartition(topic, 0)
    if driver.level == 1:
        assert driver.add(partition) == 0
    late, punctual = new_producer(), new_producer()
    driver.join(punctual, adds=False)
    driver.join(late, adds=False)
    punctual.append(topic, rows(0, "punctual"))
    punctual.detach_transaction()
    assert driver.end() == 0
    # Until its marker is there, a partition takes what is late for a duplicate, or out of order.
    driver.wait_for("CompleteCommit")
    ended = driver.producer
    if driver.level == 1:
        driver.next_epoch()  # the transaction of the id could be opened again else
    late.append(topic, rows(0, "late", "later"))
    refused = (
        InvalidProducerEpochException, InvalidTxnStateException, TransactionAbortableException,
    )  # fmt: skip
    with pytest.raises(refused):
        late.detach_transaction()
    driver.producer = ended
    assert driver.add(partition) == 90
    assert driver.end() in (0, 90), "a retry of the commit is answered as the first, or fenced"
    assert driver.described().state != "Ongoing"
    assert committed_values(cluster.bootstrap, topic) == ["punctual"]


@pytest.mark.parametrize("renews", [True, False], ids=["R3", "without R3"])
def test_only_another_epoch_keeps_a_late_task_out(
    driver: Driver,
    cluster: KafkaCluster,
    new_topic: NewTopic,
    new_producer: NewTaskProducer,
    *,
    renews: bool,
) -> None:
    topic = new_topic(2)
    first, late = new_producer(), new_producer()
    driver.join(first)
    driver.join(late)
    first.append(topic, rows(0, "in time"))
    first.detach_transaction()
    assert driver.end() == 0
    if renews:
        driver.next_epoch()
    late.append(topic, rows(1, "late"))
    if renews or driver.level == 2:  # there the end of a transaction bumps the epoch
        with pytest.raises((ProducerFencedException, InvalidProducerEpochException)):
            late.detach_transaction()
        assert committed_values(cluster.bootstrap, topic) == ["in time"]
        return
    # The mutant: it adds a partition, which opens the transaction again, and a retry commits it.
    late.detach_transaction()
    assert driver.end() == 0
    assert committed_values(cluster.bootstrap, topic) == ["in time", "late"]


def test_of_two_tasks_with_the_same_sequences_in_a_partition_one_is_flagged(
    driver: Driver, cluster: KafkaCluster, new_topic: NewTopic, new_producer: NewTaskProducer
) -> None:
    topic = new_topic(1)
    first, second = new_producer(), new_producer()
    driver.join(first)
    driver.join(second)
    first.append(topic, rows(0, "a", "b"))
    assert first.detach_transaction()[TopicPartition(topic, 0)].duplicates == []
    second.append(topic, rows(0, "c", "d"))
    written = second.detach_transaction()[TopicPartition(topic, 0)]
    (duplicate,) = written.duplicates
    assert (duplicate.base_offset, duplicate.attempts, duplicate.sent) == (0, 0, b"")
    assert driver.last_sequence(TopicPartition(topic, 0)) == (1, 0), "nothing shows here"
    assert driver.end(commit=False) == 0
    assert committed_values(cluster.bootstrap, topic) == []


def test_a_task_that_withholds_its_rows_has_sent_nothing_before_the_flush(
    driver: Driver, cluster: KafkaCluster, new_topic: NewTopic, new_producer: NewTaskProducer
) -> None:
    topic = new_topic(1)
    producer = new_producer()
    producer.append(topic, rows(0, "before"))
    producer.flush()
    driver.join(producer, withholds=True)
    for _ in range(20):
        producer.append(topic, rows(0, *(["x" * 10_000] * 100)))
    assert driver.last_sequence(TopicPartition(topic, 0)) == (-1, -1)
    assert producer.detach_transaction()[TopicPartition(topic, 0)].records == 2000
    assert driver.last_sequence(TopicPartition(topic, 0)) == (1999, 1)
    assert driver.end() == 0
    assert len(committed_values(cluster.bootstrap, topic)) == 2001


def test_a_late_abort_of_an_older_transaction_does_not_touch_the_next(
    driver: Driver,
    cluster: KafkaCluster,
    new_client: NewClient,
    new_topic: NewTopic,
    new_producer: NewTaskProducer,
) -> None:
    topic = new_topic(1)
    old = driver.producer
    driver.producer = driver.next_epoch()
    producer = new_producer()
    driver.join(producer)
    producer.append(topic, rows(0, "next"))
    producer.detach_transaction()
    (reply,) = replies_to(
        new_client(),
        [EndTxn(driver.transactional_id, old, False, 5 if driver.level == 2 else 4)],  # noqa: FBT003 - a field
    )
    assert isinstance(reply, Ended)
    assert reply.error == 90
    assert driver.end() == 0
    assert committed_values(cluster.bootstrap, topic) == ["next"]


# At level 1, version 4 of EndTxn is that of the level: R3 keeps a late task out.
@pytest.mark.parametrize("cluster", ["level 2"], indirect=True)
def test_only_the_version_of_the_level_keeps_a_late_task_out(
    driver: Driver, cluster: KafkaCluster, new_topic: NewTopic, new_producer: NewTaskProducer
) -> None:
    topic = new_topic(2)
    first, late = new_producer(), new_producer()
    driver.join(first)
    driver.join(late)
    first.append(topic, rows(0, "in time"))
    first.detach_transaction()
    # The mutant: version 5 bumps the epoch, this one does not.
    assert driver.end(version=4) == 0
    late.append(topic, rows(1, "late"))
    late.detach_transaction()
    assert driver.end(version=4) == 0
    assert committed_values(cluster.bootstrap, topic) == ["in time", "late"]
