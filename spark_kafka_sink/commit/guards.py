"""The guards of mode `single`, in which many tasks write with one producer id and epoch (G1 to G4).

If two writers send the same range of sequences to one partition, the broker takes the second batch
for a resend: it answers with success and writes nothing. The last sequence of the partition shows
no sign of it. So each partition may have one writer only, and that is checked:

G1  the driver: no partition is in two messages.
G2  the driver: each partition has the records that a task's message reports, and no partition has
    others. Only G2 finds a batch that was lost after its response.
G3  a task: the offsets of its batches ascend, and begin at or above the end that the log had
before. G4  a task: a batch that was sent once is not reported as a duplicate. One that was sent
again may
    be. Then the log must have what was sent at its offset.

G1 and G2 are checked before the decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from spark_kafka_sink.commit.attempts import AttemptTransaction, WrittenPartition
from spark_kafka_sink.commit.questions import ActiveProducer
from spark_kafka_sink.commit.steps import Failure, FailureKind
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.batch import MAX_SEQUENCE

_ADVICE = "lay the rows out by atomic_layout as the last step, and run the job again"


def two_writers(attempts: Iterable[AttemptTransaction]) -> Failure | None:
    """Return the failure if a partition has two writers (G1)."""
    seen: set[TopicPartition] = set()
    for attempt in attempts:
        for written in attempt.written:
            if written.partition in seen:
                sentence = f"two tasks wrote to {written.partition} in one transaction; {_ADVICE}"
                return Failure(FailureKind.CONFLICT, sentence)
            seen.add(written.partition)
    return None


def other_holdings(
    partition: TopicPartition,
    written: WrittenPartition | None,
    found: ActiveProducer | None,
) -> Failure | None:
    """Return the failure if a partition does not hold what was written to it (G2).

    written: None if no task says that it wrote there. found: the producer, as the leader of the
    partition knows it.
    """
    holds = found is not None and (found.last_sequence >= 0 or found.transaction_start >= 0)
    if written is None:
        if not holds:
            return None
        sentence = f"{partition} has records of this transaction that no task reports; {_ADVICE}"
        return Failure(FailureKind.CONFLICT, sentence)
    expected = (sequence_of(written.records), written.first_offset)
    if found is not None and (found.last_sequence, found.transaction_start) == expected:
        return None
    has = (
        "nothing of this transaction"
        if found is None or not holds
        else f"records from offset {found.transaction_start} to sequence {found.last_sequence}"
    )
    sentence = (
        f"{partition} holds {has}, though {written.records} records from offset "
        f"{written.first_offset} on were acknowledged; run the job again"
    )
    return Failure(FailureKind.LOST, sentence)


def by_producer(
    producers: Iterable[ActiveProducer],
) -> Mapping[ProducerIdAndEpoch, ActiveProducer]:
    """Return the producers of a partition, by producer id and epoch."""
    return {each.producer: each for each in producers}


def sequence_of(records: int) -> int:
    """Return the last sequence of this many records; 0 follows after 2**31 - 1."""
    return (records - 1) & MAX_SEQUENCE


def by_partition(
    attempts: Iterable[AttemptTransaction],
) -> Mapping[TopicPartition, WrittenPartition]:
    """Return what was written, by partition; each has one writer (G1)."""
    return {each.partition: each for attempt in attempts for each in attempt.written}


def is_taken(producers: Iterable[ActiveProducer], producer: ProducerIdAndEpoch) -> bool:
    """Return whether another attempt has written to a partition in this transaction.

    A task asks before it sends, and fails if it is so: one attempt's rows cannot be undone alone.
    """
    return any(each.producer == producer and each.last_sequence >= 0 for each in producers)


class AckCheck(Enum):
    """What a response to a batch means."""

    TAKEN = "the broker has appended it"
    READ_BACK = "compare what the log holds at its offset with what was sent"


class Acknowledged(NamedTuple):
    """A batch and its response.

    log_end: of the partition before the first batch; last_offset: of the batch before, -1 if there
    was none. is_duplicate: the response has a log append time, on a topic with CreateTime.
    was_resent: the batch was sent more than once.
    """

    partition: TopicPartition
    base_offset: int
    log_end: int
    last_offset: int
    is_duplicate: bool
    was_resent: bool


def check_ack(ack: Acknowledged) -> AckCheck | Failure:
    """Return what a response means, or the failure (G3, G4)."""
    if ack.base_offset < ack.log_end or ack.base_offset <= ack.last_offset:
        sentence = (
            f"{ack.partition} answered with offset {ack.base_offset}, below "
            f"{max(ack.log_end, ack.last_offset + 1)}: another attempt writes there; {_ADVICE}"
        )
        return Failure(FailureKind.CONFLICT, sentence)
    if not ack.is_duplicate:
        return AckCheck.TAKEN
    if ack.was_resent:
        return AckCheck.READ_BACK
    sentence = (
        f"{ack.partition} took a batch for a duplicate that was sent once: another attempt writes "
        f"there; {_ADVICE}; or the topic has message.timestamp.type=LogAppendTime, which needs "
        "exactlyOnce=two-phase"
    )
    return Failure(FailureKind.CONFLICT, sentence)
