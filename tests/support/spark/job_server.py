"""Runs jobs one after another in one JVM, which starts with the first job."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from support.brokers import processes

ROOT: Path = Path(__file__).resolve().parents[3]
TIMEOUT_S = 240
# Code generation for a query costs more time than short runs save.
_QUICK = ("spark.sql.codegen.wholeStage=false",)


def command(job: str, *arguments: str | Path) -> list[str]:
    """Return the command line with which a user runs a job."""
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
    submit += ["--properties-file", "conf/spark-defaults.conf"]
    submit += [word for setting in _QUICK for word in ("--conf", setting)]
    return [*submit, job, *(str(each) for each in arguments)]


class Ended(NamedTuple):
    """A job that has ended."""

    code: int
    output: str

    @property
    def lines(self) -> list[str]:
        """Its output, without the JVM's greeting and Spark's log."""
        return [
            line
            for line in self.output.splitlines()
            if line and not line.startswith("WARNING: Using incubator modules")
        ]


class JobServer(NamedTuple):
    """The port of a JVM that runs jobs, and its log."""

    port: int
    log: Path

    def run(self, jobs: Sequence[Sequence[str]]) -> list[Ended]:
        """Run jobs and return their results. Other clients wait meanwhile."""
        with (
            socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S) as connection,
            connection.makefile("rw") as lines,
        ):
            return [self._run(lines, job) for job in jobs]

    def _run(self, lines: TextIO, job: Sequence[str]) -> Ended:
        lines.write(json.dumps(job) + "\n")
        lines.flush()
        answer = lines.readline()
        assert answer, self.log.read_text()
        return Ended(*json.loads(answer))


@contextlib.contextmanager
def job_server(folder: Path) -> Iterator[JobServer]:
    """Run a server of jobs for a `with` block."""
    log = folder / "log"
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        listener.settimeout(TIMEOUT_S)
        line = command("tests/jobs/run_many.py", str(listener.getsockname()[1]))
        process = processes.start(line, log=log, cwd=ROOT)
        stack.callback(processes.kill, process)
        connection, _ = listener.accept()
        with connection, connection.makefile() as lines:
            port = int(lines.read())
        yield JobServer(port, log)
