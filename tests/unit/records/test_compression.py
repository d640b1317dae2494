"""Every codec at every level is read by other decoders, in the framing that Kafka knows."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise

import kafka.codec
import lz4.block
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBase

from spark_kafka_sink.records.compression import NO_COMPRESSION, Buffer, codec
from spark_kafka_sink.records.decompression import decompress

DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": kafka.codec.gzip_decode,
    "snappy": kafka.codec.snappy_decode,
    "lz4": kafka.codec.lz4_decode,
    "zstd": kafka.codec.zstd_decode,
}
LEVELS: dict[str, list[int | None]] = {
    "gzip": [None, -1, 1, 6, 9],
    "snappy": [None],
    "lz4": [None, 1, 3, 8, 9, 10, 17],
    "zstd": [None, -131_072, -5, 1, 3, 22],
}
KINDS: list[Callable[[bytes], Buffer]] = [bytes, bytearray, memoryview]
CODECS = [(name, level) for name, levels in LEVELS.items() for level in levels]

_RANDOM = random.Random(1)
TEXT = b"".join(b"record %d with some text; " % (i % 997) for i in range(9000))
INPUTS = {
    "one byte": b"x",
    "a block of snappy": TEXT[: 32 * 1024],
    "a block of snappy and a byte": TEXT[: 32 * 1024 + 1],
    "a block of lz4": TEXT[: 64 * 1024],
    "a block of lz4 and a byte": TEXT[: 64 * 1024 + 1],
    "many blocks": TEXT,
    "what does not compress": _RANDOM.randbytes(200_000),
    "what compresses away": bytes(1_000_000),
}


def _compress(name: str, level: int | None, data: bytes) -> bytes:
    (packed,) = codec(name, level)([data])
    return bytes(packed)


@pytest.mark.parametrize("data", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize(("name", "level"), CODECS)
def test_what_is_compressed_is_read_by_another_decoder(
    name: str, level: int | None, data: bytes
) -> None:
    assert DECODERS[name](_compress(name, level, data)) == data


@given(data=st.binary(min_size=1, max_size=300), spec=st.sampled_from(CODECS))
def test_any_bytes_are_read_by_another_decoder(data: bytes, spec: tuple[str, int | None]) -> None:
    assert DECODERS[spec[0]](_compress(*spec, data)) == data


@given(
    pieces=st.lists(st.binary(max_size=50), min_size=1, max_size=5).filter(any),
    kinds=st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
    spec=st.sampled_from(CODECS),
)
def test_records_in_pieces_are_compressed_as_one_block(
    pieces: list[bytes], kinds: list[Callable[[bytes], Buffer]], spec: tuple[str, int | None]
) -> None:
    name, level = spec
    buffers: list[Buffer] = [kind(p) for kind, p in zip(kinds, pieces, strict=False)]
    packed = codec(name, level)(buffers)
    assert len(packed) == 1
    assert bytes(packed[0]) == _compress(name, level, b"".join(pieces))


@pytest.mark.parametrize("data", INPUTS.values(), ids=INPUTS)
@given(cuts=st.lists(st.integers(0, 1_000_000), max_size=6), spec=st.sampled_from(CODECS))
@settings(max_examples=10, deadline=None)
def test_blocks_end_where_they_would_without_pieces(
    data: bytes, cuts: list[int], spec: tuple[str, int | None]
) -> None:
    edges = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    pieces: list[Buffer] = [memoryview(data)[start:stop] for start, stop in pairwise(edges)]
    (packed,) = codec(*spec)(pieces)
    assert bytes(packed) == _compress(*spec, data)


def test_without_a_codec_the_same_pieces_come_back() -> None:
    pieces: list[Buffer] = [b"a", bytearray(b"b"), memoryview(b"c")]
    given_back = NO_COMPRESSION(pieces)
    assert [id(piece) for piece in given_back] == [id(piece) for piece in pieces]
    assert codec("none") is NO_COMPRESSION


@pytest.mark.parametrize("name", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codec_ids_are_those_of_the_record_format(name: str) -> None:
    made = codec(name)
    assert made.name == name
    assert made.id == getattr(DefaultRecordBase, f"CODEC_{name.upper()}")


def _lz4_blocks(frame: bytes) -> Iterator[bytes]:
    """Decode each block of a frame separately; fail if one needs those before it."""
    position = 7
    while True:
        (size,) = struct.unpack_from("<I", frame, position)
        position += 4
        if size == 0:
            break
        stored, size = size >> 31, size & 0x7FFF_FFFF
        block = frame[position : position + size]
        position += size
        yield block if stored else lz4.block.decompress(block, uncompressed_size=64 * 1024)
    assert position == len(frame), "bytes behind the end mark: a content checksum"


@pytest.mark.parametrize("data", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("level", LEVELS["lz4"])
def test_lz4_is_a_frame_of_independent_blocks_with_java_s_header(
    level: int | None, data: bytes
) -> None:
    frame = _compress("lz4", level, data)
    assert frame[:7].hex(" ") == "04 22 4d 18 60 40 82"
    blocks = list(_lz4_blocks(frame))
    assert b"".join(blocks) == data
    assert [len(block) for block in blocks[:-1]] == [64 * 1024] * (len(blocks) - 1)


@pytest.mark.parametrize("data", INPUTS.values(), ids=INPUTS)
def test_snappy_is_a_xerial_stream_of_32_kib_blocks(data: bytes) -> None:
    stream = _compress("snappy", None, data)
    assert stream[:16].hex() == "82534e41505059000000000100000001"
    position, sizes = 16, []
    while position < len(stream):
        (size,) = struct.unpack_from(">i", stream, position)
        block = kafka.codec.snappy_decode(stream[position + 4 : position + 4 + size])
        sizes.append(len(block))
        position += 4 + size
    assert sum(sizes) == len(data)
    assert sizes[:-1] == [32 * 1024] * (len(sizes) - 1)


def test_snappy_is_a_xerial_stream_as_another_client_wrote_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kafka-python's tests have these bytes, of blocks of 300."""
    written = bytes.fromhex(
        "82534e41505059000000000100000001"
        "00000018ac0214534e41505059fe0600fe0600fe0600fe0600960600"
        "00000018ac021458455249414cfe0600fe0600fe0600fe0600960600"
    )
    data = b"SNAPPY" * 50 + b"XERIAL" * 50
    assert decompress(codec("snappy").id, written, 600) == data
    monkeypatch.setattr("spark_kafka_sink.records.compression._XERIAL_BLOCK_BYTES", 300)
    assert _compress("snappy", None, data) == written


@pytest.mark.parametrize("level", LEVELS["gzip"])
def test_gzip_is_one_member_and_nothing_behind_it(level: int | None) -> None:
    stream = zlib.decompressobj(wbits=31)
    assert stream.decompress(_compress("gzip", level, TEXT)) == TEXT
    assert stream.eof
    assert stream.unused_data == b""


@pytest.mark.parametrize(
    ("name", "fast", "small"), [("gzip", 1, 9), ("lz4", 9, 3), ("zstd", -5, 19)]
)
def test_levels_trade_speed_for_size(name: str, fast: int, small: int) -> None:
    """Level 9 of lz4 is Kafka's default, and its fastest."""
    assert len(_compress(name, small, TEXT)) < len(_compress(name, fast, TEXT))


@pytest.mark.parametrize(("name", "default"), [("gzip", -1), ("lz4", 9), ("zstd", 3)])
def test_no_level_means_kafka_s_default_level(name: str, default: int) -> None:
    assert _compress(name, None, TEXT) == _compress(name, default, TEXT)
