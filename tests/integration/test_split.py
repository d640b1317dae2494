"""Batches larger than their topic allows are split; every row is written once, and flush waits."""

from __future__ import annotations

import itertools
import random

import pyarrow as pa
import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import (
    Record,
    create_topic,
    read_with_confluent,
    read_with_kafka_python,
    wait_for_transactions,
)

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import RecordTooLargeException

pytestmark = pytest.mark.kafka

_numbers = itertools.count()
LIMIT = 10_000


@pytest.fixture
def narrow_topic(kafka: KafkaCluster) -> str:
    """A topic whose batches may have 10,000 bytes."""
    topic = f"narrow-{next(_numbers)}"
    create_topic(kafka.bootstrap, topic, 2, {"max.message.bytes": str(LIMIT)})
    return topic


def noise(row: int) -> bytes:
    """Return 3,000 bytes that no codec can compress much."""
    return random.Random(row).randbytes(3000)


def batch(rows: int) -> pa.RecordBatch:
    """Make rows with everything a record can have."""
    headers = [[("row", str(n).encode()), ("null", None)] if n % 3 else None for n in range(rows)]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.record_batch(
        {
            "key": pa.array([f"key-{n}" if n % 4 else None for n in range(rows)]),
            "value": pa.array([noise(n) for n in range(rows)], pa.binary()),
            "headers": pa.array(headers, kind),
            "timestamp": pa.array([1_700_000_000_000 + 1000 * n for n in range(rows)], pa.int64()),
            "partition": pa.array([n % 2 for n in range(rows)], pa.int32()),
        }
    )


def check(found: list[Record], rows: int) -> None:
    """Assert that every row is there once, complete and in order."""
    for partition in (0, 1):
        numbers = range(partition, rows, 2)
        records = [record for record in found if record.partition == partition]
        assert [record.offset for record in records] == list(range(len(numbers)))
        for record, n in zip(records, numbers, strict=True):
            assert record.key == (f"key-{n}".encode() if n % 4 else None)
            assert record.value == noise(n)
            assert record.headers == ((("row", str(n).encode()), ("null", None)) if n % 3 else ())
            assert record.timestamp_ms == 1_700_000_000_000 + 1000 * n


CASES = [
    ("none", "idempotent"),
    ("none", "plain"),
    ("gzip", "plain"),
    ("snappy", "idempotent"),
    ("lz4", "transactional"),
    ("zstd", "idempotent"),
]
# A batch is split before its codec and its kind of sequences matter; each was seen above.
_PAIRS = pytest.mark.long(reason="other pairs of the same codecs and kinds of producer")
LONG_CASES = [
    pytest.param(*case, marks=_PAIRS)
    for case in itertools.product(
        ["none", "gzip", "snappy", "lz4", "zstd"], ["idempotent", "plain"]
    )
    if case not in CASES
]


@pytest.mark.parametrize(("codec", "kind"), [*CASES, *LONG_CASES])
def test_every_row_is_written_by_smaller_batches(
    kafka: KafkaCluster, narrow_topic: str, codec: str, kind: str
) -> None:
    """The JVM sink of today loses all of them and reports success (KAFKA-19479)."""
    transactional = kind == "transactional"
    config = {
        "bootstrap.servers": kafka.bootstrap,
        "batch.size": 1_000_000,
        "compression.type": codec,
        "enable.idempotence": kind != "plain",
        # Without sequences, order needs one request at a time.
        "max.in.flight.requests.per.connection": 1 if kind == "plain" else 5,
    }
    config |= {"transactional.id": narrow_topic} if transactional else {}
    with KafkaProducer(config) as producer:
        if transactional:
            producer.init_transactions()
            producer.begin_transaction()
        for start in (0, 100):
            producer.append(narrow_topic, batch(200).slice(start, 100))
            producer.flush()
        if transactional:
            assert read_with_confluent(kafka.bootstrap, narrow_topic) == []
            producer.commit_transaction()
            wait_for_transactions(kafka.bootstrap, narrow_topic)
        splits = [v for name, v in producer.metrics().items() if name.name == "batch-split-total"]
        assert splits[0] > 0
        deliveries = producer._state.take_deliveries()
        assert sum(delivery.records for delivery in deliveries.values()) == 200
        accumulator = producer._state.accumulator
        assert accumulator.pool.available_bytes == accumulator.pool.total_bytes
    check(read_with_confluent(kafka.bootstrap, narrow_topic), 200)
    check(read_with_kafka_python(kafka.bootstrap, narrow_topic), 200)


def test_rows_that_were_sent_one_by_one_learn_their_offsets(
    kafka: KafkaCluster, narrow_topic: str
) -> None:
    config = {"bootstrap.servers": kafka.bootstrap, "batch.size": 500_000, "linger.ms": 60_000}
    offsets: list[int] = []
    with KafkaProducer(config) as producer:
        futures = [
            producer.send(
                narrow_topic,
                noise(n),
                partition=n % 2,
                on_delivery=lambda metadata, error: offsets.append(metadata.offset),
            )
            for n in range(100)
        ]
        producer.flush()
        assert all(future.done() for future in futures)
    places = [(future.result().partition, future.result().offset) for future in futures]
    assert places == [(n % 2, n // 2) for n in range(100)]
    assert sorted(offsets) == sorted(n // 2 for n in range(100))
    found = {
        (r.partition, r.offset): r.value for r in read_with_confluent(kafka.bootstrap, narrow_topic)
    }
    assert found == {place: noise(n) for n, place in enumerate(places)}


def test_later_batches_of_the_topic_are_small_enough_at_once(
    kafka: KafkaCluster, narrow_topic: str
) -> None:
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap, "batch.size": 100_000}) as producer:
        producer.append(narrow_topic, batch(100))
        producer.flush()
        full_bytes = producer._state.accumulator.full_bytes(narrow_topic)
    assert full_bytes < LIMIT


def test_a_limit_that_is_known_is_kept_from_the_first_batch_on(
    kafka: KafkaCluster, narrow_topic: str, new_topic: NewTopic
) -> None:
    wide = new_topic(1)
    large = pa.record_batch({"topic": [wide, narrow_topic], "value": ["x" * 20_000] * 2})
    config = {"bootstrap.servers": kafka.bootstrap, "batch.size": 100_000}
    with KafkaProducer(config) as producer:
        producer._columns.limit_messages({narrow_topic: LIMIT}, None)
        producer.append(narrow_topic, batch(100))
        producer.flush()
        splits = [v for name, v in producer.metrics().items() if name.name == "batch-split-total"]
        assert splits == [0]
        with pytest.raises(
            RecordTooLargeException,
            match=rf"^row 1 .* than topic {narrow_topic} takes "
            r"\(max\.message\.bytes=10000, while max\.request\.size=1048576\)",
        ):
            producer.append(None, large)
        producer.append(None, large.slice(0, 1))
    check(read_with_confluent(kafka.bootstrap, narrow_topic), 100)
    assert [r.value for r in read_with_confluent(kafka.bootstrap, wide)] == [b"x" * 20_000]


def test_a_record_that_no_batch_can_hold_is_an_error_and_the_others_are_written(
    kafka: KafkaCluster, narrow_topic: str
) -> None:
    values = [b"a" * 100, b"b" * 20_000, b"c" * 100]
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap}) as producer:
        producer.append(
            narrow_topic,
            pa.record_batch({"value": values, "partition": pa.array([0, 0, 0], pa.int32())}),
        )
        with pytest.raises(
            RecordTooLargeException,
            match=r"the record is 20\d\d\d bytes .*; make .*; MESSAGE_TOO_LARGE",
        ):
            producer.flush()
    found = [record.value for record in read_with_confluent(kafka.bootstrap, narrow_topic)]
    assert found == [b"a" * 100, b"c" * 100]
