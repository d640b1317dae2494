"""A flush of a producer that cannot go on, or is closed meanwhile: it waits, and then raises.

If the close has lost nothing of what the flush is about, the flush raises nothing. Nothing hangs,
not even if an exception leaves a batch half changed. Other calls raise the same error, and keep
nothing in memory.
"""

from __future__ import annotations

import threading
import weakref
from traceback import walk_tb

import pyarrow as pa
import pytest
from support.brokers.scripted_broker import ScriptedBroker, describe
from support.pure.idle_producer import idle_producer
from support.pure.pure_producer import TOPIC
from support.pure.state_waits import wait_until

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import AuthenticationException, KafkaException, ProducerFencedException
from spark_kafka_sink.producer.accumulator import RecordAccumulator
from spark_kafka_sink.producer.completion import Deliveries
from spark_kafka_sink.producer.producer_batch import ProducerBatch
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


def test_after_a_fatal_error_no_call_keeps_what_earlier_calls_were_given() -> None:
    error, given = ProducerFencedException("no"), list[weakref.ref[pa.RecordBatch]]()
    with idle_producer(1) as producer:
        fail(producer, error)
        for _ in range(20):
            rows = pa.record_batch({"value": ["v"]})
            given.append(weakref.ref(rows))
            with pytest.raises(ProducerFencedException):
                producer.append(TOPIC, rows)
            assert producer.send(TOPIC, b"v").exception(0) is error
    assert sum(each() is not None for each in given) <= 1
    assert len(list(walk_tb(error.__traceback__))) < 20


# -- another thread closes the producer meanwhile -------------------------------------------------


class Flushing:
    """A flush in another thread; `error` is what it raised."""

    def __init__(self, producer: KafkaProducer) -> None:
        self.error: BaseException | None = None
        self._producer = producer
        self._thread = threading.Thread(target=self._flush, daemon=True)
        self._thread.start()
        accumulator = producer._state.accumulator
        wait_until(producer, lambda: accumulator.flushes or not self._thread.is_alive())

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


# -- an exception in the middle of a change to a batch --------------------------------------------


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, is_late: bool) -> None:
    """Let the first call of a method raise MemoryError. is_late: after it has done its work."""
    method, calls = getattr(owner, name), list[int]()

    def failing(*args: object, **kwargs: object) -> object:
        calls.append(1)
        returned = method(*args, **kwargs) if is_late or len(calls) > 1 else None
        if len(calls) == 1:
            message = "injected"
            raise MemoryError(message)
        return returned

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize(
    ("owner", "name", "code", "acknowledged"),
    [
        (ProducerBatch, "sent", codes.NONE, 0),
        (RecordAccumulator, "complete", codes.NONE, 2),
        (Deliveries, "add", codes.NONE, 3),
        (RecordAccumulator, "reenqueue", codes.NOT_LEADER_OR_FOLLOWER, 0),
        (ProducerBatch, "split_into", codes.MESSAGE_TOO_LARGE, 0),
    ],
)
def test_a_flush_and_each_row_end_if_an_exception_leaves_a_batch_half_changed(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, code: int, acknowledged: int
) -> None:
    called = list[int]()
    with ScriptedBroker() as broker:
        broker.metadata = describe(broker.port, TOPIC, "other")
        answer = PartitionProduceResponse(index=0, error_code=code, base_offset=7)
        topics = [
            TopicProduceResponse(name=name, partition_responses=[answer])
            for name in (TOPIC, "other")
        ]
        broker.produced = ProduceResponse(responses=topics)
        config = {"bootstrap.servers": broker.address, "enable.idempotence": False}
        producer = KafkaProducer({**config, "linger.ms": 60_000})
        sent = [
            producer.send(topic, b"v", on_delivery=lambda *_, row=row: called.append(row))
            for row, topic in enumerate([TOPIC, TOPIC, "other"])
        ]
        fail_once(monkeypatch, owner, name, is_late=name == "split_into")
        flushing = Flushing(producer)
        flushing.join()
        ends = [future.exception(A_WHILE_S) for future in sent]
        producer.close(A_WHILE_S)
    said = "the producer's I/O thread failed: MemoryError: injected"
    assert said in str(flushing.error)
    assert ends[:acknowledged] == [None] * acknowledged
    assert all(said in str(end) for end in ends[acknowledged:])
    assert sorted(called) == [0, 1, 2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("owner", "name"), [(RecordAccumulator, "remove"), (Deliveries, "add")])
def test_rows_end_if_an_exception_comes_while_their_producer_is_closed(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    with idle_producer(1) as producer:
        sent = producer.send(TOPIC, b"in a batch")
        producer._feeder.drain()
        waiting = producer.send(TOPIC, b"in no batch")
        flushing = Flushing(producer)
        fail_once(monkeypatch, owner, name, is_late=False)
        producer.close(0)
        flushing.join()
        for future in (sent, waiting):
            assert "closed forcefully" in str(future.exception(A_WHILE_S))
