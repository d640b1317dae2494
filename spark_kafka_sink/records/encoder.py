"""Encode columns as the records section of record batches (format v2), for all rows at once.

A record, in which all numbers are zigzag varints (DefaultRecord)::

    length | attributes 0 | timestamp delta | offset delta | key length | key
           | value length | value | header count | headers

Everything except key, value and headers is a few bytes of varints. `encode` computes them for all
rows at once (see `varint`), and one gather (see `gather`) puts varints, keys and values into the
requested order. The header count of a record without headers is a zero byte. It is written at the
start of the *next* record's varints, which saves one piece per record. The gathered bytes therefore
begin with one byte that belongs to no record.
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
    """Encode the rows of `columns` in the given order.

    order: row numbers, int64. offset_deltas, timestamp_deltas: one per record *in that order*,
    int64. There is nothing to raise, because sizes were checked when the batches were laid out.
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
    """Return the fields before each key's length, and before them the last record's zero count."""
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

    The bound is exact except for two fields. The timestamp delta is counted as wide as
    `timestamp_span_ms`, the largest magnitude of any delta, and the offset delta as wide as
    `max_offset_delta`.
    """
    deltas = varint_size(timestamp_span_ms) + varint_size(max_offset_delta)
    body = columns.body_bytes + deltas
    return body + varint_widths(zigzag(body))


def encode_headers(counts: Int64s, keys: BinaryColumn, values: BinaryColumn) -> BinaryColumn:
    """Return the encoded header section of each row as a binary column.

    counts: the number of headers of each row, int64. keys, values: the headers of all rows, one row
    after another, ``counts.sum()`` each. No key may be null.
    """
    rows, entries = len(counts), len(keys)
    pieces = Pieces(rows + 4 * entries)
    # The count of row r comes after r counts and the 4 pieces of each header of the rows before.
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
    """Return an upper bound of each record's encoded size in bytes, for any batch it may be in."""
    return record_size_bounds(columns, span_ms(columns.timestamps_ms, ()), _ANY_OFFSET_DELTA)


def span_ms(timestamps_ms: Int64s, bases_ms: Sequence[int]) -> int:
    """Return the largest magnitude that a timestamp delta can have, in ms."""
    if not len(timestamps_ms):
        return 0
    low = min(int(timestamps_ms.min()), *bases_ms, 2**63 - 1)
    high = max(int(timestamps_ms.max()), *bases_ms, -(2**63))
    return high - low
