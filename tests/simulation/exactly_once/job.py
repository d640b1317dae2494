"""A job with its versions: which rows belong to them, and what its runs have said.

A row is a number that tells its job, version, task and place. A run is one try of one application
to write one version.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import NamedTuple

from spark_kafka_sink.commit.names import Owner
from spark_kafka_sink.model import ProducerIdAndEpoch

_TASKS = 100
_ROWS = 1000
_VERSIONS = 100_000


class Said(Enum):
    """What a user sees of a run."""

    NOTHING = "its application was killed"
    SUCCESS = "the version is written"
    SKIPPED = "the version was written before"
    FAILED = "the version was not written"
    UNKNOWN = "it is not known, or the next run goes on"
    TORN = "rows of a decided run are lost"


@dataclass(slots=True, eq=False)
class RunRecord:
    """A run: what it said, and what its attempts wrote with.

    accepted: those that it committed. lost: those that it has called lost.
    """

    version: int
    said: Said = Said.NOTHING
    producers: set[ProducerIdAndEpoch] = field(default_factory=set)
    accepted: set[ProducerIdAndEpoch] = field(default_factory=set)
    lost: set[ProducerIdAndEpoch] = field(default_factory=set)


class Job(NamedTuple):
    """A job. number: of the owner. tasks: how many each version has; is_single: of its mode."""

    number: int
    owner: Owner
    is_single: bool
    tasks: int
    partitions: int
    versions: tuple[int, ...]
    rows_of_tasks: dict[tuple[int, int], int]
    runs: list[RunRecord]

    def rows(self, version: int, task: int) -> list[int]:
        """Return the rows of a task of a version."""
        first = ((self.number * _VERSIONS + version) * _TASKS + task) * _ROWS
        return [first + number for number in range(self.rows_of_tasks[version, task])]

    def all_rows(self, version: int) -> Counter[int]:
        """Return all rows of a version, each once."""
        return Counter(row for task in range(self.tasks) for row in self.rows(version, task))

    def version_of(self, row: int) -> int:
        """Return the version of a row, 0 if it belongs to another job."""
        number, version = divmod(row // (_TASKS * _ROWS), _VERSIONS)
        return version if number == self.number else 0

    def laid_out(self, version: int, task: int, random: Random) -> list[tuple[int, int]]:
        """Return the rows of a task with their partitions, as an attempt gets them.

        In mode single a task has a partition of its own.
        """
        rows = self.rows(version, task)
        random.shuffle(rows)
        if self.is_single:
            return [(row, task) for row in rows]
        return [(row, random.randrange(self.partitions)) for row in rows]

    def is_written(self, version: int) -> bool:
        """Whether a run has said that a version is written."""
        said = {run.said for run in self.runs if run.version == version}
        return bool(said & {Said.SUCCESS, Said.SKIPPED})

    @property
    def is_torn(self) -> bool:
        """Whether a run has said that rows are lost."""
        return any(run.said is Said.TORN for run in self.runs)
