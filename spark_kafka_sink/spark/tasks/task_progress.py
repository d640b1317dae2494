"""The progress of a task, printed while it runs (option ``progress``).

A thread of the task prints a line on the executor's stderr every ten seconds, even while the task
waits. The thread holds no lock of the producer while it prints. If stderr is a pipe that is full,
only this thread waits for the line; the task and the I/O thread do not. If Spark collects the logs
of workers, the line is logged with Python's logging instead. If the output of a logging handler is
a pipe that is full, each thread that logs waits, also the I/O thread with its warnings.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from pyspark import TaskContext

from spark_kafka_sink.errors import KafkaException, as_options_are_named_here
from spark_kafka_sink.logs import safe_logging
from spark_kafka_sink.spark.micro_batch import micro_batch_of
from spark_kafka_sink.spark.report import counted
from spark_kafka_sink.task_producer import DeliveryProgress

PERIOD_S: Final = 10.0
# A line of up to PIPE_BUF (4096 bytes) is written to a pipe as a whole, so the lines of several
# tasks are not mixed.
_LONGEST: Final = 1000
_MOST_NAMED: Final = 3
_STDERR: Final = 2
# Spark sets this variable in a worker whose logs it collects (4.1 and newer, with the setting
# spark.sql.pyspark.worker.logging.enabled).
_COLLECTS_LOGS: Final = "PYSPARK_SPARK_SESSION_UUID"
_LOGGER: Final = "spark_kafka_sink.progress"


class ProgressLines:
    """Makes the progress lines of a task. name: the name of the task. now: when the task started.

    Times are in seconds, from any clock.
    """

    def __init__(self, name: str, now: float) -> None:
        self._name = name
        self._at = now
        self._bytes = 0

    def line(self, progress: DeliveryProgress, now: float) -> str:
        """Return a line about the progress. It shows the rate since the previous line."""
        seconds, self._at = now - self._at, now
        added, self._bytes = progress.bytes - self._bytes, progress.bytes
        rate = added / seconds / 1e6 if seconds > 0 else 0.0
        parts = [
            f"pykafka: {self._name}: {counted(progress.records, 'row')}, "
            f"{progress.bytes / 1e6:.1f} MB acknowledged, {rate:.1f} MB/s"
        ]
        if progress.pending:
            parts.append(f"{counted(progress.pending, 'row')} unacknowledged")
        parts += _waits(progress)
        return "; ".join(parts)[:_LONGEST]


def _waits(progress: DeliveryProgress) -> Iterator[str]:
    if progress.is_waiting_for_memory:
        yield "waiting for memory (kafka.buffer.memory)"
    if progress.throttled:
        yield "throttled by " + _nodes(
            {number: f"for {left_s:.1f} s more" for number, left_s in progress.throttled.items()}
        )
    if progress.retried:
        yield "retrying at " + _nodes(
            {
                number: counted(batches, "batch", "batches")
                for number, batches in progress.retried.items()
            }
        )
    if progress.unreachable:
        yield "no connection to " + _nodes(progress.unreachable)
    if progress.awaited:
        yield "waiting for " + _named(
            [f"{what} ({note})" if note else what for what, note in progress.awaited.items()]
        )


def _nodes(notes: Mapping[int, str]) -> str:
    """List nodes with their notes, as text. Negative numbers are bootstrap servers."""
    return _named(
        [
            f"{'a bootstrap server' if number < 0 else f'node {number}'} ({note})"
            for number, note in sorted(notes.items())
        ]
    )


def _named(every: Sequence[str]) -> str:
    more = len(every) - _MOST_NAMED
    return ", ".join(every[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def name_of(context: TaskContext | None) -> str:
    """Return the name of a task for its progress lines."""
    if context is None:
        return "task 0"
    batch = micro_batch_of(context.getLocalProperty)
    name = f"task {context.partitionId()} (attempt {context.attemptNumber()})"
    return name if batch is None else f"{name} of {batch}"


# Held while a line is printed. While the print waits because the pipe is full, the lines of other
# threads are dropped. Otherwise, each task would add a waiting thread to the process.
_printing: Final = threading.Lock()


def print_line(line: str) -> None:
    """Print a line on the stderr of the process, or log it if Spark collects the logs of workers.

    The line is not printed by sys.stderr: if the pipe is full, the print waits, and would hold the
    lock of sys.stderr.
    """
    if not _printing.acquire(blocking=False):
        return
    try:
        if _COLLECTS_LOGS in os.environ:
            _log(line)
        else:
            with suppress(OSError):
                os.write(_STDERR, f"{line}\n".encode())
    finally:
        _printing.release()


def _log(line: str) -> None:
    """Pass a line to the handlers of the logger, regardless of the logger's level."""
    logger = logging.getLogger(_LOGGER)
    with safe_logging():
        logger.handle(logger.makeRecord(_LOGGER, logging.INFO, __file__, 0, line, (), None))


@contextmanager
def printed_progress(
    name: str,
    progress: Callable[[], DeliveryProgress],
    *,
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    clock: Callable[[], float] = time.monotonic,
    write: Callable[[str], None] = print_line,
) -> Iterator[None]:
    """Context manager: print a task's progress every `PERIOD_S` seconds during the `with` block.

    name: the name of the task. progress: returns the task's progress. wait: waits until an event
    happens or a number of seconds has passed, and returns whether the event has happened. write:
    prints a line.
    """
    is_over = threading.Event()
    lines = ProgressLines(name, clock())

    def run() -> None:
        while not wait(is_over, PERIOD_S):
            try:
                line = lines.line(progress(), clock())
            except KafkaException:  # the producer is closed
                return
            if not is_over.is_set():
                write(line)

    named = as_options_are_named_here(run)
    thread = threading.Thread(target=named, name="pykafka-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()  # not joined: the thread may wait for a full pipe
