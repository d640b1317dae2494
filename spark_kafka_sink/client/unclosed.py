"""Producers that were not closed before they are garbage-collected or the program ends.

This module lists these producers, limits the time for closing them at the end of the program, and
prints the number of lost records to stderr. `atexit` closes the producers of a program. A child
process of `multiprocessing` may end without the functions of `atexit`, so a finalizer of
`multiprocessing` closes its producers.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - see _close_at_exit
import os
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

from spark_kafka_sink.client.io_thread import ProducerThread, records_by_topic
from spark_kafka_sink.client.producer_state import ProducerState

# How many seconds the remaining deliveries and callbacks may take when the program ends or after
# Ctrl-C. A producer whose delivery.timeout.ms is shorter has only that time.
AT_EXIT_S: Final = 5.0
# How many seconds all other producers have for callbacks if Ctrl-C ends the wait for one of them.
# `base_producer` reserves the same number of seconds for callbacks, so no time is left for
# deliveries.
_AFTER_CTRL_C_S: Final = 1.0
# In a child process of `multiprocessing`, the producers are closed after everything else that is
# closed at its end, because its finalizers run in the order of their priorities, the highest first.
_EXIT_PRIORITY: Final = -1000
# Closes a producer within the given seconds, and reports lost records on stderr. The weak
# reference is dead if the producer was garbage-collected.
CloseAtExit: TypeAlias = "weakref.WeakMethod[Callable[[float], None]]"


def warn_unclosed(name: str, state: ProducerState, pid: int) -> None:
    """Warn about a garbage-collected producer, and let its I/O thread deliver its records.

    The I/O thread aborts an open transaction, and logs the outcome.

    pid: the process in which the producer was created.
    """
    if os.getpid() == pid:
        state.end_when_idle()
        warnings.warn(f"unclosed {name}", ResourceWarning, stacklevel=2)


# The key is the I/O thread, because after its producer was garbage-collected, the thread runs until
# the records are delivered.
_unclosed: dict[ProducerThread, tuple[str, ProducerState, CloseAtExit, float]] = {}
# The child process of `multiprocessing` in which the finalizer is registered.
_pid_of_finalizer = 0


def remember(
    state: ProducerState,
    thread: ProducerThread,
    name: str,
    close: CloseAtExit,
    delivery_timeout_s: float,
) -> None:
    """Register a producer to be closed when the program ends; forget those that have ended."""
    for other in list(_unclosed):
        if not other.is_alive:
            _unclosed.pop(other, None)
    _unclosed[thread] = (name, state, close, delivery_timeout_s)
    _close_in_child()


def _close_in_child() -> None:
    """If this is a child process of `multiprocessing`, make it close the producers at its end.

    Such a process has imported the modules that this function looks up. If they are not imported,
    this is a different process, and nothing is done.
    """
    global _pid_of_finalizer  # noqa: PLW0603
    process = sys.modules.get("multiprocessing.process")
    util = sys.modules.get("multiprocessing.util")
    if process is None or util is None or process.parent_process() is None:
        return
    if util.is_exiting() and threading.current_thread() is not threading.main_thread():
        # The finalizers have run, but Python still waits for this thread.
        _start_closer()
    elif _pid_of_finalizer != os.getpid():
        util.Finalize(None, _close_at_end_of_child, exitpriority=_EXIT_PRIORITY)
        _pid_of_finalizer = os.getpid()


def _close_at_end_of_child() -> None:
    """Close the producers when all non-daemon threads have ended, like at the end of a program.

    Before Python 3.13, `multiprocessing` runs its finalizers before it waits for these threads.
    """
    if _threads_to_wait_for():
        _start_closer()
    else:
        _close_at_exit()


class _Closer(threading.Thread):
    """Closes the producers when all other non-daemon threads have ended."""

    def __init__(self) -> None:
        super().__init__(name="kafka-producers-at-exit", daemon=False)

    def run(self) -> None:
        while threads := _threads_to_wait_for():
            for thread in threads:
                thread.join()
        _close_at_exit()


def _start_closer() -> None:
    if not any(isinstance(thread, _Closer) for thread in threading.enumerate()):
        _Closer().start()


def _threads_to_wait_for() -> list[threading.Thread]:
    main = threading.main_thread()
    return [
        thread
        for thread in threading.enumerate()
        if not (thread.daemon or thread is main or isinstance(thread, _Closer))
    ]


def _close_at_exit() -> None:
    """Deliver the rows of producers that are still open, and print how many are lost.

    This takes at most delivery.timeout.ms for each producer, and at most `AT_EXIT_S` for all of
    them together. The function does not wait for callbacks that run longer. Only the ``close``
    methods of the user's serializers, interceptors and partitioner have no limit.

    In the Java client, such rows are lost silently. Python calls this function after all non-daemon
    threads of the user have ended; until then, these threads may send rows. The I/O threads are
    daemon threads, and still run. Python 3.12 and newer start no threads at this time, and do not
    allow the import of `concurrent.futures.thread`. pyarrow imports that module together with
    pandas when it first makes an array, so this module imports it in advance.
    """
    started = time.monotonic()
    deadline = started + AT_EXIT_S
    # A child process of `multiprocessing` may call this twice, but each loss is printed once. In a
    # forked child, the I/O threads of the parent's producers are not alive. Their producers are
    # skipped, because the parent closes them.
    taken = [(thread, _unclosed.pop(thread, None)) for thread in list(_unclosed)]
    unclosed = [(thread, values) for thread, values in taken if values and thread.is_alive]
    for _, (_, state, _, _) in unclosed:
        state.hurry()
    interrupt: KeyboardInterrupt | None = None
    failure: Exception | None = None
    for thread, (name, _, ref, delivery_timeout_s) in unclosed:
        own_deadline = min(deadline, started + delivery_timeout_s)
        close, limit_s = ref(), max(own_deadline - time.monotonic(), 0)
        try:
            if close is not None:
                close(limit_s)
            elif not thread.join(limit_s):
                outcome = thread.unowned_outcome
                say_lost(name, thread.lost(), [outcome] if outcome else [])
        except KeyboardInterrupt as error:
            # The other producers deliver no more, but their lost records are printed, too.
            deadline = min(deadline, time.monotonic() + _AFTER_CTRL_C_S)
            interrupt = error
        except Exception as error:  # noqa: BLE001 - raised below, after the other producers
            failure = failure or error
    last = interrupt or failure
    if last is not None:
        raise last


def say_lost(name: str, records: Counter[str], said: list[str]) -> None:
    """At the end of the program, print the number of lost records and `said` to stderr."""
    if records:
        said = [f"{records_by_topic(records)} were not delivered", *said]
    if said and sys.stderr is not None:
        message = f"{name} was not closed before the program ended: {'; '.join(said)}"
        # A stderr that cannot be written to must not keep other producers from being closed.
        with suppress(OSError, ValueError, AttributeError):
            print(message, file=sys.stderr, flush=True)  # noqa: T201 - loggers may write elsewhere


atexit.register(_close_at_exit)
