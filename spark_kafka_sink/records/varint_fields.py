"""The varints of each row, side by side: what stands between a record's key and value.

Fields are added one after the other for all rows at once, each with a few shifts, into words of 64
bits whose lowest byte is the first. Where widths differ from row to row, so do the shifts of what
comes behind, and nothing has to be moved together at the end.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from spark_kafka_sink.records.varint import Int64s, UInt64s, varint_widths, varint_words

_WORD_BITS: Final = 64


class FieldBytes(NamedTuple):
    """Some bytes per row: row i is the first ``lengths[i]`` bytes of ``words[i]``.

    words: uint64, little-endian, of shape (rows, words of the longest row); lengths: int64 of rows.
    """

    words: UInt64s
    lengths: Int64s


class VarintFields:
    """Collects fields; all have the same number of rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._words: list[UInt64s] = []
        # Where the next field begins in each row; what it is at least and at most.
        self._bits: UInt64s | None = None
        self._least_bits = self._most_bits = 0

    def constant(self, byte: int) -> None:
        """Add the same byte for all rows."""
        if byte:
            self._add(np.full(self._rows, byte, np.uint64), 8)
        self._go_on(8, 8, None)

    def varint(self, zigzagged: UInt64s, widths: Int64s | None = None) -> None:
        """Add a varint for each row; widths: of each, if they are known, as `varint_widths`."""
        if widths is None:
            widths = varint_widths(zigzagged)
        least, most = (8 * int(widths.min()), 8 * int(widths.max())) if self._rows else (8, 8)
        first, second = varint_words(zigzagged, widths)
        self._add(first, most)
        if second is None:
            self._go_on(least, most, widths)
            return
        # Of 9 or 10 bytes: the others' second word is 0.
        self._go_on(_WORD_BITS, _WORD_BITS, None)
        self._add(second, most - _WORD_BITS)
        self._go_on(least - _WORD_BITS, most - _WORD_BITS, widths - 8)

    def _go_on(self, least_bits: int, most_bits: int, widths: Int64s | None) -> None:
        """Have the next field begin so much later."""
        if self._bits is None and least_bits != most_bits:
            self._bits = np.full(self._rows, self._least_bits, np.uint64)
        self._least_bits += least_bits
        self._most_bits += most_bits
        if self._bits is not None and widths is not None:
            self._bits += (widths << 3).view(np.uint64)
        elif self._bits is not None:
            self._bits += np.uint64(most_bits)

    def _add(self, values: UInt64s, bits: int) -> None:
        """Put values of `bits` at most where the next field begins."""
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
            # A shift by 64 or more gives 0, and so does one below 0, which is a very large one.
            if self._most_bits >= start:
                self._words[number] |= values << (self._bits - np.uint64(start))
            if self._least_bits < start:
                self._words[number] |= values >> (np.uint64(start) - self._bits)

    def rows(self) -> FieldBytes:
        """Give each row's bytes."""
        if self._bits is None:
            lengths = np.full(self._rows, self._least_bits >> 3)
        else:
            lengths = (self._bits >> np.uint64(3)).view(np.int64)
        while len(self._words) * _WORD_BITS < self._most_bits:
            self._words.append(np.zeros(self._rows, np.uint64))
        if len(self._words) == 1:
            return FieldBytes(self._words[0].reshape(-1, 1), lengths)
        return FieldBytes(np.stack(self._words, axis=1), lengths)


def _shifted(values: UInt64s, bits: int) -> UInt64s:
    return values << np.uint64(bits) if bits >= 0 else values >> np.uint64(-bits)
