"""Find and abort the open transactions of task attempts, if no run will commit them.

The driver lists the open transactions of its owner's tasks. (An owner is a txnAppId and its target
topic.) It asks the coordinators for the producer id and epoch of each transaction. An abort request
contains exactly this producer id and epoch. So it cannot abort a later transaction that has the
same transactional id and a newer epoch. InitProducerId would abort the later transaction, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from spark_kafka_sink.commit.log_record import CommitRecord
from spark_kafka_sink.commit.names import Owner
from spark_kafka_sink.commit.questions import (
    ONGOING,
    Described,
    DescribeTransaction,
    EndTxn,
    OpenTransaction,
)
from spark_kafka_sink.commit.steps import Received, end_txn
from spark_kafka_sink.commit.trees import TreeSet
from spark_kafka_sink.commit.verdicts import Verdict
from spark_kafka_sink.model import ProducerIdAndEpoch

# A transactional id, and the producer id and epoch of its transaction.
Transaction: TypeAlias = tuple[str, ProducerIdAndEpoch]
# The open transactions to abort.
Leftovers: TypeAlias = TreeSet[Transaction]


def own_tasks(owner: Owner, listed: Iterable[OpenTransaction]) -> list[str]:
    """From a list of open transactions, return the transactional ids of the owner's tasks."""
    ids = (each.transactional_id for each in listed)
    return sorted(each for each in ids if owner.slot_of(each) is not None)


def with_open(
    leftovers: Leftovers, at: Received, decided: frozenset[Transaction] = frozenset()
) -> Leftovers:
    """Add the transaction that a response describes to the leftovers, and return them.

    If it is not open, or if it is in `decided`, return the leftovers unchanged.
    """
    if not isinstance(at.ask, DescribeTransaction) or not isinstance(at.reply, Described):
        return leftovers
    found = (at.ask.transactional_id, at.reply.producer)
    is_open = at.found is Verdict.DONE and at.reply.state == ONGOING
    return leftovers.including(found) if is_open and found not in decided else leftovers


def decided_by(owner: Owner, record: CommitRecord) -> frozenset[Transaction]:
    """Return the transactions that a commit log record lists as decided (to be committed)."""
    return frozenset((owner.task_id(each.slot), each.producer) for each in record.transactions)


def without(leftovers: Leftovers, others: frozenset[Transaction]) -> Leftovers:
    """Return the leftovers that are not in `others`."""
    return TreeSet.of(each for each in leftovers if each not in others)


def aborts(leftovers: Leftovers, level: int) -> list[EndTxn]:
    """Return the EndTxn requests that abort these transactions, sorted by transactional id."""
    ordered = sorted(leftovers, key=lambda each: (each[0], each[1].producer_id, each[1].epoch))
    return [end_txn(name, producer, level, commit=False) for name, producer in ordered]
