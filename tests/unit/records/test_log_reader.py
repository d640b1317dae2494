"""Batches that kafka-python, and we, wrote are read as the rows that are in them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracles.log_records import (
    CODECS,
    OLD_ROWS,
    at_offset,
    batch_of,
    checked,
    emptied,
    expected,
    found,
    found_by_kafka_python,
    old_batch_of,
    with_attributes,
)
from support.oracles.record_batches import BATCHES, PRODUCERS, Producer, Row

from spark_kafka_sink.errors import CorruptRecordException
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.records.log_reader import LogBatch, is_same_batch, read_log

FIRST_OFFSETS = st.integers(0, 2**40) | st.just(2**62)
EVERY_CODEC = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


def only(log: bytes) -> LogBatch:
    """Read a log of one batch."""
    (batch,) = read_log(log)
    return batch


@EVERY_CODEC
@given(rows=BATCHES, first_offset=FIRST_OFFSETS, producer=PRODUCERS)
def test_a_batch_of_kafka_python_is_read_as_its_rows(
    codec: int, rows: list[Row], first_offset: int, producer: Producer
) -> None:
    data = batch_of(rows, codec=codec, first_offset=first_offset, producer=producer)
    batch = only(data)
    assert found(batch.records()) == expected(rows, first_offset)
    assert (batch.base_offset, batch.last_offset) == (first_offset, first_offset + len(rows) - 1)
    assert batch.producer_id == producer.id_and_epoch.producer_id
    assert (batch.is_transactional, batch.is_control) == (producer.transactional, False)


@EVERY_CODEC
@given(rows=BATCHES, first_offset=FIRST_OFFSETS, producer=PRODUCERS, other=BATCHES)
def test_a_batch_that_a_broker_has_compressed_again_is_the_same(
    codec: int, rows: list[Row], first_offset: int, producer: Producer, other: list[Row]
) -> None:
    sent = batch_of(rows, codec=0, first_offset=0, producer=producer)
    stored = batch_of(rows, codec=codec, first_offset=first_offset, producer=producer)
    assert is_same_batch(sent, stored)
    others = batch_of(other, codec=codec, first_offset=first_offset, producer=producer)
    assert is_same_batch(sent, others) == (expected(rows, 0) == expected(other, 0))


@pytest.mark.parametrize("field", ["key", "value", "headers", "timestamp_ms", "sequence"])
def test_a_batch_with_another_field_is_another(field: str) -> None:
    row = Row(b"k", b"v", (("h", b"1"),), 1_700_000_000_000)
    producer = Producer(ProducerIdAndEpoch(7, 1), 5, transactional=True)
    sent = batch_of([row, row], codec=0, first_offset=0, producer=producer)
    changes: dict[str, Any] = {
        "key": b"x",
        "value": None,
        "headers": (),
        "timestamp_ms": 1_700_000_000_001,
    }
    other = row._replace(**{field: changes[field]}) if field in changes else row
    if field == "sequence":
        producer = producer._replace(base_sequence=6)
    found = batch_of([row, other], codec=1, first_offset=9, producer=producer)
    assert not is_same_batch(sent, found)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@given(rows=OLD_ROWS, first_offset=FIRST_OFFSETS)
def test_a_message_set_of_kafka_python_is_read_as_its_rows(
    magic: int, codec: str, rows: list[Row], first_offset: int
) -> None:
    data = old_batch_of(rows, magic, codec=CODECS[codec], first_offset=first_offset)
    batch = only(data)
    assert found(batch.records()) == expected(rows, first_offset, magic=magic)
    assert (batch.base_offset, batch.last_offset) == (first_offset, first_offset + len(rows) - 1)
    assert (batch.producer_id, batch.is_transactional, batch.is_control) == (-1, False, False)


@given(
    parts=st.lists(
        st.tuples(OLD_ROWS, st.sampled_from([0, 1, 2]), st.sampled_from([0, 1, 2, 3])), max_size=5
    ),
    cut=st.integers(0, 200),
)
def test_a_log_of_all_formats_is_read_in_order_up_to_the_batch_that_is_cut_off(
    parts: list[tuple[list[Row], int, int]], cut: int
) -> None:
    log, complete, offset = b"", [], 0
    for rows, magic, codec in parts:
        if magic == 2:
            log += batch_of(rows, codec=codec, first_offset=offset)
        else:
            log += old_batch_of(rows, magic, codec=codec, first_offset=offset)
        complete += expected(rows, offset, magic=magic)
        offset += len(rows)
    last = batch_of([Row(b"k", b"v" * 200, (), 1)], first_offset=offset)
    log += last[:cut]
    assert [row for batch in read_log(log) for row in found(batch.records())] == complete
    assert found_by_kafka_python(log) == complete


def test_an_empty_log_has_no_batches() -> None:
    assert list(read_log(b"")) == []


def test_a_log_append_time_is_the_time_of_every_record() -> None:
    rows = [Row(None, b"a", (), 5), Row(None, b"b", (), 7)]
    batch = only(with_attributes(batch_of(rows), 0x08))
    assert [row.timestamp_ms for row in found(batch.records())] == [7, 7]
    data = old_batch_of(rows, 1, codec=1)
    # A wrapper with LogAppendTime: attributes at 17, timestamp at 18, CRC-32 over 16 on.
    body = data[16:17] + bytes([data[17] | 0x08]) + struct.pack(">q", 9) + data[26:]
    data = data[:12] + struct.pack(">I", zlib.crc32(body)) + body
    assert [row.timestamp_ms for row in found(only(data).records())] == [9, 9]


def test_offsets_that_compaction_left_are_kept() -> None:
    rows = [Row(None, bytes([n]), (), n) for n in range(5)]
    complete = batch_of(rows, first_offset=100)
    # Cut out the records but the second and the fourth, as a log cleaner would.
    size = 61 + (len(complete) - 61) // 5
    records = [complete[61 + n * (size - 61) : 61 + (n + 1) * (size - 61)] for n in (1, 3)]
    body = complete[21:57] + struct.pack(">i", 2) + b"".join(records)
    length = struct.pack(">i", 9 + len(body))
    batch = only(checked(complete[:8] + length + complete[12:21] + body))
    assert [(r.offset, r.value) for r in found(batch.records())] == [(101, b"\1"), (103, b"\3")]
    assert batch.last_offset == 104


@EVERY_CODEC
def test_a_batch_that_compaction_emptied_still_has_its_place(codec: int) -> None:
    complete = batch_of([Row(None, b"a", (), 1)] * 3, first_offset=7)
    batch = only(with_attributes(emptied(complete), codec))
    assert found(batch.records()) == []
    assert (batch.base_offset, batch.last_offset) == (7, 9)


@pytest.mark.parametrize(("kind", "is_abort"), [(0, True), (1, False)])
def test_control_batches_say_whether_they_abort(kind: int, *, is_abort: bool) -> None:
    mark = Row(struct.pack(">hh", 0, kind), bytes(6), (), 1)
    batch = only(with_attributes(batch_of([mark]), 0x30))
    assert (batch.is_control, batch.is_transactional) == (True, True)
    assert batch.is_abort is is_abort
    assert only(batch_of([mark])).is_abort is False


def test_a_control_batch_that_compaction_emptied_aborts_nothing() -> None:
    mark = Row(struct.pack(">hh", 0, 0), bytes(6), (), 1)
    assert only(with_attributes(emptied(batch_of([mark])), 0x30)).is_abort is False


def test_a_control_record_without_a_type_is_refused() -> None:
    for key in (None, b"", b"\0\0\0"):
        batch = only(with_attributes(batch_of([Row(key, bytes(6), (), 1)]), 0x30))
        with pytest.raises(CorruptRecordException, match="a control record has no type"):
            assert batch.is_abort


def test_header_keys_that_are_not_utf8_are_replaced_as_in_java() -> None:
    data = batch_of([Row(None, b"v", (("né", b"x"),), 1)])
    data = checked(data.replace("né".encode(), b"n\xff\xfe"))
    assert found(only(data).records())[0].headers == (("n\ufffd\ufffd", b"x"),)


@pytest.mark.parametrize("magic", [0, 1, 2])
@given(data=st.data())
def test_a_bit_that_flipped_under_a_checksum_is_found(magic: int, data: st.DataObject) -> None:
    rows = [Row(b"key", b"value", (), 1)]
    log = bytearray(batch_of(rows) if magic == 2 else old_batch_of(rows, magic))
    covered = 21 if magic == 2 else 16
    position = data.draw(st.integers(covered, len(log) - 1))
    log[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptRecordException) as refused:
        [batch.records() for batch in read_log(log)]
    assert refused.value.code == 2


def test_a_format_of_the_future_is_refused_by_its_number() -> None:
    data = bytearray(batch_of([Row(None, b"v", (), 1)]))
    data[16] = 3
    with pytest.raises(CorruptRecordException, match="a batch has format 3: expected 0, 1 or 2"):
        list(read_log(data))


def test_what_is_no_entry_is_refused() -> None:
    with pytest.raises(CorruptRecordException, match="entry of -5 bytes"):
        list(read_log(at_offset(struct.pack(">qi", 0, -5), 0)))
