"""The effect of settings of Spark on the way of rows from the JVM to Python, each measured alone.

    PYTHONPATH=benchmarks:tests:jobs python -m bench.studies.spark_settings [CELL …]

Run it in an environment of ``make bench``. Most of the settings are read when an application
starts. So each of `CANDIDATES` has a Spark application of its own, and all of them are alive while
a cell is measured. They write the same cached rows in turns, in another order each round. Only one
of them writes at a time. The cells are those of ``make bench ARGS="--list"``.

It prints the rows per second, and the CPU time of JVM and Python, relative to Spark's defaults in
the same round: the median, and the range over the rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from typing import Final, NamedTuple, Self

from support.brokers.own_broker import own_broker
from support.spark.own_session import own_session

from bench.cells import CELLS, Cell
from bench.meter import Meter
from bench.results import Spread
from bench.rounds import orders
from bench.rows import cache, row_numbers, sink_columns
from bench.topics import RoundTopics, Topics
from spark_kafka_sink import register
from spark_kafka_sink.spark.driver.register import LIMIT_BYTES, SETTING, SPARKS_DEFAULT

DEFAULTS: Final = "Spark's defaults"
# `register` leaves this setting as it is if it is not Spark's default, which ends in b.
_AS_IN_SPARK: Final = {SETTING: SPARKS_DEFAULT.removesuffix("b")}
_BOUNDED: Final = {SETTING: str(LIMIT_BYTES)}
_SOCKETS: Final = {"spark.python.unix.domain.socket.enabled": "true"}
_BUFFERS: Final = {"spark.buffer.size": "1048576"}
CANDIDATES: Final[Mapping[str, Mapping[str, str]]] = {
    DEFAULTS: _AS_IN_SPARK,
    "Unix domain sockets": _AS_IN_SPARK | _SOCKETS,
    "buffers of 1 MiB": _AS_IN_SPARK | _BUFFERS,
    "Arrow batches of 7.5 MiB": _BOUNDED,
    "all three": _BOUNDED | _SOCKETS | _BUFFERS,
}
# All applications have this heap from the start.
_HEAP: Final = "2g"
_PATIENCE_S: Final = 30.0
# The bytes of a record besides its key and value, about.
_RECORD_BYTES: Final = 10


class Write(NamedTuple):
    """One write of an application: its seconds, and the CPU seconds of JVM and Python."""

    seconds: float
    cpu_s: float


class Application:
    """A Spark application with some settings, in a process of its own."""

    def __init__(self, settings: Mapping[str, str], cell: str, rows: int, bootstrap: str) -> None:
        given = json.dumps([settings, cell, rows, bootstrap])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.studies.spark_settings", "--application", given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def write(self, topic: str) -> Write:
        """Write the rows to a topic. Raise RuntimeError if the application has ended."""
        print(topic, file=self._process.stdin, flush=True)
        assert self._process.stdout is not None
        if said := self._process.stdout.readline():
            return Write(*json.loads(said))
        message = "an application has ended; its error is above"
        raise RuntimeError(message)


def run_application(settings: Mapping[str, str], cell: str, rows: int, bootstrap: str) -> None:
    """Write to each topic that standard input names, and print what the write took."""
    options = {"kafka.bootstrap.servers": bootstrap, "quiet": "true"}
    options["kafka.compression.type"] = CELLS[cell].compression
    meter = Meter(())
    with own_session(settings={**settings, "spark.log.level": "ERROR"}, heap=_HEAP) as spark:
        register(spark)
        frame = cache(sink_columns(row_numbers(spark, rows), CELLS[cell], "id"))
        for line in sys.stdin:
            before, began = meter.read(), time.perf_counter()
            frame.write.format("pykafka").options(**options, topic=line.strip()).save()
            seconds = time.perf_counter() - began
            used = meter.read().since(before)
            print(json.dumps(Write(seconds, used.jvm + used.python)), flush=True)


def measure(name: str, given: argparse.Namespace) -> dict[str, list[Write]]:
    """Return the writes of each candidate, round by round."""
    cell = replace(CELLS[name], rows=max(1, int(CELLS[name].rows * given.scale)))
    found: dict[str, list[Write]] = {candidate: [] for candidate in CANDIDATES}
    with own_broker() as cluster, ExitStack() as alive:
        applications = {
            candidate: alive.enter_context(
                Application(settings, name, cell.rows, cluster.bootstrap)
            )
            for candidate, settings in CANDIDATES.items()
        }
        partitions = cell.partitions
        topics = alive.enter_context(RoundTopics(Topics(cluster.bootstrap, 1.0), [partitions]))
        for is_warm, order in _rounds(given.warm_up, given.rounds):
            topics.before_round()
            for candidate in order:
                topic = topics.name(partitions, cell.rows, _log_bytes(cell))
                write = applications[candidate].write(topic)
                if is_warm:
                    found[candidate].append(write)
    return found


def _rounds(warm_up_s: float, rounds: int) -> Iterator[tuple[bool, list[str]]]:
    """Yield whether a round counts, and its order. The time begins when all have written once."""
    drawn = orders(list(CANDIDATES), Random())
    yield False, next(drawn)
    warm_at = time.monotonic() + warm_up_s
    while time.monotonic() < warm_at:
        yield False, next(drawn)
    for _ in range(rounds):
        yield True, next(drawn)


def _log_bytes(cell: Cell) -> int:
    return cell.rows * (cell.value_bytes + cell.key_bytes + _RECORD_BYTES)


def report(found: Mapping[str, list[Write]]) -> Iterator[str]:
    """Yield a line for each candidate."""
    usual = found[DEFAULTS]
    for candidate, writes in found.items():
        pairs = list(zip(writes, usual, strict=True))
        rates = Spread.of([theirs.seconds / own.seconds for own, theirs in pairs])
        used = Spread.of([own.cpu_s / theirs.cpu_s for own, theirs in pairs])
        yield f"  {candidate:26} rows/s {rates.text(2, 'x'):20} CPU {used.text(2, 'x')}"


def main() -> None:
    """Measure the cells of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cells", nargs="*", metavar="CELL", default=["100B", "1KB", "10KB"])
    parser.add_argument("--rounds", type=int, default=12, help="rounds that count (%(default)s)")
    parser.add_argument("--warm-up", type=float, default=100.0, metavar="SECONDS")
    parser.add_argument("--scale", type=float, default=1.0, help="times the rows of each cell")
    given = parser.parse_args()
    if wrong := [name for name in given.cells if name not in CELLS]:
        parser.error(f"{wrong[0]} is not one of {', '.join(CELLS)}")
    for name in given.cells:
        print(f"{name}: {CELLS[name]}; {given.rounds} rounds, {given.scale:g} times the rows")
        print("\n".join(report(measure(name, given))), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--application"]:
        run_application(*json.loads(sys.argv[2]))
    else:
        main()
