"""The effect of settings that a Spark application has to be started with.

``PYTHONPATH=benchmarks:tests:jobs python -m bench.studies.spark_settings``, in an environment of
``make bench``.

One application per setting, all at the same time on this machine, write the same cached rows in
turns; the others are idle. It prints medians: rows per second relative to the application without
settings in the same round (with the range), and CPU microseconds per row of JVM, Python's workers
and broker.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from support.brokers.own_broker import own_broker
from support.oracles.readers import create_topic, delete_topics
from support.spark.own_session import own_session

from bench.meter import Meter
from spark_kafka_sink import register

UNIX: Final = "spark.python.unix.domain.socket.enabled=true"
BUFFER: Final = "spark.buffer.size=1048576"
CHOICES: Final = {
    "none": (),
    "unix domain sockets": (UNIX,),
    "buffers of 1 MiB": (BUFFER,),
    "both": (UNIX, BUFFER),
}
# Numbers of rows, by the sizes of their values in bytes.
FRAMES: Final = {100: 3_000_000, 1_000: 400_000, 10_000: 60_000}
PARTITIONS: Final = 12
ROUNDS: Final = 9
WARM_UP_S: Final = 90.0


class Application:
    """A Spark application in a process of its own, which writes on command."""

    def __init__(self, settings: tuple[str, ...], bootstrap: str, broker_pid: int) -> None:
        given = " ".join(f"--conf {setting}" for setting in settings)
        command = [sys.executable, "-m", "bench.studies.spark_settings", bootstrap, str(broker_pid)]
        self._process = subprocess.Popen(
            command,
            env=os.environ | {"PYSPARK_SUBMIT_ARGS": f"{given} pyspark-shell"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def write(self, topic: str, value_bytes: int) -> tuple[float, ...]:
        """Return seconds, and CPU seconds of JVM, Python and broker. Raise RuntimeError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(topic, value_bytes, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            message = "an application has ended; what it said stands above"
            raise RuntimeError(message)
        return tuple(map(float, answer.split()))

    def end(self) -> None:
        """Let it stop Spark."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def obey(bootstrap: str, broker_pid: int) -> None:
    """Run as an application: write as standard input says."""
    with own_session() as spark:
        register(spark)
        meter, cached_bytes, rows = Meter([broker_pid]), 0, None
        for line in sys.stdin:
            topic, value_bytes = line.split()[0], int(line.split()[1])
            if rows is None or value_bytes != cached_bytes:
                if rows is not None:
                    rows.unpersist()
                rows, cached_bytes = frame(spark, value_bytes), value_bytes
            options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
            before, began = meter.read(), time.monotonic()
            rows.write.format("pykafka").mode("append").options(**options).save()
            seconds, used = time.monotonic() - began, meter.read().since(before)
            print(seconds, used.jvm, used.python, used.broker, flush=True)


def frame(spark: SparkSession, value_bytes: int) -> DataFrame:
    """Return cached rows."""
    pieces = -(-value_bytes // 128)
    text = f"substr(repeat(sha2(CAST(id AS STRING), 512), {pieces}), 1, {value_bytes})"
    made = spark.range(0, FRAMES[value_bytes], 1, 2).selectExpr(
        "CAST(lpad(CAST(id AS STRING), 16, '0') AS BINARY) AS key",
        f"CAST({text} AS BINARY) AS value",
    )
    made.cache().count()
    return made


def measure(applications: dict[str, Application], bootstrap: str, value_bytes: int) -> None:
    """Let all of them write in turns, in another order each round."""
    took: dict[str, list[tuple[float, ...]]] = {name: [] for name in applications}
    warm_at, number = time.monotonic() + WARM_UP_S, 0
    while len(took["none"]) < ROUNDS:
        is_warm, number = time.monotonic() >= warm_at, number + 1
        topic, names = f"settings-{value_bytes}-{number}", list(applications)
        create_topic(bootstrap, topic, PARTITIONS)
        Random(number).shuffle(names)
        for name in names:
            turn = applications[name].write(topic, value_bytes)
            if is_warm:
                took[name].append(turn)
        delete_topics(bootstrap, [topic])
    print(f"values of {value_bytes:,} bytes")
    for name, turns in took.items():
        ratios = [usual[0] / turn[0] for usual, turn in zip(took["none"], turns, strict=True)]
        medians = [
            statistics.median(each) / FRAMES[value_bytes] for each in zip(*turns, strict=True)
        ]
        low, high = min(ratios), max(ratios)
        ratio = f"{statistics.median(ratios):.2f}x ({low:.2f}-{high:.2f})"
        jvm, python, broker = (each * 1e6 for each in medians[1:])
        print(f"  {name:20} {ratio:18} {jvm:6.2f} {python:6.2f} {broker:6.2f}", flush=True)


@contextmanager
def running(bootstrap: str, broker_pid: int) -> Iterator[dict[str, Application]]:
    """Start an application for each setting."""
    with ExitStack() as stack:
        started = {}
        for name, settings in CHOICES.items():
            started[name] = Application(settings, bootstrap, broker_pid)
            stack.callback(started[name].end)
        yield started


def main() -> None:
    """Measure three sizes, on a Kafka of its own."""
    with own_broker() as cluster, running(cluster.bootstrap, cluster.pid(1)) as applications:
        for value_bytes in FRAMES:
            measure(applications, cluster.bootstrap, value_bytes)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        obey(sys.argv[1], int(sys.argv[2]))
    else:
        main()
