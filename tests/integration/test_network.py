"""Network problems as a user sees them: bad peers, moved brokers, names with several addresses."""

from __future__ import annotations

import re
import socket
import struct
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import ElectionType
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from confluent_kafka.admin import AdminClient
from conftest import NewTopic, topic_maker
from kafka import TopicPartition as PythonTopicPartition
from kafka.admin import KafkaAdminClient
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.scripted_broker import ScriptedBroker, describe
from support.oracles.readers import read_with_confluent
from support.pure.log_handlers import handling

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.consumer.topic_reader import TopicReader
from spark_kafka_sink.errors import (
    ConfigException,
    SslAuthenticationException,
    TimeoutException,
    TopicAuthorizationException,
    UnsupportedVersionException,
)
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.network import nodes
from spark_kafka_sink.wire.messages import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from spark_kafka_sink.wire.versions import NodeApiVersions

REBOOTSTRAP_REQUIRED = 129
PRODUCE, METADATA = 0, 3


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """A broker whose metadata the test sets."""
    with ScriptedBroker() as made:
        yield made


def config(address: str, max_block_ms: int = 60_000, **more: object) -> dict[str, object]:
    """Configure a producer for scripted brokers, with short pauses."""
    return {
        "bootstrap.servers": address,
        "max.block.ms": max_block_ms,
        "retry.backoff.ms": 10,
        "retry.backoff.max.ms": 50,
        "reconnect.backoff.max.ms": 50,
    } | {name.replace("_", "."): value for name, value in more.items()}


# -- peers that are no brokers -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "the peer does not speak Kafka's protocol: it speaks HTTP",
        ),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "the peer does not speak Kafka's protocol: it speaks SSH"),
        (struct.pack(">i", -5), r"invalid receive \(size = -5\)"),
        (struct.pack(">i", 2**31 - 1), r"size = 2147483647 larger than"),
        (struct.pack(">ii", 500, 0) + b"half", "in the middle of a response"),
        (struct.pack(">ii", 4, 77), "answered with correlation id 77, expected 0"),
        (struct.pack(">iihi", 10, 0, 0, 10**6), "before it answered ApiVersions"),
        (b"", "before it answered ApiVersions; it may expect TLS, or may not be a Kafka broker"),
    ],
)
def test_a_peer_that_is_no_broker_is_named_with_what_it_said(noise: bytes, expected: str) -> None:
    with ScriptedBroker(noise) as peer, KafkaProducer(config(peer.address, 1000)) as producer:
        with pytest.raises(TimeoutException, match=expected) as error:
            producer.partitions_for("t")
        assert str(error.value).startswith("no broker has answered within max.block.ms=1000; ")
        assert f"bootstrap ({peer.address})" in str(error.value)


def test_a_listener_that_expects_tls_is_an_error_at_once() -> None:
    alert = b"\x15\x03\x03\x00\x02\x02\x50"
    expected = r"bootstrap .* expects TLS: set security\.protocol to SSL"
    with (
        ScriptedBroker(alert) as peer,
        KafkaProducer(config(peer.address)) as producer,
        pytest.raises(SslAuthenticationException, match=expected),
    ):
        producer.partitions_for("t")


def test_a_broker_that_ends_a_tls_handshake_is_tried_again() -> None:
    close_notify = bytes.fromhex("15 0303 0002 01 00")
    expected = "the broker closed the connection in the TLS handshake without an error"
    with ScriptedBroker(close_notify) as peer:
        options = config(peer.address, 1000) | {"security.protocol": "SSL"}
        with KafkaProducer(options) as producer, pytest.raises(TimeoutException, match=expected):
            producer.partitions_for("t")


def test_a_listener_that_expects_sasl_is_told_as_one(broker: ScriptedBroker) -> None:
    broker.hangs_up_on = {METADATA}
    with (
        KafkaProducer(config(broker.address, 1000)) as producer,
        pytest.raises(TimeoutException, match="it may expect SASL") as error,
    ):
        producer.partitions_for("t")
    assert f"bootstrap ({broker.address})" in str(error.value)


def test_a_port_that_takes_connections_and_says_nothing_is_told_as_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with KafkaProducer(config(address, 1000)) as producer:
            expected = (
                rf"bootstrap \({address}\): it accepts connections but has sent nothing for 1 s"
            )
            with pytest.raises(TimeoutException, match=expected):
                producer.partitions_for("t")
        with (
            KafkaAdmin(producer_config(config(address, 1000))) as admin,
            pytest.raises(TimeoutException, match=expected),
        ):
            admin.topics(["t"])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other queues")
def test_an_address_whose_packets_are_dropped_is_told_as_one() -> None:
    # Linux drops the first packet of a connection if the server's queue is full.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        said = rf"bootstrap \(127\.0\.0\.1:{address[1]}\): no connection after 1 s"
        with (
            socket.create_connection(address),
            KafkaProducer(config(f"127.0.0.1:{address[1]}", 1000)) as producer,
            pytest.raises(TimeoutException, match=said),
        ):
            producer.partitions_for("t")


def test_a_broker_that_does_not_respond_to_a_request_is_told_as_one(
    broker: ScriptedBroker,
) -> None:
    said = rf"bootstrap \({broker.address}\): no response to Metadata for \d s"
    with (
        KafkaProducer(config(broker.address, 1500)) as producer,
        pytest.raises(TimeoutException, match=said),
    ):
        producer.partitions_for("t")


def test_rows_that_wait_for_an_advertised_address_that_refuses_are_told_soon(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        socket.socket() as nobody,
        KafkaProducer(config(broker.address, enable_idempotence=False, linger_ms=0)) as producer,
        handling("has answered for") as handler,
    ):
        nobody.bind(("127.0.0.1", 0))
        gone = nobody.getsockname()[1]
        broker.metadata = describe(gone, "t")
        producer.partitions_for("t")
        monkeypatch.setattr(nodes, "_NO_RESPONSE_S", 0.2)
        producer.send("t", b"v")
        assert handler.came.wait(20)
        producer.close(0)
    said = (
        rf"node 1 \(127\.0\.0\.1:{gone}\): .*; bootstrap \({broker.address}\) returned this address"
    )
    assert re.search(said, handler.lines[0])


def test_a_controller_s_port_is_told_as_one(kafka: KafkaCluster) -> None:
    address = kafka.controllers.split(",")[0]
    expected = rf"bootstrap \({address}\): .*this is the listener of a KRaft controller"
    with KafkaProducer(config(address)) as producer:
        with pytest.raises(UnsupportedVersionException, match=expected):
            producer.partitions_for("t")
        with (
            KafkaAdmin(producer_config(config(address))) as admin,
            pytest.raises(UnsupportedVersionException, match=expected),
        ):
            admin.topics(["t"])


def test_a_broker_that_works_again_is_not_blamed_for_what_comes_later(
    broker: ScriptedBroker,
) -> None:
    broker.metadata = describe(broker.port, "t")
    broker.hangs_up_on = {METADATA}
    with KafkaProducer(config(broker.address, 500)) as producer:
        with pytest.raises(TimeoutException, match="it may expect SASL"):
            producer.partitions_for("t")
        broker.hangs_up_on = set()
        assert producer.partitions_for("t") == 1
        with pytest.raises(TimeoutException) as error:
            producer.partitions_for("another")
    assert "SASL" not in str(error.value)


def test_a_bootstrap_server_that_works_is_enough() -> None:
    with (
        ScriptedBroker(b"noise that is no frame") as noisy,
        ScriptedBroker(b"") as mute,
        ScriptedBroker() as good,
    ):
        good.metadata = describe(good.port, "t")
        addresses = f"{noisy.address},127.0.0.1:1,{mute.address},{good.address}"
        with KafkaProducer(config(addresses)) as producer:
            assert producer.partitions_for("t") == 1


# -- metadata ------------------------------------------------------------------------------------


def test_a_broker_that_is_starting_up_and_knows_no_brokers_is_asked_again(
    broker: ScriptedBroker,
) -> None:
    broker.metadata = describe(broker.port)
    broker.metadata.brokers = []
    with KafkaProducer(config(broker.address, 300)) as producer:
        with pytest.raises(TimeoutException, match="no broker has answered within"):
            producer.partitions_for("t")
        assert broker.asked.count(3) > 1
        broker.metadata = describe(broker.port, "t")
        assert producer.partitions_for("t") == 1


def test_a_permission_that_was_given_meanwhile_is_seen_by_the_next_call(
    broker: ScriptedBroker,
) -> None:
    denied = describe(broker.port, "t")
    denied.topics[0].error_code = 29
    denied.topics[0].partitions = []
    broker.metadata = denied
    with KafkaProducer(config(broker.address)) as producer:
        for _ in range(2):
            with pytest.raises(TopicAuthorizationException):
                producer.partitions_for("t")
        broker.metadata = describe(broker.port, "t")
        assert producer.partitions_for("t") == 1


def test_when_the_brokers_known_are_gone_the_bootstrap_servers_lead_to_the_new_ones(
    broker: ScriptedBroker,
) -> None:
    with ScriptedBroker() as old, ScriptedBroker() as new:
        broker.metadata = describe(old.port, "t")
        old.metadata = describe(old.port, "t")
        with KafkaProducer(config(broker.address)) as producer:
            assert producer.partitions_for("t") == 1
            broker.metadata = new.metadata = describe(new.port, "t", "u", node_id=2)
            old.stop()
            assert producer.partitions_for("u") == 1


def test_without_rebootstrap_brokers_that_are_gone_are_gone(broker: ScriptedBroker) -> None:
    old = ScriptedBroker()
    broker.metadata = describe(old.port, "t")
    settings = config(
        broker.address, 1000, metadata_recovery_strategy="none", connections_max_idle_ms=0
    )
    with KafkaProducer(settings) as producer:
        assert producer.partitions_for("t") == 1
        broker.metadata = describe(broker.port, "t", "u")
        old.stop()
        with pytest.raises(TimeoutException, match=rf"node 1 \(127.0.0.1:{old.port}\)"):
            producer.partitions_for("u")


def test_a_broker_that_asks_for_it_has_the_client_begin_anew(broker: ScriptedBroker) -> None:
    with ScriptedBroker() as old:
        broker.metadata = describe(old.port, "t")
        old.metadata = describe(old.port, "t")
        old.metadata.error_code = REBOOTSTRAP_REQUIRED
        with KafkaProducer(config(broker.address, connections_max_idle_ms=0)) as producer:
            assert producer.partitions_for("t") == 1
            broker.metadata = describe(broker.port, "t", "u", node_id=2)
            assert producer.partitions_for("u") == 1


def test_a_broker_that_was_heard_of_may_ask_for_it_as_well(broker: ScriptedBroker) -> None:
    with ScriptedBroker() as known:
        known.metadata = describe(known.port, "t")
        known.metadata.error_code = REBOOTSTRAP_REQUIRED
        broker.metadata = describe(broker.port, "t", node_id=2)
        brokers = [Node(id=1, host="127.0.0.1", port=known.port)]
        with KafkaProducer(config(broker.address), brokers=brokers) as producer:
            assert producer.partitions_for("t") == 1
        assert METADATA in known.asked


def test_a_broker_that_gives_no_metadata_is_left_for_the_bootstrap_servers(
    broker: ScriptedBroker,
) -> None:
    with ScriptedBroker() as stuck:
        broker.metadata = describe(stuck.port, "t")
        settings = config(
            broker.address,
            connections_max_idle_ms=0,
            # A pause before the next attempt would be a reason to ask the bootstrap servers, too.
            reconnect_backoff_ms=0,
            reconnect_backoff_max_ms=0,
            request_timeout_ms=200,
            metadata_recovery_rebootstrap_trigger_ms=100,
        )
        with KafkaProducer(settings) as producer:
            assert producer.partitions_for("t") == 1
            broker.metadata = describe(broker.port, "t", "u", node_id=2)
            assert producer.partitions_for("u") == 1
        assert 3 in stuck.asked, "the broker known was not asked first"


@pytest.mark.parametrize("says_so", [True, False], ids=["expected", "by time"])
def test_a_reader_begins_anew_as_a_producer_does(broker: ScriptedBroker, *, says_so: bool) -> None:
    with ScriptedBroker() as old:
        broker.metadata = describe(old.port, "t")
        if says_so:
            old.metadata = describe(old.port, "t")
            old.metadata.error_code = REBOOTSTRAP_REQUIRED
        settings = {
            "bootstrap.servers": broker.address,
            "connections.max.idle.ms": 0,
            "retry.backoff.ms": 10,
            "reconnect.backoff.ms": 0,
            "reconnect.backoff.max.ms": 0,
            "request.timeout.ms": 30_000 if says_so else 200,
            "metadata.recovery.rebootstrap.trigger.ms": 300_000 if says_so else 100,
        }
        with TopicReader(settings) as reader:
            with pytest.raises(ConfigException, match="topic t has the partitions 0 to 0"):
                next(reader.read("t", [7]))
            reader._client.poll(0)  # the bootstrap connection, which is idle, is closed
            broker.metadata = describe(broker.port, "t", "u", node_id=2)
            with pytest.raises(ConfigException, match="topic u has the partitions 0 to 0"):
                next(reader.read("u", [7]))
        assert 3 in old.asked, "the broker known was not asked first"


@pytest.mark.parametrize(("version", "epoch"), [(8, -1), (9, 0)])
def test_a_reader_relies_on_leader_epochs_only_where_brokers_do(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, version: int, epoch: int
) -> None:
    versions = NodeApiVersions({3: (0, version)})
    monkeypatch.setattr(NodeApiVersions, "of", lambda _: versions)
    broker.metadata = describe(broker.port, "t")
    with TopicReader({"bootstrap.servers": broker.address}) as reader:
        with pytest.raises(ConfigException, match="topic t has"):
            next(reader.read("t", [7]))
        assert reader._metadata.leader_epoch(TopicPartition("t", 0)) == epoch


def test_only_the_new_topic_is_asked_for(broker: ScriptedBroker) -> None:
    broker.metadata = describe(broker.port, "t", "u")
    with KafkaProducer(config(broker.address)) as producer:
        for _ in range(3):
            assert producer.partitions_for("t") == 1
        assert producer.partitions_for("u") == 1
    assert broker.asked.count(METADATA) == 2


def test_the_new_topics_of_a_batch_are_asked_for_together(broker: ScriptedBroker) -> None:
    names = [f"t{number}" for number in range(500)]
    broker.metadata = describe(broker.port, *names)
    idle = config(broker.address, linger_ms=60_000, enable_idempotence=False)
    with KafkaProducer(idle) as producer:
        producer.append(None, pa.record_batch({"topic": names, "value": names}))
        assert broker.asked.count(METADATA) == 1
        producer.close(0)


# -- names with several addresses ----------------------------------------------------------------


@pytest.mark.kafka
@pytest.mark.parametrize("lookup", ["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"])
def test_a_name_is_followed_to_the_address_where_kafka_listens(
    kafka: KafkaCluster, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch, lookup: str
) -> None:
    topic = new_topic(1)
    resolve = socket.getaddrinfo

    def two_addresses(host: str, port: int | None, **more: int) -> list[object]:
        if host == "kafka.test":
            # Nobody listens at the first one.
            return [*resolve("127.0.0.9", port, **more), *resolve("127.0.0.1", port, **more)]
        return list(resolve(host, port, **more))

    monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
    address = f"kafka.test:{kafka.ports[1]}"
    with KafkaProducer({"bootstrap.servers": address, "client.dns.lookup": lookup}) as producer:
        producer.append(topic, pa.record_batch({"value": ["a"]}))
    assert [r.value for r in read_with_confluent(kafka.bootstrap, topic)] == [b"a"]


def test_a_broker_whose_name_gets_another_address_is_found_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve, address = socket.getaddrinfo, ["127.0.0.1"]

    def moving(host: str, port: int | None, **more: int) -> object:
        return resolve(address[0] if host == "kafka.test" else host, port, **more)

    monkeypatch.setattr(socket, "getaddrinfo", moving)
    written = PartitionProduceResponse(index=0, error_code=0, base_offset=7)
    with ScriptedBroker() as old, ScriptedBroker(listens=("127.0.0.2", old.port)) as new:
        for broker in (old, new):
            broker.metadata = describe(old.port, "t")
            broker.metadata.brokers[0].host = "kafka.test"
            topic = TopicProduceResponse(name="t", partition_responses=[written])
            broker.produced = ProduceResponse(responses=[topic])
        settings = config(f"kafka.test:{old.port}", enable_idempotence=False)
        with KafkaProducer(settings) as producer:
            assert producer.send("t", b"before").result().offset == 7
            assert PRODUCE not in new.asked
            address[0] = "127.0.0.2"
            old.stop()
            assert producer.send("t", b"after").result().offset == 7
            assert PRODUCE in new.asked


# -- leaders that move ---------------------------------------------------------------------------


def move_leader(kafka: KafkaCluster, topic: str) -> int:
    """Let another node lead the only partition of a topic, and return its id."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    before = admin.list_topics(topic).topics[topic].partitions[0]
    order = [*(r for r in before.replicas if r != before.leader), before.leader]
    python_admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    python_admin.alter_partition_reassignments({PythonTopicPartition(topic, 0): order})
    python_admin.close()
    partition = ConfluentTopicPartition(topic, 0)
    while admin.list_topics(topic).topics[topic].partitions[0].leader != order[0]:
        admin.elect_leaders(ElectionType.PREFERRED, [partition]).result()
    return int(order[0])


@pytest.mark.kafka
def test_a_leader_that_the_old_one_names_is_written_to_without_a_pause(
    kafka: KafkaCluster,
) -> None:
    topic = topic_maker(kafka, replicas=3)(1)
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap}) as first:
        first.append(topic, pa.record_batch({"value": ["first"]}))
    # A retry, or metadata, after the pause would come after the record has expired. Not idempotent:
    # brokers that have just come up may have to be asked for a producer id more than once.
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "enable.idempotence": False,
        "retry.backoff.ms": 100_000,
        "retry.backoff.max.ms": 100_000,
        "delivery.timeout.ms": 40_000,
    }
    with KafkaProducer(settings) as producer:
        producer.append(topic, pa.record_batch({"value": ["before"]}))
        producer.flush()
        move_leader(kafka, topic)
        # The new leader may learn of it last, and would refuse a record until then.
        with KafkaProducer({"bootstrap.servers": kafka.bootstrap}) as other:
            other.append(topic, pa.record_batch({"value": ["between"]}))
        producer.append(topic, pa.record_batch({"value": ["after"]}))
        producer.flush()
    found = [r.value for r in read_with_confluent(kafka.bootstrap, topic)]
    assert found == [b"first", b"before", b"between", b"after"]
