"""The states of the state machines of exactly once, and tables of the allowed transitions.

A state machine moves only as its table allows (`moved`). Any other transition is a bug and raises
IllegalStateException. The diagrams in docs/contributing/states.md are generated from these tables.
Names in brackets, such as [D0], are the steps that the docstrings of `plan`, `two_phase_claim`,
`two_phase` and `two_phase_abort` describe.

An owner is a txnAppId and its target topic. A run is "decided" in mode two-phase once its
record in state DECIDED is committed in the commit log. Then all its transactions have to be
committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeVar

from spark_kafka_sink.errors import IllegalStateException


class PlanState(Enum):
    """The state of a plan: what the driver does before the tasks of a run start."""

    PEEKING = "reads the log, because the version may be written already"
    LISTING = "lists open transactions [D0]"
    DESCRIBING = "asks for the producer epoch of each listed transaction [D0]"
    FENCING = "asks for the driver's next epoch [D1]"
    READING = "reads the owner's record [D2]"
    ENDING = "commits the transactions of a decided run [D3]"
    ADDING_LOG = "adds the log to the transaction of the record [D3, D4]"
    WRITING_DONE = "writes the record DONE; if the run is torn, writes its record again [D3, D4]"
    LOOKING = "reads the log again, up to that record [D3, D4]"
    ENDING_DONE = "commits that record [D3, D4]"
    CLEANING = "aborts transactions that older runs left open [D4]"
    ADDING = "adds all partitions to the transaction of mode single"
    PLANNED = "tasks may run"
    SKIPPED = "the version was written before"
    TORN = "an older run has lost rows"
    FAILED = "nothing was written"


class TaskState(Enum):
    """The state of a task in mode two-phase before its first record."""

    CHECKING = "asks whether its plan is still the newest [T2]"
    LOOKING = "looks for a free slot [T2]"
    CLAIMING = "asks for the slot's next epoch [T3]"
    CLAIMED = "may write"
    FAILED = "is not allowed to write"


class CommitState(Enum):
    """The state of a commit in mode two-phase."""

    CHECKING = "checks each transaction and its partitions [C2]"
    EXPLAINING = "asks whether a newer run is the reason why a check has failed"
    ADDING = "adds the log to the driver's transaction [C3]"
    WRITING = "writes the record DECIDED [C3]"
    LOOKING = "checks each transaction again, and reads the log up to the record [C3]"
    DECIDING = "commits the record, which decides the run [C3]"
    READING = "checks whether the log has a committed record with the state DECIDED"
    ASKING_AGAIN = "commits the record again, at a coordinator that is looked up again"
    ENDING = "commits each transaction [C4, C5]"
    LISTING = "lists transactions that other attempts left open [C6]"
    DESCRIBING = "asks for the producer epoch of each listed transaction [C6]"
    ADDING_DONE = "adds the log to the transaction of the record DONE [C6]"
    WRITING_DONE = "writes the record DONE [C6]"
    ENDING_DONE = "commits the record DONE [C6]"
    CLEANING = "aborts transactions that other attempts left open [C6]"
    DONE = "all rows are visible"
    TORN = "some rows are lost"
    UNFINISHED = "the decision to commit is made, but the next run has to complete the commit"
    UNDECIDED = "the next run finds out whether the decision to commit was made"
    FAILED = "the decision to commit was not made"


class AbortState(Enum):
    """The state of an abort in mode two-phase."""

    LISTING = "lists open transactions [A0]"
    DESCRIBING = "asks for the producer epoch of each listed transaction [A0]"
    PROVING = "aborts the driver's transaction, so that the run cannot be decided later [A1]"
    ASKING = "asks for the state of the driver's transaction: committed, or without a partition"
    READING = "checks whether the log has a committed record with the state DECIDED"
    CLEANING = "aborts each transaction [A2]"
    ABORTED = "nothing is visible"
    DECIDED = "the decision to commit the run was made, so the run has to be committed"
    SUPERSEDED = "a newer run of the owner has begun"
    FAILED = "not all transactions could be ended"


class SingleState(Enum):
    """The state of a commit or an abort in mode single."""

    CHECKING = "checks the transaction and its partitions"
    EXPLAINING = "asks whether a newer run is the reason why a check has failed"
    WRITING = "writes the record into the transaction of the rows"
    PROBING = "writes the record again, which the broker has to report as a duplicate"
    LOOKING = "reads the log again, up to the record"
    DECIDING = "commits the transaction: the decision"
    READING = "checks whether the record is committed"
    ASKING_AGAIN = "commits again, at a coordinator that is looked up again"
    RENEWING = "asks for the next epoch, so that brokers reject late requests"
    ABORTING = "aborts the transaction"
    DONE = "all rows are visible"
    UNDECIDED = "the next run finds out whether it is committed"
    ABORTED = "nothing is visible"
    SUPERSEDED = "a newer run uses the transactional id, or the transaction timed out"
    FAILED = "no row is visible, and the transaction times out if it was not aborted"


class ResolveState(Enum):
    """The state of the commit of one decided transaction."""

    ENDING = "commits it"
    ASKING_AGAIN = "commits it again, at a coordinator that is looked up again"
    DESCRIBING = "asks the coordinator for its state"
    READING_MARKER = "reads its marker in one of its partitions"
    COMMITTED = "its rows are visible"
    ABORTED = "its rows are lost"
    UNKNOWN = "its result was not known in time"


class RecoveryState(Enum):
    """The state of a recovery that an administrator runs for the transactions of one owner.

    The owner's job may be running at the same time.
    """

    DESCRIBING = "asks for the state of each transaction that is open or has to be committed"
    READING = "reads the owner's record again, because the decision has no marker yet"
    READING_MARKERS = (
        "reads how the transactions of a committed run have ended, and changes nothing"
    )
    ENDING = "commits the transactions that have to be committed"
    RECOVERED = "the open, committed and lost transactions are known"
    FAILED = "the state could not be read from the brokers"


_S = TypeVar("_S", bound=Enum)
_P, _T, _C, _A = PlanState, TaskState, CommitState, AbortState
_1, _R, _O = SingleState, ResolveState, RecoveryState

PLAN: Final[Mapping[PlanState, frozenset[PlanState]]] = {
    _P.PEEKING: frozenset({_P.LISTING, _P.SKIPPED, _P.FAILED}),
    _P.LISTING: frozenset({_P.DESCRIBING, _P.FENCING, _P.READING}),
    _P.DESCRIBING: frozenset({_P.FENCING, _P.READING}),
    _P.FENCING: frozenset({_P.READING, _P.FAILED}),
    _P.READING: frozenset(
        {
            _P.LISTING,
            _P.ENDING,
            _P.ADDING_LOG,
            _P.WRITING_DONE,
            _P.CLEANING,
            _P.ADDING,
            _P.PLANNED,
            _P.SKIPPED,
            _P.FAILED,
        }
    ),
    _P.ENDING: frozenset(
        {_P.LISTING, _P.ADDING_LOG, _P.WRITING_DONE, _P.CLEANING, _P.TORN, _P.FAILED}
    ),
    _P.ADDING_LOG: frozenset({_P.WRITING_DONE, _P.FAILED}),
    _P.WRITING_DONE: frozenset({_P.LOOKING, _P.FAILED}),
    _P.LOOKING: frozenset({_P.ENDING_DONE, _P.FAILED}),
    _P.ENDING_DONE: frozenset({_P.FENCING, _P.CLEANING, _P.PLANNED, _P.SKIPPED, _P.FAILED}),
    _P.CLEANING: frozenset({_P.ADDING, _P.PLANNED, _P.SKIPPED, _P.TORN, _P.FAILED}),
    _P.ADDING: frozenset({_P.PLANNED, _P.FAILED}),
}
TASK: Final[Mapping[TaskState, frozenset[TaskState]]] = {
    _T.CHECKING: frozenset({_T.LOOKING, _T.FAILED}),
    _T.LOOKING: frozenset({_T.CLAIMING, _T.FAILED}),
    _T.CLAIMING: frozenset({_T.LOOKING, _T.CLAIMED, _T.FAILED}),
}
COMMIT: Final[Mapping[CommitState, frozenset[CommitState]]] = {
    _C.CHECKING: frozenset({_C.ADDING, _C.WRITING, _C.EXPLAINING, _C.FAILED}),
    _C.EXPLAINING: frozenset({_C.FAILED}),
    _C.ADDING: frozenset({_C.WRITING, _C.FAILED}),
    _C.WRITING: frozenset({_C.LOOKING, _C.FAILED}),
    _C.LOOKING: frozenset({_C.DECIDING, _C.EXPLAINING, _C.FAILED}),
    _C.DECIDING: frozenset({_C.ENDING, _C.READING, _C.DONE, _C.UNDECIDED}),
    _C.READING: frozenset({_C.ENDING, _C.ASKING_AGAIN, _C.DONE, _C.UNDECIDED, _C.FAILED}),
    _C.ASKING_AGAIN: frozenset({_C.ENDING, _C.READING, _C.DONE, _C.UNDECIDED}),
    _C.ENDING: frozenset({_C.LISTING, _C.TORN, _C.UNFINISHED}),
    _C.LISTING: frozenset({_C.DESCRIBING, _C.ADDING_DONE, _C.WRITING_DONE}),
    _C.DESCRIBING: frozenset({_C.ADDING_DONE, _C.WRITING_DONE}),
    _C.ADDING_DONE: frozenset({_C.WRITING_DONE, _C.DONE}),
    _C.WRITING_DONE: frozenset({_C.ENDING_DONE, _C.DONE}),
    _C.ENDING_DONE: frozenset({_C.CLEANING, _C.DONE}),
    _C.CLEANING: frozenset({_C.DONE}),
}
ABORT: Final[Mapping[AbortState, frozenset[AbortState]]] = {
    _A.LISTING: frozenset({_A.DESCRIBING, _A.PROVING, _A.ABORTED}),
    _A.DESCRIBING: frozenset({_A.PROVING, _A.ABORTED}),
    _A.PROVING: frozenset(
        {
            _A.ASKING,
            _A.READING,
            _A.CLEANING,
            _A.LISTING,
            _A.ABORTED,
            _A.SUPERSEDED,
            _A.FAILED,
        }
    ),
    _A.ASKING: frozenset({_A.PROVING, _A.READING, _A.FAILED}),
    _A.READING: frozenset(
        {_A.DECIDED, _A.CLEANING, _A.LISTING, _A.ABORTED, _A.SUPERSEDED, _A.FAILED}
    ),
    _A.CLEANING: frozenset({_A.LISTING, _A.ABORTED}),
}
SINGLE: Final[Mapping[SingleState, frozenset[SingleState]]] = {
    _1.CHECKING: frozenset({_1.WRITING, _1.EXPLAINING, _1.ABORTING}),
    _1.EXPLAINING: frozenset({_1.ABORTING}),
    _1.WRITING: frozenset({_1.PROBING, _1.LOOKING, _1.ABORTING}),
    _1.PROBING: frozenset({_1.LOOKING, _1.ABORTING}),
    _1.LOOKING: frozenset({_1.DECIDING, _1.EXPLAINING, _1.ABORTING}),
    _1.DECIDING: frozenset({_1.RENEWING, _1.READING, _1.DONE, _1.UNDECIDED}),
    _1.READING: frozenset({_1.ASKING_AGAIN, _1.DONE, _1.UNDECIDED, _1.FAILED}),
    _1.ASKING_AGAIN: frozenset({_1.RENEWING, _1.READING, _1.DONE, _1.UNDECIDED}),
    _1.RENEWING: frozenset({_1.DONE}),
    _1.ABORTING: frozenset({_1.ABORTED, _1.SUPERSEDED, _1.DONE, _1.FAILED}),
}
RESOLVE: Final[Mapping[ResolveState, frozenset[ResolveState]]] = {
    _R.ENDING: frozenset({_R.COMMITTED, _R.ASKING_AGAIN, _R.UNKNOWN}),
    _R.ASKING_AGAIN: frozenset({_R.COMMITTED, _R.DESCRIBING, _R.UNKNOWN}),
    _R.DESCRIBING: frozenset({_R.COMMITTED, _R.READING_MARKER}),
    _R.READING_MARKER: frozenset({_R.COMMITTED, _R.ABORTED, _R.ENDING, _R.UNKNOWN}),
}
RECOVERY: Final[Mapping[RecoveryState, frozenset[RecoveryState]]] = {
    _O.DESCRIBING: frozenset({_O.READING, _O.READING_MARKERS, _O.ENDING, _O.RECOVERED, _O.FAILED}),
    _O.READING: frozenset({_O.DESCRIBING, _O.READING_MARKERS, _O.ENDING, _O.RECOVERED, _O.FAILED}),
    _O.READING_MARKERS: frozenset({_O.RECOVERED}),
    _O.ENDING: frozenset({_O.DESCRIBING, _O.RECOVERED}),
}


def moved(table: Mapping[_S, frozenset[_S]], source: _S, target: _S) -> _S:
    """Return `target`. Raise IllegalStateException if the table has no such transition."""
    if target not in table.get(source, frozenset()):
        message = f"the state machine has no transition from {source.name} to {target.name}"
        raise IllegalStateException(message)
    return target
