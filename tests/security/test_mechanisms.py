"""Each way to log in, on three nodes that check rights: from executors, long, and with faults."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka as kafka_python
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from conftest import NO_KDC, need_kafka, need_kdc
from support.brokers import class_archives, fetch_kafka
from support.brokers.kdc import variables
from support.brokers.secured_kafka import PASSWORD, USER, SecuredKafka
from support.brokers.steady_load import SteadyLoad
from support.oracles.readers import create_topic, read_with_confluent
from support.spark.spark_processes import environment, standalone_cluster, submit

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import (
    KafkaException,
    SaslAuthenticationException,
    SslAuthenticationException,
    TopicAuthorizationException,
    UnsupportedSaslMechanismException,
)
from spark_kafka_sink.network.connection import Connection
from spark_kafka_sink.network.connection_state import ConnectionEvent

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.long(reason="three nodes, a standalone cluster, and sessions that have to end"),
    pytest.mark.timeout(900),
]

SESSION_MS = 5_000
BY_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*BY_PASSWORD, "OAUTHBEARER", "GSSAPI")
LISTENERS = ("SASL_PLAINTEXT", "SASL_SSL")
ROWS, PARTITIONS, REPLICAS = 2_000, 3, 3


@dataclass(frozen=True)
class Login:
    """A way to log in, and what clients need for it."""

    mechanism: str
    listener: str

    @property
    def name(self) -> str:
        """For ids of tests and for topics."""
        return f"{self.mechanism}-{self.listener}".lower()


LOGINS = [Login(each, listener) for each in MECHANISMS for listener in LISTENERS]
MUTUAL = Login("", "MUTUAL")
EVERY = pytest.mark.parametrize("login", [*LOGINS, MUTUAL], ids=lambda each: each.name)


@contextmanager
def running(cluster: SecuredKafka) -> Iterator[SecuredKafka]:
    """Run a cluster for a `with` block."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """Three nodes of the newest Kafka; sessions last five seconds."""
    need_kafka()
    folder = tmp_path_factory.mktemp("three")
    kerberos = folder / "kerberos" if NO_KDC is None else None
    libs, options = (
        fetch_kafka.libs(fetch_kafka.NEWEST),
        class_archives.kafka_options(fetch_kafka.NEWEST),
    )
    prefixes = [f"{listener}.{each}".lower() for listener in LISTENERS for each in MECHANISMS]
    sessions = {f"listener.name.{each}.connections.max.reauth.ms": SESSION_MS for each in prefixes}
    more = sessions | {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
    }
    made = SecuredKafka(libs, folder / "kafka", options, kerberos, nodes=3, more=more)
    with pytest.MonkeyPatch.context() as patch, running(made) as started:
        if kerberos is not None:
            # Spark's processes, which are started later, have it, too.
            for name, value in variables(kerberos).items():
                patch.setenv(name, value)
        yield started


@pytest.fixture(scope="module")
def old_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """One node of the last Kafka 3."""
    need_kafka()
    libs, options = fetch_kafka.libs(fetch_kafka.OLD), class_archives.kafka_options(fetch_kafka.OLD)
    folder = tmp_path_factory.mktemp("old")
    with running(SecuredKafka(libs, folder / "kafka", options, has_tokens=False)) as started:
        yield started


def unsigned_token(user: str = USER) -> str:
    """Return a token that the tests' brokers take."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": user, "iat": now, "exp": now + 3600})
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
    return ".".join(part.rstrip("=") for part in coded) + "."


def options(kafka: SecuredKafka, login: Login, folder: Path) -> dict[str, str]:
    """Return the options of a client that logs in."""
    found = {
        "bootstrap.servers": kafka.address(login.listener),
        "security.protocol": "SSL" if login == MUTUAL else login.listener,
    }
    if login.listener != "SASL_PLAINTEXT":
        found["ssl.truststore.location"] = str(kafka.ca)
    if login == MUTUAL:
        return found | {"ssl.keystore.location": str(kafka.client_pem)}
    found["sasl.mechanism"] = login.mechanism
    if login.mechanism == "OAUTHBEARER":
        token = folder / "token"
        token.write_text(unsigned_token())
        found["sasl.oauthbearer.token.endpoint.url"] = token.as_uri()
    elif login.mechanism == "GSSAPI":
        need_kdc()
        assert kafka.kdc is not None
        found["sasl.kerberos.service.name"] = "kafka"
        found["sasl.kerberos.principal"] = USER
        found["sasl.kerberos.keytab"] = str(kafka.kdc.keytab(USER))
    else:
        found |= {"sasl.username": USER, "sasl.password": PASSWORD}
    return found


SHORT_LIVED = "short-lived"
_USERS = (USER, "client", SHORT_LIVED)


def new_topic(kafka: SecuredKafka, *, may_write: bool = True) -> str:
    """Make a topic that the users may read, and write to if told so."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(kafka.bootstrap, name, PARTITIONS, None, REPLICAS)
    operations = ["READ", "DESCRIBE", *(["WRITE"] if may_write else [])]
    bindings = [
        AclBinding(
            ResourceType.TOPIC, name, ResourcePatternType.LITERAL, f"User:{user}", "*",
            AclOperation[operation], AclPermissionType.ALLOW,
        )
        for user in _USERS
        for operation in operations
    ]  # fmt: skip
    bindings += [
        AclBinding(
            ResourceType.GROUP, "*", ResourcePatternType.LITERAL, f"User:{user}", "*",
            AclOperation.READ, AclPermissionType.ALLOW,
        )
        for user in _USERS
    ]  # fmt: skip
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for created in admin.create_acls(bindings).values():
        created.result()
    return name


def write(given: Mapping[str, Any], topic: str, rows: int = ROWS, size: int = 10) -> None:
    """Write numbered rows."""
    values = pa.array([f"{row:>{size}}" for row in range(rows)])
    with KafkaProducer({"max.block.ms": "20000", **given}) as producer:
        producer.append(topic, pa.record_batch({"value": values}))
        producer.flush()


def numbers(kafka: SecuredKafka, topic: str) -> list[int]:
    """Return the numbers in a topic, sorted, read past all security."""
    return sorted(int(each.value or b"-1") for each in read_with_confluent(kafka.bootstrap, topic))


# -- from executors ------------------------------------------------------------------------------

JOB = """
import json, sys
from pyspark.sql import SparkSession
from spark_kafka_sink import register

spark = SparkSession.builder.getOrCreate()
register(spark)
rows = int(sys.argv[2])
for write in json.load(open(sys.argv[1])):
    frame = spark.range(0, rows, numPartitions=4).selectExpr("CAST(id AS STRING) AS value")
    writer = frame.write.format("pykafka").mode("append").option("topic", write["topic"])
    for name, value in write["options"].items():
        writer = writer.option("kafka." + name, value)
    writer.save()
"""


def test_executors_write_every_row_once_and_others_read_it_by_the_same_credentials(
    cluster: SecuredKafka, tmp_path: Path
) -> None:
    need_kdc()
    logins = [*LOGINS, MUTUAL]
    writes = [
        {"topic": new_topic(cluster), "options": options(cluster, login, tmp_path)}
        for login in logins
    ]
    (tmp_path / "writes.json").write_text(json.dumps(writes))
    (tmp_path / "job.py").write_text(JOB)
    folder = tmp_path / "standalone"
    folder.mkdir()
    python = environment()["PYSPARK_PYTHON"]
    with standalone_cluster(folder, Path(python)) as master:
        arguments: list[str | Path] = [
            "--master",
            master,
            tmp_path / "job.py",
            tmp_path / "writes.json",
            str(ROWS),
        ]
        done = submit(arguments, cwd=tmp_path, env=environment(), timeout_s=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    for login, each in zip(logins, writes, strict=True):
        assert numbers(cluster, str(each["topic"])) == list(range(ROWS)), login
        given = each["options"]
        assert isinstance(given, dict)
        if login.mechanism in BY_PASSWORD or login == MUTUAL:
            assert read_by_confluent(given, str(each["topic"])) == list(range(ROWS)), login
        assert read_by_kafka_python(cluster, login, given, str(each["topic"])) == list(range(ROWS))


def read_by_confluent(given: Mapping[str, str], topic: str) -> list[int]:
    """Read a topic by confluent-kafka, with the same credentials."""
    names = {
        "ssl.truststore.location": "ssl.ca.location",
        "sasl.mechanism": "sasl.mechanisms",
    }
    config = {names.get(name, name): value for name, value in given.items()}
    pem = config.pop("ssl.keystore.location", None)
    if pem is not None:
        config |= {"ssl.certificate.location": pem, "ssl.key.location": pem}
    consumer = confluent_kafka.Consumer(
        config | {"group.id": f"g-{topic}", "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    try:
        return sorted(
            int(record.value() or b"-1")
            for record in consumer.consume(ROWS, timeout=60)
            if record.error() is None
        )
    finally:
        consumer.close()


def read_by_kafka_python(
    kafka: SecuredKafka, login: Login, given: Mapping[str, str], topic: str
) -> list[int]:
    """Read a topic by kafka-python, with the same credentials."""
    config: dict[str, Any] = {
        "bootstrap_servers": given["bootstrap.servers"].split(","),
        "security_protocol": given["security.protocol"],
        "ssl_cafile": given.get("ssl.truststore.location"),
        "auto_offset_reset": "earliest",
        "consumer_timeout_ms": 30_000,
    }
    if login == MUTUAL:
        pem = given["ssl.keystore.location"]
        config |= {"ssl_certfile": pem, "ssl_keyfile": pem}
    elif login.mechanism == "GSSAPI":
        assert kafka.kdc is not None
        config |= {"sasl_mechanism": "GSSAPI", "sasl_kerberos_service_name": "kafka"}
        os.environ["KRB5CCNAME"] = str(kafka.kdc.tickets(USER, kafka.kdc.keytab(USER)))
    elif login.mechanism == "OAUTHBEARER":
        from kafka.net.sasl.oauth import AbstractTokenProvider

        class Provider(AbstractTokenProvider):  # type: ignore[misc] # is Any
            def token(self) -> str:
                return unsigned_token()

        config |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Provider()}
    else:
        config |= {
            "sasl_mechanism": login.mechanism,
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }
    consumer = kafka_python.KafkaConsumer(topic, **config)
    try:
        return sorted(int(record.value) for record, _ in zip(consumer, range(ROWS), strict=False))
    finally:
        consumer.close()


# -- faults --------------------------------------------------------------------------------------


def wrong(login: Login, given: dict[str, str], kafka: SecuredKafka, folder: Path) -> dict[str, str]:
    """Return the options with another secret."""
    if login == MUTUAL:
        del given["ssl.keystore.location"]
    elif login.mechanism == "OAUTHBEARER":
        (folder / "wrong").write_text("eyJhbGciOiJub25lIn0.e30.")
        given["sasl.oauthbearer.token.endpoint.url"] = (folder / "wrong").as_uri()
    elif login.mechanism == "GSSAPI":
        assert kafka.kdc is not None
        principal = f"wrong-{uuid.uuid4().hex[:8]}"
        keytab = kafka.kdc.add(principal)
        content = keytab.read_bytes()
        kafka.kdc.add(principal)
        keytab.write_bytes(content)
        given |= {"sasl.kerberos.principal": principal, "sasl.kerberos.keytab": str(keytab)}
    else:
        given["sasl.password"] = "WRONG-SECRET"
    return given


@EVERY
def test_a_wrong_secret_and_a_missing_right_are_told_and_nothing_is_written(
    cluster: SecuredKafka, login: Login, tmp_path: Path
) -> None:
    given = options(cluster, login, tmp_path)
    # Who may write to any topic may be idempotent.
    new_topic(cluster)
    topic = new_topic(cluster, may_write=False)
    with pytest.raises(TopicAuthorizationException, match=topic):
        write(given, topic, 1)
    kind = SslAuthenticationException if login == MUTUAL else SaslAuthenticationException
    with pytest.raises(kind) as refused:
        write(wrong(login, dict(given), cluster, tmp_path), topic, 1)
    assert "WRONG-SECRET" not in str(refused.value)
    assert "localhost" in str(refused.value)
    assert numbers(cluster, topic) == []


@pytest.mark.parametrize("login", LOGINS, ids=lambda each: each.name)
def test_a_mechanism_that_is_off_is_told_with_those_that_are_on(
    cluster: SecuredKafka, login: Login, tmp_path: Path
) -> None:
    """The listener for signed tokens has OAUTHBEARER alone; one of old Kafka has no tokens."""
    if login.mechanism == "OAUTHBEARER":
        pytest.skip("it is on at each listener of this cluster")
    given = options(cluster, login, tmp_path) | {
        "bootstrap.servers": cluster.address("JWT"),
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(cluster.ca),
    }
    topic = new_topic(cluster)
    with pytest.raises(UnsupportedSaslMechanismException, match="it offers OAUTHBEARER"):
        write(given, topic, 1)
    assert numbers(cluster, topic) == []


# -- for long ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "GSSAPI"])
def test_sessions_of_5_seconds_are_renewed_for_60_and_rows_keep_their_order(
    cluster: SecuredKafka, mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewals: list[str] = []
    begin = Connection._begin_login

    def counted(self: Connection, event: ConnectionEvent, now: float) -> bool:
        has_begun = begin(self, event, now)
        if has_begun and event is ConnectionEvent.RENEW:
            renewals.append(self._peer)
        return has_begun

    monkeypatch.setattr(Connection, "_begin_login", counted)
    topic = new_topic(cluster)
    given = options(cluster, Login(mechanism, "SASL_SSL"), tmp_path) | {
        "linger.ms": "5",
        "max.in.flight.requests.per.connection": "5",
    }
    with KafkaProducer(given) as producer:
        load = SteadyLoad(producer, topic, PARTITIONS)
        try:
            load.wait_for_progress()
            made = connections(producer)
            threading.Event().wait(60)
            assert connections(producer) == made
        finally:
            load.stop()
    load.rows.check(read_with_confluent(cluster.bootstrap, topic))
    counts = [renewals.count(peer) for peer in set(renewals)]
    assert len([count for count in counts if count >= 10]) == 3, counts


def test_tickets_of_60_seconds_are_renewed_for_3_minutes(
    cluster: SecuredKafka, tmp_path: Path
) -> None:
    given = options(cluster, Login("GSSAPI", "SASL_SSL"), tmp_path)
    assert cluster.kdc is not None
    keytab = cluster.kdc.add(SHORT_LIVED, "-maxlife", '"60 seconds"')
    given |= {"sasl.kerberos.principal": SHORT_LIVED, "sasl.kerberos.keytab": str(keytab)}
    topic = new_topic(cluster)
    with KafkaProducer(given | {"linger.ms": "5"}) as producer:
        load = SteadyLoad(producer, topic, PARTITIONS)
        try:
            load.wait_for_progress()
            made = connections(producer)
            threading.Event().wait(180)
            assert connections(producer) == made
        finally:
            load.stop()
    load.rows.check(read_with_confluent(cluster.bootstrap, topic))


def connections(producer: KafkaProducer) -> float:
    """Return how many connections were made so far."""
    return next(
        float(value)
        for metric, value in producer.metrics().items()
        if metric.name == "connection-creation-total"
    )


# -- Kafka 3.9 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_bare", [False, True], ids=["SaslAuthenticate", "raw tokens"])
@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("mechanism", BY_PASSWORD)
def test_the_last_kafka_3_takes_logins_also_by_raw_tokens(
    old_cluster: SecuredKafka,
    mechanism: str,
    listener: str,
    is_bare: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_bare:
        # As with a broker that has no SaslAuthenticate.
        monkeypatch.setattr(Connection, "_has_authenticate", False)
    given = options(old_cluster, Login(mechanism, listener), tmp_path)
    topic = new_topic_of(old_cluster)
    write(given, topic)
    assert numbers(old_cluster, topic) == list(range(ROWS))
    with pytest.raises(KafkaException) as refused:
        write(given | {"sasl.password": "WRONG-SECRET", "max.block.ms": "5000"}, topic, 1)
    assert isinstance(refused.value, SaslAuthenticationException) or is_bare
    assert "during the SASL login" in str(refused.value) or not is_bare
    assert "WRONG-SECRET" not in str(refused.value)
    assert len(numbers(old_cluster, topic)) == ROWS


def test_the_last_kafka_3_takes_client_certificates(
    old_cluster: SecuredKafka, tmp_path: Path
) -> None:
    topic = new_topic_of(old_cluster)
    write(options(old_cluster, MUTUAL, tmp_path), topic)
    assert numbers(old_cluster, topic) == list(range(ROWS))


def new_topic_of(kafka: SecuredKafka) -> str:
    """Make a topic on a cluster that checks no rights."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(kafka.bootstrap, name, PARTITIONS)
    return name


# -- keys that are used up -----------------------------------------------------------------------


def test_a_broker_that_asks_for_new_keys_every_4_mib_takes_1_gib(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    need_kafka()
    limits = tmp_path / "java.security"
    limits.write_text("jdk.tls.keyLimits=AES/GCM/NoPadding KeyUpdate 2^22\n")
    java = [
        *class_archives.kafka_options(fetch_kafka.NEWEST),
        f"-Djava.security.properties={limits}",
    ]
    folder = tmp_path_factory.mktemp("limits")
    kafka = SecuredKafka(fetch_kafka.libs(fetch_kafka.NEWEST), folder / "kafka", java)
    size, rows = 64 * 1024, 16 * 1024
    values = pa.array([b"%0*d" % (size, row) for row in range(256)])
    with running(kafka):
        topic = new_topic_of(kafka)
        given = {
            "bootstrap.servers": kafka.address("SSL"),
            "security.protocol": "SSL",
            "ssl.truststore.location": str(kafka.ca),
            "batch.size": str(1 << 20),
        }
        with KafkaProducer(given) as producer:
            for _ in range(rows // len(values)):
                producer.append(topic, pa.record_batch({"value": values}))
            producer.flush()
            made = connections(producer)
        assert made <= 2
        ends = end_offsets(kafka, topic)
    assert ends == rows


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
