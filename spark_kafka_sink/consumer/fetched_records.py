"""The records of one partition in a Fetch response, as the rows that a reader may see. Pure.

Compressed batches may be thousands of times as large when they are unpacked. So rows are an
iterator: the next batch is unpacked when the rows before it were taken. What is unpacked and not
yet taken is at most a budget and one batch.

A batch may begin before the offset that was asked for, and go on behind the end that is wanted:
such rows are left out. Control batches are Kafka's own. For read_committed, so are the batches of
aborted transactions: the answer lists each with its first offset, and it lasts until the abort mark
of its producer (Fetcher.CompletedFetch).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.records.decoder import HEADERS_TYPE, NO_TIMESTAMP, DecodedRecords
from spark_kafka_sink.records.log_reader import last_offset, read_log
from spark_kafka_sink.wire.fetch_messages import PartitionData

_TIMESTAMP: Final = pa.timestamp("ms", "UTC")
SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", _TIMESTAMP),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE, nullable=False),
    ]
)
# Of a batch of rows. Each has the topic's name in it, which may be longer than the record.
_MOST_ROWS: Final = 1 << 16


def next_offset(data: PartitionData, start: int, end: int) -> int:
    """Return the offset to fetch next, `end` at most; unpacks nothing.

    Raises CorruptRecordException.
    """
    last = last_offset(data.records or b"")
    return start if last is None else min(max(start, last + 1), end)


def fetched_records(
    topic_partition: TopicPartition,
    data: PartitionData,
    start: int,
    end: int,
    *,
    read_committed: bool,
    budget_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of `data` with offsets from `start` up to, and not including, `end`.

    Kafka's batches are joined where there is room for that. Raises CorruptRecordException.
    """
    parts = _visible(data, start, end, read_committed=read_committed)
    for joined in _joined(parts, budget_bytes):
        yield from _rows(topic_partition, joined, start, end)


def _joined(parts: Iterator[DecodedRecords], budget_bytes: int) -> Iterator[list[DecodedRecords]]:
    """Yield as many parts together as have room; the caller empties the list."""
    # Joining copies: the parts and what they become are half of the budget each.
    room = budget_bytes // 2
    joined: list[DecodedRecords] = []
    joined_bytes = 0
    for part in parts:
        if joined and joined_bytes + part.nbytes > room:
            yield joined
            joined, joined_bytes = [], 0
        joined.append(part)
        joined_bytes += part.nbytes
        del part
        if joined_bytes >= room:
            yield joined
            joined, joined_bytes = [], 0
    if joined:
        yield joined


def _visible(
    data: PartitionData, start: int, end: int, *, read_committed: bool
) -> Iterator[DecodedRecords]:
    """Unpack the batches that a reader may see and that have offsets it wants."""
    aborted = sorted(
        data.aborted_transactions or (), key=lambda each: each.first_offset, reverse=True
    )
    aborting: set[int] = set()
    for batch in read_log(data.records or b""):
        if batch.base_offset >= end:
            return
        while aborted and aborted[-1].first_offset <= batch.last_offset:
            aborting.add(aborted.pop().producer_id)
        if read_committed and batch.is_abort:
            aborting.discard(batch.producer_id)
        is_aborted = batch.is_transactional and batch.producer_id in aborting
        is_hidden = batch.is_control or (read_committed and is_aborted)
        if batch.last_offset >= start and not is_hidden:
            yield batch.records()
        del batch  # which may hold its records


def _rows(
    topic_partition: TopicPartition, parts: list[DecodedRecords], start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all parts that are wanted, in order; empties the list of parts."""
    offsets = np.concatenate([part.offsets for part in parts])
    timestamps = np.concatenate([part.timestamps_ms for part in parts])
    rows = pa.record_batch(
        [
            pa.array(offsets),
            pa.array(timestamps, mask=timestamps == NO_TIMESTAMP).cast(_TIMESTAMP),
            _concat([part.keys for part in parts]),
            _concat([part.values for part in parts]),
            _concat([part.headers for part in parts]),
        ],
        names=SCHEMA.names[2:],
    )
    parts.clear()
    wanted = (offsets >= start) & (offsets < end)
    if not wanted.all():
        rows = rows.filter(pa.array(wanted))
    for first in range(0, len(rows), _MOST_ROWS):
        of_slice = rows.slice(first, _MOST_ROWS).columns
        count = len(of_slice[0])
        topics = pa.repeat(pa.scalar(topic_partition.topic), count)
        partitions = pa.repeat(pa.scalar(topic_partition.partition, pa.int32()), count)
        yield pa.record_batch([topics, partitions, *of_slice], schema=SCHEMA)


def _concat(arrays: list[pa.Array]) -> pa.Array:
    """Join arrays; a single one is not copied."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
