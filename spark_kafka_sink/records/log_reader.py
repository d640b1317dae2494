"""Read the batches of a fetched log, in all three formats.

This module finds where a batch begins and ends, checks its checksum, and reads its offsets and its
producer id. The decoder of each format reads the records. A fetch ends at its size limit, so the
last batch may be incomplete and is then ignored. A batch is decompressed only when its records are
requested, so a batch that a reader skips costs no more than its checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c

from spark_kafka_sink.errors import corrupt
from spark_kafka_sink.records.batch import RECORD_BATCH_OVERHEAD
from spark_kafka_sink.records.compression import Buffer
from spark_kafka_sink.records.decoder import DecodedRecords, decode
from spark_kafka_sink.records.decompression import decompress
from spark_kafka_sink.records.message_set import (
    MAGIC_AT,
    decode_messages,
    is_wrapper,
    message_offset,
    split_entries,
)

# Far more than any batch: by default brokers accept batches of 1 MB, compressed.
MAX_UNPACKED_BYTES: Final = 512 * 1024 * 1024
# Messages without a wrapper are decoded in groups, because Python objects take much more memory.
_GROUP_BYTES: Final = 256 * 1024

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CHECKED_FROM: Final = 21
_CODEC_MASK, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_MAX_BASE_OFFSET: Final = 2**63 - 2**32
_CONTROL_KEY: Final = struct.Struct(">hh")
_ABORT: Final = 0


class _Header(NamedTuple):
    """The 61 bytes of a batch's header; see `batch`."""

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


@dataclass(frozen=True, slots=True)
class LogBatch:
    """A batch of format v2, or adjacent messages of an older format.

    base_offset, last_offset: the range of offsets; compaction may have removed some of its records.
    producer_id: -1 if there is none.
    """

    base_offset: int
    last_offset: int
    producer_id: int
    is_transactional: bool
    is_control: bool
    _records: Callable[[int], DecodedRecords]

    def records(self, limit_bytes: int = MAX_UNPACKED_BYTES) -> DecodedRecords:
        """Return the records, possibly none. Raise CorruptRecordException.

        limit_bytes: the most that the records may be after decompression.
        """
        return self._records(limit_bytes)

    @property
    def is_abort(self) -> bool:
        """Whether this is the marker of an aborted transaction (ControlRecordType).

        A control batch may be empty, because compaction keeps the last batch of each producer
        without its records.
        """
        if not self.is_control:
            return False
        keys = self.records().keys
        if not len(keys):
            return False
        if not keys[0].is_valid or len(keys[0].as_py()) < _CONTROL_KEY.size:
            raise corrupt("a control record has no type")
        _, kind = _CONTROL_KEY.unpack_from(keys[0].as_py())
        return bool(kind == _ABORT)


def read_log(log: Buffer) -> Iterator[LogBatch]:
    """Yield the complete batches of a fetch, in order. Raise CorruptRecordException."""
    plain: list[memoryview] = []
    plain_bytes = 0
    for entry in split_entries(memoryview(log)):
        is_plain = entry[MAGIC_AT] < 2 and not is_wrapper(entry)
        if plain and (not is_plain or plain_bytes >= _GROUP_BYTES):
            yield _messages(plain)
            plain, plain_bytes = [], 0
        if is_plain:
            plain.append(entry)
            plain_bytes += len(entry)
        else:
            yield _batch(entry) if _magic(entry) == 2 else _messages([entry])
    if plain:
        yield _messages(plain)


def last_offset(log: Buffer) -> int | None:
    """Return the last offset of a fetch, None if it has no complete batch.

    Nothing is decompressed, and only the last batch is checked. Raise CorruptRecordException.
    """
    last = None
    for last in split_entries(memoryview(log)):  # noqa: B007 - only the last one counts
        pass
    if last is None:
        return None
    return _batch(last).last_offset if _magic(last) == 2 else message_offset(last)


def _magic(entry: memoryview) -> int:
    """Return the record format of a batch or a message."""
    magic = entry[MAGIC_AT]
    if magic > 2:
        raise corrupt(f"a batch has format {magic}: expected 0, 1 or 2")
    return magic


def _messages(entries: list[memoryview]) -> LogBatch:
    """Return one `LogBatch` for messages without a wrapper, or for one wrapper message."""
    found = decode_messages(entries, MAX_UNPACKED_BYTES)
    return LogBatch(
        base_offset=int(found.offsets[0]),
        last_offset=int(found.offsets[-1]),
        producer_id=-1,
        is_transactional=False,
        is_control=False,
        _records=lambda _: found,
    )


def _batch(entry: memoryview) -> LogBatch:
    if len(entry) < RECORD_BATCH_OVERHEAD:
        raise corrupt(f"a batch of {len(entry)} bytes is smaller than its header")
    header = _Header(*_HEADER.unpack_from(entry))
    if not 0 <= header.base_offset <= _MAX_BASE_OFFSET:
        raise corrupt(f"a batch has the offset {header.base_offset}")
    found = crc32c(entry[_CHECKED_FROM:])
    if found != header.crc:
        where = f"the batch at offset {header.base_offset}"
        raise corrupt(f"the CRC-32C of {where} is {found:#x}, not {header.crc:#x}")
    if header.last_offset_delta < 0:
        raise corrupt(f"the batch at offset {header.base_offset} ends before it begins")
    return LogBatch(
        base_offset=header.base_offset,
        last_offset=header.base_offset + header.last_offset_delta,
        producer_id=header.producer_id,
        is_transactional=bool(header.attributes & _TRANSACTIONAL),
        is_control=bool(header.attributes & _CONTROL),
        _records=lambda limit: _records(header, entry[RECORD_BATCH_OVERHEAD:], limit),
    )


def _records(header: _Header, packed: memoryview, limit_bytes: int) -> DecodedRecords:
    section: Buffer = packed
    if header.record_count:  # a batch that compaction has emptied may have no frame at all
        section = decompress(header.attributes & _CODEC_MASK, packed, limit_bytes)
    found = decode(
        memoryview(section), header.record_count, header.base_offset, header.base_timestamp_ms
    )
    if len(found) and found.offsets.max() > header.base_offset + header.last_offset_delta:
        raise corrupt("a record's offset is above its batch's last")
    if header.attributes & _LOG_APPEND_TIME:
        return replace(found, timestamps_ms=np.full(len(found), header.max_timestamp_ms))
    return found
