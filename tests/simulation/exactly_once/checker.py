"""Check what consumers of committed records see against what the runs of the jobs have said."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from simulation.batches import data_at
from simulation.cluster import Cluster
from simulation.exactly_once.asker import LOG
from simulation.exactly_once.job import Job, Said
from simulation.replica import Replica
from simulation.scheduler import SimulationError
from spark_kafka_sink.commit.log_record import CommitRecord, LogEntry, LogReader
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.default_record import read_batches


class Seen(NamedTuple):
    """What is visible: how often each row, and whose transactions were committed."""

    rows: Counter[int]
    committed: set[ProducerIdAndEpoch]


def seen(logs: dict[TopicPartition, Replica]) -> Seen:
    """Read logs as consumers with isolation.level=read_committed do. Raise SimulationError."""
    rows: Counter[int] = Counter()
    committed: set[ProducerIdAndEpoch] = set()
    for tp, log in logs.items():
        open_rows: dict[int, list[int]] = {}
        producers: dict[int, set[ProducerIdAndEpoch]] = {}
        for entry in log.entries:
            batch = entry.batch
            if batch.is_commit is None:
                open_rows.setdefault(batch.producer_id, []).extend(batch.numbers)
                producer = ProducerIdAndEpoch(batch.producer_id, batch.epoch)
                producers.setdefault(batch.producer_id, set()).add(producer)
                continue
            ended = open_rows.pop(batch.producer_id, [])
            writers = producers.pop(batch.producer_id, set())
            if batch.is_commit:
                rows.update(ended)
                committed |= writers
        if any(open_rows.values()):
            raise SimulationError(f"{tp}: rows of {set(open_rows)} hang in no transaction")
    return Seen(rows, committed)


def check(jobs: list[Job], cluster: Cluster, losses: set[ProducerIdAndEpoch]) -> Counter[str]:
    """Check every job; return the figures. Raise SimulationError.

    losses: what the timeout or InitProducerId has aborted: only that may be lost after a decision.
    """
    tps = [tp for tp in cluster.shape.partitions if tp != LOG]
    found = seen({tp: cluster.final_log(tp) for tp in tps})
    reader = LogReader()
    reader.read(
        LogEntry.of(batch)
        for entry in cluster.final_log(LOG).entries
        for batch in read_batches(data_at(entry.batch, entry.base_offset))
    )
    warnings = reader.take_warnings()
    if warnings:
        raise SimulationError(f"the commit log has what nobody may write: {warnings}")
    figures: Counter[str] = Counter()
    for job in jobs:
        record = reader.reading(job.owner.driver_id).record
        figures += _Checker(job, record, found, losses).check()
    return figures


class _Checker:
    """The promises of one job."""

    def __init__(
        self, job: Job, record: CommitRecord | None, found: Seen, losses: set[ProducerIdAndEpoch]
    ) -> None:
        self._job = job
        self._record = record
        self._found = found
        self._losses = losses

    def check(self) -> Counter[str]:
        """Check each version and each run."""
        job = self._job
        figures: Counter[str] = Counter(runs=len(job.runs))
        is_torn = job.is_torn
        lost = {each for run in job.runs for each in run.lost}
        if is_torn and (not lost or lost & self._found.committed or lost - self._losses):
            raise SimulationError(f"{job.owner}: torn without a reason: {lost}")
        for version in job.versions:
            figures += self._check_version(version, is_torn=is_torn)
        for run in job.runs:
            visible = run.producers & self._found.committed
            if run.said is Said.FAILED and visible:
                raise SimulationError(
                    f"{job.owner}: a run of version {run.version} has failed, and is visible"
                )
            missing = run.accepted - self._found.committed
            if run.said is Said.SUCCESS and missing:
                raise SimulationError(
                    f"{job.owner}: a run of version {run.version} was committed without {missing}"
                )
        figures["torn"] = int(is_torn)
        return figures

    def _check_version(self, version: int, *, is_torn: bool) -> Counter[str]:
        job, expected = self._job, self._job.all_rows(version)
        rows = Counter({row: count for row, count in self._found.rows.items() if row in expected})
        doubled = sorted(row for row, count in rows.items() if count > 1)
        if doubled:
            raise SimulationError(f"{job.owner}: version {version}: rows {doubled} are doubled")
        is_written = job.is_written(version)
        if is_written and rows != expected:
            lost = sorted(expected - rows)
            raise SimulationError(f"{job.owner}: version {version}: rows {lost} are lost")
        if not is_written and not is_torn:
            raise SimulationError(f"{job.owner}: version {version} was never written")
        in_record = self._record is not None and version in _versions(self._record)
        if is_written and not in_record:
            raise SimulationError(f"{job.owner}: version {version} is not in the record")
        return Counter(batches=int(is_written), rows=rows.total())


def _versions(record: CommitRecord) -> set[int]:
    return {version for low, high in record.versions.intervals for version in range(low, high + 1)}
