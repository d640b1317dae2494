"""The numbers in a message are correct: here the extreme value is in the middle."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.pure.idle_producer import idle_producer
from support.pure.pure_producer import TOPIC

from spark_kafka_sink.errors import DataException, KafkaException, RecordTooLargeException
from spark_kafka_sink.producer.partitioner import check_partitions
from spark_kafka_sink.spark.report import BadRowSample, BadRowsReport, ExpiredRowsReport
from spark_kafka_sink.spark.tasks.retention import ExpiredRows

DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS
# A batch's header, and the most bytes of a record's fields besides its value.
HEADER_BYTES, MOST_BESIDES_BYTES = 61, 36


def refusal_of(columns: dict[str, Any], **options: object) -> KafkaException:
    """Return what stands against appending columns to a topic of three partitions."""
    with idle_producer(3, **options) as producer:
        if "limit" in columns:
            producer._columns.limit_messages({TOPIC: columns.pop("limit")}, None)
        with pytest.raises(KafkaException) as refused:
            producer.append(TOPIC, pa.record_batch(columns))
    return refused.value


@pytest.mark.parametrize(
    ("name", "column", "said"),
    [
        ("partition", pa.array([0, -3, -9, -1], pa.int32()), "Invalid partition: -3. "),
        ("timestamp", pa.array([7, -3, -9, -1]), "Invalid timestamp: -3 ms. "),
        (
            "timestamp",
            pa.array([7_000, -1_500, -9_000, -1], pa.timestamp("us")),
            "Invalid timestamp: -2 ms. ",
        ),
        (
            "timestamp",
            pa.array([7, 2**62, 2**63 - 1, 2**61], pa.timestamp("s")),
            f"Invalid timestamp: {2**62} s. ",
        ),
    ],
)
def test_a_value_that_is_refused_is_that_of_the_row_that_is_named(
    name: str, column: pa.Array, said: str
) -> None:
    error = refusal_of({"value": ["v"] * 4, name: column})
    assert isinstance(error, DataException)
    assert str(error).startswith(f"row 1 of the Arrow batch: {said}")
    assert error.row == 1


def test_a_partition_that_the_topic_does_not_have_is_that_of_the_row_that_is_named() -> None:
    with pytest.raises(DataException) as refused:
        check_partitions(TOPIC, np.array([2, 5, 9, 4]), 3)
    assert str(refused.value) == (
        "row 1 of the Arrow batch: the partition column has 5, but topic t has 3 partitions, 0 to 2"
    )
    assert (refused.value.partition, refused.value.row) == (5, 1)


@pytest.mark.parametrize("option", ["max_request_size", "buffer_memory"])
def test_a_record_that_is_too_large_is_told_with_its_own_size(option: str) -> None:
    sizes = [10, 3000, 9000, 4000, 10]
    columns = {"value": ["x" * size for size in sizes], "timestamp": pa.array([9, 1, 99, 5, 7])}
    error = refusal_of(columns, **{option: 2000})
    found = re.search(r"row 1 of the Arrow batch: the record is up to (\d+) bytes when", str(error))
    assert found is not None, error
    assert HEADER_BYTES < int(found[1]) - sizes[1] <= HEADER_BYTES + MOST_BESIDES_BYTES
    with idle_producer(3, **{option: 2000}) as producer:
        sent = producer.send(TOPIC, b"x" * sizes[1]).exception(0)
    found = re.search(r"the record is up to (\d+) bytes when", str(sent))
    assert found is not None, sent
    assert HEADER_BYTES < int(found[1]) - sizes[1] <= HEADER_BYTES + MOST_BESIDES_BYTES


def test_a_record_that_is_too_large_for_its_topic_is_told_with_its_size_to_the_byte() -> None:
    sizes = [10, 3000, 9000, 4000, 10]
    error = refusal_of({"value": ["x" * size for size in sizes], "limit": 2000})
    assert isinstance(error, RecordTooLargeException)
    # Of the record: 2 bytes of length, 3 of attributes and deltas, 1 of a key that is null, 2 of
    # the value's length, 1 of headers.
    size = HEADER_BYTES + 9 + sizes[1]
    assert (
        f"row 1 of the Arrow batch: the record is {size} bytes when serialized, more than topic t "
        "takes " in str(error)
    )


@pytest.mark.parametrize("wrong", [[0, -3, -9, 1], [0, 7, 99, 1]])
def test_a_partition_that_a_partitioner_chose_is_told_as_it_was_chosen(wrong: list[int]) -> None:
    error = refusal_of({"value": ["v"] * 4}, partitioner_class=lambda *_: wrong)
    assert f"returned partition {wrong[1]} for a row of topic t: expected null or 0 to 2" in str(
        error
    )


def test_the_oldest_of_expired_rows_is_the_oldest_of_all_tasks() -> None:
    found = []
    for days in ([1, 30, 5, 2], [9, 8], [20, 90, 3, 40], [1], [31]):
        rows = ExpiredRows(TOPIC, 7 * DAY_MS, lambda _: {}, lambda: NOW_MS / 1000)
        times = [NOW_MS - day * DAY_MS for day in days]
        rows.count(pa.record_batch({"timestamp": pa.array(times)}))
        found += rows.report()
    said = ExpiredRowsReport.summary(ExpiredRowsReport.of(found))
    oldest = "2024-07-06T00:00:00.000+00:00"
    assert f" 7 of {TOPIC} (retention.ms={7 * DAY_MS}, the oldest is from {oldest})" in said


def test_a_bad_row_is_named_as_one_of_them_and_not_as_the_first() -> None:
    """Rows that brokers reject are known later than those found before sending."""
    samples = [
        BadRowSample(
            task=1, row=row, reason=reason, detail=None, topic=TOPIC, partition=None,
            key_bytes=None, value_bytes=1,
        )
        for row, reason in ((500, "null_topic"), (3, "refused"))
    ]  # fmt: skip
    reasons = {"null_topic": 1, "refused": 1}
    report = BadRowsReport(on_error="skip", rows=2, reasons=reasons, samples=samples)
    assert report.summary() == (
        "pykafka: 2 bad rows were skipped: 1 null_topic, 1 refused; among them row 500 of task 1"
    )
