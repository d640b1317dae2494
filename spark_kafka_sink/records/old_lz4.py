"""The lz4 frames of message sets v0, whose header checksum Java once computed wrongly (KAFKA-3160).

A frame's header ends with a byte of xxHash32 over the descriptor (flags, block size, and what the
flags say follows); Kafka before 0.10 hashed the frame's magic number with it. Readers of v0 accept
nothing else (0.8, 0.9) or anything (later); everything but that byte is the same frame.

::

    04 22 4d 18 | flags | block size | [content size 8] | [dictionary id 4] | checksum | blocks …
"""

from __future__ import annotations

from spark_kafka_sink.records.compression import Buffer
from spark_kafka_sink.records.corruption import corrupt

_MAGIC_BYTES = 4
_CONTENT_SIZE, _DICTIONARY_ID = 0x08, 0x01
_PRIME_1, _PRIME_2, _PRIME_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME_4, _PRIME_5 = 0x27D4EB2F, 0x165667B1
_MASK = 0xFFFFFFFF


def with_old_checksum(frame: Buffer) -> bytes:
    """Give a frame as message sets v0 hold it."""
    return _with_checksum(frame, 0)


def with_new_checksum(frame: Buffer) -> bytes:
    """Give a frame of a message set v0 as every lz4 library reads it."""
    return _with_checksum(frame, _MAGIC_BYTES)


def _with_checksum(frame: Buffer, hashed_from: int) -> bytes:
    if len(frame) < _MAGIC_BYTES + 3:
        raise corrupt(f"{len(frame)} bytes are no lz4 frame")
    flags = frame[_MAGIC_BYTES]
    end = _MAGIC_BYTES + 2
    end += 8 if flags & _CONTENT_SIZE else 0
    end += 4 if flags & _DICTIONARY_ID else 0
    hashed = xxhash32(bytes(frame[hashed_from : min(end, hashed_from + 15)]))
    return b"".join([frame[:end], bytes([hashed >> 8 & 0xFF]), frame[end + 1 :]])


def xxhash32(data: bytes) -> int:
    """Give the xxHash32 of fewer than 16 bytes, which take the short way of the algorithm."""
    value = _PRIME_5 + len(data)
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        value += int.from_bytes(data[start : start + 4], "little") * _PRIME_3
        value = _rotate(value, 17) * _PRIME_4
    for byte in data[whole:]:
        value += byte * _PRIME_5
        value = _rotate(value, 11) * _PRIME_1
    value &= _MASK
    value = (value ^ value >> 15) * _PRIME_2 & _MASK
    value = (value ^ value >> 13) * _PRIME_3 & _MASK
    return value ^ value >> 16


def _rotate(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> (32 - bits)) & _MASK
