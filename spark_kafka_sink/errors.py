"""Every exception the package raises on purpose, as one tree.

Class names are the Java client's if it has the same exception, so that Kafka users can look them
up. Each exception has its subject (topic, partition, node, API, error code, attempts, row of the
Arrow batch) as attributes. The message is one sentence or two: what was found, what is expected,
what to do.

``KafkaException`` is the root. ``ConfigException`` and ``DataException`` mean that the caller's
input is wrong; ``ApiException`` and its subclasses, that a broker answered with an error or not at
all; ``ProtocolError``, that the bytes of a peer do not follow Kafka's protocol.

The base class of an ApiException says how to recover, as in the Java client (KIP-1050):
``RetriableException``: retry; ``RefreshRetriableException``: retry after leaders or coordinators
were looked up again; ``TransactionAbortableException``: abort the transaction;
``ApplicationRecoverableException``: close the producer and make a new one;
``InvalidConfigurationException``: change a setting, a permission or the data.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple, Self

from spark_kafka_sink import error_codes
from spark_kafka_sink.error_codes import ERROR_CODES, ErrorCode, error_code

_MOST_LISTED: Final = 10


def listed(names: Iterable[str]) -> str:
    """Return names for a message: the first ten, then the number of the others."""
    every = list(names)
    more = len(every) - _MOST_LISTED
    return ", ".join(every[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


# The name of an option in messages: as in a configuration, or as its user writes it.
_option_name: Final[ContextVar[Callable[[str], str]]] = ContextVar("option_name", default=str)


@contextmanager
def name_options(name: Callable[[str], str]) -> Iterator[None]:
    """Name options in the messages of this thread by `name`, which returns the name to show.

    The threads of a producer that is made in this context do so as well.
    """
    before = _option_name.set(name)
    try:
        yield
    finally:
        _option_name.reset(before)


def as_options_are_named_here(function: Callable[[], None]) -> Callable[[], None]:
    """Return `function` for another thread, with this thread's names of options in messages."""
    name = _option_name.get()

    def call() -> None:
        with name_options(name):
            function()

    return call


class Option(NamedTuple):
    """An option in a message, with its value if there is one: ``linger.ms`` or ``linger.ms=5``."""

    name: str
    value: object = None

    def __str__(self) -> str:
        name = _option_name.get()(self.name)
        return name if self.value is None else f"{name}={self.value}"


def message_of(error: BaseException) -> str:
    """Return what an exception says; one of the user's may raise when it is asked."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - its class still says something
        return "<its __str__ raised>"


class KafkaException(Exception):
    """The root of all exceptions.

    row: the number of the row in the Arrow batch; place: its name in the text, as ``row 7 of task
    2``. If there is a row, the text of the exception begins with it.
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        node_id: int | None = None,
        api: str | None = None,
        attempts: int | None = None,
        row: int | None = None,
        place: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.topic = topic
        self.partition = partition
        self.node_id = node_id
        self.api = api
        self.attempts = attempts
        self.row = row
        self.place = place

    def __str__(self) -> str:
        if self.row is None:
            return self.message
        return f"{self.place or f'row {self.row} of the Arrow batch'}: {self.message}"

    def with_message(self, message: str) -> Self:
        """Return a copy with another message."""
        other = copy.copy(self)
        other.message = message
        other.args = (message,)
        other.__cause__ = self.__cause__
        return other


class ConfigException(KafkaException):
    """An option has a name or a value that cannot be used; nothing was sent."""


class DataException(KafkaException):
    """A column or a row cannot become a Kafka record."""


class SerializationException(KafkaException):
    """A serializer cannot turn a key or a value into bytes."""


class ProtocolError(KafkaException):
    """Bytes from a peer are not what Kafka's protocol says."""


class IllegalStateException(KafkaException):
    """The object's state does not allow the call, such as a send after close."""


class IllegalArgumentException(KafkaException):
    """An argument is never valid, such as a negative time limit."""


class ApiException(KafkaException):
    """A broker answered with an error, or did not answer; `code` is its error code."""

    code: int = error_codes.UNKNOWN_SERVER_ERROR


class RetriableException(ApiException):
    """A retry may help; the retries that the configuration allows were made."""


class RefreshRetriableException(RetriableException):
    """A retry may help after leaders or coordinators were looked up again."""


class InvalidMetadataException(RefreshRetriableException):
    """The client's view of the cluster was stale."""


class ApplicationRecoverableException(ApiException):
    """The producer cannot go on: close it and make a new one."""


class InvalidConfigurationException(ApiException):
    """Retries fail until a setting, a permission or the data is changed."""


class AuthorizationException(InvalidConfigurationException):
    """The client may not do this."""


class AuthenticationException(InvalidConfigurationException):
    """Client and broker could not authenticate each other."""


class SaslAuthenticationException(AuthenticationException):
    """A SASL login failed: the broker refused it, or could not prove its own identity."""

    code = error_codes.SASL_AUTHENTICATION_FAILED


class SslAuthenticationException(AuthenticationException):
    """A TLS handshake failed: a certificate was refused, or there is no common cipher suite."""


class UnsupportedSaslMechanismException(AuthenticationException):
    """The broker's listener does not support the SASL mechanism."""

    code = error_codes.UNSUPPORTED_SASL_MECHANISM


class IllegalSaslStateException(AuthenticationException):
    """The broker did not expect a SASL request."""

    code = error_codes.ILLEGAL_SASL_STATE


class TimeoutException(RetriableException):
    """A time limit of the configuration has expired; the message names it."""


class BufferExhaustedException(TimeoutException):
    """buffer.memory stayed full for max.block.ms."""


class NetworkException(InvalidMetadataException):
    """A connection broke before the response came."""


class UnknownTopicOrPartitionException(InvalidMetadataException):
    """The topic or the partition does not exist."""


class LeaderNotAvailableException(InvalidMetadataException):
    """The partition has no leader now."""


class NotLeaderOrFollowerException(InvalidMetadataException):
    """The broker does not lead the partition."""


class CoordinatorNotAvailableException(RefreshRetriableException):
    """The coordinator cannot be reached, or does not exist yet."""


class NotCoordinatorException(RefreshRetriableException):
    """The broker does not coordinate the transaction or the group."""


class NotEnoughReplicasException(RetriableException):
    """Fewer in-sync replicas than min.insync.replicas; the batch was refused."""


class NotEnoughReplicasAfterAppendException(RetriableException):
    """The batch was written to fewer replicas than min.insync.replicas."""


class CorruptRecordException(RetriableException):
    """The broker found a batch's checksum wrong."""


class OffsetOutOfRangeException(ApiException):
    """The partition's log does not have the offset, or no longer has it."""


class RecordTooLargeException(ApiException):
    """A record or a batch is over a size limit; the message names the limit."""


class RecordBatchTooLargeException(InvalidConfigurationException):
    """A batch is over the topic's segment size."""


class InvalidTopicException(InvalidConfigurationException):
    """The topic's name is not allowed."""


class TopicAuthorizationException(AuthorizationException):
    """The client may not write to the topic."""


class ClusterAuthorizationException(AuthorizationException):
    """The client may not do this on the cluster."""


class InvalidRequiredAcksException(InvalidConfigurationException):
    """The broker does not support the requested acks."""


class InvalidTimestampException(ApiException):
    """A timestamp is outside the range that the topic accepts."""


class UnsupportedVersionException(InvalidConfigurationException):
    """Client and broker have no version of an API in common."""


class UnsupportedForMessageFormatException(InvalidConfigurationException):
    """The topic's message format cannot hold the batch."""


class UnsupportedCompressionTypeException(ApiException):
    """The topic or the broker does not support the codec."""


class PolicyViolationException(ApiException):
    """A policy of the cluster refused the request."""


class InvalidRecordException(InvalidConfigurationException):
    """The broker's validation refused a record of the batch."""


class OutOfOrderSequenceException(ApiException):
    """The broker does not have the batch before this one."""


class UnknownProducerIdException(OutOfOrderSequenceException):
    """The broker does not know the producer id: retention may have removed its records."""


class InvalidProducerEpochException(ApplicationRecoverableException):
    """Another producer uses the id with a newer epoch."""


class ProducerFencedException(ApplicationRecoverableException):
    """A newer producer with the same transactional id has taken over."""


class TransactionAbortableException(ApiException):
    """The transaction cannot be committed; abort it and begin the next one."""


class TransactionAbortedException(ApiException):
    """The record was not sent because its transaction was aborted (KIP-654)."""


class InvalidTxnStateException(ApiException):
    """The transaction's state at its coordinator does not allow the request."""


class InvalidPidMappingException(ApplicationRecoverableException):
    """The coordinator does not know the transactional id, or has another producer id for it."""


class InvalidTxnTimeoutException(ApiException):
    """transaction.timeout.ms is longer than the brokers allow."""


class TransactionalIdAuthorizationException(AuthorizationException):
    """The client may not use the transactional id."""


class GroupAuthorizationException(AuthorizationException):
    """The client may not commit offsets of the consumer group."""


class IllegalGenerationException(ApplicationRecoverableException):
    """The consumer group has a newer generation."""


class UnknownMemberIdException(ApplicationRecoverableException):
    """The consumer group does not know the member."""


class FencedInstanceIdException(ApplicationRecoverableException):
    """A newer consumer with the same group.instance.id has taken over."""


class UnknownServerException(ApiException):
    """The broker failed in a way that no other code describes; see its log."""


class ReplicaNotAvailableException(InvalidMetadataException):
    """The broker has no replica of the partition."""


class CoordinatorLoadInProgressException(RetriableException):
    """The coordinator is still reading its state."""


class ConcurrentTransactionsException(RetriableException):
    """The previous transaction is still being completed."""


class KafkaStorageException(InvalidMetadataException):
    """The broker's disk failed."""


class ListenerNotFoundException(InvalidMetadataException):
    """The partition's leader does not have the listener of the request."""


class FencedLeaderEpochException(InvalidMetadataException):
    """The client's leader epoch is older than the broker's."""


class UnknownLeaderEpochException(RetriableException):
    """The client's leader epoch is newer than the broker's."""


class ThrottlingQuotaExceededException(RetriableException):
    """A quota was exceeded."""


class UnknownTopicIdException(InvalidMetadataException):
    """No topic has the id."""


class InconsistentTopicIdException(InvalidMetadataException):
    """The broker's log of the topic has another id than the request."""


class InvalidRequestException(ApiException):
    """The request is invalid for the broker, or cannot be encoded."""


class DuplicateSequenceException(ApiException):
    """The broker has the batch already."""


class OperationNotAttemptedException(ApiException):
    """This part of the request was not tried, because another part failed."""


class CommitFailedException(KafkaException):
    """The offsets of a consumer group were refused, because its membership has changed."""


_CLASSES: Final[dict[int, type[ApiException]]] = {
    -1: UnknownServerException,
    1: OffsetOutOfRangeException,
    2: CorruptRecordException,
    3: UnknownTopicOrPartitionException,
    5: LeaderNotAvailableException,
    6: NotLeaderOrFollowerException,
    7: TimeoutException,
    9: ReplicaNotAvailableException,
    10: RecordTooLargeException,
    13: NetworkException,
    14: CoordinatorLoadInProgressException,
    15: CoordinatorNotAvailableException,
    16: NotCoordinatorException,
    17: InvalidTopicException,
    18: RecordBatchTooLargeException,
    19: NotEnoughReplicasException,
    20: NotEnoughReplicasAfterAppendException,
    21: InvalidRequiredAcksException,
    22: IllegalGenerationException,
    25: UnknownMemberIdException,
    29: TopicAuthorizationException,
    30: GroupAuthorizationException,
    31: ClusterAuthorizationException,
    32: InvalidTimestampException,
    33: UnsupportedSaslMechanismException,
    34: IllegalSaslStateException,
    35: UnsupportedVersionException,
    38: InvalidConfigurationException,
    40: InvalidConfigurationException,
    42: InvalidRequestException,
    43: UnsupportedForMessageFormatException,
    44: PolicyViolationException,
    45: OutOfOrderSequenceException,
    46: DuplicateSequenceException,
    47: InvalidProducerEpochException,
    48: InvalidTxnStateException,
    49: InvalidPidMappingException,
    50: InvalidTxnTimeoutException,
    51: ConcurrentTransactionsException,
    53: TransactionalIdAuthorizationException,
    55: OperationNotAttemptedException,
    56: KafkaStorageException,
    58: SaslAuthenticationException,
    59: UnknownProducerIdException,
    65: AuthorizationException,
    72: ListenerNotFoundException,
    74: FencedLeaderEpochException,
    75: UnknownLeaderEpochException,
    76: UnsupportedCompressionTypeException,
    82: FencedInstanceIdException,
    87: InvalidRecordException,
    89: ThrottlingQuotaExceededException,
    90: ProducerFencedException,
    100: UnknownTopicIdException,
    103: InconsistentTopicIdException,
    120: TransactionAbortableException,
}


class _Advice(NamedTuple):
    """A sentence; {} in it is the option."""

    sentence: str
    option: str = ""


# Advice to a writer about an error code; advice to a reader: `consumer.list_offsets`.
_ADVICE: Final[Mapping[int, _Advice]] = {
    3: _Advice("create the topic"),
    10: _Advice("make the record smaller, compress it, or raise the topic's max.message.bytes"),
    17: _Advice("topic names have 1 to 249 of the characters a-z A-Z 0-9 . _ -"),
    18: _Advice("lower {}, or raise the topic's segment.bytes", "batch.size"),
    19: _Advice("fewer replicas are in sync than min.insync.replicas asks for"),
    20: _Advice("fewer replicas are in sync than min.insync.replicas asks for"),
    29: _Advice("grant WRITE and DESCRIBE on the topic to this client"),
    30: _Advice("grant READ on the consumer group to this client"),
    31: _Advice("grant IDEMPOTENT_WRITE on the cluster, or set {} to false", "enable.idempotence"),
    32: _Advice(
        "see the topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms"
    ),
    50: _Advice(
        "lower {}, or raise the brokers' transaction.max.timeout.ms", "transaction.timeout.ms"
    ),
    53: _Advice("grant WRITE and DESCRIBE on the transactional id to this client"),
    76: _Advice("choose another {}", "compression.type"),
    90: _Advice("each running producer needs a {} of its own", "transactional.id"),
    120: _Advice("abort the transaction"),
}


_INTERNAL: Final = "is internal to Kafka, and producers may not write to it: use another topic"


def advice(code: int, *, topic: str | None = None) -> str | None:
    """Return the advice to a writer about an error code, None if there is none.

    topic: the topic of the error.
    """
    is_about_name = code in (
        error_codes.INVALID_TOPIC_EXCEPTION,
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    )
    if is_about_name and topic in INTERNAL_TOPICS:
        return f"{topic} {_INTERNAL}"
    found = _ADVICE.get(code)
    return None if found is None else found.sentence.format(Option(found.option))


def topic_advice(code: int, topic: str) -> str | None:
    """Return `advice` on an error code of describing a topic."""
    return advice(code, topic=topic)


class Cause(NamedTuple):
    """An error that driver, tasks, producer and reader all report: with one class and one sentence.

    sentence: has {names} for details.
    """

    kind: type[ApiException]
    sentence: str

    def error(
        self,
        *,
        topic: str | None = None,
        partition: int | None = None,
        api: str | None = None,
        row: int | None = None,
        **known: object,
    ) -> ApiException:
        """Return the exception; known: the details of the sentence besides the topic."""
        message = self.sentence.format(topic=topic, **known)
        return self.kind(message, topic=topic, partition=partition, api=api, row=row)


# limit: of time or size, an option with its value; servers: likewise; trouble: the errors of
# connections, in brackets; found: the answer of brokers; size: exact, or "up to" an upper bound;
# hint: what to do.
NO_BROKER: Final = Cause(
    TimeoutException, "no broker has answered within {limit}; check {servers}{trouble}"
)
NO_TOPIC: Final = Cause(
    TimeoutException, "Topic {topic} not present in metadata after {limit}: {found}"
)
TOO_LARGE: Final = Cause(
    RecordTooLargeException,
    "the record is {size} bytes when serialized, more than {limit}; {hint}",
)
# limit: the topic's setting, with its value where that is known.
TOO_LARGE_FOR_TOPIC: Final = Cause(
    RecordTooLargeException,
    "{record} is {size} bytes when serialized, more than topic {topic} takes ({limit}); "
    + _ADVICE[error_codes.MESSAGE_TOO_LARGE].sentence,
)
# The hint for a record that no request, or no memory, can hold.
RAISE_LIMIT: Final = (
    "make the record smaller, or raise {option} (and the topic's max.message.bytes where needed)"
)


def topic_refusal(code: int, topic: str, hint: str | None) -> ApiException:
    """Return the exception for a topic that brokers refuse to have written or read.

    hint: what to do, for a writer `topic_advice`.
    """
    message = words_of_refusal(code, topic, hint)
    return api_exception(code, message, topic=topic, api="Metadata")


def words_of_refusal(code: int, topic: str, hint: str | None) -> str:
    """Return the message of `topic_refusal`; other refusals of a topic begin with it as well."""
    said = f"topic {topic}: {error_code(code).name} ({code})"
    return "; ".join(part for part in (said, hint) if part)


# Topics of the brokers themselves (Topic.INTERNAL_TOPICS), and the client.id that may write to them
# nevertheless (AdminUtils.ADMIN_CLIENT_ID).
INTERNAL_TOPICS: Final = frozenset(
    ("__consumer_offsets", "__share_group_state", "__transaction_state")
)
ADMIN_CLIENT_ID: Final = "__admin_client"


def internal_topic_error(topic: str) -> ApiException:
    """Return the exception for a topic of the brokers themselves."""
    code = error_codes.INVALID_TOPIC_EXCEPTION
    return api_exception(code, f"topic {topic} {_INTERNAL}", topic=topic)


def exception_class(code: int) -> type[ApiException]:
    """Return the exception class of an error code; the class of -1 for an unknown code."""
    known = _CLASSES.get(code if code in ERROR_CODES else error_codes.UNKNOWN_SERVER_ERROR)
    if known is not None:
        return known
    row: ErrorCode = error_code(code)
    if row.refresh_metadata:
        return InvalidMetadataException
    return RetriableException if row.retriable else ApiException


def api_exception(
    code: int,
    message: str,
    *,
    topic: str | None = None,
    partition: int | None = None,
    node_id: int | None = None,
    api: str | None = None,
    attempts: int | None = None,
) -> ApiException:
    """Return the exception for the error `code` of a broker."""
    error = exception_class(code)(
        message, topic=topic, partition=partition, node_id=node_id, api=api, attempts=attempts
    )
    error.code = code
    return error


def corrupt(found: str) -> ApiException:
    """Return the CorruptRecordException for unreadable records; found: what is wrong with them."""
    return api_exception(error_codes.CORRUPT_MESSAGE, f"records cannot be read: {found}")
