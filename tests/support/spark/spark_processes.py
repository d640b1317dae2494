"""Spark's own servers as child processes on loopback: a Connect server, a standalone cluster."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyspark
from job import lock

from support.brokers import processes
from support.brokers.kafka_cluster import free_ports

_START_TIMEOUT_S = 240.0
SPARK_HOME = Path(pyspark.__file__).parent
SPARK_SUBMIT = SPARK_HOME / "bin" / "spark-submit"
_SPARK_CLASS = SPARK_HOME / "bin" / "spark-class"


def plain_environment() -> dict[str, str]:
    """Return the environment of a user's shell: with ``spark-submit``, without PYSPARK names."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    path = f"{SPARK_SUBMIT.parent}{os.pathsep}{found['PATH']}"
    return {**found, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PATH": path}


def environment(python: Path | str = sys.executable, host: str = "127.0.0.1") -> dict[str, str]:
    """Return the environment of a Spark process whose Python is `python`."""
    return {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": host,
        "PYSPARK_PYTHON": str(python),
    }


@contextlib.contextmanager
def without_work_left() -> Iterator[None]:
    """Remove the files that local-cluster workers write to SPARK_HOME.

    Only one test on this machine is in such a block, so that none removes another one's files.
    """
    work = SPARK_HOME / "work"
    with lock.locked(SPARK_HOME / "work.lock", "waiting for another test with local-cluster …"):
        before = set(work.glob("*"))
        try:
            yield
        finally:
            for folder in set(work.glob("*")) - before:
                shutil.rmtree(folder)


class ConnectServer(NamedTuple):
    """A server of Spark Connect: its address for `SparkSession.builder.remote`, and its log."""

    remote: str
    log: Path


@contextlib.contextmanager
def connect_server(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a Spark Connect server and yield its address for ``SparkSession.builder.remote``.

    more: additional settings, which override the defaults.
    """
    (port,) = free_ports(1)
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **(more or {}),
    }
    command: list[str | Path] = [SPARK_SUBMIT]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    log = folder / "connect.log"
    server = processes.start([*command, "spark-internal"], log=log, cwd=folder, env=environment())
    try:
        _wait_for_port(port, server, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        processes.kill(server)


@contextlib.contextmanager
def standalone_cluster(folder: Path, python: Path) -> Iterator[str]:
    """Run a master and two workers of one core each, as two hosts; yield the master's address.

    python: the Python of the executors, if a job does not set one.
    """
    port, web_port = free_ports(2)
    children = []
    try:
        log = folder / "master.log"
        command: list[str | Path] = [_SPARK_CLASS, "org.apache.spark.deploy.master.Master"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web_port)]
        children.append(processes.start(command, log=log, cwd=folder, env=environment(python)))
        _wait_for_port(port, children[0], log)
        address = f"spark://127.0.0.1:{port}"
        for host in ("127.0.0.1", "127.0.0.2"):
            command = [_SPARK_CLASS, "org.apache.spark.deploy.worker.Worker", "--host", host]
            command += ["--cores", "1", "--memory", "1g", "--webui-port", "0"]
            command += ["--work-dir", folder / f"work-{host}", address]
            worker_log = folder / f"worker-{host}.log"
            child = processes.start(
                command, log=worker_log, cwd=folder, env=environment(python, host)
            )
            children.append(child)
        _wait_for_workers(web_port, 2)
        yield address
    finally:
        for child in reversed(children):
            processes.kill(child)


def submit(
    arguments: list[str | Path], *, cwd: Path, env: dict[str, str], timeout_s: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run spark-submit to its end."""
    return subprocess.run(
        [str(SPARK_SUBMIT), *map(str, arguments)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"nothing listens on port {port}:\n{log.read_text()[-3000:]}")


def _wait_for_workers(web_port: int, workers: int) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            page = urllib.request.urlopen(f"http://127.0.0.1:{web_port}/json/", timeout=5)
            if page.read().count(b'"ALIVE"') > workers:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the standalone master did not get {workers} workers")
