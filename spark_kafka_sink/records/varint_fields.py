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
        differing = [widths for _, widths in self._fields if widths is not None]
        if not differing:
            return self._uniform()
        row_bytes = sum(differing[1:], differing[0])
        row_bytes = row_bytes + sum(len(places) for places, each in self._fields if each is None)
        offsets = np.zeros(self._rows + 1, np.int64)
        np.cumsum(row_bytes, out=offsets[1:])
        return BinaryColumn(self._used(), offsets, None)

    def _uniform(self) -> BinaryColumn:
        places = [place for places, _ in self._fields for place in places]
        offsets = np.arange(0, (self._rows + 1) * len(places), len(places))
        return BinaryColumn(_interleaved(places), offsets, None)

    def _used(self) -> UInt8s:
        matrix = _interleaved([place for places, _ in self._fields for place in places])
        used = np.ones(len(matrix), np.bool_).reshape(self._rows, -1)
        start = 0
        for places, widths in self._fields:
            if widths is not None:
                for place in range(1, len(places)):
                    used[:, start + place] = widths > place
            start += len(places)
        return matrix[used.reshape(-1)]


def _interleaved(places: list[UInt8s]) -> UInt8s:
    """Give the first byte of each array, then the second of each, and so on."""
    matrix = np.empty((len(places[0]), len(places)), np.uint8)
    for number, place in enumerate(places):
        matrix[:, number] = place
    return matrix.reshape(-1)
