"""The sender is polled again exactly when something is due."""

from __future__ import annotations

import pytest
from support.pure.pure_producer import PureProducer, Settings, batches

from spark_kafka_sink.errors import TimeoutException
from spark_kafka_sink.producer.error_actions import Call
from spark_kafka_sink.producer.transactions.requests import TransactionalRequest
from spark_kafka_sink.wire.exchange import Answered, ClientRequest, RequestFailed
from spark_kafka_sink.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    ProduceRequest,
)

FULL = [b"x" * 400, b"y" * 400]
"""Two of these records fill a batch of 1000 bytes."""
CORRUPT, TIMED_OUT, LOADING = 2, 7, 14


def poll(producer: PureProducer) -> list[ClientRequest]:
    """Return the requests that are due now, without answering them."""
    work = producer.sender.poll(producer.now)
    return [*work.requests, *(producer.sender.build(drained) for drained in work.drained)]


def wait(producer: PureProducer) -> float:
    """Let time pass as an idle I/O thread does; return its length."""
    began_at = producer.now
    due_at = producer.sender.poll(began_at).next_poll_at
    producer.now = began_at + (due_at - began_at) * 0.999
    assert poll(producer) == [], "due before the sender wanted to be polled"
    producer.now = due_at
    return due_at - began_at


def test_a_batch_to_be_sent_again_goes_when_its_back_off_is_over() -> None:
    producer = PureProducer([1])
    producer.ready()
    producer.append(0, FULL)
    producer.answer(producer.poll()[0], CORRUPT)
    wait(producer)
    (again,) = poll(producer)
    assert [batch.attempts for batch in batches(again)] == [1]


def test_the_back_off_of_a_batch_grows_with_its_attempts_up_to_the_maximum() -> None:
    producer = PureProducer([1])
    producer.ready()
    producer.append(0, FULL)
    waits = []
    for _ in range(6):
        (request,) = producer.poll()
        producer.answer(request, CORRUPT)
        waits.append(wait(producer))
    assert waits == [pytest.approx(s, rel=0.2) for s in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0)]


def test_metadata_is_asked_for_when_it_is_too_old_though_nothing_is_to_be_sent() -> None:
    producer = PureProducer([1])
    producer.ready()
    assert wait(producer) == pytest.approx(300.0)
    (asked,) = poll(producer)
    assert isinstance(asked.message, MetadataRequest)


def test_metadata_that_was_not_answered_is_asked_for_after_the_back_off() -> None:
    producer = PureProducer([1])
    (asked,) = poll(producer)
    producer.sender.handle(RequestFailed(asked, 1, TIMED_OUT, "no answer"), producer.now)
    wait(producer)
    (again,) = poll(producer)
    assert isinstance(again.message, MetadataRequest)


def test_a_producer_id_that_a_broker_cannot_give_yet_is_asked_for_after_the_back_off() -> None:
    producer = PureProducer([1])
    producer.ready()
    producer.append(0, FULL)
    for _ in range(2):
        (asked,) = poll(producer)
        assert isinstance(asked.message, InitProducerIdRequest)
        loading = Answered(asked, 1, InitProducerIdResponse(error_code=LOADING))
        producer.sender.handle(loading, producer.now)
        wait(producer)
    (request,) = producer.poll()
    assert isinstance(request.message, ProduceRequest)


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, -1), (-1, 0), (7, -1)])
def test_a_producer_id_that_no_broker_assigns_is_asked_for_again_and_named_at_the_end(
    producer_id: int, epoch: int
) -> None:
    producer = PureProducer([1])
    producer.ready()
    producer.append(0, FULL)
    for _ in range(2):
        (asked,) = poll(producer)
        assert isinstance(asked.message, InitProducerIdRequest)
        answer = InitProducerIdResponse(error_code=0, producer_id=producer_id, producer_epoch=epoch)
        producer.sender.handle(Answered(asked, 1, answer), producer.now)
        assert poll(producer) == [], "it was asked for again without a back-off"
        wait(producer)
    producer.now += 1000
    poll(producer)
    (batch,) = producer.done()
    assert isinstance(batch.error, TimeoutException)
    found = f"the response has producer id {producer_id} and epoch {epoch}: expected"
    assert found in str(batch.error)


def test_a_coordinator_that_is_not_ready_yet_is_asked_again_after_the_back_off() -> None:
    producer = PureProducer([1], Settings(transaction_version=2))
    assert producer.transactions is not None
    producer.ready()
    result = producer.transactions.initialize()
    code = 0
    for call in (Call.FIND_COORDINATOR, Call.INIT_PRODUCER_ID):
        (asked,) = poll(producer)
        assert isinstance(asked.context, TransactionalRequest)
        assert asked.context.call is call
        code = LOADING if call is Call.INIT_PRODUCER_ID else 0
        response = producer.coordinator.answer(asked.context, code)
        producer.sender.handle(Answered(asked, 1, response), producer.now)
    wait(producer)
    producer.poll()
    assert (result.is_done, result.error) == (True, None)
