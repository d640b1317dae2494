"""Read the batches in a Fetch response, in all three record formats.

This module finds the start and the end of each batch, verifies the checksum, and reads the offsets
and the producer id. The decoder of each format reads the records. A Fetch response ends at its size
limit, so the last batch may be incomplete. An incomplete batch is ignored. A v2 batch is
decompressed only when its records are requested. If a reader skips the batch, only its checksum is
computed. A wrapper message of the older formats is decompressed before `read_log` yields it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from spark_kafka_sink.errors import corrupt
from spark_kafka_sink.records.batch import (
    MAX_CONTROL_BYTES,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Marker,
    marker,
    read_header,
)
from spark_kafka_sink.records.compression import Buffer
from spark_kafka_sink.records.decoder import ALL_IN_ONE_PART, DecodedRecords, decode_parts
from spark_kafka_sink.records.decompression import decompress
from spark_kafka_sink.records.message_set import (
    MAGIC_AT,
    is_wrapper,
    message_offset,
    read_messages,
    split_entries,
)

# Far more than any batch: by default, brokers accept batches of at most 1 MB, compressed.
MAX_UNPACKED_BYTES: Final = 512 * 1024 * 1024
# Messages without a wrapper are decoded in groups of this size, to limit the memory for their
# Python objects.
_GROUP_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class LogBatch:
    """A v2 record batch, or adjacent messages of an older format.

    base_offset, last_offset: the range of offsets; compaction may have removed some of the records.
    producer_id: -1 if the batch has no producer id.
    """

    base_offset: int
    last_offset: int
    producer_id: int
    is_transactional: bool
    is_control: bool
    _parts: Callable[[int, int], Iterator[DecodedRecords]]

    def records(self, limit_bytes: int = MAX_UNPACKED_BYTES) -> DecodedRecords:
        """Return the records; there may be none.

        limit_bytes: the maximum size of the records of a v2 batch after decompression. Raise
        CorruptRecordException if the records are invalid or larger.
        """
        (records,) = self._parts(limit_bytes, ALL_IN_ONE_PART)
        return records

    def parts(self, part_bytes: int) -> Iterator[DecodedRecords]:
        """Yield the records in one or more parts.

        A v2 batch is decompressed once, at the first part. part_bytes: the memory that one part may
        take in addition to the decompressed batch. A part contains at least one record, unless the
        batch contains none. Raise CorruptRecordException if the records of a part are invalid, or
        if the decompressed batch takes more than 512 MiB. If the headers of one record do not fit
        a part, their memory counts towards this limit, too.
        """
        return self._parts(MAX_UNPACKED_BYTES, part_bytes)

    @property
    def is_abort(self) -> bool:
        """Whether this is the control batch with the abort marker of a transaction.

        A control batch may be empty, because compaction keeps the last batch of each producer
        without its records (ControlRecordType). Only the first record is decoded, because a control
        batch has no others. Raise CorruptRecordException if the record is invalid or too large.
        """
        if not self.is_control:
            return False
        keys = next(self._parts(MAX_CONTROL_BYTES, 1)).keys
        return bool(len(keys)) and marker(keys[0].as_py()) is Marker.ABORT


def read_log(log: Buffer) -> Iterator[LogBatch]:
    """Yield the complete batches of a Fetch response's records, in order.

    Raise CorruptRecordException if a batch is invalid.
    """
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


def is_same_batch(sent: Buffer, found: Buffer) -> bool:
    """Return whether the batch `found` in a log is the batch `sent`.

    They are the same batch if producer and records are equal. The compressed bytes may differ,
    because the broker may have compressed the records again with the topic's codec. Raise
    CorruptRecordException if a batch is invalid.
    """
    one, other = read_header(memoryview(sent)), read_header(memoryview(found))
    if _identity(one) != _identity(other):
        return False
    if one.crc == other.crc:
        return True
    (sent_batch,), (found_batch,) = read_log(sent), read_log(found)
    ours, theirs = sent_batch.records(), found_batch.records()
    return (
        len(ours) == len(theirs)
        and np.array_equal(ours.offsets - one.base_offset, theirs.offsets - other.base_offset)
        and np.array_equal(ours.timestamps_ms, theirs.timestamps_ms)
        and ours.keys.equals(theirs.keys)
        and ours.values.equals(theirs.values)
        and ours.headers.equals(theirs.headers)
    )


def _identity(header: BatchHeader) -> tuple[int, ...]:
    return (
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
        header.is_transactional,
        header.is_control,
    )


def last_offset(log: Buffer) -> int | None:
    """Return the last offset in a Fetch response's records, None if no batch is complete.

    Nothing is decompressed, and only the last batch is checked. Raise CorruptRecordException if it
    is invalid.
    """
    last = None
    for last in split_entries(memoryview(log)):  # noqa: B007 - only the last one counts
        pass
    if last is None:
        return None
    return _batch(last).last_offset if _magic(last) == 2 else message_offset(last)


def _magic(entry: memoryview) -> int:
    """Return the magic (the version of the record format) of a batch or a message."""
    magic = entry[MAGIC_AT]
    if magic > 2:
        raise corrupt(f"a batch has format {magic}: expected 0, 1 or 2")
    return magic


def _messages(entries: list[memoryview]) -> LogBatch:
    """Return one `LogBatch` for messages without a wrapper, or for one wrapper message."""
    messages = read_messages(entries, MAX_UNPACKED_BYTES)
    return LogBatch(
        base_offset=messages.base_offset,
        last_offset=messages.last_offset,
        producer_id=-1,
        is_transactional=False,
        is_control=False,
        _parts=lambda _, part_bytes: messages.parts(part_bytes),
    )


def _batch(entry: memoryview) -> LogBatch:
    header = read_header(entry)
    return LogBatch(
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        producer_id=header.producer_id,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        _parts=partial(_parts, header, entry[RECORD_BATCH_OVERHEAD:]),
    )


def _parts(
    header: BatchHeader, packed: memoryview, limit_bytes: int, part_bytes: int
) -> Iterator[DecodedRecords]:
    section: Buffer = packed
    if header.record_count:  # after compaction, an empty batch may have no compressed frame
        section = decompress(header.codec_id, packed, limit_bytes)
    for part in decode_parts(
        memoryview(section),
        header.record_count,
        header.base_offset,
        header.base_timestamp_ms,
        part_bytes,
        limit_bytes,
    ):
        if len(part) and part.offsets.max() > header.last_offset:
            raise corrupt("a record's offset is above the last offset of its batch")
        if header.has_log_append_time:
            yield replace(part, timestamps_ms=np.full(len(part), header.max_timestamp_ms))
        else:
            yield part
        del part
