"""Transactions on real brokers: what readers with isolation.level=read_committed see of them.

On Kafka 4 with transaction.version 2 and, after a downgrade of the feature, 1; and on Kafka 3.9,
which does not have the feature.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from conftest import NewTopic, need_kafka, topic_maker
from support.brokers import fetch_kafka
from support.brokers.class_archives import kafka_options
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import committed_values, read_with_kafka_python
from support.pure.state_waits import wait_until

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.client.chunk import RowChunk, RowQueue
from spark_kafka_sink.errors import (
    ConfigException,
    IllegalStateException,
    InvalidProducerEpochException,
    InvalidTxnTimeoutException,
    KafkaException,
    ProducerFencedException,
    RecordTooLargeException,
    TimeoutException,
    TransactionAbortedException,
)
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.producer.transactions.state import Outcome

pytestmark = pytest.mark.kafka

# What the brokers run, and the transaction.version that they have agreed on then.
CLUSTERS = {
    "4-version-2": (fetch_kafka.NEWEST, 2),
    "4-version-1": (fetch_kafka.NEWEST, 1),
    "3": (fetch_kafka.OLD, 0),
}
NewProducer = Callable[..., KafkaProducer]


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest, scratch: Path) -> Iterator[KafkaCluster]:
    """One node."""
    need_kafka()
    version, transaction_version = CLUSTERS[request.param]
    folder = scratch / f"transactions-{request.param}"
    started = KafkaCluster(
        fetch_kafka.libs(version), folder, 1, java_options=kafka_options(version)
    )
    try:
        started.start()
        if transaction_version == 1:
            started.change_transaction_version(1)
        yield started
    finally:
        started.stop()


def but_for_the_newest(is_long: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """Return the mark of a test that is long on all clusters but the newest."""
    others = (pytest.param(each, marks=is_long) for each in ("4-version-1", "3"))
    return pytest.mark.parametrize("cluster", ["4-version-2", *others], indirect=True)


RESTARTS = but_for_the_newest(
    pytest.mark.long(reason="it restarts the node, after which all versions do the same")
)
BY_THE_CLIENT_ALONE = but_for_the_newest(
    pytest.mark.long(reason="the client refuses or gives up rows alone, whatever the version")
)


@pytest.fixture
def topic(cluster: KafkaCluster) -> str:
    """A topic with three partitions."""
    return topic_maker(cluster)(3)


@pytest.fixture
def make_topic(cluster: KafkaCluster) -> NewTopic:
    """Makes a topic."""
    return topic_maker(cluster)


@pytest.fixture
def new_producer(cluster: KafkaCluster, topic: str) -> Iterator[NewProducer]:
    """Makes initialized producers with one transactional.id, which is the topic's name."""
    made: list[KafkaProducer] = []

    def make(config: Mapping[str, Any] | None = None, *, init: bool = True) -> KafkaProducer:
        common = {"bootstrap.servers": cluster.bootstrap, "transactional.id": topic, "linger.ms": 2}
        producer = KafkaProducer({**common, **(config or {})})
        made.append(producer)
        if init:
            producer.init_transactions()
        return producer

    yield make
    for producer in made:
        producer.close(0)


def values(*texts: str) -> pa.RecordBatch:
    """Make a batch of values."""
    return pa.record_batch({"value": pa.array(texts)})


def committed_offset(cluster: KafkaCluster, group: str, partition: TopicPartition) -> int:
    """Return a group's offset of a partition; negative if it has none."""
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 0}
    consumer = confluent_kafka.Consumer(config)
    try:
        asked = confluent_kafka.TopicPartition(*partition)
        (found,) = consumer.committed([asked], timeout=30)
        return int(found.offset)
    finally:
        consumer.close()


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(
    cluster: KafkaCluster, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer()
    expected = []
    for number in range(6):
        producer.begin_transaction()
        rows = [f"{number}-{row}" for row in range(200)]
        producer.append(topic, values(*rows[:100]))
        if number % 3 == 0:
            producer.flush()
        producer.append(topic, values(*rows[100:]))
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            expected += rows
    producer.begin_transaction()
    producer.commit_transaction()
    producer.close()
    assert committed_values(cluster.bootstrap, topic) == sorted(expected)
    # The aborted records that were sent are there for readers who do not ask for committed ones.
    assert len(read_with_kafka_python(cluster.bootstrap, topic)) >= len(expected) + 100


def test_transactions_are_of_the_version_that_the_cluster_has_agreed_on(
    cluster: KafkaCluster, new_producer: NewProducer, request: pytest.FixtureRequest
) -> None:
    producer = new_producer()
    assert producer._state.transactions is not None
    is_v2 = producer._state.transactions.max_produce_version is None
    assert is_v2 is ("4-version-2" in request.node.name)


def test_a_second_producer_with_the_id_fences_the_first_and_ends_its_transaction(
    cluster: KafkaCluster, topic: str, new_producer: NewProducer
) -> None:
    first = new_producer()
    first.begin_transaction()
    first.append(topic, values("of the first"))
    first.flush()
    second = new_producer()
    second.begin_transaction()
    second.append(topic, values("of the second"))
    second.commit_transaction()
    with pytest.raises(ProducerFencedException):
        first.commit_transaction()
    for call in (first.abort_transaction, first.begin_transaction, first.init_transactions):
        with pytest.raises(ProducerFencedException):
            call()
    first.close()
    second.begin_transaction()
    second.append(topic, values("and again"))
    second.commit_transaction()
    assert committed_values(cluster.bootstrap, topic) == ["and again", "of the second"]


def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    cluster: KafkaCluster, topic: str, new_producer: NewProducer
) -> None:
    producer, group, read = new_producer(), f"readers-of-{topic}", TopicPartition(topic, 2)
    producer.begin_transaction()
    producer.append(topic, values("a"))
    producer.send_offsets_to_transaction(
        {read: OffsetAndMetadata(7, "so far")}, ConsumerGroupMetadata(group)
    )
    producer.commit_transaction()
    assert committed_offset(cluster, group, read) == 7
    producer.begin_transaction()
    producer.send_offsets_to_transaction({read: OffsetAndMetadata(9)}, ConsumerGroupMetadata(group))
    producer.abort_transaction()
    assert committed_offset(cluster, group, read) == 7
    # A consumer may have read nothing.
    producer.begin_transaction()
    producer.send_offsets_to_transaction({}, ConsumerGroupMetadata(group))
    producer.commit_transaction()
    producer.begin_transaction()
    with pytest.raises(KafkaException, match=r"ILLEGAL_GENERATION|UNKNOWN_MEMBER_ID"):
        producer.send_offsets_to_transaction(
            {read: OffsetAndMetadata(11)}, ConsumerGroupMetadata(group, 5, "nobody")
        )
    with pytest.raises(KafkaException, match="only be aborted"):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.append(topic, values("b"))
    producer.commit_transaction()
    assert committed_values(cluster.bootstrap, topic) == ["a", "b"]


@RESTARTS
def test_a_commit_that_times_out_while_the_broker_is_down_is_called_again_and_commits(
    cluster: KafkaCluster, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer({"max.block.ms": 60_000})
    producer.begin_transaction()
    producer.append(topic, values("before", "the", "failure"))
    producer.flush()
    assert producer._transactions is not None
    cluster.kill(1)
    producer._transactions._max_block_ms = 300
    with pytest.raises(TimeoutException, match=r"max\.block\.ms=300.*call it again"):
        producer.commit_transaction()
    for call in (producer.abort_transaction, producer.begin_transaction):
        with pytest.raises(IllegalStateException, match="call commit_transaction again"):
            call()
    with pytest.raises(IllegalStateException, match="call commit_transaction again"):
        producer.append(topic, values("lost?"))
    cluster.start_node(1)
    producer._transactions._max_block_ms = 60_000
    producer.commit_transaction()
    producer.begin_transaction()
    producer.append(topic, values("after"))
    producer.commit_transaction()
    assert committed_values(cluster.bootstrap, topic) == ["after", "before", "failure", "the"]


def test_after_a_record_was_refused_the_transaction_is_aborted_and_the_next_one_works(
    cluster: KafkaCluster, topic: str, make_topic: NewTopic, new_producer: NewProducer
) -> None:
    small = make_topic(1, {"max.message.bytes": "1000"})
    producer = new_producer()
    producer.begin_transaction()
    producer.append(topic, values("with the large one"))
    producer.append(small, values("x" * 3000))
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction()
    # As in Java: the cause of the call's own error, where the broker answered before the commit.
    error = refused.value.__cause__ or refused.value
    assert isinstance(error, RecordTooLargeException)
    assert error.topic == small
    for call in (producer.commit_transaction, lambda: producer.append(topic, values("more"))):
        with pytest.raises(KafkaException, match="can only be aborted"):
            call()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.append(topic, values("afterwards"))
    producer.append(small, values("fits"))
    producer.flush()
    producer.commit_transaction()
    producer.close()
    assert committed_values(cluster.bootstrap, topic) == ["afterwards"]
    assert committed_values(cluster.bootstrap, small) == ["fits"]


@BY_THE_CLIENT_ALONE
def test_a_transaction_without_a_row_that_send_refused_is_not_committed(
    cluster: KafkaCluster, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer({"max.request.size": 1000})
    producer.begin_transaction()
    producer.send(topic, "there", partition=0)
    refused = producer.send(topic, "x" * 2000, partition=0)
    assert isinstance(refused.exception(), RecordTooLargeException)
    with pytest.raises(KafkaException, match=r"max\.request\.size"):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    sent = producer.send(topic, "again", partition=0)
    producer.commit_transaction()
    assert sent.result(0).partition == 0
    assert committed_values(cluster.bootstrap, topic) == ["again"]


@BY_THE_CLIENT_ALONE
@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_row_that_comes_while_a_transaction_ends_is_refused_and_its_end_waits_for_the_others(
    cluster: KafkaCluster, topic: str, new_producer: NewProducer, end: str
) -> None:
    is_ending = threading.Event()
    refusals: list[str] = []
    early_ends: list[object] = []

    def partitioner(topic: str, batch: pa.RecordBatch, _: int) -> pa.Array:
        # It runs where the call that ends the transaction turns rows into batches.
        if is_ending.is_set() and not refusals:
            with ThreadPoolExecutor() as other:
                refused = other.submit(producer.send, topic, "late").exception()
            assert isinstance(refused, IllegalStateException)
            refusals.append(str(refused))
            with producer._state.lock:
                assert producer._state.transactions is not None
                early_ends.append(producer._state.transactions.due(0.0, has_incomplete=False))
        return pa.array([0] * batch.num_rows, pa.int32())

    linger = {"linger.ms": 600_000, "delivery.timeout.ms": 700_000}
    producer = new_producer({**linger, "partitioner.class": partitioner})
    producer.begin_transaction()
    producer.append(topic, values("there"))
    producer.flush()
    is_ending.set()
    sent = producer.send(topic, "sent")
    getattr(producer, end)()
    # An abort drops the row that waits, and asks no partitioner about it.
    is_asked = end == "commit_transaction"
    assert [end in refusal for refusal in refusals] == [True] * is_asked
    assert early_ends == [None] * is_asked
    assert sent.done()
    assert (sent.exception() is None) is (end == "commit_transaction")
    expected = ["sent", "there"] if end == "commit_transaction" else []
    producer.begin_transaction()
    producer.send(topic, "next")
    producer.commit_transaction()
    assert committed_values(cluster.bootstrap, topic) == sorted(["next", *expected])


@BY_THE_CLIENT_ALONE
def test_a_row_whose_transaction_ends_while_it_is_serialized_is_refused(
    cluster: KafkaCluster, topic: str, new_producer: NewProducer
) -> None:
    def serialize(value: object) -> bytes:
        if value == "late":
            other_thread = threading.Thread(target=producer.commit_transaction)
            other_thread.start()
            other_thread.join()
        return str(value).encode()

    producer = new_producer({"value.serializer": serialize, "linger.ms": 600_000})
    producer.begin_transaction()
    sent = producer.send(topic, "sent")
    with pytest.raises(IllegalStateException, match="call begin_transaction first"):
        producer.send(topic, "late")
    assert sent.done()
    producer.begin_transaction()
    producer.send(topic, "next")
    producer.commit_transaction()
    assert committed_values(cluster.bootstrap, topic) == ["next", "sent"]


@BY_THE_CLIENT_ALONE
def test_a_row_whose_transaction_ends_while_it_waits_for_room_is_refused(
    cluster: KafkaCluster,
    topic: str,
    new_producer: NewProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = new_producer({"linger.ms": 600_000})
    begin_chunk = producer._feeder.begin

    def begin_late(chunk: RowChunk, queue: RowQueue) -> None:
        monkeypatch.undo()
        other_thread = threading.Thread(target=producer.commit_transaction)
        other_thread.start()
        other_thread.join()
        begin_chunk(chunk, queue)

    producer.begin_transaction()
    sent = producer.send(topic, "sent")
    producer.flush()
    monkeypatch.setattr(producer._feeder, "begin", begin_late)
    with pytest.raises(IllegalStateException, match="call begin_transaction first"):
        producer.send(topic, "late")
    assert sent.done()
    producer.begin_transaction()
    producer.send(topic, "next")
    producer.commit_transaction()
    assert committed_values(cluster.bootstrap, topic) == ["next", "sent"]


@BY_THE_CLIENT_ALONE
def test_a_row_that_cannot_be_put_into_a_batch_fails_the_commit(
    cluster: KafkaCluster, topic: str, new_producer: NewProducer
) -> None:
    def partitioner(_: str, batch: pa.RecordBatch, __: int) -> pa.Array:
        if batch["value"][0].as_py() == b"bad":
            message = "no place for this"
            raise ValueError(message)
        return pa.array([0] * batch.num_rows, pa.int32())

    producer = new_producer({"partitioner.class": partitioner, "linger.ms": 600_000})
    producer.begin_transaction()
    producer.send(topic, "bad")
    with pytest.raises(KafkaException, match="no place for this"):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, "good")
    producer.commit_transaction()
    assert committed_values(cluster.bootstrap, topic) == ["good"]


@BY_THE_CLIENT_ALONE
def test_closing_gives_up_the_rows_of_an_open_transaction_that_linger(
    cluster: KafkaCluster, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer({"linger.ms": 600_000, "delivery.timeout.ms": 700_000})
    producer.begin_transaction()
    sent = producer.send(topic, "open")
    producer.close()
    assert isinstance(sent.exception(0), TransactionAbortedException)
    assert committed_values(cluster.bootstrap, topic) == []


@BY_THE_CLIENT_ALONE
def test_an_abort_does_not_wait_for_what_was_not_sent(
    cluster: KafkaCluster, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer({"linger.ms": 600_000, "delivery.timeout.ms": 700_000})
    producer.begin_transaction()
    producer.append(topic, values("never"))
    producer.abort_transaction()
    assert producer._state.take_deliveries() == {}
    producer.begin_transaction()
    producer.append(topic, values("at once"))
    producer.commit_transaction()
    producer.close()
    assert committed_values(cluster.bootstrap, topic) == ["at once"]


@BY_THE_CLIENT_ALONE
def test_records_need_a_transaction(
    cluster: KafkaCluster, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer(init=False)
    with pytest.raises(IllegalStateException, match="call init_transactions first"):
        producer.append(topic, values("a"))
    with pytest.raises(IllegalStateException, match="state UNINITIALIZED"):
        producer.begin_transaction()
    producer.init_transactions()
    with pytest.raises(IllegalStateException, match="call begin_transaction first"):
        producer.append(topic, values("a"))
    with pytest.raises(IllegalStateException, match="state READY"):
        producer.commit_transaction()
    with pytest.raises(IllegalStateException, match="state READY"):
        producer.init_transactions()


def test_closing_aborts_what_is_open_so_that_readers_go_on(
    cluster: KafkaCluster, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer()
    producer.begin_transaction()
    producer.append(topic, values("open"))
    producer.flush()
    producer.close()
    other = new_producer({"transactional.id": f"{topic}-other"})
    other.begin_transaction()
    other.append(topic, values("later"))
    other.commit_transaction()
    assert committed_values(cluster.bootstrap, topic) == ["later"]


@BY_THE_CLIENT_ALONE
def test_closing_sees_out_a_commit_that_timed_out(
    cluster: KafkaCluster, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer()
    timed_out = threading.Event()
    producer.begin_transaction()
    # The callback holds the I/O thread, which then cannot end the commit within its time.
    producer.send(topic, "committed", on_delivery=lambda *_: timed_out.wait(60))
    assert producer._transactions is not None
    producer._transactions._max_block_ms = 0
    with pytest.raises(TimeoutException):
        producer.commit_transaction()
    timed_out.set()
    producer._transactions._max_block_ms = 60_000
    transactions = producer._transactions
    wait_until(producer, lambda: transactions.outcome is not Outcome.NOT_COMMITTED)
    producer.close()
    assert committed_values(cluster.bootstrap, topic) == ["committed"]


@BY_THE_CLIENT_ALONE
def test_closing_aborts_a_commit_that_timed_out_before_it_was_sent(
    cluster: KafkaCluster, topic: str, new_producer: NewProducer
) -> None:
    closed = threading.Event()

    def partitioner(_: str, batch: pa.RecordBatch, __: int) -> list[int]:
        if batch["value"].to_pylist() == [b"with the partitioner"]:
            closed.wait(60)
        return [0] * batch.num_rows

    producer = new_producer({"partitioner.class": partitioner, "max.block.ms": 2000})
    producer.begin_transaction()
    producer.send(topic, "acknowledged").result(60)
    producer.send(topic, "with the partitioner")
    with pytest.raises(TimeoutException):
        producer.commit_transaction()
    with pytest.raises(TransactionAbortedException, match="was not carried out"):
        producer.close()
    closed.set()
    assert committed_values(cluster.bootstrap, topic) == []


def test_closing_raises_why_records_failed_if_nobody_was_told(
    cluster: KafkaCluster, make_topic: NewTopic, new_producer: NewProducer
) -> None:
    small = make_topic(1, {"max.message.bytes": "1000"})
    producer = new_producer()
    producer.begin_transaction()
    producer.append(small, values("x" * 3000))
    wait_until(producer, lambda: failed_records(producer) > 0)
    with pytest.raises(RecordTooLargeException):
        producer.close()
    assert committed_values(cluster.bootstrap, small) == []


def failed_records(producer: KafkaProducer) -> float:
    """Return how many records a producer has given up, by its metrics."""
    (failed,) = (
        value
        for name, value in producer.metrics().items()
        if (name.name, name.group) == ("record-error-total", "producer-metrics")
    )
    return failed


def time_out(cluster: KafkaCluster, topic: str, new_producer: NewProducer) -> KafkaProducer:
    """Return a producer whose transaction the coordinator has aborted; the topic has 1 partition.

    Only then does a reader see what another producer commits after it.
    """
    producer = new_producer({"transaction.timeout.ms": 1000, "transactional.id": f"{topic}-slow"})
    producer.begin_transaction()
    producer.append(topic, values("too slow"))
    producer.flush()
    other = new_producer({"transactional.id": f"{topic}-other"})
    other.begin_transaction()
    other.append(topic, values("later"))
    other.commit_transaction()
    deadline = time.monotonic() + 60
    while not committed_values(cluster.bootstrap, topic):
        assert time.monotonic() < deadline, "the coordinator did not abort the transaction"
    return producer


def test_a_transaction_that_timed_out_at_its_coordinator_cannot_be_committed(
    cluster: KafkaCluster, make_topic: NewTopic, new_producer: NewProducer
) -> None:
    topic = make_topic(1)
    producer = time_out(cluster, topic, new_producer)
    with pytest.raises(KafkaException, match=r"INVALID_TXN_STATE|PRODUCER_FENCED"):
        producer.commit_transaction()
    assert committed_values(cluster.bootstrap, topic) == ["later"]


def test_in_version_2_a_producer_goes_on_after_its_transaction_timed_out(
    cluster: KafkaCluster,
    make_topic: NewTopic,
    new_producer: NewProducer,
    request: pytest.FixtureRequest,
) -> None:
    topic = make_topic(1)
    producer = time_out(cluster, topic, new_producer)
    producer.append(topic, values("after the end"))
    with pytest.raises(InvalidProducerEpochException):
        producer.flush()
    if "4-version-2" not in request.node.name:
        # The coordinator has bumped the epoch; in version 1 it notifies nobody.
        with pytest.raises(ProducerFencedException):
            producer.abort_transaction()
        return
    producer.abort_transaction()
    producer.begin_transaction()
    producer.append(topic, values("the next"))
    producer.commit_transaction()
    assert committed_values(cluster.bootstrap, topic) == ["later", "the next"]


def test_a_timeout_that_the_brokers_do_not_allow_is_refused_with_what_to_do(
    cluster: KafkaCluster, new_producer: NewProducer
) -> None:
    producer = new_producer({"transaction.timeout.ms": 2_000_000_000}, init=False)
    with pytest.raises(InvalidTxnTimeoutException, match=r"transaction\.max\.timeout\.ms"):
        producer.init_transactions()


@BY_THE_CLIENT_ALONE
def test_delivery_errors_of_an_aborted_transaction_are_not_raised_later(
    cluster: KafkaCluster, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer({"linger.ms": 600_000, "delivery.timeout.ms": 700_000})
    producer.begin_transaction()
    producer.append(topic, values("dropped"))
    producer.abort_transaction()
    assert failed_records(producer) == 1
    producer.begin_transaction()
    producer.append(topic, values("kept"))
    try:
        producer.flush()
    except TransactionAbortedException as error:  # pragma: no cover - what must not be
        pytest.fail(f"the next transaction has the error of the one before: {error}")
    producer.commit_transaction()
    assert committed_values(cluster.bootstrap, topic) == ["kept"]


def test_transactions_need_an_id_and_idempotence() -> None:
    with KafkaProducer({"bootstrap.servers": "127.0.0.1:1"}) as producer:
        for call in (producer.init_transactions, producer.commit_transaction):
            with pytest.raises(IllegalStateException, match=r"need a transactional\.id"):
                call()
    for name, value, found in (
        ("enable.idempotence", "false", "enable.idempotence is false"),
        ("acks", "1", "acks is 1"),
        ("retries", "0", "retries is 0"),
    ):
        with pytest.raises(ConfigException, match=f"transactional.id is set, but {found}"):
            KafkaProducer({"bootstrap.servers": "h:1", "transactional.id": "t", name: value})
