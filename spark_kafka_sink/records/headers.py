"""A column of headers to the header section of each record.

A header section, all numbers zigzag varints::

    count | key length | key | value length (-1: null) | value | key length | …

The sections are laid out by the same gather as the records (see `gather`): one pass over all
entries of all rows.
"""

from __future__ import annotations

import numpy as np

from spark_kafka_sink.records.columns import BinaryColumn
from spark_kafka_sink.records.gather import Pieces
from spark_kafka_sink.records.varint import Int64s, zigzag
from spark_kafka_sink.records.varint_fields import FieldBytes, VarintFields


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
