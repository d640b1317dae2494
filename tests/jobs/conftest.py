"""What the tests of the jobs stand on: jobs run by spark-submit, one by one or many in one JVM.

A JVM takes seconds to start. What must be seen exactly as a user sees it runs by a spark-submit of
its own; what only must be right runs with others in one, by `run_many.py`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import pytest
from support import processes

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240
# Code that is made for a query takes time that short runs never earn back.
QUICK = ("spark.sql.codegen.wholeStage=false",)


class Ended(NamedTuple):
    """A job that has ended."""

    code: int
    output: str

    @property
    def lines(self) -> list[str]:
        """What it said, without the greeting of the JVM and Spark's own log."""
        return [
            line
            for line in self.output.splitlines()
            if line and not line.startswith("WARNING: Using incubator modules")
        ]


SubmitAll = Callable[[Sequence[Sequence[str]]], list[Ended]]
RunMany = Callable[[Sequence[Sequence[str]]], list[Ended]]


def command(job: str, *arguments: str | Path) -> list[str]:
    """Give the command line by which a user runs a job."""
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
    submit += ["--properties-file", "conf/spark-defaults.conf"]
    submit += [word for setting in QUICK for word in ("--conf", setting)]
    return [*submit, job, *(str(each) for each in arguments)]


@pytest.fixture
def submit_all(tmp_path: Path) -> SubmitAll:
    """Runs command lines at the root of the repository, at the same time: a start idles much."""

    def run_all(lines: Sequence[Sequence[str]]) -> list[Ended]:
        logs = [tmp_path / f"submit-{number}.log" for number in range(len(lines))]
        started = [
            processes.start(line, log=log, cwd=ROOT) for line, log in zip(lines, logs, strict=True)
        ]
        try:
            codes = [process.wait(TIMEOUT_S) for process in started]
        except subprocess.TimeoutExpired:
            pytest.fail("\n".join(log.read_text() for log in logs))
        finally:
            for process in started:
                processes.kill(process)
        return [Ended(code, log.read_text()) for code, log in zip(codes, logs, strict=True)]

    return run_all


@pytest.fixture(scope="session")
def run_many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunMany]:
    """Runs many jobs one after the other in one JVM.

    The JVM starts while Kafka, or whatever is asked for next, starts as well.
    """
    log = tmp_path_factory.mktemp("run-many") / "log"
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        listener.settimeout(TIMEOUT_S)
        line = command("tests/jobs/run_many.py", str(listener.getsockname()[1]))
        process = processes.start(line, log=log, cwd=ROOT)
        stack.callback(processes.kill, process)

        @functools.cache
        def lines() -> TextIO:
            connection, _ = listener.accept()
            stack.enter_context(connection)
            return stack.enter_context(connection.makefile("rw"))

        def run(job: Sequence[str]) -> Ended:
            lines().write(json.dumps(job) + "\n")
            lines().flush()
            answer = lines().readline()
            assert answer, log.read_text()
            return Ended(*json.loads(answer))

        yield lambda jobs: [run(job) for job in jobs]
