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

from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.gather import PiecePool
from spark_kafka_sink.records.varint import Int64s, varint_size, varint_widths, zigzag
from spark_kafka_sink.records.varint_fields import VarintFields


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
    headers = columns.headers
    prefix = VarintFields(len(order))
    if headers is None:
        prefix.constant(0)
    value_lengths = columns.value_lengths[order]
    timestamps, offsets = zigzag(timestamp_deltas), zigzag(offset_deltas)
    widths = (varint_widths(timestamps), varint_widths(offsets))
    prefix.varint(zigzag(columns.body_bytes[order] + widths[0] + widths[1]))
    prefix.constant(0)
    prefix.varint(timestamps, widths[0])
    prefix.varint(offsets, widths[1])

    pool, pieces = PiecePool(), []
    if columns.key is not None and columns.key_lengths is not None:
        prefix.varint(zigzag(columns.key_lengths[order]))
        middle = VarintFields(len(order))
        middle.varint(zigzag(value_lengths))
        pieces.append(pool.all_of(prefix.column()))
        pieces.append(pool.elements_of(columns.key, order))
        pieces.append(pool.all_of(middle.column()))
    else:
        prefix.constant(1)
        prefix.varint(zigzag(value_lengths))
        pieces.append(pool.all_of(prefix.column()))
    pieces.append(pool.elements_of(columns.value, order))
    if headers is not None:
        pieces.append(pool.elements_of(headers, order))
        return _records(pool, pieces, tail=None)
    return _records(pool, pieces, tail=pool.add(_ZERO_BYTE))


_ZERO_BYTE: Final = BinaryColumn(np.zeros(1, np.uint8), np.array([0, 1]), None)


def _records(pool: PiecePool, pieces: list[Int64s], tail: int | None) -> EncodedRecords:
    """Gather the pieces record by record; `tail` is the zero byte that ends the last record."""
    records = len(pieces[0])
    elements = np.empty(records * len(pieces) + (tail is not None), np.int64)
    interleaved = elements[: records * len(pieces)].reshape(records, len(pieces))
    for column, piece in enumerate(pieces):
        interleaved[:, column] = piece
    if tail is not None:
        elements[-1] = tail
    buffer, offsets = pool.gather(elements)
    boundaries = offsets[: records * len(pieces) + 1 : len(pieces)]
    return EncodedRecords(buffer, boundaries if tail is None else boundaries + 1)


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
