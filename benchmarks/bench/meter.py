"""CPU seconds and peak memory of this machine's processes: the JVM, Python workers, brokers.

Only processes of this machine are counted; executors or brokers elsewhere are missing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

_MEGABYTE: Final = 1_000_000
# Written to clear_refs, it resets the process's peak of resident memory.
_RESET_PEAK: Final = "5"
_PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds, by kind of process."""

    jvm: float
    python: float
    broker: float

    def since(self, before: Usage) -> Usage:
        """Return the usage since an earlier reading."""
        return Usage(
            self.jvm - before.jvm, self.python - before.python, self.broker - before.broker
        )


_Key = tuple[int, float]


class _Process(NamedTuple):
    """The CPU seconds of a process and of its reaped children, by kind."""

    parent: _Key | None
    jvm: float
    python: float
    reaped: float


class Meter:
    """Reads the usage of Spark's processes on this machine, and of brokers by their process ids."""

    def __init__(self, broker_pids: Sequence[int]) -> None:
        self._driver = psutil.Process(os.getpid())
        self._brokers = [psutil.Process(pid) for pid in broker_pids]
        # spark-submit makes the JVM the parent of this process and of the Python workers.
        parent = self._driver.parent()
        self._root = parent if parent is not None and parent.name() == "java" else self._driver
        self._last: dict[_Key, _Process] = {}
        self._ended_jvm = self._ended_python = 0.0

    def read(self) -> Usage:
        """Return the CPU seconds used so far, including those of ended processes."""
        found: dict[_Key, _Process] = {}
        for process in (self._root, *self._root.children(recursive=True)):
            if process in self._brokers:  # a broker that the driver started
                continue
            with suppress(psutil.NoSuchProcess):
                found[_key(process)] = self._look_at(process)
        self._keep_ended(found)
        self._last = found
        brokers = [broker.cpu_times() for broker in self._brokers]
        return Usage(
            self._ended_jvm + sum(process.jvm for process in found.values()),
            self._ended_python + sum(process.python for process in found.values()),
            sum(times.user + times.system for times in brokers),
        )

    def _keep_ended(self, found: Mapping[_Key, _Process]) -> None:
        """Keep the usage of ended processes, except what their parents have reaped.

        Nothing is reaped if the parent has ended as well, or if it ignores SIGCHLD, as Spark's
        daemon does, which forks the workers.
        """
        reaped: dict[_Key | None, float] = {
            key: process.reaped - (self._last[key].reaped if key in self._last else 0.0)
            for key, process in found.items()
        }
        for key, gone in self._last.items():
            used = gone.jvm + gone.python
            if key in found or not used:
                continue
            of_parent = reaped.get(gone.parent, 0.0)
            reaped[gone.parent] = max(0.0, of_parent - used)
            kept = max(0.0, used - of_parent)
            self._ended_jvm += gone.jvm * kept / used
            self._ended_python += gone.python * kept / used

    def _look_at(self, process: Any) -> _Process:  # noqa: ANN401 - psutil has no types
        times, parent = process.cpu_times(), process.parent()
        own, reaped = times.user + times.system, times.children_user + times.children_system
        of = None if parent is None else _key(parent)
        if process.name() == "java":
            return _Process(of, own, reaped, reaped)
        if process == self._driver:
            # The driver starts and waits for JVMs only.
            return _Process(of, reaped, own, reaped)
        return _Process(of, 0.0, own + reaped, reaped)

    def forget_peaks(self) -> None:
        """Reset every worker's peak of memory to its current value."""
        for worker in self._workers():
            with suppress(OSError):
                Path(f"/proc/{worker.pid}/clear_refs").write_text(_RESET_PEAK)

    def peak_mb(self) -> float | None:
        """Return the largest peak of a worker in megabytes, None if there is none."""
        peaks = []
        for worker in self._workers():
            with suppress(OSError, StopIteration):
                status = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
                line = next(line for line in status if line.startswith("VmHWM:"))
                peaks.append(int(line.split()[1]) * 1024 / _MEGABYTE)
        return max(peaks, default=None)

    def wait_until_workers_ended(self) -> None:
        """Wait until the workers of a stopped session have ended."""
        psutil.wait_procs(self._workers(), timeout=_PATIENCE_S)

    def _workers(self) -> list[Any]:
        children = self._root.children(recursive=True)
        found = []
        for process in children:
            with suppress(psutil.NoSuchProcess):
                # A program that the driver started is no worker, nor is the driver itself.
                is_of_driver = self._driver.pid in {process.pid, process.ppid()}
                if not is_of_driver and "python" in process.name():
                    found.append(process)
        return found


def _key(process: Any) -> _Key:  # noqa: ANN401 - psutil has no types
    """Return a key that differs for a later process with the same number."""
    return process.pid, process.create_time()
