"""Assign rows to batches by their sizes, before anything is encoded.

Rows are sorted by partition. The sort is stable, so the rows of a partition keep their order. A
*run* is the rows of one partition. Each run is divided into *cuts*, one per batch. The first cut
fills the partition's open batch, and every later cut begins a new batch. Every row then has its
final offset delta and timestamp delta, and is encoded exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spark_kafka_sink.records.varint import Int64s


class Runs(NamedTuple):
    """Rows by partition: the run of `partitions[i]` is ``order[starts[i]:starts[i + 1]]``.

    order: row numbers, int64.
    """

    order: Int64s
    partitions: list[int]
    starts: list[int]


class OpenBatch(NamedTuple):
    """The state of a partition's open batch, to which records can still be added.

    records: the number of its records, 0 if the partition has no open batch. room_bytes: the bytes
    that still fit into the batch. full_bytes: the size of a full new batch.
    """

    records: int
    room_bytes: int
    full_bytes: int
    base_timestamp_ms: int


class Cut(NamedTuple):
    """Consecutive rows (in partition order) for one batch.

    run: the index of the run. start, stop: the range of the rows in partition order. starts_batch:
    whether the rows begin a new batch.
    """

    run: int
    start: int
    stop: int
    starts_batch: bool
    base_timestamp_ms: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the rows are cut into batches, and the deltas of each row.

    offset_deltas, timestamp_deltas: int64, one for each row, in partition order.
    """

    cuts: list[Cut]
    offset_deltas: Int64s
    timestamp_deltas: Int64s


def group_by_partition(partitions: Int64s) -> Runs:
    """Return the row numbers sorted by partition; the rows of a partition keep their order."""
    rows = len(partitions)
    largest = int(partitions.max(initial=0))
    # numpy sorts 16-bit integers with radix sort, which is four times faster than for wider ones.
    narrow = partitions.astype(np.uint16) if largest < 1 << 16 else partitions
    order = np.argsort(narrow, kind="stable")
    ordered = narrow[order]
    edges = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    starts = [0, *edges.tolist()] if rows else []
    return Runs(order, ordered[starts].tolist(), [*starts, rows])


def lay_out(
    runs: Runs, size_bounds: Int64s, timestamps_ms: Int64s, opens: Sequence[OpenBatch]
) -> Layout:
    """Cut each run into batches.

    size_bounds: an upper bound of each row's size in bytes. timestamps_ms: each row's timestamp.
    Both are int64, *in partition order*. opens: the open batch of each run's partition. A row that
    is larger than a full batch gets a batch of its own.
    """
    ends = np.cumsum(size_bounds)
    edges: list[tuple[int, int, int, bool]] = []
    for run, open_batch in enumerate(opens):
        edges.extend(_cut_run(run, runs.starts[run], runs.starts[run + 1], ends, open_batch))
    starts = np.array([start for _, start, _, _ in edges], np.int64)
    stops = np.array([stop for _, _, stop, _ in edges], np.int64)
    continued = [0 if new else opens[run].records for run, _, _, new in edges]
    bases = np.where(
        np.array([new for _, _, _, new in edges], np.bool_),
        timestamps_ms[starts],
        np.array([opens[run].base_timestamp_ms for run, _, _, _ in edges], np.int64),
    )
    lengths = stops - starts
    first_deltas = np.array(continued, np.int64) - starts
    offset_deltas = np.arange(len(ends)) + np.repeat(first_deltas, lengths)
    timestamp_deltas = timestamps_ms - np.repeat(bases, lengths)
    maxima = np.maximum.reduceat(timestamps_ms, starts).tolist()
    cuts = [
        Cut(*edge, base, maximum)
        for edge, base, maximum in zip(edges, bases.tolist(), maxima, strict=True)
    ]
    return Layout(cuts, offset_deltas, timestamp_deltas)


def _cut_run(
    run: int, start: int, stop: int, ends: Int64s, open_batch: OpenBatch
) -> list[tuple[int, int, int, bool]]:
    before = int(ends[start - 1]) if start else 0
    size = int(ends[stop - 1]) - before
    if open_batch.records and size <= open_batch.room_bytes:
        return [(run, start, stop, False)]
    if not open_batch.records and size <= open_batch.full_bytes:
        return [(run, start, stop, True)]
    cuts = []
    if open_batch.records:
        fits = int(np.searchsorted(ends, before + open_batch.room_bytes, "right"))
        if fits > start:
            cuts.append((run, start, fits, False))
            start = fits
    while start < stop:
        before = int(ends[start - 1]) if start else 0
        fits = int(np.searchsorted(ends, before + open_batch.full_bytes, "right"))
        end = min(max(fits, start + 1), stop)
        cuts.append((run, start, end, True))
        start = end
    return cuts
