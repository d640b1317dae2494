"""The sender in transactions: which records are sent when, and their results at the end."""

from __future__ import annotations

import struct

import pytest
from support.pure.pure_producer import TOPIC, PureProducer, Settings

from spark_kafka_sink.errors import (
    ClusterAuthorizationException,
    InvalidTxnStateException,
    KafkaException,
    PolicyViolationException,
    ProducerFencedException,
    TimeoutException,
    TransactionAbortableException,
    TransactionAbortedException,
    UnsupportedCompressionTypeException,
)
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.producer.error_actions import Call
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.producer.transactions.requests import TransactionalRequest
from spark_kafka_sink.producer.transactions.state import TransactionState
from spark_kafka_sink.wire.exchange import (
    Answered,
    ClientRequest,
    NodeDown,
    NodeReady,
    NodeThrottled,
)
from spark_kafka_sink.wire.messages import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    ProduceRequest,
    ProduceResponse,
)
from spark_kafka_sink.wire.transaction_messages import AddPartitionsToTxnRequest
from spark_kafka_sink.wire.versions import NodeApiVersions

FULL = [b"x" * 400, b"y" * 400]
"""Two of these records fill a batch of 1000 bytes."""
REBOOTSTRAP_REQUIRED = 129
POLICY, OUT_OF_ORDER, INVALID_EPOCH, INVALID_TXN_STATE, UNKNOWN_PRODUCER = 44, 45, 47, 48, 59
TOO_LARGE, CLUSTER_AUTHORIZATION, FENCED = 10, 31, 90
BOTH_VERSIONS = pytest.mark.parametrize("version", [1, 2], ids="transaction.version={}".format)


def begun(version: int, leaders: list[int] | None = None, **settings: float | str) -> PureProducer:
    """Make a producer that has begun a transaction."""
    kind = Settings(transaction_version=version, **settings)  # type: ignore[arg-type]
    producer = PureProducer(leaders or [1], kind)
    manager_of(producer).initialize()
    producer.ready()
    assert producer.poll() == []
    end_call(producer)
    manager_of(producer).begin()
    producer.asked.clear()
    return producer


def manager_of(producer: PureProducer) -> TransactionManager:
    """Return the producer's transaction manager."""
    assert producer.transactions is not None
    return producer.transactions


def end_call(producer: PureProducer) -> KafkaException | None:
    """Acknowledge a call's end as its caller does, and return its error."""
    call = manager_of(producer)._calls.last
    assert call is not None
    assert call.is_done
    call.is_acknowledged = True
    return call.error


def calls(producer: PureProducer) -> list[Call]:
    """Return the transactional calls that were sent."""
    contexts = [request.context for request in producer.asked]
    return [each.call for each in contexts if isinstance(each, TransactionalRequest)]


def header(request: ClientRequest) -> tuple[bool, int, int]:
    """Return of a request's first batch whether it is transactional, its epoch and sequence."""
    assert isinstance(request.message, ProduceRequest)
    records = request.message.topic_data[0].partition_data[0].records
    assert records is not None
    (attributes,) = struct.unpack_from(">h", records.buffers[0], 21)
    epoch, sequence = struct.unpack_from(">hi", records.buffers[0], 51)
    return bool(attributes & 0x10), epoch, sequence


@BOTH_VERSIONS
def test_records_carry_the_transaction_s_marks(version: int) -> None:
    producer = begun(version)
    producer.append(0, FULL)
    (request,) = producer.poll()
    assert isinstance(request.message, ProduceRequest)
    assert request.message.transactional_id == "tid"
    assert header(request) == (True, 0, 0)
    # Version 13 would need the topic's id, which this cluster does not have.
    assert request.max_version == (11 if version == 1 else 12)


@BOTH_VERSIONS
def test_the_parts_of_a_batch_that_was_split_are_of_its_transaction(version: int) -> None:
    producer = begun(version)
    producer.append(0, FULL)
    producer.answer(producer.poll()[0], TOO_LARGE)
    manager_of(producer).begin_commit()
    for sequence in (0, 1):
        (part,) = producer.poll()
        assert header(part) == (True, 0, sequence)
        assert Call.COMMIT not in calls(producer), "a part is not acknowledged yet"
        producer.answer(part)
    assert producer.poll() == []
    assert calls(producer)[-1] is Call.COMMIT
    assert end_call(producer) is None


def test_records_go_once_their_partition_is_in_the_transaction() -> None:
    producer = begun(1, [1, 1])
    producer.append(0, FULL)
    producer.append(1, FULL)
    work = producer.sender.poll(producer.now)
    assert work.drained == []
    (request,) = work.requests
    assert isinstance(request.message, AddPartitionsToTxnRequest)
    assert request.message.v3_and_below_topics[0].partitions == [0, 1]
    assert producer.sender.poll(producer.now).drained == []
    assert isinstance(request.context, TransactionalRequest)
    answer = producer.coordinator.answer(request.context)
    manager_of(producer).answered(request.context, answer, 1, producer.now)
    (drained,) = producer.sender.poll(producer.now).drained
    assert [batch.topic_partition.partition for batch in drained.batches] == [0, 1]


@BOTH_VERSIONS
def test_a_commit_ends_lingering_and_waits_for_the_answers(version: int) -> None:
    producer = begun(version, linger=60.0)
    producer.append(0, [b"small"])
    assert producer.poll() == []
    manager_of(producer).begin_commit()
    (request,) = producer.poll()
    assert Call.COMMIT not in calls(producer)
    producer.answer(request)
    assert producer.poll() == []
    assert calls(producer)[-1] is Call.COMMIT
    assert end_call(producer) is None


def test_in_version_1_sequences_go_on_and_in_version_2_they_begin_anew() -> None:
    for version, expected in ((1, (True, 0, 2)), (2, (True, 1, 0))):
        producer = begun(version)
        producer.append(0, FULL)
        producer.answer(producer.poll()[0])
        manager_of(producer).begin_commit()
        producer.poll()
        assert end_call(producer) is None
        manager_of(producer).begin()
        producer.append(0, FULL)
        (request,) = producer.poll()
        assert header(request) == expected


@BOTH_VERSIONS
def test_an_abort_drops_what_was_not_sent_and_waits_for_what_was(version: int) -> None:
    producer = begun(version)
    for _ in range(3):
        producer.append(0, FULL)
    # Until the first acknowledgement of an epoch one batch is in flight.
    (request,) = producer.poll()
    manager_of(producer).begin_abort()
    assert producer.poll() == []
    dropped = producer.done()
    assert [type(batch.error) for batch in dropped] == [TransactionAbortedException] * 2
    assert "t-0: 2 record(s) were not sent" in str(dropped[0].error)
    assert Call.ABORT not in calls(producer)
    producer.answer(request)
    producer.poll()
    assert [batch.state for batch in producer.done()] == [BatchState.SUCCEEDED]
    assert calls(producer)[-1] is Call.ABORT
    assert end_call(producer) is None
    assert producer.accumulator.pool.available_bytes == producer.accumulator.pool.total_bytes


def test_batches_that_a_caller_is_filling_are_dropped_once_it_has_let_go() -> None:
    producer = begun(2, linger=60.0)
    producer.append(0, [b"small"])
    partition = [TopicPartition(TOPIC, 0)]
    producer.accumulator.hold(partition)
    manager_of(producer).begin_abort()
    producer.poll()
    assert producer.done() == []
    producer.accumulator.let_go(partition)
    producer.poll()
    assert len(producer.done()) == 1
    assert end_call(producer) is None


@BOTH_VERSIONS
def test_after_an_error_the_transaction_is_aborted_and_the_next_one_begins_at_0(
    version: int,
) -> None:
    producer = begun(version)
    for _ in range(3):
        producer.append(0, FULL)
    producer.answer(producer.poll()[0])
    first, second = producer.poll()
    producer.answer(first, POLICY)
    assert manager_of(producer).state is TransactionState.ABORTABLE_ERROR
    # A broker can never accept the batch after the lost one: it is not retried.
    producer.answer(second, OUT_OF_ORDER)
    producer.now += 10
    assert producer.poll() == []
    errors = [type(batch.error) for batch in producer.done()][1:]
    assert errors[0] is PolicyViolationException
    assert len(errors) == 2
    manager_of(producer).begin_abort()
    producer.poll()
    assert end_call(producer) is None
    manager_of(producer).begin()
    producer.append(0, FULL)
    (request,) = producer.poll()
    assert header(request) == (True, 1, 0)


def test_zstd_that_a_leader_does_not_know_fails_at_once_and_the_transaction_with_it() -> None:
    producer = begun(1, [1, 2], compression="zstd")
    producer.sender.handle(NodeReady(2, NodeApiVersions({0: (0, 6)})), producer.now)
    producer.append(1, FULL)
    (request,) = producer.poll()
    assert isinstance(request.message, ProduceRequest)
    assert request.message.topic_data == []
    producer.sender.handle(Answered(request, 2, ProduceResponse(responses=[])), producer.now)
    (batch,) = producer.done()
    assert isinstance(batch.error, UnsupportedCompressionTypeException)
    assert manager_of(producer).state is TransactionState.ABORTABLE_ERROR
    manager_of(producer).begin_abort()
    assert producer.poll() == []
    assert end_call(producer) is None


def test_an_error_that_a_retry_might_have_helped_asks_for_an_abort() -> None:
    producer = begun(2, retries=0)
    producer.append(0, FULL)
    producer.lose(producer.poll()[0])
    (batch,) = producer.done()
    assert isinstance(batch.error, TransactionAbortableException)
    assert "NETWORK_EXCEPTION" in str(batch.error)
    assert manager_of(producer).error is batch.error
    producer = begun(2)
    producer.append(0, FULL)
    producer.answer(producer.poll()[0], INVALID_TXN_STATE)
    (batch,) = producer.done()
    assert isinstance(batch.error, TransactionAbortableException)
    assert isinstance(batch.error.__cause__, InvalidTxnStateException)


@BOTH_VERSIONS
def test_records_that_expire_in_flight_hold_the_end_back_until_their_answer(version: int) -> None:
    producer = begun(version)
    producer.append(0, FULL)
    (request,) = producer.poll()
    producer.now += 121
    assert producer.poll() == []
    (batch,) = producer.done()
    assert isinstance(batch.error, TransactionAbortableException)
    assert isinstance(batch.error.__cause__, TimeoutException)
    manager_of(producer).begin_abort()
    producer.poll()
    assert Call.ABORT not in calls(producer), "the records could still reach the log"
    producer.answer(request)
    producer.poll()
    assert Call.ABORT in calls(producer)
    assert end_call(producer) is None


def test_a_later_batch_waits_for_an_earlier_one_but_a_gap_ends_the_transaction() -> None:
    producer = begun(2)
    for _ in range(3):
        producer.append(0, FULL)
    producer.answer(producer.poll()[0])
    first, second = producer.poll()
    producer.answer(second, OUT_OF_ORDER)
    assert manager_of(producer).state is TransactionState.IN_TRANSACTION
    producer.answer(first, OUT_OF_ORDER)
    assert manager_of(producer).state is TransactionState.ABORTABLE_ERROR


def test_a_broker_that_forgot_the_producer_is_sent_the_records_from_0_if_all_others_are_safe() -> (
    None
):
    producer = begun(1)
    producer.append(0, FULL)
    producer.append(0, FULL)
    producer.answer(producer.poll()[0], base_offset=5)
    (request,) = producer.poll()
    producer.answer(request, UNKNOWN_PRODUCER, log_start_offset=7)
    producer.now += 10
    (again,) = producer.poll()
    assert header(again) == (True, 0, 0)
    producer.answer(again, UNKNOWN_PRODUCER)
    producer.now += 10
    (again,) = producer.poll()
    producer.answer(again, UNKNOWN_PRODUCER, log_start_offset=3)
    assert manager_of(producer).state is TransactionState.ABORTABLE_ERROR


@pytest.mark.parametrize(
    ("code", "error", "state"),
    [
        (INVALID_EPOCH, KafkaException, TransactionState.ABORTABLE_ERROR),
        (FENCED, ProducerFencedException, TransactionState.FATAL_ERROR),
        (CLUSTER_AUTHORIZATION, ClusterAuthorizationException, TransactionState.FATAL_ERROR),
    ],
)
def test_what_produce_is_refused_for_decides_about_the_producer(
    code: int, error: type[KafkaException], state: TransactionState
) -> None:
    producer = begun(2, [1, 1])
    producer.append(0, FULL)
    producer.append(1, FULL)
    producer.answer(producer.poll()[0], lambda partition: code if partition == 0 else 7)
    assert manager_of(producer).state is state
    assert isinstance(manager_of(producer).error, error)
    producer.poll()
    assert (producer.sender.fatal_error is None) is (state is TransactionState.ABORTABLE_ERROR)
    if state is TransactionState.FATAL_ERROR:
        assert not producer.accumulator.has_incomplete


def test_an_idempotent_producer_is_over_when_the_cluster_refuses_it() -> None:
    producer = PureProducer([1, 1])
    producer.append(0, FULL)
    producer.append(1, FULL)
    producer.ready()
    (request,) = producer.poll()
    producer.answer(request, lambda partition: CLUSTER_AUTHORIZATION if partition == 0 else 7)
    assert producer.poll() == []
    assert isinstance(producer.sender.fatal_error, ClusterAuthorizationException)
    assert [batch.state for batch in producer.done()] == [BatchState.FAILED] * 2


def test_the_coordinator_is_connected_to_before_it_is_asked_and_left_alone_while_it_throttles() -> (
    None
):
    producer = begun(2)
    producer.append(0, FULL)
    producer.answer(producer.poll()[0])
    manager_of(producer).begin_commit()
    producer.sender.handle(NodeThrottled(1, producer.now + 5.0), producer.now)
    work = producer.sender.poll(producer.now)
    assert (work.requests, work.next_poll_at) == ([], producer.now + 5.0)
    producer.sender.handle(NodeDown(1, "gone"), producer.now)
    producer.now += 5.0
    assert producer.poll() == []
    assert calls(producer)[-1] is Call.FIND_COORDINATOR
    assert producer.sender.poll(producer.now).connect == {1}
    producer.ready()
    producer.poll()
    assert calls(producer)[-1] is Call.COMMIT
    assert producer.sequences is not None
    assert producer.sequences.producer == ProducerIdAndEpoch(4000, 1)


def test_the_coordinator_is_among_the_nodes_to_know_before_any_topic_is() -> None:
    producer = PureProducer([], Settings(transaction_version=2))
    producer.metadata._topics.clear()
    manager_of(producer).initialize()
    producer.poll()
    assert producer.sender.nodes[1].port == 9001


def test_a_coordinator_that_left_the_cluster_is_no_node_to_know_any_more() -> None:
    producer = begun(2)
    brokers = [MetadataResponseBroker(node_id=2, host="h", port=9002)]
    request = ClientRequest(node_id=None, message=MetadataRequest(topics=None))
    answered = Answered(request, 2, MetadataResponse(brokers=brokers, topics=[], error_code=0))
    producer.sender.handle(answered, producer.now)
    assert producer.sender.nodes.keys() == {1, 2}, "it is still the coordinator"
    producer.sender.handle(NodeDown(1, "gone"), producer.now)
    assert producer.sender.nodes.keys() == {1, 2}, "the look-up may return it again"
    producer.sender.handle(answered, producer.now)
    assert producer.sender.nodes.keys() == {2}


@BOTH_VERSIONS
def test_to_begin_anew_forgets_the_coordinators_too(version: int) -> None:
    producer = begun(version)
    assert producer.sender.nodes.keys() == {1}
    response = MetadataResponse(brokers=[], topics=[], error_code=REBOOTSTRAP_REQUIRED)
    producer.metadata.update(response, producer.now)
    producer.sender.poll(producer.now)
    assert producer.sender.nodes == {}, "the bootstrap servers are asked only without any broker"
    producer.now += 10
    producer.append(0, FULL)
    (request,) = producer.poll()
    producer.answer(request)
    manager_of(producer).begin_commit()
    producer.poll()
    assert end_call(producer) is None
    assert Call.FIND_COORDINATOR in calls(producer)
    assert producer.sender.nodes.keys() == {1}


def test_a_batch_that_expires_while_the_bootstrap_servers_are_asked_anew_can_be_aborted() -> None:
    producer = begun(1, delivery_timeout=2.0)
    producer.append(0, FULL)
    (request,) = producer.poll()
    response = MetadataResponse(brokers=[], topics=[], error_code=REBOOTSTRAP_REQUIRED)
    producer.metadata.update(response, producer.now)
    producer.sender.poll(producer.now)
    producer.now += 3.0
    producer.sender.poll(producer.now)
    producer.lose(request)
    assert manager_of(producer).state is TransactionState.ABORTABLE_ERROR
    manager_of(producer).begin_abort()
    producer.poll()
    assert end_call(producer) is None
    assert producer.sequences is not None
    assert producer.sequences.producer == ProducerIdAndEpoch(4000, 1)
