"""RowChunk: rows that wait to become columns.

A chunk is for one topic and has its memory reserved beforehand, so that turning it into batches
never waits. What every row has stands in one flat list (one `extend` a row, three slices in the
end); what few rows have stands in dicts by row number. It has no lock: `row_producer` holds the
queue's.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

import numpy as np

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.producer.slices import Rows
from spark_kafka_sink.producer.topic_metadata import TopicMetadata
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.headers import encode_headers
from spark_kafka_sink.records.varint import Int64s
from spark_kafka_sink.reservation import Reservation
from spark_kafka_sink.rows.future import SentRows
from spark_kafka_sink.slice_appender import SliceProgress

CELLS: Final = 3  # of a row in `cells`: value, key, time in seconds


class RowChunk:
    """Rows of one topic, in the order sent.

    reservation: the bytes of buffer.memory that are set aside for its rows, which it gives back
    when they are in batches or given up, and is over then; created_at: when they were, in seconds
    of the producer's clock. error: why they are given up. progress: their way into batches, and
    is_in_hands: whether a thread sees to it now. is_handed_over: whether a thread is to call a
    user's own partitioner for them, and is_partitioned: whether one has, or does.
    """

    __slots__ = (
        "cells",
        "created_at",
        "error",
        "headers",
        "is_handed_over",
        "is_in_hands",
        "is_over",
        "is_partitioned",
        "metadata",
        "partitions",
        "progress",
        "reservation",
        "room",
        "sent",
        "timestamps",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        metadata: TopicMetadata,
        reservation: Reservation,
        created_at: float,
        sent: SentRows,
    ) -> None:
        self.topic = topic
        self.metadata = metadata
        self.reservation = reservation
        self.room = reservation.size_bytes
        self.is_over = False
        self.is_in_hands = False
        self.is_handed_over = False
        self.is_partitioned = False
        self.error: KafkaException | None = None
        self.progress = SliceProgress()
        self.created_at = created_at
        self.sent = sent
        self.cells: list[bytes | float | None] = []
        self.partitions: dict[int, int] = {}
        self.timestamps: dict[int, int] = {}
        self.headers: dict[int, tuple[tuple[str, bytes | None], ...]] = {}

    def __len__(self) -> int:
        return len(self.cells) // CELLS

    def rows(self) -> Rows:
        """Give the rows as columns."""
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
    """Put values in by row number."""
    if values:
        rows = np.fromiter(values.keys(), np.int64, len(values))
        array[rows] = np.fromiter(values.values(), np.int64, len(values))


def _key_column(keys: list[bytes | None]) -> BinaryColumn | None:
    """Give the key column, None if no row has a key."""
    if not any(keys) and keys.count(None) == len(keys):
        return None
    return binary_column(keys)


def binary_column(cells: list[bytes | None] | list[bytes]) -> BinaryColumn:
    """Give bytes and None as a column."""
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
