"""What a byte and a batch cost a broker, from two cells of the reported run of `make bench`.

The cells differ in their numbers of partitions, and so in the size of batches, which is the
model's. Two unknowns, two equations.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.scaling_model import MEGABYTE, Job, Layout, Settings, producer

RESULTS: Final = Path(__file__).parents[2] / "docs" / "benchmarks" / "reported" / "results.json"
_SINK = "R1"
_TASKS: Final = 2


@dataclass(frozen=True, slots=True)
class Seen:
    """What a broker took in a cell."""

    cell: str
    ms_per_megabyte: float
    batch_bytes: float

    @property
    def batches_per_megabyte(self) -> float:
        """How many of those batches are a megabyte."""
        return MEGABYTE / self.batch_bytes


@dataclass(frozen=True, slots=True)
class BrokerCost:
    """CPU milliseconds of a broker for a megabyte, and for a batch whatever its size."""

    ms_per_megabyte: float
    ms_per_batch: float
    seen: tuple[Seen, Seen]

    @classmethod
    def of(cls, few: Seen, many: Seen) -> BrokerCost:
        """Solve for both; few: of few batches a megabyte, many: of many."""
        more_ms = many.ms_per_megabyte - few.ms_per_megabyte
        a_batch = more_ms / (many.batches_per_megabyte - few.batches_per_megabyte)
        a_megabyte = few.ms_per_megabyte - a_batch * few.batches_per_megabyte
        return cls(a_megabyte, a_batch, (few, many))


def reported() -> BrokerCost:
    """Give what the reported run says, of rows of 100 bytes."""
    cells = json.loads(RESULTS.read_text())["cells"]
    return BrokerCost.of(*(_seen(name, cells[name]) for name in ("100B", "100B-1000p")))


def _seen(name: str, cell: Mapping[str, Any]) -> Seen:
    (ours,) = [each for each in cell["results"] if each["name"] == _SINK]
    size = ours["log_bytes"]
    busy_s = statistics.median(turn["cpu"]["broker"] for turn in ours["turns"])
    seconds = statistics.median(turn["seconds"] for turn in ours["turns"])
    job = Job(
        executors=1,
        cores=_TASKS,
        brokers=1,
        partitions=cell["cell"]["partitions"],
        task_bytes=size / _TASKS,
        task_bytes_per_s=size / _TASKS / seconds,
    )
    batch_bytes = producer(job, Layout.KEYED, Settings()).batch_bytes
    return Seen(name, busy_s * 1000 / (size / MEGABYTE), batch_bytes)
