"""PartitionerThreads: the threads that call a user's partitioner for the rows of `send`.

The partitioner may take long. The I/O thread, which delivers the rows of all topics, must not wait
for it, and a caller may only wait for a limited time. So other threads call it. Each topic has at
most one call at a time, in the order of the topic's rows (`chunk_feeder`). Topics do not wait for
one another, unless there are more topics than `MOST_THREADS`.

One thread runs until the producer ends. It handles the rows that still linger when the program
ends, because Python 3.12 and newer start no thread at that time.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from spark_kafka_sink.plugins.user_calls import call_in_io_thread

# The largest number of threads. If more topics have rows, they share the threads.
MOST_THREADS: Final = 32


class PartitionerThreads:
    """Runs calls in one permanent thread, and in threads that end when no call is left to run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._to_run: deque[Callable[[], None]] = deque()
        self._running: set[int] = set()
        # The number of threads that were started and have not ended.
        self._threads = 0
        # Whether the permanent thread runs, and whether it is idle now.
        self._one_stays = False
        self._is_idle = False

    def start(self) -> None:
        """Start the permanent thread. Raise RuntimeError if it cannot be started."""
        with self._lock:
            self._one_stays = self._is_idle = True
            self._threads = 1
            _thread.start_new_thread(self._run_all, (True,))

    def stop(self) -> None:
        """Let all threads end, also the permanent one, when there is no call left to run."""
        with self._lock:
            self._one_stays = self._is_idle = False
            self._changed.notify_all()

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is a partitioner thread, which runs the user's partitioner."""
        return threading.get_ident() in self._running

    def run(self, call: Callable[[], None]) -> None:
        """Run `call` in a partitioner thread. Raise RuntimeError if no thread can be started."""
        with self._lock:
            self._to_run.append(call)
            if self._is_idle:
                self._changed.notify()
                self._is_idle = False
                return
            if self._threads >= MOST_THREADS:
                return
            self._threads += 1
        try:
            # Thread.start is not used: an interrupt inside it would leave a thread that fails
            # before it runs anything.
            _thread.start_new_thread(self._run_all, (False,))
        except RuntimeError:
            with self._lock:
                self._threads -= 1
                # another thread runs the call, or has run it
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
                        self._threads -= 1
                        return
                    self._is_idle = True
                    self._changed.wait()
                self._running.add(threading.get_ident())
                call = self._to_run.popleft()
            # User code is guarded where it is called, so an exception here is a bug.
            call_in_io_thread("call", call)
            del call  # it refers to rows, which need not stay in memory
