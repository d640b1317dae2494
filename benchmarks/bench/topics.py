"""Topics of the benchmark: create, inspect, delete. All of them have its prefix.

No records are deleted, only entire topics between rounds. A broker that deletes one contender's
records, or rolls small segments to be able to, would do so during another one's write. Each topic
has a limit in bytes far above what rounds write, and segments as large as that allows. It stops a
contender that writes endlessly.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple, Self

from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]
from job import running
from kafka.admin import KafkaAdminClient

from bench import raw_socket

_PREFIX: Final = "pykafka-bench-"
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.05
# Topics of this size before a round are deleted, so that no disk fills up.
_MOST_BYTES: Final = 2 * 1024**3
# The limit of a topic for the usual number of rows: more than twice what it ever has.
_LIMIT_BYTES: Final = 16 * 1024**3
# Kafka's default. Retention deletes closed segments only, so a segment is no larger than the limit.
_SEGMENT_BYTES: Final = 1024**3
# The broker of `make bench` removes a deleted topic's files within a second; one without
# log.segment.delete.delay.ms begins after a minute.
_REMOVAL_S: Final = 2.0


class Contents(NamedTuple):
    """The contents of a topic: records, and their bytes in the leaders' logs."""

    records: int
    log_bytes: int


def limits(partitions: int, scale: float) -> dict[str, str]:
    """Return the settings that limit a topic's bytes; scale: how many times the usual rows."""
    kept = int(_LIMIT_BYTES * max(1.0, scale)) // partitions
    return {"retention.bytes": str(kept), "segment.bytes": str(min(_SEGMENT_BYTES, kept))}


class Topics:
    """The requests to a cluster that the benchmark needs besides writing."""

    def __init__(self, bootstrap: str, scale: float) -> None:
        self._bootstrap = bootstrap
        self._scale = scale
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    @contextlib.contextmanager
    def made(self, partitions: int) -> Iterator[str]:
        """Yield a topic whose records are not deleted, and delete it after the `with` block."""
        name = f"{_PREFIX}{uuid.uuid4().hex[:8]}"
        config = limits(partitions, self._scale)
        new = NewTopic(name, num_partitions=partitions, config=config)
        for future in self._admin.create_topics([new]).values():
            future.result()
        try:
            self._wait_for_leaders(name, partitions)
            yield name
        finally:
            for future in self._admin.delete_topics([name]).values():
                future.result()

    def begin(self, topic: str, partitions: int) -> None:
        """Write an empty record to every partition, because a log's first one takes longer."""
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 5})
        for partition in range(partitions):
            producer.produce(topic, b"", partition=partition)
        if left := producer.flush(_PATIENCE_S):
            message = f"topic {topic} did not take {left} of {partitions} first records"
            raise running.JobError(message)

    def leaders(self, topic: str) -> dict[tuple[str, int], list[int]]:
        """Return the partitions of a topic by the address of their leader."""
        known = self._admin.list_topics(topic, timeout=_PATIENCE_S)
        found: dict[tuple[str, int], list[int]] = {}
        for number, partition in known.topics[topic].partitions.items():
            broker = known.brokers[partition.leader]
            found.setdefault((str(broker.host), broker.port), []).append(number)
        return found

    def shares(self, topic: str, connections: int) -> list[raw_socket.Share]:
        """Divide a topic's partitions among connections, the same number for every broker."""
        return [
            raw_socket.Share(address, partitions[first::connections])
            for address, partitions in self.leaders(topic).items()
            for first in range(min(connections, len(partitions)))
        ]

    def contents(self, topic: str) -> Contents:
        """Return the contents of a topic from which nothing was deleted."""
        return Contents(self.records(topic), self._log_bytes(topic))

    def records(self, topic: str) -> int:
        """Return the number of records written to a topic from which nothing was deleted.

        A commit is answered before the last marker is written, so this waits for the markers.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while self._ends(topic, IsolationLevel.READ_COMMITTED) != self._ends(topic):
            if time.monotonic() > deadline:
                message = f"topic {topic} has a transaction that stays open"
                raise running.JobError(message)
            time.sleep(_POLL_S)
        first = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        if deleted := sum(self._offsets(topic, first)):
            message = f"the broker has deleted {deleted:,} records of topic {topic}"
            raise running.JobError(message)
        return sum(self._ends(topic))

    def _log_bytes(self, topic: str) -> int:
        client = KafkaAdminClient(bootstrap_servers=self._bootstrap.split(","))
        try:
            brokers = client.describe_log_dirs([topic])
        finally:
            client.close()
        # The largest replica of a partition is complete.
        sizes: dict[int, int] = {}
        for broker in brokers:
            for folder in broker["log_dirs"]:
                for found in folder["topics"]:
                    for partition in found["partitions"]:
                        number = partition["partition_index"]
                        size = partition["partition_size"]
                        sizes[number] = max(size, sizes.get(number, 0))
        return sum(sizes.values())

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        """Wait until every partition's leader is ready."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(KafkaException):
                known = self._admin.list_topics(timeout=_PATIENCE_S).topics.get(topic)
                if known is not None and len(known.partitions) == partitions:
                    self._ends(topic)
                    return
            time.sleep(_POLL_S)
        message = f"topic {topic} has no leaders for its {partitions} partitions"
        raise running.JobError(message)

    def _ends(
        self, topic: str, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> list[int]:
        return self._offsets(topic, OffsetSpec.latest(), isolation)  # type: ignore[no-untyped-call]

    def _offsets(
        self,
        topic: str,
        which: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> list[int]:
        partitions = [number for numbers in self.leaders(topic).values() for number in numbers]
        asked = {TopicPartition(topic, number): which for number in partitions}
        found = self._admin.list_offsets(asked, isolation_level=isolation)
        return [future.result().offset for future in found.values()]


class RoundTopics:
    """The topics that a cell's rounds write to, one for each number of partitions.

    They are replaced before a round if they are large, and have one record in each partition then.
    Before they are deleted, all written records must be there exactly once.
    """

    def __init__(self, topics: Topics, partitions: Collection[int]) -> None:
        self._topics = topics
        self._names = dict.fromkeys(sorted(partitions), "")
        self._made = ExitStack()
        self._records: dict[int, int] = {}
        self._bytes = _MOST_BYTES

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._made:
            if kind is None:
                self._check()

    def before_round(self) -> None:
        """Make topics with room for a round.

        Raise JobError if the full ones lack records, or have duplicates.
        """
        if self._bytes < _MOST_BYTES:
            return
        with self._made:
            self._check()
        time.sleep(_REMOVAL_S)
        self._bytes = 0
        for partitions in self._names:
            name = self._made.enter_context(self._topics.made(partitions))
            self._topics.begin(name, partitions)
            self._names[partitions], self._records[partitions] = name, partitions

    def name(self, partitions: int, records: int, log_bytes: int) -> str:
        """Return the topic with this number of partitions, and count what will be written to it."""
        self._records[partitions] += records
        self._bytes += log_bytes
        return self._names[partitions]

    def _check(self) -> None:
        for partitions, expected in self._records.items():
            if (found := self._topics.records(self._names[partitions])) != expected:
                message = (
                    f"the topic of {partitions} partitions has {found:,} records where its rounds "
                    f"wrote {expected:,}: a contender lost rows or wrote some twice"
                )
                raise running.JobError(message)
