"""Columns to the records section of record batches (format v2), without touching a row in Python.

A record, all numbers zigzag varints (DefaultRecord)::

    length | attributes 0 | timestamp delta | offset delta | key length | key
           | value length | value | header count | headers

Everything but key, value and headers is a few bytes of varints. `encode` computes them for all rows
at once (see `varint`), and one gather (see `gather`) lays varints, keys and values out in
the order asked for. The header count of a record without headers is a zero byte; it is written at
the head of the *next* record's varints, which saves a piece per record, so the gathered bytes begin
with one byte that belongs to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.gather import Pieces
from spark_kafka_sink.records.varint import (
    FieldBytes,
    Int64s,
    VarintFields,
    varint_size,
    varint_widths,
    zigzag,
)


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """Encoded records in one buffer: record i is ``buffer[offsets[i]:offsets[i + 1]]``."""

    buffer: memoryview
    offsets: Int64s


def encode(
    columns: RecordColumns, order: Int64s, offset_deltas: Int64s, timestamp_deltas: Int64s
) -> EncodedRecords:
    """Encode the rows of `columns` in the order given.

    order: row numbers, int64; offset_deltas, timestamp_deltas: of each record *in that order*,
    int64 of the same length. Raises nothing: sizes were checked when the batches were laid out.
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
    """Give what stands before the key's length; before it, the record before may end."""
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
    """Give an upper bound of each record's encoded size in bytes, int64 of rows.

    The bound is exact but for the timestamp delta (taken as wide as `timestamp_span_ms`, the
    largest magnitude any delta can have) and the offset delta (as wide as `max_offset_delta`).
    """
    deltas = varint_size(timestamp_span_ms) + varint_size(max_offset_delta)
    body = columns.body_bytes + deltas
    return body + varint_widths(zigzag(body))


def encode_headers(counts: Int64s, keys: BinaryColumn, values: BinaryColumn) -> BinaryColumn:
    """Give each row's header section as a binary column.

    counts: headers of each row, int64; keys, values: all entries, row after row, of
    ``counts.sum()`` each; no key may be null.
    """
    rows, entries = len(counts), len(keys)
    pieces = Pieces(rows + 4 * entries)
    # Row r's count stands behind r counts and the 4 pieces of every entry of the rows before.
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
    """Give an upper bound of each record's encoded size, whichever batch it will be in."""
    return record_size_bounds(columns, span_ms(columns.timestamps_ms, ()), _ANY_OFFSET_DELTA)


def span_ms(timestamps_ms: Int64s, bases_ms: Sequence[int]) -> int:
    """Give the largest magnitude that a timestamp delta can have."""
    if not len(timestamps_ms):
        return 0
    low = min(int(timestamps_ms.min()), *bases_ms, 2**63 - 1)
    high = max(int(timestamps_ms.max()), *bases_ms, -(2**63))
    return high - low
