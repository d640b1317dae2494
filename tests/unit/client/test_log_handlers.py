"""A user's handler of the log that raises, or calls the producer: rows end, and nothing stops."""

from __future__ import annotations

import threading
import time

import pytest
from support.brokers.scripted_broker import ScriptedBroker, describe
from support.pure.idle_producer import idle_producer
from support.pure.log_handlers import handling
from support.pure.pure_producer import TOPIC
from support.pure.unreachable import NOBODY

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.error_codes import REBOOTSTRAP_REQUIRED
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
