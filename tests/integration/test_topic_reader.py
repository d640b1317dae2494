"""TopicReader returns the same rows as kafka-python and librdkafka, of topics of any producer."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import (
    READERS,
    Record,
    create_topic,
    read_with_confluent,
    read_with_kafka_python,
)

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.consumer.reading import SCHEMA
from spark_kafka_sink.consumer.topic_reader import TopicReader
from spark_kafka_sink.errors import (
    ConfigException,
    OffsetOutOfRangeException,
    TimeoutException,
    UnknownTopicOrPartitionException,
)
from spark_kafka_sink.wire.messages import ApiVersionsResponse
from spark_kafka_sink.wire.versions import NodeApiVersions

pytestmark = pytest.mark.kafka

OLD_CODECS = ["none", "gzip", "snappy", "lz4"]
CODECS = [*OLD_CODECS, "zstd"]


@pytest.fixture(params=["kafka", "old_kafka"])
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    """The newest Kafka, and the last Kafka 3."""
    found: KafkaCluster = request.getfixturevalue(request.param)
    return found


def new_topic_on(
    cluster: KafkaCluster, partitions: int = 1, config: dict[str, str] | None = None
) -> str:
    """Make a topic of its own for a test."""
    name = f"read-{random.SystemRandom().getrandbits(48):012x}"
    create_topic(cluster.bootstrap, name, partitions, config)
    return name


def rows_of(batches: Iterator[pa.RecordBatch], topic: str) -> list[Record]:
    """Return batches as records; offsets must ascend within each partition."""
    records: list[Record] = []
    for batch in batches:
        assert batch.schema == SCHEMA
        assert batch.num_rows > 0
        batch.validate(full=True)
        timestamps = batch.column("timestamp").cast(pa.int64())
        rows = batch.drop_columns("timestamp").append_column("ms", timestamps).to_pylist()
        for row in rows:
            assert row["topic"] == topic
            headers = tuple((each["key"], each["value"]) for each in row["headers"])
            ms = -1 if row["ms"] is None else row["ms"]
            records.append(
                Record(row["partition"], row["offset"], ms, row["key"], row["value"], headers)
            )
    for partition in {record.partition for record in records}:
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == sorted(set(offsets))
    return records


def read(cluster: KafkaCluster, topic: str, **how: Any) -> list[Record]:  # noqa: ANN401 - for TopicReader.read
    """Read a topic by the TopicReader."""
    with TopicReader({"bootstrap.servers": cluster.bootstrap}) as reader:
        return rows_of(reader.read(topic, **how), topic)


def confluent_producer(cluster: KafkaCluster, **config: str | int) -> confluent_kafka.Producer:
    """Make a producer that shares no code with ours."""
    settings = {name.replace("_", "."): value for name, value in config.items()}
    return confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, **settings})


def produce_some(producer: confluent_kafka.Producer, topic: str, count: int, seed: int) -> None:
    """Produce records of all kinds to three partitions."""
    rng = random.Random(seed)
    for n in range(count):
        key = rng.choice([None, b"", f"key {n}".encode()])
        value = rng.choice([None, b"", rng.randbytes(20), b"v" * rng.randrange(3000)])
        headers: list[tuple[str, str | bytes | None]] = [
            (rng.choice(["", "h", "grüße"]), rng.choice([None, b"", b"x" * rng.randrange(200)]))
            for _ in range(rng.choice([0, 0, 1, 3]))
        ]
        timestamp = 1_700_000_000_000 + rng.randrange(10_000)
        producer.produce(topic, value, key, partition=n % 3, timestamp=timestamp, headers=headers)
        producer.poll(0)
    producer.flush()


def test_what_librdkafka_wrote_is_read_as_others_read_it(cluster: KafkaCluster) -> None:
    topic = new_topic_on(cluster, 3)
    for seed, compression in enumerate(CODECS):
        producer = confluent_producer(cluster, compression_type=compression, linger_ms=20)
        produce_some(producer, topic, 600, seed)
    ours = sorted(read(cluster, topic))
    assert len(ours) == 600 * len(CODECS)
    for other in READERS.values():
        assert sorted(other(cluster.bootstrap, topic), key=_place) == sorted(ours, key=_place)


def _place(record: Record) -> tuple[int, int]:
    return record.partition, record.offset


def test_what_our_producer_wrote_is_read_back(cluster: KafkaCluster) -> None:
    topic = new_topic_on(cluster, 3)
    headers_type = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    count = 2000
    table = pa.record_batch(
        {
            "key": pa.array([None if n % 3 else f"k{n}" for n in range(count)]),
            "value": pa.array([None if n % 11 == 0 else f"v{n}" * (n % 40) for n in range(count)]),
            "headers": pa.array(
                [[{"key": f"h{i}", "value": b"x" * i} for i in range(n % 3)] for n in range(count)],
                headers_type,
            ),
        }
    )
    for compression in CODECS:
        config = {
            "bootstrap.servers": cluster.bootstrap,
            "compression.type": compression,
            "batch.size": 20_000,
        }
        with KafkaProducer(config) as producer:
            producer.append(topic, table)
    # Fetches of a batch or two: the reading takes many of them.
    small = {"bootstrap.servers": cluster.bootstrap, "max.partition.fetch.bytes": 30_000}
    with TopicReader(small) as reader:
        ours = rows_of(reader.read(topic), topic)
    theirs = read_with_kafka_python(cluster.bootstrap, topic)
    assert sorted(ours, key=_place) == sorted(theirs, key=_place)
    assert len(ours) == count * len(CODECS)


def test_log_append_time_is_the_timestamp_where_a_topic_has_it(cluster: KafkaCluster) -> None:
    topic = new_topic_on(cluster, 3, {"message.timestamp.type": "LogAppendTime"})
    produce_some(confluent_producer(cluster, compression_type="lz4"), topic, 100, seed=1)
    ours = read(cluster, topic)
    assert min(record.timestamp_ms for record in ours) > 1_700_000_020_000
    theirs = read_with_confluent(cluster.bootstrap, topic)
    assert sorted(ours, key=_place) == sorted(theirs, key=_place)


def test_aborted_transactions_are_hidden_from_read_committed_and_marks_from_everyone(
    cluster: KafkaCluster,
) -> None:
    topic = new_topic_on(cluster, 3)
    plain = confluent_producer(cluster)
    producers = [
        confluent_producer(cluster, transactional_id=f"{topic}-{n}", compression_type=codec)
        for n, codec in enumerate(("none", "zstd"))
    ]
    for producer in producers:
        producer.init_transactions(30)
    committed: list[bytes] = []
    aborted: list[bytes] = []
    for round_number in range(6):
        # The two transactions lie one inside the other, with plain records between.
        for n, producer in enumerate(producers):
            producer.begin_transaction()
            ends_well = (round_number + n) % 2 == 0
            for partition in range(3):
                value = f"{round_number}-{n}-{partition}".encode()
                (committed if ends_well else aborted).append(value)
                producer.produce(topic, value, partition=partition)
            producer.flush()
            value = f"plain {round_number}-{n}".encode()
            committed.append(value)
            plain.produce(topic, value, partition=round_number % 3)
            plain.flush()
        for n, producer in enumerate(producers):
            if (round_number + n) % 2 == 0:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)
    for n in range(len(producers)):
        # A successor is let in once the marks of the last transaction are written everywhere.
        confluent_producer(cluster, transactional_id=f"{topic}-{n}").init_transactions(30)
    visible = read(cluster, topic, isolation_level="read_committed")
    assert sorted(str(r.value) for r in visible) == sorted(map(str, committed))
    theirs = read_with_confluent(cluster.bootstrap, topic)
    assert sorted(visible, key=_place) == sorted(theirs, key=_place)
    everything = read(cluster, topic, isolation_level="read_uncommitted")
    assert sorted(str(r.value) for r in everything) == sorted(map(str, committed + aborted))
    theirs = read_with_kafka_python(cluster.bootstrap, topic)
    assert sorted(everything, key=_place) == sorted(theirs, key=_place)


def test_read_committed_ends_before_an_open_transaction(cluster: KafkaCluster) -> None:
    topic = new_topic_on(cluster)
    plain = confluent_producer(cluster)
    plain.produce(topic, b"before", partition=0)
    plain.flush()
    producer = confluent_producer(cluster, transactional_id=topic)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush()
    plain.produce(topic, b"behind", partition=0)
    plain.flush()
    committed = read(cluster, topic, isolation_level="read_committed")
    assert [record.value for record in committed] == [b"before"]
    # This start is above the last stable offset, but not above the log.
    assert read(cluster, topic, start={0: 2}, isolation_level="read_committed") == []
    everything = read(cluster, topic)
    assert [record.value for record in everything] == [b"before", b"open", b"behind"]
    producer.abort_transaction(30)


@pytest.mark.parametrize("produce_version", [0, 1, 2])
def test_what_our_producer_wrote_in_the_old_formats_is_read_back(
    old_kafka: KafkaCluster, produce_version: int
) -> None:
    def of(response: ApiVersionsResponse) -> NodeApiVersions:
        ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        return NodeApiVersions({**ranges, 0: (0, produce_version)})

    topic = new_topic_on(old_kafka, 2)
    values = [f"value {n}" for n in range(500)]
    partitions = [n % 2 for n in range(500)]
    table = pa.record_batch(
        {"value": pa.array(values), "partition": pa.array(partitions, pa.int32())}
    )
    for compression in OLD_CODECS:
        config = {
            "bootstrap.servers": old_kafka.bootstrap,
            "compression.type": compression,
            "enable.idempotence": False,
            "batch.size": 2000,
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(NodeApiVersions, "of", of)
            with KafkaProducer(config) as producer:
                producer.append(topic, table)
    ours = sorted(read(old_kafka, topic), key=_place)
    assert ours == sorted(read_with_kafka_python(old_kafka.bootstrap, topic), key=_place)
    odd = [value.encode() for value in values[1::2]] * len(OLD_CODECS)
    assert [r.value for r in ours if r.partition == 1] == odd
    assert {record.timestamp_ms == -1 for record in ours} == {produce_version < 2}


def _numbered(cluster: KafkaCluster, topic: str, count: int, partition: int = 0) -> None:
    # Idempotent, so that retries do not change the order.
    producer = confluent_producer(
        cluster, batch_num_messages=10, linger_ms=1000, enable_idempotence="true"
    )
    for n in range(count):
        producer.produce(topic, b"%d" % n, partition=partition)
    producer.flush()


def test_a_reading_begins_and_ends_where_it_was_told_to_even_inside_a_batch(
    cluster: KafkaCluster,
) -> None:
    topic = new_topic_on(cluster, 3)
    for partition in range(3):
        _numbered(cluster, topic, 100, partition)

    def offsets(**how: Any) -> dict[int, list[int]]:  # noqa: ANN401 - as above
        found: dict[int, list[int]] = {}
        for record in read(cluster, topic, **how):
            assert record.value == b"%d" % record.offset
            found.setdefault(record.partition, []).append(record.offset)
        return dict(sorted(found.items()))

    every_offset = list(range(100))
    assert offsets() == {0: every_offset, 1: every_offset, 2: every_offset}
    assert offsets(partitions=[2]) == {2: every_offset}
    assert offsets(partitions=[]) == {}
    assert offsets(start={0: 7, 2: 95}) == {0: every_offset[7:], 2: every_offset[95:]}
    assert offsets(start={1: 13}, end={1: 27}) == {1: every_offset[13:27]}
    assert offsets(start={1: 13, 0: 1}, end={1: 14, 0: 1}) == {1: [13]}
    assert offsets(end={0: 5, 1: 0, 2: 30}) == {0: every_offset[:5], 2: every_offset[:30]}
    assert offsets(start="latest") == {}
    assert offsets(start={0: 50}, end={0: 20}) == {}
    with pytest.raises(ConfigException, match=r"the partitions 0 to 2, not 3$"):
        offsets(partitions=[0, 3])
    with pytest.raises(ConfigException, match=r"no offset is given for .*: 1$"):
        offsets(partitions=[0, 1], start={0: 1})


def test_an_empty_topic_gives_nothing(cluster: KafkaCluster) -> None:
    assert read(cluster, new_topic_on(cluster, 3)) == []


def test_one_reader_reads_several_topics_and_after_a_reading_that_was_left(
    cluster: KafkaCluster,
) -> None:
    topics = [new_topic_on(cluster) for _ in range(2)]
    for topic in topics:
        _numbered(cluster, topic, 200)
    config = {"bootstrap.servers": cluster.bootstrap, "max.partition.fetch.bytes": 500}
    with TopicReader(config) as reader:
        left = reader.read(topics[0])
        next(left)
        for topic in (*topics, topics[0]):
            assert len(rows_of(reader.read(topic), topic)) == 200
        # The first reader, where it stopped.
        assert len(rows_of(left, topics[0])) < 200


def _delete_before(cluster: KafkaCluster, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    until = confluent_kafka.TopicPartition(topic, 0, offset)
    for future in admin.delete_records([until]).values():
        future.result()


def test_records_that_were_deleted_are_an_error_or_for_earliest_a_warning(
    cluster: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic_on(cluster)
    _numbered(cluster, topic, 1000)
    config = {"bootstrap.servers": cluster.bootstrap, "max.partition.fetch.bytes": 500}
    with TopicReader(config) as reader:
        batches = reader.read(topic)
        first = next(batches)
        _delete_before(cluster, topic, 900)
        rest = rows_of(batches, topic)
    offsets = [*first.column("offset").to_pylist(), *(record.offset for record in rest)]
    assert offsets[-100:] == list(range(900, 1000))
    assert len(offsets) < 1000
    gap = next(a for a, b in itertools.pairwise(offsets) if b != a + 1)
    assert f"the records at offsets {gap + 1} to 899 were deleted" in caplog.text
    with pytest.raises(OffsetOutOfRangeException, match="has the offsets 900 to 999") as refused:
        read(cluster, topic, start={0: 5})
    assert (refused.value.topic, refused.value.partition, refused.value.code) == (topic, 0, 1)
    with pytest.raises(OffsetOutOfRangeException, match="cannot be read from offset 2000"):
        read(cluster, topic, start={0: 2000}, end={0: 2001})
    for level in ("read_uncommitted", "read_committed"):
        with pytest.raises(OffsetOutOfRangeException, match="cannot be read from offset 1001"):
            read(cluster, topic, start={0: 1001}, isolation_level=level)
        assert read(cluster, topic, start={0: 1000}, isolation_level=level) == []
    assert len(read(cluster, topic)) == 100


def test_a_topic_that_is_not_there_is_named_and_not_made(cluster: KafkaCluster) -> None:
    config = {"bootstrap.servers": cluster.bootstrap, "default.api.timeout.ms": 3000}
    with (
        TopicReader(config) as reader,
        pytest.raises(UnknownTopicOrPartitionException, match="topic never-there"),
    ):
        next(reader.read("never-there"))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    assert "never-there" not in admin.list_topics(timeout=10).topics


def test_an_end_that_does_not_come_is_a_timeout_that_says_where_it_stands(
    cluster: KafkaCluster,
) -> None:
    topic = new_topic_on(cluster)
    _numbered(cluster, topic, 3)
    config = {"bootstrap.servers": cluster.bootstrap, "default.api.timeout.ms": 4000}
    with TopicReader(config) as reader:
        batches = reader.read(topic, end={0: 5})
        assert sum(len(next(batches)) for _ in range(1)) == 3
        with pytest.raises(TimeoutException, match=rf"{topic}-0 at offset 3 of 5"):
            next(batches)


def test_brokers_that_never_answer_are_a_timeout_that_names_them() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        config = {"bootstrap.servers": address, "default.api.timeout.ms": 300}
        with (
            TopicReader(config) as reader,
            pytest.raises(
                TimeoutException, match=r"no broker has answered within .*timeout\.ms=300; check"
            ),
        ):
            next(reader.read("t"))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"start": "newest"}, "start is 'newest'"),
        ({"end": "never"}, "end is 'never'"),
        ({"isolation_level": "serializable"}, "isolation_level is 'serializable'"),
    ],
)
def test_arguments_of_no_meaning_are_refused_at_once(how: dict[str, Any], message: str) -> None:
    with (
        TopicReader({"bootstrap.servers": "127.0.0.1:1"}) as reader,
        pytest.raises(ConfigException, match=message),
    ):
        reader.read("t", **how)
