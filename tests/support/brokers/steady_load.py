"""A constant load on a topic while a test damages the cluster, and the state of the topic."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import PartitionMetadata
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from spark_kafka_sink import KafkaProducer
from support.oracles.numbered_rows import NumberedRows
from support.pure.state_waits import wait_until

_PATIENCE_S = 120.0
# 3,000 rows per second and partition are a load, and few enough to read.
_STEP = 30
_PAUSE_S = 0.01


class SteadyLoad:
    """Appends numbered rows in a thread until `stop`."""

    def __init__(self, producer: KafkaProducer, topic: str, partitions: int) -> None:
        self.rows = NumberedRows(producer, topic, partitions)
        self._producer = producer
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._counts = [0] * partitions
        self._thread = threading.Thread(target=self._run, name="steady load")
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(_PAUSE_S):
                self.rows.append(_STEP)
        except BaseException as error:  # noqa: BLE001 - the test gets it
            self._error = error

    def stop(self) -> None:
        """End the load and wait until every row is acknowledged. Raise the first error."""
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._producer.flush(_PATIENCE_S)

    def wait_for_progress(self, records: int = 300) -> None:
        """Wait until `records` more records of every partition are acknowledged."""
        goal = [count + records for count in self._acknowledged()]

        def has_come() -> bool:
            if self._error is not None:
                raise self._error
            acknowledged = self._acknowledged()
            return all(count >= least for count, least in zip(acknowledged, goal, strict=True))

        wait_until(self._producer, has_come, _PATIENCE_S)

    def wait_for_stall(self, seconds: float) -> None:
        """Wait until no record was acknowledged for a time, although records were appended."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            before = self._acknowledged()
            self._stopping.wait(seconds)
            if self._error is not None:
                raise self._error
            if self._acknowledged() == before:
                return
        message = "records are still acknowledged"
        raise TimeoutError(message)

    def _acknowledged(self) -> list[int]:
        for topic_partition, delivery in self._producer._state.take_deliveries().items():
            self._counts[topic_partition.partition] += delivery.records
        return list(self._counts)


@contextlib.contextmanager
def steady_load(bootstrap: str, topic: str, partitions: int) -> Iterator[SteadyLoad]:
    """Yield a running load; at the end, all of it is acknowledged."""
    config = {
        "bootstrap.servers": bootstrap,
        "linger.ms": 5,
        "request.timeout.ms": 2000,
        "socket.connection.setup.timeout.ms": 1000,
    }
    with KafkaProducer(config) as producer:
        load = SteadyLoad(producer, topic, partitions)
        try:
            load.wait_for_progress()
            yield load
        finally:
            load.stop()


def partitions_of(bootstrap: str, topic: str) -> dict[int, PartitionMetadata]:
    """Return the metadata of a topic's partitions from any node that answers."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(confluent_kafka.KafkaException):
            found: dict[int, PartitionMetadata]
            found = admin.list_topics(topic, timeout=2).topics[topic].partitions
            return found
    message = f"no node of {bootstrap} answers"
    raise TimeoutError(message)


def leader_of(bootstrap: str, topic: str, partition: int = 0) -> int:
    """Return the id of the leader of a partition."""
    leader: int = partitions_of(bootstrap, topic)[partition].leader
    return leader


def wait_for_leader_but(before: int, bootstrap: str, topic: str) -> None:
    """Wait until another node than `before` leads the first partition of a topic."""
    _wait(lambda: leader_of(bootstrap, topic) != before, f"{topic} is still led by node {before}")


def wait_for_replicas(bootstrap: str, topic: str, count: int = 3) -> None:
    """Wait until every partition of a topic has `count` in-sync replicas."""

    def are_in_sync() -> bool:
        found = partitions_of(bootstrap, topic)
        return all(len(partition.isrs) >= count for partition in found.values())

    _wait(are_in_sync, f"{topic} has not {count} replicas in sync everywhere")


def _wait(is_so: Callable[[], bool], message: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        if is_so():
            return
    raise TimeoutError(message)


def move_leaders(bootstrap: str, topic: str) -> None:
    """Make the replica after every partition's leader its preferred leader, and elect it."""
    electing = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        rotated = {
            TopicPartition(topic, number): _after(partition.leader, partition.replicas)
            for number, partition in partitions_of(bootstrap, topic).items()
        }
        failed = admin.alter_partition_reassignments(rotated)
        assert not any(failed.values()), failed
        elected = electing.elect_leaders(
            confluent_kafka.ElectionType.PREFERRED,
            [confluent_kafka.TopicPartition(topic, tp.partition) for tp in rotated],
        )
        for partition, error in elected.result().items():
            assert error is None, (partition, error)
    finally:
        admin.close()


def _after(leader: int, replicas: list[int]) -> list[int]:
    next_one = replicas.index(leader) + 1
    return replicas[next_one:] + replicas[:next_one]
