"""CPU time of processes that have ended stays counted, whether their parents reap them or not."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from bench.meter import Meter

# Forks a child that works for half a second, and ends it, and itself, when a line comes.
PARENT = """
import os, signal, sys, time
if {ignores}:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
reading, writing = os.pipe()
child = os.fork()
if not child:
    while time.process_time() < 0.5:
        pass
    os.write(writing, b"x")
    signal.pause()
os.read(reading, 1)
print("worked", flush=True)
sys.stdin.readline()
os.kill(child, signal.SIGKILL)
try:
    os.waitpid(child, 0)
except ChildProcessError:
    pass
print("ended", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(params=[False, True], ids=["reaps", "ignores SIGCHLD"])
def parent(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PARENT.format(ignores=request.param)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


def read_until(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == word


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def used_by_others(meter: Meter) -> float:
    """Return the CPU seconds except those of this process."""
    used = meter.read()
    return float(used.jvm + used.python) - time.process_time()


def test_who_ends_is_counted_once(parent: subprocess.Popen[str]) -> None:
    meter = Meter([])
    before = used_by_others(meter)
    read_until(parent, "worked")
    worked = used_by_others(meter) - before
    assert worked >= 0.4
    go_on(parent)
    read_until(parent, "ended")
    assert not psutil.Process(parent.pid).children()
    assert used_by_others(meter) - before == pytest.approx(worked, abs=0.2)
    go_on(parent)
    parent.wait()
    assert used_by_others(meter) - before == pytest.approx(worked, abs=0.2)
