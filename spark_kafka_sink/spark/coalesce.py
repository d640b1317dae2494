"""Small Arrow batches made into larger ones, so that work per batch is work per megabytes.

Spark sends 10,000 rows at a time, which is one megabyte of 100-byte values. With many partitions
that is a few rows for each, and the work per partition would be done again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


def coalesce(batches: Iterable[pa.RecordBatch], slice_bytes: int) -> Iterator[pa.RecordBatch]:
    """Give the same rows in batches of about a slice; those of half a slice stay alone.

    Nearly a slice is enough: as records, rows are larger than in Arrow; and two batches of what
    `arrow_batches` limits them to are a large one.
    Whoever takes a batch is the only one that has it: what has been read is as large as a slice.
    """
    waiting: list[pa.RecordBatch] = []
    size_bytes, enough_bytes = 0, slice_bytes * 7 // 8
    for batch in batches:
        is_large = batch.nbytes >= slice_bytes // 2  # not worth a copy to be joined with others
        if is_large:
            yield from _joined(waiting)
            size_bytes = 0
        if batch.num_rows:
            waiting.append(batch)
            size_bytes += batch.nbytes
        del batch
        if is_large or size_bytes >= enough_bytes:
            yield from _joined(waiting)
            size_bytes = 0
    yield from _joined(waiting)


def _joined(waiting: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the rows of the batches that wait, and leave none; nothing of them is kept here."""
    joined = waiting.copy()
    if len(waiting) > 1:
        # One batch, but for columns that would be over the 2 GiB that an Arrow array can hold.
        joined = pa.Table.from_batches(waiting).combine_chunks().to_batches()
    waiting.clear()
    while joined:
        yield joined.pop(0)
