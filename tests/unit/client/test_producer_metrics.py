"""The metrics of a producer, with state machines and brokers that the test controls."""

from __future__ import annotations

import math
from random import Random

import pytest
from support.brokers.scripted_broker import ScriptedBroker, describe
from support.documents.metrics_table import groups
from support.pure.in_memory_selector import InMemorySelector
from support.pure.pure_producer import TOPIC, PureProducer, Settings, batches

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.client.producer_metrics import ProducerMetrics
from spark_kafka_sink.metrics import Metrics
from spark_kafka_sink.network.client import NetworkClient
from spark_kafka_sink.network.network_metrics import NetworkMetrics
from spark_kafka_sink.network.node_state import NetworkConfig
from spark_kafka_sink.producer.buffer_pool import PendingAppend
from spark_kafka_sink.wire.exchange import Answered, ClientRequest
from spark_kafka_sink.wire.messages import (
    MetadataRequest,
    MetadataResponse,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

LOCAL = 1001


class Measured:
    """A pure producer, a network without sockets, and what they measure."""

    def __init__(self, settings: Settings | None = None, leaders: int = 1) -> None:
        self.producer = PureProducer([1] * leaders, settings or Settings())
        self.now = 0.0
        metrics = Metrics(tags={"client-id": "c"})
        self.network = NetworkMetrics(metrics)
        self.selector = InMemorySelector()
        backoff = ExponentialBackoff(0.05, 1.0)
        self.client = NetworkClient(
            self.selector,  # type: ignore[arg-type]  # the same calls, without sockets
            NetworkConfig(
                client_id="c",
                request_timeout_s=30.0,
                retry_backoff_max_s=1.0,
                reconnect_backoff=backoff,
                connection_setup_timeout=backoff,
                connections_max_idle_s=540.0,
            ),
            [],
            lambda: self.now,
            Random(1),
            metrics=self.network,
        )
        self.metrics = ProducerMetrics(
            metrics,
            self.network,
            accumulator=self.producer.accumulator,
            metadata=self.producer.metadata,
            client=self.client,
        )

    def value(self, name: str, *, topic: str = "", node: str = "") -> float:
        """Measure one metric."""
        tags = {"client-id": "c"} | ({"topic": topic} if topic else {})
        tags |= {"node-id": node} if node else {}
        found = self.metrics.measure(self.now)
        [value] = [v for n, v in found.items() if n.name == name and n.tags == tags]
        return value

    def send(self) -> list[ClientRequest]:
        """Let the producer send what is due, and measure it as the I/O thread does."""
        self.network.fold(self.now)
        self.producer.now = self.now
        requests = self.producer.poll()
        for request in requests:
            self.metrics.sent(batches(request), self.now)
        return requests


def test_all_metrics_of_the_table_are_there_once_a_topic_and_a_node_are_known() -> None:
    measured = Measured()
    measured.producer.ready()
    measured.producer.append(0, [b"a"])
    measured.send()
    measured.network.received(1, 1, 1)
    found = {(n.group, n.name, tuple(n.tags)) for n in measured.metrics.measure(0.0)}
    assert found == {(g.name, t.name, g.tags) for g in groups() for t in g.templates}


def test_a_request_is_measured_by_its_batches() -> None:
    measured = Measured(Settings(linger=10.0, compression="gzip"), leaders=3)
    measured.producer.ready()
    measured.producer.append(0, [b"x" * 100, b"x" * 100])
    measured.producer.append(1, [b"x" * 400])
    measured.now = 11.0
    [request] = measured.send()
    sizes = [batch.sent_bytes for batch in batches(request)]
    assert measured.value("record-send-total") == 3
    assert measured.value("record-send-total", topic=TOPIC) == 3
    assert measured.value("records-per-request-avg") == 3
    assert measured.value("byte-total", topic=TOPIC) == sum(sizes)
    assert measured.value("batch-size-avg") == sum(sizes) / 2
    assert measured.value("batch-size-max") == max(sizes)
    assert measured.value("record-queue-time-max") == 11_000
    rates = [(batch.sent_bytes - 61) / batch.records_bytes for batch in batches(request)]
    assert max(rates) < 0.5
    assert measured.value("compression-rate-avg") == pytest.approx(sum(rates) / 2)
    assert measured.value("compression-rate", topic=TOPIC) == pytest.approx(sum(rates) / 2)
    assert measured.value("record-retry-total") == 0


def test_records_without_compression_have_a_rate_of_one() -> None:
    measured = Measured()
    measured.producer.ready()
    measured.producer.append(0, [b"x" * 100])
    measured.send()
    assert measured.value("compression-rate-avg") == 1


def test_records_that_are_sent_again_are_sent_twice_and_retried_once() -> None:
    measured = Measured()
    measured.producer.ready()
    measured.producer.append(0, [b"a", b"b"])
    [request] = measured.send()
    measured.producer.lose(request)
    assert measured.send() == []
    measured.now = 5.0
    [again] = measured.send()
    assert batches(again) == batches(request)
    assert measured.value("record-send-total") == 4
    assert measured.value("record-retry-total") == 2
    assert measured.value("record-retry-total", topic=TOPIC) == 2
    assert measured.value("record-retry-rate") == 2 / 30


def test_records_given_up_and_records_refused_are_errors() -> None:
    measured = Measured()
    measured.producer.ready()
    measured.producer.append(0, [b"a", b"b"])
    [request] = measured.send()
    measured.producer.answer(request, 10)
    for batch in measured.producer.done():
        measured.metrics.failed(batch, 0.0)
    assert measured.value("record-error-total") == 2
    assert measured.value("record-error-total", topic=TOPIC) == 2
    measured.metrics.refused(5, 0.0, exhausted=False)
    assert (measured.value("record-error-total"), measured.value("buffer-exhausted-total")) == (
        7,
        0,
    )
    measured.metrics.refused(1, 0.0, exhausted=True)
    assert (measured.value("record-error-total"), measured.value("buffer-exhausted-total")) == (
        8,
        1,
    )
    assert measured.value("record-error-total", topic=TOPIC) == 2


def test_latency_is_that_of_produce_requests_and_throttling_that_of_all() -> None:
    measured = Measured()
    request = ClientRequest(node_id=1, message=MetadataRequest(topics=[]))
    produced = ProduceResponse(responses=[], throttle_time_ms=30)
    metadata = MetadataResponse(brokers=[], topics=[], throttle_time_ms=10)
    measured.metrics.answered(Answered(request, 1, produced, 13, 0.25))
    measured.metrics.answered(Answered(request, 2, produced, 13, 0.75))
    measured.metrics.answered(Answered(request, 1, metadata, 13, 9.0))
    # With acks=0 there is no response.
    measured.metrics.answered(Answered(request, 1, None))
    assert measured.value("request-latency-avg") == 500
    assert measured.value("request-latency-max", node="node-1") == 250
    assert measured.value("request-latency-max", node="node-2") == 750
    assert measured.value("produce-throttle-time-max") == 30
    assert measured.value("produce-throttle-time-avg") == pytest.approx(70 / 3)
    assert measured.metrics.throttle_time_ms == 60


def test_what_a_broker_answers_to_a_producer_is_measured_with_its_latency_and_throttling() -> None:
    answer = PartitionProduceResponse(index=0, error_code=0, base_offset=0)
    topic = TopicProduceResponse(name=TOPIC, partition_responses=[answer])
    with ScriptedBroker() as broker:
        broker.metadata = describe(broker.port, TOPIC)
        broker.produced = ProduceResponse(responses=[topic], throttle_time_ms=30)
        config = {"bootstrap.servers": broker.address, "enable.idempotence": False}
        with KafkaProducer(config) as producer:
            producer.send(TOPIC, b"v").result(20)
            measured = {n.name: v for n, v in producer.metrics().items() if len(n.tags) == 1}
    assert measured["produce-throttle-time-max"] == 30
    assert measured["request-latency-max"] > 0


def test_memory_is_read_off_the_accumulator() -> None:
    measured = Measured(Settings(buffer_memory=5000))
    assert measured.value("buffer-total-bytes") == 5000
    assert measured.value("buffer-available-bytes") == 5000
    pool = measured.producer.accumulator.pool
    pool.reserve(PendingAppend(), 1200)
    pool.wait(PendingAppend())
    pool.wait(PendingAppend())
    assert measured.value("buffer-available-bytes") == 3800
    assert measured.value("waiting-threads") == 2


def test_waits_are_totals_of_nanoseconds() -> None:
    measured = Measured()
    measured.metrics.waited_for_memory(3e9, 10.0)
    measured.now = 10.0
    assert measured.value("bufferpool-wait-time-ns-total") == 3e9
    assert measured.value("bufferpool-wait-ratio") == 0.1
    measured.metrics.record_time("txn-commit", 5)
    measured.metrics.record_time("txn-commit", 6)
    assert measured.value("txn-commit-time-ns-total") == 11
    assert measured.value("txn-abort-time-ns-total") == 0
    assert measured.value("flush-time-ns-total") == 0


def test_record_sizes_are_over_records_and_splits_over_batches() -> None:
    measured = Measured()
    measured.metrics.appended(10, 1000, 300, 0.0)
    measured.metrics.appended(30, 1000, 200, 0.0)
    assert measured.value("record-size-avg") == 50
    assert measured.value("record-size-max") == 300
    measured.metrics.split(0.0)
    assert measured.value("batch-split-total") == 1


def test_metadata_has_an_age_once_it_is_there() -> None:
    measured = Measured()
    assert math.isnan(measured.value("metadata-age"))
    measured.producer.ready()
    measured.now = 7.5
    assert measured.value("metadata-age") == 7.5
