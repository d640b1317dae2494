"""The most memory that Python objects take in a `with` block."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class TracedMemory:
    """peak_bytes: the most that was taken at once, when the block is over."""

    peak_bytes: int = 0


@contextmanager
def traced_memory() -> Iterator[TracedMemory]:
    """Trace the memory that a `with` block takes."""
    memory = TracedMemory()
    tracemalloc.start()
    try:
        yield memory
        memory.peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
