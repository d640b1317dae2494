"""Sail for the benchmark: a process with a server of Sail, which writes rows from Parquet to Kafka.

The process runs `sail_program` with a Python of its own, because Sail needs another pyspark than
the benchmark.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

_PROGRAM: Final = Path(__file__).with_name("sail_program.py")
_PATIENCE_S: Final = 10.0
# The benchmark's own Python and Spark; spark-submit sets most of them.
_OF_BENCHMARK: Final = ("MASTER", "PYSPARK_", "PYTHON", "SPARK_")


class Sail:
    """A process with Sail, which starts at the first write and ends with the `with` block."""

    def __init__(self, python: Path) -> None:
        self._python = python
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        try:
            self._process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def write(self, parquet: Path, options: Mapping[str, str]) -> None:
        """Write the rows of a Parquet file. Raise RuntimeError with Sail's message if it fails."""
        if self._process is None:
            self._process = self._started()
        process = self._process
        try:
            print(json.dumps([str(parquet), options]), file=process.stdin, flush=True)
            said = process.stdout.readline() if process.stdout is not None else ""
        except BrokenPipeError:
            said = ""
        if not said:
            message = f"the process with Sail has ended with exit code {process.wait(_PATIENCE_S)}"
            raise RuntimeError(message)
        if (error := json.loads(said)) is not None:
            raise RuntimeError(error)

    @property
    def version(self) -> str:
        """The version of Sail."""
        code = "from importlib import metadata; print(metadata.version('pysail'))"
        command: list[str | Path] = [self._python, "-P", "-c", code]
        return subprocess.check_output(command, text=True).strip()  # noqa: S603 - no shell

    def _started(self) -> subprocess.Popen[str]:
        variables = {
            name: text for name, text in os.environ.items() if not name.startswith(_OF_BENCHMARK)
        }
        return subprocess.Popen(  # noqa: S603 - no shell
            [self._python, "-P", _PROGRAM],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
