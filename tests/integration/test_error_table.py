"""Every error code of a broker, and the error of the user (Sender.completeBatch in Java).

librdkafka's mock cluster returns the errors. It supports Produce up to version 8. So two later
features are missing here: the new leader in the response (KIP-951) and errors of single records.
They are tested with the pure producer, in tests/unit/producer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pytest
from support.brokers.mock_cluster import INIT_PRODUCER_ID, PRODUCE, MockCluster
from support.oracles.readers import read_with_confluent

from spark_kafka_sink import KafkaProducer, errors
from spark_kafka_sink.error_codes import MESSAGE_TOO_LARGE, TOPIC_AUTHORIZATION_FAILED
from spark_kafka_sink.errors import (
    ApiException,
    ClusterAuthorizationException,
    InvalidTopicException,
    KafkaException,
    TimeoutException,
    TopicAuthorizationException,
    name_options,
)
from spark_kafka_sink.model import TopicPartition

# RD_KAFKA_RESP_ERR__TRANSPORT: the mock closes the connection instead of a response.
DISCONNECT = -195


class Row(NamedTuple):
    """A code, its name, and the class of its exception in the Java client."""

    code: int
    name: str
    java_class: str


# Sent again by an idempotent producer.
RETRIED = [
    Row(2, "CORRUPT_MESSAGE", "CorruptRecordException"),
    Row(3, "UNKNOWN_TOPIC_OR_PARTITION", "UnknownTopicOrPartitionException"),
    Row(5, "LEADER_NOT_AVAILABLE", "LeaderNotAvailableException"),
    Row(6, "NOT_LEADER_OR_FOLLOWER", "NotLeaderOrFollowerException"),
    Row(7, "REQUEST_TIMED_OUT", "TimeoutException"),
    Row(9, "REPLICA_NOT_AVAILABLE", "ReplicaNotAvailableException"),
    Row(13, "NETWORK_EXCEPTION", "NetworkException"),
    Row(14, "COORDINATOR_LOAD_IN_PROGRESS", "CoordinatorLoadInProgressException"),
    Row(15, "COORDINATOR_NOT_AVAILABLE", "CoordinatorNotAvailableException"),
    Row(16, "NOT_COORDINATOR", "NotCoordinatorException"),
    Row(19, "NOT_ENOUGH_REPLICAS", "NotEnoughReplicasException"),
    Row(20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NotEnoughReplicasAfterAppendException"),
    Row(51, "CONCURRENT_TRANSACTIONS", "ConcurrentTransactionsException"),
    Row(56, "KAFKA_STORAGE_ERROR", "KafkaStorageException"),
    Row(72, "LISTENER_NOT_FOUND", "ListenerNotFoundException"),
    Row(74, "FENCED_LEADER_EPOCH", "FencedLeaderEpochException"),
    Row(75, "UNKNOWN_LEADER_EPOCH", "UnknownLeaderEpochException"),
    Row(89, "THROTTLING_QUOTA_EXCEEDED", "ThrottlingQuotaExceededException"),
    Row(100, "UNKNOWN_TOPIC_ID", "UnknownTopicIdException"),
    Row(103, "INCONSISTENT_TOPIC_ID", "InconsistentTopicIdException"),
]
# Sent again because of sequences, so that without them they are errors like others.
RETRIED_FOR_SEQUENCES = [
    Row(45, "OUT_OF_ORDER_SEQUENCE_NUMBER", "OutOfOrderSequenceException"),
    Row(59, "UNKNOWN_PRODUCER_ID", "UnknownProducerIdException"),
]
# Given up; what is appended afterwards goes on.
GIVEN_UP = [
    Row(-1, "UNKNOWN_SERVER_ERROR", "UnknownServerException"),
    Row(10, "MESSAGE_TOO_LARGE", "RecordTooLargeException"),
    Row(17, "INVALID_TOPIC_EXCEPTION", "InvalidTopicException"),
    Row(18, "RECORD_LIST_TOO_LARGE", "RecordBatchTooLargeException"),
    Row(21, "INVALID_REQUIRED_ACKS", "InvalidRequiredAcksException"),
    Row(29, "TOPIC_AUTHORIZATION_FAILED", "TopicAuthorizationException"),
    Row(32, "INVALID_TIMESTAMP", "InvalidTimestampException"),
    Row(43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", "UnsupportedForMessageFormatException"),
    Row(44, "POLICY_VIOLATION", "PolicyViolationException"),
    Row(47, "INVALID_PRODUCER_EPOCH", "InvalidProducerEpochException"),
    Row(48, "INVALID_TXN_STATE", "InvalidTxnStateException"),
    Row(76, "UNSUPPORTED_COMPRESSION_TYPE", "UnsupportedCompressionTypeException"),
    Row(87, "INVALID_RECORD", "InvalidRecordException"),
    Row(120, "TRANSACTION_ABORTABLE", "TransactionAbortableException"),
    Row(999, "UNKNOWN_ERROR_CODE_999", "UnknownServerException"),
]
# Given up, and the producer with them.
FATAL = [
    Row(31, "CLUSTER_AUTHORIZATION_FAILED", "ClusterAuthorizationException"),
    Row(35, "UNSUPPORTED_VERSION", "UnsupportedVersionException"),
    Row(49, "INVALID_PRODUCER_ID_MAPPING", "InvalidPidMappingException"),
    Row(53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "TransactionalIdAuthorizationException"),
    Row(90, "PRODUCER_FENCED", "ProducerFencedException"),
]


def by_name(row: Row) -> str:
    """Name a test by the error."""
    return row.name


@pytest.fixture(scope="module")
def mock() -> Iterator[MockCluster]:
    """One broker."""
    with MockCluster() as cluster:
        yield cluster


@pytest.fixture
def topic(mock: MockCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic of one partition."""
    name = f"topic-{abs(hash(request.node.nodeid))}"
    mock.create_topic(name)
    yield name
    for api_key in (PRODUCE, INIT_PRODUCER_ID):
        mock.clear(api_key)


def producer(mock: MockCluster, **settings: object) -> KafkaProducer:
    """Make a producer that does not wait long between attempts; settings with _ for the dots."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    config = {"bootstrap.servers": mock.bootstrap, "linger.ms": 0, "retry.backoff.ms": 10}
    return KafkaProducer(config | given)


def row(value: str) -> pa.RecordBatch:
    """Make a batch of one row."""
    return pa.record_batch({"value": [value]})


def read(mock: MockCluster, topic: str) -> list[bytes | None]:
    """Read the values of a topic."""
    return [record.value for record in read_with_confluent(mock.bootstrap, topic)]


def fail(mock: MockCluster, topic: str, producer: KafkaProducer, code: int) -> ApiException:
    """Let brokers reject a row, and return the error that the user gets."""
    mock.answer_next(PRODUCE, [code])
    producer.append(topic, row("refused"))
    with pytest.raises(ApiException) as failed:
        producer.flush(30)
    return failed.value


def check_error(error: ApiException, topic: str, expected: Row) -> None:
    """Hold an error against its row: class, code, place, and the sentence's beginning."""
    assert type(error) is getattr(errors, expected.java_class)
    assert (error.code, error.api, error.node_id) == (expected.code, "Produce", 1)
    assert (error.topic, error.partition) == (topic, 0)
    named = f"{expected.name} ({expected.code})"
    # After these errors, a broker may have the record.
    is_uncertain = expected in RETRIED or expected.java_class == "UnknownServerException"
    verb = "acknowledged" if is_uncertain else "written"
    records = f"{topic}-0: 1 record(s) were not {verb}"
    said = f"{records}: {named} from node 1"
    if expected.code == TOPIC_AUTHORIZATION_FAILED:
        # The words of all that say so; see spark/test_causes.py.
        said = f"topic {topic}: {named}; grant WRITE and DESCRIBE on the topic to this client; "
        said += "to allow it: kafka-acls.sh --bootstrap-server "
        assert str(error).endswith(f"; {records} by node 1")
    if expected.code == MESSAGE_TOO_LARGE:
        said = f"{topic}-0: the record is "
        assert str(error).endswith(f"; {named} from node 1")
    assert str(error).startswith(said)


@pytest.mark.parametrize("expected", RETRIED + RETRIED_FOR_SEQUENCES, ids=by_name)
def test_what_a_retry_helps_is_sent_again_until_it_is_there_once(
    mock: MockCluster, topic: str, expected: Row
) -> None:
    mock.answer_next(PRODUCE, [expected.code] * 2)
    with producer(mock) as sending:
        sending.append(topic, row("first"))
        sending.append(topic, row("second"))
        sending.flush(30)
        delivery = sending._state.take_deliveries()[TopicPartition(topic, 0)]
    assert (delivery.records, delivery.retries) == (2, 2)
    assert read(mock, topic) == [b"first", b"second"]


def test_a_connection_that_closes_in_place_of_an_answer_is_a_retry(
    mock: MockCluster, topic: str
) -> None:
    mock.answer_next(PRODUCE, [DISCONNECT])
    with producer(mock) as sending:
        sending.append(topic, row("once"))
    assert read(mock, topic) == [b"once"]


@pytest.mark.parametrize("expected", RETRIED + RETRIED_FOR_SEQUENCES, ids=by_name)
def test_what_a_retry_would_help_is_an_error_of_its_class_where_none_is_allowed(
    mock: MockCluster, topic: str, expected: Row
) -> None:
    with producer(mock, enable_idempotence=False, retries=0) as sending:
        check_error(fail(mock, topic, sending, expected.code), topic, expected)
    assert read(mock, topic) == []


def test_the_last_of_the_retries_that_are_allowed_is_an_error_with_their_number(
    mock: MockCluster, topic: str
) -> None:
    mock.answer_next(PRODUCE, [19] * 3)
    with producer(mock, retries=2) as sending:
        sending.append(topic, row("refused"))
        said = r"NOT_ENOUGH_REPLICAS \(19\) from node 1 after 3 attempts; .*min\.insync\.replicas"
        with pytest.raises(errors.NotEnoughReplicasException, match=said) as failed:
            sending.flush(30)
    assert failed.value.attempts == 3
    assert read(mock, topic) == []


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
@pytest.mark.parametrize("expected", GIVEN_UP + FATAL, ids=by_name)
def test_what_no_retry_helps_is_an_error_at_once(
    mock: MockCluster, topic: str, expected: Row, *, idempotent: bool
) -> None:
    sending = producer(mock, enable_idempotence=idempotent)
    try:
        error = fail(mock, topic, sending, expected.code)
        check_error(error, topic, expected)
        assert error.attempts == 1
    finally:
        sending.close(0)
    assert read(mock, topic) == []


@pytest.mark.parametrize("expected", GIVEN_UP, ids=by_name)
def test_after_a_row_that_was_given_up_the_next_ones_go_on(
    mock: MockCluster, topic: str, expected: Row
) -> None:
    with producer(mock) as sending:
        sending.append(topic, row("before"))
        sending.flush(30)
        fail(mock, topic, sending, expected.code)
        sending.append(topic, row("after"))
    assert read(mock, topic) == [b"before", b"after"]


@pytest.mark.parametrize("expected", FATAL, ids=by_name)
def test_after_a_fatal_error_nothing_more_is_taken(
    mock: MockCluster, topic: str, expected: Row
) -> None:
    sending = producer(mock)
    try:
        fail(mock, topic, sending, expected.code)
        with pytest.raises(KafkaException, match=re.escape(expected.name)):
            sending.append(topic, row("after"))
    finally:
        sending.close(0)


def test_a_duplicate_is_a_success_without_an_offset(mock: MockCluster, topic: str) -> None:
    mock.answer_next(PRODUCE, [46])
    with producer(mock) as sending:
        sending.append(topic, row("known already"))
        sending.flush(30)
        delivery = sending._state.take_deliveries()[TopicPartition(topic, 0)]
    assert (delivery.records, delivery.retries, delivery.first_offset) == (1, 0, -1)


@pytest.mark.parametrize("code", [7, 14, 15, 16, 51])
def test_a_producer_id_is_asked_for_until_it_is_given(
    mock: MockCluster, topic: str, code: int
) -> None:
    mock.answer_next(INIT_PRODUCER_ID, [code] * 2)
    with producer(mock) as sending:
        sending.append(topic, row("once"))
    assert read(mock, topic) == [b"once"]


def test_a_row_that_gets_no_producer_id_in_time_names_the_error_for_which_it_was_asked_again(
    mock: MockCluster, topic: str
) -> None:
    mock.answer_next(INIT_PRODUCER_ID, [15] * 200)
    with producer(mock, delivery_timeout_ms=1000, request_timeout_ms=500) as sending:
        sent = sending.send(topic, "too late")
        said = r"no producer id was assigned: COORDINATOR_NOT_AVAILABLE \(15\)"
        with pytest.raises(TimeoutException, match=f"within delivery.timeout.ms=1000: .*{said}"):
            sent.result(30)
        mock.clear(INIT_PRODUCER_ID)


def test_a_flush_and_a_wait_for_memory_that_time_out_name_the_error_of_the_last_attempt(
    mock: MockCluster, topic: str
) -> None:
    mock.answer_next(PRODUCE, [19] * 200)
    sending = producer(mock, buffer_memory=40_000, max_block_ms=1000)
    said = rf"; the last error was: {topic}-0: NOT_ENOUGH_REPLICAS \(19\) from node 1; fewer"
    try:
        sending.append(topic, row("x" * 20_000))
        with pytest.raises(TimeoutException, match=rf"not acknowledged in 1 s{said}"):
            sending.flush(1)
        with pytest.raises(errors.BufferExhaustedException, match=f"buffer.memory=40000 .*{said}"):
            sending.append(topic, row("x" * 20_000))
    finally:
        sending.close(0)
        mock.clear(PRODUCE)


@pytest.mark.parametrize(
    ("code", "error"),
    [(31, ClusterAuthorizationException), (35, errors.UnsupportedVersionException)],
)
def test_a_producer_id_that_is_refused_is_fatal_and_the_error_says_how_to_do_without(
    mock: MockCluster, topic: str, code: int, error: type[ApiException]
) -> None:
    mock.answer_next(INIT_PRODUCER_ID, [code])
    sending = producer(mock)
    try:
        sending.append(topic, row("refused"))
        with pytest.raises(error, match=r"no producer id .*; enable\.idempotence=false"):
            sending.flush(30)
        with pytest.raises(error, match="no producer id"):
            sending.append(topic, row("refused too"))
    finally:
        sending.close(0)
    assert read(mock, topic) == []


def test_a_user_of_spark_reads_the_option_with_its_prefix(mock: MockCluster, topic: str) -> None:
    mock.answer_next(INIT_PRODUCER_ID, [31])
    with name_options("kafka.".__add__):
        sending = KafkaProducer({"bootstrap.servers": mock.bootstrap})
    try:
        sending.append(topic, row("refused"))
        with pytest.raises(ClusterAuthorizationException, match=r"; kafka\.enable\.idempotence="):
            sending.flush(30)
    finally:
        sending.close(0)


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (17, InvalidTopicException, r"INVALID_TOPIC_EXCEPTION \(17\)"),
        (29, TopicAuthorizationException, r"TOPIC_AUTHORIZATION_FAILED \(29\)"),
        (3, TimeoutException, r" max\.block\.ms=2000: .*UNKNOWN_TOPIC_OR_PARTITION \(3\)"),
        (5, TimeoutException, r" max\.block\.ms=2000: .*LEADER_NOT_AVAILABLE \(5\)"),
    ],
)
def test_a_topic_that_metadata_has_an_error_for_is_named_with_it(
    mock: MockCluster, topic: str, code: int, error: type[ApiException], said: str
) -> None:
    mock.topic_error(topic, code)
    with producer(mock, max_block_ms=2000) as sending:
        with pytest.raises(error, match=f"(?i)topic {topic}.*{said}") as failed:
            sending.append(topic, row("nowhere to go"))
        assert (failed.value.topic, failed.value.api) == (topic, "Metadata")
        mock.topic_error(topic, 0)
