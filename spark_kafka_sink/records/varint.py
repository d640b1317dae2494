"""Zigzag varints of whole columns, as numpy arrays (ByteUtils.writeVarint and writeVarlong).

A varint is 1 to 10 groups of seven bits, lowest first, each byte but the last with its top bit
set; signed values are zigzagged before: 0, -1, 1, -2 become 0, 1, 2, 3.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Int64s: TypeAlias = npt.NDArray[np.int64]
UInt64s: TypeAlias = npt.NDArray[np.uint64]
UInt8s: TypeAlias = npt.NDArray[np.uint8]

MAX_VARLONG_BYTES: Final = 10


def zigzag(values: Int64s) -> UInt64s:
    """Map signed to unsigned, small magnitudes to small numbers; shape and order are kept."""
    if not len(values) or values.min() >= 0:
        return (values << 1).view(np.uint64)
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def varint_widths(zigzagged: UInt64s) -> Int64s:
    """Give how many bytes each value takes, 1 to 10."""
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


def varint_bytes(zigzagged: UInt64s, widths: Int64s) -> list[UInt8s]:
    """Give the first byte of each value, then the second, and so on up to the widest value's last.

    uint8 of rows each; what is right of a row's width is meaningless.
    """
    longest = int(widths.max(initial=1))
    if longest == 1:
        return [zigzagged.astype(np.uint8)]
    columns = []
    for column in range(longest):
        low_bits = (zigzagged >> np.uint64(7 * column)).astype(np.uint8)
        low_bits &= 0x7F
        if column + 1 < longest:
            low_bits |= (widths > column + 1).view(np.uint8) << 7
        columns.append(low_bits)
    return columns


def varint_size(value: int) -> int:
    """Give the bytes one signed value takes as a zigzag varint."""
    zigzagged = (value << 1) ^ (value >> 63)
    return max(1, -(-zigzagged.bit_length() // 7))
