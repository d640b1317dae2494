"""The meaning of a broker's error code for exactly once: one pure function, `verdict`.

EndTxn is the difficult request. The same code can mean that the transaction was committed, that it
was aborted, or that a newer run uses the transactional id. In the response to EndTxn(commit),
PRODUCER_FENCED, INVALID_TXN_STATE, INVALID_PRODUCER_EPOCH and INVALID_PRODUCER_ID_MAPPING prove
nothing, so the log has to be read (by `resolve`, or by the state machine of the commit). In the
response to EndTxn(abort), the meaning depends on the EndTxn version that was sent. Up to version 4,
a coordinator returns the same code whether the transaction timed out or the producer was fenced. It
also does not distinguish a committed transaction from a transaction without partitions.

For all other requests, the meaning of a code does not depend on the version.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import RefreshRetriableException, error_code

END_TXN_1: Final = 4
END_TXN_2: Final = 5


class Call(Enum):
    """A kind of request to a broker; the value is the API's name.

    EndTxn counts as two kinds, commit and abort. Fetch counts as two kinds, too: it reads the
    commit log, or it looks for a marker.
    """

    LIST_TRANSACTIONS = "ListTransactions"
    DESCRIBE_TRANSACTIONS = "DescribeTransactions"
    INIT_PRODUCER_ID = "InitProducerId"
    ADD_PARTITIONS_TO_TXN = "AddPartitionsToTxn"
    PRODUCE = "Produce"
    COMMIT = "EndTxn (commit)"
    ABORT = "EndTxn (abort)"
    DESCRIBE_PRODUCERS = "DescribeProducers"
    READ_LOG = "Fetch"
    READ_MARKER = "Fetch (marker)"


class Verdict(Enum):
    """The meaning of the error code in a response."""

    DONE = "it is done"
    RETRY = "ask again after a pause"
    LOOK_UP = "ask again after looking up the coordinator or the leader again"
    RESOLVE = "committed or aborted: find out"
    COMMITTED = "the transaction was committed, so it cannot be aborted"
    COMMITTED_OR_EMPTY = "either the transaction was committed, or it had no partition"
    FENCED = "a newer run uses the transactional id"
    FENCED_OR_ABORTED = "a newer run uses the id, or the transaction was aborted by its timeout"
    NOT_FOUND = "brokers do not have it"
    FATAL = "asking again does not help"


_V = Verdict
# In responses to most requests, these codes mean that another process uses the transactional id.
NEWER_EPOCH: Final = frozenset(
    {
        codes.INVALID_PRODUCER_EPOCH,
        codes.INVALID_PRODUCER_ID_MAPPING,
        codes.PRODUCER_FENCED,
    }
)
_FENCED: Final[Mapping[int, Verdict]] = dict.fromkeys(NEWER_EPOCH, _V.FENCED)
# The general rule is to retry after a retriable code and to fail after any other code. These are
# the exceptions to the rule, by request.
_RULES: Final[Mapping[Call, Mapping[int, Verdict]]] = {
    Call.DESCRIBE_TRANSACTIONS: {codes.TRANSACTIONAL_ID_NOT_FOUND: _V.NOT_FOUND},
    Call.ADD_PARTITIONS_TO_TXN: _FENCED,
    # A leader passes on the coordinator's error. So the leader need not be looked up again.
    Call.PRODUCE: {
        **_FENCED,
        codes.COORDINATOR_NOT_AVAILABLE: _V.RETRY,
        codes.NOT_COORDINATOR: _V.RETRY,
        codes.DUPLICATE_SEQUENCE_NUMBER: _V.DONE,
        # The transaction has ended. Produce 9 and 10 return the first code, later versions the
        # second.
        codes.INVALID_TXN_STATE: _V.FENCED,
        codes.TRANSACTION_ABORTABLE: _V.FENCED,
    },
    Call.COMMIT: {
        codes.INVALID_PRODUCER_EPOCH: _V.RESOLVE,
        codes.INVALID_TXN_STATE: _V.RESOLVE,
        codes.INVALID_PRODUCER_ID_MAPPING: _V.RESOLVE,
        codes.PRODUCER_FENCED: _V.RESOLVE,
        codes.TRANSACTION_ABORTABLE: _V.RESOLVE,
        codes.UNKNOWN_SERVER_ERROR: _V.RESOLVE,
    },
    Call.ABORT: {**_FENCED, codes.INVALID_TXN_STATE: _V.COMMITTED},
    # The state machine decides whether to read a damaged batch again.
    Call.READ_MARKER: {codes.CORRUPT_MESSAGE: _V.FATAL},
}
_ABORT_1: Final[Mapping[int, Verdict]] = {
    codes.INVALID_TXN_STATE: _V.COMMITTED_OR_EMPTY,
    codes.PRODUCER_FENCED: _V.FENCED_OR_ABORTED,
}


def verdict(call: Call, error: int, version: int = END_TXN_2) -> Verdict:
    """Return what the code `error` means as the response to `call`.

    version: the version of the EndTxn request that was sent. NETWORK_EXCEPTION and
    REQUEST_TIMED_OUT also stand for a request that got no response, though a broker may have
    processed it.
    """
    if error == codes.NONE:
        return Verdict.DONE
    known = _RULES.get(call, {}).get(error)
    if call is Call.ABORT and version <= END_TXN_1:
        known = _ABORT_1.get(error, known)
    if known is not None:
        return known
    row = error_code(error)
    if issubclass(row.kind, RefreshRetriableException):
        return Verdict.LOOK_UP
    return Verdict.RETRY if row.retriable else Verdict.FATAL
