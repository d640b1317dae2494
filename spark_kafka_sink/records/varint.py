"""Encode columns of numbers as zigzag varints, in numpy (ByteUtils.writeVarint, writeVarlong).

A varint has 1 to 10 groups of seven bits, lowest group first. The top bit is set in each byte
except the last. Signed values are mapped to unsigned ones first: 0, -1, 1, -2 become 0, 1, 2, 3
(zigzag).
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Int64s: TypeAlias = npt.NDArray[np.int64]
UInt64s: TypeAlias = npt.NDArray[np.uint64]
UInt8s: TypeAlias = npt.NDArray[np.uint8]

MAX_VARLONG_BYTES: Final = 10


def zigzag(values: Int64s) -> UInt64s:
    """Return the zigzag mapping of signed values, uint64 of the same shape.

    Values of small magnitude are mapped to small values.
    """
    if not len(values) or values.min() >= 0:
        return (values << 1).view(np.uint64)
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def varint_widths(zigzagged: UInt64s) -> Int64s:
    """Return the size of each varint in bytes, 1 to 10, int64."""
    widths = np.ones(len(zigzagged), np.int64)
    if not len(zigzagged):
        return widths
    largest = int(zigzagged.max())
    for groups in range(1, MAX_VARLONG_BYTES):
        limit = 1 << (7 * groups)
        if largest < limit:
            break
        widths += zigzagged >= np.uint64(limit)
    return widths


def varint_words(zigzagged: UInt64s, widths: Int64s) -> tuple[UInt64s, UInt64s | None]:
    """Return the bytes of each varint in little-endian words, uint64, one per row.

    The first array has bytes 1 to 8. The second array has bytes 9 and 10; it is None if no varint
    is that long. Bits beyond a varint's width are 0.
    """
    longest = int(widths.max(initial=1))
    if longest == 1:
        return zigzagged, None
    first = _groups(zigzagged, widths, range(min(longest, 8)))
    if longest <= 8:
        return first, None
    first |= (widths > 8).astype(np.uint64) << np.uint64(63)
    second = zigzagged >> np.uint64(56) & np.uint64(0x7F)
    second |= (widths > 9).astype(np.uint64) << np.uint64(7)
    second |= zigzagged >> np.uint64(63) << np.uint64(8)
    return first, second


def _groups(zigzagged: UInt64s, widths: Int64s, groups: range) -> UInt64s:
    """Put each group of seven bits into a byte, and set the top bit of every byte but the last."""
    spread = zigzagged & np.uint64(0x7F)
    for group in groups[1:]:
        spread |= zigzagged << np.uint64(group) & np.uint64(0x7F << 8 * group)
        spread |= (widths > group).astype(np.uint64) << np.uint64(8 * group - 1)
    return spread


def varint_size(value: int) -> int:
    """Return the size in bytes of one signed value as a zigzag varint."""
    zigzagged = (value << 1) ^ (value >> 63)
    return max(1, -(-zigzagged.bit_length() // 7))


_WORD_BITS: Final = 64


class FieldBytes(NamedTuple):
    """Bytes per row: row i is the first ``lengths[i]`` bytes of ``words[i]``.

    words: uint64, little-endian, of shape (rows, number of words in the longest row). lengths:
    int64, one per row.
    """

    words: UInt64s
    lengths: Int64s


class VarintFields:
    """Concatenates fields within each row. All fields have the same number of rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._words: list[UInt64s] = []
        # The position in bits of the next field in each row, None if it is the same in all rows;
        # and the minimum and the maximum of these positions.
        self._bits: UInt64s | None = None
        self._least_bits = self._most_bits = 0

    @property
    def most_bytes(self) -> int:
        """An upper bound of the size of each row so far, in bytes."""
        return self._most_bits >> 3

    def constant(self, byte: int) -> None:
        """Add the same byte to all rows."""
        if byte:
            self._add(np.full(self._rows, byte, np.uint64), 8)
        self._advance(8, 8, None)

    def varint(self, zigzagged: UInt64s, widths: Int64s | None = None) -> None:
        """Add a varint to each row.

        widths: the result of `varint_widths`, if it is known. If a row's width is 0, nothing is
        added to that row, and its value in `zigzagged` must be 0.
        """
        if widths is None:
            widths = varint_widths(zigzagged)
        least, most = (8 * int(widths.min()), 8 * int(widths.max())) if self._rows else (8, 8)
        first, second = varint_words(zigzagged, widths)
        if second is None:
            self._add(first, most)
            self._advance(least, most, widths)
            return
        self._add(first, _WORD_BITS)
        # Some varints have 9 or 10 bytes. The second word of shorter varints is 0.
        self._advance(_WORD_BITS, _WORD_BITS, None)
        self._add(second, most - _WORD_BITS)
        self._advance(least - _WORD_BITS, most - _WORD_BITS, widths - 8)

    def raw(self, words: UInt64s, size: int) -> None:
        """Append the first `size` bytes (0 to 8) of each word; its other bytes must be 0."""
        self._add(words, 8 * size)
        self._advance(8 * size, 8 * size, None)

    def raw_of(self, words: UInt64s, sizes: Int64s) -> None:
        """Append the first ``sizes[i]`` bytes (0 to 8) of ``words[i]``; its others must be 0."""
        if self._rows:
            least, most = 8 * int(sizes.min()), 8 * int(sizes.max())
            self._add(words, most)
            self._advance(least, most, sizes)

    def _advance(self, least_bits: int, most_bits: int, widths: Int64s | None) -> None:
        """Advance the position of the next field."""
        if self._bits is None and least_bits != most_bits:
            self._bits = np.full(self._rows, self._least_bits, np.uint64)
        self._least_bits += least_bits
        self._most_bits += most_bits
        if self._bits is not None and widths is not None:
            self._bits += (widths << 3).view(np.uint64)
        elif self._bits is not None:
            self._bits += np.uint64(most_bits)

    def _add(self, values: UInt64s, bits: int) -> None:
        """Put values of at most `bits` bits at the next field's position in each row."""
        if not bits:
            return
        last = (self._most_bits + bits - 1) // _WORD_BITS
        if not self._words and self._bits is None and not last:
            self._words.append(_shifted(values, self._least_bits))
            return
        while len(self._words) <= last:
            self._words.append(np.zeros(self._rows, np.uint64))
        for number in range(self._least_bits // _WORD_BITS, last + 1):
            start = number * _WORD_BITS
            if self._bits is None:
                self._words[number] |= _shifted(values, self._least_bits - start)
                continue
            # A shift by 64 or more returns 0. A negative shift is a very large uint64, so it
            # returns 0 too.
            if self._most_bits >= start:
                self._words[number] |= values << (self._bits - np.uint64(start))
            if self._least_bits < start:
                self._words[number] |= values >> (np.uint64(start) - self._bits)

    def rows(self) -> FieldBytes:
        """Return the bytes of each row."""
        if self._bits is None:
            lengths = np.full(self._rows, self._least_bits >> 3)
        else:
            lengths = (self._bits >> np.uint64(3)).view(np.int64)
        while not self._words or len(self._words) * _WORD_BITS < self._most_bits:
            self._words.append(np.zeros(self._rows, np.uint64))
        if len(self._words) == 1:
            return FieldBytes(self._words[0].reshape(-1, 1), lengths)
        return FieldBytes(np.stack(self._words, axis=1), lengths)


def _shifted(values: UInt64s, bits: int) -> UInt64s:
    return values << np.uint64(bits) if bits >= 0 else values >> np.uint64(-bits)
