"""Zigzag varints read from many places of a buffer at once (the other way of `varint`).

Where the varints of a column begin is known; how long each is, is not. All are read together, one
byte of each per step: after the first step only those that have a second byte go on.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from spark_kafka_sink.records.corruption import corrupt
from spark_kafka_sink.records.varint import Int64s, UInt8s

VARINT_BITS: Final = 32
VARLONG_BITS: Final = 64


def read_varints(data: UInt8s, positions: Int64s, ends: Int64s, bits: int) -> tuple[Int64s, Int64s]:
    """Read the varint at each position and give the values and the positions behind them.

    ends: where what holds each varint ends. Raises CorruptRecordException for one that does not fit
    there, or not into `bits`.
    """
    if (positions >= ends).any():
        raise corrupt("a record ends where a number should be")
    byte = data[positions]
    values = (byte & 0x7F).astype(np.uint64)
    behind = positions + 1
    going_on = np.flatnonzero(byte & 0x80)
    shift = 7
    while len(going_on):
        at = behind[going_on]
        if shift >= bits or (at >= ends[going_on]).any():
            raise corrupt("a number is longer than its type or its record")
        byte = data[at]
        if bits - shift < 7 and (byte >> (bits - shift)).any():
            raise corrupt(f"a number does not fit {bits} bits")
        values[going_on] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind[going_on] += 1
        going_on = going_on[byte >= 0x80]
        shift += 7
    return (values >> np.uint64(1)).view(np.int64) ^ -(values & np.uint64(1)).view(np.int64), behind


def read_varint(buffer: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    """Read one varint of 32 bits; see `read_varints`."""
    value = shift = 0
    while position < end and shift < VARINT_BITS:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> VARINT_BITS:
                break
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    raise corrupt("a number is longer than its type or its record")
