"""The checks G1 to G4 of mode `single`, in which many tasks use one producer id and epoch.

If two writers send the same range of sequence numbers to one partition, the broker takes the second
batch for a duplicate of the first. It responds with success and appends nothing. After that, the
producer's last sequence number in the partition is the same as if there were only one writer. So
each partition may have only one writer, and these checks ensure it:

G1  on the driver: no partition is in the WriterCommitMessages of two tasks.
G2  on the driver: each partition contains exactly the records that a task reports for it, and no
    other partition contains records of the transaction. Only G2 detects that a broker lost a batch
    after it had acknowledged the batch.
G3  in a task: the offsets of its batches in a partition increase, and each offset is at or above
    the end offset that the partition had before the task's first batch.
G4  in a task: a batch that was sent only once is never acknowledged as a duplicate. If a resent
    batch is acknowledged as a duplicate, the log contains that batch at the acknowledged offset.

G1 and G2 are checked before the transaction is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

from spark_kafka_sink.commit.attempts import AttemptTransaction, WrittenPartition
from spark_kafka_sink.commit.questions import (
    ActiveProducer,
    DescribeProducers,
    ProducersDescribed,
)
from spark_kafka_sink.commit.steps import Failure, FailureKind, Received
from spark_kafka_sink.commit.verdicts import Verdict
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.records.batch import MAX_SEQUENCE

# A producer and what it wrote to one partition.
Written: TypeAlias = tuple[ProducerIdAndEpoch, WrittenPartition]
ByPartition: TypeAlias = Mapping[TopicPartition, Sequence[Written]]

_ADVICE = "call atomic_layout on the rows as the last step before the write, and run the job again"


def two_writers(attempts: Iterable[AttemptTransaction]) -> Failure | None:
    """Return a failure if two task attempts wrote to the same partition (G1), else None."""
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
    """Return a failure if a partition does not hold the records that tasks wrote to it (G2).

    written: the records that a task reports for the partition, or None if no task reports any.
    found: the state of the transaction's producer at the leader of the partition, or None if the
    leader does not know the producer.
    """
    holds = _holds(found)
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
        else f"records from offset {found.transaction_start} on, up to sequence number "
        f"{found.last_sequence}"
    )
    sentence = (
        f"{partition} holds {has}, though {written.records} records from offset "
        f"{written.first_offset} on were acknowledged; run the job again"
    )
    return Failure(FailureKind.LOST, sentence)


def _holds(found: ActiveProducer | None) -> bool:
    return found is not None and (found.last_sequence >= 0 or found.transaction_start >= 0)


def is_behind(at: Received, reported: ByPartition) -> bool:
    """Return whether a DescribeProducers response lacks records that tasks report.

    An old leader may have sent such a response: a broker may not know yet that it is no longer the
    leader, for example while it restarts. Then it does not know the last records that the new
    leader has acknowledged.

    at: a request and its reply. If the request is not DescribeProducers, the result is False.
    reported: the records that tasks report, by partition.
    """
    ask, reply = at.ask, at.reply
    if not isinstance(ask, DescribeProducers) or not isinstance(reply, ProducersDescribed):
        return False
    found = by_producer(reply.producers)
    return at.found is Verdict.DONE and any(
        _lacks(written, found.get(producer))
        for producer, written in reported.get(ask.partition, ())
    )


def _lacks(written: WrittenPartition, found: ActiveProducer | None) -> bool:
    if found is None or not _holds(found):
        return True
    is_same = found.transaction_start == written.first_offset
    return is_same and found.last_sequence < sequence_of(written.records)


def by_producer(
    producers: Iterable[ActiveProducer],
) -> Mapping[ProducerIdAndEpoch, ActiveProducer]:
    """Return a mapping from producer id and epoch to the active producer."""
    return {each.producer: each for each in producers}


def sequence_of(records: int) -> int:
    """Return the sequence number of the last record of a producer that wrote `records` records.

    The first record has the number 0. After 2**31 - 1, the numbers begin again at 0.
    """
    return (records - 1) & MAX_SEQUENCE


def by_partition(attempts: Iterable[AttemptTransaction]) -> ByPartition:
    """Return a mapping from partition to the records in it and the producers that wrote them."""
    found: dict[TopicPartition, list[Written]] = {}
    for attempt in attempts:
        for written in attempt.written:
            found.setdefault(written.partition, []).append((attempt.producer, written))
    return found


def is_taken(producers: Iterable[ActiveProducer], producer: ProducerIdAndEpoch) -> bool:
    """Return whether another attempt has already written to a partition in this transaction.

    A task checks this before its first record. If another attempt has written, the task fails,
    because brokers cannot abort the rows of one attempt and keep those of the others.

    producers: the active producers of the partition. producer: the producer id and epoch that all
    attempts use.
    """
    return any(each.producer == producer and each.last_sequence >= 0 for each in producers)


class AckCheck(Enum):
    """The meaning of the response to a batch."""

    TAKEN = "the broker has appended it"
    READ_BACK = "compare the record at its offset in the log with the record that was sent"


class Acknowledged(NamedTuple):
    """A batch that was sent, and the response to it.

    log_end: the end offset of the partition before the attempt wrote to it. previous_last_offset:
    the highest offset of the attempt's earlier batches in the partition. If it is -1, base_offset
    is compared only with log_end. is_duplicate: whether the response contains a log append time. In
    a topic with CreateTime, only the response to a duplicate contains one. was_resent: whether the
    batch was sent more than once.
    """

    partition: TopicPartition
    base_offset: int
    log_end: int
    previous_last_offset: int
    is_duplicate: bool
    was_resent: bool


def check_ack(ack: Acknowledged) -> AckCheck | Failure:
    """Return what the task has to do after a response, or a failure if check G3 or G4 fails."""
    if ack.base_offset < ack.log_end or ack.base_offset <= ack.previous_last_offset:
        sentence = (
            f"a batch for {ack.partition} was acknowledged with offset {ack.base_offset}, though "
            f"the next offset was at least {max(ack.log_end, ack.previous_last_offset + 1)}: "
            f"another attempt writes there; {_ADVICE}"
        )
        return Failure(FailureKind.CONFLICT, sentence)
    if not ack.is_duplicate:
        return AckCheck.TAKEN
    if ack.was_resent:
        return AckCheck.READ_BACK
    sentence = (
        f"the broker reports a batch for {ack.partition} as a duplicate, though it was sent once: "
        f"either another attempt writes to this partition ({_ADVICE}), or the topic has "
        "message.timestamp.type=LogAppendTime; for such a topic, set exactlyOnce=two-phase"
    )
    return Failure(FailureKind.CONFLICT, sentence)
