"""Brokers with TLS that scripts play: one with a bad certificate, and certificates that change."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pytest
from support.brokers.certificates import Authority, Certificate
from support.brokers.scripted_broker import ScriptedBroker
from support.brokers.tls_peers import server_context
from support.pure.unreachable import NOBODY

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.commit_client.commit_client import CommitClient
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.consumer.topic_reader import TopicReader
from spark_kafka_sink.errors import SslAuthenticationException, TimeoutException
from spark_kafka_sink.kafka_producer import KafkaProducer
from spark_kafka_sink.wire.messages import (
    PRODUCE,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

TOPIC = "t"
PAST = (datetime(2020, 1, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC))
OPTIONS = {
    "security.protocol": "SSL",
    "enable.idempotence": "false",
    "acks": "1",
    "linger.ms": "0",
    "retry.backoff.ms": "10",
    "request.timeout.ms": "1500",
    "delivery.timeout.ms": "3000",
}


class TlsBroker(ScriptedBroker):
    """A scripted broker with TLS.

    handshakes: how many clients have begun one. clients: the names on the clients' certificates.
    silent_to: how many Produce requests have no response. noise: the answer to the first request.
    """

    def __init__(
        self, context: ssl.SSLContext, silent_to: int = 0, noise: bytes | None = None
    ) -> None:
        self.handshakes = 0
        self.clients: list[str] = []
        self._context = context
        self._silent_to = silent_to
        super().__init__(noise)

    def _serve(self, connection: Any) -> None:  # noqa: ANN401 - a socket with TLS, too
        self.handshakes += 1
        try:
            secured = self._context.wrap_socket(connection, server_side=True)
        except OSError:
            connection.close()
            return
        self._connections.append(secured)
        subject: Any = (secured.getpeercert() or {}).get("subject", ())
        self.clients += [value for part in subject for _, value in part]
        super()._serve(secured)

    def _answer(self, key: int, version: int, correlation_id: int) -> bytes:
        if key == PRODUCE.key and self.asked.count(key) <= self._silent_to:
            return b""
        return super()._answer(key, version, correlation_id)


class Made(NamedTuple):
    """Certificates in a folder of their own."""

    folder: Path
    root: Certificate
    good: Certificate
    expired: Certificate
    first: Certificate
    second: Certificate


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """What brokers and clients show; the root is in the file ca.pem."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority()
    (folder / "ca.pem").write_text(authority.root.certificate)
    return Made(
        folder,
        authority.root,
        authority.leaf("good"),
        authority.leaf("expired", dates=PAST),
        authority.leaf("first", names=()),
        authority.leaf("second", names=()),
    )


@pytest.fixture
def running() -> Iterator[ExitStack]:
    """Stops the brokers that a test starts."""
    with ExitStack() as brokers:
        yield brokers


def described(brokers: Mapping[int, ScriptedBroker]) -> MetadataResponse:
    """Return metadata in which broker n leads partition n - 1 of the topic."""
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=number, host="localhost", port=broker.port)
            for number, broker in brokers.items()
        ],
        topics=[
            MetadataResponseTopic(
                error_code=0,
                name=TOPIC,
                partitions=[
                    MetadataResponsePartition(
                        error_code=0, partition_index=number - 1, leader_id=number, leader_epoch=0,
                        replica_nodes=[number], isr_nodes=[number],
                    )
                    for number in brokers
                ],
            )
        ],
    )  # fmt: skip


def let_write(brokers: Mapping[int, ScriptedBroker]) -> None:
    """Let each broker describe all of them, and accept what is written to its partition."""
    for number, broker in brokers.items():
        broker.metadata = described(brokers)
        taken = PartitionProduceResponse(index=number - 1, error_code=0, base_offset=0)
        broker.produced = ProduceResponse(
            responses=[TopicProduceResponse(name=TOPIC, partition_responses=[taken])]
        )


def options(made: Made, *bootstrap: ScriptedBroker, **more: str) -> dict[str, Any]:
    """Return the options of a client that trusts the brokers' CA."""
    servers = ",".join(f"localhost:{broker.port}" for broker in bootstrap)
    given = {name.replace("_", "."): value for name, value in more.items()}
    trusted = {"ssl.truststore.location": str(made.folder / "ca.pem")}
    return OPTIONS | {"bootstrap.servers": servers} | trusted | given


def test_one_broker_with_an_expired_certificate_costs_its_own_rows_alone(
    made: Made, running: ExitStack
) -> None:
    good, expired = (server_context(made.folder, each) for each in (made.good, made.expired))
    brokers = {n: running.enter_context(TlsBroker(expired if n == 3 else good)) for n in (1, 2, 3)}
    let_write(brokers)
    with KafkaProducer(options(made, brokers[3], brokers[1])) as producer:
        first, second, third = (producer.send(TOPIC, b"v", partition=n) for n in range(3))
        assert first.result(20).partition == 0
        assert second.result(20).partition == 1
        with pytest.raises(SslAuthenticationException) as caught:
            third.result(20)
        said = str(caught.value)
        assert f"localhost:{brokers[3].port}" in said
        assert "certificate has expired" in said
        assert "this certificate has expired, or" in said
    # It was tried again and again, but with pauses.
    assert 2 <= brokers[3].handshakes <= 30
    assert PRODUCE.key not in brokers[3].asked


def ask_producer(given: dict[str, Any]) -> None:
    with KafkaProducer(given) as producer:
        producer.partitions_for(TOPIC)


def ask_admin(given: dict[str, Any]) -> None:
    with KafkaAdmin(producer_config(given)) as admin:
        admin.topics([TOPIC])


def ask_commit_client(given: dict[str, Any]) -> None:
    client = CommitClient(producer_config(given), "log")
    try:
        client.level(client.now() + 0.8)
    finally:
        client.close()


def ask_reader(given: dict[str, Any]) -> None:
    names = ("bootstrap.servers", "security.protocol", "ssl.truststore.location")
    of_reader = {name: given[name] for name in names} | {"default.api.timeout.ms": 800}
    with TopicReader(of_reader) as reader:
        list(reader.read(TOPIC))


TLS_FAILED: Final = "TLS failed, and no broker has accepted this client within "
# The end of a run asks on after a timeout, because brokers may come back.
NOT_ANSWERED: Final = "no broker has answered within "


ASKS = [
    (ask_producer, SslAuthenticationException, TLS_FAILED),
    (ask_admin, SslAuthenticationException, TLS_FAILED),
    (ask_reader, SslAuthenticationException, TLS_FAILED),
    (ask_commit_client, TimeoutException, NOT_ANSWERED),
]


@pytest.mark.parametrize("ask", [each for each, _, _ in ASKS])
def test_a_rejected_certificate_is_the_error_at_once_if_the_other_broker_is_down(
    made: Made, running: ExitStack, ask: Callable[[dict[str, Any]], None]
) -> None:
    broker = running.enter_context(TlsBroker(server_context(made.folder, made.expired)))
    given = options(made, broker)
    given["bootstrap.servers"] += f",{NOBODY}"
    with pytest.raises(SslAuthenticationException) as caught:
        ask(given)
    said = str(caught.value)
    assert f"bootstrap (localhost:{broker.port}) failed: " in said
    assert "certificate has expired" in said
    assert f"bootstrap ({NOBODY}): Connection refused" in said
    assert broker.handshakes == 1, "no address was tried again"


@pytest.mark.parametrize(("ask", "kind", "begins"), ASKS)
def test_a_rejected_certificate_is_the_error_in_the_end_if_the_other_broker_sends_nothing(
    made: Made,
    running: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[dict[str, Any]], None],
    kind: type[Exception],
    begins: str,
) -> None:
    monkeypatch.setattr(Random, "randrange", lambda *_: 0)  # the first address is tried first
    broker = running.enter_context(TlsBroker(server_context(made.folder, made.expired)))
    mute = running.enter_context(socket.create_server(("localhost", 0)))
    given = options(made, broker, max_block_ms="800")
    where = f"localhost:{mute.getsockname()[1]}"
    given["bootstrap.servers"] += f",{where}"
    with pytest.raises(kind) as caught:
        ask(given)
    said = str(caught.value)
    assert said.startswith(begins)
    assert "certificate has expired" in said
    assert f"bootstrap ({where}): it is still in the TLS handshake after" in said


def test_a_renewed_client_certificate_is_shown_by_the_next_connection(
    made: Made, running: ExitStack, tmp_path: Path
) -> None:
    context = server_context(made.folder, made.good, clients=made.root.certificate)
    broker = running.enter_context(TlsBroker(context))
    let_write({1: broker})
    store = tmp_path / "client.pem"
    with ExitStack() as producers:
        for certificate in (made.first, made.second):
            store.write_text(certificate.key + certificate.chain)
            given = options(made, broker, ssl_keystore_location=str(store))
            producer = producers.enter_context(KafkaProducer(given))
            producer.send(TOPIC, b"v", partition=0).result(20)
    assert "first" in broker.clients
    assert broker.clients[-1] == "second"


def test_a_connection_that_died_unnoticed_costs_one_retry(made: Made, running: ExitStack) -> None:
    broker = running.enter_context(TlsBroker(server_context(made.folder, made.good), silent_to=1))
    let_write({1: broker})
    with KafkaProducer(options(made, broker, request_timeout_ms="300")) as producer:
        producer.send(TOPIC, b"v", partition=0).result(20)
    assert broker.asked.count(PRODUCE.key) == 2


def test_an_empty_option_switches_the_check_of_names_off(made: Made, running: ExitStack) -> None:
    broker = running.enter_context(TlsBroker(server_context(made.folder, made.first)))
    let_write({1: broker})
    with (
        pytest.raises(SslAuthenticationException, match="subject alternative names"),
        KafkaProducer(options(made, broker)) as producer,
    ):
        producer.send(TOPIC, b"v", partition=0).result(20)
    unchecked = options(made, broker, ssl_endpoint_identification_algorithm="")
    with KafkaProducer(unchecked) as producer:
        producer.send(TOPIC, b"v", partition=0).result(20)


class MuteBroker(TlsBroker):
    """A broker that sends nothing after the TLS handshake."""

    def _answer(self, _key: int, _version: int, _correlation_id: int) -> bytes:
        return b""


def hangs_up(context: ssl.SSLContext) -> TlsBroker:
    """Return a broker that closes the connection after the TLS handshake, without an alert."""
    return TlsBroker(context, noise=b"")


@pytest.mark.parametrize(
    ("start", "does"),
    [
        (hangs_up, r"the broker closed the connection before it answered ApiVersions"),
        (MuteBroker, r"it accepts connections but has sent nothing for \d s"),
    ],
    ids=["hangs up", "silent"],
)
def test_a_broker_that_sends_nothing_after_the_handshake_may_require_a_client_certificate(
    made: Made, running: ExitStack, start: Callable[[ssl.SSLContext], TlsBroker], does: str
) -> None:
    broker = running.enter_context(start(server_context(made.folder, made.good)))
    given = options(made, broker, max_block_ms="1000")
    cause = r"it may require a client certificate (ssl.keystore.*), or may not be a Kafka broker"
    said = rf"bootstrap \(localhost:{broker.port}\): {does}; {re.escape(cause)}"
    with pytest.raises(TimeoutException, match=said):
        ask_producer(given)
    assert broker.handshakes > 0
