"""Until when a caller waits, and how long that is still, as locks take it.

Owns that no time limit is too long to wait for: locks know neither infinity nor the longest
milliseconds that an option takes. And that who is interrupted in a wait has its lock.
"""

from __future__ import annotations

import threading
import time


def deadline_of(timeout_s: float | None) -> float | None:
    """Give when a wait that begins now is to end, None for never."""
    return None if timeout_s is None else time.monotonic() + timeout_s


def seconds_until(deadline: float | None) -> float | None:
    """Give how long a wait until `deadline` is from now on, None for as long as it takes."""
    return None if deadline is None else min(deadline - time.monotonic(), threading.TIMEOUT_MAX)


def wait_until(deadline: float | None, changed: threading.Condition, lock: threading.RLock) -> bool:
    """Wait for a condition, whose lock the caller has; False where the deadline has passed.

    The caller has the lock again in any case: who is interrupted (KeyboardInterrupt) in the moment
    after the condition let go of it would go on without, and let go of what another thread has.
    """
    try:
        return changed.wait(seconds_until(deadline))
    except BaseException:
        # What conditions ask their locks, too.
        if not lock._is_owned():  # type: ignore[attr-defined] # noqa: SLF001
            lock.acquire()
        raise
