"""Rounds: every contender writes the same rows, one after another, round by round.

This module determines the order and measures the time. Round 0 does not count. It writes to a topic
of its own, in which its rows are counted and its bytes measured. A contender that fails there, or
is very slow, is left out with the reason. One that fails later, or loses rows, ends the benchmark.
In warm cells, further rounds do not count until the JVMs of Spark and of the brokers have compiled
their code.
"""

from __future__ import annotations

import contextlib
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from job import running
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from bench.cells import BASELINE, CONTENDERS, OURS, Cell, Contender, Kind
from bench.contenders import NotRunError, Setting, Tls, Write, write_of
from bench.meter import Meter, Usage
from bench.rows import cache, in_parquet, lay_out, row_numbers, row_stream, sink_columns
from bench.sail import Sail
from bench.topics import RoundTopics, Topics
from spark_kafka_sink.errors import KafkaException

# Contenders that write nothing to Kafka.
_NOT_IN_KAFKA: Final = ("R1c", "R1h", "noop")
# It sends full batches, and thus a few more records than there are rows.
_ONLY_FULL_BATCHES: Final = "R0"
# The limit for a cell's rows; slower contenders are left out, unless nothing could be compared
# then.
_LONGEST_WRITE_S: Final = 60.0
_ALWAYS: Final = (OURS, BASELINE)
# Slow contenders write all rows if there are fewer than this.
_FEW_ROWS: Final = 20_000
_RAISED: Final = re.compile(r"^[\w.]*(?:Error|Exception): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured write; after: the contender that wrote before it."""

    seconds: float
    cpu: Usage
    peak_mb: float | None
    after: str | None = None


@dataclass(slots=True)
class Result:
    """A contender's result in a cell; `log_bytes` are those of round 0."""

    name: str
    rows: int
    log_bytes: int | None = None
    not_run: str | None = None
    measurements: list[Measurement] = field(default_factory=list)


@dataclass(slots=True)
class Bench:
    """The parts common to all cells.

    renew_session: stops the session and starts a new one. folder: for files of rows.
    """

    spark: SparkSession
    renew_session: Callable[[SparkSession], SparkSession]
    bootstrap: str
    topics: Topics
    meter: Meter
    registry: str
    kafka_libs: Path | None
    before: Path | None
    tls: Tls | None
    sail_python: Path | None
    folder: Path
    contenders: Sequence[str]
    rounds: int
    warm_up_s: float


class CellRun:
    """The rounds of one cell. Raise the errors of contenders that took part in round 0."""

    def __init__(self, bench: Bench, cell: Cell) -> None:
        self._bench = bench
        self._cell = cell
        self._frames: dict[int, DataFrame] = {}
        self._parquet = Path(tempfile.mkdtemp(dir=bench.folder)) if cell.parquet else None
        self._sail = None if bench.sail_python is None else Sail(bench.sail_python)
        self._orders: Iterator[list[str]] = iter(())
        self._records: dict[str, int] = {}  # rows of a write
        self._before: str | None = None
        self.results = {name: Result(name, _rows(cell, name)) for name in bench.contenders}

    def run(self) -> None:
        """Measure all rounds."""
        with contextlib.nullcontext() if self._sail is None else self._sail:
            self._run()

    def _run(self) -> None:
        rounds = {
            Kind.WARM: self._warm_rounds,
            Kind.COLD: self._cold_rounds,
            Kind.STREAM: self._micro_batches,
        }
        for result in self.results.values():
            self._round_zero(result)
        self._orders = orders(self._running, Random())  # noqa: S311 - no secret
        counts = {self._partitions(name) for name in self._running}
        with RoundTopics(self._bench.topics, counts) as topics:
            rounds[self._cell.kind](topics)
        self._forget_frames()

    @property
    def _running(self) -> list[str]:
        return [name for name, result in self.results.items() if result.not_run is None]

    def _partitions(self, name: str) -> int:
        return _contender(name).partitions or self._cell.partitions

    def _markers(self, name: str) -> float:
        """Return how many records a contender may add to its rows: of each task, a marker."""
        if name == _ONLY_FULL_BATCHES:
            return math.inf
        return self._cell.partitions if _contender(name).exactly_once is not None else 0

    def _round_zero(self, result: Result) -> None:
        if self._cell.kind is Kind.COLD and not _contender(result.name).in_spark:
            result.not_run = "it has no workers that could be cold"
            return
        try:
            write, frame = self._write_of(result.name), self._frame(result.rows)
            partitions = self._partitions(result.name)
            with self._bench.topics.made(partitions) as topic:
                started = time.perf_counter()
                write(frame, topic, result.rows)
                seconds = time.perf_counter() - started
                if seconds > _LONGEST_WRITE_S and result.name not in _ALWAYS:
                    result.not_run = f"it took {seconds:.0f} s in round 0"
                if result.name in _NOT_IN_KAFKA:
                    return
                found = self._bench.topics.contents(topic)
            self._records[result.name] = found.records
            if found.records < result.rows:
                result.not_run = f"only {found.records:,} of {result.rows:,} rows arrived"
            elif found.records > result.rows + self._markers(result.name):
                result.not_run = f"{found.records:,} records arrived of {result.rows:,} rows"
            result.log_bytes = found.log_bytes * result.rows // max(1, found.records)
        except NotRunError as error:
            result.not_run = str(error)
        except (KafkaException, PySparkException, Py4JError, OSError, RuntimeError) as error:
            result.not_run = _reason(str(getattr(error, "java_exception", error)))
        finally:
            self._before = result.name
            reason = "" if result.not_run is None else f" is not run: {result.not_run}"
            print(f"  round 0: {result.name:4}{reason}", flush=True)

    def _warm_rounds(self, topics: RoundTopics) -> None:
        writes = {name: self._write_of(name) for name in self._running}
        for number, name in self._writes_in_order(topics):
            frame = self._frame(self.results[name].rows)
            self._measure(name, number, writes[name], frame, topics)

    def _writes_in_order(self, topics: RoundTopics) -> Iterator[tuple[int, str]]:
        """Yield round and contender of each write; those of the warm-up have round 0."""
        warm_at = time.monotonic() + self._bench.warm_up_s
        while self._running and time.monotonic() < warm_at:
            topics.before_round()
            yield from ((0, name) for name in next(self._orders))
        for number in range(1, self._bench.rounds + 1):
            topics.before_round()
            yield from ((number, name) for name in next(self._orders))

    def _cold_rounds(self, topics: RoundTopics) -> None:
        for number in range(1, self._bench.rounds + 1):
            topics.before_round()
            for name in next(self._orders):
                self._forget_frames()
                self._bench.spark = self._bench.renew_session(self._bench.spark)
                self._bench.meter.wait_until_workers_ended()
                frame = self._frame(self.results[name].rows)
                self._measure(name, number, self._write_of(name), frame, topics)

    def _micro_batches(self, topics: RoundTopics) -> None:
        """Write the micro-batches of one stream, each with the next contender."""
        names = self._running
        writes = {name: self._write_of(name) for name in names}
        order = self._writes_in_order(topics)

        def write(frame: DataFrame, _number: int) -> None:
            number, name = next(order, (0, ""))
            if not name:
                return
            cached = cache(self._laid_out(frame))
            self._measure(name, number, writes[name], cached, topics)
            cached.unpersist()

        query = row_stream(self._bench.spark, self._cell).writeStream.foreachBatch(write).start()
        try:
            while len(self._done()) < len(names):
                query.awaitTermination(1)  # raises the error that ended the stream
        finally:
            query.stop()

    def _done(self) -> list[str]:
        rounds = self._bench.rounds
        return [name for name, result in self.results.items() if len(result.measurements) >= rounds]

    def _measure(
        self,
        name: str,
        number: int,
        write: Write,
        frame: DataFrame,
        topics: RoundTopics,
    ) -> None:
        """Measure one write; writes of round 0 are not recorded."""
        meter, result = self._bench.meter, self.results[name]
        records, log_bytes = self._records.get(name, 0), result.log_bytes or 0
        topic = topics.name(self._partitions(name), records, log_bytes)
        meter.forget_peaks()
        before, started = meter.read(), time.perf_counter()
        measured = write(frame, topic, result.rows)
        seconds = time.perf_counter() - started if measured is None else measured
        peak = meter.peak_mb() if _contender(name).in_workers else None
        measurement = Measurement(seconds, meter.read().since(before), peak, self._before)
        self._before = name
        if number:
            result.measurements.append(measurement)
        rate = f"{result.rows / seconds / 1e3:12,.1f} k rows/s {seconds * 1e3:10,.0f} ms"
        place = f"round {number}" if number else "warm-up"
        print(f"  {place}: {name:4} {rate}", flush=True)

    def _write_of(self, name: str) -> Write:
        bench = self._bench
        setting = Setting(
            spark=bench.spark,
            cell=self._cell,
            sample=self._frame(self._cell.rows),
            bootstrap=bench.bootstrap,
            topics=bench.topics,
            registry=bench.registry,
            kafka_libs=bench.kafka_libs,
            before=bench.before,
            tls=bench.tls,
            parquet=None if self._parquet is None else self._parquet / str(self._cell.rows),
            sail=self._sail,
        )
        return write_of(name, setting)

    def _frame(self, rows: int) -> DataFrame:
        """Return this number of the cell's rows, cached in Spark's memory or read from Parquet."""
        if rows not in self._frames:
            numbers = row_numbers(self._bench.spark, rows)
            made = self._laid_out(sink_columns(numbers, self._cell, "id"))
            if self._parquet is not None:
                self._frames[rows] = in_parquet(made, self._parquet / str(rows))
            else:
                self._frames[rows] = cache(made)
        return self._frames[rows]

    def _laid_out(self, frame: DataFrame) -> DataFrame:
        return lay_out(frame, self._cell.partitions) if self._cell.exactly_once else frame

    def _forget_frames(self) -> None:
        for frame in self._frames.values():
            frame.unpersist()
        self._frames.clear()


def _reason(message: str) -> str:
    """Return the error of a Python worker, or else Spark's first line."""
    raised = _RAISED.findall(message)
    return raised[-1] if raised else running.sentence(message)


def _contender(name: str) -> Contender:
    return CONTENDERS[name]


def _rows(cell: Cell, name: str) -> int:
    if cell.rows <= _FEW_ROWS:
        return cell.rows
    return max(_FEW_ROWS, int(cell.rows * _contender(name).share))


def orders(names: Sequence[str], random: Random) -> Iterator[list[str]]:
    """Yield the order of each round, endlessly, by a Williams design.

    So no contender has the same predecessor in every round. Each round rotates by one, so that
    places change, too. The numbering of contenders is drawn again for each cell of each run.

    With an even number of names, in as many rounds, each has every place once and every predecessor
    once. With an odd number and one more round, no predecessor comes more than twice.
    """
    drawn: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    random.shuffle(drawn)
    count = len(drawn)
    # 0, 1, -1, 2, -2, …: the distance of neighbours is always different.
    steps = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]
    number = 0
    while True:
        order = (drawn[(step + number) % count] for step in steps)
        yield [name for name in order if name is not None]
        number += 1
