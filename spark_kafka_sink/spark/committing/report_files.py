"""Files of reports, one JSON object per line, to which several processes may append.

If a process dies or the disk is full while a line is written, the next report begins on a new line,
and readers skip the incomplete line.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import LARGEST_INT32, checked_number
from spark_kafka_sink.spark.session import check_session, driver_folder, is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The longest wait for the lock of a file, and the time between two attempts to lock it.
_LOCK_S: Final = 1.0
_LOCK_POLL_S: Final = 0.01


def open_to_append(path: Path) -> BinaryIO:
    """Open a file for `append_report`.

    It is opened for appending and reading. A file that cannot be read, such as a pipe, is opened
    only for appending.
    """
    if not path.exists() or (path.is_file() and os.access(path, os.R_OK)):
        return path.open("a+b")
    return open_to_write(path, os.O_APPEND)


def is_special(path: Path) -> bool:
    """Return whether a path is a pipe, a device or /dev/stderr, which must not be replaced.

    The files in /dev/shm, a folder in memory, are ordinary files.
    """
    is_of_kernel = path.parts[1:2] in (("dev",), ("proc",)) and path.parts[1:3] != ("dev", "shm")
    return path.exists() and (not path.is_file() or is_of_kernel)


def open_to_write(path: Path, flag: int) -> BinaryIO:
    """Open an existing file for writing. flag: os.O_APPEND or os.O_TRUNC.

    If the file is a pipe that no process reads, raise OSError instead of waiting for a reader.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | flag)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb")


def append_report(lines: BinaryIO, report: dict[str, Any]) -> None:
    """Append a report to a file that is open for appending and, if possible, for reading.

    Raise OSError if the file cannot be written.
    """
    line = json.dumps(report).encode() + b"\n"
    if not lines.readable():
        lines.write(line)
        return
    with _locked(lines, is_needed=False):
        if lines.seek(0, os.SEEK_END):
            lines.seek(-1, os.SEEK_END)
            if lines.read(1) != b"\n":
                line = b"\n" + line
        lines.write(line)


@contextmanager
def _locked(
    file: BinaryIO | int, operation: int = fcntl.LOCK_EX, *, is_needed: bool = True
) -> Iterator[None]:
    """Context manager: lock a file during the `with` block, if its file system supports locks.

    file: an open file, or the descriptor of a folder. operation: LOCK_EX for a writer, LOCK_SH for
    a reader. If another process keeps the file locked for longer than `_LOCK_S`, raise
    BlockingIOError. With is_needed=False, run the block without the lock instead.
    """
    end = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(file, operation | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > end:
                if is_needed:
                    raise
                break
        except OSError:
            break
        time.sleep(_LOCK_POLL_S)
    try:
        yield
    finally:
        # Closing the file is not enough, because a forked child may have inherited it.
        with suppress(OSError):
            if not isinstance(file, int):
                file.flush()
            fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Context manager: lock a folder during the `with` block, if it can be locked.

    A file that is replaced cannot be locked itself, because the new file does not have the lock.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        with _locked(descriptor, is_needed=False):
            yield
    finally:
        os.close(descriptor)


# `_lines_from_end` reads this many bytes at once, and about this many in all. A stream may append
# lines to a file for years.
_CHUNK_BYTES: Final = 1024 * 1024
_MOST_BYTES: Final = 64 * 1024 * 1024


def _lines_from_end(lines: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """Generate the start and the text of each line, the last line first.

    Read only the part of the file that these lines need. Generate no more lines when `_MOST_BYTES`
    have been read. end: the size of the file.
    """
    start = end
    # The parts of the line whose start has not been read yet, the last part first.
    parts: list[bytes] = []
    while start and end - start < _MOST_BYTES:
        size = min(_CHUNK_BYTES, start)
        at = start
        start -= size
        lines.seek(start)
        first, *others = lines.read(size).split(b"\n")
        for part in reversed(others):
            at -= len(part)
            yield at, b"".join(reversed([*parts, part]))
            parts = []
            at -= 1
        parts.append(first)
    if not start:
        yield 0, b"".join(reversed(parts))


def newest_reports(lines: bytes, n: int) -> list[dict[str, Any]]:
    """Return the last n reports in the content of a file, the newest last."""
    found: list[dict[str, Any]] = []
    for line in reversed(lines.splitlines()):
        if len(found) >= n:
            break
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # an incomplete line
    return found[::-1]


_NAME: Final = ".pykafka-reports.jsonl"
# If the file exceeds this size, its older half is deleted, because a stream may run for weeks.
_FULL_BYTES: Final = 8 * 1024 * 1024


def remember(report: dict[str, Any]) -> None:
    """Append a report to the application's file, which is in the driver's folder.

    Raise OSError if the file cannot be written.
    """
    folder = driver_folder()
    if folder is None:
        return
    flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW
    with os.fdopen(os.open(folder / _NAME, flags, 0o600), "a+b") as lines, _locked(lines):
        if lines.seek(0, os.SEEK_END) > _FULL_BYTES:
            _drop_older_half(lines)
        append_report(lines, report)


def add_error_to_remembered(write_id: str, error: str) -> None:
    """Set the error of a write's last report in the application's file, if the file exists."""
    folder = driver_folder()
    if folder is None or not (folder / _NAME).exists():
        return
    with (folder / _NAME).open("r+b") as lines:
        add_error_to_line(lines, write_id, error)


def add_error_to_line(lines: BinaryIO, write_id: str, error: str) -> None:
    """Set the error in the last report of a write, unless that report says the write is complete.

    If the report is not in the last `_MOST_BYTES` of the file, change nothing.

    lines: a file of reports, which is open for reading and writing. Raise ValueError if the line is
    truncated, and BlockingIOError if another process keeps the file locked.
    """
    with _locked(lines):
        size = lines.seek(0, os.SEEK_END)
        found = (each for each in _lines_from_end(lines, size) if write_id.encode() in each[1])
        start, line = next(found, (size, b""))
        if not line:
            return
        report = json.loads(line)
        if report["write_id"] != write_id or report["complete"]:
            return
        end = start + len(line)
        lines.seek(end)
        after = lines.read(size - end)
        # A process may have appended a line without the lock. Do not write, or that line is lost.
        if os.fstat(lines.fileno()).st_size == size:
            lines.seek(start)
            lines.write(json.dumps(report | {"error": error}).encode() + after)
            lines.truncate()


def last_reports(spark: SparkSession, n: int = 10) -> list[dict[str, Any]]:
    """Return the reports of the application's last n writes and micro-batches, the newest last.

    spark: a classic session. Raise KafkaException for a Spark Connect session, which cannot access
    the driver's files. Raise IllegalArgumentException for any other object.
    """
    check_session("last_reports", spark)
    checked_number("n", n, 0, LARGEST_INT32)
    if is_connect(spark):
        message = (
            "last_reports needs a classic session: with Spark Connect, reports are only available "
            "on the server; set the option reportPath and read that file there"
        )
        raise KafkaException(message)
    with _remembered() as lines:
        return newest_reports(lines.read(), n)


def reports_of(query_id: str, batch_id: int, since: str) -> list[dict[str, Any]]:
    """Return the reports of one micro-batch of a query, except those from before `since`.

    since: a time in UTC. It is compared as a string with the report field `committed_at`. If it is
    not later than the start of the micro-batch, no report of the micro-batch is missing.
    """
    found = []
    with _remembered() as lines:
        for report in _reports_from_end(lines, query_id):
            # The micro-batches of a query do not overlap. So all earlier lines are of earlier ones.
            if report["committed_at"] < since:
                break
            if report["batch_id"] == batch_id:
                found.append(report)
    return found[::-1]


def newest_report_of(
    query_id: str, matches: Callable[[dict[str, Any]], bool]
) -> dict[str, Any] | None:
    """Return the newest report of a query for which `matches` returns True, or None."""
    with _remembered() as lines:
        return next((r for r in _reports_from_end(lines, query_id) if matches(r)), None)


def _reports_from_end(lines: BinaryIO, query_id: str) -> Iterator[dict[str, Any]]:
    """Generate the reports of a query, the newest first. Parse no report of another query."""
    for _, line in _lines_from_end(lines, lines.seek(0, os.SEEK_END)):
        if query_id.encode() in line:
            for report in newest_reports(line, 1):
                if report["query_id"] == query_id:
                    yield report


@contextmanager
def _remembered() -> Iterator[BinaryIO]:
    """Context manager: the application's file, open for reading. It is empty if there is none."""
    folder = driver_folder()
    if folder is None or not (folder / _NAME).exists():
        yield io.BytesIO()
        return
    # The lock is not needed, because readers skip an incomplete line.
    with (
        (folder / _NAME).open("rb") as lines,
        _locked(lines, fcntl.LOCK_SH, is_needed=False),
    ):
        yield lines


def _drop_older_half(lines: BinaryIO) -> None:
    lines.seek(lines.tell() // 2)
    lines.readline()
    newer = lines.read()
    lines.truncate(0)
    lines.write(newer)
