"""PartitionerThreads: the threads that call a user's own partitioner for the rows of `send`.

The partitioner may take long. So neither the I/O thread, which delivers the rows of all topics, nor
a caller, whose wait has a limit, calls it. Each topic has at most one call at a time, in the order
of its rows (`chunk_feeder`), and no topic waits for another one, unless there are very many.

One thread stays until the producer ends. When the program ends, Python 3.12 and newer start no
thread, and that thread handles the rows that still linger.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from spark_kafka_sink.plugins.user_calls import call_in_io_thread

# The most threads. If there are more topics, they share these.
MOST_THREADS: Final = 32


class PartitionerThreads:
    """One thread that stays, and others that end when there is nothing left to run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._to_run: deque[Callable[[], None]] = deque()
        self._running: set[int] = set()
        # Whether one thread stays when there is nothing to run, and whether it waits now.
        self._one_stays = False
        self._is_idle = False

    def start(self) -> None:
        """Start the thread that stays. Raise RuntimeError if it cannot be started."""
        with self._lock:
            self._one_stays = self._is_idle = True
            _thread.start_new_thread(self._run_all, (True,))

    def stop(self) -> None:
        """Let the last thread end when there is nothing left to run."""
        with self._lock:
            self._one_stays = self._is_idle = False
            self._changed.notify_all()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in one of these threads, as the partitioner does."""
        return threading.get_ident() in self._running

    def run(self, call: Callable[[], None]) -> None:
        """Run `call` in one of the threads. Raise RuntimeError if none can be started."""
        with self._lock:
            self._to_run.append(call)
            if self._is_idle:
                self._changed.notify()
                self._is_idle = False
                return
            is_full = len(self._running) >= MOST_THREADS
        if is_full:
            return
        try:
            # Not Thread.start: an interrupt in the middle of it would leave a thread that fails
            # before it runs anything.
            _thread.start_new_thread(self._run_all, (False,))
        except RuntimeError:
            with self._lock:
                # other threads run it, or did
                if self._one_stays or self._running or call not in self._to_run:
                    return
                self._to_run.remove(call)
            raise

    def _run_all(self, stays: bool) -> None:  # noqa: FBT001 - start_new_thread takes no names
        while True:
            with self._lock:
                while not self._to_run:
                    self._running.discard(threading.get_ident())
                    if not (stays and self._one_stays):
                        return
                    self._is_idle = True
                    self._changed.wait()
                self._running.add(threading.get_ident())
                call = self._to_run.popleft()
            # User code is guarded at its call, so an exception here is a bug.
            call_in_io_thread("call", call)
            del call  # and with it rows, while the thread ends
