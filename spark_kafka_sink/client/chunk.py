"""RowChunk and RowQueue: rows of `send` that wait in order until they become columns.

A chunk contains rows of one topic. Its memory is reserved in advance, so putting its rows into
batches never waits for memory. The fields that every row has are in one flat list, because this is
fast: one `extend` per row, and three slices of the list at the end. Rarer fields are in dicts, by
row number. A chunk has no lock of its own: rows are added to it under the lock of its queue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from spark_kafka_sink.client.future import OnDelivery, RowFuture, SentRows, new_row_future
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns, Rows
from spark_kafka_sink.records.encoder import encode_headers
from spark_kafka_sink.records.varint import Int64s

CELLS: Final = 3  # the number of list elements in `cells` per row: value, key, time in seconds


class RowChunk:
    """Rows of one topic, in the order in which they were sent.

    pending: the resources that the rows hold until they are in batches or have failed, such as
    reserved bytes of buffer.memory. is_begun: whether the chunk was installed in a queue.
    created_at: when the memory was reserved, in seconds of the producer's clock. is_over: whether
    the rows are in batches or have failed; error: why they failed. is_handed_over: whether the
    chunk was given to a thread that calls the user's partitioner; is_partitioned: whether that
    thread has called the partitioner, or is calling it.
    """

    __slots__ = (
        "cells",
        "created_at",
        "error",
        "headers",
        "is_begun",
        "is_handed_over",
        "is_over",
        "is_partitioned",
        "metadata",
        "partitions",
        "pending",
        "room",
        "sent",
        "timestamps",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        metadata: TopicMetadata,
        pending: PendingAppend,
        created_at: float,
        sent: SentRows,
    ) -> None:
        self.topic = topic
        self.metadata = metadata
        self.pending = pending
        self.room = pending.size_bytes
        self.is_begun = False
        self.is_over = False
        self.is_handed_over = False
        self.is_partitioned = False
        self.error: KafkaException | None = None
        self.created_at = created_at
        self.sent = sent
        self.cells: list[bytes | float | None] = []
        self.partitions: dict[int, int] = {}
        self.timestamps: dict[int, int] = {}
        self.headers: dict[int, tuple[tuple[str, bytes | None], ...]] = {}

    def __len__(self) -> int:
        return len(self.cells) // CELLS

    def rows(self) -> Rows:
        """Return the rows as columns."""
        count = len(self)
        cells = self.cells
        times = np.array(cells[2::CELLS], np.float64)
        timestamps = (times * 1000).astype(np.int64)
        _overlay(timestamps, self.timestamps)
        partitions = None
        if self.partitions:
            partitions = np.full(count, -1, np.int64)
            _overlay(partitions, self.partitions)
        columns = RecordColumns.of(
            key=_key_column(cells[1::CELLS]),  # type: ignore[arg-type] # every third is a key
            value=binary_column(cells[0::CELLS]),  # type: ignore[arg-type] # and a value
            headers=self._header_column(count) if self.headers else None,
            timestamps_ms=timestamps,
        )
        return Rows(columns, [self.topic], None, partitions)

    def _header_column(self, rows: int) -> BinaryColumn:
        counts = np.zeros(rows, np.int64)
        _overlay(counts, {row: len(headers) for row, headers in self.headers.items()})
        entries = list(chain.from_iterable(self.headers.values()))
        names = binary_column([name.encode() for name, _ in entries])
        return encode_headers(counts, names, binary_column([value for _, value in entries]))


def _overlay(array: Int64s, values: dict[int, int]) -> None:
    """Write values into an array; `values` maps row numbers to values."""
    if values:
        rows = np.fromiter(values.keys(), np.int64, len(values))
        array[rows] = np.fromiter(values.values(), np.int64, len(values))


def _key_column(keys: list[bytes | None]) -> BinaryColumn | None:
    """Return the key column; None if no row has a key."""
    if not any(keys) and keys.count(None) == len(keys):
        return None
    return binary_column(keys)


def binary_column(cells: list[bytes | None] | list[bytes]) -> BinaryColumn:
    """Convert a list of bytes and None to a column."""
    valid = None
    try:
        data = b"".join(cells)  # type: ignore[arg-type] # None is what the exception is for
    except TypeError:
        valid = np.fromiter((cell is not None for cell in cells), np.bool_, len(cells))
        cells = [cell or b"" for cell in cells]
        data = b"".join(cells)
    offsets = np.zeros(len(cells) + 1, np.int64)
    lengths = np.fromiter(map(len, cells), np.int64, len(cells))  # type: ignore[arg-type] # no None
    np.cumsum(lengths, out=offsets[1:])
    return BinaryColumn(np.frombuffer(data, np.uint8), offsets, valid)


# A chunk reserves memory for the rows of about 10 ms, estimated from the topic's last chunk. The
# smallest size makes a chunk's fixed cost (0.3 ms) small per row. The largest size limits how many
# rows wait for linger.ms although they could fill a batch.
FILL_TIME_S: Final = 0.01
SMALLEST_CHUNK_BYTES: Final = 16 * 1024
LARGEST_CHUNK_BYTES: Final = 1024 * 1024


class Row(NamedTuple):
    """A row whose fields are serialized and checked."""

    value: bytes | None
    key: bytes | None
    partition: int | None
    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes | None], ...]
    on_delivery: OnDelivery | None


def next_chunk_bytes(used_bytes: int, age_s: float) -> int:
    """Return the number of bytes to reserve for a topic's next chunk.

    used_bytes, age_s: the size in bytes and the age in seconds of the topic's last chunk.
    """
    change = min(2.0, max(0.5, FILL_TIME_S / max(age_s, 1e-6)))
    return min(max(int(used_bytes * change), SMALLEST_CHUNK_BYTES), LARGEST_CHUNK_BYTES)


class RowQueue:
    """The current chunk of one topic.

    under_way: the chunk whose rows a thread is putting into batches. If the thread is interrupted,
    the chunk stays in this field until another thread has finished it. With a user's partitioner,
    the next chunk waits until this one is finished. room: the free bytes of the current chunk; -1
    if there is no chunk. rows: the number of rows in the current chunk. partitions: the number of
    partitions of the topic, from the metadata of the current or the last chunk; 0 before the first
    chunk.
    """

    __slots__ = ("chunk", "chunk_bytes", "lock", "partitions", "room", "rows", "topic", "under_way")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.lock = threading.Lock()
        self.chunk: RowChunk | None = None
        self.under_way: RowChunk | None = None
        self.room = -1
        self.rows = 0
        self.chunk_bytes = SMALLEST_CHUNK_BYTES
        self.partitions = 0

    def put(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: tuple[tuple[str, bytes | None], ...],
        on_delivery: OnDelivery | None,
        size_bytes: int,
        check: Callable[[], None] | None = None,
    ) -> RowFuture | None:
        """Append a row; return None if there is no room for it, or its partition does not exist.

        check: called under the lock; raises an error to reject the row. If it does not raise, the
        row is added before another thread can take the chunk. So a transaction that is open during
        the check includes the row.
        """
        with self.lock:
            if check is not None:
                check()
            chunk, room = self.chunk, self.room - size_bytes
            # The chunk's metadata may have fewer partitions than the metadata that the caller has
            # seen.
            if room < 0 or chunk is None or not (partition is None or partition < self.partitions):
                return None
            self.room = room
            now, number = _wall_clock(), self.rows
            # There are no calls between these statements. So if the caller is interrupted, the row
            # is appended completely or not at all.
            if partition is not None:
                chunk.partitions[number] = partition
            if timestamp_ms is not None:
                chunk.timestamps[number] = timestamp_ms
            if headers:
                chunk.headers[number] = headers
            if on_delivery is not None:
                chunk.sent.callbacks[number] = on_delivery
            self.rows = number + 1
            chunk.cells.extend((value, key, now))
            future = new_row_future(RowFuture)
            future._rows, future._row = chunk.sent, number  # noqa: SLF001 - see new_row_future
            return future

    def has(self, partition: int | None) -> bool:
        """Return whether the metadata has this partition; reliable only with the lock."""
        return partition is None or partition < self.partitions

    def learn(self, metadata: TopicMetadata) -> None:
        """Use metadata that has more partitions, also for the rows that already wait in the chunk.

        Metadata with fewer partitions is either older or belongs to a recreated topic. It is
        ignored, because waiting rows may have the numbers of the missing partitions.
        """
        with self.lock:
            if len(metadata.leaders) <= self.partitions:
                return
            self.partitions = len(metadata.leaders)
            if self.chunk is not None:
                self.chunk.metadata = metadata

    def install(self, chunk: RowChunk) -> None:
        """Install a new chunk if the queue has no chunk; the caller holds the lock."""
        self.partitions = len(chunk.metadata.leaders)
        self.chunk, self.room, self.rows = chunk, chunk.room, len(chunk)

    def take(self, chunk: RowChunk) -> None:
        """Remove the chunk, so that it gets no more rows. Do nothing if it was replaced already."""
        with self.lock:
            self._let_go(chunk)

    def _let_go(self, chunk: RowChunk) -> None:
        if self.chunk is chunk:
            used = chunk.room - self.room
            self.chunk_bytes = next_chunk_bytes(used, time.monotonic() - chunk.created_at)
            self.chunk, self.room = None, -1

    def take_up(self, chunk: RowChunk) -> bool:
        """Remove the chunk and mark it as under way; return False while another chunk is under way.

        A caller that was interrupted may call this again.
        """
        with self.lock:
            if self.may_take_up(chunk):
                self.under_way = chunk
                self._let_go(chunk)
            return self.under_way is chunk

    def may_take_up(self, chunk: RowChunk) -> bool:
        """Return whether `take_up` would take the chunk now; reliable only with the lock."""
        is_untouched = not (chunk.is_over or chunk.is_handed_over)
        return is_untouched and (self.under_way is None or self.under_way is chunk)

    def release(self, chunk: RowChunk) -> None:
        """Record that this chunk is no longer under way. Do nothing if it was not."""
        with self.lock:
            if self.under_way is chunk:
                self.under_way = None


_wall_clock = time.time
