"""Read and write the 61-byte header of a v2 record batch.

::

    off len field                  off len field
      0   8 baseOffset (0)          27   8 baseTimestamp (of the first record)
      8   4 batchLength             35   8 maxTimestamp
     12   4 partitionLeaderEpoch    43   8 producerId
     16   1 magic (2)               51   2 producerEpoch
     17   4 crc                     53   4 baseSequence
     21   2 attributes              57   4 recordsCount
     23   4 lastOffsetDelta         61   … records, compressed as one block

The CRC-32C covers everything from the attributes to the end of the batch. A new producer id, epoch
or sequence number therefore needs a new header, but the records are neither changed nor copied
(DefaultRecordBatch).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from crc32c import crc32c

from spark_kafka_sink.errors import corrupt
from spark_kafka_sink.model import ProducerIdAndEpoch

Buffer = bytes | bytearray | memoryview

RECORD_BATCH_OVERHEAD: Final = 61
NO_SEQUENCE: Final = -1
MAX_SEQUENCE: Final = 2**31 - 1
# A control batch contains one record of a few bytes. Brokers do not compress it.
MAX_CONTROL_BYTES: Final = 64 * 1024

_MAGIC: Final = 2
_NO_LEADER_EPOCH: Final = -1
_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_LENGTH_COUNTS_FROM: Final = 12
_CHECKED_FROM: Final = 21
_MAX_BASE_OFFSET: Final = 2**63 - 2**32
_CONTROL_KEY: Final = struct.Struct(">hh")
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_OUTSIDE_CRC = struct.Struct(">qiibI")
_INSIDE_CRC = struct.Struct(">hiqqqhii")


class BatchInfo(NamedTuple):
    """The fields of a batch header that depend only on the records."""

    record_count: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    codec_id: int


def batch_header(
    info: BatchInfo,
    records: Sequence[Buffer],
    producer: ProducerIdAndEpoch,
    base_sequence: int,
    *,
    transactional: bool = False,
) -> bytes:
    """Return the 61-byte header of a batch.

    records: the records section of the batch, in any number of pieces.
    """
    inside = _INSIDE_CRC.pack(
        info.codec_id | (_TRANSACTIONAL if transactional else 0),
        info.record_count - 1,
        info.base_timestamp_ms,
        info.max_timestamp_ms,
        producer.producer_id,
        producer.epoch,
        base_sequence,
        info.record_count,
    )
    crc = crc32c(inside)
    for piece in records:
        crc = crc32c(piece, crc)
    size = RECORD_BATCH_OVERHEAD + sum(map(len, records))
    outside = _OUTSIDE_CRC.pack(0, size - _LENGTH_COUNTS_FROM, _NO_LEADER_EPOCH, _MAGIC, crc)
    return outside + inside


class BatchHeader(NamedTuple):
    """The fields of a batch header that was read from a log."""

    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """The offset of the batch's last record, even if compaction has removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def codec_id(self) -> int:
        """The id of the compression codec of the records, 0 for no compression."""
        return self.attributes & _CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction, or the control batch that ends one."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a control batch, which brokers write."""
        return bool(self.attributes & _CONTROL)

    @property
    def has_log_append_time(self) -> bool:
        """Whether max_timestamp_ms is the timestamp of every record (LogAppendTime)."""
        return bool(self.attributes & _LOG_APPEND_TIME)


def read_header(batch: memoryview) -> BatchHeader:
    """Return the header of one complete batch. Raise CorruptRecordException if it is invalid."""
    if len(batch) < RECORD_BATCH_OVERHEAD:
        raise corrupt(f"a batch of {len(batch)} bytes is smaller than its header")
    header = BatchHeader(*_HEADER.unpack_from(batch))
    if not 0 <= header.base_offset <= _MAX_BASE_OFFSET:
        raise corrupt(f"a batch has the invalid offset {header.base_offset}")
    found = crc32c(batch[_CHECKED_FROM:])
    if found != header.crc:
        where = f"the batch at offset {header.base_offset}"
        raise corrupt(f"the CRC-32C of {where} is {found:#x}, not {header.crc:#x}")
    if header.last_offset_delta < 0:
        raise corrupt(
            f"the last offset of the batch at offset {header.base_offset} is below its base offset"
        )
    return header


class Marker(Enum):
    """The type of a transaction marker: commit or abort (ControlRecordType)."""

    ABORT = 0
    COMMIT = 1


def marker(key: bytes | None) -> Marker | None:
    """Return the transaction marker in the key of a control record.

    Return None for a control record of another type. Raise CorruptRecordException if the key does
    not contain a type.
    """
    if key is None or len(key) < _CONTROL_KEY.size:
        raise corrupt("a control record has no type")
    _, kind = _CONTROL_KEY.unpack_from(key)
    return Marker(kind) if kind in (Marker.ABORT.value, Marker.COMMIT.value) else None


def increment_sequence(sequence: int, increment: int) -> int:
    """Return `sequence` plus `increment`. The number after 2**31 - 1 is 0 (DefaultRecordBatch)."""
    return (sequence + increment) & MAX_SEQUENCE
