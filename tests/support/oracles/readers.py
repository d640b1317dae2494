"""Read topics with clients that share no code with ours: kafka-python and confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import confluent_kafka
from confluent_kafka import IsolationLevel, KafkaError
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

_IDLE_S = 30
_POLL_S = 0.02
# More than any test or measurement reads.
_TOPIC_BYTES = 4 << 30
_PARTITION_BYTES = 256 << 20


class Record(NamedTuple):
    """One record as a consumer sees it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def create_topic(
    bootstrap: str,
    topic: str,
    partitions: int,
    config: dict[str, str] | None = None,
    replicas: int = -1,
) -> None:
    """Create a topic and wait for its leaders; replicas: -1 for the brokers' default.

    Its size is limited unless `config` says otherwise, so that no topic fills up a disk.
    """
    create_topics(bootstrap, [topic], partitions, config, replicas)


def create_topics(
    bootstrap: str,
    topics: Sequence[str],
    partitions: int,
    config: dict[str, str] | None = None,
    replicas: int = -1,
) -> None:
    """Create topics and wait until their leaders are ready.

    The controller answers before that: requests sent at once might have to be sent again.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    config = few_bytes(partitions) | (config or {})
    new = [NewTopic(topic, partitions, replicas, config=config) for topic in topics]
    answers = admin.create_topics(new)
    for each in new:
        try:
            answers[each.topic].result()
        except confluent_kafka.KafkaException as error:
            # librdkafka drops a broker that is gone from the metadata, with its requests in flight.
            if error.args[0].code() != KafkaError._DESTROY_BROKER:
                raise
            _create_again(admin, each)
    _wait_for_leaders(bootstrap, topics, partitions)


def _create_again(admin: AdminClient, new: NewTopic) -> None:
    try:
        admin.create_topics([new])[new.topic].result()
    except confluent_kafka.KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def few_bytes(partitions: int) -> dict[str, str]:
    """Return topic settings that limit a topic to 4 GiB once the broker applies retention.

    A partition has four segments of at least 1 MiB each, so the limit holds up to 1,000 partitions.
    """
    kept = min(_PARTITION_BYTES, _TOPIC_BYTES // partitions)
    return {"retention.bytes": str(kept), "segment.bytes": str(kept // 4)}


def add_partitions(bootstrap: str, topic: str, partitions: int) -> None:
    """Increase the number of a topic's partitions; other nodes may know fewer for a while."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_partitions([NewPartitions(topic, partitions)]).values():
        future.result()
    _wait_for_leaders(bootstrap, [topic], partitions)


def _wait_for_leaders(bootstrap: str, topics: Sequence[str], partitions: int) -> None:
    waiting = [
        confluent_kafka.TopicPartition(topic, number)
        for topic in topics
        for number in range(partitions)
    ]
    deadline = time.monotonic() + _IDLE_S
    while waiting:
        # Another client each time: one that asked a node that was behind keeps what that said.
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        asked = admin.list_offsets(_latest(waiting))
        waiting = [partition for partition, future in asked.items() if future.exception()]
        if waiting and time.monotonic() > deadline:
            raise TimeoutError(f"nobody leads {waiting}")


def _latest(
    partitions: Sequence[confluent_kafka.TopicPartition],
) -> dict[confluent_kafka.TopicPartition, OffsetSpec]:
    return {each: OffsetSpec.latest() for each in partitions}  # type: ignore[no-untyped-call] # theirs


def delete_topics(bootstrap: str, topics: Sequence[str]) -> None:
    """Delete topics of a cluster of one node, and wait until the node has removed them."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.delete_topics(list(topics)).values():
        future.result()
    while set(topics) & set(admin.list_topics(timeout=30).topics):
        time.sleep(0.01)


def partition_count(bootstrap: str, topic: str) -> int:
    """Return the number of a topic's partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    return len(admin.list_topics(topic, timeout=30).topics[topic].partitions)


def read_with_confluent(bootstrap: str, topic: str, *, checksums: bool = True) -> list[Record]:
    """Read a topic to the end with librdkafka; records are in order within a partition.

    checksums: whether to check those of the batches.
    """
    return read_topics(bootstrap, [topic], checksums=checksums)[topic]


def wait_for_transactions(bootstrap: str, topic: str) -> None:
    """Wait until no open transaction has records in a topic.

    A commit is over for its producer when the coordinator has recorded it. Readers see it a little
    later, when the partitions have the markers.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=_IDLE_S).topics[topic].partitions
    latest = _latest([confluent_kafka.TopicPartition(topic, number) for number in partitions])
    deadline = time.monotonic() + _IDLE_S
    found: object = None
    while True:
        try:
            found = ends = [
                [future.result().offset for future in asked.values()]
                for asked in (
                    admin.list_offsets(latest, isolation_level=IsolationLevel.READ_COMMITTED),
                    admin.list_offsets(latest, isolation_level=IsolationLevel.READ_UNCOMMITTED),
                )
            ]
            if ends[0] == ends[1]:
                return
        except confluent_kafka.KafkaException as error:
            # This client sends a request once, even while a leader changes.
            found = error
        if time.monotonic() > deadline:
            raise TimeoutError(f"topic {topic} can be read up to, and ends at: {found}")


def committed_values(bootstrap: str, topic: str) -> list[str]:
    """Return the values of a topic, sorted, once no transaction is open there."""
    wait_for_transactions(bootstrap, topic)
    records = read_with_confluent(bootstrap, topic)
    return sorted(record.value.decode() for record in records if record.value is not None)


def read_topics(
    bootstrap: str, topics: Sequence[str], *, checksums: bool = True
) -> dict[str, list[Record]]:
    """Read topics to the end with librdkafka; records are in order within a partition."""
    deadline = time.monotonic() + _IDLE_S
    while True:
        try:
            return _read_topics(bootstrap, topics, checksums=checksums)
        except confluent_kafka.KafkaException as error:
            # A leader may learn of a topic later than the broker that was asked.
            code = error.args[0].code()
            is_late = code == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
            if not is_late or time.monotonic() > deadline:
                raise


def _read_topics(
    bootstrap: str, topics: Sequence[str], *, checksums: bool
) -> dict[str, list[Record]]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tests",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,  # for the end of a partition, which an empty response signals
            "check.crcs": checksums,
            "log_level": 0,
        }
    )
    try:
        # A request for one topic lets a broker that creates topics create it.
        known = consumer.list_topics(topics[0] if len(topics) == 1 else None, timeout=_IDLE_S)
        open_partitions = {
            (topic, partition) for topic in topics for partition in known.topics[topic].partitions
        }
        for each in open_partitions:
            _check_first_offset(*each, _first_offset(consumer, *each))
        beginning = confluent_kafka.OFFSET_BEGINNING
        consumer.assign(
            [confluent_kafka.TopicPartition(*each, beginning) for each in sorted(open_partitions)]
        )
        records: dict[str, list[Record]] = {topic: [] for topic in topics}
        idle = 0
        while open_partitions:
            # consume() waits for all the messages asked for, so the wait is short.
            messages = consumer.consume(10_000, timeout=_POLL_S)
            idle = 0 if messages else idle + 1
            if idle * _POLL_S > _IDLE_S:
                raise TimeoutError(f"partitions {open_partitions} gave no end")
            for message in messages:
                error, topic, partition = message.error(), message.topic(), message.partition()
                assert topic is not None
                assert partition is not None
                if error is None:
                    # Records after the end were written later, while others are still read.
                    if (topic, partition) in open_partitions:
                        records[topic].append(_from_confluent(message))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    open_partitions.discard((topic, partition))
                else:
                    raise confluent_kafka.KafkaException(error)
        return records
    finally:
        consumer.close()


def _first_offset(consumer: confluent_kafka.Consumer, topic: str, partition: int) -> int:
    """Return the first offset of a partition. The client asks once, even while a leader changes."""
    of = confluent_kafka.TopicPartition(topic, partition)
    deadline = time.monotonic() + _IDLE_S
    while True:
        try:
            first: int = consumer.get_watermark_offsets(of, _IDLE_S)[0]
        except confluent_kafka.KafkaException:
            if time.monotonic() > deadline:
                raise
        else:
            return first


def _check_first_offset(topic: str, partition: int, first: int) -> None:
    """Fail if the broker has deleted records, because a check of them is impossible then."""
    assert first == 0, f"partition {partition} of {topic} begins at offset {first}"


def read_at_least(bootstrap: str, topic: str, count: int) -> list[Record]:
    """Read a topic until it has `count` records.

    Records that only the leader has (acks=1), or that a frozen broker has missed, are visible once
    the replicas have caught up. A task may still be starting its Python, too.
    """
    deadline = time.monotonic() + 4 * _IDLE_S
    while True:
        records = read_with_confluent(bootstrap, topic)
        if len(records) >= count or time.monotonic() > deadline:
            return records


def _from_confluent(message: confluent_kafka.Message) -> Record:
    partition, offset, headers = message.partition(), message.offset(), message.headers()
    assert partition is not None
    assert offset is not None
    return Record(
        partition,
        offset,
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple(headers or ()),  # type: ignore[arg-type]  # librdkafka gives pairs of str and bytes
    )


def read_with_kafka_python(bootstrap: str, topic: str) -> list[Record]:
    """Read a topic to the end with kafka-python; records are in order within a partition."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        check_crcs=True,
        max_poll_records=20_000,
        fetch_max_bytes=64 * 1024 * 1024,
        max_partition_fetch_bytes=8 * 1024 * 1024,
    )
    try:
        numbers = consumer.partitions_for_topic(topic)
        partitions = [PythonTopicPartition(topic, number) for number in numbers or ()]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        for partition, first in consumer.beginning_offsets(partitions).items():
            _check_first_offset(partition.topic, partition.partition, first)
        ends = consumer.end_offsets(partitions)
        records: list[Record] = []
        idle = 0
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            polled = consumer.poll(timeout_ms=1000)
            idle = 0 if polled else idle + 1
            if idle > _IDLE_S:
                raise TimeoutError(f"{topic} gave nothing for {_IDLE_S} s")
            for messages in polled.values():
                records.extend(
                    Record(m.partition, m.offset, m.timestamp, m.key, m.value, tuple(m.headers))
                    for m in messages
                )
        return records
    finally:
        consumer.close()


READERS: dict[str, Callable[[str, str], list[Record]]] = {
    "confluent-kafka": read_with_confluent,
    "kafka-python": read_with_kafka_python,
}
