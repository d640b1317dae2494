"""Runs pytest and records the result of every test: recorder.py FILE [pytest's arguments].

Each phase of a test is a line of JSON, written at once, so the results of an aborted run count.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


class Recorder:
    """A plugin for the process that starts the tests, not for the processes that run them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write down a phase of a test; a crash of its process is a phase as well."""
        seconds = getattr(report, "duration", 0.0)
        self._write(report.nodeid, failed=report.failed, seconds=seconds)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write down a file that cannot be imported."""
        if report.failed:
            self._write(report.nodeid, failed=True, seconds=0.0)

    def _write(self, test: str, *, failed: bool, seconds: float) -> None:
        line = json.dumps({"test": test, "failed": failed, "seconds": seconds})
        with self._path.open("a") as lines:
            lines.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[2:], plugins=[Recorder(Path(sys.argv[1]))]))
