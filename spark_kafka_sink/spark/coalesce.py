"""Small Arrow batches made into larger ones, so that work per batch is work per megabytes.

Spark sends 10,000 rows at a time, which is one megabyte of 100-byte values. With many partitions
that is a few rows for each, and the work per partition would be done again and again.

Rows wait for others at most linger.ms, and that is part of their linger in the producer. While the
task waits for Spark, which may take long in a slow job, another thread appends what has waited.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

import pyarrow as pa

# Condition.wait() takes no infinity.
_LONGEST_WAIT_S: Final = 3600.0


def append_coalesced(
    batches: Iterable[pa.RecordBatch],
    append: Callable[[pa.RecordBatch, float], None],
    slice_bytes: int,
    linger_s: float,
) -> None:
    """Append the same rows in batches of about a slice; those of half a slice stay alone.

    append: takes a batch, and since when its oldest row has waited (`time.monotonic`); one call at
    a time, in the order of the rows, some of them in another thread. What it raises there is raised
    here when Spark has handed over the next batch. linger_s: how long a row may wait.

    Nearly a slice is enough: as records, rows are larger than in Arrow; and two batches of what
    `arrow_batches` limits them to are a large one.
    Whoever takes a batch is the only one that has it: what has been read is as large as a slice.
    """
    waiting = _WaitingBatches(append, linger_s)
    enough_bytes = slice_bytes * 7 // 8
    try:
        for batch in batches:
            is_large = batch.nbytes >= slice_bytes // 2  # not worth a copy to be joined with others
            with waiting.changed:
                waiting.raise_error()
                if is_large:
                    waiting.append()
                waiting.add(batch)
                del batch  # while the next ones are read
                if is_large or waiting.size_bytes >= enough_bytes or waiting.have_lingered:
                    waiting.append()
                else:
                    waiting.watch()
    finally:
        waiting.end()
    waiting.raise_error()
    waiting.append()


class _WaitingBatches:
    """Batches that wait to be joined; all but `end` is called with `changed` held."""

    def __init__(self, append: Callable[[pa.RecordBatch, float], None], linger_s: float) -> None:
        self._append = append
        self._linger_s = linger_s
        self.changed = threading.Condition()
        self.size_bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._since = 0.0
        self._thread: threading.Thread | None = None
        self._is_asleep = False
        self._is_over = False
        self._error: BaseException | None = None

    @property
    def have_lingered(self) -> bool:
        """Whether the oldest has waited for as long as it may."""
        return self._left_s() <= 0

    def _left_s(self) -> float:
        if not self._batches:
            return _LONGEST_WAIT_S
        return min(_LONGEST_WAIT_S, self._since + self._linger_s - time.monotonic())

    def add(self, batch: pa.RecordBatch) -> None:
        """Have a batch wait."""
        if not batch.num_rows:
            return
        if not self._batches:
            self._since = time.monotonic()
        self._batches.append(batch)
        self.size_bytes += batch.nbytes
        if self._is_asleep:
            self.changed.notify()

    def append(self) -> None:
        """Append what waits as one batch, and keep nothing of it."""
        joined, self._batches, self.size_bytes = self._batches, [], 0
        if len(joined) > 1:
            # One batch, but for columns that would be over the 2 GiB an Arrow array can hold.
            joined = pa.Table.from_batches(joined).combine_chunks().to_batches()
        while joined:
            self._append(joined.pop(0), self._since)

    def watch(self) -> None:
        """Have what waits appended by another thread, once it has waited for as long as it may."""
        if self._thread is None and self._batches:
            self._thread = threading.Thread(
                target=self._append_in_time, name="pykafka-linger", daemon=True
            )
            self._thread.start()

    def _append_in_time(self) -> None:
        with self.changed:
            while not self._is_over:
                if self.have_lingered:
                    try:
                        self.append()
                    except BaseException as error:  # noqa: BLE001 - for the task to raise
                        self._error = error
                        return
                self._is_asleep = not self._batches
                self.changed.wait(self._left_s())
                self._is_asleep = False

    def raise_error(self) -> None:
        """Raise what was raised in the other thread."""
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """End the other thread; what it is appending is appended then."""
        with self.changed:
            self._is_over = True
            self.changed.notify()
        if self._thread is not None:
            self._thread.join()
