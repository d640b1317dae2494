"""Any bytes as a log: the result is rows or a CorruptRecordException, and memory is limited."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from random import Random

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.util import encode_varint
from support.oracles.log_records import CODECS, OLD_ROWS, batch_of, checked, found, old_batch_of
from support.oracles.record_batches import BATCHES, Row
from support.pure.traced_memory import traced_memory

from spark_kafka_sink.errors import CorruptRecordException
from spark_kafka_sink.records.compression import codec
from spark_kafka_sink.records.decoder import read_varint, read_varints
from spark_kafka_sink.records.decompression import decompress
from spark_kafka_sink.records.log_reader import read_log

HUGE = [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f", b"\x80" * 12]
GARBAGE = st.binary(min_size=1, max_size=6) | st.sampled_from(HUGE)


def check_reads_or_refuses(log: bytes) -> None:
    """Read the entire log; only one kind of error is allowed."""
    try:
        for batch in read_log(log):
            found(batch.records(10_000_000))
            assert batch.is_abort in (True, False)
    except CorruptRecordException as error:
        assert str(error).startswith("records cannot be read: ")  # noqa: PT017 - either may come


def with_checksums(log: bytes) -> bytes:
    """Make the checksum of a single entry right, so that a reader looks further."""
    if len(log) < 22:
        return log
    size = struct.pack(">i", len(log) - 12)
    log = log[:8] + size + log[12:]
    if log[16] == 2:
        return checked(log)
    return log[:12] + struct.pack(">I", zlib.crc32(log[16:])) + log[16:]


@given(log=st.binary(max_size=200))
def test_garbage_is_rows_or_a_corrupt_record_exception(log: bytes) -> None:
    check_reads_or_refuses(log)
    for magic in (0, 1, 2):
        check_reads_or_refuses(with_checksums(log[:16] + bytes([magic]) + log[17:]))


@settings(max_examples=400)
@given(
    rows=BATCHES,
    codec_id=st.integers(0, 4),
    garbage=GARBAGE,
    where=st.floats(0, 1),
    replaced=st.integers(0, 6),
)
def test_a_batch_with_garbage_inside_and_a_right_checksum(
    rows: list[Row], codec_id: int, garbage: bytes, where: float, replaced: int
) -> None:
    batch = batch_of(rows[:20], codec=codec_id)
    position = 21 + round(where * (len(batch) - 21))
    mutated = batch[:position] + garbage + batch[position + replaced :]
    check_reads_or_refuses(mutated)
    check_reads_or_refuses(with_checksums(mutated))


@settings(max_examples=400)
@given(
    rows=OLD_ROWS,
    magic=st.sampled_from([0, 1]),
    codec_id=st.integers(0, 3),
    garbage=GARBAGE,
    where=st.floats(0, 1),
    replaced=st.integers(0, 6),
)
def test_a_message_set_with_garbage_inside_and_a_right_checksum(
    rows: list[Row], magic: int, codec_id: int, garbage: bytes, where: float, replaced: int
) -> None:
    message = old_batch_of(rows if codec_id else rows[:1], magic, codec=codec_id)
    position = 17 + round(where * (len(message) - 17))
    mutated = message[:position] + garbage + message[position + replaced :]
    check_reads_or_refuses(mutated)
    check_reads_or_refuses(with_checksums(mutated))


@given(rows=BATCHES, codec_id=st.integers(0, 4), data=st.data())
def test_a_batch_cut_off_anywhere_is_passed_over(
    rows: list[Row], codec_id: int, data: st.DataObject
) -> None:
    batch = batch_of(rows, codec=codec_id)
    assert list(read_log(batch[: data.draw(st.integers(0, len(batch) - 1))])) == []


SIZE = 100_000_000
BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: gzip.compress(bytes(SIZE), 1),
    "snappy": lambda: bytes(codec("snappy")([bytes(SIZE)])[0]),
    "lz4": lambda: bytes(lz4.frame.compress(bytes(SIZE))),
    "zstd": lambda: bytes(codec("zstd")([bytes(SIZE)])[0]),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_batch_that_stands_for_too_much_is_refused_within_the_limit(name: str) -> None:
    bomb = BOMBS[name]()
    limit = 5_000_000
    before = pa.total_allocated_bytes()
    with (
        traced_memory() as memory,
        pytest.raises(CorruptRecordException, match=f"more than {limit} bytes"),
    ):
        decompress(CODECS[name], bomb, limit)
    assert memory.peak_bytes < 4 * limit + 2 * len(bomb)
    assert pa.total_allocated_bytes() == before
    assert len(decompress(CODECS[name], bomb, SIZE)) == SIZE


def test_a_snappy_block_cannot_ask_for_memory_that_it_does_not_fill() -> None:
    with pytest.raises(CorruptRecordException, match="cannot expand to 4294967295"):
        decompress(2, b"\xff\xff\xff\xff\x0f" + b"x" * 20, 2**40)


@pytest.mark.parametrize("name", BOMBS)
@given(data=st.binary(max_size=60))
def test_garbage_is_of_no_codec(name: str, data: bytes) -> None:
    packed = bytes(codec(name)([b"some records " * 20])[0])
    for each in (data, packed[:-1], packed[: len(packed) // 2], packed + data):
        try:
            found = decompress(CODECS[name], each, 10_000)
        except CorruptRecordException as error:
            assert str(error)  # noqa: PT017 - either may come
        else:
            assert len(found) <= 10_000


@pytest.mark.parametrize("name", ["gzip", "lz4", "zstd"])
def test_a_stream_without_its_end_is_refused(name: str) -> None:
    packed = bytes(codec(name)([b"some records " * 2000])[0])
    for cut in (1, len(packed) // 2):
        with pytest.raises(CorruptRecordException):
            decompress(CODECS[name], packed[:-cut], 100_000)


@pytest.mark.parametrize("codec_id", [5, 6, 7])
def test_a_codec_that_is_not_known_is_refused(codec_id: int) -> None:
    with pytest.raises(CorruptRecordException, match=f"codec {codec_id}"):
        decompress(codec_id, b"", 10)


def test_several_gzip_members_are_read_as_one_stream() -> None:
    assert decompress(1, gzip.compress(b"ab") + gzip.compress(b"cd"), 4) == b"abcd"


def test_many_gzip_members_of_all_sizes_are_read_as_one_stream() -> None:
    random = Random(3)
    parts = [random.randbytes(random.choice([0, 1, 40, 500, 70_000])) for _ in range(200)]
    packed = b"".join(map(gzip.compress, parts))
    joined = b"".join(parts)
    assert decompress(1, packed, len(joined)) == joined
    with pytest.raises(CorruptRecordException, match="more than"):
        decompress(1, packed, len(joined) - 1)


@pytest.mark.parametrize("first_bytes", [(1 << 18) - 1, 1 << 18, (1 << 18) + 1, 1_500_000])
def test_a_gzip_member_that_expands_a_lot_may_be_followed_by_others(first_bytes: int) -> None:
    first = gzip.compress(bytes(first_bytes))
    both = first + gzip.compress(b"second")
    assert decompress(1, both, 10**7) == bytes(first_bytes) + b"second"
    with pytest.raises(CorruptRecordException, match="gzip"):
        decompress(1, first + b"x", 10**7)


def test_many_gzip_members_cost_no_more_than_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    make = zlib.decompressobj

    class Counted:
        """Counts the bytes of its input, all of which zlib may copy."""

        def __init__(self, wbits: int) -> None:
            self._stream = make(wbits=wbits)

        def decompress(self, data: bytes, limit: int) -> bytes:
            given.append(len(data))
            return self._stream.decompress(data, limit)

        def __getattr__(self, name: str) -> object:
            return getattr(self._stream, name)

    monkeypatch.setattr("spark_kafka_sink.records.decompression.zlib.decompressobj", Counted)
    for part in (b"", Random(3).randbytes(100_000)):
        given.clear()
        packed = gzip.compress(part) * (2000 if not part else 5)
        assert decompress(1, packed, 10**6) == part * 5
        assert sum(given) < 5 * len(packed)


def test_a_snappy_block_alone_is_read() -> None:
    block = pa.Codec("snappy").compress(b"abcd" * 100, asbytes=True)
    assert decompress(2, block, 400) == b"abcd" * 100


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), gap=st.integers(0, 3))
def test_varints_are_read_together_as_kafka_python_writes_them(values: list[int], gap: int) -> None:
    out, starts, ends = bytearray(), [], []
    for value in values:
        starts.append(len(out))
        encode_varint(value, out.append)
        ends.append(len(out))
        out += b"\xff" * gap
    data = np.frombuffer(out, np.uint8)
    read, behind = read_varints(data, np.array(starts), np.array(ends), 64)
    assert read.tolist() == values
    assert behind.tolist() == ends
    for value, start, end in zip(values, starts, ends, strict=True):
        if -(2**31) <= value < 2**31:
            assert read_varint(bytes(out), start, end) == (value, end)
        else:
            with pytest.raises(CorruptRecordException):
                read_varint(bytes(out), start, end)


@pytest.mark.parametrize(
    ("data", "bits"),
    [
        (b"", 32),
        (b"\x80", 32),
        (b"\xff\xff\xff\xff\x10", 32),
        (b"\xff\xff\xff\xff\x8f\x00", 32),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 64),
        (b"\xff" * 10 + b"\x01", 64),
    ],
)
def test_numbers_that_are_none_are_refused(data: bytes, bits: int) -> None:
    padded = np.frombuffer(data + b"\0", np.uint8)
    with pytest.raises(CorruptRecordException):
        read_varints(padded, np.array([0]), np.array([len(data)]), bits)
    if bits == 32:
        with pytest.raises(CorruptRecordException):
            read_varint(data, 0, len(data))
