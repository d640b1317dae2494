"""The outcomes of the machines of exactly once, besides `Failure`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from spark_kafka_sink.commit.attempts import AttemptTransaction, Plan, Run
from spark_kafka_sink.commit.log_record import CommitRecord, DecidedTransaction
from spark_kafka_sink.commit.names import Owner, TaskSlot
from spark_kafka_sink.commit.steps import Failure
from spark_kafka_sink.errors import KafkaException, LostRows, TornCommitException, listed
from spark_kafka_sink.model import ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class Planned:
    """Tasks may run."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Skipped:
    """The version is written: nothing is to be done."""

    record: CommitRecord


@dataclass(frozen=True, slots=True)
class Claimed:
    """A task may write, with this producer id and epoch."""

    slot: TaskSlot
    producer: ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class Clear:
    """No other attempt has written to the partitions of a task."""


@dataclass(frozen=True, slots=True)
class Committed:
    """All rows are visible. record: what the log has."""

    record: CommitRecord


class LostTransaction(NamedTuple):
    """A decided transaction that was aborted, with the number of its records in its partition.

    The record names one partition of a transaction; the task may have written to others, too.
    """

    transaction: DecidedTransaction
    records: int

    @property
    def rows(self) -> LostRows:
        """What is lost in this partition."""
        slot, _, (topic, partition), first_offset = self.transaction
        return LostRows(slot.partition, topic, partition, first_offset, self.records)


@dataclass(frozen=True, slots=True)
class Torn:
    """A run was decided, and some of its transactions were aborted: their rows are lost.

    unknown: how many other transactions may be committed, aborted or still open.
    """

    record: CommitRecord
    lost: tuple[LostTransaction, ...]
    unknown: int = 0

    def exception(
        self, owner: Owner, attempts: Iterable[AttemptTransaction] = ()
    ) -> TornCommitException:
        """Return the exception for a user. attempts: what the tasks wrote, where it is known."""
        written = {each.slot: each.written for each in attempts}
        rows = tuple(
            LostRows(each.transaction.slot.partition, *one.partition, one.first_offset, one.records)
            for each in self.lost
            for one in written.get(each.transaction.slot, ())
        ) or tuple(each.rows for each in self.lost)
        every, what = len(self.record.transactions), self.record.last_written
        more = f" (the end of {self.unknown} more is not known)" if self.unknown else ""
        message = (
            f"{what} of {owner} was decided, and brokers have aborted {len(self.lost)} of its "
            f"{every} transactions{more}, so that rows are lost: {listed(map(str, rows))}; "
            "write them "
            "again where they are needed, and let the next run go on: python -m "
            f"spark_kafka_sink.recover --accept-torn --app-id {owner.app_id} --topic {owner.target}"
        )
        return TornCommitException(
            message,
            owner=str(owner),
            written=what,
            committed=every - len(self.lost) - self.unknown,
            lost=rows,
        )


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The run is decided, and not every transaction could be committed in time.

    The next plan goes on, or `recover`; rows are lost if neither runs before their timeout.
    """

    record: CommitRecord
    failure: Failure


@dataclass(frozen=True, slots=True)
class Undecided:
    """It is not known whether the run is committed. The next plan finds out."""

    failure: Failure

    def exception(self, owner: Owner) -> KafkaException:
        """Return the exception for a user."""
        message = (
            f"it is not known whether the write of {owner} is committed: {self.failure.sentence}; "
            "run it again, which writes the rows only if they are not"
        )
        return KafkaException(message)


@dataclass(frozen=True, slots=True)
class Aborted:
    """Nothing is visible. may_be_open: whether tasks may still have opened transactions."""

    may_be_open: bool = False


@dataclass(frozen=True, slots=True)
class CommittedBefore:
    """An abort came too late: the transaction was committed, or had no partition at level 1."""


@dataclass(frozen=True, slots=True)
class Decided:
    """An abort came too late: the run is decided, and has to be rolled forward."""

    record: CommitRecord


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer run of the owner has fenced this one, and ends its transactions.

    At level 1 the transaction may have timed out instead. The rows may have been committed before.
    """


def not_aborted_now(run: Run, why: object) -> str:
    """Return the sentence for a run whose abort has failed."""
    return (
        f"the write of {run.owner} could not be aborted now ({why}); the brokers abort it within "
        f"{run.timeout_ms} ms"
    )
