"""PartitionerThreads: where a user's own partitioner is called for the rows of `send`.

It may take long, so neither the I/O thread, which delivers the rows of all topics, nor a caller,
whose wait has a limit, calls it. Each topic has at most one call at a time, in the order of its
rows (`chunk_feeder`), and no topic waits for another one, unless there are very many.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

# More topics than these share them.
MOST_THREADS: Final = 32


class PartitionerThreads:
    """Threads that start when there is something to run, and end when there is nothing left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._to_run: deque[Callable[[], None]] = deque()
        self._running: set[int] = set()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in one of these threads, as the partitioner does."""
        return threading.get_ident() in self._running

    def run(self, call: Callable[[], None]) -> None:
        """Run `call` in one of the threads. Raises RuntimeError where none can be started."""
        with self._lock:
            self._to_run.append(call)
            is_full = len(self._running) >= MOST_THREADS
        if is_full:
            return
        try:
            # Not Thread.start: a caller that is interrupted in the middle of that leaves a thread
            # that fails before it runs anything.
            _thread.start_new_thread(self._run_all, ())
        except RuntimeError:
            with self._lock:
                if self._running or call not in self._to_run:  # these run it, or did
                    return
                self._to_run.remove(call)
            raise

    def _run_all(self) -> None:
        while True:
            with self._lock:
                self._running.add(threading.get_ident())
                if not self._to_run:
                    self._running.remove(threading.get_ident())
                    return
                call = self._to_run.popleft()
            call()
            del call  # and with it rows, while the thread ends
