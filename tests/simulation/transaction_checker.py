"""Check the guarantees of transactions: rows and offsets are visible together, or not at all."""

from __future__ import annotations

from typing import NamedTuple

from simulation.batches import Batch, GroupOffset
from simulation.checker import Checker
from simulation.cluster import Cluster
from simulation.coordinator_log import OFFSETS_LOG
from simulation.group_coordinator import committed_offsets
from simulation.replica import Replica
from simulation.transactions import Written
from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.producer_batch import ProducerBatch


class TransactionChecker(Checker):
    """The guarantees of transactions, in addition to those of every record."""

    def _failed(self, batch: ProducerBatch, numbers: list[int], now: float) -> None:
        """Process a failed batch: it failed with its transaction, for any reason."""
        self._require(isinstance(batch.error, KafkaException), f"{batch!r} failed without a reason")

    def check_transactions(self, written: list[Written], cluster: Cluster) -> None:
        """Check which records and offsets a read_committed reader sees."""
        records = self._seen_records(cluster)
        offsets = self._seen_offsets(cluster) if self._scenario.shape.has_groups else set()
        for number, transaction in enumerate(written):
            found = records.intersection(transaction.numbers)
            found_offsets = offsets.intersection(transaction.offsets)
            has_records = len(found) == len(transaction.numbers)
            has_offsets = found_offsets == latest(transaction.offsets)
            if transaction.is_committed:
                self._require(has_records, f"transaction {number} was committed and lacks records")
                self._require(
                    has_offsets,
                    f"transaction {number} was committed and lacks offsets: it has "
                    f"{sorted(found_offsets)} of {transaction.offsets}",
                )
            elif transaction.is_aborted or not transaction.may_be_committed:
                self._require(not found, f"transaction {number} was not committed and is seen")
                self._require(
                    not found_offsets,
                    f"transaction {number} was not committed and offsets {found_offsets} are seen",
                )
            else:
                is_unseen = not found and not found_offsets
                is_complete = has_records and has_offsets
                self._require(is_complete or is_unseen, f"transaction {number} is seen in part")

    def _seen_records(self, cluster: Cluster) -> set[int]:
        seen: list[int] = []
        for tp in self._scenario.shape.partitions:
            read = read_committed(cluster.final_log(tp))
            self._require(not read.open, f"{tp}: records {read.open} hang in no transaction")
            seen += read.numbers
        self._require(len(seen) == len(set(seen)), "a record is seen twice")
        return set(seen)

    def _seen_offsets(self, cluster: Cluster) -> set[GroupOffset]:
        """Return the offsets that were ever visible; no group may go back to earlier ones."""
        committed = committed_offsets(cluster.final_log(OFFSETS_LOG))
        self._require(not committed.open, f"offsets {committed.open} hang in no transaction")
        now: dict[tuple[str, TopicPartition], int] = {}
        for commit in committed.commits:
            for one in commit:
                before = now.get((one.group, one.partition), -1)
                self._require(one.offset > before, f"{one} is seen after {before}")
                now[one.group, one.partition] = one.offset
        return set().union(*committed.commits)


def latest(offsets: list[GroupOffset]) -> set[GroupOffset]:
    """Return the last offsets per group and partition of those sent in one transaction."""
    return set({(one.group, one.partition): one for one in offsets}.values())


class Read(NamedTuple):
    """Records by number: the committed ones, and those without a marker."""

    numbers: list[int]
    open: list[int]


def read_committed(log: Replica) -> Read:
    """Read a log as a consumer with isolation.level=read_committed does."""
    numbers: list[int] = []
    under_way: dict[int, list[int]] = {}
    for entry in log.entries:
        batch: Batch = entry.batch
        if batch.is_commit is None:
            under_way.setdefault(batch.producer_id, []).extend(batch.numbers)
        else:
            ended = under_way.pop(batch.producer_id, [])
            numbers += ended if batch.is_commit else []
    return Read(numbers, [number for rest in under_way.values() for number in rest])
