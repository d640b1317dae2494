"""A slow, independent parser of record batches with the checks of a broker.

The value of every record of a simulation begins with its number (8 bytes, big-endian). With a ninth
byte `POISON`, a broker rejects the record as invalid.
"""

from __future__ import annotations

import gzip
import struct
from typing import Final, NamedTuple

import lz4.frame
import zstandard
from crc32c import crc32c

from simulation.scheduler import SimulationError
from spark_kafka_sink.model import TopicPartition

POISON: Final = 0x21
NUMBER: Final = struct.Struct(">Q")

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_OVERHEAD: Final = 61
_CRC_FROM: Final = 21
_LENGTH_FROM: Final = 12
_CODEC_BITS: Final = 7
_TRANSACTIONAL_BIT: Final = 16
_CONTROL_BIT: Final = 32


class GroupOffset(NamedTuple):
    """The committed offset of a group for a partition."""

    group: str
    partition: TopicPartition
    offset: int


class Batch(NamedTuple):
    """A record batch: the producer fields of its header, and the numbers of its records.

    is_commit: whether a marker commits; None for a batch that is not a marker. offsets: the offsets
    in a batch of committed group offsets. data: the batch as it was sent.
    """

    producer_id: int
    epoch: int
    base_sequence: int
    numbers: tuple[int, ...]
    poisoned: int | None
    size_bytes: int
    is_transactional: bool = False
    is_commit: bool | None = None
    offsets: tuple[GroupOffset, ...] = ()
    data: bytes = b""

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; 0 follows 2**31 - 1."""
        return (self.base_sequence + len(self.numbers) - 1) % 2**31


def read_batch(data: bytes) -> Batch:
    """Return a parsed batch after all checks of a broker. Raise SimulationError."""
    (base, length, _, magic, crc, attributes, last_delta, base_time, max_time, producer_id, epoch,
     sequence, count) = _HEADER.unpack_from(data)  # fmt: skip
    _check(length == len(data) - _LENGTH_FROM, f"length {length} of a batch of {len(data)} bytes")
    _check((base, magic) == (0, 2), f"base offset {base}, magic {magic}")
    _check(crc == crc32c(data[_CRC_FROM:]), "wrong CRC")
    _check(last_delta == count - 1, f"last offset delta {last_delta} for {count} records")
    body = _decompress(attributes & _CODEC_BITS, data[_OVERHEAD:])
    numbers, times, poisoned, position = [], [], None, 0
    for index in range(count):
        number, time_delta, is_poison, position = _read_record(body, position, index)
        numbers.append(number)
        times.append(time_delta)
        if is_poison and poisoned is None:
            poisoned = index
    _check(position == len(body), f"{len(body) - position} bytes after the last record")
    _check(times[0] == 0, "the base timestamp is not the first record's")
    _check(max_time == base_time + max(times), "wrong max timestamp")
    is_transactional = bool(attributes & _TRANSACTIONAL_BIT)
    return Batch(
        producer_id,
        epoch,
        sequence,
        tuple(numbers),
        poisoned,
        len(data),
        is_transactional,
        data=data,
    )


def marker_data(batch: Batch) -> bytes:
    """Return a marker as a batch with its control record."""
    key = struct.pack(">hh", 0, int(bool(batch.is_commit)))
    value = struct.pack(">hi", 0, 0)
    # Attributes, timestamp and offset deltas, sizes of key and value as varints, no headers.
    record = b"\0\0\0" + bytes([2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\0"
    body = bytes([2 * len(record)]) + record
    attributes = _TRANSACTIONAL_BIT | _CONTROL_BIT
    fields = (0, _OVERHEAD + len(body) - _LENGTH_FROM, 0, 2, 0, attributes, 0, 0, 0)
    header = _HEADER.pack(*fields, batch.producer_id, batch.epoch, -1, 1)
    data = bytearray(header + body)
    struct.pack_into(">I", data, _CRC_FROM - 4, crc32c(bytes(data[_CRC_FROM:])))
    return bytes(data)


def data_at(batch: Batch, offset: int) -> bytes:
    """Return a batch as a log has it, from an offset on."""
    data = batch.data or marker_data(batch)
    return struct.pack(">q", offset) + data[8:]


def _read_record(body: bytes, position: int, index: int) -> tuple[int, int, bool, int]:
    length, position = _varint(body, position)
    end = position + length
    time_delta, position = _varint(body, position + 1)
    offset_delta, position = _varint(body, position)
    _check(offset_delta == index, f"offset delta {offset_delta} for record {index}")
    key_length, position = _varint(body, position)
    position += max(0, key_length)
    value_length, position = _varint(body, position)
    (number,) = NUMBER.unpack_from(body, position)
    is_poison = value_length > NUMBER.size and body[position + NUMBER.size] == POISON
    position += value_length
    _check(body[position] == 0, "headers where none were sent")
    _check(position + 1 == end, "a record is not as long as it says")
    return number, time_delta, is_poison, end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def _decompress(codec: int, data: bytes) -> bytes:
    if codec == 1:
        return gzip.decompress(data)
    if codec == 3:
        unpacked: bytes = lz4.frame.decompress(data)
        return unpacked
    if codec == 4:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data


def _check(holds: bool, found: str) -> None:  # noqa: FBT001 - an assertion with a sentence
    if not holds:
        message = f"a broker got a batch it cannot read: {found}"
        raise SimulationError(message)
