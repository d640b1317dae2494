"""One gather that interleaves pieces of many columns, in any order, in one buffer.

The records section of a batch is, for each record, a few bytes of varints, the key, more varints,
the value, and so on. `Pieces` are the elements of *one* Arrow array of binary views, in the order
of the output. A view is a length and the position of the bytes, or the bytes themselves if there
are at most twelve. A cast to plain binary interleaves all columns *and* sorts the rows by partition
in a single pass over the bytes, in C.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.records.columns import BinaryColumn
from spark_kafka_sink.records.varint import FieldBytes, Int64s, UInt8s

# The bytes that fit the view itself. For shorter elements, Arrow reads no buffer.
_INLINE_BYTES: Final = 12
_INLINE: Final = np.dtype((np.void, _INLINE_BYTES))
# A view's position in its buffer has 31 bits. Longer data becomes several overlapping buffers.
_BUFFER_BITS: Final = 30


class Pieces:
    """The elements to lay out. Each element must be put exactly once."""

    __slots__ = ("_buffers", "_halves", "_inline", "_views")

    def __init__(self, count: int) -> None:
        # The length, then either the bytes, or four ignored bytes, the buffer's index and the
        # position.
        self._views = np.empty((count, 4), np.int32)
        # The same memory as two halves, each written at once: length and bytes 0-3; index and
        # position.
        self._halves = self._views.view(np.int64)
        # The first eight bytes of inline elements, in the same memory.
        self._inline = self._views[:, 1:3].view(np.uint64)
        self._buffers: list[pa.Buffer] = []

    def put(self, where: slice | Int64s, column: BinaryColumn) -> None:
        """Set the elements at `where` to the rows of a column; a null row is an empty element."""
        self._put(where, column, column.offsets[:-1], column.lengths)

    def put_fields(self, where: slice | Int64s, fields: FieldBytes) -> None:
        """Set the elements at `where` to rows of varints."""
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
        self._put(where, rows, offsets[:-1], lengths)

    def put_in_order(
        self, where: slice | Int64s, column: BinaryColumn, order: Int64s, lengths: Int64s
    ) -> None:
        """Set the elements at `where` to the rows `order` of a column.

        lengths: of these rows, in that order; negative for a null row.
        """
        if column.valid is not None:
            lengths = np.maximum(lengths, 0)
        self._put(where, column, column.offsets[order], lengths)

    def _put(
        self, where: slice | Int64s, column: BinaryColumn, starts: Int64s, lengths: Int64s
    ) -> None:
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
            at = np.arange(len(self._views))[where][short]
            self._views[at, 1:] = _first_bytes(column.data, starts[short])

    def _positions(self, column: BinaryColumn, starts: Int64s) -> Int64s:
        """Add the column's bytes to the buffers. Return the position and the buffer of each row."""
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
        """Lay the elements out one after another.

        Return the bytes, and the offset of each element in them, int64 of one more than elements.
        """
        buffers = [None, pa.py_buffer(self._views), *self._buffers]
        views = pa.Array.from_buffers(pa.binary_view(), len(self._views), buffers)
        _, positions, gathered = views.cast(pa.large_binary()).buffers()
        offsets = np.frombuffer(positions, np.int64, len(self._views) + 1)
        view = memoryview(b"" if gathered is None else gathered).cast("B")
        return view[: offsets[-1]], offsets


def _first_bytes(data: UInt8s, starts: Int64s) -> npt.NDArray[np.int32]:
    """Return the twelve bytes from each start on, int32 of shape (starts, 3).

    Bytes after the end of a row or of the data are arbitrary.
    """
    if int(starts.max()) + _INLINE_BYTES > len(data):
        # A slice at the end of its column needs padding; the bytes before it are not copied.
        first = int(starts.min())
        data = np.concatenate([data[first:], np.zeros(_INLINE_BYTES, np.uint8)])
        starts = starts - first
    found = np.ndarray(len(data) - _INLINE_BYTES + 1, _INLINE, data, 0, (1,))[starts]
    return found.view(np.int32).reshape(-1, 3)
