"""A lock that one program at a time can hold, and that is released however the program ends.

    python jobs/job/lock.py PATH WAITING COMMAND...

runs a command while it holds the lock of a file or folder. `make` does so before anything is
installed, so this module imports only Python's own modules.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock of a folder, or of a file that is made if it is missing.

    waiting: what to print if another program holds it. The kernel releases the lock when the
    program ends for any reason.
    """
    opened = _lock(path, waiting)
    try:
        yield
    finally:
        os.close(opened)


def _lock(path: Path, waiting: str) -> int:
    """Open a path, wait until this process holds its lock, and return the file descriptor."""
    opened = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(waiting, flush=True)
        fcntl.flock(opened, fcntl.LOCK_EX)
    return opened


def _run(path: Path, waiting: str, command: list[str]) -> None:
    """Replace this process by the command, which keeps the lock.

    The lock is released when the command and all processes that it has started have ended.
    """
    os.set_inheritable(_lock(path, waiting), True)  # noqa: FBT003 - the name says what it is
    os.execvp(command[0], command)  # noqa: S606 - a command of make's


if __name__ == "__main__":
    try:
        _run(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
    except KeyboardInterrupt:
        sys.exit(130)
