"""RowQueue: the chunk of a topic that rows are appended to, and how large the next one is to be.

Owns the room that is left in the chunk, under a lock of its own. The way of nearly every row,
`RowProducer.send`, does what `put` does by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from spark_kafka_sink.producer.topic_metadata import TopicMetadata
from spark_kafka_sink.rows.chunk import RowChunk
from spark_kafka_sink.rows.future import OnDelivery, RowFuture

# A chunk reserves what comes in 10 ms, going by the last one of its topic, within these limits: so
# many rows that its fixed cost (0.3 ms) is little per row, but none that wait for long while they
# would fill a batch, whatever linger.ms is.
FILL_TIME_S: Final = 0.01
SMALLEST_CHUNK_BYTES: Final = 16 * 1024
LARGEST_CHUNK_BYTES: Final = 1024 * 1024


class Row(NamedTuple):
    """A row that is serialized and checked."""

    value: bytes | None
    key: bytes | None
    partition: int | None
    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes | None], ...]
    on_delivery: OnDelivery | None


def next_chunk_bytes(used_bytes: int, age_s: float) -> int:
    """Give what a topic's next chunk is to reserve, when the last one had so much after so long."""
    change = min(2.0, max(0.5, FILL_TIME_S / max(age_s, 1e-6)))
    return min(max(int(used_bytes * change), SMALLEST_CHUNK_BYTES), LARGEST_CHUNK_BYTES)


class RowQueue:
    """One topic's chunk.

    under_way: the chunk that is on its way into batches, or was when its caller was interrupted.
    With a user's own partitioner, the next one goes when it is over.
    room: bytes that its chunk still takes, -1 without one. partitions: how many the topic has by
    the chunk's metadata, or had by that of the last one; 0 before there was any.
    """

    __slots__ = ("chunk", "chunk_bytes", "lock", "partitions", "room", "topic", "under_way")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.lock = threading.Lock()
        self.chunk: RowChunk | None = None
        self.under_way: RowChunk | None = None
        self.room = -1
        self.chunk_bytes = SMALLEST_CHUNK_BYTES
        self.partitions = 0

    def put(self, row: Row, size_bytes: int, check: Callable[[], None]) -> RowFuture | None:
        """Append a row; None where there is no room for it, or not its partition.

        check: called under the lock, raises where the row cannot be taken. What passes it is in
        the chunk before anybody can take that, so that a transaction's end finds it.
        """
        with self.lock:
            check()
            chunk = self.chunk
            if chunk is None or size_bytes > self.room or not self.has(row.partition):
                return None
            self.room -= size_bytes
            number, now = len(chunk), time.time()
            # No calls between these: who is interrupted has put in the whole row, or nothing.
            if row.partition is not None:
                chunk.partitions[number] = row.partition
            if row.timestamp_ms is not None:
                chunk.timestamps[number] = row.timestamp_ms
            if row.headers:
                chunk.headers[number] = row.headers
            if row.on_delivery is not None:
                chunk.sent.callbacks[number] = row.on_delivery
            chunk.cells.extend((row.value, row.key, now))
            return RowFuture(chunk.sent, number)

    def has(self, partition: int | None) -> bool:
        """Whether the chunk may take a row for a partition; for certain only with the lock."""
        return partition is None or partition < self.partitions

    def learn(self, metadata: TopicMetadata) -> None:
        """Take metadata with more partitions; also for the rows that wait.

        With fewer it would be from before, or of a topic made anew: rows may be for the others.
        """
        with self.lock:
            if len(metadata.leaders) <= self.partitions:
                return
            self.partitions = len(metadata.leaders)
            if self.chunk is not None:
                self.chunk.metadata = metadata

    def install(self, chunk: RowChunk) -> None:
        """Take a new chunk where there is none; the caller has the lock."""
        self.partitions = len(chunk.metadata.leaders)
        self.chunk, self.room = chunk, chunk.room

    def take(self, chunk: RowChunk) -> None:
        """Let go of the chunk, if it is not another by now: it gets no more rows."""
        with self.lock:
            self._let_go(chunk)

    def _let_go(self, chunk: RowChunk) -> None:
        if self.chunk is chunk:
            used = chunk.room - self.room
            self.chunk_bytes = next_chunk_bytes(used, time.monotonic() - chunk.created_at)
            self.chunk, self.room = None, -1

    def take_up(self, chunk: RowChunk) -> bool:
        """Let go of the chunk, which is the one under way then; False while another one is.

        Who is interrupted here may call this again.
        """
        with self.lock:
            if self.may_take_up(chunk):
                self.under_way = chunk
                self._let_go(chunk)
            return self.under_way is chunk

    def may_take_up(self, chunk: RowChunk) -> bool:
        """Whether the chunk may be taken up now; for certain only with the lock."""
        is_untouched = not (chunk.is_over or chunk.is_handed_over)
        return is_untouched and (self.under_way is None or self.under_way is chunk)

    def release(self, chunk: RowChunk) -> None:
        """Have no chunk under way, where it is this one."""
        with self.lock:
            if self.under_way is chunk:
                self.under_way = None
