"""The states of a transactional producer, as one table (TransactionManager.State in Java).

Only `TransactionManager` changes the state, and only to a state that the table allows. If a call
requires a different transition, IllegalStateException is raised, and nothing changes. If a broker's
response would cause such a transition, the state becomes FATAL_ERROR.

::

    init_transactions   UNINITIALIZED -> INITIALIZING -> READY
    a transaction       READY -> IN_TRANSACTION -> COMMITTING or ABORTING -> READY
    after an error      -> ABORTABLE_ERROR -> ABORTING -> READY, through INITIALIZING if the
                        client must bump the epoch (transaction.version 1, KIP-360)
    no way to continue  -> FATAL_ERROR

If InitProducerId is not authorised, ABORTABLE_ERROR becomes UNINITIALIZED, because there is nothing
to abort. init_transactions may then be called again. A commit may time out or be interrupted before
EndTxn is sent. If the producer is then closed, COMMITTING becomes ABORTABLE_ERROR, and the producer
aborts the transaction. The diagram in docs/reference/transactions.md is generated from the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class TransactionState(Enum):
    """The state of a transactional producer; the value describes it to a user."""

    UNINITIALIZED = "init_transactions has to be called"
    INITIALIZING = "a producer id or a new epoch is being requested"
    READY = "a transaction can begin"
    IN_TRANSACTION = "records and offsets can be sent"
    COMMITTING = "commit_transaction is under way"
    ABORTING = "abort_transaction is under way"
    ABORTABLE_ERROR = "the transaction can only be aborted"
    FATAL_ERROR = "the producer can only be closed"


class Outcome(Enum):
    """The outcome of a transaction; the value describes it to a user.

    UNKNOWN: EndTxn was sent to commit it, and no response shows whether it was committed.
    """

    NOT_COMMITTED = "its open transaction was not committed"
    COMMITTED = "its transaction was committed"
    UNKNOWN = "it is not known whether its transaction was committed"


_S = TransactionState
TRANSITIONS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZING, _S.FATAL_ERROR}),
    _S.INITIALIZING: frozenset({_S.READY, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    _S.READY: frozenset({_S.IN_TRANSACTION, _S.FATAL_ERROR}),
    _S.IN_TRANSACTION: frozenset({_S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    _S.COMMITTING: frozenset({_S.READY, _S.INITIALIZING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    _S.ABORTING: frozenset({_S.READY, _S.INITIALIZING, _S.FATAL_ERROR}),
    _S.ABORTABLE_ERROR: frozenset(
        {_S.ABORTING, _S.ABORTABLE_ERROR, _S.UNINITIALIZED, _S.FATAL_ERROR}
    ),
    _S.FATAL_ERROR: frozenset({_S.FATAL_ERROR}),
}
