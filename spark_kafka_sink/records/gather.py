"""One gather that lays out bytes: pieces from many columns, in any order, into one buffer.

The records section of a batch is, for each record, a few bytes of varints, the key, more varints,
the value, and so on. A `PiecePool` puts all those bytes side by side as the elements of ONE Arrow
binary array; ``take`` with the right indices then interleaves them *and* sorts the rows by
partition in the same pass, in C.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.records.columns import BinaryColumn
from spark_kafka_sink.records.varint import Int64s, UInt8s


class PiecePool:
    """Collects columns of pieces and gathers them; element numbers are int64."""

    __slots__ = ("_data", "_elements", "_offsets", "_size_bytes")

    EMPTY = 0

    def __init__(self) -> None:
        self._data: list[UInt8s] = []
        self._offsets: list[Int64s] = [np.zeros(1, np.int64)]
        self._elements = 1
        self._size_bytes = 0

    def add(self, column: BinaryColumn) -> int:
        """Add a column; its row i is the element ``result + i``."""
        start, end = int(column.offsets[0]), int(column.offsets[-1])
        first = self._elements
        self._data.append(column.data[start:end])
        self._offsets.append(column.offsets[:-1] + (self._size_bytes - start))
        self._elements += len(column)
        self._size_bytes += end - start
        return first

    def all_of(self, column: BinaryColumn) -> Int64s:
        """Add a column without nulls and give the elements of its rows in their order."""
        first = self.add(column)
        return np.arange(first, first + len(column))

    def elements_of(self, column: BinaryColumn, order: Int64s) -> Int64s:
        """Add a column and give the elements of its rows in `order`; null rows become EMPTY."""
        first = self.add(column)
        if column.valid is None:
            return first + order
        return np.where(column.valid[order], first + order, self.EMPTY)

    def gather(self, elements: Int64s) -> tuple[memoryview, Int64s]:
        """Lay the elements out one after another.

        Gives the bytes and the offset of each element in them, int64 of ``len(elements) + 1``.

        ``take`` reserves its output as mean element size x elements taken. An element of padding
        makes the mean a little too large: a little too small made it grow by doubling, thirteen
        times slower for 10 KB values.
        """
        padding = np.empty(4 * self._size_bytes // self._elements + 64, np.uint8)
        offsets = np.concatenate([*self._offsets, self._end(), self._end(len(padding))])
        data = np.concatenate([*self._data, padding])
        pool = pa.Array.from_buffers(
            pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )
        taken = pc.take(pool, pa.array(elements), boundscheck=False)
        _, positions, gathered = taken.buffers()
        view = memoryview(b"" if gathered is None else gathered).cast("B")
        return view, np.frombuffer(positions, np.int64, len(elements) + 1)

    def _end(self, padding_bytes: int = 0) -> Int64s:
        return np.array([self._size_bytes + padding_bytes])
