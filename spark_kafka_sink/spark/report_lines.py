"""Reports as lines of a file, one JSON object each, which several processes append to.

Owns what holds where a process dies, or the disk is full, in the middle of a line: the next report
begins a line of its own, and the one that was broken off is passed over.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO


def open_to_append(path: Path) -> BinaryIO:
    """Open a file for `append_report`; what cannot be read back, as a pipe, just to write."""
    if not path.exists() or (path.is_file() and os.access(path, os.R_OK)):
        return path.open("a+b")
    return open_to_write(path, os.O_APPEND)


def is_special(path: Path) -> bool:
    """Tell of what must not be replaced: pipes and devices, /dev/stderr where it is a file."""
    return path.exists() and (not path.is_file() or path.parts[1:2] in (("dev",), ("proc",)))


def open_to_write(path: Path, flag: int) -> BinaryIO:
    """Open what is there, flag: os.O_APPEND or os.O_TRUNC.

    A pipe that nobody has open to read is an OSError, and not waited for.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | flag)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb")


def append_report(lines: BinaryIO, report: dict[str, Any]) -> None:
    """Add a report to a file that is open for appending, and for reading if it can be read.

    Raises OSError.
    """
    line = json.dumps(report).encode() + b"\n"
    if lines.readable() and lines.seek(0, os.SEEK_END):
        lines.seek(-1, os.SEEK_END)
        if lines.read(1) != b"\n":
            line = b"\n" + line
    lines.write(line)


def newest_reports(lines: bytes, n: int) -> list[dict[str, Any]]:
    """Give the last n reports of a file's lines, the newest last."""
    found: list[dict[str, Any]] = []
    for line in reversed(lines.splitlines()):
        if len(found) >= n:
            break
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # broken off
    return found[::-1]
