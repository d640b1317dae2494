"""What a plan hands to the tasks and to the commit, and what a task attempt reports.

These travel with Spark's writer and its commit messages, so they are plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from spark_kafka_sink.commit.log_record import CommitRecord
from spark_kafka_sink.commit.names import Owner, TaskSlot
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition


class WrittenPartition(NamedTuple):
    """What an attempt wrote to one partition, all of it acknowledged."""

    partition: TopicPartition
    records: int
    first_offset: int
    last_offset: int
    last_sequence: int


class AcknowledgedRecords(Protocol):
    """The records of one partition that brokers have acknowledged, as a producer counts them."""

    records: int
    first_offset: int
    last_offset: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class AttemptTransaction:
    """What an attempt wrote in a transaction. slot: None in mode `single`: it is the driver's."""

    slot: TaskSlot | None
    producer: ProducerIdAndEpoch
    written: tuple[WrittenPartition, ...]

    @classmethod
    def of(
        cls,
        slot: TaskSlot | None,
        producer: ProducerIdAndEpoch,
        acknowledged: Mapping[TopicPartition, AcknowledgedRecords],
    ) -> Self:
        """Return the transaction of an attempt whose records are all acknowledged."""
        return cls(
            slot,
            producer,
            tuple(
                WrittenPartition(
                    partition,
                    found.records,
                    found.first_offset,
                    found.last_offset,
                    found.last_sequence,
                )
                for partition, found in sorted(acknowledged.items(), key=lambda item: item[0])
            ),
        )


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an owner: a batch job, or a micro-batch.

    name: of this run, which its record has. log: the partition of the commit log. level: the
    transaction.version that the cluster has finalized, 1 or 2. timeout_ms: of its transactions.
    """

    owner: Owner
    name: str
    log: TopicPartition
    level: int
    timeout_ms: int

    @property
    def driver_id(self) -> str:
        """The transactional id of the driver."""
        return self.owner.driver_id


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run.

    producer: of the driver id, from the plan's InitProducerId. record: of the owner, None if it has
    none yet.
    """

    run: Run
    producer: ProducerIdAndEpoch
    record: CommitRecord | None = None
