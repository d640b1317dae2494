"""The progress of a running write: finished tasks, the commit, and the elapsed time.

On a terminal, the progress is a bar (tqdm). Otherwise, for example in a log, it is a line from time
to time.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from pyspark import StatusTracker
from pyspark.sql import SparkSession

_POLL_S = 0.2
_LINE_EVERY_S = 2.0
# Between two stages, there may be no running task for a moment. So the last stage has ended, and
# the driver commits, only if there is no running task in this number of polls in a row.
_IDLE_POLLS = 2


class Tasks(NamedTuple):
    """The tasks of all running stages."""

    total: int
    done: int
    failed: int


class Display(Protocol):
    """Shows the progress of a job."""

    def show(self, tasks: Tasks, elapsed_s: float) -> None:
        """Show the state of a job."""

    def show_commit(self, elapsed_s: float) -> None:
        """Show that all tasks have ended and that the driver commits."""

    def close(self, elapsed_s: float) -> None:
        """End the display."""


@contextlib.contextmanager
def shown(spark: SparkSession, what: str) -> Iterator[None]:
    """Show the progress of the jobs that Spark runs in the `with` block."""
    started = time.monotonic()
    display = _display(what)
    done = threading.Event()
    watcher = threading.Thread(
        target=_watch,
        args=(spark.sparkContext.statusTracker(), display, done, started),
        daemon=True,
    )
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        display.close(time.monotonic() - started)


def _watch(tracker: StatusTracker, display: Display, done: threading.Event, started: float) -> None:
    # The job's thread reports errors of Spark, so this thread does not report them again.
    with contextlib.suppress(Exception):
        idle_polls: int | None = None  # None: no tasks yet
        while not done.wait(_POLL_S):
            tasks, elapsed_s = _tasks(tracker), time.monotonic() - started
            if tasks.total:
                idle_polls = 0
                display.show(tasks, elapsed_s)
            elif idle_polls is not None:
                idle_polls += 1
                if idle_polls >= _IDLE_POLLS:
                    display.show_commit(elapsed_s)


def _tasks(tracker: StatusTracker) -> Tasks:
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return Tasks(
        total=sum(stage.numTasks for stage in known),
        done=sum(stage.numCompletedTasks for stage in known),
        failed=sum(stage.numFailedTasks for stage in known),
    )


def _display(what: str) -> Display:
    if _on_terminal():
        with contextlib.suppress(ImportError):
            return _Bar(what)
    return _Lines(what)


def _on_terminal() -> bool:
    """Return whether this process or the spark-submit that started it writes to a terminal.

    spark-submit's JVM starts this process with a pipe as its output.
    """
    if sys.stderr.isatty():
        return True
    with contextlib.suppress(OSError):
        output = Path(f"/proc/{os.getppid()}/fd/1").readlink()
        return str(output).startswith(("/dev/pts/", "/dev/tty"))
    return False


class _Bar:
    def __init__(self, what: str) -> None:
        from tqdm import tqdm  # noqa: PLC0415 - an extra; lines take its place

        self._what = what
        self._new_bar = partial(tqdm, unit="task", leave=False, dynamic_ncols=True)
        self._bar = self._new_bar()

    def show(self, tasks: Tasks, _elapsed_s: float) -> None:
        if self._bar.disable:
            self._bar = self._new_bar()
        self._bar.total = tasks.total
        self._bar.n = tasks.done
        self._bar.set_description(self._what)

    def show_commit(self, _elapsed_s: float) -> None:
        # The driver may print a line about the commit, which must not begin behind a bar.
        if not self._bar.disable:
            self._bar.close()
            print("committing …", flush=True)

    def close(self, _elapsed_s: float) -> None:
        self._bar.close()


class _Lines:
    def __init__(self, what: str) -> None:
        self._what = what
        self._next_s = 0.0
        self._last = ""

    def show(self, tasks: Tasks, elapsed_s: float) -> None:
        failed = f", {tasks.failed} failed" if tasks.failed else ""
        self._say(f"{tasks.done} of {tasks.total} tasks done{failed}", elapsed_s)

    def show_commit(self, elapsed_s: float) -> None:
        self._say("committing …", elapsed_s)

    def _say(self, state: str, elapsed_s: float) -> None:
        if state == self._last and elapsed_s < self._next_s:
            return
        self._last = state
        self._next_s = elapsed_s + _LINE_EVERY_S
        print(f"{self._what}: {state}, {elapsed_s:.1f} s", flush=True)

    def close(self, elapsed_s: float) -> None:
        print(f"{self._what}: ended after {elapsed_s:.1f} s", flush=True)
