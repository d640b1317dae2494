"""Columns of bytes by chance, which no codec makes smaller."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def binary_column(chance: np.random.Generator, rows: int, size_bytes: int) -> pa.Array:
    """Give so many values of `size_bytes` each, as plain binary."""
    data = pa.py_buffer(chance.integers(0, 256, rows * size_bytes, np.uint8).tobytes())
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size_bytes), rows, [None, data])
    return fixed.cast(pa.binary())
