"""Columns to the records section of record batches (format v2), without touching a row in Python.

A record, all numbers zigzag varints (DefaultRecord)::

    length | attributes 0 | timestamp delta | offset delta | key length | key
           | value length | value | header count | headers

Everything but key, value and headers is a few bytes of varints. `encode` computes them for all rows
at once (see `varint_fields`), and one gather (see `gather`) lays varints, keys and values out in
the order asked for. The header count of a record without headers is a zero byte; it is written at
the head of the *next* record's varints, which saves a piece per record, so the gathered bytes begin
with one byte that belongs to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.gather import Pieces
from spark_kafka_sink.records.varint import Int64s, varint_size, varint_widths, zigzag
from spark_kafka_sink.records.varint_fields import FieldBytes, VarintFields


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
