"""A column of headers to the header section of each record.

A header section, all numbers zigzag varints::

    count | key length | key | value length (-1: null) | value | key length | …

The sections are laid out by the same gather as the records (see `gather`): one pass over all
entries of all rows.
"""

from __future__ import annotations

import numpy as np

from spark_kafka_sink.records.columns import BinaryColumn
from spark_kafka_sink.records.gather import PiecePool
from spark_kafka_sink.records.varint import Int64s, zigzag
from spark_kafka_sink.records.varint_fields import VarintFields


def encode_headers(counts: Int64s, keys: BinaryColumn, values: BinaryColumn) -> BinaryColumn:
    """Give each row's header section as a binary column.

    counts: headers of each row, int64; keys, values: all entries, row after row, of
    ``counts.sum()`` each; no key may be null.
    """
    rows, entries = len(counts), len(keys)
    pool = PiecePool()
    elements = np.empty(rows + 4 * entries, np.int64)
    entry_numbers = np.arange(entries)
    # Row r's count stands behind r counts and the 4 pieces of every entry of the rows before.
    row_of_entry = np.repeat(np.arange(rows), counts)
    row_starts = np.arange(rows) + 4 * (np.cumsum(counts) - counts)
    entry_starts = row_of_entry + 1 + 4 * entry_numbers
    elements[row_starts] = _varints(pool, counts)
    elements[entry_starts] = _varints(pool, keys.wire_lengths)
    elements[entry_starts + 1] = pool.elements_of(keys, entry_numbers)
    elements[entry_starts + 2] = _varints(pool, values.wire_lengths)
    elements[entry_starts + 3] = pool.elements_of(values, entry_numbers)
    data, offsets = pool.gather(elements)
    boundaries = offsets[np.append(row_starts, len(elements))]
    return BinaryColumn(np.frombuffer(data, np.uint8), boundaries, None)


def _varints(pool: PiecePool, values: Int64s) -> Int64s:
    """Add the varints of `values` to the pool and give their elements."""
    fields = VarintFields(len(values))
    fields.varint(zigzag(values))
    return pool.all_of(fields.column())
