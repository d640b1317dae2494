"""The varints of each row, side by side: what stands between a record's key and value.

Fields are added one after the other for all rows at once; `column` then gives each row's bytes
without gaps: a mask drops what a row does not use of the widest one's bytes.
"""

from __future__ import annotations

import numpy as np

from spark_kafka_sink.records.columns import BinaryColumn
from spark_kafka_sink.records.varint import Int64s, UInt8s, UInt64s, varint_bytes, varint_widths


class VarintFields:
    """Collects fields; all have the same number of rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        # Of each field its bytes, one array for each place, and its widths where they differ.
        self._fields: list[tuple[list[UInt8s], Int64s | None]] = []

    def constant(self, byte: int) -> None:
        """Add the same byte for all rows."""
        self._fields.append(([np.full(self._rows, byte, np.uint8)], None))

    def varint(self, zigzagged: UInt64s, widths: Int64s | None = None) -> None:
        """Add a varint for each row; widths: of each, if they are known, as `varint_widths`."""
        if widths is None:
            widths = varint_widths(zigzagged)
        places = varint_bytes(zigzagged, widths)
        same_width = not len(widths) or int(widths.min()) == len(places)
        self._fields.append((places, None if same_width else widths))

    def column(self) -> BinaryColumn:
        """Give each row's bytes."""
        matrix = _side_by_side([place for places, _ in self._fields for place in places])
        if all(widths is None for _, widths in self._fields):
            offsets = np.arange(0, matrix.size + 1, matrix.shape[1])
            return BinaryColumn(matrix.reshape(-1), offsets, None)
        used = np.ones(matrix.shape, np.bool_)
        row_bytes = np.full(self._rows, matrix.shape[1])
        start = 0
        for places, widths in self._fields:
            if widths is not None:
                row_bytes += widths - len(places)
                for place in range(1, len(places)):
                    used[:, start + place] = widths > place
            start += len(places)
        offsets = np.zeros(self._rows + 1, np.int64)
        np.cumsum(row_bytes, out=offsets[1:])
        return BinaryColumn(matrix[used], offsets, None)


def _side_by_side(places: list[UInt8s]) -> UInt8s:
    """Give a row of bytes for each row, shape (rows, places)."""
    matrix = np.empty((len(places[0]), len(places)), np.uint8)
    for number, place in enumerate(places):
        matrix[:, number] = place
    return matrix
