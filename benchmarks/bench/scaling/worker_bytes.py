"""The memory of a Python worker, from the cold jobs of a reported run of `make bench`.

In addition to the model's memory of its producer, a worker has that of one that discards its rows
(Python, Arrow, Spark), that of the sink itself (modules, freed heap that is kept), and several
times a slice: the rows as they arrive, and while they are laid out. The last two are computed from
two cells: the same rows to one partition and to 1,000, for which slices are larger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from bench.scaling.broker_cost import RESULTS, SETTINGS, TASKS
from bench.scaling.model import Job, Layout, producer
from spark_kafka_sink.client.appender import slice_bytes

_SOLVED_OF: Final = "EPYC"


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker's peak of memory in a cell, and the model's memory of its producer."""

    machine: str
    cell: str
    partitions: int
    slice_bytes: int
    worker_bytes: float
    discards_bytes: float
    producer_bytes: float

    @property
    def beside_bytes(self) -> float:
        """The memory of the sink without its producer."""
        return self.worker_bytes - self.producer_bytes - self.discards_bytes


@dataclass(frozen=True, slots=True)
class WorkerBytes:
    """The memory of a worker without that of its producer."""

    discards: float
    sink: float
    slices: float

    def of_sink(self, slice_bytes: float, producer_bytes: float) -> float:
        """Return the memory of a sink with slices of this size, including its producer."""
        return self.sink + self.slices * slice_bytes + producer_bytes

    def in_all(self, slice_bytes: float, producer_bytes: float) -> float:
        """Return the memory of a worker whose sink has slices of this size."""
        return self.discards + self.of_sink(slice_bytes, producer_bytes)


def seen() -> Iterator[Seen]:
    """Yield the results of both reported runs."""
    for machine, path in RESULTS.items():
        cells = json.loads(path.read_text())["cells"]
        yield _seen(machine, "cold", "R1", cells["cold"])
        for name in ("R1p", "R1"):
            yield _seen(machine, "cold-1000p", name, cells["cold-1000p"])


def reported(machine: str = _SOLVED_OF) -> WorkerBytes:
    """Return the result of a machine's run.

    The number of slices in a worker is computed from the only run whose cells differ in them. The
    memory of the sink itself is that of each run, because the other machine ran an older sink.
    """
    few, many = _cold_of_many(_SOLVED_OF)
    slices = (many.beside_bytes - few.beside_bytes) / (many.slice_bytes - few.slice_bytes)
    one, _ = _cold_of_many(machine)
    return WorkerBytes(one.discards_bytes, one.beside_bytes - slices * one.slice_bytes, slices)


def _cold_of_many(machine: str) -> list[Seen]:
    """Return the cells to one partition and to 1,000, in this order."""
    return [each for each in seen() if (each.machine, each.cell) == (machine, "cold-1000p")]


def _seen(machine: str, cell: str, name: str, of: dict[str, Any]) -> Seen:
    results = {each["name"]: each for each in of["results"]}
    ours, discards = results[name], results["R1h"]
    partitions = 1 if name == "R1p" else of["cell"]["partitions"]
    # The memory for a cold job's start is in both, and does not depend on writing.
    seconds = min(t["seconds"] for t in ours["measurements"])
    seconds -= min(t["seconds"] for t in discards["measurements"])
    size = ours["log_bytes"] / TASKS
    job = Job(
        executors=1,
        cores=TASKS,
        brokers=1,
        partitions=partitions,
        task_bytes=size,
        task_bytes_per_s=size / seconds,
    )
    settings = SETTINGS[machine]
    waiting = producer(job, Layout.KEYED, settings).memory_bytes
    one_slice = settings.slice_bytes or slice_bytes(partitions)
    peak, least = (
        max(t["peak_mb"] for t in each["measurements"]) * 1e6 for each in (ours, discards)
    )
    return Seen(machine, cell, partitions, one_slice, peak, least, waiting)
