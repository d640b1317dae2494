"""The outcomes of the machines of exactly once, besides `Failure`."""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.commit.attempts import Plan
from spark_kafka_sink.commit.log_record import CommitRecord, DecidedTransaction
from spark_kafka_sink.commit.names import TaskSlot
from spark_kafka_sink.commit.steps import Failure
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


@dataclass(frozen=True, slots=True)
class Torn:
    """A run was decided, and some of its transactions were aborted: their rows are lost."""

    record: CommitRecord
    lost: tuple[DecidedTransaction, ...]


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
