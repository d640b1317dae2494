"""Produce to brokers before 0.11: to Kafka 0.10 itself, and to a 3.9 that still supports it.

The 3.9 pretends to support only the versions of older brokers, so that message sets v0 are tested,
too. Other clients read what was written.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pytest
from conftest import NewTopic, need_kafka
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructType
from support.brokers import fetch_kafka
from support.brokers.kafka_0_10 import OldBroker
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent, read_with_kafka_python

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import (
    KafkaException,
    UnsupportedCompressionTypeException,
    UnsupportedForMessageFormatException,
    UnsupportedVersionException,
)
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.report import SinkCommitMessage
from spark_kafka_sink.wire.messages import ApiVersionsResponse
from spark_kafka_sink.wire.versions import NodeApiVersions

pytestmark = pytest.mark.kafka

PRODUCE_KEY, METADATA_KEY, INIT_KEY = 0, 3, 22
# What brokers of a version spoke: Produce and Metadata; none of them knew producer ids.
SPOKEN: Final = {"0.9 (v0)": (0, 1), "0.9": (1, 1), "0.10": (2, 2)}
ROWS: Final = 2000


CODECS: Final = ("none", "gzip", "snappy", "lz4")


@pytest.fixture(scope="module")
def kafka_0_10(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldBroker]:
    """A broker of the version itself."""
    need_kafka(fetch_kafka.missing(fetch_kafka.OLDEST))
    broker = OldBroker(
        fetch_kafka.libs(fetch_kafka.OLDEST), tmp_path_factory.mktemp("old") / "broker"
    )
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.fixture(params=SPOKEN)
def old_version(request: pytest.FixtureRequest) -> str:
    """A version of Kafka before 0.11."""
    return str(request.param)


@pytest.fixture
def as_if_old(old_version: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Make brokers pretend to be older; return the Produce version."""
    produce, metadata = SPOKEN[old_version]

    def of(response: ApiVersionsResponse) -> NodeApiVersions:
        ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        assert ranges[PRODUCE_KEY][0] == 0, "this Kafka takes no message sets any more"
        del ranges[INIT_KEY]
        return NodeApiVersions({**ranges, PRODUCE_KEY: (0, produce), METADATA_KEY: (0, metadata)})

    monkeypatch.setattr(NodeApiVersions, "of", of)
    return produce


def rows() -> pa.RecordBatch:
    """Rows with null and empty keys and values, and timestamps."""
    return pa.record_batch(
        {
            "key": pa.array([None if n % 5 == 0 else f"key {n}" for n in range(ROWS)]),
            "value": pa.array([None if n % 7 == 0 else f"v{n}" * (n % 30) for n in range(ROWS)]),
            "timestamp": pa.array(range(1_700_000_000_000, 1_700_000_000_000 + ROWS)).cast(
                pa.timestamp("ms")
            ),
            "partition": pa.array([n % 3 for n in range(ROWS)], pa.int32()),
        }
    )


def check_is_read_back(bootstrap: str, topic: str, compression: str, *, timed: bool) -> None:
    """Write `rows` to a topic of three partitions; every client must read them as they were."""
    config = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": False,
        "max.in.flight.requests.per.connection": 1,  # retries do not change the order
        "compression.type": compression,
        "batch.size": 5000,
    }
    with KafkaProducer(config) as producer:
        producer.append(topic, rows())
        producer.flush()
        deliveries = producer._state.take_deliveries()
    assert sum(delivery.records for delivery in deliveries.values()) == ROWS
    assert all(delivery.batches > 1 for delivery in deliveries.values())
    expected: dict[int, list[object]] = {0: [], 1: [], 2: []}
    for row in rows().to_pylist():
        values = [None if row[name] is None else row[name].encode() for name in ("key", "value")]
        part = expected[row["partition"]]
        part.append((len(part), _ms(row["timestamp"]) if timed else -1, *values))
    for read in (read_with_confluent, read_with_kafka_python):
        found: dict[int, list[object]] = {0: [], 1: [], 2: []}
        for record in read(bootstrap, topic):
            assert record.headers == ()
            found[record.partition].append(
                (record.offset, record.timestamp_ms, record.key, record.value)
            )
        assert found == expected


def _ms(timestamp: datetime) -> int:
    return (timestamp - datetime(1970, 1, 1)) // timedelta(milliseconds=1)  # noqa: DTZ001 - Arrow's have no zone either


# Versions 0 and 1 of Produce have the same format; they differ in the response.
@pytest.mark.parametrize(
    ("old_version", "compression"),
    [*itertools.product(("0.9 (v0)", "0.10"), CODECS), ("0.9", "lz4")],
    indirect=["old_version"],
)
def test_rows_are_read_back_as_they_were(
    old_kafka: KafkaCluster, new_old_topic: NewTopic, as_if_old: int, compression: str
) -> None:
    # Format v0 has no timestamps: the broker keeps -1.
    topic = new_old_topic(3)
    check_is_read_back(old_kafka.bootstrap, topic, compression, timed=as_if_old == 2)


@pytest.mark.parametrize("compression", CODECS)
def test_kafka_0_10_keeps_rows_as_they_were(kafka_0_10: OldBroker, compression: str) -> None:
    topic = f"topic-{compression}"
    kafka_0_10.create_topic(topic, 3)
    check_is_read_back(kafka_0_10.bootstrap, topic, compression, timed=True)


def test_kafka_0_10_knows_no_producer_ids_and_the_error_says_what_to_set(
    kafka_0_10: OldBroker,
) -> None:
    kafka_0_10.create_topic("no-ids", 1)
    plain = pa.record_batch({"value": pa.array(["x"])})
    error = _fails(kafka_0_10.bootstrap, "no-ids", plain, {})
    assert isinstance(error, UnsupportedVersionException)
    assert "; enable.idempotence=false" in str(error)


def test_the_driver_says_of_kafka_0_10_what_tasks_would_have_met(kafka_0_10: OldBroker) -> None:
    kafka_0_10.create_topic("planned", 1)
    plain = StructType().add("value", StringType())
    header = StructType().add("key", StringType()).add("value", BinaryType())
    with_headers = StructType([*plain.fields]).add("headers", ArrayType(header))
    options = {"kafka.bootstrap.servers": kafka_0_10.bootstrap, "topic": "planned"}
    with pytest.raises(UnsupportedVersionException, match=r"; kafka\.enable\.idempotence=false"):
        KafkaDataSource(options).writer(plain, overwrite=False)
    options["kafka.enable.idempotence"] = "false"
    with pytest.raises(UnsupportedForMessageFormatException, match="remove the headers column"):
        KafkaDataSource(options).writer(with_headers, overwrite=False)
    zstd = options | {"kafka.compression.type": "zstd"}
    with pytest.raises(UnsupportedCompressionTypeException, match="has no zstd; choose another k"):
        KafkaDataSource(zstd).writer(plain, overwrite=False)
    letters = options | {"onError": "deadLetter", "deadLetterTopic": "planned-letters"}
    kafka_0_10.create_topic("planned-letters", 1)
    with pytest.raises(UnsupportedForMessageFormatException, match="set deadLetterPath instead"):
        KafkaDataSource(letters).writer(plain, overwrite=False)
    writer = KafkaDataSource(options).writer(plain, overwrite=False)
    message = writer.write(iter([pa.record_batch({"value": ["x"]})]))
    assert isinstance(message, SinkCommitMessage)
    assert message.report.rows == 1
    found = read_with_confluent(kafka_0_10.bootstrap, "planned")
    assert [record.value for record in found] == [b"x"]


@pytest.mark.parametrize("old_version", ["0.10"], indirect=True)
def test_acks_0_and_1_are_told_by_old_versions_too(
    old_kafka: KafkaCluster, new_old_topic: NewTopic, as_if_old: int
) -> None:
    topic = new_old_topic(1)
    for acks in ("0", "1"):
        config = {"bootstrap.servers": old_kafka.bootstrap, "acks": acks}
        with KafkaProducer(config) as producer:
            producer.append(topic, pa.record_batch({"value": pa.array([acks])}))
    assert {r.value for r in read_with_confluent(old_kafka.bootstrap, topic)} == {b"0", b"1"}


def _fails(
    bootstrap: str, topic: str, batch: pa.RecordBatch, config: dict[str, object]
) -> KafkaException:
    producer = KafkaProducer({"bootstrap.servers": bootstrap, **config})
    try:
        producer.append(topic, batch)
        with pytest.raises(KafkaException) as refused:
            producer.flush()
        return refused.value
    finally:
        producer.close(0)


def test_what_an_old_broker_cannot_hold_fails_with_a_sentence_and_nothing_is_written(
    old_kafka: KafkaCluster, new_old_topic: NewTopic, as_if_old: int
) -> None:
    topic = new_old_topic(1)
    plain = pa.record_batch({"value": pa.array(["x"])})
    headers = pa.array(
        [[{"key": "h", "value": b"x"}]],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    with_headers = pa.record_batch({"value": pa.array(["x"]), "headers": headers})
    no_ids: dict[str, object] = {"enable.idempotence": False}
    error = _fails(old_kafka.bootstrap, topic, with_headers, no_ids)
    assert isinstance(error, UnsupportedForMessageFormatException)
    assert "remove the headers column" in str(error)
    zstd: dict[str, object] = {**no_ids, "compression.type": "zstd"}
    error = _fails(old_kafka.bootstrap, topic, plain, zstd)
    assert isinstance(error, UnsupportedCompressionTypeException)
    assert "has no zstd; choose another compression.type" in str(error)
    error = _fails(old_kafka.bootstrap, topic, plain, {})
    assert isinstance(error, UnsupportedVersionException)
    assert "; enable.idempotence=false" in str(error)
    assert read_with_confluent(old_kafka.bootstrap, topic) == []
