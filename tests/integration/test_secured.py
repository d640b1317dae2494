"""Secured clusters, real ones: what a producer, an admin and a reader see of TLS and SASL."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.certificates import openssl
from support.readers import create_topic, read_with_confluent
from support.secured_kafka import SecuredKafka

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.consumer.topic_reader import TopicReader
from spark_kafka_sink.errors import ConfigException, KafkaException, SslAuthenticationException
from spark_kafka_sink.kafka_producer import KafkaProducer

pytestmark = pytest.mark.kafka

ROWS = 20_000


@pytest.fixture
def topic(secured_kafka: SecuredKafka) -> str:
    """A topic of three partitions."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(secured_kafka.bootstrap, name, 3)
    return name


def tls(kafka: SecuredKafka, listener: str = "SSL", **more: str) -> dict[str, Any]:
    """Return the options of a client that has TLS."""
    return {
        "bootstrap.servers": kafka.address(listener),
        "security.protocol": "SASL_SSL" if listener == "SASL_SSL" else "SSL",
        "ssl.truststore.location": str(kafka.ca),
        "max.block.ms": "20000",
    } | {name.replace("_", "."): value for name, value in more.items()}


def write(options: Mapping[str, Any], topic: str, size: int = 100, rows: int = ROWS) -> None:
    """Write numbered rows."""
    values = pa.array([f"{row:>{size}}" for row in range(rows)])
    with KafkaProducer(options) as producer:
        producer.append(topic, pa.record_batch({"value": values}))
        producer.flush()


def check_rows(kafka: SecuredKafka, topic: str, rows: int = ROWS) -> None:
    """Check that every row is there once, as confluent-kafka reads it."""
    found = sorted(
        int(record.value or b"-1") for record in read_with_confluent(kafka.bootstrap, topic)
    )
    assert found == list(range(rows))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_rows_that_are_written_by_tls_arrive_once(
    secured_kafka: SecuredKafka, topic: str, version: str
) -> None:
    write(tls(secured_kafka, ssl_enabled_protocols=version), topic)
    check_rows(secured_kafka, topic)


def test_admin_and_reader_have_tls_too(secured_kafka: SecuredKafka, topic: str) -> None:
    options = tls(secured_kafka)
    write(options, topic, rows=1000)
    with KafkaAdmin(producer_config(options)) as admin:
        assert admin.topics([topic])[topic].partitions == 3
    del options["max.block.ms"]
    with TopicReader(options) as reader:
        found = [value for batch in reader.read(topic) for value in batch["value"].to_pylist()]
    assert sorted(map(int, found)) == list(range(1000))


def test_certificates_may_be_given_in_the_option_itself(
    secured_kafka: SecuredKafka, topic: str
) -> None:
    options = tls(secured_kafka)
    del options["ssl.truststore.location"]
    options["ssl.truststore.certificates"] = secured_kafka.ca.read_text().replace("\n", " ")
    write(options, topic, rows=10)
    check_rows(secured_kafka, topic, 10)


def test_protocols_and_suites_are_those_that_are_asked_for(
    secured_kafka: SecuredKafka, topic: str
) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    write(tls(secured_kafka, ssl_protocol="TLSv1.2", ssl_cipher_suites=suite), topic, rows=10)
    check_rows(secured_kafka, topic, 10)
    nothing = tls(secured_kafka, ssl_protocol="TLSv1.2", ssl_enabled_protocols="TLSv1.3")
    with pytest.raises(ConfigException, match="leave no version of TLS"):
        KafkaAdmin(producer_config(nothing))
    rsa = tls(secured_kafka, ssl_cipher_suites="TLS_RSA_WITH_AES_128_CBC_SHA")
    with pytest.raises(SslAuthenticationException, match=r"ssl\.cipher\.suites"):
        write(rsa, topic, rows=1)


def test_records_larger_than_a_piece_arrive_whole(secured_kafka: SecuredKafka, topic: str) -> None:
    write(tls(secured_kafka, batch_size="1000000"), topic, size=900_000, rows=30)
    check_rows(secured_kafka, topic, 30)


def test_a_client_shows_its_certificate_to_a_broker_that_asks(
    secured_kafka: SecuredKafka, topic: str, tmp_path: Path
) -> None:
    encrypted = tmp_path / "encrypted.pem"
    key = openssl("pkcs8", "-topk8", "-passout", "pass:key-secret", given=secured_kafka.client.key)
    encrypted.write_text(key + secured_kafka.client.chain)
    stores: list[dict[str, str]] = [
        {"ssl_keystore_location": str(secured_kafka.client_pem)},
        {"ssl_keystore_location": str(encrypted), "ssl_key_password": "key-secret"},
        {
            "ssl_keystore_key": secured_kafka.client.key.replace("\n", " "),
            "ssl_keystore_certificate_chain": secured_kafka.client.chain.replace("\n", " "),
        },
    ]
    for store in stores:
        write(tls(secured_kafka, "MUTUAL", **store), topic, rows=10)
    assert len(read_with_confluent(secured_kafka.bootstrap, topic)) == 10 * len(stores)


def test_a_broker_that_cannot_be_trusted_is_an_error_at_once(
    secured_kafka: SecuredKafka, topic: str
) -> None:
    other = tls(secured_kafka) | {"ssl.truststore.location": str(secured_kafka.other_ca)}
    for options, sentences in (
        (other, ("unable to get local issuer certificate", "ssl.truststore.location")),
        (tls(secured_kafka, "OTHERNAME"), ("'localhost'", "subject alternative names")),
        (tls(secured_kafka, "MUTUAL"), ("asks for a certificate", "ssl.keystore.location")),
    ):
        with pytest.raises(SslAuthenticationException) as by_producer:
            write(options, topic, rows=1)
        with (
            pytest.raises(SslAuthenticationException) as by_admin,
            KafkaAdmin(producer_config(options)) as admin,
        ):
            admin.topics([topic])
        for caught in (by_producer, by_admin):
            said = str(caught.value)
            assert options["bootstrap.servers"] in said
            assert all(sentence in said for sentence in sentences), said
    assert read_with_confluent(secured_kafka.bootstrap, topic) == []


def test_no_host_name_is_checked_where_that_is_switched_off(
    secured_kafka: SecuredKafka, topic: str
) -> None:
    options = tls(secured_kafka, "OTHERNAME", ssl_endpoint_identification_algorithm="")
    write(options, topic, rows=10)
    check_rows(secured_kafka, topic, 10)


def test_a_renewed_truststore_counts_from_the_next_connection_on(
    secured_kafka: SecuredKafka, topic: str, tmp_path: Path
) -> None:
    store = tmp_path / "ca.pem"
    store.write_text(secured_kafka.other_ca.read_text())
    options = tls(secured_kafka) | {"ssl.truststore.location": str(store)}
    with pytest.raises(SslAuthenticationException):
        write(options, topic, rows=1)
    store.write_text(secured_kafka.ca.read_text())
    write(options, topic, rows=10)
    check_rows(secured_kafka, topic, 10)


def test_a_file_that_cannot_be_used_is_an_error_before_any_connection(
    secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    jks = tmp_path / "a.jks"
    jks.write_bytes(bytes.fromhex("feedfeed00000002"))
    p12 = tmp_path / "a.p12"
    p12.write_bytes(bytes.fromhex("308205d0020103"))
    for path, sentence in (
        (jks, "keytool -importkeystore -srckeystore a.jks"),
        (p12, "openssl pkcs12 -in a.p12 -out a.pem"),
        (tmp_path / "none.pem", "No such file"),
        ("s3://bucket/a.pem", "ship the file by --files"),
    ):
        options = tls(secured_kafka) | {"ssl.truststore.location": str(path)}
        with pytest.raises(KafkaException, match=sentence):
            KafkaProducer(options)
        with pytest.raises(ConfigException, match=sentence):
            KafkaAdmin(producer_config(options))
