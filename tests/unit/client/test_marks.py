"""Kafka's and the sink's special values for "none" (-1, -2) are not valid input.

A caller that passes one as a partition, timestamp or offset gets an error; only null or None mean
none.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from support.pure.idle_producer import idle_producer
from support.pure.pure_producer import TOPIC

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.consumer.topic_reader import TopicReader
from spark_kafka_sink.errors import (
    ConfigException,
    DataException,
    IllegalArgumentException,
    KafkaException,
)
from spark_kafka_sink.model import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerRecord,
    TopicPartition,
)
from spark_kafka_sink.plugins.batch_partitioner import own_partitions

REFUSALS = (ConfigException, DataException, IllegalArgumentException)
MARKS = (-1, -2)
A_WHILE_S = 20


def always(chosen: int) -> Callable[[str, pa.RecordBatch, int], list[int]]:
    """Return a partitioner that chooses one partition for every row."""
    return lambda _, batch, __: [chosen] * batch.num_rows


def minus_one(_: str, batch: pa.RecordBatch, __: int) -> list[int | None]:
    """Choose -1 for the last of the rows and nothing for the others."""
    return [*[None] * (batch.num_rows - 1), -1]


def column(name: str, mark: int) -> pa.RecordBatch:
    """Return three rows, of which the second has the mark and the third null."""
    kind = pa.int32() if name == "partition" else pa.int64()
    return pa.record_batch({"value": ["a", "b", "c"], name: pa.array([0, mark, None], kind)})


def read(**limits: object) -> None:
    """Ask for the records of a topic between offsets, or of partitions."""
    with TopicReader({"bootstrap.servers": "127.0.0.1:1"}) as reader:
        reader.read(TOPIC, **limits)  # type: ignore[arg-type] # what each test gives


def commit_offset(producer: KafkaProducer, mark: int) -> None:
    """Commit the offset of a group."""
    offsets = {TopicPartition(TOPIC, 0): OffsetAndMetadata(mark)}
    producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata("g"))


GIVEN: dict[str, Callable[[int], object]] = {
    "partition of a record": lambda mark: ProducerRecord(TOPIC, partition=mark),
    "timestamp of a record": lambda mark: ProducerRecord(TOPIC, timestamp_ms=mark),
    "partition of a reading": lambda mark: read(partitions=[mark]),
    "partition of the start of a reading": lambda mark: read(start={mark: 0}),
    "partition of the end of a reading": lambda mark: read(end={mark: 0}),
    "start of a reading": lambda mark: read(start={0: mark}),
    "end of a reading": lambda mark: read(end={0: mark}),
}
GIVEN_TO_A_PRODUCER: dict[str, Callable[[KafkaProducer, int], object]] = {
    "partition of send": lambda producer, mark: producer.send(TOPIC, b"v", partition=mark),
    "timestamp of send": lambda producer, mark: producer.send(TOPIC, b"v", timestamp_ms=mark),
    "partition column": lambda producer, mark: producer.append(TOPIC, column("partition", mark)),
    "timestamp column": lambda producer, mark: producer.append(TOPIC, column("timestamp", mark)),
}


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("what", GIVEN)
def test_a_mark_that_is_given_is_refused(what: str, mark: int) -> None:
    with pytest.raises(REFUSALS, match=rf"(?i)invalid|{mark}"):
        GIVEN[what](mark)


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("what", GIVEN_TO_A_PRODUCER)
def test_a_producer_refuses_a_mark_and_goes_on(what: str, mark: int) -> None:
    with idle_producer(3) as producer:
        for _ in range(2):  # the first row of a topic goes another way than those after it
            with pytest.raises(REFUSALS, match=str(mark)):
                GIVEN_TO_A_PRODUCER[what](producer, mark)
            assert not producer.send(TOPIC, b"v").done()


@pytest.mark.parametrize("mark", MARKS)
def test_an_offset_to_commit_that_is_a_mark_is_refused(mark: int) -> None:
    refused = pytest.raises(IllegalArgumentException, match=str(mark))
    with idle_producer(1, transactional_id="tid") as producer, refused:
        commit_offset(producer, mark)


@pytest.mark.parametrize("mark", MARKS)
def test_a_partitioner_that_chooses_a_mark_is_told_so(mark: int) -> None:
    said = f"partitioner.class returned partition {mark} for a row .* expected null or 0 to 2"
    with idle_producer(3, partitioner_class=always(mark), linger_ms=0) as producer:
        with pytest.raises(DataException, match=said):
            producer.append(TOPIC, pa.record_batch({"value": ["v"]}))
        with pytest.raises(KafkaException, match=said):
            producer.send(TOPIC, b"v").result(A_WHILE_S)


def test_a_partitioner_that_chooses_more_than_64_bits_is_told_so() -> None:
    said = "partitioner.class returned list: expected an array of integers"
    with (
        idle_producer(3, partitioner_class=always(2**64)) as producer,
        pytest.raises(DataException, match=said),
    ):
        producer.append(TOPIC, pa.record_batch({"value": ["v"]}))


@pytest.mark.parametrize(
    "chosen",
    [
        [True],
        ["1"],
        [b"1"],
        [{}],
        [1.5],
        pa.array([1], pa.duration("s")),
        pa.array([1], pa.timestamp("s")),
        pa.array(["1"]).dictionary_encode(),
    ],
    ids=str,
)
def test_a_partitioner_that_chooses_no_numbers_is_told_so(chosen: object) -> None:
    said = "partitioner.class returned .*: expected an array of integers"
    with (
        idle_producer(3, partitioner_class=lambda *_: chosen) as producer,
        pytest.raises(DataException, match=said),
    ):
        producer.append(TOPIC, pa.record_batch({"value": ["v"]}))


def test_a_layout_by_a_partitioner_that_chooses_a_mark_says_so() -> None:
    rows = pa.array([{"value": "a"}, {"value": "b"}])
    with pytest.raises(DataException, match="returned partition -1 for a row"):
        own_partitions(
            f"{__name__}.minus_one", pa.array([TOPIC] * 2), pa.array([3, 3], pa.int32()), rows
        )


def test_null_leaves_the_choice_to_the_built_in_partitioner() -> None:
    with idle_producer(3, partitioner_class=lambda *_: [None, 2]) as producer:
        producer.append(TOPIC, pa.record_batch({"key": ["a", None], "value": ["v", "w"]}))
        chosen = {b.topic_partition.partition for b in producer._state.accumulator.incomplete}
    assert chosen == {1, 2}  # Java's hash sends "a" to partition 1 of 3
