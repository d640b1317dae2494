"""Tokens that end while rows are written: renewed in time, and a token endpoint that is away."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from support.brokers.secured_kafka import SecuredKafka
from support.brokers.steady_load import SteadyLoad
from support.brokers.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer
from support.oracles.readers import create_topic, read_with_confluent

from spark_kafka_sink import KafkaProducer

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.long(reason="tokens have to end, which takes up to a minute each"),
    pytest.mark.timeout(600),
]

PARTITIONS = 3


def wait(seconds: float) -> None:
    """Let time pass: it is what tokens live by."""
    threading.Event().wait(seconds)


def connections(producer: KafkaProducer) -> float:
    """Return how many connections were made so far."""
    return next(
        float(value)
        for metric, value in producer.metrics().items()
        if metric.name == "connection-creation-total"
    )


@contextmanager
def load(
    kafka: SecuredKafka, server: TokenServer, **more: str
) -> Iterator[tuple[KafkaProducer, SteadyLoad]]:
    """Write numbered rows for the time of a `with` block, then check that each is there once.

    Order is checked, too.
    """
    topic = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(kafka.bootstrap, topic, PARTITIONS)
    with KafkaProducer(options(kafka, server, **more)) as producer:
        running = SteadyLoad(producer, topic, PARTITIONS)
        try:
            running.wait_for_progress()
            yield producer, running
        finally:
            running.stop()
    running.rows.check(read_with_confluent(kafka.bootstrap, topic))


def options(kafka: SecuredKafka, server: TokenServer, **more: str) -> dict[str, Any]:
    """Return the options of the producer."""
    client = "sasl.oauthbearer.client.credentials.client"
    return {
        "bootstrap.servers": kafka.address("JWT"),
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(kafka.ca),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": server.url,
        f"{client}.id": CLIENT_ID,
        f"{client}.secret": CLIENT_SECRET,
        "linger.ms": "5",
    } | {name.replace("_", "."): value for name, value in more.items()}


def test_tokens_of_8_seconds_are_renewed_on_their_connections(secured_kafka: SecuredKafka) -> None:
    with TokenServer(secured_kafka.jwt_key.read_text(), life_s=8) as server:
        with load(secured_kafka, server) as (producer, _):
            made = connections(producer)
            wait(60)
            assert connections(producer) == made
        assert len(server.asked) >= 60 // 8


def test_an_idle_producer_goes_on_after_three_lives_of_a_token(
    secured_kafka: SecuredKafka,
) -> None:
    topic = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(secured_kafka.bootstrap, topic, 1)
    with (
        TokenServer(secured_kafka.jwt_key.read_text(), life_s=5) as server,
        KafkaProducer(options(secured_kafka, server)) as producer,
    ):
        for row in ("before", "after"):
            producer.append(topic, pa.record_batch({"value": [row]}))
            producer.flush()
            made = connections(producer)
            if row == "before":
                wait(16)
        assert connections(producer) == made
        assert len(server.asked) >= 3
    values = [record.value for record in read_with_confluent(secured_kafka.bootstrap, topic)]
    assert values == [b"before", b"after"]


def test_an_endpoint_that_is_away_for_20_seconds_is_not_noticed(
    secured_kafka: SecuredKafka,
) -> None:
    factor = {"sasl_login_refresh_window_factor": "0.5"}
    with (
        TokenServer(secured_kafka.jwt_key.read_text(), life_s=60) as server,
        load(secured_kafka, server, **factor) as (producer, running),
    ):
        made = connections(producer)
        wait(28)
        server.stop()
        wait(20)
        server.start()
        wait(30)
        running.wait_for_progress()
        assert connections(producer) == made
        assert len(server.asked) >= 2


def test_while_an_endpoint_is_away_for_too_long_batches_wait(secured_kafka: SecuredKafka) -> None:
    factor = {"sasl_login_refresh_window_factor": "0.5"}
    with (
        TokenServer(secured_kafka.jwt_key.read_text(), life_s=60) as server,
        load(secured_kafka, server, **factor) as (_, running),
    ):
        wait(28)
        server.stop()
        wait(40)
        server.start()
        running.wait_for_progress()
        assert len(server.asked) >= 2
