"""Message sets (formats v0 and v1) to columns; the other way of `message_set`.

Row by row: they are met only in topics that brokers before 0.11 wrote. A wrapper's messages count
their offsets from its first one in v1, so the wrapper's offset, which is its last message's, says
where they are; in v0 they have their own (AbstractLegacyRecordBatch.DeepRecordsIterator).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_kafka_sink.records.compression import LZ4, Buffer
from spark_kafka_sink.records.corruption import corrupt
from spark_kafka_sink.records.decoder import NO_TIMESTAMP, DecodedRecords, no_headers
from spark_kafka_sink.records.decompression import decompress
from spark_kafka_sink.records.message_set import LOG_OVERHEAD, MAGIC_AT
from spark_kafka_sink.records.old_lz4 import with_new_checksum

_HEAD: Final = struct.Struct(">qiIbb")
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_ATTRIBUTES_AT: Final = 17
_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08


class _Message(NamedTuple):
    offset: int
    magic: int
    attributes: int
    timestamp_ms: int
    key: Buffer | None
    value: Buffer | None


def decode_messages(entries: list[memoryview], limit_bytes: int) -> DecodedRecords:
    """Read whole messages (offset and size included), wrappers unpacked.

    limit_bytes: the most that the messages of one wrapper may be. Raises CorruptRecordException.
    """
    messages: list[_Message] = []
    for entry in entries:
        message = _message(entry)
        if is_wrapper(entry):
            messages += _unwrap(message, limit_bytes)
        else:
            messages.append(message)
    return DecodedRecords(
        np.array([m.offset for m in messages], np.int64),
        np.array([m.timestamp_ms for m in messages], np.int64),
        _binary([m.key for m in messages]),
        _binary([m.value for m in messages]),
        no_headers(len(messages)),
    )


def _binary(values: list[Buffer | None]) -> pa.Array:
    # As bytes: Arrow never lets go of a memoryview that it makes an array of (26.0).
    return pa.array([None if value is None else bytes(value) for value in values], pa.binary())


def is_wrapper(entry: memoryview) -> bool:
    """Whether a message stands for compressed ones."""
    return len(entry) > _ATTRIBUTES_AT and bool(entry[_ATTRIBUTES_AT] & _CODEC_MASK)


def message_offset(entry: memoryview) -> int:
    """Return the offset of a message, a wrapper's being that of its last message.

    Raises CorruptRecordException where the message is not whole.
    """
    return _within_int64(_message(entry).offset)


def _message(entry: memoryview) -> _Message:
    """Read one message, which fills `entry`, and check its CRC."""
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
        raise corrupt(f"the message at offset {offset} is not of format 0 or 1")
    return _Message(offset, magic, attributes, timestamp_ms, key, value)


def _bytes(entry: memoryview, position: int) -> tuple[Buffer | None, int]:
    (size,) = _INT32.unpack_from(entry, position)
    position += _INT32.size
    if size == -1:
        return None, position
    if size < 0 or position + size > len(entry):
        raise corrupt(f"a key or value of {size} bytes does not fit its message")
    return entry[position : position + size], position + size


def _unwrap(wrapper: _Message, limit_bytes: int) -> list[_Message]:
    codec_id = wrapper.attributes & _CODEC_MASK
    packed = wrapper.value
    if packed is None or codec_id > LZ4:
        raise corrupt(f"the wrapper message at offset {wrapper.offset} has no value or codec")
    if wrapper.magic == 0 and codec_id == LZ4:
        packed = with_new_checksum(packed)
    inner = [
        _message(entry)
        for entry in split_entries(memoryview(decompress(codec_id, packed, limit_bytes)))
    ]
    if not inner or any(m.attributes & _CODEC_MASK or m.magic != wrapper.magic for m in inner):
        raise corrupt(f"the wrapper message at offset {wrapper.offset} has no plain messages")
    if wrapper.magic == 0:
        return inner
    # Some producers left the wrapper's offset 0; a broker assigns offsets anew in any case.
    base = wrapper.offset - inner[-1].offset if wrapper.offset else 0
    if wrapper.attributes & _LOG_APPEND_TIME:
        inner = [m._replace(timestamp_ms=wrapper.timestamp_ms) for m in inner]
    return [m._replace(offset=_within_int64(base + m.offset)) for m in inner]


def _within_int64(offset: int) -> int:
    if not 0 <= offset < 2**63:
        raise corrupt(f"a message has the offset {offset}")
    return offset


def split_entries(log: memoryview) -> Iterator[memoryview]:
    """Yield the messages and batches of a log, of which a fetch may have cut off the last.

    Raises CorruptRecordException for a size that no entry has.
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
