"""A slice of rows on its way into batches: partitions chosen, laid out, encoded.

Pure functions between the columns that came in and `RecordAccumulator.append`. A slice is bounded
(see `slice_ends`), so that memory is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.partitioner import NodeLatencies, Partitioner, TopicLoad, hash_keys
from spark_kafka_sink.records.columns import Bools, Rows
from spark_kafka_sink.records.encoder import (
    EncodedRecords,
    encode,
    record_size_bounds,
    span_ms,
)
from spark_kafka_sink.records.layout import (
    Cut,
    OpenBatch,
    Runs,
    group_by_partition,
    lay_out,
)
from spark_kafka_sink.records.varint import Int64s

SLICE_BYTES: Final = 8 * 1024 * 1024
# From this number of partitions on, slices are twice as large (docs/performance.md).
MANY_PARTITIONS: Final = 250


def slice_bytes(partitions: int) -> int:
    """Return how large a slice for so many partitions is: each costs something in each slice.

    Each partition of a slice costs time, so more partitions need larger slices. partitions: of the
    topics that rows may go to, 0 if unknown.
    """
    return SLICE_BYTES if partitions < MANY_PARTITIONS else 2 * SLICE_BYTES


def slice_ends(sizes: Int64s, partitions: int, buffer_memory_bytes: int) -> list[int]:
    """Cut rows into slices of about `slice_bytes`, but at most a quarter of buffer.memory each.

    Return the end row of each slice. A slice has at least one row. They are about equal: a rest of
    some rows would cost nearly as much as a full slice.
    """
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    most = max(1, buffer_memory_bytes // 4)
    slices = max(1, round(total / slice_bytes(partitions)), -(-total // most))
    limit = min(-(-total // slices) + int(sizes.max(initial=0)), most)
    cuts, start = [], 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        start = max(start + 1, int(np.searchsorted(ends, before + limit, "right")))
        cuts.append(start)
    return cuts


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows in partition order: the runs, and which partition each run is for."""

    rows: Rows
    runs: Runs
    targets: list[TopicPartition]


def topics_to_spread(
    rows: Rows, topics: Sequence[TopicMetadata], hashes: Int64s | None
) -> dict[str, TopicMetadata]:
    """Return the topics that may have rows without a partition and without a key that counts.

    topics: the metadata of each of ``rows.topics``.
    """
    is_open: Bools | None = None
    if rows.partitions is not None:
        is_open = rows.partitions < 0
    if hashes is not None:
        is_open = hashes < 0 if is_open is None else is_open & (hashes < 0)
    if is_open is not None and not is_open.any():
        return {}
    return dict(zip(rows.topics, topics, strict=True))


def choose_partitions(
    rows: Rows,
    sizes: Int64s,
    topics: Sequence[TopicMetadata],
    partitioner: Partitioner,
    load: Callable[[str, TopicMetadata], TopicLoad],
    hashes: Int64s | None = None,
) -> GroupedRows:
    """Choose each row's partition and sort the rows by partition.

    topics: the metadata of each of ``rows.topics``; load: called for the topics that
    `topics_to_spread` returns; hashes: of the keys, if already computed.
    """
    if hashes is None and partitioner.uses_keys:
        hashes = hash_keys(rows.columns.key)
    bases = np.cumsum([0, *(len(topic.leaders) for topic in topics)])
    chosen = np.empty(len(rows), np.int64)
    for number, of_topic in rows.by_topic():
        chosen[of_topic] = bases[number] + partitioner.partition(
            rows.topics[number],
            None if hashes is None else hashes[of_topic],
            None if rows.partitions is None else rows.partitions[of_topic],
            sizes[of_topic],
            len(topics[number].leaders),
            partial(load, rows.topics[number], topics[number]),
        )
    runs = group_by_partition(chosen)
    numbers = np.searchsorted(bases, runs.partitions, "right") - 1
    names = map(rows.topics.__getitem__, numbers.tolist())
    partitions = (np.array(runs.partitions, np.int64) - bases[numbers]).tolist()
    targets = map(TopicPartition._make, zip(names, partitions, strict=True))
    return GroupedRows(rows, runs, list(targets))


def encode_rows(
    grouped: GroupedRows, opens: Sequence[OpenBatch]
) -> tuple[list[Cut], EncodedRecords]:
    """Lay the rows out over their partitions' batches and encode them, in partition order."""
    columns, runs = grouped.rows.columns, grouped.runs
    timestamps = columns.timestamps_ms
    largest_delta = max(batch.records for batch in opens) + len(columns)
    span = span_ms(timestamps, [b.base_timestamp_ms for b in opens if b.records])
    bounds = record_size_bounds(columns, span, largest_delta)
    layout = lay_out(runs, bounds[runs.order], timestamps[runs.order], opens)
    encoded = encode(columns, runs.order, layout.offset_deltas, layout.timestamp_deltas)
    return layout.cuts, encoded


def topic_load(
    name: str,
    topic: TopicMetadata,
    accumulator: RecordAccumulator,
    latencies: NodeLatencies,
    *,
    adaptive: bool,
) -> TopicLoad:
    """Return the partitions to spread rows over, and what each has waiting.

    These are the partitions with a leader, or all if none has one. adaptive: whether queue lengths
    count, and whether partitions whose leader accepts no data are left out while others do
    (KIP-794).
    """
    with_leader = topic.available or list(range(len(topic.leaders)))
    batch_bytes = accumulator.full_bytes(name)
    if not adaptive:
        return TopicLoad(available=with_leader, queue_lengths=None, batch_bytes=batch_bytes)
    quick = [p for p in with_leader if not latencies.is_slow(topic.leaders[p])]
    available = quick or with_leader
    queue_lengths = accumulator.queue_lengths(name, available)
    return TopicLoad(available=available, queue_lengths=queue_lengths, batch_bytes=batch_bytes)
