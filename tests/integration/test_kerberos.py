"""Kerberos: logins by GSSAPI at a real broker, whose tickets a real KDC gives."""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import logging
import re
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.brokers.kdc import REALM, Kdc, read_by_kerberos
from support.brokers.secured_kafka import SESSION_MS, USER, SecuredKafka
from support.oracles.readers import create_topic, read_with_confluent

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.auth.gssapi import GssapiExchange, KerberosOptions
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.consumer.topic_reader import TopicReader
from spark_kafka_sink.errors import ConfigException, SaslAuthenticationException, TimeoutException
from spark_kafka_sink.kafka_producer import KafkaProducer
from spark_kafka_sink.network import kerberos
from spark_kafka_sink.network.connection import Connection
from spark_kafka_sink.network.gssapi_context import gssapi_exchange
from spark_kafka_sink.spark.tasks.producer_pool import ProducerPool
from spark_kafka_sink.task_producer import TaskProducer

pytestmark = pytest.mark.kafka

MODULE = "com.sun.security.auth.module.Krb5LoginModule"
ROWS = 5_000
SILENT = 10


@pytest.fixture
def topic(secured_kafka: SecuredKafka, realm: Kdc) -> str:
    """A topic of three partitions."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(secured_kafka.bootstrap, name, 3)
    return name


def login(kafka: SecuredKafka, listener: str = "SASL_SSL", **more: str | Path) -> dict[str, Any]:
    """Return the options of a client that logs in by Kerberos; `more` with _ for the dot."""
    options: dict[str, Any] = {
        "bootstrap.servers": kafka.address(listener),
        "security.protocol": listener,
        "sasl.kerberos.service.name": "kafka",
    }
    if listener == "SASL_SSL":
        options["ssl.truststore.location"] = str(kafka.ca)
    return options | {name.replace("_", "."): str(value) for name, value in more.items()}


def by_keytab(kafka: SecuredKafka, realm: Kdc, listener: str = "SASL_SSL") -> dict[str, Any]:
    """Return the options of a client that logs in with the right keytab."""
    keytab = realm.keytab(USER)
    return login(kafka, listener, sasl_kerberos_principal=USER, sasl_kerberos_keytab=keytab)


def write(options: Mapping[str, Any], topic: str, rows: int = ROWS) -> None:
    """Write numbered rows."""
    values = pa.array([str(row) for row in range(rows)])
    with KafkaProducer({"max.block.ms": "20000", **options}) as producer:
        producer.append(topic, pa.record_batch({"value": values}))
        producer.flush()


def refused(options: Mapping[str, Any], topic: str) -> str:
    """Return what producer and admin say of a login that cannot be."""
    with pytest.raises(SaslAuthenticationException) as by_producer:
        write(options, topic, rows=1)
    with (
        pytest.raises(SaslAuthenticationException) as by_admin,
        KafkaAdmin(producer_config(options)) as admin,
    ):
        admin.topics([topic])
    assert str(by_admin.value) == str(by_producer.value)
    return "".join(traceback.format_exception(by_producer.value))


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_rows_that_are_written_by_a_keytab_arrive_once(
    secured_kafka: SecuredKafka,
    realm: Kdc,
    topic: str,
    listener: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    options = by_keytab(secured_kafka, realm, listener)
    write(options, topic)
    secured_kafka.check_rows(topic, ROWS)
    with TopicReader(options) as reader:
        assert sum(batch.num_rows for batch in reader.read(topic)) == ROWS


def empty_tickets(keytab: Path) -> None:
    """Remove the tickets of a keytab from memory, as the library does for a moment to renew them.

    The library that Python imports cannot do this.
    """
    library = ctypes.CDLL(ctypes.util.find_library("krb5"))
    context, cache, principal = (ctypes.c_void_p() for _ in range(3))
    digest = hashlib.sha256(b"\0".join((USER.encode(), keytab.read_bytes()))).hexdigest()
    name = f"MEMORY:kafka-{digest}".encode()
    assert library.krb5_init_context(ctypes.byref(context)) == 0
    assert library.krb5_cc_resolve(context, name, ctypes.byref(cache)) == 0
    assert library.krb5_cc_get_principal(context, cache, ctypes.byref(principal)) == 0
    assert library.krb5_cc_initialize(context, cache, principal) == 0


def test_tickets_that_are_renewed_for_another_client_during_a_login_do_not_end_it(
    secured_kafka: SecuredKafka, realm: Kdc, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keytab = realm.keytab(USER)
    hosts: list[str] = []

    def exchange(options: KerberosOptions, host: str, credentials: object) -> GssapiExchange:
        if not hosts:
            empty_tickets(keytab)
        hosts.append(host)
        return gssapi_exchange(options, host, credentials)

    monkeypatch.setattr(kerberos, "gssapi_exchange", exchange)
    write(by_keytab(secured_kafka, realm), topic)
    secured_kafka.check_rows(topic, ROWS)
    assert len(hosts) > 1


def test_a_broker_without_sasl_authenticate_takes_a_login_by_raw_tokens(
    secured_kafka: SecuredKafka, realm: Kdc, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "_has_authenticate", False)
    write(by_keytab(secured_kafka, realm, "SASL_SSL"), topic)
    secured_kafka.check_rows(topic, ROWS)


def test_jaas_names_the_keytab_as_in_java(
    secured_kafka: SecuredKafka, realm: Kdc, topic: str
) -> None:
    jaas = (
        f'{MODULE} required useKeyTab=true storeKey=true keyTab="{realm.keytab(USER)}" '
        f'principal="{USER}@{REALM}" serviceName="kafka";'
    )
    options = login(secured_kafka, sasl_jaas_config=jaas)
    del options["sasl.kerberos.service.name"]
    write(options, topic, 10)
    secured_kafka.check_rows(topic, 10)


def test_kafka_python_reads_what_was_written_by_the_same_ticket_cache(
    secured_kafka: SecuredKafka, realm: Kdc, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = realm.tickets(USER, realm.keytab(USER))
    jaas = f'{MODULE} required useTicketCache=true ticketCache="{cache}";'
    write(login(secured_kafka, sasl_jaas_config=jaas), topic, 10)
    monkeypatch.setenv("KRB5CCNAME", str(cache))
    write(login(secured_kafka, sasl_kerberos_principal=USER), topic, 10)
    address = secured_kafka.address("SASL_SSL")
    with read_by_kerberos(address, secured_kafka.ca, topic, cache) as consumer:
        found = [int(next(consumer).value) for _ in range(20)]
    assert sorted(found) == sorted([*range(10), *range(10)])


def test_a_wrong_key_and_an_unknown_principal_are_an_error_at_once(
    secured_kafka: SecuredKafka, realm: Kdc, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = realm.add(f"old-{uuid.uuid4().hex[:8]}")
    principal = old.stem
    content = old.read_bytes()
    realm.change_key(principal)
    old.write_bytes(content)
    options = login(secured_kafka, sasl_kerberos_principal=principal, sasl_kerberos_keytab=old)
    said = refused(options, topic)
    assert f"no ticket for principal {principal!r}" in said
    assert f"{old.name} of sasl.kerberos.keytab has an old or wrong key" in said
    realm.run("kadmin.local", "-q", f"delprinc -force {principal}")
    said = refused(options, topic)
    assert "not found in Kerberos database" in said
    assert "compare sasl.kerberos.principal and its realm" in said
    monkeypatch.setenv("PRINCIPAL_OF_TEST", principal)
    said = refused(options | {"sasl.kerberos.principal": "${env:PRINCIPAL_OF_TEST}"}, topic)
    assert "Client '${env:PRINCIPAL_OF_TEST}@LAB.TEST' not found" in said
    assert f"{principal}@" not in said
    said = refused(options | {"sasl.kerberos.principal": "nobody"}, topic)
    assert f"{old.name} of sasl.kerberos.keytab have a key" in said
    assert read_with_confluent(secured_kafka.bootstrap, topic) == []


def test_another_service_name_is_an_error_at_once(
    secured_kafka: SecuredKafka, realm: Kdc, topic: str
) -> None:
    options = by_keytab(secured_kafka, realm) | {"sasl.kerberos.service.name": "broker"}
    said = refused(options, topic)
    assert "Server broker/localhost@LAB.TEST not found" in said
    assert "principal must be sasl.kerberos.service.name, then a slash" in said
    assert "set rdns = false in krb5.conf" in said


def test_no_ticket_or_an_expired_one_is_an_error_at_once(
    secured_kafka: SecuredKafka, realm: Kdc, topic: str
) -> None:
    cache = realm.tickets(USER, realm.keytab(USER), "-l", "1s")
    realm.wait_until_expired(cache)
    for path, sentence in ((cache, "has expired: run kinit again"), ("/nowhere", "run kinit")):
        jaas = f'{MODULE} required useTicketCache=true ticketCache="{path}";'
        assert sentence in refused(login(secured_kafka, sasl_jaas_config=jaas), topic)
    assert read_with_confluent(secured_kafka.bootstrap, topic) == []


def test_a_kept_producer_is_for_those_whose_tickets_the_cache_has(
    secured_kafka: SecuredKafka, realm: Kdc, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"other-{uuid.uuid4().hex[:8]}"
    keytabs = {USER: realm.keytab(USER), other: realm.add(other)}
    caches = [realm.tickets(user, keytab) for user, keytab in keytabs.items()]
    cache = caches[0].with_name(f"{other}.cache")
    jaas = f'{MODULE} required useTicketCache=true ticketCache="{cache}";'
    config = producer_config(login(secured_kafka, sasl_jaas_config=jaas))
    pool = ProducerPool(threading.Timer)
    made = []
    for given in (caches[0], caches[0], caches[1], caches[0]):
        cache.write_bytes(given.read_bytes())
        with pool.producer(config) as producer:
            producer.append(topic, pa.record_batch({"value": ["v"]}))
        made.append(producer)
    assert made[0] is made[1] is made[3]
    assert made[2] is not made[0]
    # A client does not become another user.
    with (
        TaskProducer(config, identity=f"{other}@{REALM}") as producer,
        pytest.raises(SaslAuthenticationException, match="cannot change its user"),
    ):
        producer.append(topic, pa.record_batch({"value": ["v"]}))
    for kept in pool._kept.values():
        kept.timer.cancel()
        kept.producer.close(0)


def test_what_can_be_known_without_a_kdc_is_an_error_before_any_connection(
    secured_kafka: SecuredKafka, realm: Kdc, tmp_path: Path
) -> None:
    options = by_keytab(secured_kafka, realm)
    (tmp_path / "x.keytab").write_text("no keytab")
    for more, sentence in (
        ({"sasl.kerberos.keytab": str(tmp_path / "x.keytab")}, "is not a keytab"),
        ({"sasl.kerberos.keytab": str(tmp_path / "none.keytab")}, "No such file"),
        ({"sasl.jaas.config": f"{MODULE} required useTicketCache=true;"}, "both set the user"),
    ):
        with pytest.raises(ConfigException, match=sentence):
            KafkaAdmin(producer_config(options | more))


def test_a_kdc_that_is_away_is_waited_for(
    secured_kafka: SecuredKafka,
    realm: Kdc,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    away = tmp_path / "krb5.conf"
    config = realm.config.read_text()
    away.write_text(re.sub(r"kdc = 127.0.0.1:\d+", "kdc = 127.0.0.1:1", config))
    monkeypatch.setenv("KRB5_CONFIG", str(away))
    principal = f"late-{uuid.uuid4().hex[:8]}"
    options = login(
        secured_kafka, sasl_kerberos_principal=principal, sasl_kerberos_keytab=realm.add(principal)
    )
    with KafkaProducer(options | {"max.block.ms": "1000"}) as producer:
        with pytest.raises(TimeoutException, match="Cannot contact any KDC"):
            producer.append(topic, pa.record_batch({"value": ["lost"]}))
        away.write_text(config)
        monkeypatch.setenv("KRB5_CONFIG", str(realm.config))
    write(options, topic, 10)
    secured_kafka.check_rows(topic, 10)


def test_a_kdc_that_never_answers_does_not_hold_up_later_logins(
    secured_kafka: SecuredKafka,
    realm: Kdc,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = tmp_path / "krb5.conf"
    config = realm.config.read_text()
    principal = f"late-{uuid.uuid4().hex[:8]}"
    options = login(
        secured_kafka, sasl_kerberos_principal=principal, sasl_kerberos_keytab=realm.add(principal)
    ) | {f"socket.connection.setup.timeout.{limit}": "1000" for limit in ("ms", "max.ms")}
    with ExitStack() as sockets:
        # The library asks one after the other, which takes longer than both calls of `append`.
        kdcs = [
            sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(SILENT)
        ]
        addresses = "\n".join(f"kdc = 127.0.0.1:{kdc.getsockname()[1]}" for kdc in kdcs)
        silent.write_text(re.sub(r"kdc = 127.0.0.1:\d+", addresses, config))
        monkeypatch.setenv("KRB5_CONFIG", str(silent))
        with KafkaProducer(options | {"max.block.ms": "5000"}) as producer:
            why = r"no ticket or token within socket\.connection\.setup\.timeout\.ms"
            with pytest.raises(TimeoutException, match=why):
                producer.append(topic, pa.record_batch({"value": ["lost"]}))
            # The calls before still wait for the silent KDC.
            monkeypatch.setenv("KRB5_CONFIG", str(realm.config))
            producer.append(topic, pa.record_batch({"value": ["0"]}))
            producer.flush()
        secured_kafka.check_rows(topic, 1)


def test_a_session_is_renewed_on_its_connection(
    secured_kafka: SecuredKafka, realm: Kdc, topic: str
) -> None:
    options = by_keytab(secured_kafka, realm, "SASL_PLAINTEXT") | {"linger.ms": "0"}
    seconds, written, connections = 5, 0, None
    with KafkaProducer(options) as producer:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            values = pa.array([str(written + row) for row in range(20)])
            producer.append(topic, pa.record_batch({"value": values}))
            written += 20
            producer.flush()
            created = next(
                value
                for metric, value in producer.metrics().items()
                if metric.name == "connection-creation-total"
            )
            connections = connections or created
        # The session ends while nobody writes; the next request waits for another ticket.
        threading.Event().wait(2 * SESSION_MS / 1000)
        producer.append(topic, pa.record_batch({"value": [str(written)]}))
        producer.flush()
        created = next(
            value
            for metric, value in producer.metrics().items()
            if metric.name == "connection-creation-total"
        )
        assert created == connections
    secured_kafka.check_rows(topic, written + 1)
