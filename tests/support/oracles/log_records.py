"""Logs as brokers send them, written and read by kafka-python and by this package."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Final, NamedTuple

import kafka.codec
from crc32c import crc32c
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from spark_kafka_sink.records.decoder import ALL_IN_ONE_PART, DecodedRecords, decode_parts
from spark_kafka_sink.records.message_set import xxhash32
from support.oracles.record_batches import BYTES, NO_PRODUCER, TIMESTAMPS, Headers, Producer, Row

CODECS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
OLD_ROWS: Final = st.lists(
    st.builds(Row, st.none() | BYTES, st.none() | BYTES, st.just(()), TIMESTAMPS),
    min_size=1,
    max_size=12,
)
# kafka-python needs the package xxhash for lz4 in v0 message sets, to hash a few bytes. Our
# function replaces it; it is tested against hashes made by Java.
kafka.codec.xxhash = SimpleNamespace(
    xxh32=lambda data: SimpleNamespace(digest=lambda: xxhash32(bytes(data)).to_bytes(4, "big"))
)
_NO_LIMIT: Final = 2**31 - 1


def decode(
    section: memoryview, count: int, base_offset: int, base_timestamp_ms: int
) -> DecodedRecords:
    """Decode all records of a section at once."""
    everything = ALL_IN_ONE_PART
    (records,) = decode_parts(
        section, count, base_offset, base_timestamp_ms, everything, everything
    )
    return records


class Found(NamedTuple):
    """One record as a reader found it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def found(records: DecodedRecords) -> list[Found]:
    """Return columns as rows."""
    return [
        Found(offset, timestamp, key, value, tuple((h["key"], h["value"]) for h in headers))
        for offset, timestamp, key, value, headers in zip(
            records.offsets.tolist(),
            records.timestamps_ms.tolist(),
            records.keys.to_pylist(),
            records.values.to_pylist(),
            records.headers.to_pylist(),
            strict=True,
        )
    ]


def expected(rows: Sequence[Row], first_offset: int = 0, *, magic: int = 2) -> list[Found]:
    """Return rows as a reader should find them."""
    return [
        Found(offset, row.timestamp_ms if magic else -1, row.key, row.value, row.headers)
        for offset, row in enumerate(rows, first_offset)
    ]


def found_by_kafka_python(log: bytes) -> list[Found]:
    """Return the records of a log as kafka-python reads them."""
    records = MemoryRecords(log)
    rows = []
    while (batch := records.next_batch()) is not None:
        rows += [
            Found(
                r.offset,
                -1 if r.timestamp is None else r.timestamp,
                r.key,
                r.value,
                tuple(r.headers),
            )
            for r in batch
        ]
    return rows


def batch_of(
    rows: Sequence[Row], *, codec: int = 0, first_offset: int = 0, producer: Producer = NO_PRODUCER
) -> bytes:
    """Return a v2 batch made by kafka-python, at `first_offset` in the log."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=producer.transactional,
        producer_id=producer.id_and_epoch.producer_id,
        producer_epoch=producer.id_and_epoch.epoch,
        base_sequence=producer.base_sequence,
        batch_size=_NO_LIMIT,
    )
    for offset, row in enumerate(rows):
        builder.append(offset, row.timestamp_ms, row.key, row.value, list(row.headers))
    return at_offset(bytes(builder.build()), first_offset)


def old_batch_of(
    rows: Sequence[Row], magic: int, *, codec: int = 0, first_offset: int = 0
) -> bytes:
    """Return a message set made by kafka-python, at `first_offset` in the log."""
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=_NO_LIMIT)
    relative = first_offset if magic == 0 or not codec else 0
    for offset, row in enumerate(rows, relative):
        builder.append(offset, row.timestamp_ms, row.key, row.value)
    data = bytes(builder.build())
    # kafka-python leaves a wrapper's offset at 0, for brokers to set.
    return at_offset(data, first_offset + len(rows) - 1) if codec else data


def at_offset(entry: bytes, offset: int) -> bytes:
    """Return a batch or a message with another offset, which no checksum covers."""
    return struct.pack(">q", offset) + entry[8:]


def checked(batch: bytes) -> bytes:
    """Return a v2 batch with the correct checksum."""
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def emptied(batch: bytes) -> bytes:
    """Return a v2 batch after compaction removed all of its records."""
    return checked(batch[:8] + struct.pack(">i", 49) + batch[12:57] + struct.pack(">i", 0))


def with_attributes(batch: bytes, bits: int) -> bytes:
    """Return a v2 batch with more attributes set."""
    (attributes,) = struct.unpack_from(">h", batch, 21)
    return checked(batch[:21] + struct.pack(">h", attributes | bits) + batch[23:])
