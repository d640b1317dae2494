"""Runs jobs one after another in one JVM for the tests: spark-submit run_many.py PORT.

It listens on a port of loopback, and writes the port to the file PORT when it is ready. Clients are
served one after another. Every line is a JSON list [job, argument, …], and its response is a line
[exit code, output]. The jobs share one Spark session, while a job alone starts and stops its own.
["sql", statement] runs a statement in that session, whose results jobs can use.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "jobs"))
from job import running


@contextlib.contextmanager
def shared_session(name: str, **settings: str) -> Iterator[SparkSession]:
    """Replaces running.session."""
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    yield builder.getOrCreate()


def run(job: str, *arguments: str) -> tuple[int, str]:
    """Run a job as its script does; return its exit code and its output."""
    if job == "sql":
        for statement in arguments:
            SparkSession.builder.getOrCreate().sql(statement)
        return 0, ""
    main = importlib.import_module(job.removesuffix(".py")).main
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = running.run(partial(main, arguments), job)
        except SystemExit as end:
            code = int(end.code or 0)
    return code, said.getvalue()


if __name__ == "__main__":
    running.session = shared_session
    SparkSession.builder.getOrCreate()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as ready:
            ready.sendall(str(listener.getsockname()[1]).encode())
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as lines:
                for line in lines:
                    lines.write(json.dumps(run(*json.loads(line))) + "\n")
                    lines.flush()
