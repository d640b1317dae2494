"""All exceptions that the package raises on purpose, in one class hierarchy.

If the Java client has the same exception, the class has the same name, so that users can look it
up. The details of an exception are its attributes: topic, partition, node, API, error code,
attempts, row of the Arrow batch. The message is one or two sentences: what was found, what is
expected, and what to do.

``KafkaException`` is the root class. ``ConfigException`` and ``DataException`` mean that the
caller's input is wrong. ``ApiException`` and its subclasses mean that a broker returned an error or
did not respond. ``ProtocolError`` means that received bytes do not follow Kafka's protocol.

The base class of an ApiException determines how to recover, as in the Java client (KIP-1050):
``RetriableException``: retry; ``RefreshRetriableException``: look up leaders or coordinators again,
then retry; ``TransactionAbortableException``: abort the transaction;
``ApplicationRecoverableException``: close the producer and create a new producer;
``InvalidConfigurationException``: change a setting, a permission or the data.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final, NamedTuple, Self

from spark_kafka_sink import error_codes

_MOST_LISTED: Final = 10
_LONGEST_MESSAGE: Final = 1000


def listed(names: Iterable[str]) -> str:
    """Return names as text for a message: the first ten names, and the number of further names."""
    every = list(names)
    more = len(every) - _MOST_LISTED
    return ", ".join(every[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def one_line(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    """Return a peer's text for error messages, as one line of at most `longest` characters."""
    line = "".join(each if each.isprintable() else " " for each in text[:longest])
    return line + ("…" if len(text) > longest else "")


# Returns the name of an option to show in error messages, for example with the prefix of a Spark
# option.
_option_name: Final[ContextVar[Callable[[str], str]]] = ContextVar("option_name", default=str)


@contextmanager
def name_options(name: Callable[[str], str]) -> Iterator[None]:
    """Context manager: in the block, error messages use `name(option)` as an option's name.

    This affects only the current thread, and the threads of producers created in the block.
    """
    before = _option_name.set(name)
    try:
        yield
    finally:
        _option_name.reset(before)


def as_options_are_named_here(function: Callable[[], None]) -> Callable[[], None]:
    """Wrap `function`, so that it can run in another thread.

    The error messages of the wrapped function use the option names that `name_options` has set in
    the thread that wraps it.
    """
    name = _option_name.get()

    def call() -> None:
        with name_options(name):
            function()

    return call


class Option(NamedTuple):
    """An option in a message, with its value if it is set: ``linger.ms`` or ``linger.ms=5``."""

    name: str
    value: object = None

    def __str__(self) -> str:
        name = _option_name.get()(self.name)
        return name if self.value is None else f"{name}={self.value}"


def install_extra(extra: str) -> str:
    """Return the command that installs an extra of the package, for error messages."""
    return f'pip install "path/to/spark-kafka-sink[{extra}]" with the path of your clone'


def message_of(error: BaseException) -> str:
    """Return the text of an exception, even if the ``__str__`` of a user's class raises."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - its class still says something
        return "<its __str__ raised>"


def add_last_line(error: BaseException, sentence: str) -> None:
    """Make a sentence the last line of an exception's traceback.

    This is for exceptions that are not a KafkaException. The exception's own text is not changed.
    Do nothing if the class does not allow notes, or if the sentence was added before.
    """
    with suppress(Exception):
        if sentence not in getattr(error, "__notes__", ()):
            error.add_note(sentence)


class KafkaException(Exception):
    """The base class of all exceptions of this package.

    row: the number of the row in the Arrow batch, None if the error is not about a row. place: a
    description of the row, such as ``row 7 of task 2``. If `row` is set, ``str`` of the exception
    begins with `place`, or with the number of the row if `place` is None.
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
        """Return a copy with a different message."""
        other = copy.copy(self)
        other.message = message
        other.args = (message,)
        other.__cause__ = self.__cause__
        return other


class ConfigException(KafkaException):
    """An option has an invalid name or value; nothing was sent."""


class DataException(KafkaException):
    """A column or a row cannot be converted to Kafka records."""


class SerializationException(KafkaException):
    """A serializer cannot turn a key or a value into bytes."""


class ProtocolError(KafkaException):
    """Bytes from a peer do not follow Kafka's protocol."""


class IllegalStateException(KafkaException):
    """The object's state does not allow the call, such as a send after close."""


class IllegalArgumentException(KafkaException):
    """An argument has a value that is never valid, such as a negative time limit."""


class LostRows(NamedTuple):
    """Rows that one task of a Spark write wrote to one Kafka partition, and that are lost."""

    task: int
    topic: str
    partition: int
    first_offset: int
    records: int

    def __str__(self) -> str:
        return (
            f"{self.records} records of task {self.task} in {self.topic}-{self.partition} from "
            f"offset {self.first_offset} on"
        )


class TornCommitException(KafkaException):
    """A two-phase write is torn: brokers aborted some of its transactions, and rows are lost.

    Before that, the decision to commit the write was recorded in the commit log. owner: the
    application and its target topic. written: the version or the micro-batch of the write.
    committed: the number of the write's transactions that were committed. lost: the lost rows, as
    far as they are known.
    """

    def __init__(
        self,
        message: str,
        *,
        owner: str = "",
        written: str = "",
        committed: int = 0,
        lost: tuple[LostRows, ...] = (),
    ) -> None:
        super().__init__(message)
        self.owner = owner
        self.written = written
        self.committed = committed
        self.lost = lost


class ApiException(KafkaException):
    """A broker returned an error or did not respond; `code` is the error code."""

    code: int = error_codes.UNKNOWN_SERVER_ERROR


class RetriableException(ApiException):
    """A later retry may succeed, but all retries that the configuration allows have failed."""


class RefreshRetriableException(RetriableException):
    """A retry may succeed after leaders or coordinators have been looked up again."""


class InvalidMetadataException(RefreshRetriableException):
    """The client's metadata of the cluster was out of date."""


class ApplicationRecoverableException(ApiException):
    """The producer cannot continue: close it and create a new producer."""


class InvalidConfigurationException(ApiException):
    """A retry fails until a setting, a permission or the data is changed."""


class AuthorizationException(InvalidConfigurationException):
    """The client does not have the permission for a request."""


class AuthenticationException(InvalidConfigurationException):
    """Client and broker could not authenticate each other."""


class SaslAuthenticationException(AuthenticationException):
    """SASL authentication failed: the broker rejected the client, or did not prove its identity."""

    code = error_codes.SASL_AUTHENTICATION_FAILED


class SslAuthenticationException(AuthenticationException):
    """A TLS handshake failed: a certificate was rejected, or there is no common cipher suite."""


class UnsupportedSaslMechanismException(AuthenticationException):
    """The broker's listener does not support the SASL mechanism."""

    code = error_codes.UNSUPPORTED_SASL_MECHANISM


class IllegalSaslStateException(AuthenticationException):
    """The broker did not expect a SASL request."""

    code = error_codes.ILLEGAL_SASL_STATE


class TimeoutException(RetriableException):
    """A time limit has expired. The message names the option with the limit."""

    @classmethod
    def after(
        cls,
        last_error: KafkaException | None,
        message: str,
        *,
        trouble: str = "",
        api: str | None = None,
    ) -> Self:
        """Return an exception with `last_error` in its message and as its ``__cause__``.

        last_error: the error of the last attempt within the time limit, None if there was none.
        trouble: the errors of connections, in brackets, to append to the message.
        """
        said = ""
        if last_error is not None:
            has_partition = last_error.topic is not None and last_error.partition is not None
            where = f"{last_error.topic}-{last_error.partition}: " if has_partition else ""
            said = f"; the last error was: {where}{last_error}"
        error = cls(f"{message}{said}{trouble}", api=api)
        error.__cause__ = last_error
        return error


class BufferExhaustedException(TimeoutException):
    """buffer.memory stayed full for max.block.ms."""


class NetworkException(InvalidMetadataException):
    """A connection broke before the response was received."""


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
    """The batch was rejected: there are fewer in-sync replicas than min.insync.replicas."""


class NotEnoughReplicasAfterAppendException(RetriableException):
    """The batch was written to fewer replicas than min.insync.replicas."""


class CorruptRecordException(RetriableException):
    """A batch has a wrong checksum, or its records cannot be read."""


class OffsetOutOfRangeException(ApiException):
    """The partition's log does not contain the offset; retention may have deleted it."""


class RecordTooLargeException(ApiException):
    """A record or a batch exceeds a size limit. The message names the option with the limit."""


class RecordBatchTooLargeException(InvalidConfigurationException):
    """A batch is larger than the topic's segment.bytes."""


class InvalidTopicException(InvalidConfigurationException):
    """The topic's name is not allowed."""


class TopicAuthorizationException(AuthorizationException):
    """The client does not have the permission to write to the topic."""


class ClusterAuthorizationException(AuthorizationException):
    """The client does not have a cluster permission, such as IDEMPOTENT_WRITE."""


class InvalidRequiredAcksException(InvalidConfigurationException):
    """The broker does not support the requested acks."""


class InvalidTimestampException(ApiException):
    """A timestamp is outside the range that the topic accepts."""


class UnsupportedVersionException(InvalidConfigurationException):
    """Client and broker have no version of an API in common."""


class UnsupportedForMessageFormatException(InvalidConfigurationException):
    """The topic's message format does not support the batch."""


class UnsupportedCompressionTypeException(ApiException):
    """The topic or the broker does not support the codec."""


class PolicyViolationException(ApiException):
    """A policy of the brokers rejected the request."""


class InvalidRecordException(InvalidConfigurationException):
    """The broker rejected a record of the batch as invalid."""


class OutOfOrderSequenceException(ApiException):
    """The sequence number does not follow the last batch from the producer in the broker's log."""


class UnknownProducerIdException(OutOfOrderSequenceException):
    """The broker does not know the producer id; retention may have removed that id's records."""


class InvalidProducerEpochException(ApplicationRecoverableException):
    """Another producer uses the producer id with a newer epoch."""


class ProducerFencedException(ApplicationRecoverableException):
    """A newer producer with the same transactional id has taken over."""


class TransactionAbortableException(ApiException):
    """The transaction cannot be committed: abort it, then begin a new transaction."""


class TransactionAbortedException(ApiException):
    """The record was not sent because its transaction was aborted (KIP-654)."""


class InvalidTxnStateException(ApiException):
    """The transaction's state at its coordinator does not allow the request."""


class InvalidPidMappingException(ApplicationRecoverableException):
    """The producer id is not the one that is currently assigned to the transactional id."""


class InvalidTxnTimeoutException(ApiException):
    """transaction.timeout.ms is longer than the brokers allow."""


class TransactionalIdAuthorizationException(AuthorizationException):
    """The client does not have the permission to use the transactional id."""


class GroupAuthorizationException(AuthorizationException):
    """The client does not have the permission to commit offsets of the consumer group."""


class IllegalGenerationException(ApplicationRecoverableException):
    """The consumer group has a newer generation."""


class UnknownMemberIdException(ApplicationRecoverableException):
    """The consumer group does not know the member."""


class FencedInstanceIdException(ApplicationRecoverableException):
    """A newer consumer with the same group.instance.id has taken over."""


class UnknownServerException(ApiException):
    """The broker failed unexpectedly; the broker's log shows the reason."""


class ReplicaNotAvailableException(InvalidMetadataException):
    """The broker has no replica of the partition."""


class CoordinatorLoadInProgressException(RetriableException):
    """The coordinator is still loading its state."""


class ConcurrentTransactionsException(RetriableException):
    """The coordinator is still completing the previous transaction."""


class KafkaStorageException(InvalidMetadataException):
    """The broker's disk failed."""


class ListenerNotFoundException(InvalidMetadataException):
    """The partition's leader does not have the listener of the request."""


class FencedLeaderEpochException(InvalidMetadataException):
    """The client's leader epoch is older than the broker's."""


class UnknownLeaderEpochException(RetriableException):
    """The client's leader epoch is newer than the broker's."""


class ThrottlingQuotaExceededException(RetriableException):
    """The client exceeded a quota."""


class UnknownTopicIdException(InvalidMetadataException):
    """No topic has the topic id of the request."""


class InconsistentTopicIdException(InvalidMetadataException):
    """The topic id in the broker's log differs from the topic id in the request."""


class InvalidRequestException(ApiException):
    """The broker rejected the request as invalid, or the request cannot be encoded."""


class DuplicateSequenceException(ApiException):
    """The broker already has a batch with this sequence number."""


class OperationNotAttemptedException(ApiException):
    """The broker did not attempt this part of a request, because another part failed."""


class CommitFailedException(KafkaException):
    """The group coordinator rejected offsets, because the members of the group have changed."""


class RestClientException(KafkaException):
    """A schema registry returned an error, or did not respond.

    status: the HTTP status, None if there was no response. error_code: the registry's own code,
    such as 40401, or the HTTP status if the registry returned no code. unanswered: why no URL gave
    an answer, in words that do not vary while the reason stays the same, such as "retriable:
    answer" or "final: token"; empty if one did.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        error_code: int | None = None,
        unanswered: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code
        self.unanswered = unanswered


class ErrorCode(NamedTuple):
    """An error code of Kafka's protocol, with its name, exception and advice.

    kind: the class of the exception that is raised for the code. advice: what users who write
    records can do, with option names in braces, or None. (For users who read records, see
    `consumer.list_offsets`.) resource: for authorization errors, the type of the resource that the
    client may not access, as kafka-acls.sh spells it; else None. operations: the operations on this
    resource for which a writer needs permission; else ().
    """

    code: int
    name: str
    kind: type[ApiException]
    advice: str | None = None
    resource: str | None = None
    operations: tuple[str, ...] = ()

    @property
    def retriable(self) -> bool:
        """Whether sending the same request again may succeed."""
        return issubclass(self.kind, RetriableException)

    @property
    def refresh_metadata(self) -> bool:
        """Whether the code means that the known leaders may be stale."""
        return issubclass(self.kind, InvalidMetadataException)


# One row per code of org.apache.kafka.common.protocol.Errors (4.3.1); a test compares the table
# with that class. The producer's reaction to each code is in `producer.error_actions`.
_ROWS: Final = (
    ErrorCode(-1, "UNKNOWN_SERVER_ERROR", UnknownServerException),
    ErrorCode(0, "NONE", ApiException),
    ErrorCode(1, "OFFSET_OUT_OF_RANGE", OffsetOutOfRangeException),
    ErrorCode(2, "CORRUPT_MESSAGE", CorruptRecordException),
    ErrorCode(
        3, "UNKNOWN_TOPIC_OR_PARTITION", UnknownTopicOrPartitionException, "create the topic"
    ),
    ErrorCode(4, "INVALID_FETCH_SIZE", ApiException),
    ErrorCode(5, "LEADER_NOT_AVAILABLE", LeaderNotAvailableException),
    ErrorCode(6, "NOT_LEADER_OR_FOLLOWER", NotLeaderOrFollowerException),
    ErrorCode(7, "REQUEST_TIMED_OUT", TimeoutException),
    ErrorCode(8, "BROKER_NOT_AVAILABLE", ApiException),
    ErrorCode(9, "REPLICA_NOT_AVAILABLE", ReplicaNotAvailableException),
    ErrorCode(
        10,
        "MESSAGE_TOO_LARGE",
        RecordTooLargeException,
        "make the record smaller, compress it, or raise the topic's max.message.bytes",
    ),
    ErrorCode(11, "STALE_CONTROLLER_EPOCH", ApiException),
    ErrorCode(12, "OFFSET_METADATA_TOO_LARGE", ApiException),
    ErrorCode(13, "NETWORK_EXCEPTION", NetworkException),
    ErrorCode(14, "COORDINATOR_LOAD_IN_PROGRESS", CoordinatorLoadInProgressException),
    ErrorCode(15, "COORDINATOR_NOT_AVAILABLE", CoordinatorNotAvailableException),
    ErrorCode(16, "NOT_COORDINATOR", NotCoordinatorException),
    ErrorCode(
        17,
        "INVALID_TOPIC_EXCEPTION",
        InvalidTopicException,
        "topic names have 1 to 249 of the characters a-z A-Z 0-9 . _ -",
    ),
    ErrorCode(
        18,
        "RECORD_LIST_TOO_LARGE",
        RecordBatchTooLargeException,
        "lower {batch.size}, or raise the topic's segment.bytes",
    ),
    ErrorCode(
        19,
        "NOT_ENOUGH_REPLICAS",
        NotEnoughReplicasException,
        "fewer replicas are in sync than min.insync.replicas asks for",
    ),
    ErrorCode(
        20,
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        NotEnoughReplicasAfterAppendException,
        "fewer replicas are in sync than min.insync.replicas asks for",
    ),
    ErrorCode(21, "INVALID_REQUIRED_ACKS", InvalidRequiredAcksException),
    ErrorCode(22, "ILLEGAL_GENERATION", IllegalGenerationException),
    ErrorCode(23, "INCONSISTENT_GROUP_PROTOCOL", ApiException),
    ErrorCode(24, "INVALID_GROUP_ID", ApiException),
    ErrorCode(25, "UNKNOWN_MEMBER_ID", UnknownMemberIdException),
    ErrorCode(26, "INVALID_SESSION_TIMEOUT", ApiException),
    ErrorCode(27, "REBALANCE_IN_PROGRESS", ApiException),
    ErrorCode(28, "INVALID_COMMIT_OFFSET_SIZE", ApiException),
    ErrorCode(
        29,
        "TOPIC_AUTHORIZATION_FAILED",
        TopicAuthorizationException,
        "grant WRITE and DESCRIBE on the topic to this client",
        "topic",
        ("WRITE", "DESCRIBE"),
    ),
    ErrorCode(
        30,
        "GROUP_AUTHORIZATION_FAILED",
        GroupAuthorizationException,
        "grant READ on the consumer group to this client",
        "group",
        ("READ",),
    ),
    ErrorCode(
        31,
        "CLUSTER_AUTHORIZATION_FAILED",
        ClusterAuthorizationException,
        "grant IDEMPOTENT_WRITE on the cluster, or set {enable.idempotence} to false",
        "cluster",
        ("IDEMPOTENT_WRITE",),
    ),
    ErrorCode(
        32,
        "INVALID_TIMESTAMP",
        InvalidTimestampException,
        "see the topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms",
    ),
    ErrorCode(33, "UNSUPPORTED_SASL_MECHANISM", UnsupportedSaslMechanismException),
    ErrorCode(34, "ILLEGAL_SASL_STATE", IllegalSaslStateException),
    ErrorCode(35, "UNSUPPORTED_VERSION", UnsupportedVersionException),
    ErrorCode(36, "TOPIC_ALREADY_EXISTS", ApiException),
    ErrorCode(37, "INVALID_PARTITIONS", ApiException),
    ErrorCode(38, "INVALID_REPLICATION_FACTOR", InvalidConfigurationException),
    ErrorCode(39, "INVALID_REPLICA_ASSIGNMENT", ApiException),
    ErrorCode(40, "INVALID_CONFIG", InvalidConfigurationException),
    ErrorCode(41, "NOT_CONTROLLER", RetriableException),
    ErrorCode(42, "INVALID_REQUEST", InvalidRequestException),
    ErrorCode(43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", UnsupportedForMessageFormatException),
    ErrorCode(44, "POLICY_VIOLATION", PolicyViolationException),
    ErrorCode(45, "OUT_OF_ORDER_SEQUENCE_NUMBER", OutOfOrderSequenceException),
    ErrorCode(46, "DUPLICATE_SEQUENCE_NUMBER", DuplicateSequenceException),
    ErrorCode(47, "INVALID_PRODUCER_EPOCH", InvalidProducerEpochException),
    ErrorCode(48, "INVALID_TXN_STATE", InvalidTxnStateException),
    ErrorCode(49, "INVALID_PRODUCER_ID_MAPPING", InvalidPidMappingException),
    ErrorCode(
        50,
        "INVALID_TRANSACTION_TIMEOUT",
        InvalidTxnTimeoutException,
        "lower {transaction.timeout.ms}, or raise the brokers' transaction.max.timeout.ms",
    ),
    ErrorCode(51, "CONCURRENT_TRANSACTIONS", ConcurrentTransactionsException),
    ErrorCode(52, "TRANSACTION_COORDINATOR_FENCED", ApiException),
    ErrorCode(
        53,
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        TransactionalIdAuthorizationException,
        "grant WRITE and DESCRIBE on the transactional id to this client",
        "transactional-id",
        ("WRITE", "DESCRIBE"),
    ),
    ErrorCode(54, "SECURITY_DISABLED", ApiException),
    ErrorCode(55, "OPERATION_NOT_ATTEMPTED", OperationNotAttemptedException),
    ErrorCode(56, "KAFKA_STORAGE_ERROR", KafkaStorageException),
    ErrorCode(57, "LOG_DIR_NOT_FOUND", ApiException),
    ErrorCode(58, "SASL_AUTHENTICATION_FAILED", SaslAuthenticationException),
    ErrorCode(
        59,
        "UNKNOWN_PRODUCER_ID",
        UnknownProducerIdException,
        "the partition no longer has records of this producer: they were deleted, or the topic was "
        "created again; write the failed rows again",
    ),
    ErrorCode(60, "REASSIGNMENT_IN_PROGRESS", ApiException),
    ErrorCode(
        61,
        "DELEGATION_TOKEN_AUTH_DISABLED",
        ApiException,
        "set delegation.token.secret.key on each broker and controller",
    ),
    ErrorCode(
        62,
        "DELEGATION_TOKEN_NOT_FOUND",
        ApiException,
        "its lifetime has ended, or somebody has expired it before",
    ),
    ErrorCode(63, "DELEGATION_TOKEN_OWNER_MISMATCH", ApiException, "only its owner may do that"),
    ErrorCode(
        64,
        "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
        ApiException,
        "log in by SASL or with a certificate, and not with a delegation token",
    ),
    ErrorCode(65, "DELEGATION_TOKEN_AUTHORIZATION_FAILED", AuthorizationException),
    ErrorCode(66, "DELEGATION_TOKEN_EXPIRED", ApiException, "create another one"),
    ErrorCode(67, "INVALID_PRINCIPAL_TYPE", ApiException),
    ErrorCode(68, "NON_EMPTY_GROUP", ApiException),
    ErrorCode(69, "GROUP_ID_NOT_FOUND", ApiException),
    ErrorCode(70, "FETCH_SESSION_ID_NOT_FOUND", RetriableException),
    ErrorCode(71, "INVALID_FETCH_SESSION_EPOCH", RetriableException),
    ErrorCode(72, "LISTENER_NOT_FOUND", ListenerNotFoundException),
    ErrorCode(73, "TOPIC_DELETION_DISABLED", ApiException),
    ErrorCode(74, "FENCED_LEADER_EPOCH", FencedLeaderEpochException),
    ErrorCode(75, "UNKNOWN_LEADER_EPOCH", UnknownLeaderEpochException),
    ErrorCode(
        76,
        "UNSUPPORTED_COMPRESSION_TYPE",
        UnsupportedCompressionTypeException,
        "choose another {compression.type}",
    ),
    ErrorCode(77, "STALE_BROKER_EPOCH", ApiException),
    ErrorCode(78, "OFFSET_NOT_AVAILABLE", RetriableException),
    ErrorCode(79, "MEMBER_ID_REQUIRED", ApiException),
    ErrorCode(80, "PREFERRED_LEADER_NOT_AVAILABLE", InvalidMetadataException),
    ErrorCode(81, "GROUP_MAX_SIZE_REACHED", ApiException),
    ErrorCode(82, "FENCED_INSTANCE_ID", FencedInstanceIdException),
    ErrorCode(83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", InvalidMetadataException),
    ErrorCode(84, "ELECTION_NOT_NEEDED", InvalidMetadataException),
    ErrorCode(85, "NO_REASSIGNMENT_IN_PROGRESS", ApiException),
    ErrorCode(86, "GROUP_SUBSCRIBED_TO_TOPIC", ApiException),
    ErrorCode(87, "INVALID_RECORD", InvalidRecordException),
    ErrorCode(88, "UNSTABLE_OFFSET_COMMIT", RetriableException),
    ErrorCode(89, "THROTTLING_QUOTA_EXCEEDED", ThrottlingQuotaExceededException),
    ErrorCode(
        90,
        "PRODUCER_FENCED",
        ProducerFencedException,
        "each running producer needs a {transactional.id} of its own",
    ),
    ErrorCode(91, "RESOURCE_NOT_FOUND", ApiException),
    ErrorCode(92, "DUPLICATE_RESOURCE", ApiException),
    ErrorCode(93, "UNACCEPTABLE_CREDENTIAL", ApiException),
    ErrorCode(94, "INCONSISTENT_VOTER_SET", ApiException),
    ErrorCode(95, "INVALID_UPDATE_VERSION", ApiException),
    ErrorCode(96, "FEATURE_UPDATE_FAILED", ApiException),
    ErrorCode(97, "PRINCIPAL_DESERIALIZATION_FAILURE", ApiException),
    ErrorCode(98, "SNAPSHOT_NOT_FOUND", ApiException),
    ErrorCode(99, "POSITION_OUT_OF_RANGE", ApiException),
    ErrorCode(100, "UNKNOWN_TOPIC_ID", UnknownTopicIdException),
    ErrorCode(101, "DUPLICATE_BROKER_REGISTRATION", ApiException),
    ErrorCode(102, "BROKER_ID_NOT_REGISTERED", ApiException),
    ErrorCode(103, "INCONSISTENT_TOPIC_ID", InconsistentTopicIdException),
    ErrorCode(104, "INCONSISTENT_CLUSTER_ID", ApiException),
    ErrorCode(105, "TRANSACTIONAL_ID_NOT_FOUND", ApiException),
    ErrorCode(106, "FETCH_SESSION_TOPIC_ID_ERROR", RetriableException),
    ErrorCode(107, "INELIGIBLE_REPLICA", ApiException),
    ErrorCode(108, "NEW_LEADER_ELECTED", ApiException),
    ErrorCode(109, "OFFSET_MOVED_TO_TIERED_STORAGE", ApiException),
    ErrorCode(110, "FENCED_MEMBER_EPOCH", ApiException),
    ErrorCode(111, "UNRELEASED_INSTANCE_ID", ApiException),
    ErrorCode(112, "UNSUPPORTED_ASSIGNOR", ApiException),
    ErrorCode(113, "STALE_MEMBER_EPOCH", ApiException),
    ErrorCode(114, "MISMATCHED_ENDPOINT_TYPE", ApiException),
    ErrorCode(115, "UNSUPPORTED_ENDPOINT_TYPE", ApiException),
    ErrorCode(116, "UNKNOWN_CONTROLLER_ID", ApiException),
    ErrorCode(117, "UNKNOWN_SUBSCRIPTION_ID", ApiException),
    ErrorCode(118, "TELEMETRY_TOO_LARGE", ApiException),
    ErrorCode(119, "INVALID_REGISTRATION", ApiException),
    ErrorCode(120, "TRANSACTION_ABORTABLE", TransactionAbortableException, "abort the transaction"),
    ErrorCode(121, "INVALID_RECORD_STATE", ApiException),
    ErrorCode(122, "SHARE_SESSION_NOT_FOUND", RetriableException),
    ErrorCode(123, "INVALID_SHARE_SESSION_EPOCH", RetriableException),
    ErrorCode(124, "FENCED_STATE_EPOCH", ApiException),
    ErrorCode(125, "INVALID_VOTER_KEY", ApiException),
    ErrorCode(126, "DUPLICATE_VOTER", ApiException),
    ErrorCode(127, "VOTER_NOT_FOUND", ApiException),
    ErrorCode(128, "INVALID_REGULAR_EXPRESSION", ApiException),
    ErrorCode(129, "REBOOTSTRAP_REQUIRED", ApiException),
    ErrorCode(130, "STREAMS_INVALID_TOPOLOGY", ApiException),
    ErrorCode(131, "STREAMS_INVALID_TOPOLOGY_EPOCH", ApiException),
    ErrorCode(132, "STREAMS_TOPOLOGY_FENCED", ApiException),
    ErrorCode(133, "SHARE_SESSION_LIMIT_REACHED", RetriableException),
)

ERROR_CODES: Final = {row.code: row for row in _ROWS}


def error_code(code: int) -> ErrorCode:
    """Return the `ErrorCode` object for an error code.

    For an unknown code, the object is not retriable, and its exception is UnknownServerException,
    as in the Java client.
    """
    known = ERROR_CODES.get(code)
    return known or ErrorCode(code, f"UNKNOWN_ERROR_CODE_{code}", UnknownServerException)


_OPTION: Final = re.compile(r"\{(.+?)\}")
_INTERNAL: Final = "is internal to Kafka, and producers must not write to it: use another topic"


def advice(code: int, *, topic: str | None = None) -> str | None:
    """Return the advice about an error code for users who write records, None if there is none.

    topic: the topic that the error is about, None if it is not about a topic.
    """
    is_about_name = code in (
        error_codes.INVALID_TOPIC_EXCEPTION,
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    )
    if is_about_name and topic in INTERNAL_TOPICS:
        return f"{topic} {_INTERNAL}"
    text = error_code(code).advice
    return None if text is None else _OPTION.sub(lambda found: str(Option(found[1])), text)


def topic_advice(code: int, topic: str) -> str | None:
    """Return advice about a topic's error in a metadata response, None if there is no advice."""
    return advice(code, topic=topic)


class Cause(NamedTuple):
    """An error that several parts (driver, task, producer, reader) raise with the same message.

    kind: the class of the exception. sentence: the message, as a template with {names}.
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
        """Return the exception; known: the value of each name in `sentence` except ``{topic}``."""
        message = self.sentence.format(topic=topic, **known)
        return self.kind(message, topic=topic, partition=partition, api=api, row=row)


# The names in these sentences: limit: the option that sets the time or size limit, with its value;
# servers: bootstrap.servers with its value; trouble: the errors of connections, in brackets; found:
# the last error about the topic; size: the exact size, or "up to" an upper bound; hint: what to do.
NO_BROKER: Final = Cause(
    TimeoutException, "no broker has answered within {limit}; check {servers}{trouble}"
)
# The same if the client rejected the certificate of a broker, or a broker that of the client.
NO_BROKER_BY_TLS: Final = Cause(
    SslAuthenticationException,
    "TLS failed, and no broker has accepted this client within {limit}{trouble}",
)
NO_TOPIC: Final = Cause(
    TimeoutException, "Topic {topic} not present in metadata after {limit}: {found}"
)
# For calls inside a callback. They do not wait, so the message shows no time limit.
NO_TOPIC_YET: Final = Cause(TimeoutException, "Topic {topic} not present in metadata: {found}")
NOT_AWAITED_IN_CALLBACK: Final = (
    "its metadata has been requested, but a call inside a callback does not wait for the response; "
    "call again later, or call partitions_for before the callback"
)
# The text for {found} in NO_TOPIC if the limit is 0 ms.
NOT_AWAITED: Final = (
    "its metadata has been requested, but the call does not wait for the response; call again "
    "later, or increase the limit"
)
TOO_LARGE: Final = Cause(
    RecordTooLargeException,
    "the record is {size} bytes when serialized, more than {limit}; {hint}",
)
# limit: the topic config max.message.bytes, with its value if that is known.
TOO_LARGE_FOR_TOPIC: Final = Cause(
    RecordTooLargeException,
    "{record} is {size} bytes when serialized, more than topic {topic} takes ({limit}); "
    f"{error_code(error_codes.MESSAGE_TOO_LARGE).advice}",
)
# The hint for a record that exceeds max.request.size or buffer.memory.
RAISE_LIMIT: Final = (
    "make the record smaller, or raise {option} (and the topic's max.message.bytes where needed)"
)


def topic_refusal(code: int, topic: str, hint: str | None) -> ApiException:
    """Return the exception for a topic that has an error code in a metadata response.

    hint: what to do; for writers, the result of `topic_advice`.
    """
    message = words_of_refusal(code, topic, hint)
    return api_exception(code, message, topic=topic, api="Metadata")


def words_of_refusal(code: int, topic: str, hint: str | None) -> str:
    """Return the message for a topic with an error code; see `topic_refusal`."""
    said = f"topic {topic}: {error_code(code).name} ({code})"
    return "; ".join(part for part in (said, hint) if part)


# The internal topics of brokers (Topic.INTERNAL_TOPICS), and the only client.id that may write to
# them (AdminUtils.ADMIN_CLIENT_ID).
INTERNAL_TOPICS: Final = frozenset(
    ("__consumer_offsets", "__share_group_state", "__transaction_state")
)
ADMIN_CLIENT_ID: Final = "__admin_client"


def internal_topic_error(topic: str) -> ApiException:
    """Return the exception for a write to an internal topic of the brokers."""
    code = error_codes.INVALID_TOPIC_EXCEPTION
    return api_exception(code, f"topic {topic} {_INTERNAL}", topic=topic)


def exception_class(code: int) -> type[ApiException]:
    """Return the exception class of a broker's error code."""
    return error_code(code).kind


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
    """Return a CorruptRecordException; found: the reason why the records cannot be read."""
    return api_exception(error_codes.CORRUPT_MESSAGE, f"records cannot be read: {found}")
