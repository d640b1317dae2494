"""Decompress data of Kafka's four codecs, up to a size limit.

A compressed batch does not contain its uncompressed size, and a few kilobytes can expand to
gigabytes. Each codec is therefore read as a stream that stops at the limit. A snappy block contains
its uncompressed size, so a block that is too large is rejected before memory is allocated. For any
input, `decompress` either returns data or raises CorruptRecordException.

The libraries are imported at the first decompression, because some processes do not need them. For
example, the processes in which Spark plans and commits a job only read the small records of the
commit log.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final

from spark_kafka_sink.errors import ApiException, corrupt
from spark_kafka_sink.records.compression import Buffer

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
# Snappy encodes a copy of up to 64 bytes in three bytes.
_MAX_SNAPPY_RATIO: Final = 22
_GZIP_WINDOW_BITS: Final = 31
_FIRST_GZIP_STEP_BYTES: Final = 64
_LAST_GZIP_STEP_BYTES: Final = 1 << 16
_STREAM_BYTES: Final = 1 << 18
_LZ4_STEP_BYTES: Final = 1 << 18


def decompress(codec_id: int, data: Buffer, limit_bytes: int) -> Buffer:
    """Decompress `data`, and return the result.

    codec_id: the id of the codec in a batch's attributes, 0 for no compression. Raise
    CorruptRecordException if the bytes are not valid for the codec, or expand to more than
    `limit_bytes`.
    """
    if codec_id == 0:
        return data
    codec = _CODECS.get(codec_id)
    if codec is None:
        raise corrupt(f"unknown codec {codec_id}: expected 0 to 4")
    name, read = codec
    try:
        return read(data, limit_bytes)
    except ApiException:
        raise
    except _errors(codec_id) as error:
        raise corrupt(f"{len(data)} bytes cannot be decompressed as {name}: {error}") from error


def _errors(codec_id: int) -> tuple[type[Exception], ...]:
    """Return the exceptions that the codec's library raises for invalid data.

    pyarrow is imported only for the codecs that it decompresses. Its exceptions are returned only
    for these codecs.
    """
    errors = (OSError, zlib.error, RuntimeError, ValueError)
    if codec_id not in _OF_ARROW:
        return errors
    import pyarrow as pa  # noqa: PLC0415 - see the module's docstring

    return (*errors, pa.ArrowException)


def _too_large(limit_bytes: int) -> ApiException:
    return corrupt(f"a compressed batch expands to more than {limit_bytes} bytes")


def _gzip(data: Buffer, limit_bytes: int) -> Buffer:
    """Decompress one gzip member or several, as Java's GZIPInputStream does.

    At the end of each member, and of each part of the output, zlib copies all input that it has not
    used yet. So zlib does not get the whole input at once, but in steps that start small and double
    up to a limit. The number of copied bytes then stays proportional to the size of the data,
    however many members there are.
    """
    view = memoryview(data)
    unpacked = bytearray()
    position = 0
    while position < len(view):
        stream = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
        step = _FIRST_GZIP_STEP_BYTES
        while not stream.eof:
            piece = view[position : position + step]
            if not piece:
                raise corrupt("a gzip member is incomplete")
            rest: Buffer = piece
            part = b""
            # When zlib has used all input, there may still be more output than fits one part. At
            # the end of a member, the rest of the input is the next member.
            while not stream.eof and (rest or len(part) == _STREAM_BYTES):
                part = stream.decompress(rest, _STREAM_BYTES)
                unpacked += part
                if len(unpacked) > limit_bytes:
                    raise _too_large(limit_bytes)
                rest = stream.unconsumed_tail
            position += len(piece) - len(stream.unused_data)
            step = min(2 * step, _LAST_GZIP_STEP_BYTES)
    return unpacked


def _snappy(data: Buffer, limit_bytes: int) -> Buffer:
    """Decompress a xerial stream of blocks, or a single block without the stream's header.

    librdkafka writes such single blocks.
    """
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(view, 0, limit_bytes)
    unpacked = bytearray()
    position = _XERIAL_HEADER_BYTES
    while position < len(view):
        if position + 4 > len(view):
            raise corrupt("a snappy stream ends inside the size of a block")
        (size,) = struct.unpack_from(">i", view, position)
        position += 4
        if size < 0 or position + size > len(view):
            raise corrupt(f"a snappy block of {size} bytes does not fit its stream")
        unpacked += _snappy_block(view[position : position + size], len(unpacked), limit_bytes)
        position += size
    return unpacked


def _snappy_block(block: memoryview, before_bytes: int, limit_bytes: int) -> Buffer:
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > len(block) * _MAX_SNAPPY_RATIO:
        raise corrupt(f"a snappy block of {len(block)} bytes cannot expand to {size}")
    if before_bytes + size > limit_bytes:
        raise _too_large(limit_bytes)
    import pyarrow as pa  # noqa: PLC0415 - see the module's docstring

    part: bytes = pa.Codec("snappy").decompress(block, size, asbytes=True)
    return part


def _lz4(data: Buffer, limit_bytes: int) -> Buffer:
    import lz4.frame  # noqa: PLC0415 - see the module's docstring

    view = memoryview(data)
    unpacked = bytearray()
    stream = lz4.frame.LZ4FrameDecompressor()
    position = 0
    # Small steps are used, because each call allocates memory for the longest result that it may
    # return, and copies the input that it does not use.
    while not stream.eof:
        piece: Buffer = b""
        if stream.needs_input:
            piece = view[position : position + _LZ4_STEP_BYTES]
            if not piece:
                raise corrupt("an lz4 frame is incomplete")
            position += len(piece)
        unpacked += stream.decompress(piece, _STREAM_BYTES)
        if len(unpacked) > limit_bytes:
            raise _too_large(limit_bytes)
    return unpacked


def _zstd(data: Buffer, limit_bytes: int) -> Buffer:
    import pyarrow as pa  # noqa: PLC0415 - see the module's docstring

    unpacked = bytearray()
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        while part := stream.read(_STREAM_BYTES):
            unpacked += part
            if len(unpacked) > limit_bytes:
                raise _too_large(limit_bytes)
    return unpacked


_CODECS: Final[dict[int, tuple[str, Callable[[Buffer, int], Buffer]]]] = {
    1: ("gzip", _gzip),
    2: ("snappy", _snappy),
    3: ("lz4", _lz4),
    4: ("zstd", _zstd),
}
_OF_ARROW: Final = frozenset((2, 4))
