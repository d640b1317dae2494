"""The peak memory of Python objects in a `with` block."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class TracedMemory:
    """peak_bytes: the peak, set at the end of the block."""

    peak_bytes: int = 0


@contextmanager
def traced_memory() -> Iterator[TracedMemory]:
    """Trace the memory of a `with` block."""
    memory = TracedMemory()
    tracemalloc.start()
    try:
        yield memory
        memory.peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
