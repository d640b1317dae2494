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


def varint_words(zigzagged: UInt64s, widths: Int64s) -> tuple[UInt64s, UInt64s | None]:
    """Give the varints as numbers whose lowest byte is the first, uint64 of rows.

    The second array has bytes 9 and 10, None where no value is as wide. What is right of a row's
    width is 0.
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
    """Spread groups of seven bits over bytes, each byte but a row's last with its top bit set."""
    spread = zigzagged & np.uint64(0x7F)
    for group in groups[1:]:
        spread |= zigzagged << np.uint64(group) & np.uint64(0x7F << 8 * group)
        spread |= (widths > group).astype(np.uint64) << np.uint64(8 * group - 1)
    return spread


def varint_size(value: int) -> int:
    """Give the bytes one signed value takes as a zigzag varint."""
    zigzagged = (value << 1) ^ (value >> 63)
    return max(1, -(-zigzagged.bit_length() // 7))
