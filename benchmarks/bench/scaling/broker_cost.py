"""A broker's cost of a byte and of a batch, from cells of the reported runs of `make bench`.

Two cells of a run have the same rows and differ in their numbers of partitions, and therefore in
the size of batches, which is computed with the model. These are two equations with two unknowns,
for each size of rows and each machine.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.scaling.model import MEGABYTE, Job, Layout, Settings, producer
from spark_kafka_sink.client.appender import SLICE_BYTES

_RUNS: Final = Path(__file__).parents[3] / "docs" / "benchmarks"
RESULTS: Final = {
    "EPYC": _RUNS / "scaling" / "results.json",  # older, with cells of one partition
    "Xeon": _RUNS / "xeon" / "reported" / "results.json",
}
SIZES: Final = ("100B", "1KB", "10KB")
SINK: Final = "R1"
TASKS: Final = 2
# In the older run, slices had the same size for 1,000 partitions as for few.
SETTINGS: Final = {"EPYC": Settings(), "Xeon": Settings(slice_bytes=SLICE_BYTES)}


@dataclass(frozen=True, slots=True)
class Seen:
    """A broker's usage in a cell."""

    ms_per_megabyte: float
    batch_bytes: float

    @property
    def batches_per_megabyte(self) -> float:
        """The number of these batches per megabyte."""
        return MEGABYTE / self.batch_bytes


@dataclass(frozen=True, slots=True)
class BrokerCost:
    """A broker's CPU milliseconds per megabyte, and per batch of any size."""

    ms_per_megabyte: float
    ms_per_batch: float
    seen: tuple[Seen, Seen]

    @classmethod
    def of(cls, few: Seen, many: Seen) -> BrokerCost:
        """Solve for both; few: with few batches per megabyte, many: with many."""
        more_ms = many.ms_per_megabyte - few.ms_per_megabyte
        a_batch = more_ms / (many.batches_per_megabyte - few.batches_per_megabyte)
        a_megabyte = few.ms_per_megabyte - a_batch * few.batches_per_megabyte
        return cls(a_megabyte, a_batch, (few, many))

    def ms(self, batch_bytes: float) -> float:
        """Return the cost of a megabyte in batches of this size."""
        return self.ms_per_megabyte + self.ms_per_batch * MEGABYTE / batch_bytes


@dataclass(frozen=True, slots=True)
class Reported:
    """A run's result for rows of one size; full_ms: per megabyte, to a topic of one partition."""

    machine: str
    size: str
    cost: BrokerCost
    full_ms: float


def reported() -> Iterator[Reported]:
    """Yield the results of the reported runs, by machine and size of rows."""
    for machine, path in RESULTS.items():
        cells = json.loads(path.read_text())["cells"]
        for size in SIZES:
            few, many, one = (
                _seen(cells[f"{size}{of}"], SETTINGS[machine]) for of in ("", "-1000p", "-1p")
            )
            yield Reported(machine, size, BrokerCost.of(few, many), one.ms_per_megabyte)


def dearest(batch_bytes: float) -> BrokerCost:
    """Return the costs with which batches of this size are most expensive."""
    return max((each.cost for each in reported()), key=lambda cost: cost.ms(batch_bytes))


def _seen(cell: Mapping[str, Any], settings: Settings) -> Seen:
    (ours,) = [each for each in cell["results"] if each["name"] == SINK]
    size = ours["log_bytes"]
    busy_s = statistics.median(timing["cpu"]["broker"] for timing in ours["measurements"])
    seconds = statistics.median(timing["seconds"] for timing in ours["measurements"])
    job = Job(
        executors=1,
        cores=TASKS,
        brokers=1,
        partitions=cell["cell"]["partitions"],
        task_bytes=size / TASKS,
        task_bytes_per_s=size / TASKS / seconds,
    )
    batch_bytes = producer(job, Layout.KEYED, settings).batch_bytes
    return Seen(busy_s * 1000 / (size / MEGABYTE), batch_bytes)
