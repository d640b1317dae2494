"""The states of a batch, as one table: a state and an event give the next state and an action.

`ProducerBatch` has a method for each event. The method returns the action, and its caller performs
the action, because `ProducerBatch` does not know the queues, the sequences and the memory. An event
that is not in the table for a state is a bug: it raises IllegalStateException and changes nothing.
The diagram in docs/contributing/states.md is generated from the table.

::

    append          seal           send            succeed
    ┌────┐
    └─> OPEN ────────────> SEALED ────────> IN_FLIGHT ────────────> SUCCEEDED
         │                 │    ^  retry     │ │ │ │ split
         │ abandon         │    └────────────┘ │ │ └──────────────> SPLIT
         │                 │ abandon           │ │ fail
         └─────────────────┴───────────────────│─┴────────────────> FAILED
                                       abandon └──> ABANDONED ─late──^

In the state ABANDONED, the error was reported to the user, but the request is still in flight and a
broker may write the batch. So the batch keeps its sequence until the response arrives or the
connection breaks. It also keeps its memory, because the request may not be completely sent yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple


class BatchState(Enum):
    """A state of a batch."""

    # object.__hash__ is written in C. Enum.__hash__ is written in Python, and would be called for
    # each event of each batch.
    __hash__ = object.__hash__

    OPEN = "takes records"
    SEALED = "closed, waiting to be sent or sent again"
    IN_FLIGHT = "sent, waiting for the response"
    SUCCEEDED = "acknowledged"
    FAILED = "given up"
    ABANDONED = "given up while a broker may still write it"
    SPLIT = "too large, replaced by smaller batches"


class BatchEvent(Enum):
    """An event that changes the state of a batch."""

    __hash__ = object.__hash__

    APPEND = "records are added"
    SEAL = "it is full, or has lingered"
    SEND = "it is put into a request"
    RETRY = "the attempt failed, and a retry follows"
    SUCCEED = "a broker has written it"
    FAIL = "the attempt failed, and no retry follows"
    ABANDON = "delivery.timeout.ms has passed, or the producer has ended"
    LATE = "the response has come, or none can come any more"
    SPLIT = "a broker found it too large"


class BatchAction(Enum):
    """What the caller must do with queues, sequences, memory and waiting callers after an event."""

    KEEP = "nothing else changes"
    REENQUEUE = "it goes back to the head of its queue"
    REPLACE = "smaller batches replace it; its memory is released"
    END = "its result is reported; its sequence and memory are released"
    DEQUEUE = "it leaves its queue; the rest is the same as END"
    REPORT = "its result is reported; its sequence and memory stay reserved"
    FREE = "its sequence and memory are released"


class Transition(NamedTuple):
    """The next state after an event, and the action to perform."""

    state: BatchState
    action: BatchAction


_S, _E, _A = BatchState, BatchEvent, BatchAction
# An event that is not in the table for a state is a bug of the caller.
EVENTS: Final[Mapping[BatchState, Mapping[BatchEvent, Transition]]] = {
    _S.OPEN: {
        _E.APPEND: Transition(_S.OPEN, _A.KEEP),
        _E.SEAL: Transition(_S.SEALED, _A.KEEP),
        _E.ABANDON: Transition(_S.FAILED, _A.DEQUEUE),
    },
    _S.SEALED: {
        _E.SEND: Transition(_S.IN_FLIGHT, _A.KEEP),
        _E.ABANDON: Transition(_S.FAILED, _A.DEQUEUE),
    },
    _S.IN_FLIGHT: {
        _E.RETRY: Transition(_S.SEALED, _A.REENQUEUE),
        _E.SUCCEED: Transition(_S.SUCCEEDED, _A.END),
        _E.FAIL: Transition(_S.FAILED, _A.END),
        _E.ABANDON: Transition(_S.ABANDONED, _A.REPORT),
        _E.SPLIT: Transition(_S.SPLIT, _A.REPLACE),
    },
    _S.ABANDONED: {
        _E.LATE: Transition(_S.FAILED, _A.FREE),
    },
    _S.SUCCEEDED: {},
    _S.FAILED: {},
    _S.SPLIT: {},
}
DONE: Final = frozenset((_S.SUCCEEDED, _S.FAILED, _S.ABANDONED, _S.SPLIT))
