"""Calls in a forked child: their results, and which of them hang."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from spark_kafka_sink.errors import IllegalStateException

ENOUGH_S = 20


def found_by(call: Callable[[], object]) -> str:
    """Return a description of a call's result or exception."""
    try:
        call()
    except IllegalStateException as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - told
        return repr(error)
    return "nothing"


def in_child(calls: dict[str, Callable[[], object]]) -> dict[str, str]:
    """Return the results of calls in a forked child; those that hang are missing."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def run() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(ENOUGH_S)  # ends the child if a call hangs
        for name, call in calls.items():
            answers.put((name, found_by(call)))

    child = context.Process(target=run)
    child.start()
    child.join(2 * ENOUGH_S)
    found: dict[str, str] = {}
    while not answers.empty():
        name, answer = answers.get()
        found[name] = answer
    return found


@contextlib.contextmanager
def taken(*locks: Any) -> Iterator[None]:  # noqa: ANN401 - locks of all kinds
    """Hold locks in another thread."""
    are_taken, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            are_taken.set()
            may_go.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    assert are_taken.wait(ENOUGH_S)
    try:
        yield
    finally:
        may_go.set()
        holder.join()
