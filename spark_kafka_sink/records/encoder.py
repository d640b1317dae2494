"""Encode columns as the records sections of v2 record batches, for all rows at once.

A record has this format, in which all numbers are zigzag varints (DefaultRecord)::

    length | attributes 0 | timestamp delta | offset delta | key length | key
           | value length | value | header count | headers

Everything except key, value and headers is a few bytes of varints. `encode` computes the varints of
all rows at once (see `varint`). One gather operation (see `Pieces`) then copies varints, keys and
values into the requested order. The header count of a record without headers is a zero byte. That
byte is written at the start of the *next* record's varints, which saves one piece per record. The
gathered bytes therefore begin with one byte that belongs to no record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.layout import Cut, OpenBatch, Runs, lay_out
from spark_kafka_sink.records.varint import (
    FieldBytes,
    Int64s,
    UInt8s,
    VarintFields,
    varint_size,
    varint_widths,
    zigzag,
)

# An element of at most this many bytes is stored in the binary view itself. Arrow then reads no
# buffer.
_INLINE_BYTES: Final = 12
_INLINE: Final = np.dtype((np.void, _INLINE_BYTES))
# A view's position in its buffer has 31 bits. Longer data is split into overlapping buffers.
_BUFFER_BITS: Final = 30


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """Encoded records in one buffer: record i is ``buffer[offsets[i]:offsets[i + 1]]``."""

    buffer: memoryview
    offsets: Int64s


class EncodedRows(NamedTuple):
    """Encoded rows, and the cuts that assign the rows to batches (see `layout`).

    The cuts are in order, without gaps. records: the number of records. size_bytes: the sum of the
    record sizes. largest_bytes: the largest record size. Both sizes are the upper bounds that were
    computed before encoding.
    """

    cuts: list[Cut]
    encoded: EncodedRecords
    records: int
    size_bytes: int
    largest_bytes: int


def encode_rows(
    columns: RecordColumns, runs: Runs, opens: Sequence[OpenBatch]
) -> tuple[list[Cut], EncodedRecords]:
    """Assign the rows to batches of their partitions, and encode them in partition order.

    opens: for each run (the rows of one partition), the open batch of the partition.
    """
    timestamps = columns.timestamps_ms
    largest_delta = max(batch.records for batch in opens) + len(columns)
    span = span_ms(timestamps, [b.base_timestamp_ms for b in opens if b.records])
    bounds = record_size_bounds(columns, span, largest_delta)
    layout = lay_out(runs, bounds[runs.order], timestamps[runs.order], opens)
    encoded = encode(columns, runs.order, layout.offset_deltas, layout.timestamp_deltas)
    return layout.cuts, encoded


def encode(
    columns: RecordColumns, order: Int64s, offset_deltas: Int64s, timestamp_deltas: Int64s
) -> EncodedRecords:
    """Encode the rows of `columns` in the given order.

    order: row numbers, int64. offset_deltas, timestamp_deltas: one per record *in that order*,
    int64. No size is checked here, because the sizes were checked before.
    """
    key, headers = columns.key, columns.headers
    value_lengths = columns.value_lengths[order]
    records, step = len(order), 2 + 2 * (key is not None) + (headers is not None)
    pieces = Pieces(records * step + (headers is None))
    places = (slice(number, records * step, step) for number in range(step))

    fields = _head(columns, order, offset_deltas, timestamp_deltas)
    if key is None or columns.key_lengths is None:
        fields.constant(1)
    else:
        key_lengths = columns.key_lengths[order]
        fields.varint(zigzag(key_lengths))
        pieces.put_fields(next(places), fields.rows())
        pieces.put_in_order(next(places), key, order, key_lengths)
        fields = VarintFields(records)
    fields.varint(zigzag(value_lengths))
    pieces.put_fields(next(places), fields.rows())
    pieces.put_in_order(next(places), columns.value, order, value_lengths)
    if headers is None:
        pieces.put_fields(slice(records * step, None), _ZERO_BYTE)
    else:
        pieces.put_in_order(next(places), headers, order, headers.lengths[order])

    buffer, offsets = pieces.gather()
    boundaries = offsets[: records * step + 1 : step]
    return EncodedRecords(buffer, boundaries + 1 if headers is None else boundaries)


def _head(
    columns: RecordColumns, order: Int64s, offset_deltas: Int64s, timestamp_deltas: Int64s
) -> VarintFields:
    """Return the varints of each record from its length to its offset delta.

    If the columns have no headers, a zero byte comes before these varints. It is the header count
    of the previous record.
    """
    fields = VarintFields(len(order))
    if columns.headers is None:
        fields.constant(0)
    timestamps, offsets = zigzag(timestamp_deltas), zigzag(offset_deltas)
    widths = (varint_widths(timestamps), varint_widths(offsets))
    fields.varint(zigzag(columns.body_bytes[order] + widths[0] + widths[1]))
    fields.constant(0)
    fields.varint(timestamps, widths[0])
    fields.varint(offsets, widths[1])
    return fields


# The header count of the last record.
_ZERO_BYTE: Final = FieldBytes(np.zeros((1, 1), np.uint64), np.ones(1, np.int64))


def record_size_bounds(
    columns: RecordColumns, timestamp_span_ms: int, max_offset_delta: int
) -> Int64s:
    """Return an upper bound of each record's encoded size in bytes, int64, one per row.

    The bound is exact except for two fields. Each timestamp delta is counted with the size of
    `timestamp_span_ms`, which is the largest magnitude of any timestamp delta. Each offset delta is
    counted with the size of `max_offset_delta`.
    """
    deltas = varint_size(timestamp_span_ms) + varint_size(max_offset_delta)
    body = columns.body_bytes + deltas
    return body + varint_widths(zigzag(body))


def encode_headers(counts: Int64s, keys: BinaryColumn, values: BinaryColumn) -> BinaryColumn:
    """Return the encoded header section of each row as a binary column.

    counts: the number of headers of each row, int64. keys, values: the header keys and header
    values of all rows, one row after another; each column has ``counts.sum()`` elements. No key may
    be null.
    """
    rows, entries = len(counts), len(keys)
    pieces = Pieces(rows + 4 * entries)
    # Before the header count of row r, there are r header counts, and 4 pieces for each header of
    # the earlier rows.
    row_of_entry = np.repeat(np.arange(rows), counts)
    row_starts = np.arange(rows) + 4 * (np.cumsum(counts) - counts)
    entry_starts = row_of_entry + 1 + 4 * np.arange(entries)
    pieces.put_fields(row_starts, _varints(counts))
    pieces.put_fields(entry_starts, _varints(keys.wire_lengths))
    pieces.put(entry_starts + 1, keys)
    pieces.put_fields(entry_starts + 2, _varints(values.wire_lengths))
    pieces.put(entry_starts + 3, values)
    data, offsets = pieces.gather()
    boundaries = offsets[np.append(row_starts, rows + 4 * entries)]
    return BinaryColumn(np.frombuffer(data, np.uint8), boundaries, None)


def _varints(values: Int64s) -> FieldBytes:
    fields = VarintFields(len(values))
    fields.varint(zigzag(values))
    return fields.rows()


_ANY_OFFSET_DELTA: Final = 2**31 - 1


def record_sizes(columns: RecordColumns) -> Int64s:
    """Return an upper bound of each record's encoded size in bytes, valid for any batch."""
    return record_size_bounds(columns, span_ms(columns.timestamps_ms, ()), _ANY_OFFSET_DELTA)


def span_ms(timestamps_ms: Int64s, bases_ms: Sequence[int]) -> int:
    """Return an upper bound of the magnitude of every timestamp delta, in ms.

    bases_ms: the base timestamps of the open batches.
    """
    if not len(timestamps_ms):
        return 0
    low = min(int(timestamps_ms.min()), *bases_ms, 2**63 - 1)
    high = max(int(timestamps_ms.max()), *bases_ms, -(2**63))
    return high - low


class Pieces:
    """Collects byte strings of several columns, and copies them into one buffer in any order.

    Each element is one byte string of the output, and must be set exactly once. The elements form
    *one* Arrow array of binary views, in the order of the output. A view contains a length, and the
    position of the bytes. If there are at most twelve bytes, it contains the bytes themselves. A
    cast to plain binary then interleaves all columns *and* sorts the rows by partition in a single
    pass over the bytes, in C.
    """

    __slots__ = ("_buffers", "_halves", "_inline", "_views")

    def __init__(self, count: int) -> None:
        # A view: the length, then either the bytes themselves, or four ignored bytes, the index of
        # the buffer and the position in it.
        self._views = np.empty((count, 4), np.int32)
        # The same memory as two int64 per view: length and bytes 0-3; buffer index and position.
        self._halves = self._views.view(np.int64)
        # The first eight bytes of inline elements, in the same memory.
        self._inline = self._views[:, 1:3].view(np.uint64)
        self._buffers: list[pa.Buffer] = []

    def put(self, where: slice | Int64s, column: BinaryColumn) -> None:
        """Set the elements at `where` to the rows of a column; a null becomes an empty element."""
        self.put_parts(where, column, column.offsets[:-1], column.lengths)

    def put_fields(self, where: slice | Int64s, fields: FieldBytes) -> None:
        """Set the elements at `where` to the bytes of each row of `fields`."""
        words, lengths = fields
        if not len(lengths):
            return
        if int(lengths.max()) <= _INLINE_BYTES:
            self._halves[where, 0] = lengths
            self._inline[where, 0] = words[:, 0]
            if words.shape[1] > 1:
                self._views[where, 3] = words[:, 1]
            return
        offsets = np.arange(0, words.nbytes + 1, words.shape[1] * words.itemsize)
        rows = BinaryColumn(words.reshape(-1).view(np.uint8), offsets, None)
        self.put_parts(where, rows, offsets[:-1], lengths)

    def put_in_order(
        self, where: slice | Int64s, column: BinaryColumn, order: Int64s, lengths: Int64s
    ) -> None:
        """Set the elements at `where` to rows of a column.

        order: the row numbers, int64. lengths: the lengths of these rows, in the same order;
        negative for a null row.
        """
        if column.valid is not None:
            lengths = np.maximum(lengths, 0)
        self.put_parts(where, column, column.offsets[order], lengths)

    def put_parts(
        self, where: slice | Int64s, column: BinaryColumn, starts: Int64s, lengths: Int64s
    ) -> None:
        """Set the elements at `where` to parts of a column's data.

        starts, lengths: where each part begins in ``column.data``, and its length, int64. The parts
        are within the rows of the column.
        """
        if not len(lengths):
            return
        shortest, longest = int(lengths.min()), int(lengths.max())
        self._halves[where, 0] = lengths
        if longest <= _INLINE_BYTES:
            self._views[where, 1:] = _first_bytes(column.data, starts)
            return
        self._halves[where, 1] = self._positions(column, starts)
        if shortest <= _INLINE_BYTES:
            short = np.flatnonzero(lengths <= _INLINE_BYTES)
            at = _numbers(where, short)
            self._views[at, 1:] = _first_bytes(column.data, starts[short])

    def _positions(self, column: BinaryColumn, starts: Int64s) -> Int64s:
        """Add the column's bytes to the buffers. Return one int64 per part, to put into its view.

        The upper 32 bits are the part's position in a buffer, and the lower 32 bits are the index
        of the buffer. In `_halves`, this is the second int64 of a view.
        """
        first, last = int(column.offsets[0]), int(column.offsets[-1])
        numbers: int | Int64s = len(self._buffers)
        for start in range(first, last, 1 << _BUFFER_BITS):
            self._buffers.append(pa.py_buffer(column.data[start:last]))
        positions = starts - first
        if last - first > 1 << _BUFFER_BITS:
            numbers = numbers + (positions >> _BUFFER_BITS)
            positions &= (1 << _BUFFER_BITS) - 1
        positions <<= 32
        positions |= numbers
        return positions

    def gather(self) -> tuple[memoryview, Int64s]:
        """Copy the elements into one buffer, one after another.

        Return the bytes and the offsets of the elements in them. The offsets are int64.
        There is one more offset than there are elements.
        """
        buffers = [None, pa.py_buffer(self._views), *self._buffers]
        views = pa.Array.from_buffers(pa.binary_view(), len(self._views), buffers)
        _, positions, gathered = views.cast(pa.large_binary()).buffers()
        offsets = np.frombuffer(positions, np.int64, len(self._views) + 1)
        view = memoryview(b"" if gathered is None else gathered).cast("B")
        return view[: offsets[-1]], offsets


def _numbers(where: slice | Int64s, chosen: Int64s) -> Int64s:
    """Return the element numbers ``where[chosen]``, even if `where` is a slice."""
    if isinstance(where, slice):
        return chosen * (where.step or 1) + (where.start or 0)
    return where[chosen]


def _first_bytes(data: UInt8s, starts: Int64s) -> npt.NDArray[np.int32]:
    """Return the twelve bytes that begin at each start, int32 of shape (starts, 3).

    The bytes after the end of a row, or after the end of the data, are arbitrary.
    """
    if int(starts.max()) + _INLINE_BYTES > len(data):
        # Twelve bytes from the last start would go beyond the end of the data, so zeros are added.
        # The bytes before the first start are not copied.
        first = int(starts.min())
        data = np.concatenate([data[first:], np.zeros(_INLINE_BYTES, np.uint8)])
        starts = starts - first
    found = np.ndarray(len(data) - _INLINE_BYTES + 1, _INLINE, data, 0, (1,))[starts]
    return found.view(np.int32).reshape(-1, 3)
