"""A profile of Spark's JVM and of the broker while the sink writes the rows of a cell.

``PYTHONPATH=benchmarks:tests:jobs python -m bench.studies.jvm_profile CELL … [--conf NAME=VALUE]``,
in an environment of ``make bench`` and with `perf` of Linux and a JDK; the cells are those of
``make bench ARGS="--list"``, and settings are Spark's.

It is like `worker_profile`, for the other two processes: their time per row, divided among
functions of Java, of the JVM itself (including its collector and compiler) and of the kernel.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psutil
from support.brokers.own_broker import own_broker
from support.spark.own_session import own_session

from bench.studies.worker_profile import SECONDS, named_cells, warm_writer
from spark_kafka_sink import register

SHOWN: Final = 14
RATE: Final = 499
# A line of perf's report: percentage, file, address space, function.
LINE: Final = re.compile(
    r"\s*(?P<percent>[\d.]+)%\s+(?P<file>\S.*?)\s+\[(?P<where>.)\] (?P<function>.+)"
)
IN_KERNEL: Final = "k"
# perf's file name for compiled functions.
FILE_OF_JAVA: Final = re.compile(r"\[JIT\].*|perf-\d+\.map")


def main() -> None:
    """Profile the cells that the command line names."""
    cells, settings = named_cells()
    with (
        own_broker() as cluster,
        TemporaryDirectory() as folder,
        own_session(settings=settings) as spark,
    ):
        register(spark)
        broker = cluster.pid(1)
        javas = {child.pid for child in psutil.Process().children() if child.name() == "java"}
        (spark_pid,) = javas - {broker}
        processes = {"Spark's JVM": spark_pid, "the broker": broker}
        for name in cells:
            with warm_writer(spark, cluster.bootstrap, name) as write_for:
                before = used_s(processes)
                rows = write_for(SECONDS)
                used = {what: s - before[what] for what, s in used_s(processes).items()}
                with looking(processes, Path(folder)):
                    write_for(SECONDS)
            for what, pid in processes.items():
                report(what, Path(folder) / str(pid), used[what] / rows * 1e6)


def used_s(processes: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU seconds of each process so far."""
    times = {what: psutil.Process(pid).cpu_times() for what, pid in processes.items()}
    return {what: each.user + each.system for what, each in times.items()}


@contextmanager
def looking(processes: Mapping[str, int], folder: Path) -> Iterator[None]:
    """Profile the processes with perf, and write the samples to files named by their numbers."""
    with ExitStack() as ended:
        for pid in processes.values():
            command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(RATE)]
            command += ["-p", str(pid), "-o", str(folder / str(pid))]
            ended.callback(_interrupt, subprocess.Popen(command, stderr=subprocess.DEVNULL))
        yield
    for pid in processes.values():  # where perf's report looks for the names of compiled Java
        subprocess.run(["jcmd", str(pid), "Compiler.perfmap"], check=True, capture_output=True)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    process.wait()


def report(what: str, samples: Path, used_us: float) -> None:
    """Divide the time among the functions that used most of it, and print them."""
    command = ["perf", "report", "-i", str(samples), "--stdio", "-q", "--sort", "dso,sym"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = [line for line in map(LINE.match, done.stdout.splitlines()) if line is not None]
    kernel = sum(float(line["percent"]) for line in found if line["where"] == IN_KERNEL)
    print(f"{used_us:8.3f}  {what}, {kernel * used_us / 100:.3f} of it in the kernel")
    for line in found[:SHOWN]:
        us = float(line["percent"]) / 100 * used_us
        print(f"{us:8.3f}  {FILE_OF_JAVA.sub('Java', line['file'])} {line['function']}", flush=True)


if __name__ == "__main__":
    main()
