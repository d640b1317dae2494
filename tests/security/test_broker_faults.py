"""Brokers with TLS and logins that ask for new keys again and again, and that are killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pyarrow as pa
import pytest
from conftest import need_kafka, running_secured
from support.brokers import class_archives, fetch_kafka
from support.brokers.logins import PARTITIONS, Login, by_tls, measured, new_topic, options
from support.brokers.secured_kafka import SecuredKafka, guarded
from support.brokers.steady_load import SteadyLoad, leader_of, wait_for_leader_but
from support.oracles.readers import create_topic, read_with_confluent

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.network.tls import TlsContext, TlsLayer

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.long(reason="three nodes of its own, one of which is killed, and 1 GiB"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """Three nodes; they ask for new keys of TLS every 4 MiB, and sessions last three seconds."""
    need_kafka()
    folder = tmp_path_factory.mktemp("own")
    limits = folder / "java.security"
    limits.write_text("jdk.tls.keyLimits=AES/GCM/NoPadding KeyUpdate 2^22\n")
    java = [
        *class_archives.kafka_options(fetch_kafka.NEWEST),
        f"-Djava.security.properties={limits}",
    ]
    libs, more = fetch_kafka.libs(fetch_kafka.NEWEST), guarded(session_ms=3_000)
    made = SecuredKafka(libs, folder / "kafka", java, nodes=3, has_tokens=False, more=more)
    with running_secured(made) as running:
        yield running


def test_new_keys_every_4_mib_are_no_trouble_for_1_gib(
    cluster: SecuredKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "topic-of-1-gib"
    create_topic(cluster.bootstrap, topic, PARTITIONS, None, 1)
    size, rows = 64 * 1024, 16 * 1024
    values = pa.array([b"%0*d" % (size, row) for row in range(256)])
    asked = key_updates(monkeypatch)
    with KafkaProducer(by_tls(cluster) | {"batch.size": str(1 << 20)}) as producer:
        for _ in range(rows // len(values)):
            producer.append(topic, pa.record_batch({"value": values}))
        producer.flush()
        # A bootstrap address, and the nodes that lead a partition.
        assert measured(producer, "connection-creation-total") <= 1 + PARTITIONS
        assert measured(producer, "connection-close-total") <= 1
    assert end_offsets(cluster, topic) == rows
    assert asked.count("read") >= (1 << 30) // (4 << 20) - PARTITIONS
    assert asked.count("write") >= PARTITIONS


def key_updates(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the direction of each KeyUpdate from now on."""
    found: list[str] = []
    layer = TlsContext.layer

    def noted(
        _connection: object, direction: str, _version: object, _kind: object, message: object,
        _data: bytes,
    ) -> None:  # fmt: skip
        if getattr(message, "name", "") == "KEY_UPDATE":
            found.append(direction)

    def watched(self: TlsContext, host: str, peer: str) -> TlsLayer:
        self.context._msg_callback = noted  # type: ignore[attr-defined] # private in the module ssl
        return layer(self, host, peer)

    monkeypatch.setattr(TlsContext, "layer", watched)
    return found


def end_offsets(kafka: SecuredKafka, topic: str) -> int:
    """Return how many records a topic has had."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g"})
    try:
        return sum(
            consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, each), 20)[1]
            for each in range(PARTITIONS)
        )
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_broker_that_is_killed_costs_no_row_and_no_order(
    cluster: SecuredKafka, mechanism: str, tmp_path: Path
) -> None:
    topic = new_topic(cluster)
    given = options(cluster, Login(mechanism, "SASL_SSL"), tmp_path) | {
        "linger.ms": "5",
        "request.timeout.ms": "5000",
        "socket.connection.setup.timeout.ms": "2000",
    }
    with KafkaProducer(given) as producer:
        load = SteadyLoad(producer, topic, PARTITIONS)
        try:
            load.wait_for_progress()
            killed = leader_of(cluster.bootstrap, topic)
            cluster.kill(killed)
            wait_for_leader_but(killed, cluster.bootstrap, topic)
            # Over the end of several sessions.
            load.wait_for_progress(10_000)
            cluster.start_node(killed)
            load.wait_for_progress(10_000)
        finally:
            load.stop()
        assert measured(producer, "successful-reauthentication-total") >= PARTITIONS
    load.rows.check(read_with_confluent(cluster.bootstrap, topic))
