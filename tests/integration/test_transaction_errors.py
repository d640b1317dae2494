"""Every kind of error that a broker may answer to a transaction's requests, as a user meets it.

librdkafka's mock cluster answers the errors; see `test_error_table`, which has those of Produce. It
writes the marks of transactions without a checksum, and shows readers what was aborted; that this
is hidden is tested on real brokers. Its InitProducerId raises no epochs (KIP-360).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pytest
from support.brokers.mock_cluster import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    MockCluster,
)
from support.oracles.readers import read_with_confluent

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import (
    ApiException,
    KafkaException,
    ProducerFencedException,
    TimeoutException,
    TransactionalIdAuthorizationException,
)
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition


class Row(NamedTuple):
    """An error and the request that it answers."""

    api_key: int
    api: str
    code: int
    name: str


def rows(api_key: int, api: str, **names: int) -> list[Row]:
    """Make the rows of one API."""
    return [Row(api_key, api, code, name) for name, code in names.items()]


RETRIED = [
    *rows(
        FIND_COORDINATOR, "FindCoordinator",
        COORDINATOR_LOAD_IN_PROGRESS=14, COORDINATOR_NOT_AVAILABLE=15,
    ),
    *rows(
        INIT_PRODUCER_ID, "InitProducerId",
        COORDINATOR_LOAD_IN_PROGRESS=14, COORDINATOR_NOT_AVAILABLE=15, NOT_COORDINATOR=16,
        CONCURRENT_TRANSACTIONS=51,
    ),
    *rows(
        ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn",
        UNKNOWN_TOPIC_OR_PARTITION=3, COORDINATOR_LOAD_IN_PROGRESS=14,
        COORDINATOR_NOT_AVAILABLE=15, NOT_COORDINATOR=16, CONCURRENT_TRANSACTIONS=51,
    ),
    *rows(
        ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn",
        COORDINATOR_LOAD_IN_PROGRESS=14, COORDINATOR_NOT_AVAILABLE=15, NOT_COORDINATOR=16,
        CONCURRENT_TRANSACTIONS=51,
    ),
    *rows(
        TXN_OFFSET_COMMIT, "TxnOffsetCommit",
        UNKNOWN_TOPIC_OR_PARTITION=3, REQUEST_TIMED_OUT=7, COORDINATOR_LOAD_IN_PROGRESS=14,
        COORDINATOR_NOT_AVAILABLE=15, NOT_COORDINATOR=16,
    ),
    *rows(
        END_TXN, "EndTxn (commit)",
        COORDINATOR_LOAD_IN_PROGRESS=14, COORDINATOR_NOT_AVAILABLE=15, NOT_COORDINATOR=16,
        CONCURRENT_TRANSACTIONS=51,
    ),
]  # fmt: skip
ABORTABLE = [
    *rows(
        ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn",
        TOPIC_AUTHORIZATION_FAILED=29, UNKNOWN_PRODUCER_ID=59, TRANSACTION_ABORTABLE=120,
    ),
    *rows(
        ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn",
        GROUP_AUTHORIZATION_FAILED=30, TRANSACTION_ABORTABLE=120,
    ),
    *rows(
        TXN_OFFSET_COMMIT, "TxnOffsetCommit",
        ILLEGAL_GENERATION=22, UNKNOWN_MEMBER_ID=25, GROUP_AUTHORIZATION_FAILED=30,
        FENCED_INSTANCE_ID=82, TRANSACTION_ABORTABLE=120,
    ),
    *rows(END_TXN, "EndTxn (commit)", TRANSACTION_ABORTABLE=120),
]  # fmt: skip
FENCED = [
    Row(api_key, api, code, name)
    for api_key, api in [
        (ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn"),
        (ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn"),
        (TXN_OFFSET_COMMIT, "TxnOffsetCommit"),
        (END_TXN, "EndTxn (commit)"),
    ]
    for code, name in [(47, "INVALID_PRODUCER_EPOCH"), (90, "PRODUCER_FENCED")]
]
FATAL = [
    *rows(
        ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn",
        INVALID_TXN_STATE=48, INVALID_PRODUCER_ID_MAPPING=49,
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED=53,
    ),
    *rows(ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", TRANSACTIONAL_ID_AUTHORIZATION_FAILED=53),
    *rows(TXN_OFFSET_COMMIT, "TxnOffsetCommit", TRANSACTIONAL_ID_AUTHORIZATION_FAILED=53),
    *rows(
        END_TXN, "EndTxn (commit)",
        INVALID_TXN_STATE=48, TRANSACTIONAL_ID_AUTHORIZATION_FAILED=53,
    ),
]  # fmt: skip


# Errors that are retried and that may last.
LASTING = [
    *rows(FIND_COORDINATOR, "FindCoordinator", COORDINATOR_NOT_AVAILABLE=15),
    *rows(INIT_PRODUCER_ID, "InitProducerId", CONCURRENT_TRANSACTIONS=51),
    *rows(ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", CONCURRENT_TRANSACTIONS=51),
    *rows(END_TXN, "EndTxn (commit)", COORDINATOR_NOT_AVAILABLE=15),
    *rows(PRODUCE, "Produce", NOT_ENOUGH_REPLICAS=19),
]


def by_name(row: Row) -> str:
    """Name a test by the request and its error."""
    return f"{row.api}: {row.name}"


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
    for row in RETRIED + LASTING:
        mock.clear(row.api_key)


@pytest.fixture
def producer(mock: MockCluster, topic: str) -> Iterator[KafkaProducer]:
    """A producer with a transactional id of its own and short limits."""
    made = KafkaProducer(
        {
            "bootstrap.servers": mock.bootstrap,
            "transactional.id": topic,
            "linger.ms": 0,
            "retry.backoff.ms": 10,
        }
    )
    yield made
    made.close(0)


def transact(producer: KafkaProducer, topic: str, value: str) -> None:
    """Commit a row, and an offset of a group."""
    producer.begin_transaction()
    producer.append(topic, pa.record_batch({"value": [value]}))
    read = {TopicPartition(topic, 0): OffsetAndMetadata(7)}
    producer.send_offsets_to_transaction(read, ConsumerGroupMetadata(f"readers of {topic}"))
    producer.commit_transaction()


def values(mock: MockCluster, topic: str) -> list[bytes | None]:
    """Read the values of a topic."""
    return [record.value for record in read_with_confluent(mock.bootstrap, topic, checksums=False)]


def failed(producer: KafkaProducer, topic: str, row: Row) -> KafkaException:
    """Let a transaction fail, and return the error that its user gets."""
    with pytest.raises(KafkaException, match=rf"{row.name} \({row.code}\) from node 1") as error:
        transact(producer, topic, "refused")
    # A call after the response is rejected because of it.
    found = error.value.__cause__ or error.value
    assert isinstance(found, KafkaException)
    assert (found.api, found.node_id) == (row.api, 1)
    return found


@pytest.mark.parametrize("row", RETRIED, ids=by_name)
def test_what_a_retry_helps_is_asked_again_until_the_transaction_is_committed(
    mock: MockCluster, producer: KafkaProducer, topic: str, row: Row
) -> None:
    mock.answer_next(row.api_key, [row.code] * 2)
    producer.init_transactions()
    transact(producer, topic, "once")
    assert values(mock, topic) == [b"once"]


@pytest.mark.parametrize("row", LASTING, ids=by_name)
def test_a_call_that_times_out_names_the_error_for_which_it_was_repeated(
    mock: MockCluster, topic: str, row: Row
) -> None:
    options = {"transactional.id": topic, "max.block.ms": 1000, "retry.backoff.ms": 10}
    with KafkaProducer({"bootstrap.servers": mock.bootstrap, **options}) as producer:
        if row.api_key in (FIND_COORDINATOR, INIT_PRODUCER_ID):
            call = producer.init_transactions
        else:
            call = producer.commit_transaction
            producer.init_transactions()
            producer.begin_transaction()
            producer.append(topic, pa.record_batch({"value": ["once"]}))
        mock.answer_next(row.api_key, [row.code] * 200)
        where = f"{topic}-0:" if row.api_key == PRODUCE else f"{row.api} failed:"
        found = re.escape(f"; the last error was: {where} {row.name} ({row.code}) from node ")
        with pytest.raises(TimeoutException, match=found) as error:
            call()
        assert isinstance(error.value.__cause__, ApiException)
        mock.clear(row.api_key)
        call()


def test_a_row_whose_partition_is_not_added_in_time_names_the_error_for_which_it_was_repeated(
    mock: MockCluster, topic: str
) -> None:
    options = {"transactional.id": topic, "delivery.timeout.ms": 1000, "request.timeout.ms": 500}
    more = {"linger.ms": 0, "retry.backoff.ms": 10}
    with KafkaProducer({"bootstrap.servers": mock.bootstrap, **options, **more}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        mock.answer_next(ADD_PARTITIONS_TO_TXN, [51] * 200)
        sent = producer.send(topic, "too late")
        found = r"within delivery.timeout.ms=1000: .*AddPartitionsToTxn failed: CONCURRENT_TRANSA"
        with pytest.raises(KafkaException, match=found):
            sent.result(30)
        mock.clear(ADD_PARTITIONS_TO_TXN)


@pytest.mark.parametrize("row", ABORTABLE, ids=by_name)
def test_after_an_abort_the_next_transaction_is_committed(
    mock: MockCluster, producer: KafkaProducer, topic: str, row: Row
) -> None:
    producer.init_transactions()
    mock.answer_next(row.api_key, [row.code])
    failed(producer, topic, row)
    with pytest.raises(KafkaException, match="only be aborted"):
        producer.commit_transaction()
    producer.abort_transaction()
    transact(producer, topic, "after")
    assert values(mock, topic)[-1] == b"after"


@pytest.mark.parametrize("row", FENCED + FATAL, ids=by_name)
def test_what_is_fatal_ends_the_producer(
    mock: MockCluster, producer: KafkaProducer, topic: str, row: Row
) -> None:
    producer.init_transactions()
    mock.answer_next(row.api_key, [row.code])
    error = failed(producer, topic, row)
    assert isinstance(error, ProducerFencedException) == (row in FENCED)
    with pytest.raises(KafkaException, match=row.name):
        producer.abort_transaction()
    with pytest.raises(KafkaException, match=row.name):
        producer.append(topic, pa.record_batch({"value": ["after"]}))


def test_a_look_up_that_is_refused_is_an_error_at_once(
    mock: MockCluster, producer: KafkaProducer
) -> None:
    mock.answer_next(FIND_COORDINATOR, [53])
    found = r"FindCoordinator failed: TRANSACTIONAL_ID_AUTHORIZATION_FAILED \(53\)"
    with pytest.raises(TransactionalIdAuthorizationException, match=found):
        producer.init_transactions()


@pytest.mark.parametrize(
    "row",
    rows(
        INIT_PRODUCER_ID, "InitProducerId",
        CLUSTER_AUTHORIZATION_FAILED=31, TRANSACTIONAL_ID_AUTHORIZATION_FAILED=53,
    ),
    ids=by_name,
)  # fmt: skip
def test_a_permission_that_was_given_meanwhile_is_seen_by_the_next_init(
    mock: MockCluster, producer: KafkaProducer, topic: str, row: Row
) -> None:
    mock.answer_next(row.api_key, [row.code])
    with pytest.raises(ApiException, match=row.name):
        producer.init_transactions()
    producer.init_transactions()
    transact(producer, topic, "allowed")
    assert values(mock, topic) == [b"allowed"]
