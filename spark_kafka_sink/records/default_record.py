"""Write and read v2 records one by one, in plain Python (DefaultRecord).

The processes in which Spark plans and commits a job write and read the commit log, which contains
only a few small records. They use this module, which needs neither numpy nor Arrow: importing those
would take longer than the work itself. The rows of a job go through `encoder` and `decoder`
instead.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from spark_kafka_sink.errors import corrupt
from spark_kafka_sink.records.batch import (
    MAX_CONTROL_BYTES,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    BatchInfo,
    Buffer,
    Marker,
    marker,
    read_header,
)
from spark_kafka_sink.records.decompression import decompress

_SIZE: Final = struct.Struct(">i")
_SIZE_AT: Final = 8
_ENTRY_OVERHEAD: Final = 12
_MAGIC_AT: Final = 16
_NULL: Final = -1
_VARINT_BITS: Final = 32
_VARLONG_BITS: Final = 64
# Far more than the largest record that a broker accepts by default.
_MAX_UNPACKED_BYTES: Final = 64 * 1024 * 1024


class DefaultRecord(NamedTuple):
    """A record of a log: its offset, key and value, without timestamp and headers."""

    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class DefaultBatch:
    """A batch that was read from a log. Its records are decompressed by `records`."""

    header: BatchHeader
    data: memoryview

    def records(self) -> Iterator[DefaultRecord]:
        """Return an iterator over the records; compaction may have removed all of them.

        The iterator decodes one record at a time, because Python objects take far more memory than
        encoded records. Raise CorruptRecordException if the batch cannot be decompressed. The
        iterator raises it at the first invalid record, and at the end if the record count in the
        header is wrong.
        """
        return self._records(_MAX_UNPACKED_BYTES)

    def _records(self, limit_bytes: int) -> Iterator[DefaultRecord]:
        if not self.header.record_count:
            return iter(())
        packed = self.data[RECORD_BATCH_OVERHEAD:]
        section = decompress(self.header.codec_id, packed, limit_bytes)
        return _read_records(memoryview(section), self.header)

    def marker(self) -> Marker | None:
        """Return the transaction marker of a control batch, None if it has no marker.

        Only the first record is decoded, because a control batch contains no others. Raise
        CorruptRecordException if the record is invalid or too large.
        """
        first = next(self._records(MAX_CONTROL_BYTES), None)
        return None if first is None else marker(first.key)


def one_record(key: bytes, value: bytes, timestamp_ms: int) -> tuple[bytes, BatchInfo]:
    """Return the records section of a batch with one record, and the fields for its header."""
    out = bytearray(b"\0\0\0")  # attributes, timestamp delta, offset delta
    for field in (key, value):
        _write_varint(out, len(field))
        out += field
    out.append(0)  # no headers
    section = bytearray()
    _write_varint(section, len(out))
    info = BatchInfo(
        record_count=1, base_timestamp_ms=timestamp_ms, max_timestamp_ms=timestamp_ms, codec_id=0
    )
    return bytes(section + out), info


def read_batches(log: Buffer) -> Iterator[DefaultBatch]:
    """Yield the complete batches in the records of a Fetch response, in order.

    Raise CorruptRecordException if a batch is invalid.
    """
    view = memoryview(log)
    position = 0
    while position + _ENTRY_OVERHEAD <= len(view):
        (size,) = _SIZE.unpack_from(view, position + _SIZE_AT)
        if size <= _MAGIC_AT - _ENTRY_OVERHEAD:
            raise corrupt(f"an entry of {size} bytes is too small for any record format")
        end = position + _ENTRY_OVERHEAD + size
        if end > len(view):
            return
        if view[position + _MAGIC_AT] != 2:
            raise corrupt(f"a batch has format {view[position + _MAGIC_AT]}: expected 2")
        batch = view[position:end]
        yield DefaultBatch(read_header(batch), batch)
        position = end


def _read_records(section: memoryview, header: BatchHeader) -> Iterator[DefaultRecord]:
    position, count = 0, 0
    while position < len(section):
        size, position = _read_varint(section, position, len(section), _VARINT_BITS)
        end = position + size
        if size <= 0 or end > len(section):
            raise corrupt(f"a record of {size} bytes does not fit its batch")
        yield _read_record(section, position + 1, end, header)
        position = end
        count += 1
    if count != header.record_count:
        raise corrupt(f"a batch has {count} records where its header says {header.record_count}")


def _read_record(
    section: memoryview, position: int, end: int, header: BatchHeader
) -> DefaultRecord:
    _, position = _read_varint(section, position, end, _VARLONG_BITS)
    delta, position = _read_varint(section, position, end, _VARINT_BITS)
    if not 0 <= delta <= header.last_offset_delta:
        raise corrupt("a record's offset is outside the offsets of its batch")
    key, position = _read_field(section, position, end)
    value, position = _read_field(section, position, end)
    return DefaultRecord(header.base_offset + delta, key, value)


def _read_field(section: memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = _read_varint(section, position, end, _VARINT_BITS)
    if size == _NULL:
        return None, position
    stop = position + size
    if size < 0 or stop > end:
        raise corrupt("a key or a value does not fit its record")
    return bytes(section[position:stop]), stop


def _read_varint(section: memoryview, position: int, end: int, bits: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < bits:
        byte = section[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits:
                break
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    raise corrupt("a varint is longer than its type or its record")


def _write_varint(out: bytearray, size: int) -> None:
    """Append a size as a zigzag varint. A size is never negative."""
    value = size << 1
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
