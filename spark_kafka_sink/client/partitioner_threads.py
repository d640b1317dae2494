"""PartitionerThreads: where a user's own partitioner is called for the rows of `send`.

It may take long, so neither the I/O thread, which delivers the rows of all topics, nor a caller,
whose wait has a limit, calls it. Each topic has at most one call at a time, in the order of its
rows (`chunk_feeder`), and no topic waits for another one, unless there are very many.

One thread stays until the producer ends. When the program ends, Python 3.12 and newer start no
thread, and rows that still linger are given to that one.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

# More topics than these share them.
MOST_THREADS: Final = 32


class PartitionerThreads:
    """One thread that stays, and others that end when there is nothing left to run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._to_run: deque[Callable[[], None]] = deque()
        self._running: set[int] = set()
        # Whether there is the thread that stays, whether it waits, and for what: to go on or end.
        self._one_stays = False
        self._is_idle = False
        self._signals: SimpleQueue[bool] = SimpleQueue()

    def start(self) -> None:
        """Start the thread that stays. Raises RuntimeError where it cannot be started."""
        with self._lock:
            _thread.start_new_thread(self._stay, ())
            self._one_stays = self._is_idle = True

    def stop(self) -> None:
        """Have no thread stay when there is nothing left to run."""
        with self._lock:
            self._one_stays = self._is_idle = False
            self._signals.put(False)  # noqa: FBT003 - an item

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in one of these threads, as the partitioner does."""
        return threading.get_ident() in self._running

    def run(self, call: Callable[[], None]) -> None:
        """Run `call` in one of the threads. Raises RuntimeError where none can be started."""
        with self._lock:
            self._to_run.append(call)
            if self._is_idle:
                self._signals.put(True)  # noqa: FBT003 - an item
                self._is_idle = False
                return
            is_full = len(self._running) >= MOST_THREADS
        if is_full:
            return
        try:
            # Not Thread.start: a caller that is interrupted in the middle of that leaves a thread
            # that fails before it runs anything.
            _thread.start_new_thread(self._run_all, ())
        except RuntimeError:
            with self._lock:
                # These run it, or did.
                if self._one_stays or self._running or call not in self._to_run:
                    return
                self._to_run.remove(call)
            raise

    def _stay(self) -> None:
        while self._signals.get():
            self._run_all(stays=True)

    def _run_all(self, *, stays: bool = False) -> None:
        while True:
            with self._lock:
                self._running.add(threading.get_ident())
                if not self._to_run:
                    self._running.remove(threading.get_ident())
                    self._is_idle |= stays and self._one_stays
                    return
                call = self._to_run.popleft()
            call()
            del call  # and with it rows, while the thread ends
