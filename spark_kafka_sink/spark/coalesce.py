"""Small Arrow batches made into larger ones, so that work per batch is work per megabytes.

Spark sends 10,000 rows at a time, which is one megabyte of 100-byte values. With many partitions
that is a few rows for each, and the work per partition would be done again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

ENOUGH_BYTES: Final = 8 * 1024 * 1024
# Not worth a copy to be joined with others.
ALONE_BYTES: Final = ENOUGH_BYTES // 2


def coalesce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the same rows in batches of about `ENOUGH_BYTES`; those of `ALONE_BYTES` stay alone."""
    waiting: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        is_large = batch.nbytes >= ALONE_BYTES
        if is_large:
            yield from _joined(waiting)
            waiting, size_bytes = [], 0
        if batch.num_rows:
            waiting.append(batch)
            size_bytes += batch.nbytes
        if is_large or size_bytes >= ENOUGH_BYTES:
            yield from _joined(waiting)
            waiting, size_bytes = [], 0
    yield from _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) <= 1:
        return batches
    # One batch, but for columns that would be over the 2 GiB that an Arrow array can hold.
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
