"""How a Spark worker's memory is kept: freed heap stays, and imports are no garbage.

Encoding a slice takes some tens of megabytes of short-lived arrays. By default glibc gives such
memory back to the system at once and takes it again for the next slice, page fault by page fault.
A worker that keeps up to `KEPT_BYTES` of free heap does without.

Spark's daemon has a worker collect garbage after each task, which walks through everything that was
ever imported, some 70,000 objects, for the few hundred that a task has left behind.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Final

KEPT_BYTES: Final = 64 * 1024 * 1024
# Arrays below this come from the heap. glibc takes no more than HEAP_MAX_SIZE / 2, which is 32 MiB
# in 64-bit ones before 2.35.
_MMAP_THRESHOLD_BYTES: Final = 32 * 1024 * 1024

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

# Python knows, too, but would count all that is frozen to tell.
_is_frozen = False


def keep_heap() -> None:
    """Set glibc's thresholds in this process; elsewhere than on glibc, do nothing."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        # Either call ends glibc's adapting of the mmap threshold, so the second alone does harm.
        if mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES) == 1:
            mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def freeze_imports() -> None:
    """Have collections of garbage in this process leave out, from now on, what is there now."""
    global _is_frozen  # noqa: PLW0603 - of this process
    if not _is_frozen:
        _is_frozen = True
        gc.freeze()
