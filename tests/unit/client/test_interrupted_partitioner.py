"""Callers that are interrupted (Ctrl-C) while they hand rows to a partitioner's thread."""

from __future__ import annotations

import threading
import time

import pytest
from support.pure.interrupts import interrupted

from spark_kafka_sink.client import partitioner_threads
from spark_kafka_sink.client.partitioner_threads import PartitionerThreads

ENOUGH_S = 20
MOST_THREADS = 4


class LongCalls:
    """Calls that end when `opened` is set. came: how many have begun."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.came = threading.Semaphore(0)

    def __call__(self) -> None:
        """Make a call."""
        self.came.release()
        assert self.opened.wait(ENOUGH_S)

    def run(self, threads: PartitionerThreads, count: int) -> None:
        """Run calls, which must all begin although none has ended."""
        for _ in range(count):
            threads.run(self)
        for number in range(count):
            assert self.came.acquire(timeout=ENOUGH_S), f"only {number} of {count} calls began"


def wait_until_idle(threads: PartitionerThreads) -> None:
    """Wait until only the permanent thread is left, and waits for a call."""
    deadline = time.monotonic() + ENOUGH_S
    waits = threads._changed._waiters  # type: ignore[attr-defined] # it says nothing of this
    while threads._count_threads() or not (threads._is_idle and waits):
        assert time.monotonic() < deadline
        time.sleep(0.0002)


def test_the_permanent_thread_is_woken_again_after_a_caller_that_woke_it_was_interrupted() -> None:
    moment, where = 0, None
    while not moment or where is not None:
        moment += 1
        threads, first, second = PartitionerThreads(), LongCalls(), LongCalls()
        first.opened.set()
        second.opened.set()
        threads.start()
        try:
            wait_until_idle(threads)
            where = interrupted(lambda: threads.run(first), moment)  # noqa: B023 - called at once
            # If it was woken, it waits for the second call when that comes.
            first.came.acquire(timeout=0.05)
            wait_until_idle(threads)
            second.run(threads, 1)
        except BaseException as failure:
            failure.add_note(f"interrupted at moment {moment}: {where}")
            raise
        finally:
            threads.stop()
    assert moment > 10


@pytest.mark.parametrize("is_busy", [False, True])
def test_calls_of_other_topics_run_after_a_caller_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, *, is_busy: bool
) -> None:
    monkeypatch.setattr(partitioner_threads, "MOST_THREADS", MOST_THREADS)
    moment, where = 0, None
    while not moment or where is not None:
        moment += 1
        threads, calls, interrupted_call = PartitionerThreads(), LongCalls(), LongCalls()
        interrupted_call.opened = calls.opened
        threads.start()
        try:
            wait_until_idle(threads)
            calls.run(threads, int(is_busy))
            where = interrupted(lambda: threads.run(interrupted_call), moment)  # noqa: B023 - called at once
            # The interrupted call takes at most one of the threads.
            calls.run(threads, MOST_THREADS - 1 - is_busy)
            calls.opened.set()
            wait_until_idle(threads)
            assert interrupted_call.came.acquire(blocking=False) or where
            calls.opened.clear()
            calls.run(threads, MOST_THREADS)
            threads.run(calls)
            assert threads._count_threads() == MOST_THREADS
            assert not calls.came.acquire(blocking=False)
        except BaseException as failure:
            failure.add_note(f"interrupted at moment {moment}: {where}")
            raise
        finally:
            calls.opened.set()
            threads.stop()
    assert moment > 10
