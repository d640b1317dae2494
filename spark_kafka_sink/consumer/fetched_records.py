"""What a Fetch answer gave of one partition, as the rows that a reader may see. Pure.

A batch may begin before the offset that was asked for, and go on behind the end that is wanted:
such rows are left out. Control batches are Kafka's own. For read_committed, so are the batches of
aborted transactions: the answer lists each with its first offset, and it lasts until the abort mark
of its producer (Fetcher.CompletedFetch).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.records.decoder import HEADERS_TYPE, NO_TIMESTAMP, DecodedRecords
from spark_kafka_sink.records.log_reader import LogBatch, read_log
from spark_kafka_sink.wire.fetch_messages import AbortedTransaction, PartitionData

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE, nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """The rows, None if there are none to see, and the offset to go on from."""

    batch: pa.RecordBatch | None
    next_offset: int


def fetched_records(
    topic_partition: TopicPartition,
    data: PartitionData,
    start: int,
    end: int,
    *,
    read_committed: bool,
) -> FetchedRecords:
    """Read the records of `data` with offsets from `start` up to, and not including, `end`.

    Raises CorruptRecordException.
    """
    next_offset = start
    parts: list[DecodedRecords] = []
    batches: Iterable[tuple[LogBatch, bool]] = _seen(
        read_log(data.records or b""),
        data.aborted_transactions or (),
        read_committed=read_committed,
    )
    for batch, is_visible in batches:
        if batch.last_offset < start:
            continue
        if batch.base_offset >= end:
            next_offset = end
            break
        if is_visible:
            parts.append(batch.records())
        next_offset = min(batch.last_offset + 1, end)
    return FetchedRecords(_rows(topic_partition, parts, start, end), next_offset)


def _seen(
    batches: Iterator[LogBatch], aborted: Sequence[AbortedTransaction], *, read_committed: bool
) -> Iterator[tuple[LogBatch, bool]]:
    """Give each batch, and whether a reader may see it."""
    to_come = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
    aborting: set[int] = set()
    for batch in batches:
        while to_come and to_come[-1].first_offset <= batch.last_offset:
            aborting.add(to_come.pop().producer_id)
        if read_committed and batch.is_abort:
            aborting.discard(batch.producer_id)
        is_aborted = batch.is_transactional and batch.producer_id in aborting
        yield batch, not (batch.is_control or (read_committed and is_aborted))


def _rows(
    topic_partition: TopicPartition, parts: list[DecodedRecords], start: int, end: int
) -> pa.RecordBatch | None:
    if not any(map(len, parts)):
        return None
    offsets = np.concatenate([part.offsets for part in parts])
    timestamps = np.concatenate([part.timestamps_ms for part in parts])
    columns = [
        pa.repeat(pa.scalar(topic_partition.topic), len(offsets)),
        pa.repeat(pa.scalar(topic_partition.partition, pa.int32()), len(offsets)),
        pa.array(offsets),
        pa.array(timestamps, mask=timestamps == NO_TIMESTAMP).cast(SCHEMA.field("timestamp").type),
        pa.concat_arrays([part.keys for part in parts]),
        pa.concat_arrays([part.values for part in parts]),
        pa.concat_arrays([part.headers for part in parts]),
    ]
    rows = pa.record_batch(columns, schema=SCHEMA)
    wanted = (offsets >= start) & (offsets < end)
    if not wanted.all():
        rows = rows.filter(pa.array(wanted))
    return rows if len(rows) else None
