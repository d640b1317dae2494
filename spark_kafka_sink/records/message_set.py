"""Encode and decode message sets, the record formats v0 and v1 of brokers before 0.11.

::

    offset i64 | size i32 | crc u32 | magic i8 | attributes i8 | [timestamp i64, v1]
               | key length i32 (-1: null) | key | value length i32 | value

The checksum is zlib's CRC-32, while v2 batches have a CRC-32C. It covers everything from the magic
to the end of the message. Compressed messages are the value of a wrapper message. The attributes of
the wrapper contain the codec. The offsets of the messages inside are relative in v1 and absolute in
v0. A message set from a client begins at offset 0, so there, both kinds of offsets are the same.
The offset of the wrapper is the offset of its last message. In v1, the timestamp of the wrapper is
the latest timestamp of its messages (MemoryRecordsBuilder, LegacyRecord).

In v0, the header checksum of an lz4 frame wrongly includes the frame's magic number (KIP-57).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.errors import ApiException, corrupt
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.compression import LZ4, Buffer, Codec
from spark_kafka_sink.records.decoder import (
    ALL_IN_ONE_PART,
    NO_TIMESTAMP,
    DecodedRecords,
    no_headers,
)
from spark_kafka_sink.records.decompression import decompress
from spark_kafka_sink.records.encoder import Pieces
from spark_kafka_sink.records.varint import Int64s

_MAGIC_BYTES = 4
_CONTENT_SIZE, _DICTIONARY_ID = 0x08, 0x01
_PRIME_1, _PRIME_2, _PRIME_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME_4, _PRIME_5 = 0x27D4EB2F, 0x165667B1
_MASK = 0xFFFFFFFF


def with_v0_checksum(frame: Buffer) -> bytes:
    """Return an lz4 frame with the wrong header checksum that is used in v0 message sets."""
    return _with_checksum(frame, 0)


def with_standard_checksum(frame: Buffer) -> bytes:
    """Return a v0 message set's lz4 frame with the header checksum that lz4 libraries expect."""
    return _with_checksum(frame, _MAGIC_BYTES)


def _with_checksum(frame: Buffer, hashed_from: int) -> bytes:
    if len(frame) < _MAGIC_BYTES + 3:
        raise corrupt(f"{len(frame)} bytes are not an lz4 frame")
    flags = frame[_MAGIC_BYTES]
    end = _MAGIC_BYTES + 2
    end += 8 if flags & _CONTENT_SIZE else 0
    end += 4 if flags & _DICTIONARY_ID else 0
    hashed = xxhash32(bytes(frame[hashed_from : min(end, hashed_from + 15)]))
    return b"".join([frame[:end], bytes([hashed >> 8 & 0xFF]), frame[end + 1 :]])


def xxhash32(data: bytes) -> int:
    """Return the xxHash32 of fewer than 16 bytes, for which the algorithm is short."""
    value = _PRIME_5 + len(data)
    aligned = len(data) // 4 * 4
    for start in range(0, aligned, 4):
        value += int.from_bytes(data[start : start + 4], "little") * _PRIME_3
        value = _rotate(value, 17) * _PRIME_4
    for byte in data[aligned:]:
        value += byte * _PRIME_5
        value = _rotate(value, 11) * _PRIME_1
    value &= _MASK
    value = (value ^ value >> 15) * _PRIME_2 & _MASK
    value = (value ^ value >> 13) * _PRIME_3 & _MASK
    return value ^ value >> 16


def _rotate(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> (32 - bits)) & _MASK


LOG_OVERHEAD: Final = 12
MAGIC_AT: Final = 16

_CRC_AT: Final = 12
_LENGTH_BYTES: Final = 4
_COMMON: Final = [
    ("offset", ">i8"),
    ("size", ">i4"),
    ("crc", ">u4"),
    ("magic", "i1"),
    ("attributes", "i1"),
]
_KEY_LENGTH: Final = ("key_length", ">i4")
_HEADS: Final = {
    0: np.dtype([*_COMMON, _KEY_LENGTH]),
    1: np.dtype([*_COMMON, ("timestamp", ">i8"), _KEY_LENGTH]),
}


def message_set(magic: int, columns: RecordColumns, codec: Codec) -> tuple[Buffer, ...]:
    """Encode one or more rows as a message set of format `magic` (0 or 1) from offset 0.

    Headers are dropped in both formats, and timestamps in format 0, because they cannot be encoded.
    """
    rows = len(columns)
    plain = _messages(magic, 0, np.arange(rows), columns)
    if codec.compress is None:
        return (plain,)
    (packed,) = codec((plain,))
    if magic == 0 and codec.id == LZ4:
        packed = with_v0_checksum(packed)
    wrapped = RecordColumns.of(
        key=None,
        value=BinaryColumn(np.frombuffer(packed, np.uint8), np.array([0, len(packed)]), None),
        headers=None,
        timestamps_ms=columns.timestamps_ms.max(keepdims=True),
    )
    return (_messages(magic, codec.id, np.array([rows - 1]), wrapped),)


def _messages(magic: int, attributes: int, offsets: Int64s, columns: RecordColumns) -> bytearray:
    rows = len(columns)
    heads = np.zeros(rows, _HEADS[magic])
    heads["offset"] = offsets
    heads["magic"], heads["attributes"] = magic, attributes
    if magic:
        heads["timestamp"] = columns.timestamps_ms
    heads["key_length"] = -1 if columns.key_lengths is None else columns.key_lengths
    value_lengths = columns.value_lengths.astype(">i4")
    heads["size"] = heads.dtype.itemsize - LOG_OVERHEAD + _LENGTH_BYTES
    heads["size"] += np.maximum(columns.value_lengths, 0).astype(np.int32)
    heads["size"] += np.maximum(heads["key_length"], 0)

    parts = [_fixed(heads), columns.key, _fixed(value_lengths), columns.value]
    present = [part for part in parts if part is not None]
    pieces, step = Pieces(rows * len(present)), len(present)
    for number, part in enumerate(present):
        pieces.put(slice(number, None, step), part)
    gathered, ends = pieces.gather()
    out = bytearray(gathered)
    _put_checksums(out, ends[::step])
    return out


def _fixed(rows: npt.NDArray[np.generic]) -> BinaryColumn:
    """Return a column in which each row has the bytes of one element of `rows`."""
    offsets = np.arange(len(rows) + 1) * rows.dtype.itemsize
    return BinaryColumn(rows.view(np.uint8).reshape(-1), offsets, None)


def _put_checksums(out: bytearray, edges: Int64s) -> None:
    view = memoryview(out)
    for start, stop in pairwise(edges.tolist()):
        crc = zlib.crc32(view[start + MAGIC_AT : stop])
        view[start + _CRC_AT : start + MAGIC_AT] = crc.to_bytes(4, "big")


_HEAD: Final = struct.Struct(">qiIbb")
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_ATTRIBUTES_AT: Final = 17
_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
# The memory for decoding one message, without its key and value, is at most this.
_MESSAGE_BYTES: Final = 1024


class _Message(NamedTuple):
    offset: int
    magic: int
    attributes: int
    timestamp_ms: int
    key: memoryview | None
    value: memoryview | None

    @property
    def nbytes(self) -> int:
        """The size of the key and the value, in bytes."""
        return len(self.key or b"") + len(self.value or b"")


@dataclass(frozen=True, slots=True)
class Messages:
    """Adjacent messages, or the messages inside a wrapper, with their range of offsets."""

    base_offset: int
    last_offset: int
    _messages: Callable[[], Iterator[_Message]]

    def parts(self, part_bytes: int) -> Iterator[DecodedRecords]:
        """Yield the messages in parts.

        part_bytes: the memory that one part may take; a part has at least one message. If the key
        and the value of a message together are larger than ``2 * part_bytes``, each of them that is
        larger than `part_bytes` is a view, not a copy. A view keeps the bytes of all messages
        alive. Raise CorruptRecordException if a message in a wrapper is invalid.
        """
        part: list[_Message] = []
        left = part_bytes
        for message in self._messages():
            left -= _MESSAGE_BYTES + message.nbytes
            if part and left < 0:
                yield _columns(part, part_bytes)
                part, left = [], part_bytes - _MESSAGE_BYTES - message.nbytes
            part.append(message)
            del message
        yield _columns(part, part_bytes)


def read_messages(entries: list[memoryview], limit_bytes: int) -> Messages:
    """Read messages without a wrapper, or decompress one wrapper and read its messages.

    entries: one or more complete messages, each with its offset and its size. limit_bytes: the
    maximum size of the messages in a wrapper. Raise CorruptRecordException if they are larger or
    invalid.
    """
    messages = [_message(entry) for entry in entries]
    if is_wrapper(entries[0]):
        return _unwrap(messages[0], limit_bytes)
    return Messages(messages[0].offset, messages[-1].offset, lambda: iter(messages))


def _columns(messages: list[_Message], part_bytes: int) -> DecodedRecords:
    copied_bytes = part_bytes if messages[0].nbytes > 2 * part_bytes else ALL_IN_ONE_PART
    return DecodedRecords(
        np.array([m.offset for m in messages], np.int64),
        np.array([m.timestamp_ms for m in messages], np.int64),
        _binary([m.key for m in messages], copied_bytes),
        _binary([m.value for m in messages], copied_bytes),
        no_headers(len(messages)),
    )


def _binary(values: list[memoryview | None], copied_bytes: int) -> pa.Array:
    value = values[0]
    if len(values) == 1 and value is not None:
        edges = np.array([0, len(value)], np.int32)
        data = value if len(value) > copied_bytes else bytes(value)
        buffers = [None, pa.py_buffer(edges), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), 1, buffers)
    # Copy to bytes, because Arrow never releases a memoryview that it converts to an array (26.0).
    return pa.array([None if v is None else bytes(v) for v in values], pa.binary())


def is_wrapper(entry: memoryview) -> bool:
    """Return whether a message is a wrapper, which contains compressed messages."""
    return len(entry) > _ATTRIBUTES_AT and bool(entry[_ATTRIBUTES_AT] & _CODEC_MASK)


def message_offset(entry: memoryview) -> int:
    """Return the offset of a message; for a wrapper, the offset of the last message in it.

    Raise CorruptRecordException if the message is incomplete.
    """
    return _within_int64(_message(entry).offset)


def _message(entry: memoryview) -> _Message:
    """Read the one message that fills `entry`, and check its CRC."""
    try:
        offset, _, crc, magic, attributes = _HEAD.unpack_from(entry)
        position = _HEAD.size
        timestamp_ms = NO_TIMESTAMP
        if magic == 1:
            (timestamp_ms,) = _INT64.unpack_from(entry, position)
            position += _INT64.size
        key, position = _bytes(entry, position)
        value, position = _bytes(entry, position)
    except struct.error:
        raise corrupt(f"a message of {len(entry)} bytes is too short") from None
    found = zlib.crc32(entry[MAGIC_AT:])
    if found != crc:
        raise corrupt(f"the CRC-32 of the message at offset {offset} is {found:#x}, not {crc:#x}")
    if position != len(entry) or magic not in (0, 1):
        raise corrupt(
            f"the message at offset {offset} is longer than its fields, or not of format 0 or 1"
        )
    return _Message(offset, magic, attributes, timestamp_ms, key, value)


def _bytes(entry: memoryview, position: int) -> tuple[memoryview | None, int]:
    (size,) = _INT32.unpack_from(entry, position)
    position += _INT32.size
    if size == -1:
        return None, position
    if size < 0 or position + size > len(entry):
        raise corrupt(f"a key or value of {size} bytes does not fit its message")
    return entry[position : position + size], position + size


def _unwrap(wrapper: _Message, limit_bytes: int) -> Messages:
    codec_id = wrapper.attributes & _CODEC_MASK
    packed = wrapper.value
    if packed is None or codec_id > LZ4:
        what = "no value" if packed is None else f"the codec {codec_id}: expected 1 to {LZ4}"
        raise corrupt(f"the wrapper message at offset {wrapper.offset} has {what}")
    if wrapper.magic == 0 and codec_id == LZ4:
        packed = memoryview(with_standard_checksum(packed))
    section = memoryview(decompress(codec_id, packed, limit_bytes))
    last = None
    for last in split_entries(section):  # noqa: B007 - only the last one counts
        pass
    if last is None:
        raise _no_messages(wrapper)
    # In v1, offsets count from the first message of the wrapper. Some producers leave the wrapper's
    # offset at 0, because the broker assigns new offsets.
    is_relative = wrapper.magic == 1 and wrapper.offset != 0
    base = wrapper.offset - _message(last).offset if is_relative else 0
    messages = partial(_inner_messages, wrapper, section, base)
    return Messages(next(messages()).offset, base + _message(last).offset, messages)


def _inner_messages(wrapper: _Message, section: memoryview, base: int) -> Iterator[_Message]:
    has_log_append_time = wrapper.magic == 1 and bool(wrapper.attributes & _LOG_APPEND_TIME)
    for entry in split_entries(section):
        message = _message(entry)
        if message.attributes & _CODEC_MASK or message.magic != wrapper.magic:
            raise _no_messages(wrapper)
        timestamp_ms = wrapper.timestamp_ms if has_log_append_time else message.timestamp_ms
        offset = _within_int64(base + message.offset)
        yield message._replace(offset=offset, timestamp_ms=timestamp_ms)


def _no_messages(wrapper: _Message) -> ApiException:
    return corrupt(
        f"the wrapper message at offset {wrapper.offset} is empty, or has a message that is "
        "compressed or of another format"
    )


def _within_int64(offset: int) -> int:
    if not 0 <= offset < 2**63:
        raise corrupt(f"a message has the invalid offset {offset}")
    return offset


def split_entries(log: memoryview) -> Iterator[memoryview]:
    """Yield the complete messages and batches of a log.

    Raise CorruptRecordException for a size that is too small for any record format.
    """
    position = 0
    while position + LOG_OVERHEAD <= len(log):
        (size,) = _INT32.unpack_from(log, position + 8)
        if size <= MAGIC_AT - LOG_OVERHEAD:
            raise corrupt(f"an entry of {size} bytes is too small for any record format")
        end = position + LOG_OVERHEAD + size
        if end > len(log):
            break
        yield log[position:end]
        position = end
