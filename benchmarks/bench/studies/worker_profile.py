r"""A profile of a Python worker while it writes the rows of a cell.

    PYTHONPATH=benchmarks:tests:jobs \
    python -m bench.studies.worker_profile CELL … [--conf NAME=VALUE]

Run it in an environment of ``make bench``. The cells are those of ``make bench ARGS="--list"``, and
settings are Spark's.

Jobs of the sink, with brokers and topic as their only options, write a cell's cached rows
repeatedly. Once the JVMs have compiled their code, the CPU time of the tasks' workers is measured.
Then py-spy, which slows them down, samples them for as long, and the time is divided among
functions and among the sink's modules. A function's time includes the C functions that it calls;
the time of a module of the sink also includes other packages that it calls. Waiting threads do not
count.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psutil
from pyspark.sql import SparkSession
from support.brokers.own_broker import own_broker
from support.oracles.readers import create_topic, delete_topics
from support.spark.own_session import own_session

from bench.cells import CELLS
from bench.rows import cache, row_numbers, sink_columns
from spark_kafka_sink import register

WARM_UP_S: Final = 30.0
SECONDS: Final = 12.0
RATE: Final = 100
SHOWN: Final = 16
SINK: Final = "spark_kafka_sink/"
# A Python frame as py-spy writes it; those of C have other files.
PYTHON: Final = re.compile(r"(?P<function>.*) \((?P<file>.*\.py)(:\d+)?\)")
# Functions in which a thread waits for the network, for a lock, or for the GIL.
WAITS: Final = ("epoll_wait", "pthread_cond_timedwait", "PyThread_acquire_lock_timed")


def main() -> None:
    """Profile the cells that the command line names."""
    cells, settings = named_cells()
    with (
        own_broker() as cluster,
        TemporaryDirectory() as folder,
        own_session(settings=settings) as spark,
    ):
        register(spark)
        for name in cells:
            profile(spark, cluster.bootstrap, name, Path(folder) / "samples")


def named_cells() -> tuple[list[str], dict[str, str]]:
    """Return the cells and Spark's settings of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cells", nargs="+", metavar="CELL", choices=CELLS)
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    return given.cells, dict(setting.split("=", 1) for setting in given.conf)


def profile(spark: SparkSession, bootstrap: str, name: str, samples: Path) -> None:
    """Write the rows of a cell again and again, until the workers are sampled long enough."""
    with warm_writer(spark, bootstrap, name) as write_for:
        daemon = next(filter(_is_daemon, psutil.Process().children(recursive=True)))
        before = used_s(daemon)
        rows = write_for(SECONDS)
        used = (used_s(daemon) - before) / rows
        with looking(daemon, samples):
            write_for(SECONDS)
    report(samples.read_text().splitlines(), 1e6 * used)


@contextmanager
def warm_writer(spark: SparkSession, bootstrap: str, name: str) -> Iterator[Callable[[float], int]]:
    """Yield a function that runs jobs for about some seconds and returns the rows written.

    The rows are a cell's, cached, and such jobs have run for a while.
    """
    cell = CELLS[name]
    rows = sink_columns(row_numbers(spark, cell.rows), cell, "id")
    cached = cache(rows)
    create_topic(bootstrap, name, cell.partitions)
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "topic": name,
        "kafka.compression.type": cell.compression,
    }

    def write_for(seconds: float) -> int:
        end, written = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            cached.write.format("pykafka").mode("append").options(**options).save()
            written += cell.rows
        return written

    write_for(WARM_UP_S)
    print(f"\n{name}: {cell}; CPU microseconds a row")
    yield write_for
    delete_topics(bootstrap, [name])
    cached.unpersist()


@contextmanager
def looking(daemon: psutil.Process, samples: Path) -> Iterator[None]:
    """Sample Spark's Python daemon and its workers with py-spy, and write the samples."""
    samples.unlink(missing_ok=True)
    spy = subprocess.Popen(
        [
            Path(sys.executable).with_name("py-spy"), "record", "--subprocesses", "--native",
            "--format", "raw", "--rate", str(RATE), "--duration", str(round(10 * SECONDS)),
            "--output", str(samples), "--pid", str(daemon.pid),
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield
    finally:
        spy.send_signal(signal.SIGINT)
        _, said = spy.communicate()
    if not samples.exists():
        message = f"py-spy saw nothing: {said}"
        raise RuntimeError(message)


def used_s(daemon: psutil.Process) -> float:
    """Return the CPU seconds of the daemon and its workers."""
    times = [process.cpu_times() for process in (daemon, *daemon.children(recursive=True))]
    own = sum(each.user + each.system for each in times)
    return float(own + times[0].children_user + times[0].children_system)


def _is_daemon(process: psutil.Process) -> bool:
    """Whether a process is the daemon from which Spark forks the workers of tasks."""
    with suppress(psutil.Error):
        command = process.cmdline()
        return command[-2:] == ["pyspark.daemon", "pyspark.worker"] and _is_java(process.parent())
    return False


def _is_java(process: psutil.Process | None) -> bool:
    return process is not None and process.name() == "java"


def report(samples: list[str], used_us: float) -> None:
    """Divide the time among the functions and modules that used most, and print them."""
    functions: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for sample in samples:
        stack, _, count = sample.rpartition(" ")
        frames = stack.split(";")
        if not any(wait in frame for frame in frames[-4:] for wait in WAITS):
            calls = list(_calls(frames))
            functions[" ".join(calls[0]) if calls else "outside of Python"] += int(count)
            ours = (file[file.find(SINK) :] for file, _ in calls if SINK in file)
            modules[next(ours, "outside of the sink")] += int(count)
    total = functions.total()
    for found in (functions, modules):
        for where, samples_there in found.most_common(SHOWN):
            print(f"{samples_there / total * used_us:8.3f}  {where}")
        print(f"{used_us:8.3f}  in all, by {total:,} samples", flush=True)


def _calls(frames: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the file and the name of each Python function, the innermost first."""
    for frame in reversed(frames):
        match = PYTHON.fullmatch(frame)
        if match is not None:
            yield match["file"].rpartition("site-packages/")[2], match["function"]


if __name__ == "__main__":
    main()
