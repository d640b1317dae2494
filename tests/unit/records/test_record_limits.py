"""How large a record may be: what a request, memory and its topic take, to the byte."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import RecordTooLargeException
from spark_kafka_sink.records.batch import RECORD_BATCH_OVERHEAD
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns, Rows
from spark_kafka_sink.records.encoder import record_size_bounds, record_sizes
from spark_kafka_sink.records.record_limits import RecordLimits


def rows_of(sizes: list[int], topics: list[str] | None = None) -> Rows:
    """Make one record of each size; topics: of each, all of one topic by default."""
    columns = RecordColumns.of(
        key=None,
        value=BinaryColumn.of(pa.array([bytes(size) for size in sizes], pa.binary())),
        headers=None,
        timestamps_ms=np.zeros(len(sizes), np.int64),
    )
    if topics is None:
        return Rows(columns, ["t"], None, None)
    names = sorted(set(topics))
    numbers = np.array([names.index(topic) for topic in topics])
    return Rows(columns, names, numbers, None)


def check(limits: RecordLimits, rows: Rows) -> RecordTooLargeException | None:
    """Return the error that the rows are refused with."""
    try:
        limits.check(rows, record_sizes(rows.columns))
    except RecordTooLargeException as error:
        return error
    return None


def test_the_first_row_over_the_first_limit_is_named_with_that_option() -> None:
    rows = rows_of([10, 2000, 5000])
    upper = record_sizes(rows.columns) + RECORD_BATCH_OVERHEAD
    limits = RecordLimits.of(max_request_size=int(upper[1]), buffer_memory=int(upper[2]))
    error = check(limits, rows)
    assert error is not None
    assert (error.row, error.topic) == (2, None)
    assert f"up to {upper[2]} bytes when serialized, more than max.request.size=" in str(error)
    limits = RecordLimits.of(max_request_size=10_000, buffer_memory=int(upper[1]) - 1)
    error = check(limits, rows)
    assert error is not None
    assert (error.row, "more than buffer.memory=" in str(error)) == (1, True)
    assert check(RecordLimits.of(max_request_size=10_000, buffer_memory=10_000), rows) is None


@pytest.mark.parametrize("too_many", [0, 1])
def test_a_topic_s_limit_is_compared_with_the_record_alone_in_its_batch(too_many: int) -> None:
    rows = rows_of([3000, 2000, 3000], ["big", "small", "small"])
    alone = record_size_bounds(rows.columns, 0, 0) + RECORD_BATCH_OVERHEAD
    limits = RecordLimits.of(max_request_size=10_000, buffer_memory=10_000)
    assert check(limits, rows) is None
    limits = limits.with_topics({"small": int(alone[2]) - too_many, "other": 1})
    error = check(limits, rows)
    assert (error is None) is (too_many == 0)
    if error is not None:
        assert (error.row, error.topic) == (2, "small")
        assert "while max.request.size=10000" in str(error)
    assert check(limits.with_topics({}), rows) is None


def test_the_mask_has_every_record_over_any_limit_and_the_error_names_the_first() -> None:
    rows = rows_of([10, 2000, 400, 5000, 400], ["small", "big", "big", "big", "small"])
    limits = RecordLimits.of(max_request_size=9000, buffer_memory=4000).with_topics({"small": 300})
    assert limits.too_large(rows, record_sizes(rows.columns)).tolist() == [
        *(False, False, False, True, True)
    ]
    error = check(limits, rows)
    assert error is not None
    assert (error.row, error.topic) == (3, None)
    assert not limits.fit(int(record_sizes(rows.columns).max()))


def test_one_record_is_measured_against_every_option() -> None:
    limits = RecordLimits.of(max_request_size=1000, buffer_memory=500)
    limits.check_record(500)
    assert limits.any_record_bytes == 500 - RECORD_BATCH_OVERHEAD
    with pytest.raises(RecordTooLargeException, match=r"buffer\.memory=500") as raised:
        limits.check_record(501, topic="t", partition=3)
    assert (raised.value.topic, raised.value.partition, raised.value.row) == ("t", 3, None)
    with pytest.raises(RecordTooLargeException, match=r"max\.request\.size=1000"):
        limits.check_record(1001)
