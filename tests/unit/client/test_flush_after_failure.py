"""A flush of a producer that cannot go on: it waits like any other flush, and then raises."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from support.pure.idle_producer import idle_producer
from support.pure.pure_producer import TOPIC
from support.pure.state_waits import wait_until

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import AuthenticationException, KafkaException, ProducerFencedException

A_WHILE_S = 20


def fail(producer: KafkaProducer, error: KafkaException) -> None:
    """Fail a producer as an error does after which nothing can be delivered."""
    state = producer._state
    with state.lock:
        state._sender.fail_all(error)
        state.wake()


@pytest.mark.parametrize("error", [ProducerFencedException("no"), AuthenticationException("no")])
@pytest.mark.parametrize("by_row", [True, False])
def test_a_flush_after_a_fatal_error_raises_it_when_the_callbacks_have_ended(
    error: KafkaException, *, by_row: bool
) -> None:
    begun, may_end, order = threading.Event(), threading.Event(), list[str]()

    def callback(*_: object) -> None:
        begun.set()
        assert may_end.wait(A_WHILE_S)
        order.append("callback")

    def flush() -> None:
        with pytest.raises(type(error)):
            producer.flush()
        order.append("flush")

    with idle_producer(1) as producer:
        if by_row:
            producer.send(TOPIC, b"v", on_delivery=callback)
            producer._feeder.drain()
        else:
            producer.append(TOPIC, pa.record_batch({"value": ["v"]}), callback)
        fail(producer, error)
        assert begun.wait(A_WHILE_S)
        flushing = threading.Thread(target=flush)
        flushing.start()
        wait_until(producer, lambda: producer._state._waiters._signals or not flushing.is_alive())
        may_end.set()
        flushing.join(A_WHILE_S)
    assert order == ["callback", "flush"]


@pytest.mark.parametrize("partitioner", [None, lambda _, batch, __: [0] * batch.num_rows])
def test_a_flush_after_a_fatal_error_ends_rows_that_still_lingered(partitioner: object) -> None:
    options = {} if partitioner is None else {"partitioner_class": partitioner}
    with idle_producer(1, **options) as producer:
        sent = [producer.send(TOPIC, b"v") for _ in range(3)]
        error = ProducerFencedException("no")
        fail(producer, error)
        with pytest.raises(ProducerFencedException):
            producer.flush()
        assert [each.exception(0) for each in sent] == [error] * 3
        # The producer has nothing left to wait for.
        with pytest.raises(ProducerFencedException):
            producer.flush(0)
