"""The base of the tests of the jobs: jobs run by spark-submit, one by one or many in one JVM.

A JVM takes seconds to start. A job whose output must be exactly what a user sees runs by a
spark-submit of its own; the other jobs run together in one JVM, by `run_many.py`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from conftest import shared_value
from support.brokers import processes
from support.spark.job_server import ROOT, TIMEOUT_S, Ended, JobServer

SubmitAll = Callable[[Sequence[Sequence[str]]], list[Ended]]
RunMany = Callable[[Sequence[Sequence[str]]], list[Ended]]


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
def job_server(request: pytest.FixtureRequest) -> JobServer:
    """The one JVM that runs jobs for all workers, and its log."""
    server = shared_value(request, "jobs")
    assert isinstance(server, JobServer)
    return server


@pytest.fixture(scope="session")
def run_many(job_server: JobServer) -> RunMany:
    """Runs many jobs one after the other in the one JVM that all workers share for that."""
    return job_server.run
