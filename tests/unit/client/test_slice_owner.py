"""The caller of an append learns which rows of its slices failed, and which caused it."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import pytest
from support.pure.idle_producer import idle_producer
from support.pure.pure_producer import TOPIC

from spark_kafka_sink.client.appender import SliceOwner
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import AppendFailure, TopicPartition
from spark_kafka_sink.producer.partitioner import GroupedRows
from spark_kafka_sink.producer.producer_batch import ProducerBatch, RecordSpan
from spark_kafka_sink.records.layout import Runs
from spark_kafka_sink.serde.arrow_columns import read_rows

ERROR = KafkaException("refused")


class DoneBatch(NamedTuple):
    """A batch that is done."""

    record_count: int
    record_errors: dict[int, KafkaException]
    error: KafkaException | None = ERROR
    topic_partition: TopicPartition = TopicPartition("t", 0)
    base_offset: int = -1
    log_append_time_ms: int = -1


def failures_of(span: tuple[int, int, int], batch: DoneBatch) -> list[AppendFailure]:
    """Return the failures for a span: its first row, its place in the batch, its length.

    The slice is rows 100 to 105 of the appended rows, laid out in the order 1, 3, 5, 0, 2, 4.
    """
    failures: list[AppendFailure] = []
    owner = SliceOwner(100, failures.append)
    rows = read_rows(pa.record_batch({"value": ["x"] * 6}), "t", 0)
    runs = Runs(np.array([1, 3, 5, 0, 2, 4]), [0, 1], [0, 3, 6])
    owner.lay_out(GroupedRows(rows, runs, [TopicPartition("t", 0), TopicPartition("t", 1)]))
    owner.completed(RecordSpan(owner, *span), cast("ProducerBatch", batch))
    return failures


@pytest.mark.parametrize(
    ("span", "batch", "rows", "culprits"),
    [
        ((0, 0, 3), DoneBatch(3, {}), [101, 103, 105], None),
        ((0, 0, 3), DoneBatch(3, {1: ERROR}), [101, 103, 105], [103]),
        # Records 7 to 9 of a batch with others of another owner.
        ((3, 7, 3), DoneBatch(12, {2: ERROR, 9: ERROR, 7: ERROR}), [100, 102, 104], [100, 104]),
        ((3, 7, 3), DoneBatch(12, {2: ERROR, 10: ERROR}), [100, 102, 104], []),
        ((4, 0, 1), DoneBatch(1, {}), [102], [102]),
    ],
)
def test_rows_and_culprits_are_those_of_the_append(
    span: tuple[int, int, int], batch: DoneBatch, rows: list[int], culprits: list[int] | None
) -> None:
    (failure,) = failures_of(span, batch)
    assert failure.rows.tolist() == rows
    assert (None if failure.culprits is None else failure.culprits.tolist()) == culprits
    assert failure.error is ERROR


def test_nothing_is_told_of_rows_that_were_delivered() -> None:
    assert failures_of((0, 0, 3), DoneBatch(3, {}, error=None)) == []


def test_the_rows_of_a_batch_that_goes_in_slices_have_their_own_numbers() -> None:
    """A quarter of buffer.memory is a slice. An immediate close fails all rows."""
    rows, failures = 6000, list[AppendFailure]()
    batch = pa.record_batch({"value": ["x" * 60] * rows})
    with idle_producer(3, buffer_memory=1 << 20) as producer:
        producer.append(TOPIC, batch, failures.append)
    numbers = [failure.rows for failure in failures]
    assert sorted(np.concatenate(numbers).tolist()) == list(range(rows))
