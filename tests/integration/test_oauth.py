"""OAuth tokens by HTTP on a real broker that checks their signatures: who gets in, who does not."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from support.brokers.secured_kafka import SecuredKafka
from support.brokers.token_server import (
    CLIENT_ID,
    CLIENT_SECRET,
    Answer,
    Asked,
    TokenServer,
    new_key,
    private_pem,
    verified,
)
from support.oracles.readers import create_topic, read_with_confluent

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.consumer.topic_reader import TopicReader
from spark_kafka_sink.errors import SaslAuthenticationException, TimeoutException
from spark_kafka_sink.kafka_producer import KafkaProducer

pytestmark = pytest.mark.kafka

TOPIC = "topic-of-oauth"
OPTION = "sasl.oauthbearer"


@pytest.fixture
def server(secured_kafka: SecuredKafka) -> Iterator[TokenServer]:
    """A token endpoint whose tokens the broker takes."""
    with TokenServer(secured_kafka.jwt_key.read_text()) as running:
        yield running


@pytest.fixture(scope="module")
def topic(secured_kafka: SecuredKafka) -> str:
    """A topic of one partition."""
    create_topic(secured_kafka.bootstrap, TOPIC, 1)
    return TOPIC


def by_secret(kafka: SecuredKafka, server: TokenServer, **more: str) -> dict[str, Any]:
    """Return the options of a client with a secret."""
    return {
        "bootstrap.servers": kafka.address("JWT"),
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(kafka.ca),
        "sasl.mechanism": "OAUTHBEARER",
        f"{OPTION}.token.endpoint.url": server.url,
        f"{OPTION}.client.credentials.client.id": CLIENT_ID,
        f"{OPTION}.client.credentials.client.secret": CLIENT_SECRET,
    } | {name.replace("_", "."): value for name, value in more.items()}


def write(options: dict[str, Any], topic: str, value: str) -> None:
    """Write a row."""
    with KafkaProducer(options) as producer:
        producer.append(topic, pa.record_batch({"value": [value]}))
        producer.flush()


def found(kafka: SecuredKafka, topic: str) -> list[str]:
    """Return the values of a topic."""
    return [
        (record.value or b"").decode() for record in read_with_confluent(kafka.bootstrap, topic)
    ]


def test_producer_admin_and_reader_log_in_with_one_token(
    secured_kafka: SecuredKafka, server: TokenServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    options = by_secret(secured_kafka, server)
    write(options, topic, "by one token")
    with KafkaAdmin(producer_config(options)) as admin:
        assert admin.topics([topic])[topic].partitions == 1
    with TopicReader(options) as reader:
        values = [value for batch in reader.read(topic) for value in batch["value"].to_pylist()]
    assert b"by one token" in values
    assert "by one token" in found(secured_kafka, topic)
    assert len(server.asked) == 1
    assert "connecting to" in caplog.text
    assert not any(secret in caplog.text for secret in (CLIENT_SECRET, *server.tokens))


def test_an_assertion_that_is_signed_here_gives_a_token(
    secured_kafka: SecuredKafka, server: TokenServer, topic: str, tmp_path: Path
) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (tmp_path / "key.pem").write_text(private_pem(key))

    def answer(asked: Asked) -> Answer:
        _, claims = verified(asked.form["client_assertion"], key.public_key())
        return server.token(sub=claims["sub"])

    server.answer = answer
    options = by_secret(secured_kafka, server) | {
        f"{OPTION}.assertion.private.key.file": str(tmp_path / "key.pem"),
        f"{OPTION}.assertion.claim.iss": "me",
        f"{OPTION}.assertion.claim.sub": "somebody",
    }
    write(options, topic, "by an assertion")
    assert "by an assertion" in found(secured_kafka, topic)


def refused(options: dict[str, Any], topic: str, kind: type[Exception]) -> str:
    """Return why neither producer nor admin gets in: both say the same."""
    with pytest.raises(kind) as by_producer:
        write(options, topic, "never")
    with (
        pytest.raises(kind) as by_admin,
        KafkaAdmin(producer_config(options)) as admin,
    ):
        admin.topics([topic])
    for caught in (by_producer, by_admin):
        shown = "".join(traceback.format_exception(caught.value))
        assert CLIENT_SECRET not in shown
        assert "WRONG" not in shown
    return str(by_producer.value)


def test_a_wrong_secret_is_an_error_at_once(
    secured_kafka: SecuredKafka, server: TokenServer, topic: str
) -> None:
    secret = f"{OPTION}.client.credentials.client.secret"
    options = by_secret(secured_kafka, server) | {secret: "WRONG"}
    said = refused(options, topic, SaslAuthenticationException)
    answer = "it answered 401 (invalid_client: no such client)"
    assert f"{server.url} returned no token: {answer}" in said
    assert "never" not in found(secured_kafka, topic)


@pytest.mark.parametrize(
    ("claims", "life_s", "facts"),
    [
        pytest.param({}, -600.0, "exp 20", id="expired"),
        pytest.param({"aud": "others"}, 600.0, 'aud "others"', id="audience"),
        pytest.param({"iss": "others"}, 600.0, f'sub "{CLIENT_ID}"', id="issuer"),
    ],
)
def test_a_token_that_the_broker_refuses_is_an_error_at_once(
    secured_kafka: SecuredKafka,
    server: TokenServer,
    topic: str,
    claims: dict[str, object],
    life_s: float,
    facts: str,
) -> None:
    server.life_s = life_s
    server.answer = lambda asked: server.token(**claims)
    said = refused(by_secret(secured_kafka, server), topic, SaslAuthenticationException)
    assert secured_kafka.address("JWT") in said
    assert "invalid_token" in said
    assert facts in said
    assert not any(token in said for token in server.tokens)
    assert "never" not in found(secured_kafka, topic)


def test_a_token_whose_signature_is_of_another_key_is_an_error_at_once(
    secured_kafka: SecuredKafka, server: TokenServer, topic: str
) -> None:
    server.pem = new_key()
    said = refused(by_secret(secured_kafka, server), topic, SaslAuthenticationException)
    assert "invalid_token" in said
    assert "never" not in found(secured_kafka, topic)


def test_an_endpoint_that_is_away_is_told_and_waited_for(
    secured_kafka: SecuredKafka, server: TokenServer, topic: str
) -> None:
    server.stop()
    options = by_secret(secured_kafka, server, max_block_ms="1000")
    said = refused(options, topic, TimeoutException)
    assert f"{server.url} returned no token: it cannot be reached: Connection refused" in said
    with KafkaProducer(by_secret(secured_kafka, server)) as producer:
        server.start()
        producer.append(topic, pa.record_batch({"value": ["after a while"]}))
        producer.flush()
    assert "after a while" in found(secured_kafka, topic)
