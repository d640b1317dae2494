"""Message sets byte for byte as kafka-python writes them, and as Java reads them."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import lz4.frame
import pytest
from hypothesis import given
from support.brokers.jvm import run_java
from support.oracles.log_records import (
    CODECS,
    OLD_ROWS,
    batch_of,
    expected,
    found,
    found_by_kafka_python,
    old_batch_of,
)
from support.oracles.record_batches import NO_PRODUCER, SHAPES, Producer, Row, Shape, columns_of

from spark_kafka_sink.errors import ApiException
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.producer.produce_requests import down_convert
from spark_kafka_sink.records.compression import codec
from spark_kafka_sink.records.decompression import decompress
from spark_kafka_sink.records.log_reader import read_log
from spark_kafka_sink.records.message_set import (
    message_set,
    with_standard_checksum,
    with_v0_checksum,
)

MAGICS = pytest.mark.parametrize("magic", [0, 1])
OLD_CODECS = ["none", "gzip", "snappy", "lz4"]
# From a 0.10 and a 0.9 broker (kafka-python's test_records.py); value "123", no key.
V1 = "000000000000000000000019478628c201000000015e1867abaeffffffff00000003313233"
V0 = "000000000000000000000011feb01dbf0000ffffffff00000003313233"


def _set(magic: int, rows: list[Row], name: str, shape: Shape | None = None) -> bytes:
    columns = columns_of(rows, shape, drop_empty=True) if shape else columns_of(rows)
    return b"".join(message_set(magic, columns, codec(name)))


@pytest.mark.parametrize(("magic", "golden"), [(0, V0), (1, V1)])
def test_a_message_is_the_one_a_broker_wrote(magic: int, golden: str) -> None:
    rows = [Row(None, b"123", (), 0x015E1867ABAE)]
    assert _set(magic, rows, "none").hex() == golden


@MAGICS
@given(rows=OLD_ROWS, shape=SHAPES)
def test_a_plain_set_is_byte_for_byte_that_of_kafka_python(
    magic: int, rows: list[Row], shape: Shape
) -> None:
    assert _set(magic, rows, "none", shape) == old_batch_of(rows, magic)


@MAGICS
@pytest.mark.parametrize("name", OLD_CODECS[1:])
@given(rows=OLD_ROWS)
def test_a_wrapper_holds_the_plain_set_and_names_its_last_offset_and_latest_time(
    magic: int, name: str, rows: list[Row]
) -> None:
    data = _set(magic, rows, name)
    offset, size, crc, written, attributes = struct.unpack_from(">qiIbb", data)
    assert (offset, size, written) == (len(rows) - 1, len(data) - 12, magic)
    assert (attributes, crc) == (CODECS[name], zlib.crc32(data[16:]))
    key_at = 18
    if magic:
        key_at = 26
        assert struct.unpack_from(">q", data, 18)[0] == max(row.timestamp_ms for row in rows)
    assert struct.unpack_from(">ii", data, key_at) == (-1, len(data) - key_at - 8)
    packed = data[key_at + 8 :]
    if name == "lz4":
        assert packed[:7].hex() == ("04224d18604082" if magic else "04224d1860401a")
    if magic == 0 and name == "lz4":
        packed = with_standard_checksum(packed)
    assert decompress(CODECS[name], packed, 10**9) == _set(magic, rows, "none")
    assert found_by_kafka_python(data) == expected(rows, magic=magic)


def test_the_lz4_frames_of_v0_have_the_checksum_that_java_once_made() -> None:
    (frame,) = codec("lz4")([b"some records"])
    assert bytes(frame[:7]).hex() == "04224d18604082"
    assert with_v0_checksum(frame)[:7].hex() == "04224d1860401a"
    assert with_standard_checksum(with_v0_checksum(frame)) == frame


@pytest.mark.parametrize("size", [0, 1, 2**40 - 1])
def test_frames_with_a_content_size_get_the_checksum_of_the_whole_descriptor(size: int) -> None:
    frame = lz4.frame.compress(b"x" * min(size, 100), store_size=False)
    with_size = lz4.frame.compress(b"x" * 100, store_size=True)
    assert with_standard_checksum(with_size) == with_size
    assert with_standard_checksum(with_v0_checksum(with_size)) == with_size
    assert with_standard_checksum(frame) == frame


def _down_converted(rows: list[Row], magic: int, name: str) -> bytes:
    batch = batch_of(rows, codec=CODECS[name])
    return b"".join(down_convert(batch, magic, codec(name)))


@MAGICS
@pytest.mark.parametrize("name", OLD_CODECS)
@given(rows=OLD_ROWS)
def test_a_batch_is_converted_to_the_set_of_its_rows(
    magic: int, name: str, rows: list[Row]
) -> None:
    assert _down_converted(rows, magic, name) == _set(magic, rows, name)


@pytest.mark.parametrize(
    ("rows", "producer", "name", "code", "advice"),
    [
        ([Row(None, b"v", (("h", b"x"),), 1)], None, "none", 43, "remove the headers column"),
        ([Row(None, b"v", (), 1)], 4000, "gzip", 35, "set enable.idempotence to false"),
        ([Row(None, b"v", (), 1)], None, "zstd", 76, "which has no zstd"),
    ],
)
@MAGICS
def test_what_the_old_formats_cannot_say_is_refused(
    magic: int, rows: list[Row], producer: int | None, name: str, code: int, advice: str
) -> None:
    who = NO_PRODUCER
    if producer is not None:
        who = Producer(ProducerIdAndEpoch(producer, 0), 0, transactional=False)
    batch = batch_of(rows, codec=CODECS[name], producer=who)
    with pytest.raises(ApiException, match=advice) as refused:
        down_convert(batch, magic, codec(name))
    assert refused.value.code == code
    assert f"message format v{magic}" in str(refused.value)


def _random_rows(rng: random.Random) -> list[Row]:
    def some() -> bytes | None:
        return rng.choice([None, b"", rng.randbytes(rng.randrange(90)), bytes(rng.randrange(9000))])

    count = rng.choice([1, 2, 70])
    return [Row(some(), some(), (), rng.randrange(2**62)) for _ in range(count)]


def test_java_reads_every_message_set(tmp_path: Path) -> None:
    rng = random.Random(3)
    cases = [
        (magic, name, _random_rows(rng))
        for magic in (0, 1)
        for name in OLD_CODECS
        for _ in range(20)
    ]
    stored = tmp_path / "sets"
    stored.write_bytes(b"".join(_set(magic, rows, name) for magic, name, rows in cases))
    lines = run_java("ReadMessageSets", stored).splitlines()
    java_lines = []
    for magic, _, rows in cases:
        for row in expected(rows, magic=magic):
            crcs = [-1 if each is None else zlib.crc32(each) for each in (row.key, row.value)]
            java_lines.append(f"{magic} {row.offset} {row.timestamp_ms} {crcs[0]} {crcs[1]}")
    assert lines == java_lines


@MAGICS
@pytest.mark.parametrize("name", OLD_CODECS)
@given(rows=OLD_ROWS)
def test_a_set_is_read_back_as_its_rows(magic: int, name: str, rows: list[Row]) -> None:
    (batch,) = read_log(_set(magic, rows, name))
    assert found(batch.records()) == expected(rows, magic=magic)
