"""Secured clusters, real ones: what a producer, an admin and a reader see of TLS and SASL."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import shlex
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from support.brokers import keys
from support.brokers.keytool import import_certificates
from support.brokers.secured_kafka import ODD_USER, PASSWORD, USER, SecuredKafka, quoted
from support.oracles.readers import create_topic, read_with_confluent

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.consumer.topic_reader import TopicReader
from spark_kafka_sink.errors import (
    AuthorizationException,
    ConfigException,
    IllegalSaslStateException,
    KafkaException,
    SaslAuthenticationException,
    SslAuthenticationException,
    TimeoutException,
    TopicAuthorizationException,
    TransactionalIdAuthorizationException,
)
from spark_kafka_sink.kafka_producer import KafkaProducer
from spark_kafka_sink.logs import _warned_of

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


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_rows_that_are_written_by_tls_arrive_once(
    secured_kafka: SecuredKafka, topic: str, version: str
) -> None:
    write(tls(secured_kafka, ssl_enabled_protocols=version), topic)
    secured_kafka.check_rows(topic, ROWS)


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
    secured_kafka.check_rows(topic, 10)


def test_protocols_and_suites_are_those_that_are_asked_for(
    secured_kafka: SecuredKafka, topic: str
) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    write(tls(secured_kafka, ssl_protocol="TLSv1.2", ssl_cipher_suites=suite), topic, rows=10)
    secured_kafka.check_rows(topic, 10)
    nothing = tls(secured_kafka, ssl_protocol="TLSv1.2", ssl_enabled_protocols="TLSv1.3")
    with pytest.raises(ConfigException, match="have no version of TLS"):
        KafkaAdmin(producer_config(nothing))
    rsa = tls(secured_kafka, ssl_cipher_suites="TLS_RSA_WITH_AES_128_CBC_SHA")
    with pytest.raises(SslAuthenticationException, match=r"ssl\.cipher\.suites"):
        write(rsa, topic, rows=1)


def test_records_larger_than_a_piece_arrive_whole(secured_kafka: SecuredKafka, topic: str) -> None:
    write(tls(secured_kafka, batch_size="1000000"), topic, size=900_000, rows=30)
    secured_kafka.check_rows(topic, 30)


def test_a_client_shows_its_certificate_to_a_broker_that_asks(
    secured_kafka: SecuredKafka, topic: str, tmp_path: Path
) -> None:
    encrypted = tmp_path / "encrypted.pem"
    key = keys.pkcs8(secured_kafka.client.key, "key-secret")
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


def test_stores_may_be_pkcs12(secured_kafka: SecuredKafka, topic: str, tmp_path: Path) -> None:
    trust, client = tmp_path / "trust", tmp_path / "client"
    import_certificates(trust, [secured_kafka.ca.read_text()], "trust-secret")
    shown = secured_kafka.client
    client.write_bytes(keys.pkcs12_store(shown.chain, "client-secret", key=shown.key))
    options = tls(
        secured_kafka,
        "MUTUAL",
        ssl_truststore_password="trust-secret",
        ssl_truststore_type="PKCS12",
        ssl_keystore_location=str(client),
        ssl_keystore_password="client-secret",
    ) | {"ssl.truststore.location": str(trust)}
    write(options, topic, rows=10)
    secured_kafka.check_rows(topic, 10)
    with pytest.raises(
        ConfigException, match=r"ssl\.keystore\.password does not open it"
    ) as caught:
        KafkaAdmin(producer_config(options | {"ssl.keystore.password": "WRONG"}))
    assert "WRONG" not in str(caught.value)


def test_a_broker_that_cannot_be_trusted_is_an_error_at_once(
    secured_kafka: SecuredKafka, topic: str
) -> None:
    other = tls(secured_kafka) | {"ssl.truststore.location": str(secured_kafka.other_ca)}
    for options, sentences in (
        (other, ("unable to get local issuer certificate", "ssl.truststore.location")),
        (tls(secured_kafka, "OTHERNAME"), ("'localhost'", "subject alternative names")),
        (tls(secured_kafka, "MUTUAL"), ("requires a client certificate", "ssl.keystore.location")),
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
    secured_kafka.check_rows(topic, 10)


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
    secured_kafka.check_rows(topic, 10)


def test_a_file_that_cannot_be_used_is_an_error_before_any_connection(
    secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    jks = tmp_path / "a.jks"
    jks.write_bytes(bytes.fromhex("feedfeed00000002"))
    p12 = tmp_path / "a.p12"
    p12.write_bytes(bytes.fromhex("308205d0020103"))
    for path, sentence in (
        (jks, "keytool -importkeystore -srckeystore a.jks"),
        (p12, r"cannot be read as PKCS12 .*set ssl\.truststore\.password"),
        (tmp_path / "none.pem", "No such file"),
        ("s3://bucket/a.pem", "ship the file with --files or SparkContext.addFile"),
    ):
        options = tls(secured_kafka) | {"ssl.truststore.location": str(path)}
        with pytest.raises(KafkaException, match=sentence):
            KafkaProducer(options)
        with pytest.raises(ConfigException, match=sentence):
            KafkaAdmin(producer_config(options))


# -- SASL ----------------------------------------------------------------------------------------

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
LISTENERS = ["SASL_PLAINTEXT", "SASL_SSL"]


def login(
    kafka: SecuredKafka, listener: str, mechanism: str, user: str = USER, password: str = PASSWORD
) -> dict[str, Any]:
    """Return the options of a client that logs in."""
    options = {
        "bootstrap.servers": kafka.address(listener),
        "security.protocol": listener,
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "max.block.ms": "20000",
    }
    if listener == "SASL_SSL":
        options["ssl.truststore.location"] = str(kafka.ca)
    return options


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_rows_that_are_written_after_a_login_arrive_once(
    secured_kafka: SecuredKafka,
    topic: str,
    mechanism: str,
    listener: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    options = login(secured_kafka, listener, mechanism)
    write(options, topic)
    assert "connecting to" in caplog.text
    assert PASSWORD not in caplog.text
    secured_kafka.check_rows(topic, ROWS)
    del options["max.block.ms"]
    with TopicReader(options) as reader:
        assert sum(batch.num_rows for batch in reader.read(topic)) == ROWS


def test_confluent_kafka_logs_in_by_the_same_credentials(
    secured_kafka: SecuredKafka, topic: str
) -> None:
    for mechanism in MECHANISMS:
        options = login(secured_kafka, "SASL_PLAINTEXT", mechanism)
        del options["max.block.ms"]
        assert topic in AdminClient(options).list_topics(timeout=20).topics


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_an_error_at_once(
    secured_kafka: SecuredKafka, topic: str, mechanism: str, listener: str
) -> None:
    for user, password in ((USER, "WRONG-PASSWORD"), ("nobody", PASSWORD)):
        options = login(secured_kafka, listener, mechanism, user, password)
        with pytest.raises(SaslAuthenticationException) as by_producer:
            write(options, topic, rows=1)
        with (
            pytest.raises(SaslAuthenticationException) as by_admin,
            KafkaAdmin(producer_config(options)) as admin,
        ):
            admin.topics([topic])
        for caught in (by_producer, by_admin):
            said = str(caught.value)
            assert f"refused the login of user {user!r} by {mechanism}" in said
            assert secured_kafka.address(listener) in said
            assert "Authentication failed" in said
            shown = "".join(traceback.format_exception(caught.value))
            assert "WRONG-PASSWORD" not in shown
            assert PASSWORD not in shown
    assert read_with_confluent(secured_kafka.bootstrap, topic) == []


def test_names_and_passwords_may_have_any_marks(secured_kafka: SecuredKafka, topic: str) -> None:
    module = "kafkashaded.org.apache.kafka.common.security.scram.ScramLoginModule"
    for count, mechanism in enumerate(("SCRAM-SHA-256", "SCRAM-SHA-512"), 1):
        options = login(secured_kafka, "SASL_PLAINTEXT", mechanism)
        del options["sasl.username"], options["sasl.password"]
        options["sasl.jaas.config"] = (
            f"{module} required username={quoted(ODD_USER)} password={quoted(PASSWORD)};"
        )
        write(options, topic, rows=10)
        assert len(read_with_confluent(secured_kafka.bootstrap, topic)) == 10 * count


def test_the_wrong_protocol_or_mechanism_is_an_error_at_once(
    secured_kafka: SecuredKafka, topic: str
) -> None:
    plaintext = login(secured_kafka, "SASL_PLAINTEXT", "PLAIN")
    with pytest.raises(
        IllegalSaslStateException, match=r"does not accept a SASL login.*security\.prot"
    ):
        write(plaintext | {"bootstrap.servers": secured_kafka.bootstrap}, topic, rows=1)
    tls_only = login(secured_kafka, "SASL_SSL", "PLAIN")
    with pytest.raises(IllegalSaslStateException):
        write(tls_only | {"bootstrap.servers": secured_kafka.address("SSL")}, topic, rows=1)
    expected = r"expects TLS: set security\.protocol to SSL"
    with pytest.raises(SslAuthenticationException, match=expected):
        write({"bootstrap.servers": secured_kafka.address("SSL")}, topic, rows=1)
    for mechanism, sentence in (
        ("OAUTHBEARER", "sasl.username has no effect with OAUTHBEARER"),
        ("GSSAPI", "sasl.username has no effect with GSSAPI, which is the default"),
        ("AWS_MSK_IAM", "sasl.username has no effect with AWS_MSK_IAM: remove it"),
        ("scram-sha-512", "write it SCRAM-SHA-512"),
        ("SCRAM-SHA-1", "expected one of PLAIN"),
    ):
        with pytest.raises(ConfigException, match=sentence):
            KafkaAdmin(producer_config(plaintext | {"sasl.mechanism": mechanism}))


@pytest.mark.parametrize(
    ("protocol", "listener"),
    [("SSL", "PLAINTEXT"), ("SASL_SSL", "SASL_PLAINTEXT"), ("SASL_SSL", "PLAINTEXT")],
)
def test_a_listener_without_tls_is_told_at_once_and_in_the_error(
    secured_kafka: SecuredKafka,
    topic: str,
    protocol: str,
    listener: str,
    warnings: Callable[[], list[str]],
) -> None:
    plain = secured_kafka.bootstrap
    address = plain if listener == "PLAINTEXT" else secured_kafka.address(listener)
    options = tls(secured_kafka)
    if protocol == "SASL_SSL":
        options = login(secured_kafka, "SASL_SSL", "PLAIN")
    said = hang_up(options | {"bootstrap.servers": address}, topic)
    sentence = "in the TLS handshake; it may be a listener without TLS"
    assert sentence in said
    assert sentence in warnings()[0]


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_listener_with_logins_is_told_at_once_and_in_the_error(
    secured_kafka: SecuredKafka, topic: str, listener: str, warnings: Callable[[], list[str]]
) -> None:
    options = tls(secured_kafka) if listener == "SASL_SSL" else {}
    options |= {"bootstrap.servers": secured_kafka.address(listener)}
    said = hang_up(options, topic)
    sentence = "before it answered the first request; it may expect SASL"
    assert f"{sentence}: compare the port and security.protocol" in said
    assert sentence in warnings()[0]


def hang_up(options: dict[str, Any], topic: str) -> str:
    """Return the error of a write to a listener that hangs up."""
    with pytest.raises(TimeoutException) as caught:
        write(options | {"max.block.ms": "1000"}, topic, rows=1)
    return str(caught.value)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Return the logged warnings, in a process that has not warned yet."""
    _warned_of.clear()
    yield lambda: [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    _warned_of.clear()


def test_a_login_that_is_refused_later_ends_batches_by_their_timeout(
    secured_kafka: SecuredKafka, topic: str
) -> None:
    secured_kafka.set_scram_user("later", PASSWORD)
    options = login(secured_kafka, "SASL_PLAINTEXT", "SCRAM-SHA-256", "later") | {
        "linger.ms": "0",
        "request.timeout.ms": "2000",
        "delivery.timeout.ms": "2000",
    }

    def send_until_refused(producer: KafkaProducer) -> None:
        # The session of the first login goes on for two seconds at most.
        until = time.monotonic() + 30
        while time.monotonic() < until:
            producer.send(topic, b"1").result()

    with KafkaProducer(options) as producer:
        producer.send(topic, b"0").result()
        secured_kafka.delete_scram_user("later")
        with pytest.raises(SaslAuthenticationException) as caught:
            send_until_refused(producer)
        said = str(caught.value)
        assert "within delivery.timeout.ms=2000" in said
        assert "refused the login of user 'later' by SCRAM-SHA-256" in said
        secured_kafka.set_scram_user("later", PASSWORD)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with suppress(SaslAuthenticationException):
                producer.send(topic, b"2").result()
                break
        else:
            raise AssertionError("the node was not tried again")
    assert b"2" in [each.value for each in read_with_confluent(secured_kafka.bootstrap, topic)]


def test_secrets_may_be_references_that_are_looked_up_at_each_login(
    secured_kafka: SecuredKafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    monkeypatch.setenv("KAFKA_USER_OF_TEST", USER)
    options = login(
        secured_kafka,
        "SASL_PLAINTEXT",
        "SCRAM-SHA-512",
        "${env:KAFKA_USER_OF_TEST}",
        f"${{directory:{tmp_path}:password}}",
    )
    config = producer_config(options)
    assert PASSWORD not in str(pickle.dumps(config))
    write(options, topic, rows=10)
    (tmp_path / "password").write_text("another")
    with pytest.raises(SaslAuthenticationException):
        write(options, topic, rows=1)
    monkeypatch.setenv("PYKAFKA_ALLOWED_PATHS", "/nowhere")
    with pytest.raises(ConfigException, match="PYKAFKA_ALLOWED_PATHS"):
        KafkaAdmin(config)
    with pytest.raises(ConfigException, match="unencrypted"):
        KafkaAdmin(producer_config(options | {"sasl.mechanism": "PLAIN"}))
    secured_kafka.check_rows(topic, 10)


def test_a_session_is_renewed_on_its_connection(secured_kafka: SecuredKafka, topic: str) -> None:
    options = login(secured_kafka, "SASL_SSL", "SCRAM-SHA-256") | {"linger.ms": "0"}
    seconds, written = 15, 0
    with KafkaProducer(options) as producer:
        connections = None
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            values = pa.array([str(written + row) for row in range(20)])
            producer.append(topic, pa.record_batch({"value": values}))
            written += 20
            producer.flush()
            # A row now and then renews a session as many rows do.
            threading.Event().wait(0.05)
            measured = {metric.name: value for metric, value in producer.metrics().items()}
            created = measured["connection-creation-total"]
            connections = connections or created
        # Two that lead to the broker, one for its bootstrap address.
        assert created == connections
        assert measured["successful-authentication-total"] == created
        assert measured["failed-authentication-total"] == 0
        assert measured["successful-reauthentication-total"] >= seconds / 2 - 1
        assert measured["failed-reauthentication-total"] == 0
        assert measured["reauthentication-latency-max"] > 0
    secured_kafka.check_rows(topic, written)


# -- secrets -------------------------------------------------------------------------------------


def test_no_log_at_debug_and_no_error_shows_a_secret(
    secured_kafka: SecuredKafka, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    encrypted = tmp_path / "encrypted.pem"
    key = keys.pkcs8(secured_kafka.client.key, "key-secret")
    encrypted.write_text(key + secured_kafka.client.chain)
    mutual = tls(secured_kafka, "MUTUAL", ssl_keystore_location=str(encrypted))
    by_endpoint = login(secured_kafka, "SASL_SSL", "OAUTHBEARER")
    del by_endpoint["sasl.username"], by_endpoint["sasl.password"]
    by_endpoint |= {
        "sasl.oauthbearer.token.endpoint.url": "http://u:url-secret@127.0.0.1:1/token",
        "sasl.oauthbearer.client.credentials.client.id": "client",
        "sasl.oauthbearer.client.credentials.client.secret": "oauth-secret",
    }
    succeed = [
        *(login(secured_kafka, each, mechanism) for each in LISTENERS for mechanism in MECHANISMS),
        mutual | {"ssl.key.password": "key-secret"},
    ]
    fail = [
        *(
            login(secured_kafka, "SASL_SSL", mechanism, password="WRONG-SECRET")
            for mechanism in MECHANISMS
        ),
        login(secured_kafka, "SASL_SSL", "PLAIN")
        | {"ssl.truststore.location": str(secured_kafka.other_ca)},
        login(secured_kafka, "SASL_SSL", "PLAIN") | {"bootstrap.servers": "127.0.0.1:1"},
        login(secured_kafka, "SASL_SSL", "PLAIN") | {"sasl.mechanism": "plain"},
        mutual | {"ssl.key.password": "WRONG-SECRET"},
        by_endpoint,
        by_endpoint | {"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token"},
    ]
    shown = []
    for options in succeed:
        write(options, topic, rows=1)
        shown.append(repr(producer_config(options)))
    for options in fail:
        with pytest.raises(KafkaException) as caught:
            write(options | {"max.block.ms": "1500"}, topic, rows=1)
        shown += traceback.format_exception(caught.value)
    shown.append(caplog.text)
    assert "connecting to" in caplog.text
    secrets = (PASSWORD, "WRONG-SECRET", "key-secret", "oauth-secret", "url-secret")
    coded = [base64.b64encode(secret.encode()).decode().rstrip("=") for secret in secrets]
    for secret in (*secrets, *coded, "PRIVATE KEY"):
        assert not [text for text in shown if secret in text], secret


# -- ACLs ----------------------------------------------------------------------------------------


def allow_as_it_says(kafka: SecuredKafka, said: str) -> None:
    """Run the command of a message; only a client without a login may change ACLs."""
    command = shlex.split(said[said.index("kafka-acls.sh") :])
    script, option, servers, config, _file, *rest = command
    assert (script, option, config) == ("kafka-acls.sh", "--bootstrap-server", "--command-config")
    assert servers == kafka.address("SASL_PLAINTEXT")
    kafka.run_acls_script(option, kafka.bootstrap, *rest)


def writes_once_allowed(call: Callable[[], None]) -> None:
    """Call until the broker has the new ACL, which takes a moment."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with suppress(AuthorizationException):
            return call()
    raise AssertionError("still denied")


def test_a_denial_has_the_command_that_allows_it(secured_kafka: SecuredKafka, topic: str) -> None:
    options = login(secured_kafka, "SASL_PLAINTEXT", "SCRAM-SHA-512")
    # A user that the ACLs of a resource do not name is denied.
    other = ("--add", "--allow-principal", "User:other", "--operation", "DESCRIBE")
    for resource in ("--topic", "--transactional-id"):
        secured_kafka.run_acls_script(
            "--bootstrap-server", secured_kafka.bootstrap, *other, resource, topic
        )
    with pytest.raises(TopicAuthorizationException) as by_producer:
        write(options, topic, rows=1)
    with (
        KafkaAdmin(producer_config(options)) as admin,
        pytest.raises(TopicAuthorizationException) as by_admin,
    ):
        admin.topics([topic])
    for caught in (by_producer, by_admin):
        said = str(caught.value)
        assert f"topic {topic}: TOPIC_AUTHORIZATION_FAILED (29)" in said
        assert "--allow-principal User:alice --operation WRITE --operation DESCRIBE" in said
    allow_as_it_says(secured_kafka, str(by_producer.value))
    writes_once_allowed(lambda: write(options, topic, rows=1))

    reads = options.copy()
    del reads["max.block.ms"]

    def read() -> None:
        with TopicReader(reads) as reader:
            assert sum(batch.num_rows for batch in reader.read(topic)) == 1

    # The topic may be described by now, so Fetch is the request that is denied.
    with pytest.raises(TopicAuthorizationException, match="Fetch to node") as by_reader:
        read()
    assert "User:alice --operation READ --operation DESCRIBE" in str(by_reader.value)
    allow_as_it_says(secured_kafka, str(by_reader.value))
    writes_once_allowed(read)
    with (
        KafkaProducer(options | {"transactional.id": topic}) as producer,
        pytest.raises(TransactionalIdAuthorizationException, match="User:alice") as by_id,
    ):
        producer.init_transactions()

    def in_transaction() -> None:
        with KafkaProducer(options | {"transactional.id": topic}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"1")
            producer.commit_transaction()

    allow_as_it_says(secured_kafka, str(by_id.value))
    writes_once_allowed(in_transaction)
    secured_kafka.check_rows(topic, 2)


# -- OAUTHBEARER ---------------------------------------------------------------------------------


def unsigned_token(lifetime_s: int, user: str = "oauth-user") -> str:
    """Return a token that the tests' brokers take."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": user, "iat": now, "exp": now + lifetime_s})
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
    return ".".join(part.rstrip("=") for part in coded) + "."


def by_token(kafka: SecuredKafka, file: Path) -> dict[str, Any]:
    """Return the options of a client that logs in with the token of a file."""
    options = login(kafka, "SASL_SSL", "OAUTHBEARER")
    del options["sasl.username"], options["sasl.password"]
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    return options | {
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
        "sasl.jaas.config": f'{module} required extension_logicalCluster="lkc-1";',
    }


def test_the_token_of_a_file_is_read_again_for_each_login(
    secured_kafka: SecuredKafka, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(unsigned_token(600) + "\n")
    options = by_token(secured_kafka, file)
    write(options, topic)
    secured_kafka.check_rows(topic, ROWS)
    expired = unsigned_token(-600)
    file.write_text(expired)
    with pytest.raises(SaslAuthenticationException, match="oauth-user") as caught:
        write(options, topic, rows=1)
    assert "exp" in str(caught.value)
    assert expired not in str(caught.value)
    file.write_text("{}")
    with pytest.raises(KafkaException, match="expected the token alone"):
        write(options, topic, rows=1)
    file.unlink()
    with pytest.raises(ConfigException, match="No such file"):
        KafkaAdmin(producer_config(options))


def test_a_denial_names_the_subject_of_the_certificate(
    secured_kafka: SecuredKafka, topic: str
) -> None:
    options = tls(secured_kafka, "MUTUAL", ssl_keystore_location=str(secured_kafka.client_pem))
    other = ("--add", "--allow-principal", "User:other", "--operation", "DESCRIBE")
    secured_kafka.run_acls_script(
        "--bootstrap-server", secured_kafka.bootstrap, *other, "--topic", topic
    )
    with pytest.raises(TopicAuthorizationException) as caught:
        write(options, topic, rows=1)
    said = str(caught.value)
    assert "--allow-principal User:CN=client --operation WRITE" in said
    # As here, where brokers map it to the name "client".
    assert "if the brokers map the subject (ssl.principal.mapping.rules)" in said


def test_a_denial_names_the_subject_of_the_token(
    secured_kafka: SecuredKafka, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(unsigned_token(600))
    options = by_token(secured_kafka, file)
    other = ("--add", "--allow-principal", "User:other", "--operation", "DESCRIBE")
    secured_kafka.run_acls_script(
        "--bootstrap-server", secured_kafka.bootstrap, *other, "--topic", topic
    )
    with pytest.raises(TopicAuthorizationException, match="--allow-principal User:oauth-user "):
        write(options, topic, rows=1)
    with (
        KafkaAdmin(producer_config(options)) as admin,
        pytest.raises(TopicAuthorizationException, match="--allow-principal User:oauth-user "),
    ):
        admin.topics([topic])


def test_a_token_is_read_within_what_the_process_allows(
    secured_kafka: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(unsigned_token(600))
    config = producer_config(by_token(secured_kafka, file))
    for variable in ("PYKAFKA_ALLOWED_PATHS", "PYKAFKA_OAUTH_ALLOWED_URLS"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "/nowhere")
            with pytest.raises(ConfigException, match=variable):
                KafkaAdmin(config)
