"""A network that delays, cuts, drops and garbles: every row once and in order, or an error.

A proxy is between the producer and a real broker; readers bypass it. FAULT_ROUNDS is the number of
random faults (make test-faults); FAULT_SEED repeats a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random, SystemRandom
from typing import NamedTuple

import pytest
from support.brokers.fault_proxy import (
    API_VERSIONS,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    Fault,
    FaultProxy,
    Kind,
)
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.numbered_rows import NumberedRows, numbers
from support.oracles.readers import (
    READERS,
    create_topic,
    read_with_confluent,
    read_with_kafka_python,
)
from support.pure.state_waits import wait_until

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import BufferExhaustedException, TimeoutException
from spark_kafka_sink.model import TopicPartition

pytestmark = pytest.mark.kafka

_PARTITIONS = 3
_ROUNDS = int(os.environ.get("FAULT_ROUNDS", "5"))
_SEED = int(os.environ.get("FAULT_SEED", SystemRandom().randrange(10**9)))
_FOR_EVER = 10**9


class Proxied(NamedTuple):
    """A broker behind a proxy, and a topic of its own for each test."""

    kafka: KafkaCluster
    proxy: FaultProxy
    topic: str

    def producer(self, **settings: object) -> KafkaProducer:
        """Make a producer that soon notices silence; settings with _ for the dots."""
        given = {name.replace("_", "."): value for name, value in settings.items()}
        return KafkaProducer(
            {
                "bootstrap.servers": f"127.0.0.1:{self.proxy.port}",
                "linger.ms": 0,
                "request.timeout.ms": 1000,
                "socket.connection.setup.timeout.ms": 1000,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                **given,
            }
        )

    def rows(self, producer: KafkaProducer) -> NumberedRows:
        """Rows for the topic."""
        return NumberedRows(producer, self.topic, _PARTITIONS)


@pytest.fixture
def proxied(
    proxied_kafka: tuple[KafkaCluster, FaultProxy], request: pytest.FixtureRequest
) -> Iterator[Proxied]:
    """The proxy without faults, and a new topic."""
    kafka, proxy = proxied_kafka
    topic = f"topic-{abs(hash(request.node.nodeid))}"
    create_topic(kafka.bootstrap, topic, _PARTITIONS)
    proxy.clear()
    yield Proxied(kafka, proxy, topic)
    proxy.clear()


def wait_for_trouble(producer: KafkaProducer, text: str) -> None:
    """Wait until the producer has met that failure of a connection."""
    wait_until(producer, lambda: text in producer._thread.network_trouble)


def acknowledged(producer: KafkaProducer, topic: str) -> dict[int, int]:
    """Return the number of acknowledged records, by partition."""
    known = producer._state.take_deliveries()
    return {
        number: known[TopicPartition(topic, number)].records
        for number in range(_PARTITIONS)
        if TopicPartition(topic, number) in known
    }


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
def test_every_row_is_there_once_and_in_order_whatever_happens_to_a_produce(
    proxied: Proxied, kind: Kind
) -> None:
    with proxied.producer() as producer:
        rows = proxied.rows(producer)
        rows.append(10)
        producer.flush(30)
        fault = proxied.proxy.inject(Fault(kind=kind, nth=3, times=2, delay_s=0.3))
        rows.append_until(fault.happened.is_set)
        for _ in range(20):
            rows.append(50)
        producer.flush(60)
        assert acknowledged(producer, proxied.topic) == dict.fromkeys(range(3), rows.appended)
    for read in READERS.values():
        rows.check(read(proxied.kafka.bootstrap, proxied.topic))


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
def test_a_producer_gets_going_whatever_happens_to_its_first_requests(
    proxied: Proxied, kind: Kind
) -> None:
    faults = [
        proxied.proxy.inject(Fault(kind=kind, api_key=api_key, delay_s=0.1))
        for api_key in (API_VERSIONS, METADATA, INIT_PRODUCER_ID)
    ]
    with proxied.producer() as producer:
        rows = proxied.rows(producer)
        rows.append(5)
        producer.flush(30)
    assert all(fault.happened.is_set() for fault in faults)
    rows.check(read_with_confluent(proxied.kafka.bootstrap, proxied.topic))


def test_rows_appended_while_nothing_listens_are_sent_when_it_does_again(proxied: Proxied) -> None:
    with proxied.producer() as producer:
        rows = proxied.rows(producer)
        rows.append(10)
        with proxied.proxy.refusing():
            rows.append(100)
            wait_for_trouble(producer, "Connection refused")
            rows.append(100)
        producer.flush(60)
    rows.check(read_with_kafka_python(proxied.kafka.bootstrap, proxied.topic))


def test_without_idempotence_a_lost_answer_is_a_row_twice_and_never_none(proxied: Proxied) -> None:
    """The control of the tests above: their faults harm a producer without sequences."""
    fault = proxied.proxy.inject(Fault(kind=Kind.DROP_ANSWER))
    with proxied.producer(
        enable_idempotence=False, **{"max.in.flight.requests.per.connection": 1}
    ) as producer:
        rows = proxied.rows(producer)
        rows.append(10)
        producer.flush(60)
        assert fault.happened.is_set()
    found = numbers(read_with_confluent(proxied.kafka.bootstrap, proxied.topic))
    assert {number for seen in found.values() for number in seen} == set(range(10))
    assert any(seen == [*range(10), *range(10)] for seen in found.values())


def test_rows_that_cannot_be_sent_are_an_error_after_delivery_timeout_ms(proxied: Proxied) -> None:
    with proxied.producer(delivery_timeout_ms=2000) as producer:
        rows = proxied.rows(producer)
        rows.append(10)
        producer.flush(30)
        with proxied.proxy.refusing():
            NumberedRows(producer, proxied.topic, _PARTITIONS).append(5)
            # Without the producer's own limit, this would be flush's, with another message.
            with pytest.raises(
                TimeoutException,
                match=rf"{proxied.topic}-\d: 5 record\(s\) were not acknowledged within "
                r"delivery\.timeout\.ms=2000: waiting to be sent",
            ) as failed:
                producer.flush(60)
        assert (failed.value.topic, failed.value.api) == (proxied.topic, "Produce")
        assert failed.value.partition in range(_PARTITIONS)
        rows.append(10)
        producer.flush(60)
    rows.check(read_with_confluent(proxied.kafka.bootstrap, proxied.topic))


@pytest.mark.parametrize("kind", [Kind.DROP_ANSWER, Kind.SILENCE], ids=["dropped", "silence"])
def test_rows_whose_answers_never_come_are_an_error_and_there_at_most_once(
    proxied: Proxied, kind: Kind
) -> None:
    with proxied.producer(delivery_timeout_ms=2000) as producer:
        rows = proxied.rows(producer)
        rows.append(10)
        producer.flush(30)
        proxied.proxy.inject(Fault(kind=kind, times=_FOR_EVER))
        rows.append(5)
        with pytest.raises(TimeoutException, match=r"within delivery\.timeout\.ms=2000"):
            producer.flush(60)
        proxied.proxy.clear()
        rows.append(10)
        producer.flush(60)
        assert acknowledged(producer, proxied.topic) == dict.fromkeys(range(3), 20)
    # The broker had them, so they are there: reported as not acknowledged, which is what is known.
    rows.check(read_with_confluent(proxied.kafka.bootstrap, proxied.topic))


def test_memory_that_a_silent_broker_keeps_full_is_an_error_after_max_block_ms(
    proxied: Proxied,
) -> None:
    with proxied.producer(max_block_ms=2000, buffer_memory=50_000) as producer:
        rows = proxied.rows(producer)
        rows.append(10)
        producer.flush(30)
        proxied.proxy.inject(Fault(kind=Kind.SILENCE, times=_FOR_EVER))
        said = (
            r"no room for \d+ bytes within max\.block\.ms=2000: buffer\.memory=50000 "
            "is full of records that no broker has acknowledged yet"
        )
        with pytest.raises(BufferExhaustedException, match=said):
            # Of a batch over a quarter of buffer.memory a part may be taken: these are smaller.
            rows.append_until(lambda: False, step=20)
        proxied.proxy.clear()
        producer.flush(60)
        rows.append(10)
        producer.flush(60)
    rows.check(read_with_confluent(proxied.kafka.bootstrap, proxied.topic))


def test_closing_waits_no_longer_than_it_is_told(proxied: Proxied) -> None:
    producer = proxied.producer(request_timeout_ms=30_000)
    rows = proxied.rows(producer)
    rows.append(10)
    producer.flush(30)
    proxied.proxy.inject(Fault(kind=Kind.SILENCE, times=_FOR_EVER))
    rows.append(10)
    with pytest.raises(TimeoutException, match=r"batch\(es\) not acknowledged in 0\.3 s"):
        producer.close(0.3)
    assert not producer._thread._thread.is_alive()


def test_a_bootstrap_address_that_refuses_is_named_after_max_block_ms(proxied: Proxied) -> None:
    said = (
        r"no broker has answered within max\.block\.ms=2000; check .*"
        rf"127\.0\.0\.1:{proxied.proxy.port}.*Connection refused"
    )
    with (
        proxied.proxy.refusing(),
        proxied.producer(max_block_ms=2000) as producer,
        pytest.raises(TimeoutException, match=said),
    ):
        producer.partitions_for(proxied.topic)


@pytest.mark.long(reason="make test-faults runs it, many times over; each fault is met above")
def test_many_random_faults_one_after_another(proxied: Proxied) -> None:
    print(f"FAULT_SEED={_SEED}")
    random = Random(_SEED)
    with proxied.producer(compression_type="lz4", delivery_timeout_ms=60_000) as producer:
        rows = proxied.rows(producer)
        rows.append(10)
        producer.flush(30)
        for _ in range(_ROUNDS):
            fault = Fault(
                kind=random.choice(list(Kind)),
                nth=random.randint(1, 8),
                times=random.randint(1, 3),
                delay_s=random.random(),
            )
            print(fault)
            proxied.proxy.inject(fault)
            rows.append_until(fault.happened.is_set, step=random.randint(1, 300))
            if random.random() < 0.3:
                producer.flush(60)
            proxied.proxy.clear()
        producer.flush(60)
    assert proxied.proxy.requests[PRODUCE] > 2 * _ROUNDS
    rows.check(read_with_confluent(proxied.kafka.bootstrap, proxied.topic))
