"""Batches encoded from Arrow columns are byte for byte those that kafka-python builds row by row.

Only the partition leader epoch differs, which is for brokers to set and outside the checksum.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.util import decode_varint
from support.oracles.record_batches import (
    BATCHES,
    HEADERS,
    NO_PRODUCER,
    PRODUCERS,
    SHAPES,
    Producer,
    Row,
    Shape,
    columns_of,
    header_column,
    kafka_python_batch,
    records_of,
    seal,
    without_leader_epoch,
)

from spark_kafka_sink.records.encoder import encode
from spark_kafka_sink.records.layout import group_by_partition


@given(rows=BATCHES, shape=SHAPES, producer=PRODUCERS, drop_empty=st.booleans())
def test_batches_are_byte_for_byte_those_of_kafka_python(
    rows: list[Row], shape: Shape, producer: Producer, *, drop_empty: bool
) -> None:
    batch = seal(rows, records_of(columns_of(rows, shape, drop_empty=drop_empty)), producer)
    expected = kafka_python_batch(rows, producer)
    assert without_leader_epoch(batch) == without_leader_epoch(expected)
    assert batch[12:16] == b"\xff\xff\xff\xff"


@given(rows=BATCHES, shape=SHAPES, drop_empty=st.booleans(), data=st.data())
def test_rows_of_many_partitions_become_the_batch_of_each(
    rows: list[Row], shape: Shape, data: st.DataObject, *, drop_empty: bool
) -> None:
    numbers = st.lists(st.integers(0, 4), min_size=len(rows), max_size=len(rows))
    partitions = np.array(data.draw(numbers), np.int64)
    columns = columns_of(rows, shape, drop_empty=drop_empty)
    runs = group_by_partition(partitions)
    ordered = columns.timestamps_ms[runs.order]
    starts = np.array(runs.starts[:-1])
    lengths = np.diff(runs.starts)
    encoded = encode(
        columns,
        runs.order,
        np.arange(len(rows)) - np.repeat(starts, lengths),
        ordered - np.repeat(ordered[starts], lengths),
    )
    for number, partition in enumerate(runs.partitions):
        start, stop = (encoded.offsets[runs.starts[each]] for each in (number, number + 1))
        of_partition = [row for row, p in zip(rows, partitions, strict=True) if p == partition]
        batch = seal(of_partition, encoded.buffer[start:stop], NO_PRODUCER)
        expected = kafka_python_batch(of_partition)
        assert without_leader_epoch(batch) == without_leader_epoch(expected)


@given(rows=BATCHES, shape=SHAPES, data=st.data())
def test_rows_in_any_order_are_encoded_in_that_order(
    rows: list[Row], shape: Shape, data: st.DataObject
) -> None:
    order = np.array(data.draw(st.permutations(range(len(rows)))), np.int64)
    columns = columns_of(rows, shape)
    timestamps = columns.timestamps_ms[order]
    encoded = encode(columns, order, np.arange(len(rows)), timestamps - timestamps[0])
    shuffled = [rows[row] for row in order]
    for start, stop in pairwise(encoded.offsets.tolist()):
        length, body = decode_varint(encoded.buffer, start)
        assert body + length == stop
    batch = seal(shuffled, encoded.buffer[encoded.offsets[0] : encoded.offsets[-1]], NO_PRODUCER)
    expected = kafka_python_batch(shuffled)
    assert without_leader_epoch(batch) == without_leader_epoch(expected)


@given(rows=BATCHES, shape=SHAPES, data=st.data())
def test_a_slice_of_columns_is_encoded_as_its_rows_alone(
    rows: list[Row], shape: Shape, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    part = columns_of(rows, shape).slice(start, stop)
    assert len(part) == stop - start
    batch = seal(rows[start:stop], records_of(part), NO_PRODUCER)
    expected = kafka_python_batch(rows[start:stop])
    assert without_leader_epoch(batch) == without_leader_epoch(expected)


SIZES = [0, 1, 63, 64, 8191, 8192, 1_048_575, 1_048_576, 1_100_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("part", ["key", "value", "header"])
def test_sizes_where_lengths_take_another_byte(size: int, part: str) -> None:
    large = bytes(size)
    row = {
        "key": Row(large, b"v", (), 1),
        "value": Row(b"k", large, (), 1),
        "header": Row(None, b"v", (("name", large), ("n", None)), 1),
    }[part]
    rows = [Row(None, b"before", (), 1), row, Row(None, None, (), 1)]
    batch = seal(rows, records_of(columns_of(rows)), NO_PRODUCER)
    assert without_leader_epoch(batch) == without_leader_epoch(kafka_python_batch(rows))


@pytest.mark.parametrize("count", [64, 65, 8192, 8193, 20_000])
def test_row_counts_where_offset_deltas_take_another_byte(count: int) -> None:
    rows = [Row(None, b"v", (), i) for i in range(count)]
    batch = seal(rows, records_of(columns_of(rows, drop_empty=True)), NO_PRODUCER)
    assert without_leader_epoch(batch) == without_leader_epoch(kafka_python_batch(rows))


@pytest.mark.parametrize("count", [63, 64, 200, 8192])
def test_a_record_may_have_many_headers(count: int) -> None:
    headers = tuple((f"h{i}", None if i % 3 else b"x" * (i % 5)) for i in range(count))
    rows = [Row(None, b"v", headers, 1), Row(None, b"v", (), 1)]
    batch = seal(rows, records_of(columns_of(rows)), NO_PRODUCER)
    assert without_leader_epoch(batch) == without_leader_epoch(kafka_python_batch(rows))


@pytest.mark.parametrize(
    "timestamps",
    [[0, 2**63 - 1], [2**63 - 1, 0], [2**62, 0, 2**63 - 1], [5, 5, 5], [1000, 936, 935, 1064]],
)
def test_timestamp_deltas_of_any_size_in_both_directions(timestamps: list[int]) -> None:
    rows = [Row(None, b"v", (), timestamp) for timestamp in timestamps]
    batch = seal(rows, records_of(columns_of(rows)), NO_PRODUCER)
    assert without_leader_epoch(batch) == without_leader_epoch(kafka_python_batch(rows))


@given(headers=st.lists(HEADERS, max_size=5), shape=SHAPES)
def test_a_header_section_of_no_headers_is_a_zero_byte(
    headers: list[tuple[()]], shape: Shape
) -> None:
    column = header_column(headers, shape)
    assert len(column) == len(headers)
    for row, each in enumerate(headers):
        section = column.data[column.offsets[row] : column.offsets[row + 1]].tobytes()
        assert (section == b"\x00") is (not each)
