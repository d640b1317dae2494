"""What to do about an error code in a response: one pure function.

The rules are those of Sender and TransactionManager of the Java client (4.2). `error_action` looks
the code up in the rules of the request. If there is no rule, a retriable code is retried, and any
other code ends the batch, the transaction or the producer, depending on the kind of producer. The
function only names the action. Its callers perform it, because only they know how often a batch was
sent, and which sequence number a broker should expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import error_code


class ProducerKind(Enum):
    """The guarantees of a producer, which determine the effect of an error."""

    PLAIN = "neither idempotent nor transactional"
    IDEMPOTENT = "idempotent"
    TRANSACTIONAL = "transactional"


class Call(Enum):
    """A kind of request; the value is the API's name. EndTxn counts as two: commit and abort."""

    PRODUCE = "Produce"
    INIT_PRODUCER_ID = "InitProducerId"
    FIND_COORDINATOR = "FindCoordinator"
    ADD_PARTITIONS_TO_TXN = "AddPartitionsToTxn"
    ADD_OFFSETS_TO_TXN = "AddOffsetsToTxn"
    TXN_OFFSET_COMMIT = "TxnOffsetCommit"
    COMMIT = "EndTxn (commit)"
    ABORT = "EndTxn (abort)"


class Action(Enum):
    """What to do after a response."""

    SUCCEED = "it is done"
    RETRY = "send the request again after a wait, as far as retries and time limits allow"
    LOOK_UP = "look up the coordinator again, and send the request again after a wait"
    SPLIT = "send a batch of several records again as smaller batches; fail a batch of one record"
    CHECK_SEQUENCE = "the partition's sequences decide whether to send the batch again"
    FAIL = "fail the batch; the producer continues"
    ABORTABLE = "the transaction can only be aborted; after that, the producer continues"
    ABORTABLE_IF_BUMP = "abortable if the epoch can be bumped (KIP-360), else fatal"
    FATAL = "the producer cannot continue"
    FENCED = "the producer cannot continue: a newer one has its transactional id"


_PRODUCE: Final[Mapping[int, Action]] = {
    codes.MESSAGE_TOO_LARGE: Action.SPLIT,
}
_PRODUCE_WITH_ID: Final[Mapping[int, Action]] = {
    codes.CLUSTER_AUTHORIZATION_FAILED: Action.FATAL,
    codes.UNSUPPORTED_VERSION: Action.FATAL,
    codes.OUT_OF_ORDER_SEQUENCE_NUMBER: Action.CHECK_SEQUENCE,
    codes.DUPLICATE_SEQUENCE_NUMBER: Action.SUCCEED,
    codes.INVALID_PRODUCER_ID_MAPPING: Action.FATAL,
    codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Action.FATAL,
    codes.UNKNOWN_PRODUCER_ID: Action.CHECK_SEQUENCE,
    codes.PRODUCER_FENCED: Action.FATAL,
}
_LOST_COORDINATOR: Final[Mapping[int, Action]] = {
    codes.COORDINATOR_NOT_AVAILABLE: Action.LOOK_UP,
    codes.NOT_COORDINATOR: Action.LOOK_UP,
}
_IN_TRANSACTION: Final[Mapping[int, Action]] = {
    **_LOST_COORDINATOR,
    codes.INVALID_PRODUCER_EPOCH: Action.FENCED,
    codes.PRODUCER_FENCED: Action.FENCED,
    codes.UNKNOWN_PRODUCER_ID: Action.ABORTABLE_IF_BUMP,
    codes.TRANSACTION_ABORTABLE: Action.ABORTABLE,
}
_GROUP_ERRORS: Final[Mapping[int, Action]] = {
    codes.ILLEGAL_GENERATION: Action.ABORTABLE,
    codes.UNKNOWN_MEMBER_ID: Action.ABORTABLE,
    codes.GROUP_AUTHORIZATION_FAILED: Action.ABORTABLE,
    codes.FENCED_INSTANCE_ID: Action.ABORTABLE,
    codes.TRANSACTION_ABORTABLE: Action.ABORTABLE,
}
# The codes with a rule of their own, by request. Other codes are retried if they are retriable, and
# fail otherwise.
_RULES: Final[Mapping[Call, Mapping[int, Action]]] = {
    Call.INIT_PRODUCER_ID: {
        **_LOST_COORDINATOR,
        codes.CLUSTER_AUTHORIZATION_FAILED: Action.ABORTABLE,
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Action.ABORTABLE,
        codes.INVALID_PRODUCER_EPOCH: Action.FENCED,
        codes.PRODUCER_FENCED: Action.FENCED,
        codes.TRANSACTION_ABORTABLE: Action.ABORTABLE,
    },
    Call.FIND_COORDINATOR: {
        codes.GROUP_AUTHORIZATION_FAILED: Action.ABORTABLE,
        codes.TRANSACTION_ABORTABLE: Action.ABORTABLE,
    },
    Call.ADD_PARTITIONS_TO_TXN: {
        **_IN_TRANSACTION,
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Action.FATAL,
        codes.INVALID_TXN_STATE: Action.FATAL,
        codes.INVALID_PRODUCER_ID_MAPPING: Action.FATAL,
    },
    Call.ADD_OFFSETS_TO_TXN: {
        **_IN_TRANSACTION,
        codes.GROUP_AUTHORIZATION_FAILED: Action.ABORTABLE,
    },
    Call.TXN_OFFSET_COMMIT: {
        **_LOST_COORDINATOR,
        **_GROUP_ERRORS,
        codes.REQUEST_TIMED_OUT: Action.LOOK_UP,
        codes.INVALID_PRODUCER_EPOCH: Action.FENCED,
        codes.PRODUCER_FENCED: Action.FENCED,
    },
    Call.COMMIT: _IN_TRANSACTION,
    Call.ABORT: {**_IN_TRANSACTION, codes.TRANSACTION_ABORTABLE: Action.FATAL},
}


def error_action(code: int, call: Call, kind: ProducerKind) -> Action:
    """Return what to do about the error `code` in the response to `call`.

    NETWORK_EXCEPTION and REQUEST_TIMED_OUT are also used for a Produce or InitProducerId request
    whose connection broke, or that got no response.
    """
    if code == codes.NONE:
        return Action.SUCCEED
    if call is Call.PRODUCE:
        return _produce_action(code, kind)
    if kind is ProducerKind.IDEMPOTENT:
        # An idempotent producer requests its id from any broker, and has no transaction to abort.
        return Action.RETRY if error_code(code).retriable else Action.FATAL
    known = _RULES[call].get(code)
    if known is not None:
        return known
    if error_code(code).retriable:
        return Action.RETRY
    return Action.ABORTABLE if call is Call.ADD_PARTITIONS_TO_TXN else Action.FATAL


def _produce_action(code: int, kind: ProducerKind) -> Action:
    known = _PRODUCE.get(code)
    if known is None and kind is not ProducerKind.PLAIN:
        known = _PRODUCE_WITH_ID.get(code)
    if known is not None:
        return known
    if error_code(code).retriable:
        return Action.RETRY
    return Action.ABORTABLE if kind is ProducerKind.TRANSACTIONAL else Action.FAIL
