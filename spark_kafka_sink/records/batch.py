"""The 61-byte header of a record batch (format v2).

::

    off len field                  off len field
      0   8 baseOffset (0)          27   8 baseTimestamp (of the first record)
      8   4 batchLength             35   8 maxTimestamp
     12   4 partitionLeaderEpoch    43   8 producerId
     16   1 magic (2)               51   2 producerEpoch
     17   4 crc                     53   4 baseSequence
     21   2 attributes              57   4 recordsCount
     23   4 lastOffsetDelta         61   … records, compressed as one block

The CRC-32C covers everything from attributes on. A new producer id, epoch or sequence number
therefore needs a new header, while the records are neither changed nor copied (DefaultRecordBatch).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from spark_kafka_sink.model import ProducerIdAndEpoch

Buffer = bytes | bytearray | memoryview

RECORD_BATCH_OVERHEAD: Final = 61
NO_SEQUENCE: Final = -1
MAX_SEQUENCE: Final = 2**31 - 1

_MAGIC: Final = 2
_NO_LEADER_EPOCH: Final = -1
_TRANSACTIONAL: Final = 0x10
_LENGTH_COUNTS_FROM: Final = 12
_OUTSIDE_CRC = struct.Struct(">qiibI")
_INSIDE_CRC = struct.Struct(">hiqqqhii")


class BatchInfo(NamedTuple):
    """The fields of a batch's header that depend only on its records."""

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
    """Return the 61-byte header for `records`, given in any number of pieces as they are sent."""
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


def crc_of(batch: Buffer) -> int:
    """Return the checksum in the header of a batch."""
    crc: int = _OUTSIDE_CRC.unpack_from(batch)[-1]
    return crc


def increment_sequence(sequence: int, increment: int) -> int:
    """Return a sequence number plus `increment`; 0 follows 2**31 - 1 (DefaultRecordBatch)."""
    return (sequence + increment) & MAX_SEQUENCE
