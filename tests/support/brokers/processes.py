"""Child processes that never outlive the tests: the kernel ends them if the tests are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Asks the kernel to end the program with its parent, and then becomes the program. A preexec_fn
# would run Python in a fork of this process, in which objects of other threads are finalized;
# py4j's would then shut down the connections that they share with the parent.
_DIE_WITH_PARENT = """
import contextlib, ctypes, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in what a shell runs in the background
with contextlib.suppress(AttributeError):  # Linux only; elsewhere the finalizers have to do
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
# For the kernel, the parent is a thread: children of a test's own thread would end with the thread.
_starter = ThreadPoolExecutor(1)


def dying_with_parent(command: Sequence[str | Path]) -> list[str]:
    """Return a command that the kernel ends when the thread that started it ends."""
    return [sys.executable, "-IS", "-c", _DIE_WITH_PARENT, *(str(part) for part in command)]


def start(
    command: Sequence[str | Path],
    *,
    log: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, with its output in `log`."""
    with log.open("ab") as output:
        return _starter.submit(
            subprocess.Popen,
            dying_with_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=None if env is None else dict(env),
            start_new_session=True,
        ).result()


def stop(process: subprocess.Popen[bytes], *, timeout_s: float = 60.0) -> None:
    """End a process and everything in its session: by SIGTERM, then by SIGKILL."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
    kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process and its session, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def listened_to(
    command: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a command in a session of its own and read its output; both end with the block."""
    with subprocess.Popen(
        dying_with_parent(command),
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def wait_for_line(process: subprocess.Popen[str], beginning: str) -> str:
    """Return the output of a process up to the first line with this beginning, which must come."""
    assert process.stdout is not None
    said = ""
    for text in process.stdout:
        said += text
        if text.startswith(beginning):
            return said
    message = f"this was all that was said, and no line that begins with {beginning!r}:\n{said}"
    raise AssertionError(message)


def press_ctrl_c(process: subprocess.Popen[str], timeout_s: float) -> str:
    """Interrupt a process and its session as a terminal does; return its remaining output."""
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=timeout_s)
    return said


def marked_processes(mark: str) -> list[str]:
    """Return the command lines of all processes with a mark in their environment."""
    found = []
    for folder in _marked(mark):
        with contextlib.suppress(OSError):
            found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def kill_marked(mark: str) -> None:
    """SIGKILL all processes with a mark in their environment, and those that they still start."""
    while found := list(_marked(mark)):
        for folder in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(folder.name), signal.SIGKILL)


def _marked(mark: str) -> Iterator[Path]:
    """Yield the folders in /proc of all processes with a mark but this one."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            marks = (folder / "environ").read_bytes().split(b"\0")
            if int(folder.name) != os.getpid() and mark.encode() in marks:
                yield folder
