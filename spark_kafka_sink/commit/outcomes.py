"""The results of the exactly-once state machines. The result `Failure` is in `steps`.

A run is "decided" in mode `two-phase` once its record is committed in the commit log. From then on,
all transactions of its tasks have to be committed. An owner is a txnAppId and its target topic.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, NamedTuple

from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan, Run, WrittenPartition
from spark_kafka_sink.commit.log_record import CommitRecord, DecidedTransaction
from spark_kafka_sink.commit.names import DEFAULT_LOG_TOPIC, DEFAULT_PREFIX, Owner, TaskSlot
from spark_kafka_sink.commit.steps import Failure
from spark_kafka_sink.errors import KafkaException, LostRows, TornCommitException, listed
from spark_kafka_sink.model import ProducerIdAndEpoch

_OTHERS: Final = "and what these tasks wrote to other partitions"


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan is ready, so tasks may run."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Skipped:
    """The version was written before, so the run has nothing to do."""

    record: CommitRecord


@dataclass(frozen=True, slots=True)
class Claimed:
    """A task may write with a transactional id.

    slot: the slot in this id. producer: the producer id and epoch of this id.
    """

    slot: TaskSlot
    producer: ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class Clear:
    """No other attempt has written to the partitions of a task, so the task may write."""


@dataclass(frozen=True, slots=True)
class Committed:
    """All rows are visible to consumers.

    record: the owner's record after the commit, in state DONE. In mode `two-phase`, the commit log
    may still contain it in state DECIDED, because the commit succeeds even if DONE is not written.
    """

    record: CommitRecord


class LostTransaction(NamedTuple):
    """A transaction that was to be committed, but was aborted, so its rows are lost.

    records: the number of the transaction's Kafka records in the partition that the commit log
    names for it. The task may have written to other partitions, too.
    """

    transaction: DecidedTransaction
    records: int

    @property
    def rows(self) -> LostRows:
        """The rows that are lost in this partition."""
        slot, _, (topic, partition), first_offset = self.transaction
        return LostRows(slot.partition, topic, partition, first_offset, self.records)

    def all_rows(self, written: Iterable[WrittenPartition]) -> list[LostRows]:
        """Return the lost rows of each partition that the task wrote to.

        written: the partitions, with the first offset and the number of records in each.
        """
        task = self.transaction.slot.partition
        return [
            LostRows(task, *each.partition, each.first_offset, each.records) for each in written
        ]


@dataclass(frozen=True, slots=True)
class Torn:
    """Some rows are lost: their transactions were aborted after the decision to commit.

    unknown: the number of other transactions that may be committed, aborted or still open.
    """

    record: CommitRecord
    lost: tuple[LostTransaction, ...]
    unknown: int = 0

    def exception(
        self, run: Run, attempts: Iterable[AttemptTransaction] = ()
    ) -> TornCommitException:
        """Return the exception for the user.

        run: the run that has found the loss. attempts: what the task attempts wrote, if the caller
        knows it. With `attempts`, the exception lists the lost rows of all partitions. Otherwise,
        for each transaction, it lists the lost rows of only one partition, and says so.
        """
        written = {each.slot: each.written for each in attempts}
        found = [
            each.all_rows(written.get(each.transaction.slot, ())) or [each.rows]
            for each in self.lost
        ]
        # The message names only the first rows, so these are rows of different tasks.
        rows = tuple(one for each in zip_longest(*found) for one in each if one is not None)
        is_partial = any(each.transaction.slot not in written for each in self.lost)
        others = f", {_OTHERS}" if is_partial else ""
        every, what = len(self.record.transactions), self.record.last_written
        more = f" (the result of {self.unknown} more is not known)" if self.unknown else ""
        message = (
            f"{what} of {run.owner} was to be committed, but brokers have aborted {len(self.lost)} "
            f"of its {every} transactions{more}, so that rows are lost: "
            f"{listed(map(str, rows))}{others}; if they are needed, write them "
            f"again; to let the next run start, use {accept_torn(run.owner, run.log.topic)}"
        )
        return TornCommitException(
            message,
            owner=str(run.owner),
            written=what,
            committed=every - len(self.lost) - self.unknown,
            lost=rows,
        )


def torn_lines(
    owner: Owner,
    log_topic: str,
    record: CommitRecord | None,
    lost: Sequence[LostTransaction],
    count: int,
) -> list[str]:
    """Return lines that name the lost rows of a run, without what its task attempts wrote.

    record: the owner's record, or None if it is not known. count: the number of transactions of
    the run.
    """
    what = "the last run" if record is None else record.last_written
    return [
        f"TORN: {what} was to be committed, but brokers have aborted {len(lost)} of its {count} "
        "transactions. These rows are lost:",
        *(f"    {each.rows}" for each in lost),
        f"{_OTHERS}. Every further run of this owner fails. If these rows are needed, write them "
        f"again. Then let the owner continue: {accept_torn(owner, log_topic)}",
    ]


def accept_torn(owner: Owner, log_topic: str) -> str:
    """Return the command that lets an owner write again although rows of its last run are lost."""
    return recover_command(["--accept-torn", f"--app-id={owner.app_id}"], owner, log_topic)


def recover_command(action: Iterable[str], owner: Owner, log_topic: str) -> str:
    """Return a `recover` command that affects only one owner.

    action: the arguments for the action and for its txnAppId.
    """
    # Without "=", argparse takes a value that begins with "-" for an option.
    words = [*action, f"--topic={owner.target}"]
    if owner.prefix != DEFAULT_PREFIX:
        words.append(f"--txn-id-prefix={owner.prefix}")
    if log_topic != DEFAULT_LOG_TOPIC:
        words.append(f"--commit-log-topic={log_topic}")
    return f"python -m spark_kafka_sink.recover {shlex.join(words)}"


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The decision to commit is made, but some transactions could not be committed in time.

    The next run of the owner commits these transactions, and so does `recover`. If neither runs
    before the transactions time out, their rows are lost.
    """

    record: CommitRecord
    failure: Failure


@dataclass(frozen=True, slots=True)
class Undecided:
    """It is not known whether the run is committed. The next run of the owner finds out."""

    failure: Failure

    def exception(self, owner: Owner) -> KafkaException:
        """Return the exception for the user."""
        message = (
            f"it is not known whether the write of {owner} is committed: {self.failure.sentence}; "
            "run it again: it writes the rows only if they are not committed"
        )
        return KafkaException(message)


@dataclass(frozen=True, slots=True)
class Aborted:
    """The run is aborted: no row is visible.

    may_be_open: whether tasks that still run may have opened further transactions. missed: why some
    transactions of tasks may still be open, for example because a broker did not respond. It is an
    empty string if there is no such reason.
    """

    may_be_open: bool = False
    missed: str = ""


@dataclass(frozen=True, slots=True)
class CommittedBefore:
    """The run cannot be aborted, because its transaction was committed before.

    At level 1 (transaction.version 1), another cause is possible: the transaction has no partition.
    The coordinator returns the same error code for both.
    """


@dataclass(frozen=True, slots=True)
class Decided:
    """The run cannot be aborted, because the decision to commit it is in the commit log."""

    record: CommitRecord


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer run of the owner has fenced this run, and ends its transactions.

    At level 1 (transaction.version 1), it is also possible that no newer run exists and that the
    transaction timed out. The rows may have been committed before the fencing.
    """


def not_known(run: Run, why: object) -> str:
    """Return the message for a run that may be decided, if the brokers do not say whether it is."""
    return (
        f"it is not known whether the write of {run.owner} is committed ({why}); if the decision "
        "to commit it is recorded, a part of its rows is lost unless you run the write again, or "
        f"run python -m spark_kafka_sink.recover, within {run.timeout_ms} ms of the first row"
    )


def not_aborted_now(run: Run, why: object) -> str:
    """Return the message for a run that could not be aborted."""
    return (
        f"the write of {run.owner} could not be aborted now ({why}); the brokers abort it within "
        f"{run.timeout_ms} ms, and read_committed consumers may have to wait until then"
    )
