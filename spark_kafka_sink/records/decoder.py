"""Decode the records section of a v2 record batch into columns; the inverse of `encoder`.

The length of a record is needed to find the next record, so a Python loop finds the positions of
all records. The fields are then read for all records at once. Two gather operations copy the keys
and the values. Headers are read one by one, because few records have headers.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.errors import corrupt
from spark_kafka_sink.records.columns import Bools, valid_utf8
from spark_kafka_sink.records.varint import Int64s, UInt8s

VARINT_BITS: Final = 32
VARLONG_BITS: Final = 64
# Attributes, timestamp, offset, key length, value length and number of headers, one byte each.
_SMALLEST_RECORD_BYTES: Final = 6
# The memory for decoding one record, without its key, value and headers, is at most this.
_ROW_BYTES: Final = 256
# The memory for decoding one header, besides its key and value, is at most this. A header can be as
# small as two bytes. Without a limit, a small response could therefore take gigabytes of memory.
_HEADER_BYTES: Final = 64
_MOST_HEADERS: Final = 1 << 20
ALL_IN_ONE_PART: Final = sys.maxsize


def read_varints(data: UInt8s, positions: Int64s, ends: Int64s, bits: int) -> tuple[Int64s, Int64s]:
    """Return the varint at each position, and the position after each varint.

    ends: for each varint, the position at which its record ends. Raise CorruptRecordException if a
    varint goes beyond the end of its record, or has more than `bits` bits.
    """
    if (positions >= ends).any():
        raise corrupt("a record ends where a varint is expected")
    byte = data[positions]
    values = (byte & 0x7F).astype(np.uint64)
    following = positions + 1
    unfinished = np.flatnonzero(byte & 0x80)
    shift = 7
    while len(unfinished):
        at = following[unfinished]
        if shift >= bits or (at >= ends[unfinished]).any():
            raise corrupt("a varint is longer than its type or its record")
        byte = data[at]
        if bits - shift < 7 and (byte >> (bits - shift)).any():
            raise corrupt(f"a varint does not fit {bits} bits")
        values[unfinished] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        following[unfinished] += 1
        unfinished = unfinished[byte >= 0x80]
        shift += 7
    return (values >> np.uint64(1)).view(np.int64) ^ -(values & np.uint64(1)).view(
        np.int64
    ), following


def read_varint(buffer: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    """Return the 32-bit varint at `position`, and the position after the varint.

    The checks are the same as in `read_varints`.
    """
    value = shift = 0
    while position < end and shift < VARINT_BITS:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> VARINT_BITS:
                break
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    raise corrupt("a varint is longer than its type or its record")


NO_TIMESTAMP: Final = -1
Ints: TypeAlias = npt.NDArray[np.signedinteger[Any]]
HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """Decoded records as columns of equal length.

    offsets, timestamps_ms: int64; the timestamp is -1 if the record has none. keys, values: Arrow
    binary. headers: an array of type `HEADERS_TYPE`, with an empty list for a record without
    headers.
    """

    offsets: Int64s
    timestamps_ms: Int64s
    keys: pa.Array
    values: pa.Array
    headers: pa.Array

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        """The size of the columns in memory, in bytes."""
        columns = (self.offsets, self.timestamps_ms, self.keys, self.values, self.headers)
        return sum(column.nbytes for column in columns)


@dataclass(frozen=True, slots=True)
class RecordFields:
    """Records as columns of equal length. The headers are not decoded yet.

    header_starts: the position at which the headers of each record begin, int64. ends: the position
    at which the headers of each record end, which is the end of the record, int64. Positions are
    counted from the start of the records section. copied_bytes: a key or a value with more bytes
    than this is not copied. In a record with only one header, the same is true for the header's key
    and value. The other fields are the same as in `DecodedRecords`.
    """

    offsets: Int64s
    timestamps_ms: Int64s
    keys: pa.Array
    values: pa.Array
    header_starts: Int64s
    ends: Int64s
    copied_bytes: int


def decode_parts(
    section: memoryview,
    count: int,
    base_offset: int,
    base_timestamp_ms: int,
    part_bytes: int,
    limit_bytes: int,
) -> Iterator[DecodedRecords]:
    """Decode `count` records that fill `section`, in parts. Yield at least one part.

    part_bytes: the approximate memory that one part may take, 1 or more. A part contains at least
    one record, unless `section` is empty. Large records are not copied completely: if a record is
    larger than ``2 * part_bytes``, its key and its value are views if they are larger than
    `part_bytes`. If the record has exactly one header, this is also true for the key and the value
    of the header. Several headers are always copied. A view keeps `section` alive. limit_bytes: the
    maximum memory for `section` and the headers of one record. It applies only if these headers
    take more than `part_bytes`. Raise CorruptRecordException at the first part that is invalid or
    exceeds this limit, or in place of the last part if `count` is wrong.
    """
    position = decoded = 0
    while True:
        starts, ends = _record_positions(section, position, part_bytes)
        decoded += len(starts)
        position = int(ends[-1]) if len(ends) else position
        is_last = position == len(section)
        if is_last:
            _check_count(decoded, count)
        fields = _fields(section, starts, ends, base_offset, base_timestamp_ms, part_bytes)
        del starts, ends
        yield from _with_headers(section, fields, part_bytes, limit_bytes)
        if is_last:
            return
        del fields


def _with_headers(
    section: memoryview, fields: RecordFields, part_bytes: int, limit_bytes: int
) -> Iterator[DecodedRecords]:
    """Yield the records with their headers, in several parts if they have many headers."""
    data = np.frombuffer(section, np.uint8)
    counts, positions = read_varints(data, fields.header_starts, fields.ends, VARINT_BITS)
    # A header takes at least two bytes.
    if (counts < 0).any() or (counts > (fields.ends - positions) // 2).any():
        raise corrupt("a record has more headers than fit into its bytes")
    if (counts > _MOST_HEADERS).any():
        raise corrupt(f"a record has {counts.max()} headers: expected at most {_MOST_HEADERS}")
    copied = np.where(counts > 1, fields.ends - positions, 0)
    largest = int((copied + counts * _HEADER_BYTES).max(initial=0))
    if largest > part_bytes and len(section) + largest > limit_bytes:
        raise corrupt(
            f"the headers of a record need {largest} bytes besides the {len(section)} bytes of its "
            f"batch: expected at most {limit_bytes} bytes in all"
        )
    header_bytes = np.cumsum(counts) * _HEADER_BYTES
    last_of_part = np.diff(header_bytes // max(part_bytes // 2, 1)) > 0
    first = 0
    for end in [*(np.flatnonzero(last_of_part) + 1).tolist(), len(counts)]:
        rows = slice(first, end)
        headers, at = _headers(
            section, counts[rows], positions[rows], fields.ends[rows], fields.copied_bytes
        )
        if (at != fields.ends[rows]).any():
            raise corrupt("a record is longer than its fields")
        yield DecodedRecords(
            fields.offsets[rows],
            fields.timestamps_ms[rows],
            fields.keys[rows],
            fields.values[rows],
            headers,
        )
        first = end


def read_fields(
    section: memoryview, count: int, base_offset: int, base_timestamp_ms: int
) -> RecordFields:
    """Decode everything except the headers of `count` records that fill `section`.

    Raise CorruptRecordException if the records are invalid. Headers are not checked.
    """
    starts, ends = _record_positions(section, 0, ALL_IN_ONE_PART)
    _check_count(len(starts), count)
    return _fields(section, starts, ends, base_offset, base_timestamp_ms, ALL_IN_ONE_PART)


def _fields(
    section: memoryview,
    starts: Int64s,
    ends: Int64s,
    base_offset: int,
    base_timestamp_ms: int,
    part_bytes: int,
) -> RecordFields:
    data = np.frombuffer(section, np.uint8)
    # Skip the byte with the record's attributes: Kafka does not use any.
    timestamps, at = read_varints(data, starts + 1, ends, VARLONG_BITS)
    offsets, at = read_varints(data, at, ends, VARINT_BITS)
    if (offsets < 0).any():
        raise corrupt("a record's offset is below the base offset of its batch")
    is_large = len(starts) == 1 and int(ends[0] - starts[0]) > 2 * part_bytes
    copied_bytes = part_bytes if is_large else ALL_IN_ONE_PART
    keys, at = _field(section, data, at, ends, copied_bytes)
    values, at = _field(section, data, at, ends, copied_bytes)
    times = timestamps + np.int64(base_timestamp_ms)
    return RecordFields(offsets + base_offset, times, keys, values, at, ends, copied_bytes)


def _record_positions(section: memoryview, position: int, part_bytes: int) -> tuple[Int64s, Int64s]:
    """Return the positions of each record's attributes and of each record's end, int64.

    position: where the first record begins. part_bytes: the memory that the records may take. Half
    of it is for their keys, values and headers. If a record is larger than this half, its positions
    are returned alone.
    """
    # An array takes 8 bytes per position, a list would take 40.
    starts, ends = array("q"), array("q")
    end = len(section)
    part_end = min(end, position + part_bytes // 2)
    for _ in range(max(part_bytes // 2 // _ROW_BYTES, 1)):
        if position >= end:
            break
        size = section[position]
        # Lengths up to 8191 are read inline, because a call for each would double the loop's time.
        if size < 0x80:
            size, position = (size >> 1) ^ -(size & 1), position + 1
        elif position + 1 < end and section[position + 1] < 0x80:
            size = size & 0x7F | section[position + 1] << 7
            size, position = (size >> 1) ^ -(size & 1), position + 2
        else:
            size, position = read_varint(section, position, end)
        # Smaller records are invalid, and would take far more memory here than in the section.
        if size < _SMALLEST_RECORD_BYTES:
            raise corrupt(f"a record has {size} bytes: expected at least {_SMALLEST_RECORD_BYTES}")
        start = position
        position += size
        if position > part_end:
            if position > end:
                raise corrupt(f"a record of {size} bytes does not fit its batch")
            if starts:
                break
        starts.append(start)
        ends.append(position)
    return np.frombuffer(starts, np.int64), np.frombuffer(ends, np.int64)


def _check_count(decoded: int, count: int) -> None:
    if decoded != count:
        raise corrupt(f"a batch has {decoded} records where its header says {count}")


def _field(
    section: memoryview, data: UInt8s, positions: Int64s, ends: Int64s, copied_bytes: int
) -> tuple[pa.Array, Int64s]:
    """Return the keys or the values of all records, and the position after each of them."""
    sizes, starts = read_varints(data, positions, ends, VARINT_BITS)
    stops = starts + np.maximum(sizes, 0)
    if (sizes < -1).any() or (stops > ends).any():
        raise corrupt("a key or a value does not fit its record")
    return gather(section, starts, stops, sizes >= 0, copied_bytes), stops


def gather(
    section: memoryview,
    starts: Ints,
    stops: Ints,
    valid: Bools,
    copied_bytes: int = ALL_IN_ONE_PART,
) -> pa.Array:
    """Return ``section[start:stop]`` of each row as a binary array, null where `valid` is False.

    The rows must be in ascending order in `section`. There may be other bytes between two rows.
    copied_bytes: a single row that is larger than this is not copied, and keeps `section` alive.
    """
    rows = len(starts)
    if not rows:
        return pa.array([], pa.binary())
    # The elements of this array alternate: row, gap, row, gap, … row.
    edges = np.empty(2 * rows, np.int32)
    edges[::2] = starts
    edges[1::2] = stops
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(section)]
    all_bytes = pa.Array.from_buffers(pa.binary(), 2 * rows - 1, buffers)
    if rows == 1 and stops[0] - starts[0] > copied_bytes:
        return all_bytes
    return all_bytes.take(pa.array(np.arange(0, 2 * rows, 2), mask=~valid))


def _headers(
    section: memoryview, counts: Int64s, positions: Int64s, ends: Int64s, copied_bytes: int
) -> tuple[pa.Array, Int64s]:
    """Return the headers of all records, and the position after each record's headers."""
    if not counts.any():
        return no_headers(len(counts)), positions
    # An array takes 20 bytes per header, a list of tuples would take 200. A header can be as small
    # as 2 bytes.
    spans = array("i")
    following = positions.copy()
    for row in np.flatnonzero(counts).tolist():
        position, end = int(positions[row]), int(ends[row])
        for _ in range(counts[row]):
            size, key = read_varint(section, position, end)
            if size < 0 or key + size > end:
                raise corrupt("a header's key does not fit its record")
            key_end = key + size
            size, value = read_varint(section, key_end, end)
            position = value + max(size, 0)
            if size < -1 or position > end:
                raise corrupt("a header's value does not fit its record")
            spans.extend((key, key_end, value, position, size >= 0))
        following[row] = position
    table = np.frombuffer(spans, np.intc).reshape(-1, 5)
    all_valid = np.ones(len(table), np.bool_)
    keys = valid_utf8(gather(section, table[:, 0], table[:, 1], all_valid, copied_bytes))
    is_set = table[:, 4].astype(np.bool_)
    values = gather(section, table[:, 2], table[:, 3], is_set, copied_bytes)
    list_offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    entries = pa.StructArray.from_arrays([keys, values], ["key", "value"])
    return pa.ListArray.from_arrays(list_offsets, entries), following


def no_headers(rows: int) -> pa.Array:
    """Return a headers column for records without headers. rows: the number of records."""
    entries = pa.array([], HEADERS_TYPE.value_type)
    return pa.ListArray.from_arrays(np.zeros(rows + 1, np.int32), entries)
