"""A user's handler of the log that raises, or calls the producer: rows end, and nothing stops."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext

import pyarrow as pa
import pytest
from support.brokers.scripted_broker import ScriptedBroker, describe
from support.pure.idle_producer import idle_producer
from support.pure.log_handlers import handling
from support.pure.pure_producer import TOPIC
from support.pure.unreachable import NOBODY, answer

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.error_codes import REBOOTSTRAP_REQUIRED
from spark_kafka_sink.model import ProducerRecord
from spark_kafka_sink.plugins.interceptors import ProducerInterceptor
from spark_kafka_sink.wire.messages import (
    MetadataResponse,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

ENOUGH_S = 20
NOT_ENOUGH_REPLICAS = 19
raising = pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt])


def produced(code: int) -> ProduceResponse:
    """Make the answer to one row."""
    answer = PartitionProduceResponse(index=0, error_code=code, base_offset=7)
    topic = TopicProduceResponse(name=TOPIC, partition_responses=[answer])
    return ProduceResponse(responses=[topic])


@raising
@pytest.mark.parametrize("words", ["connecting to", "NOT_ENOUGH_REPLICAS"])
def test_a_handler_that_raises_does_not_end_the_io_thread(
    words: str, kind: type[BaseException]
) -> None:
    with ScriptedBroker() as broker:
        broker.metadata, broker.produced = (
            describe(broker.port, TOPIC),
            produced(NOT_ENOUGH_REPLICAS),
        )

        def recover() -> None:
            broker.produced = produced(0)
            raise kind

        config = {"bootstrap.servers": broker.address, "enable.idempotence": False}
        with handling(words, recover) as handler, KafkaProducer(config) as producer:
            sent = producer.send(TOPIC, b"v")
            producer.flush(ENOUGH_S)
            assert sent.result(0).offset == 7
        assert handler.lines


@raising
def test_a_handler_that_raises_for_a_connection_lost_leaves_the_producer_usable(
    kind: type[BaseException],
) -> None:
    def fail() -> None:
        raise kind

    config = {"bootstrap.servers": NOBODY, "max.block.ms": 1}
    with handling("lost", fail) as handler, KafkaProducer(config) as producer:
        error = producer.send(TOPIC, b"v").exception(ENOUGH_S)
        assert handler.came.wait(ENOUGH_S)
        assert "within max.block.ms=1" in str(error)
        assert producer._thread.is_alive


class Failing(ProducerInterceptor):
    """Fails in every method, and notes those that run when a record is refused, or at the end."""

    def __init__(self, name: str, called: list[str]) -> None:
        self.name, self.called = name, called

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Fail."""
        raise ZeroDivisionError

    def on_acknowledgement(self, *_: object) -> None:
        """Fail."""
        self.called.append(self.name)
        raise ZeroDivisionError

    def close(self) -> None:
        """Fail."""
        self.called.append(f"close {self.name}")
        raise ZeroDivisionError


@raising
def test_a_handler_that_raises_in_a_caller_s_thread_keeps_no_interceptor_from_being_called(
    kind: type[BaseException],
) -> None:
    called: list[str] = []

    def fail() -> None:
        raise kind

    chain = [Failing("first", called), Failing("second", called)]
    config = {"bootstrap.servers": NOBODY, "max.block.ms": 0, "interceptor.classes": chain}
    producer = KafkaProducer(config)
    reaches_the_caller = nullcontext() if issubclass(kind, Exception) else pytest.raises(kind)
    with handling("interceptor <", fail) as handler:
        with reaches_the_caller:
            failed = producer.send(TOPIC, b"v")
            assert "after max.block.ms=0" in str(failed.exception(0))
        assert called == ["first", "second"]
    with handling("specified in interceptor.classes", fail) as closing, reaches_the_caller:
        producer.close()
    assert called[2:] == ["close first", "close second"]
    assert (len(handler.lines), len(closing.lines)) == (2, 2)
    assert not producer._thread.is_alive


def test_a_handler_that_raises_leaves_a_record_to_send_and_to_other_interceptors() -> None:
    def fail() -> None:
        raise RuntimeError

    chain = [Failing("first", []), Failing("second", [])]
    config = {"bootstrap.servers": NOBODY, "max.block.ms": 0, "interceptor.classes": chain}
    with handling("on_send of", fail) as handler, KafkaProducer(config) as producer:
        assert "after max.block.ms=0" in str(producer.send(TOPIC, b"v").exception(0))
    assert len(handler.lines) == 2


def test_a_handler_that_raises_does_not_replace_the_error_that_ended_a_with_block() -> None:
    def fail() -> None:
        raise RuntimeError

    short = {"delivery.timeout.ms": 1, "request.timeout.ms": 1, "linger.ms": 0}
    producer = KafkaProducer({"bootstrap.servers": NOBODY, **short})
    state = producer._state
    with state.lock:
        state.metadata.track("t", time.monotonic())
        state.metadata.update(answer([1]), time.monotonic())

    def fail_inside() -> None:
        with producer:
            producer.append("t", pa.record_batch({"value": ["v"]}))
            raise ZeroDivisionError

    with handling("closing KafkaProducer", fail) as handler, pytest.raises(ZeroDivisionError):
        fail_inside()
    assert len(handler.lines) == 1


def test_a_handler_may_wait_for_who_has_the_producer_s_lock() -> None:
    """Some handlers pass their lines to another thread, which sends them to Kafka."""
    found: list[bool] = []
    with idle_producer(1) as producer:
        lock = producer._state.lock

        def take_lock() -> None:
            def take() -> None:
                found.append(lock.acquire(timeout=5))
                lock.release()

            other = threading.Thread(target=take)
            other.start()
            other.join()

        with handling("connecting to the bootstrap servers again", take_lock) as handler:
            with lock:
                answer = MetadataResponse(brokers=[], topics=[], error_code=REBOOTSTRAP_REQUIRED)
                producer._state.metadata.update(answer, time.monotonic())
                producer._state.wake()
            assert handler.came.wait(ENOUGH_S)
    assert found == [True]
