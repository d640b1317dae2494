"""Columns of random bytes, which no codec can compress."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def binary_column(chance: np.random.Generator, rows: int, size_bytes: int) -> pa.Array:
    """Return `rows` random values of `size_bytes` each, as an Arrow binary array."""
    values = chance.integers(0, 256, rows * size_bytes, np.uint8).tobytes()
    return binary_values(values, size_bytes)


def binary_values(values: bytes, size_bytes: int) -> pa.Array:
    """Return consecutive values of `size_bytes` each as an Arrow binary array."""
    rows, data = len(values) // size_bytes, pa.py_buffer(values)
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size_bytes), rows, [None, data])
    return fixed.cast(pa.binary())
