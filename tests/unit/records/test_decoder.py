"""A records section that violates a rule of the format is rejected with the rule's name."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from support.oracles.log_records import decode, expected, found
from support.oracles.record_batches import BATCHES, Row, columns_of, records_of
from support.pure.traced_memory import traced_memory

from spark_kafka_sink.errors import CorruptRecordException
from spark_kafka_sink.records.decoder import decode_parts

# length 8 | attributes | timestamp delta 0 | offset delta 0 | no key | value "ab" | 0 headers
RECORD = bytes.fromhex("10 00 00 00 01 04 6162 00")


def test_the_record_that_the_others_are_made_of_is_right() -> None:
    (row,) = found(decode(memoryview(RECORD), 1, 7, 1000))
    assert row == (7, 1000, None, b"ab", ())


@given(rows=BATCHES)
def test_what_the_encoder_writes_is_read_again(rows: list[Row]) -> None:
    section = bytes(records_of(columns_of(rows)))
    read = decode(memoryview(section), len(rows), 0, rows[0].timestamp_ms)
    assert found(read) == expected(rows)


@pytest.mark.parametrize(
    ("section", "count", "message"),
    [
        (RECORD, 2, "has 1 records where its header says 2"),
        (RECORD * 2, 1, "has 2 records where its header says 1"),
        (b"", 1, "has 0 records where its header says 1"),
        (RECORD, -1, "where its header says -1"),
        (RECORD[:-1], 1, "a record of 8 bytes does not fit"),
        (b"\x00" + RECORD, 2, "a record has 0 bytes: expected at least 6"),
        (b"\x01" + RECORD, 2, "a record has -1 bytes: expected at least 6"),
        (bytes.fromhex("0a 00 00 00 01 01") + RECORD, 2, "a record has 5 bytes: expected at"),
        (b"\x80\x80\x80\x80\x10" + RECORD, 2, "longer than its type"),
        (b"\xff", 1, "longer than its type or its record"),
        (bytes.fromhex("12 00 00 00 01 04 6162 00 00"), 1, "a record is longer than its fields"),
        (bytes.fromhex("0e 00 00 00 01 04 6162") + RECORD, 2, "where a varint is expected"),
        (bytes.fromhex("10 00 00 01 01 04 6162 00"), 1, "below the base offset of its batch"),
        (bytes.fromhex("10 00 00 00 01 08 6162 00"), 1, "key or a value does not fit"),
        (bytes.fromhex("10 00 00 00 03 04 6162 00"), 1, "key or a value does not fit"),
        (bytes.fromhex("10 00 00 00 01 04 6162 01"), 1, "more headers than fit"),
        (bytes.fromhex("10 00 00 00 01 04 6162 02"), 1, "more headers than fit"),
        (bytes.fromhex("14 00 00 00 01 04 6162 02 01 00"), 1, "header's key does not fit"),
        (bytes.fromhex("14 00 00 00 01 04 6162 02 08 00"), 1, "header's key does not fit"),
        (bytes.fromhex("14 00 00 00 01 04 6162 02 00 08"), 1, "header's value does not fit"),
        (bytes.fromhex("14 00 00 00 01 04 6162 02 00 03"), 1, "header's value does not fit"),
        (
            bytes.fromhex("16 00 00 00 01 04 6162 02 00 00 00"),
            1,
            "a record is longer than its fields",
        ),
    ],
)
def test_a_rule_that_is_broken_is_named(section: bytes, count: int, message: str) -> None:
    with pytest.raises(CorruptRecordException, match=message):
        decode(memoryview(section), count, 0, 0)


@pytest.mark.parametrize("size", [62, 63, 64, 8185, 8186, 8191, 8192, 1_048_576, 2_000_000])
def test_records_whose_length_takes_another_byte(size: int) -> None:
    rows = [Row(None, bytes(size), (), 1), Row(b"k", b"v", (("h", bytes(size)),), 2)]
    section = bytes(records_of(columns_of(rows)))
    assert found(decode(memoryview(section), 2, 0, 1)) == expected(rows)


# The number of records or headers, which is as many as fit into a small section.
MANY = 100_000
# One record with empty headers: its length, five fields, the number of headers, and the headers.
HEADERS = bytes.fromhex("00 00 00 01 01 c09a0c") + b"\x00\x01" * MANY
DENSE = {
    "records of one byte": (b"\x02\x00" * MANY, 1, CorruptRecordException),
    "empty headers": (bytes.fromhex("90b518") + HEADERS, 1, None),
}


@pytest.mark.parametrize("name", DENSE)
def test_small_records_and_headers_take_little_more_memory_than_their_bytes(name: str) -> None:
    section, count, error = DENSE[name]
    raised = nullcontext() if error is None else pytest.raises(error)
    with traced_memory() as memory, raised:
        decode(memoryview(section), count, 0, 0)
    assert memory.peak_bytes < 40 * len(section)
    if error is not None:  # it is refused at the first record
        assert memory.peak_bytes < len(section)


def test_headers_that_do_not_fit_a_part_count_for_the_limit_of_their_batch() -> None:
    rows = [Row(b"k", b"v", (("one", b"1" * 400), ("two", b"2" * 600)), 1)]
    section = memoryview(bytes(records_of(columns_of(rows))))
    needed = len(section) + 1_000
    with pytest.raises(CorruptRecordException, match="headers of a record need"):
        next(decode_parts(section, 1, 0, 1, 100, needed))
    (records,) = decode_parts(section, 1, 0, 1, 100, needed + 200)
    assert found(records) == expected(rows)
    (records,) = decode_parts(section, 1, 0, 1, 2_000, needed)  # they fit a part
    assert found(records) == expected(rows)
