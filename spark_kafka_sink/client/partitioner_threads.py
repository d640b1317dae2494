"""PartitionerThreads: the threads that call a user's partitioner for the rows of `send`.

The partitioner may take long. The I/O thread, which delivers the rows of all topics, must not wait
for it, and a caller must not wait without a limit. So other threads call it. Each topic has at most
one call at a time, in the order of the topic's rows (`chunk_feeder`). Topics do not wait for one
another, unless there are more topics than `MOST_THREADS`.

One thread runs until the producer is closed. It handles the rows that still linger when the program
ends, because Python 3.12 and newer start no thread at that time.

A caller of `run` may be interrupted (KeyboardInterrupt) anywhere. No signal interrupts the threads
of this module, so each thread itself records whether it is idle or runs a call. A caller first
starts or wakes a thread for a call, and then marks the call (`has_thread`). If an interrupt comes
before the mark, the next caller does both again.
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


class _Queued:
    """A call that waits for a thread; has_thread: whether a thread was started or woken for it."""

    __slots__ = ("call", "has_thread")

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.has_thread = False


class PartitionerThreads:
    """Runs calls in one permanent thread, and in threads that end when no call is left to run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._to_run: deque[_Queued] = deque()
        # The ids of the threads that run a call now; always the same set object.
        self.running: set[int] = set()
        # Whether the permanent thread runs, and whether it waits for a call and was not woken.
        self._one_stays = False
        self._is_idle = False

    def start(self) -> None:
        """Start the permanent thread. Raise RuntimeError if it cannot be started."""
        with self._lock:
            _thread.start_new_thread(self._run_all, (True,))
            self._one_stays = self._is_idle = True

    def stop(self) -> None:
        """Let all threads, including the permanent one, end when no call is left to run."""
        with self._lock:
            self._one_stays = False
            self._changed.notify_all()

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is a partitioner thread, which runs the user's partitioner."""
        return threading.get_ident() in self.running

    def run(self, call: Callable[[], None]) -> None:
        """Run `call` in a partitioner thread. Raise RuntimeError if no thread can be started.

        A caller that was interrupted may call this again; `call` may then run twice.
        """
        queued = _Queued(call)
        with self._lock:
            self._to_run.append(queued)
            try:
                self._find_threads()
            except RuntimeError:
                # A running thread makes this call after its own.
                if self._one_stays or self._count_threads():
                    return
                self._to_run.remove(queued)
                raise

    def _count_threads(self) -> int:
        """Return the number of threads that run a call, or were started or woken for one."""
        return len(self.running) + sum(each.has_thread for each in self._to_run)

    def _find_threads(self) -> None:
        """Wake or start a thread for each call that has none; the caller holds the lock.

        If an interrupt comes before the call is marked (`has_thread`), the next caller wakes or
        starts one more thread. That thread ends at once if there is nothing to run.
        """
        threads = self._count_threads()
        for each in self._to_run:
            if each.has_thread:
                continue
            if self._is_idle:
                # An interrupt in `notify` can leave a wait that has ended in the condition's list.
                # One more `notify` would then choose that wait, and not wake the thread.
                self._changed.notify_all()
                self._is_idle = False
            elif threads < MOST_THREADS:
                # Thread.start is not used, because an interrupt inside it would start a thread that
                # fails before it runs anything.
                _thread.start_new_thread(self._run_all, (False,))
            else:
                return
            each.has_thread = True
            threads += 1

    def _run_all(self, stays: bool) -> None:  # noqa: FBT001 - start_new_thread takes no names
        me = threading.get_ident()
        while True:
            with self._lock:
                self.running.discard(me)
                if stays:
                    self._is_idle = False
                while not self._to_run:
                    if not (stays and self._one_stays):
                        return
                    self._is_idle = True
                    self._changed.wait()
                    self._is_idle = False
                self.running.add(me)
                call = self._to_run.popleft().call
            # User code is guarded where it is called, so an exception here is a bug.
            call_in_io_thread("call", call)
            del call  # it refers to rows, which need not stay in memory
