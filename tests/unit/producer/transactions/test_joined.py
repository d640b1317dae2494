"""A producer in a transaction of another process: the test is the brokers and the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from support.pure.pure_producer import (
    FULL,
    TOPIC,
    PureProducer,
    Settings,
    batches,
    bytes_of,
    sequences,
)
from support.pure.transaction_answers import COORDINATOR, TransactionCoordinator

from spark_kafka_sink.auth.acls import Acls
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.errors import (
    ApiException,
    ClusterAuthorizationException,
    IllegalStateException,
    InvalidProducerEpochException,
    ProducerFencedException,
    TimeoutException,
)
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.producer.batch_state import BatchState
from spark_kafka_sink.producer.error_actions import Call
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.producer.transactions.joined import JoinedTransaction
from spark_kafka_sink.records.log_reader import read_log
from spark_kafka_sink.wire.exchange import Answered, ClientRequest
from spark_kafka_sink.wire.messages import (
    InitProducerIdResponse,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from spark_kafka_sink.wire.transaction_messages import AddPartitionsToTxnRequest

FIRST, SECOND = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
PRODUCER = ProducerIdAndEpoch(77, 3)
NOT_LEADER, NETWORK_EXCEPTION, NOT_ENOUGH_REPLICAS, CLUSTER_AUTHORIZATION = 6, 13, 19, 31
OUT_OF_ORDER, FENCED_EPOCH, UNKNOWN_PRODUCER = 45, 47, 59
ADDING = pytest.mark.parametrize(
    ("version", "adds", "asked"),
    [(0, True, 1), (1, True, 1), (1, False, 0), (2, True, 0)],
    ids=["3.9 adds", "version 1 adds", "version 1 has added", "version 2"],
)


def joined(version: int = 2, *, adds: bool = False, checks: bool = True) -> JoinedTransaction:
    """Return a transaction that a producer may join."""
    return JoinedTransaction(
        "app/0.0",
        PRODUCER,
        version,
        adds_partitions=adds,
        checks_duplicates=checks,
        retry_backoff=ExponentialBackoff(0.1, 1.0),
        random=Random(1),
    )


def joining(
    transaction: JoinedTransaction, leaders: list[int] | None = None, **settings: float
) -> PureProducer:
    """Return a producer that has joined a transaction, and is connected."""
    producer = PureProducer(leaders or [1, 1], Settings(**settings))  # type: ignore[arg-type]
    producer.ready()
    producer.sender.join(transaction)
    return producer


def finish(producer: PureProducer, transaction: JoinedTransaction) -> None:
    """Take account of what is done, as the producer's state does."""
    for batch in producer.done():
        transaction.deliveries.add(batch)


def sent_again(producer: PureProducer, request: ClientRequest) -> ClientRequest:
    """Answer a request as a broker that verifies another producer's batch; return the next one."""
    producer.answer(request, NOT_ENOUGH_REPLICAS)
    producer.now += 0.061
    (again,) = producer.poll()
    return again


def retried(producer: PureProducer, transaction: JoinedTransaction) -> Mapping[int, int]:
    """Return how many batches of each node are retried, as the progress of a task tells it."""
    return producer.sender.progress(transaction.deliveries, [], producer.now).retried


def answer_as_duplicate(producer: PureProducer, request: ClientRequest, offset: int) -> None:
    """Answer a request as a broker does for batches that it has already."""
    answer = PartitionProduceResponse(
        index=0, error_code=0, base_offset=offset, log_append_time_ms=1_700_000_000_000
    )
    of_topic = TopicProduceResponse(name=TOPIC, partition_responses=[answer])
    response = ProduceResponse(responses=[of_topic])
    producer.sender.handle(Answered(request, 1, response), producer.now)


@ADDING
def test_it_writes_with_what_it_was_given_and_asks_for_no_id(
    version: int, asked: int, *, adds: bool
) -> None:
    transaction = joined(version, adds=adds)
    producer = joining(transaction)
    producer.append(0, [b"a"])
    producer.append(1, [b"b"])
    (request,) = producer.poll()
    asks = [r.message for r in producer.asked]
    added = [m for m in asks if isinstance(m, AddPartitionsToTxnRequest)]
    assert len(added) == asked
    for message in added:
        assert message.v3_and_below_transactional_id == "app/0.0"
        ids = (message.v3_and_below_producer_id, message.v3_and_below_producer_epoch)
        assert ids == (77, 3)
        assert message.v3_and_below_topics[0].partitions == [0, 1]
    assert request.max_version == (11 if version < 2 else 12)  # by name
    assert isinstance(request.message, ProduceRequest)
    assert request.message.transactional_id == "app/0.0"
    for batch in batches(request):
        (read,) = read_log(b"".join(map(bytes, batch.stamp().buffers)))
        assert read.is_transactional
        assert (batch.producer, batch.base_sequence) == (PRODUCER, 0)


def test_it_tells_what_was_written_to_each_partition() -> None:
    transaction = joined()
    producer = joining(transaction)
    producer.append(0, [*FULL, *FULL])
    producer.append(1, [b"small"])
    (first,) = producer.poll()
    producer.answer(first, base_offset=40)
    (second,) = producer.poll()
    assert sequences(second) == [2]
    producer.answer(second, base_offset=50)
    finish(producer, transaction)
    written = transaction.partitions
    assert (written[FIRST].first_offset, written[FIRST].last_offset) == (40, 51)
    assert (written[FIRST].records, written[FIRST].last_sequence) == (4, 3)
    assert (written[SECOND].records, written[SECOND].last_sequence) == (1, 0)
    assert written[FIRST].went_back is None
    assert not written[FIRST].duplicates
    assert transaction.deliveries.partitions[FIRST].records == 4


def test_it_flags_a_batch_that_its_broker_has_already_and_one_that_goes_back() -> None:
    transaction = joined()
    producer = joining(transaction, [1])
    producer.append(0, [*FULL, *FULL])
    (first,) = producer.poll()
    producer.lose(first)
    producer.now += 1.0
    (again,) = producer.poll()
    assert bytes_of(again) == bytes_of(first)
    answer_as_duplicate(producer, again, offset=40)
    (second,) = producer.poll()
    producer.answer(second, base_offset=20)
    finish(producer, transaction)
    written = transaction.partitions[FIRST]
    (duplicate,) = written.duplicates
    assert (duplicate.base_offset, duplicate.attempts) == (40, 1)
    assert duplicate.sent == bytes_of(first)
    assert duplicate.is_in(bytes_of(first))
    assert not duplicate.is_in(bytes_of(second))
    assert not duplicate.is_in(None)
    assert written.went_back == (20, 41)


def test_no_batch_is_kept_if_duplicates_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic with LogAppendTime answers each batch as if it were a duplicate."""
    kept: list[ProducerBatch] = []
    monkeypatch.setattr(ProducerBatch, "keep", kept.append)
    transaction = joined(checks=False)
    producer = joining(transaction, [1])
    producer.append(0, [*FULL, *FULL])
    (first,) = producer.poll()
    producer.lose(first)
    producer.now += 1.0
    (again,) = producer.poll()
    answer_as_duplicate(producer, again, offset=40)
    (second,) = producer.poll()
    answer_as_duplicate(producer, second, offset=42)
    finish(producer, transaction)
    assert transaction.partitions[FIRST].records == 4
    assert transaction.partitions[FIRST].duplicates == []
    assert kept == []


def test_a_batch_that_was_sent_once_is_not_kept_and_is_in_no_log() -> None:
    transaction = joined()
    producer = joining(transaction, [1])
    producer.append(0, FULL)
    (first,) = producer.poll()
    answer_as_duplicate(producer, first, offset=40)
    finish(producer, transaction)
    (duplicate,) = transaction.partitions[FIRST].duplicates
    assert (duplicate.attempts, duplicate.sent) == (0, b"")
    assert not duplicate.is_in(bytes_of(first))


def test_first_batches_that_meet_those_of_others_go_again_soon_and_with_their_numbers() -> None:
    transaction = joined()
    producer = joining(transaction, [1], retry_backoff=50.0, retries=1)
    producer.append(0, [*FULL, *FULL])
    (request,) = producer.poll()
    for _ in range(7):
        request = sent_again(producer, request)
        assert sequences(request) == [0]
    assert producer.warnings == []
    producer.answer(request)
    (request,) = producer.poll()
    assert sequences(request) == [2]


def test_batches_that_meet_those_of_others_use_up_no_retries() -> None:
    transaction = joined()
    producer = joining(transaction, [1], retry_backoff=0.1, retries=2)
    producer.append(0, [*FULL, *FULL])
    (request,) = producer.poll()
    for _ in range(3):
        request = sent_again(producer, request)
    assert retried(producer, transaction) == {}
    producer.answer(request, NOT_LEADER)
    assert retried(producer, transaction) == {1: 1}
    producer.now += 0.121  # the wait before the first retry
    (request,) = producer.poll()
    producer.answer(request)
    finish(producer, transaction)
    assert transaction.deliveries.partitions[FIRST].retries == 1

    (request,) = producer.poll()
    for _ in range(3):
        assert transaction.error is None
        request = sent_again(producer, request)
        producer.answer(request, NOT_LEADER)
        producer.now += 1.0
        request = next(iter(producer.poll()), request)
    assert "NOT_LEADER_OR_FOLLOWER (6) from node 1 after 6 attempts" in str(transaction.error)


@pytest.mark.parametrize("log_start", [-1, 0, 7])
def test_a_broker_that_has_forgotten_the_producer_ends_it_at_once_and_says_why(
    log_start: int,
) -> None:
    transaction = joined()
    producer = joining(transaction, [1])
    producer.append(0, [*FULL, *FULL])
    (request,) = producer.poll()
    producer.answer(request)
    (request,) = producer.poll()
    producer.answer(request, UNKNOWN_PRODUCER, log_start_offset=log_start)
    assert producer.poll() == []
    assert "UNKNOWN_PRODUCER_ID (59)" in str(transaction.error)
    assert "the partition no longer has records of this producer" in str(transaction.error)


@pytest.mark.parametrize("code", [FENCED_EPOCH, OUT_OF_ORDER, UNKNOWN_PRODUCER])
def test_the_first_error_ends_it(code: int) -> None:
    transaction = joined()
    producer = joining(transaction)
    producer.append(0, [*FULL, *FULL])
    producer.append(1, [b"never sent"])
    (request,) = producer.poll()
    producer.answer(request, lambda index: code if index == 0 else 0, log_start_offset=0)
    assert producer.poll() == []
    assert producer.sender.fatal_error is transaction.error
    assert isinstance(transaction.error, ApiException)
    assert transaction.error.code == code
    failed = [batch for batch in producer.done() if batch.state is BatchState.FAILED]
    assert failed
    assert all(batch.error is transaction.error for batch in failed)


def test_what_brokers_refuse_is_said_without_words_about_aborting() -> None:
    transaction = joined()
    producer = joining(transaction, [1], delivery_timeout=1.0)
    producer.append(0, [b"late"])
    (request,) = producer.poll()
    producer.lose(request)
    producer.now = 2.0
    producer.poll()
    assert "delivery.timeout.ms=1000" in str(transaction.error)
    assert "abort" not in str(transaction.error)


def test_partitions_that_cannot_be_added_end_it() -> None:
    transaction = joined(1, adds=True)
    assert not transaction.may_send(FIRST)
    coordinator = TransactionCoordinator()
    look_up = transaction.due(0.0, has_incomplete=True)
    assert look_up is not None
    transaction.queue.sent()
    transaction.answered(look_up, coordinator.answer(look_up), COORDINATOR, 0.0)
    adding = transaction.due(0.0, has_incomplete=True)
    assert adding is not None
    transaction.queue.sent()
    transaction.answered(adding, coordinator.answer(adding, 51), COORDINATOR, 0.0)
    again = transaction.due(0.061, has_incomplete=True)
    assert again is adding, "it waits longer than the others take"
    transaction.queue.sent()
    transaction.answered(again, coordinator.answer(again, 90), COORDINATOR, 0.0)
    assert isinstance(transaction.fatal_error, ProducerFencedException)
    assert transaction.due(100.0, has_incomplete=True) is None


@pytest.mark.parametrize(
    ("call", "code", "resource"),
    [
        (Call.FIND_COORDINATOR, 53, "--transactional-id app/0.0"),
        (Call.ADD_PARTITIONS_TO_TXN, 53, "--transactional-id app/0.0"),
        (Call.ADD_PARTITIONS_TO_TXN, 29, "--topic t"),
    ],
)
def test_the_command_that_allows_partitions_names_what_the_broker_denied(
    call: Call, code: int, resource: str
) -> None:
    transaction = joined(1, adds=True)
    assert not transaction.may_send(FIRST)
    coordinator = TransactionCoordinator()
    while transaction.error is None:
        request = transaction.due(0.0, has_incomplete=True)
        assert request is not None
        transaction.queue.sent()
        response = coordinator.answer(request, code if request.call is call else 0)
        transaction.answered(request, response, COORDINATOR, 0.0)
    command = f" --operation WRITE --operation DESCRIBE {resource}, where User:NAME is "
    assert command in str(transaction.error)


@pytest.mark.parametrize(
    ("code", "resource"), [(29, "--topic t"), (53, "--transactional-id app/0.0")]
)
def test_the_command_that_allows_a_batch_names_what_the_broker_denied(
    code: int, resource: str
) -> None:
    transaction = joined()
    producer = joining(transaction, [1])
    producer.metadata.advice = Acls().writer_advice
    producer.append(0, [b"a"])
    (request,) = producer.poll()
    producer.answer(request, code)
    command = f" --operation WRITE --operation DESCRIBE {resource}, where User:NAME is "
    assert command in str(transaction.error)


def test_it_goes_on_alone_as_before() -> None:
    producer = PureProducer([1])
    producer.ready()
    producer.append(0, [b"before"])
    (request,) = producer.poll()
    with pytest.raises(IllegalStateException, match="are pending: call flush first"):
        producer.sender.join(joined())
    producer.answer(request)
    with pytest.raises(IllegalStateException, match="has joined no transaction"):
        producer.sender.end_joined()

    for _ in range(2):
        producer.sender.join(joined())
        with pytest.raises(IllegalStateException, match="cannot join another transaction"):
            producer.sender.join(joined())
        producer.append(0, [b"inside"])
        (request,) = producer.poll()
        assert batches(request)[0].producer == PRODUCER
        assert sequences(request) == [0]
        with pytest.raises(IllegalStateException, match="are pending: call flush first"):
            producer.sender.end_joined()
        producer.answer(request)
        producer.sender.end_joined()

    producer.append(0, [b"after"])
    (request,) = producer.poll()
    assert isinstance(request.message, ProduceRequest)
    assert request.message.transactional_id is None
    (batch,) = batches(request)
    assert (batch.producer.producer_id, batch.base_sequence) == (4000, 1)
    assert not batch.is_transactional


def test_a_producer_that_failed_inside_tells_why() -> None:
    transaction = joined()
    producer = joining(transaction, [1])
    producer.append(0, [b"a"])
    (request,) = producer.poll()
    producer.answer(request, 31)
    producer.poll()
    assert isinstance(producer.sender.fatal_error, ClusterAuthorizationException)
    producer = joining(transaction := joined(), [1])
    producer.append(0, [b"a"])
    (request,) = producer.poll()
    producer.answer(request, 47)
    producer.poll()
    assert isinstance(producer.sender.fatal_error, InvalidProducerEpochException)


def joined_while_it_asks_for_an_id() -> tuple[PureProducer, ClientRequest]:
    """Return a producer that has joined a transaction, and its InitProducerId in flight."""
    producer = PureProducer([1])
    producer.ready()
    producer.append(0, [b"before"])
    (request,) = producer.sender.poll(producer.now).requests
    producer.now += producer.settings.delivery_timeout
    producer.poll()
    assert [type(batch.error) for batch in producer.done()] == [TimeoutException]
    producer.sender.join(joined())
    return producer, request


def write_in_the_transaction_and_after_it(producer: PureProducer) -> list[ProducerIdAndEpoch]:
    """Return the producer id of a batch in the joined transaction, and of one after it."""
    used = []
    for is_over in (False, True):
        if is_over:
            producer.sender.end_joined()
        producer.append(0, [b"row"])
        (request,) = producer.poll()
        used += [batch.producer for batch in batches(request)]
        producer.answer(request)
    assert [batch.error for batch in producer.done()] == [None, None]
    return used


def test_a_producer_id_that_comes_during_the_transaction_is_used_after_it() -> None:
    producer, request = joined_while_it_asks_for_an_id()
    producer.answer_other(request)
    assert write_in_the_transaction_and_after_it(producer) == [
        PRODUCER,
        ProducerIdAndEpoch(4000, 0),
    ]


@pytest.mark.parametrize("code", [NETWORK_EXCEPTION, CLUSTER_AUTHORIZATION])
@pytest.mark.parametrize("is_answered", [False, True], ids=["failed", "answered"])
def test_without_a_producer_id_the_transaction_goes_on_and_one_is_requested_after_it(
    code: int, *, is_answered: bool
) -> None:
    producer, request = joined_while_it_asks_for_an_id()
    if is_answered:
        response = InitProducerIdResponse(error_code=code)
        producer.sender.handle(Answered(request, 1, response), producer.now)
    else:
        producer.lose(request, code)
    producer.now += 1.0
    assert write_in_the_transaction_and_after_it(producer) == [
        PRODUCER,
        ProducerIdAndEpoch(4000, 0),
    ]
