"""Child processes of the demo, which end when the demo ends.

Every child leads a session of its own, so Ctrl-C in a terminal reaches only the demo, and the demo
kills the children. If the children ended gracefully, Spark would fill the screen with the failures
of tasks. The demo is a subreaper: it becomes the parent of its children's orphans, and kills them,
too. If the demo itself is killed, the kernel kills its children. If make is killed, the kernel
sends SIGTERM to the demo. Subreapers and these signals exist only on Linux; on other systems, the
demo only kills the process groups of its children.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Final, Self

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Whether the kernel kills the children of a program that was killed.
END_WITH_PARENT: Final = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True) if END_WITH_PARENT else None


class Children:
    """Starts processes, and kills all of them at the end of the `with` block."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        _control(_PR_SET_CHILD_SUBREAPER, 1)
        for number in _SIGNALS:
            signal.signal(number, _exit_on_signal)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        _ignore_signals()
        for process in reversed(self._started):
            kill(process)
        _kill_orphans()

    def start(
        self,
        command: Sequence[str | Path],
        *,
        output: IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process that writes to `output`, by default to the demo's output."""
        process = subprocess.Popen(  # noqa: S603 - the demo's own commands
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no locks
        )
        self._started.append(process)
        return process


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a child and its process group, and wait until it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        # Not process.wait(): a signal that ended an earlier wait() may have left its lock locked.
        status: int = signal.SIGKILL
        with contextlib.suppress(ChildProcessError):  # that wait() has reaped it
            _, status = os.waitpid(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)


def _kill_orphans() -> None:
    """Kill the orphans of the children. Killing an orphan may leave further orphans."""
    while orphans := _children_of(os.getpid()):
        for process in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)


def _children_of(parent: int) -> list[int]:
    found = []
    # Not glob("[0-9]*/stat"), which fails if a process ends at that moment.
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The program's name, in parentheses, may contain anything; the parent's id is the
            # second field after it.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(folder.name))
    return found


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends (on Linux)."""
    _control(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_parent() -> None:
    """Ask the kernel to send SIGTERM when the program that started this one ends (on Linux)."""
    parent = os.getppid()
    _control(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended just before
        os.kill(os.getpid(), signal.SIGTERM)


def _control(what: int, value: int) -> None:
    if _libc is not None:
        _libc.prctl(what, value, 0, 0, 0)


def _ignore_signals() -> None:
    # A second Ctrl-C must not interrupt the shutdown.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    _ignore_signals()
    # Not print(): the signal may have interrupted one.
    os.write(2, f"\nstopped by {signal.Signals(number).name}\n".encode())
    sys.exit(128 + number)
