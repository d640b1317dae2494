"""The plan of a run, and the report of what a task attempt wrote.

A run is one batch job or one micro-batch. The driver makes the plan before the tasks start. The
tasks and the commit use it.

Instances of these classes are pickled with Spark's writer and with its WriterCommitMessages, so
they are plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from spark_kafka_sink.commit.log_record import CommitRecord
from spark_kafka_sink.commit.names import Owner, TaskSlot
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition


class WrittenPartition(NamedTuple):
    """The acknowledged records that one task attempt wrote to one partition."""

    partition: TopicPartition
    records: int
    first_offset: int
    last_offset: int
    last_sequence: int


class AcknowledgedRecords(Protocol):
    """The records of one partition that brokers have acknowledged, as the producer counts them."""

    records: int
    first_offset: int
    last_offset: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class AttemptTransaction:
    """The records that a task attempt wrote in a transaction.

    slot: the Spark partition and the slot number in the attempt's transactional id. It is None in
    mode `single`, where all attempts write in the driver's transaction.
    """

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
        """Return an attempt's transaction. acknowledged: the attempt's records, by partition."""
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
    """One run of an owner (a txnAppId and its target topic): a batch job, or a micro-batch.

    name: the unique name of this run, which is stored in its commit log record. log: the partition
    of the commit log. level: the transaction.version that the cluster has finalized, 1 or 2.
    timeout_ms: the timeout of the run's transactions.
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

    producer: the producer id and epoch that InitProducerId returned for the driver's transactional
    id. record: the owner's record in the commit log, or None if the owner has no record yet.
    """

    run: Run
    producer: ProducerIdAndEpoch
    record: CommitRecord | None = None
