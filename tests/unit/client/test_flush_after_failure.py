"""A flush of a producer that cannot go on, or is closed meanwhile: it waits, and then raises.

If the close has lost nothing of what the flush is about, the flush raises nothing.
"""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from support.brokers.scripted_broker import ScriptedBroker, describe
from support.pure.idle_producer import idle_producer
from support.pure.pure_producer import TOPIC
from support.pure.state_waits import wait_until

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import AuthenticationException, KafkaException, ProducerFencedException
from spark_kafka_sink.wire.messages import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

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


# -- another thread closes the producer meanwhile -------------------------------------------------


class Flushing:
    """A flush in another thread; `error` is what it raised."""

    def __init__(self, producer: KafkaProducer) -> None:
        self.error: BaseException | None = None
        self._producer = producer
        self._thread = threading.Thread(target=self._flush)
        self._thread.start()
        wait_until(producer, lambda: producer._state.accumulator.flushes)

    def _flush(self) -> None:
        try:
            self._producer.flush()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join(A_WHILE_S)
        assert not self._thread.is_alive()


def test_a_flush_during_which_the_producer_is_closed_returns_when_all_rows_have_ended() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def callback(*_: object) -> None:
        begun.set()
        assert may_end.wait(A_WHILE_S)

    with ScriptedBroker() as broker:
        broker.metadata = describe(broker.port, TOPIC)
        answer = PartitionProduceResponse(index=0, error_code=0, base_offset=7)
        topic = TopicProduceResponse(name=TOPIC, partition_responses=[answer])
        broker.produced = ProduceResponse(responses=[topic])
        config = {"bootstrap.servers": broker.address, "enable.idempotence": False}
        producer = KafkaProducer(config)
        sent = producer.send(TOPIC, b"v", on_delivery=callback)
        flushing = Flushing(producer)
        assert begun.wait(A_WHILE_S)
        closing = threading.Thread(target=producer.close)
        closing.start()
        wait_until(producer, lambda: producer._caller.is_closed)
        may_end.set()
        closing.join(A_WHILE_S)
        flushing.join()
    assert flushing.error is None
    assert sent.exception(0) is None


def test_a_flush_returns_if_the_rows_that_a_close_drops_have_told_their_owners() -> None:
    failures = list[object]()
    with idle_producer(1) as producer:
        sent = producer.send(TOPIC, b"v")
        producer.append(TOPIC, pa.record_batch({"value": ["v"]}), failures.append)
        flushing = Flushing(producer)
        producer.close(0)
        flushing.join()
    assert flushing.error is None
    assert "closed forcefully" in str(sent.exception(0))
    assert len(failures) == 1


def test_a_flush_raises_the_error_of_rows_that_a_close_drops() -> None:
    with idle_producer(1) as producer:
        producer.append(TOPIC, pa.record_batch({"value": ["v"]}))
        flushing = Flushing(producer)
        producer.close(0)
        flushing.join()
    assert isinstance(flushing.error, KafkaException)
    assert "closed forcefully" in str(flushing.error)


def test_a_flush_raises_the_error_of_lost_rows_although_close_has_raised_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised = list[KafkaException | None]()
    with idle_producer(1) as producer:
        producer.append(TOPIC, pa.record_batch({"value": ["v"]}))

        def close_meanwhile(*_: object) -> None:
            producer.close(0)
            raised.append(producer._caller.take_error_of_close())  # as a close that has waited

        monkeypatch.setattr(producer, "_flush", close_meanwhile)
        with pytest.raises(KafkaException) as flushed:
            producer.flush()
    assert raised == [flushed.value]


def test_a_flush_raises_the_fatal_error_that_came_before_a_close() -> None:
    begun, may_end, error = threading.Event(), threading.Event(), ProducerFencedException("no")

    def callback(*_: object) -> None:
        begun.set()
        assert may_end.wait(A_WHILE_S)

    with idle_producer(1) as producer:
        producer.send(TOPIC, b"v", on_delivery=callback)
        flushing = Flushing(producer)
        producer._state.give_up(error)
        assert begun.wait(A_WHILE_S)
        closing = threading.Thread(target=producer.close, args=(0,))
        closing.start()
        wait_until(producer, lambda: producer._state._is_stopping)
        may_end.set()
        closing.join(A_WHILE_S)
        flushing.join()
    assert flushing.error is error
