"""What tasks tell the driver, and what the driver makes of it: the report of a job.

Owns the commit message, the check that every task reported, and the report: one line on stderr
(commit runs in a Python process whose logging nobody sees) and, with the option reportPath, JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from spark_kafka_sink.errors import KafkaException


@dataclass(slots=True, kw_only=True)
class PartitionReport:
    """What was written to one Kafka partition; offsets are -1 where brokers do not say (acks=0).

    Records of other producers may lie between first_offset and last_offset.
    """

    topic: str
    partition: int
    records: int
    bytes: int
    batches: int
    batch_bytes: int
    retries: int
    first_offset: int
    last_offset: int

    def add(self, other: PartitionReport) -> None:
        """Add what another task wrote to the same partition."""
        self.records += other.records
        self.bytes += other.bytes
        self.batches += other.batches
        self.batch_bytes += other.batch_bytes
        self.retries += other.retries
        offsets = [o for o in (self.first_offset, other.first_offset) if o >= 0]
        self.first_offset = min(offsets, default=-1)
        self.last_offset = max(self.last_offset, other.last_offset)


@dataclass(kw_only=True)
class SinkCommitMessage(WriterCommitMessage):
    """What one task wrote."""

    task: int
    attempt: int
    rows: int
    seconds: float
    partitions: list[PartitionReport]


@dataclass(slots=True, kw_only=True)
class CommitReport:
    """What a job, or a micro-batch, wrote; `seconds` is the slowest task's."""

    batch_id: int | None
    tasks: int
    rows: int
    bytes: int
    batch_bytes: int
    retries: int
    seconds: float
    partitions: list[PartitionReport] = field(default_factory=list)

    def summary(self) -> str:
        """Give the report in one line."""
        topics = sorted({p.topic for p in self.partitions})
        where = ", ".join(topics) if len(topics) <= 3 else f"{len(topics)} topics"
        batch = "" if self.batch_id is None else f" in micro-batch {self.batch_id}"
        line = (
            f"pykafka: wrote {self.rows} rows ({self.bytes} bytes) to {where or 'no topic'}, "
            f"{len(self.partitions)} partitions, by {self.tasks} tasks{batch}; "
            f"slowest task {self.seconds:.2f} s"
        )
        return line + (f"; {self.retries} retries" if self.retries else "")

    def to_json(self) -> dict[str, Any]:
        """Give the report as JSON values."""
        return asdict(self)


def commit_report(
    messages: Sequence[WriterCommitMessage | None], batch_id: int | None = None
) -> CommitReport:
    """Sum up the messages of all tasks.

    Raises KafkaException where a task did not report: what became of its rows is then unknown.
    """
    reported = [m for m in messages if isinstance(m, SinkCommitMessage)]
    if len(reported) != len(messages):
        message = (
            f"{len(messages) - len(reported)} of {len(messages)} tasks did not report what they "
            "wrote: their rows may be missing from Kafka, so this write does not count as done"
        )
        raise KafkaException(message)
    merged: dict[tuple[str, int], PartitionReport] = {}
    for partition in (p for message in reported for p in message.partitions):
        known = merged.get((partition.topic, partition.partition))
        if known is None:
            merged[partition.topic, partition.partition] = PartitionReport(**asdict(partition))
        else:
            known.add(partition)
    partitions = [merged[key] for key in sorted(merged)]
    return CommitReport(
        batch_id=batch_id,
        tasks=len(reported),
        rows=sum(m.rows for m in reported),
        bytes=sum(p.bytes for p in partitions),
        batch_bytes=sum(p.batch_bytes for p in partitions),
        retries=sum(p.retries for p in partitions),
        seconds=max((m.seconds for m in reported), default=0.0),
        partitions=partitions,
    )


def publish(report: CommitReport, path: Path | None) -> None:
    """Print the summary, and write the report to the file of reportPath.

    A batch job's report replaces the file as a whole; a stream's reports are lines of it, one per
    micro-batch. The rows are in Kafka already, so a report that cannot be written is said on stderr
    and never fails the job.
    """
    _say(report.summary())
    if path is None:
        return
    try:
        if report.batch_id is None:
            _replace(path, json.dumps(report.to_json(), indent=2) + "\n")
        else:
            with path.open("a") as lines:
                lines.write(json.dumps(report.to_json()) + "\n")
    except Exception as error:  # noqa: BLE001 - whatever it is, the rows are written
        _say(f"pykafka: the report could not be written to reportPath {path}: {error}")


def _replace(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _say(line: str) -> None:
    # stderr may be closed, or None.
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
