"""The options of the producer: every name of the Java client's, its ranges and its rules."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any, Final

import pytest
from support.brokers import fetch_kafka
from support.brokers.jvm import run_java
from support.brokers.mock_cluster import producer_options
from support.documents.configuration_table import DOCUMENT, LATER, render

from spark_kafka_sink.config import (
    LIBRDKAFKA_ONLY,
    NO_EFFECT,
    NOT_YET,
    OFF_ONLY,
    OTHER_CLIENTS,
    REFUSED,
    ConfigProvider,
    ProducerConfig,
    java_names,
    option_fields,
    producer_config,
)
from spark_kafka_sink.errors import ConfigException, name_options
from spark_kafka_sink.logs import _warn
from spark_kafka_sink.model import Secret
from spark_kafka_sink.spark.options import sink_options

ADDRESS = {"bootstrap.servers": "h:1"}
MAX_INT, MAX_LONG = 2**31 - 1, 2**63 - 1

# name: default, valid values (with their results), invalid values.
ROWS: Final[dict[str, tuple[Any, dict[Any, Any], list[Any]]]] = {
    "acks": (
        "all",
        {"-1": "-1", "0": "0", "1": "1", 1: "1", " all ": "all", "ALL": "all"},
        ["2", "any", "", "1.0"],
    ),
    "batch.size": (16_384, {"0": 0, MAX_INT: MAX_INT}, ["-1", "1.5", "x", "", 2**31, "1e3", "5_0"]),
    "bootstrap.servers": (
        "h:1", {"a:1,b:2": "a:1,b:2", " a:1 , b:2 ": "a:1,b:2", "a:1,,b:2": "a:1,b:2"}, ["", " "]
    ),
    "buffer.memory": (33_554_432, {"0": 0, MAX_LONG: MAX_LONG}, ["-1", "1k"]),
    "client.dns.lookup": (
        "use_all_dns_ips",
        {
            "resolve_canonical_bootstrap_servers_only": "resolve_canonical_bootstrap_servers_only",
            "use_all_dns_ips": "use_all_dns_ips",
            "USE_ALL_DNS_IPS": "use_all_dns_ips",
        },
        ["default", ""],
    ),
    "client.rack": ("", {"eu-1a": "eu-1a", " a ": "a", "null": "null"}, []),
    "client.id": ("", {"me": "me", "TRUE": "TRUE", "null": "null", "+5": "+5"}, []),
    "compression.gzip.level": (-1, {"-1": -1, "1": 1, "9": 9, 6: 6}, ["0", "10", "-2"]),
    "compression.lz4.level": (9, {"1": 1, "17": 17}, ["0", "18"]),
    "compression.type": (
        "none",
        {each: each for each in ("none", "gzip", "snappy", "lz4", "zstd")} | {"GZIP": "gzip"},
        ["lzo", ""],
    ),
    "compression.zstd.level": (3, {"-131072": -131_072, "22": 22}, ["-131073", "23"]),
    "config.providers": (
        (),
        {
            "": (),
            " ": (),
            "mine, other": (ConfigProvider("mine"), ConfigProvider("other")),
        },
        [],
    ),
    "connections.max.idle.ms": (540_000, {"-1": -1, "0": 0, MAX_LONG: MAX_LONG}, ["x", 2**63]),
    "delivery.timeout.ms": (120_000, {MAX_INT: MAX_INT}, ["-1", 2**31, "0"]),
    "enable.idempotence": (
        True, {"true": True, "TRUE": True, "false": False, False: False}, ["x", "1", "0", "", 1]
    ),
    "linger.ms": (
        5,
        {"0": 0, " 7 ": 7, "+5": 5, "-0": 0, "007": 7, "\u0665": 5, 5.0: 5, 60_000: 60_000},
        ["-1", "", "5.0", 5.5, float("inf"), "+-5", "+", "0x5", True, "null", "9" * 5000],
    ),
    "max.block.ms": (60_000, {"0": 0, MAX_LONG: MAX_LONG}, ["-1"]),
    "max.in.flight.requests.per.connection": (5, {"1": 1, "5": 5}, ["0", "6"]),
    "max.request.size": (1_048_576, {"0": 0, MAX_INT: MAX_INT}, ["-1", 2**31]),
    "metadata.max.age.ms": (300_000, {"0": 0, MAX_LONG: MAX_LONG}, ["-1"]),
    "metadata.max.idle.ms": (300_000, {"5000": 5000, MAX_LONG: MAX_LONG}, ["4999", "0"]),
    "metadata.recovery.rebootstrap.trigger.ms": (300_000, {"0": 0}, ["-1"]),
    "metadata.recovery.strategy": (
        "rebootstrap", {"none": "none", "NONE": "none", "Rebootstrap": "rebootstrap"}, ["", "no"]
    ),
    "metrics.num.samples": (2, {"1": 1}, ["0"]),
    "metrics.sample.window.ms": (30_000, {"0": 0}, ["-1"]),
    "partitioner.adaptive.partitioning.enable": (True, {"false": False}, ["x"]),
    "partitioner.availability.timeout.ms": (0, {"100": 100}, ["-1"]),
    "partitioner.class": (
        None,
        {
            None: None,
            "": None,
            "roundrobin": "roundrobin",
            "RoundRobinPartitioner": "roundrobin",
            "org.apache.kafka.clients.producer.RoundRobinPartitioner": "roundrobin",
            "uniformsticky": "uniformsticky",
            "UniformStickyPartitioner": "uniformsticky",
            "org.apache.kafka.clients.producer.UniformStickyPartitioner": "uniformsticky",
            "org.apache.kafka.clients.producer.internals.DefaultPartitioner": None,
            "own_module.Partitioner": "own_module.Partitioner",
        },
        ["random", "round-robin"],
    ),
    "partitioner.ignore.keys": (False, {"true": True}, ["x"]),
    "partitioner.rack.aware": (False, {"false": False}, ["x", "true"]),
    "receive.buffer.bytes": (32_768, {"-1": -1, "0": 0}, ["-2", 2**31]),
    "reconnect.backoff.max.ms": (1000, {"0": 0}, ["-1"]),
    "reconnect.backoff.ms": (50, {"0": 0}, ["-1"]),
    "request.timeout.ms": (30_000, {"1": 1}, ["0", "-1", 2**31]),
    "retries": (MAX_INT, {"1": 1, MAX_INT: MAX_INT}, ["-1", 2**31]),
    "retry.backoff.max.ms": (1000, {"0": 0}, ["-1"]),
    "retry.backoff.ms": (100, {"0": 0}, ["-1"]),
    "sasl.client.callback.handler.class": (None, {}, ["x", "com.acme.Handler"]),
    "sasl.jaas.config": (None, {"p": Secret("p")}, []),
    "sasl.login.connect.timeout.ms": (
        None, {"0": 0, " 5 ": 5, MAX_INT: MAX_INT, None: None}, ["x", "1.5", "-1"]
    ),
    "sasl.login.read.timeout.ms": (None, {"0": 0, "5": 5}, ["x", "-1"]),
    "sasl.login.refresh.buffer.seconds": (300, {"0": 0, "3600": 3600}, ["-1", "3601"]),
    "sasl.login.refresh.min.period.seconds": (60, {"0": 0, "900": 900}, ["-1", "901"]),
    "sasl.login.refresh.window.factor": (
        0.8, {"0.5": 0.5, " 1 ": 1.0, "1.": 1.0, 0.75: 0.75}, ["0.49", "1.01", "x", "", "nan"]
    ),
    "sasl.login.refresh.window.jitter": (0.05, {"0": 0.0, ".25": 0.25}, ["-0.01", "0.26", "inf"]),
    "sasl.login.retry.backoff.max.ms": (10_000, {"0": 0}, ["x", "-1"]),
    "sasl.login.retry.backoff.ms": (100, {"0": 0}, ["x", "-1"]),
    "sasl.oauthbearer.assertion.algorithm": (
        "RS256", {"es256": "ES256", "RS256": "RS256"}, ["HS256"]
    ),
    "sasl.oauthbearer.assertion.claim.aud": (None, {"a": "a"}, []),
    "sasl.oauthbearer.assertion.claim.exp.seconds": (
        300, {"0": 0, "86400": 86_400}, ["-1", "86401"]
    ),
    "sasl.oauthbearer.assertion.claim.iss": (None, {"a": "a"}, []),
    "sasl.oauthbearer.assertion.claim.jti.include": (False, {"true": True}, ["x"]),
    "sasl.oauthbearer.assertion.claim.nbf.seconds": (60, {"0": 0, "3600": 3600}, ["-1", "3601"]),
    "sasl.oauthbearer.assertion.claim.sub": (None, {"a": "a"}, []),
    "sasl.oauthbearer.assertion.file": (None, {"a": "a"}, []),
    "sasl.oauthbearer.assertion.private.key.file": (None, {"a": "a"}, []),
    "sasl.oauthbearer.assertion.private.key.passphrase": (None, {"p": Secret("p")}, []),
    "sasl.oauthbearer.assertion.template.file": (None, {"a": "a"}, []),
    "sasl.oauthbearer.client.credentials.client.id": (None, {"a": "a"}, []),
    "sasl.oauthbearer.client.credentials.client.secret": (None, {"p": Secret("p")}, []),
    "sasl.oauthbearer.header.urlencode": (False, {"TRUE": True}, ["x"]),
    "sasl.oauthbearer.jwt.retriever.class": (
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever", {"a.B": "a.B"}, []
    ),
    "sasl.oauthbearer.scope": (None, {"a": "a"}, []),
    "sasl.oauthbearer.sub.claim.name": ("sub", {" azp ": "azp"}, [""]),
    "sasl.kerberos.keytab": (None, {"/a.keytab": "/a.keytab"}, []),
    "sasl.kerberos.principal": (None, {"a@B": "a@B"}, []),
    "sasl.kerberos.service.name": (None, {"kafka": "kafka"}, []),
    "sasl.login.callback.handler.class": (None, {}, ["x", "com.acme.Handler"]),
    "sasl.mechanism": ("GSSAPI", {"PLAIN": "PLAIN"}, []),
    "sasl.oauthbearer.token.endpoint.url": (None, {"file:///t": "file:///t"}, []),
    "sasl.password": (None, {}, ["a password without its user"]),
    "sasl.username": (None, {}, ["a user without a password"]),
    "security.protocol": (
        "PLAINTEXT",
        {"PLAINTEXT": "PLAINTEXT", "plaintext": "PLAINTEXT", "ssl": "SSL", "Sasl_Ssl": "SASL_SSL"},
        ["x", "TLS"],
    ),
    "send.buffer.bytes": (131_072, {"-1": -1, "0": 0}, ["-2", 2**31]),
    "socket.connection.setup.timeout.max.ms": (30_000, {"0": 0}, ["-1", "x"]),
    "socket.connection.setup.timeout.ms": (10_000, {"0": 0}, ["-1", "x"]),
    "ssl.cipher.suites": ("", {"": "", "A, B": "A, B"}, []),
    "ssl.enabled.protocols": (
        "TLSv1.2,TLSv1.3",
        {"TLSv1.3": "TLSv1.3", " TLSv1.2 , TLSv1.3": "TLSv1.2,TLSv1.3"},
        ["", "x"],
    ),
    "ssl.endpoint.identification.algorithm": ("https", {"": "", "HTTPS": "https"}, ["none"]),
    "ssl.key.password": (None, {"p": Secret("p")}, []),
    "ssl.keystore.certificate.chain": (None, {}, ["a chain without its key"]),
    "ssl.keystore.key": (None, {}, ["a key without its chain"]),
    "ssl.keystore.location": (None, {"/a.pem": "/a.pem"}, []),
    "ssl.keystore.password": (None, {"p": Secret("p")}, []),
    "ssl.keystore.type": ("JKS", {"pem": "PEM", "PKCS12": "PKCS12", "JKS": "JKS"}, ["x"]),
    "ssl.protocol": ("TLSv1.3", {"TLSv1.2": "TLSv1.2", "TLS": "TLS"}, ["SSLv3", ""]),
    "ssl.truststore.certificates": (None, {"a text": Secret("a text")}, []),
    "ssl.truststore.location": (None, {"/a.pem": "/a.pem"}, []),
    "ssl.truststore.password": (None, {"p": Secret("p")}, []),
    "ssl.truststore.type": ("JKS", {"pem": "PEM", "PKCS12": "PKCS12", "JKS": "JKS"}, ["x"]),
    "transaction.timeout.ms": (60_000, {"1": 1, MAX_INT: MAX_INT}, ["0", "-1"]),
    "transactional.id": (None, {"orders": "orders", "null": "null", "False": "False"}, [""]),
}  # fmt: skip

# Options of this producer only.
OWN: Final = {"sasl.kerberos.keytab", "sasl.kerberos.principal", "sasl.password", "sasl.username"}
# Options of the Kafka 3.9 client, which Spark 4.2 has, that 4.3's does not have.
GONE: Final = {"auto.include.jmx.reporter"}
# Values that Java takes and this producer does not, and why not.
STRICTER: Final = {
    ("partitioner.rack.aware", "true"): "client.rack is not set: Java's producer says so later",
    ("request.timeout.ms", "0"): "no response would ever be in time",
    ("sasl.login.connect.timeout.ms", "-1"): "no endpoint would be reached",
    ("sasl.login.read.timeout.ms", "-1"): "no endpoint would answer in time",
    ("sasl.login.retry.backoff.max.ms", "-1"): "there is no such pause",
    ("sasl.login.retry.backoff.ms", "-1"): "there is no such pause",
    ("sasl.oauthbearer.sub.claim.name", ""): "no claim has that name",
    ("ssl.enabled.protocols", ""): "no version is left",
    ("ssl.enabled.protocols", "x"): "there is no such version",
    ("ssl.endpoint.identification.algorithm", "none"): "that is librdkafka's: write it empty",
    ("ssl.keystore.certificate.chain", "a chain without its key"): "found when it connects",
    ("ssl.keystore.key", "a key without its chain"): "found when it connects",
    ("ssl.keystore.type", "x"): "there is no such type",
    ("ssl.protocol", ""): "there is no such version",
    ("ssl.protocol", "SSLv3"): "there is no such version",
    ("ssl.truststore.type", "x"): "there is no such type",
    ("socket.connection.setup.timeout.ms", "-1"): "no connection would ever come up",
    ("transaction.timeout.ms", "-1"): "no coordinator takes it",
    ("transaction.timeout.ms", "0"): "no coordinator takes it",
    ("socket.connection.setup.timeout.max.ms", "-1"): "no connection would ever come up",
}
# Values that this producer takes and Java does not: no other meaning is possible.
MORE_LENIENT: Final = {
    ("acks", "ALL"),
    ("bootstrap.servers", "a:1,,b:2"),
    ("client.dns.lookup", "USE_ALL_DNS_IPS"),
    ("compression.type", "GZIP"),
    ("linger.ms", 5.0),
    ("sasl.oauthbearer.jwt.retriever.class", "a.B"),
} | {
    ("partitioner.class", value)
    for value in ("", "roundrobin", "RoundRobinPartitioner", "uniformsticky",
                  "UniformStickyPartitioner",
                  "org.apache.kafka.clients.producer.UniformStickyPartitioner",
                  "org.apache.kafka.clients.producer.internals.DefaultPartitioner",
                  "own_module.Partitioner")
}  # fmt: skip


def fields() -> dict[str, Any]:
    """Return the supported options, with their defaults."""
    return {f.encode_name: f.default for f in option_fields()}


def value_of(config: ProducerConfig, name: str) -> object:
    """Return an option's value by its Java name."""
    by_name = {f.encode_name: f.name for f in option_fields()}
    value: object = getattr(config, by_name[name])
    return value


def used(name: str) -> dict[str, str]:
    """Return the security protocol with which an option has an effect."""
    if name.startswith(("ssl.", "sasl.")):
        return {"security.protocol": "SASL_SSL"}
    return {}


@pytest.fixture(autouse=True)
def nothing_was_said() -> None:
    """A process that has not warned yet."""
    _warn.cache_clear()


@pytest.fixture(scope="module")
def java_defaults() -> dict[str, str]:
    """The options of the Java producer 4.4, with their defaults as Java prints them."""
    printed = run_java("ProducerConfigs", version=fetch_kafka.NEXT_CLIENTS)
    return dict(line.split("\t") for line in printed.splitlines())


# -- every name ----------------------------------------------------------------------------------


def test_every_option_of_the_java_producer_is_offered_or_refused_with_a_sentence(
    java_defaults: dict[str, str],
) -> None:
    here = fields().keys() | NOT_YET | REFUSED.keys() | NO_EFFECT.keys() | OFF_ONLY.keys()
    assert here - GONE - OWN == java_defaults.keys()
    newest = run_java("ProducerConfigs", version=fetch_kafka.NEWEST).splitlines()
    assert java_defaults.keys() - {line.split("\t")[0] for line in newest} == set(LATER)
    older = run_java("ProducerConfigs", version=fetch_kafka.OLD).splitlines()
    assert {line.split("\t")[0] for line in older} - java_defaults.keys() == GONE


def test_no_option_stands_in_two_tables() -> None:
    tables = [fields().keys(), NOT_YET, REFUSED.keys(), NO_EFFECT.keys(), OFF_ONLY.keys()]
    for one, other in itertools.combinations(tables, 2):
        assert set(one).isdisjoint(other)


def test_defaults_are_the_java_clients(java_defaults: dict[str, str]) -> None:
    for name, default in fields().items():
        if name in {"bootstrap.servers", *OWN}:
            continue
        java = java_defaults[name].removeprefix("class ")
        expected = {"true": True, "false": False, "null": None, "[]": ""}.get(java, java)
        if isinstance(expected, str) and expected.startswith("["):
            expected = expected.strip("[]").replace(" ", "")
        assert str("" if default == () else default) == str(expected), name


def test_every_option_that_is_offered_has_its_row_here() -> None:
    assert fields().keys() == ROWS.keys()


def config_of_spark(options: dict[str, Any], *, lenient: bool = False) -> ProducerConfig:
    """Make a configuration whose messages name options as users of Spark write them."""
    with name_options("kafka.".__add__):
        return producer_config(options, lenient=lenient)


@pytest.mark.parametrize("name", ROWS)
def test_each_option_has_its_default_and_its_range(name: str) -> None:
    default, taken, refused = ROWS[name]
    assert value_of(producer_config(ADDRESS), name) == default
    for value, expected in taken.items():
        config = producer_config(ADDRESS | used(name) | {name: value})
        assert value_of(config, name) == expected, value
        assert type(value_of(config, name)) is type(expected), value
        if isinstance(expected, Secret):
            assert expected.value not in f"{value_of(config, name)!s} {value_of(config, name)!r}"
    for value in refused:
        with pytest.raises(ConfigException) as error:
            config_of_spark(ADDRESS | used(name) | {name: value})
        assert f"kafka.{name}" in str(error.value), value


def test_java_takes_and_refuses_the_same(tmp_path: Path) -> None:
    cases = [
        (name, value, value in taken)
        for name, (_, taken, refused) in ROWS.items()
        for value in [*taken, *refused]
        if value is not None and name not in OWN
    ]
    answers = ask_java(tmp_path, [{name: value} for name, value, _ in cases])
    # Java knows its booleans and enumerations in some other letter cases, or with blanks.
    taken_here, taken_there = set(), set()
    for (name, value, is_taken), answer in zip(cases, answers, strict=True):
        if is_taken and answer is None:
            taken_here.add((name, value))
        elif not is_taken and answer is not None:
            taken_there.add((name, value))
    assert taken_here == MORE_LENIENT
    assert taken_there == STRICTER.keys()


OF_SECURITY = sorted(n for n in NOT_YET | fields().keys() if n.startswith(("ssl.", "sasl.")))


@pytest.mark.parametrize("name", sorted(NOT_YET))
def test_what_is_not_there_yet_says_so(name: str) -> None:
    message = f"kafka.{name} is an option of the Java producer that is not supported yet"
    given = ADDRESS | {"security.protocol": "sasl_ssl", name: "x"}
    for lenient in (False, True):
        with pytest.raises(ConfigException, match=message):
            config_of_spark(given, lenient=lenient)


def test_options_of_sasl_that_are_left_over_are_refused_or_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = [name for name in OF_SECURITY if name.startswith("sasl.")]
    for given in ({}, {"security.protocol": " plaintext"}):
        left_over = ADDRESS | given | dict.fromkeys(names, "a secret")
        with pytest.raises(ConfigException, match=r"^kafka\.sasl\.client\.callback") as refused:
            config_of_spark(left_over)
        config = config_of_spark(left_over, lenient=True)
        assert config == config_of_spark(ADDRESS | given)
    (record,) = caplog.records
    said = record.getMessage()
    assert said == str(refused.value)
    assert f"kafka.{names[9]} and {len(names) - 10} more have no effect with " in said
    assert "kafka.security.protocol=PLAINTEXT (nothing is encrypted" in said
    assert "secret" not in said


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "sasl_plaintext"])
def test_options_of_tls_that_are_left_over_are_warned_of_once_as_java_ignores_them(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = [name for name in OF_SECURITY if name.startswith("ssl.")]
    given = ADDRESS | {"security.protocol": protocol}
    if protocol != "PLAINTEXT":
        login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": "p"}
        given |= login
    for _ in range(2):
        config = config_of_spark(given | dict.fromkeys(names, "a secret"))
        assert config == config_of_spark(given)
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith(f"kafka.{names[0]}, kafka.{names[1]}, ")
    assert f"have no effect with kafka.security.protocol={protocol.upper()} (nothing is" in said
    assert "secret" not in said


def test_options_of_tls_without_a_protocol_are_refused() -> None:
    # Nothing would be encrypted, although the user has surely expected it.
    name = "ssl.truststore.location"
    with pytest.raises(ConfigException, match=f"^kafka.{name} has no effect with kafka.security"):
        config_of_spark(ADDRESS | {name: "/etc/ca.pem"})


def test_only_options_of_sasl_are_refused_if_options_of_tls_are_left_over_too() -> None:
    given = {"security.protocol": "PLAINTEXT", "ssl.key.password": "x", "sasl.username": "u"}
    with pytest.raises(ConfigException, match=r"^kafka.sasl.username has no effect with kafka"):
        config_of_spark(ADDRESS | given)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_will_not_be_there_says_why(name: str) -> None:
    for lenient in (False, True):
        expected = f"kafka.{name} is not supported: {REFUSED[name]}"
        with pytest.raises(ConfigException, match=expected):
            config_of_spark(ADDRESS | {name: "x"}, lenient=lenient)


@pytest.mark.parametrize("name", sorted(OTHER_CLIENTS))
def test_an_option_of_other_clients_is_refused_with_java_s(name: str) -> None:
    meant = OTHER_CLIENTS[name]
    assert set(meant.names) <= fields().keys()
    with pytest.raises(ConfigException, match=f"option {name} is an option of") as unprefixed:
        sink_options({"kafka.bootstrap.servers": "h:1", name: "a secret"})
    assert f"set kafka.{meant.names[0]}" in str(unprefixed.value)
    for lenient in (False, True):
        with pytest.raises(ConfigException, match=rf"kafka\.{name} is an option of") as caught:
            config_of_spark(ADDRESS | {name: "a secret"}, lenient=lenient)
        assert f"set kafka.{meant.names[0]}" in str(caught.value)
        assert "a secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "java"),
    [
        ("queue.buffering.max.messages", "buffer.memory; it is in bytes"),
        ("queue.buffering.max.kbytes", "buffer.memory; it is in bytes"),
        ("queue.buffering.max.ms", "linger.ms"),
        ("message.max.bytes", "max.request.size"),
        ("batch.num.messages", "batch.size; it is in bytes"),
        ("compression.codec", "compression.type"),
        ("request.required.acks", "acks"),
        ("metadata.broker.list", "bootstrap.servers"),
    ],
)
def test_an_option_of_librdkafka_is_answered_with_java_s(name: str, java: str) -> None:
    with pytest.raises(ConfigException) as caught:
        producer_config(ADDRESS | {name: "1"})
    assert str(caught.value) == f"{name} is an option of other clients: set {java}"


@pytest.mark.parametrize("name", sorted(LIBRDKAFKA_ONLY))
def test_an_option_that_only_librdkafka_has_is_refused_or_warned_of(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = f"kafka.{name} is an option of librdkafka that this producer does not have; remove it"
    with pytest.raises(ConfigException, match=said):
        config_of_spark(ADDRESS | {name: "x"})
    assert config_of_spark(ADDRESS | {name: "x"}, lenient=True) == config_of_spark(ADDRESS)
    assert [record.getMessage() for record in caplog.records] == [said]


def test_each_option_of_librdkafka_s_producers_is_known() -> None:
    of_confluent_kafka = {"oauth_cb", "on_delivery", "logger"}
    of_librdkafka = producer_options().keys() - java_names()
    assert (of_librdkafka | of_confluent_kafka) - OTHER_CLIENTS.keys() - LIBRDKAFKA_ONLY == set()
    assert not LIBRDKAFKA_ONLY & (OTHER_CLIENTS.keys() | java_names())
    assert not OTHER_CLIENTS.keys() & java_names()


@pytest.mark.parametrize(
    ("written", "nearest"),
    [
        ("bootstrap.resolve.timeout.s", "bootstrap.resolve.timeout.ms"),
        ("sasl.login.clas", "sasl.login.class"),
        ("security.provides", "security.providers"),
        *((name[:-2] + name[-1], name) for name in sorted({*NOT_YET, *REFUSED})),
    ],
)
def test_what_is_not_offered_is_never_suggested(
    written: str, nearest: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigException) as refused:
        producer_config(ADDRESS | {nearest: "x"})
    message = f"{written} is not an option of the Kafka producer, and {refused.value}"
    with pytest.raises(ConfigException) as found:
        producer_config(ADDRESS | {written: "x"})
    assert str(found.value) == message
    assert producer_config(ADDRESS | {written: "x"}, lenient=True) == producer_config(ADDRESS)
    assert [record.getMessage() for record in caplog.records] == [message]


@pytest.mark.parametrize("name", sorted(OFF_ONLY))
def test_what_can_only_be_off_may_be_off(name: str) -> None:
    assert producer_config(ADDRESS | {name: "False"}) == producer_config(ADDRESS)
    with pytest.raises(ConfigException, match=f"kafka.{name} is 'true': expected false"):
        config_of_spark(ADDRESS | {name: "true"})


def test_what_has_no_effect_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    config = config_of_spark(ADDRESS | {"metric.reporters": "com.acme.X"})
    assert config == config_of_spark(ADDRESS)
    (record,) = caplog.records
    assert "kafka.metric.reporters has no effect" in record.message


def test_a_name_that_nobody_knows_is_refused_with_the_nearest_or_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConfigException, match=r"not an option of the Kafka producer$"):
        producer_config(ADDRESS | {"nothing.like.it": 1})
    for name, nearest in (("lingerms", "linger.ms"), ("metric.reporter", "metric.reporters")):
        with pytest.raises(ConfigException, match=f"did you mean kafka.{nearest}"):
            config_of_spark(ADDRESS | {name: 1})
    assert producer_config(ADDRESS | {"my.own": 1}, lenient=True) == producer_config(ADDRESS)
    assert "my.own is not an option" in caplog.text


def test_a_value_that_is_wrong_is_told_with_what_is_expected() -> None:
    for options, message in (
        ({"linger.ms": "soon"}, "linger.ms is 'soon': expected an integer from 0 to"),
        ({"linger.ms": ""}, f"linger.ms is '': expected an integer from 0 to {2**63 - 1}$"),
        ({"retries": None}, f"retries is None: expected an integer from 0 to {2**31 - 1}$"),
        ({"retries": 2**70}, f"retries is {2**70}: expected an integer from 0 to"),
        ({"enable.idempotence": "yes"}, "idempotence is 'yes': expected true or false$"),
        ({"enable.idempotence": 1}, "enable.idempotence is 1: expected true or false$"),
        ({"acks": "2"}, "acks is '2': expected one of all, -1, 0, 1$"),
        ({"compression.type": 3}, "compression.type is 3: expected one of none, gzip, "),
        ({"client.id": 5}, "client.id is 5: expected text$"),
        ({"client.rack": 5}, "client.rack is 5: expected text$"),
        ({"transactional.id": ""}, "transactional.id is '': expected non-empty text$"),
        ({"compression.gzip.level": 0}, r"compression.gzip.level is 0: expected one of -1, 1 to 9"),
        ({"partitioner.class": "x"}, r"one of roundrobin, uniformsticky, module.Name of a"),
        ({"metadata.max.idle.ms": 1}, r"max.idle.ms is 1: expected an integer from 5000 to"),
    ):
        with pytest.raises(ConfigException, match=message):
            producer_config(ADDRESS | options)


# -- bootstrap.servers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("h:1", [("h", 1)]),
        ("a-b.c_d:65535", [("a-b.c_d", 65535)]),
        ("SASL_SSL://[fe80::1%eth0]:1", [("fe80::1%eth0", 1)]),
        (" a:1 , b:2,", [("a", 1), ("b", 2)]),
        ("a:1,b:2,a:1", [("a", 1), ("b", 2)]),
        ("[::1]:9092", [("::1", 9092)]),
        ("PLAINTEXT://h:1", [("h", 1)]),
        (["a:1", "b:2"], [("a", 1), ("b", 2)]),
    ],
)
def test_bootstrap_servers_are_addresses_each_once(
    servers: str | list[str], expected: list[tuple[str, int]]
) -> None:
    nodes = producer_config({"bootstrap.servers": servers}).bootstrap_nodes
    assert [(node.host, node.port) for node in nodes] == expected
    assert [node.id for node in nodes] == [-1 - number for number in range(len(nodes))]


@pytest.mark.parametrize(
    "name", ["ssl.protocol", "ssl.enabled.protocols", "acks", "linger.ms", "enable.idempotence"]
)
def test_a_reference_where_none_can_be_used_is_said(name: str) -> None:
    options = {"bootstrap.servers": "h:1", "security.protocol": "SSL"}
    with pytest.raises(ConfigException) as caught:
        producer_config(options | {name: "${env:NAME_OF_A_TEST}"})
    said = "; a reference such as ${env:NAME_OF_A_TEST} cannot be used here"
    assert str(caught.value).endswith(said)


@pytest.mark.parametrize(
    "servers", ["h", "h:", ":1", "h:0", "h:65536", "h:x", "h:1;h:2", "h h:1", "h/p:1", "[h:1"]
)
def test_what_is_not_an_address_is_named(servers: str) -> None:
    with pytest.raises(ConfigException, match=r"bootstrap\.servers has .*write host:port"):
        producer_config({"bootstrap.servers": servers})


@pytest.mark.parametrize(
    ("servers", "shown"),
    [
        ("SASL_SSL://user:hunter2@host", "SASL_SSL://***@host"),
        ("user:hunter2@host:1", "***@host:1"),
        ("user:hun@ter2@host:1", "***@host:1"),
        ("a:1,SASL_SSL://user:hunter2@host:1", "***@host:1"),
        ("SASL_SSL://us,er:hun,ter2@host:1,b:2", "SASL_SSL://***@host:1"),
        ("user:hunter2@a:1,user:hunter2@b:2", "***@b:2"),
        (["a:1", "user:hunter2@b:2"], "***@b:2"),
    ],
)
def test_an_address_is_named_without_its_credentials(servers: str | list[str], shown: str) -> None:
    with pytest.raises(ConfigException) as refused:
        producer_config({"bootstrap.servers": servers})
    assert str(refused.value).startswith(f"bootstrap.servers has {shown!r}, which is not an add")


@pytest.mark.parametrize("servers", ["", " ", ",", None, []])
def test_bootstrap_servers_must_be_set(servers: object) -> None:
    with pytest.raises(ConfigException, match=r"bootstrap\.servers is not set"):
        producer_config({"bootstrap.servers": servers})


# -- rules between options -----------------------------------------------------------------------


def ask_java(folder: Path, cases: list[dict[str, Any]]) -> list[list[str] | None]:
    """Return what Java uses for each case, in the order of `what_is_used`; None: rejected."""
    lines = ["\t".join(f"{name}={value}" for name, value in case.items()) for case in cases]
    path = folder / "cases"
    path.write_text("\n".join(lines) + "\n")
    answers = run_java("ProducerConfigs", path, version=fetch_kafka.NEXT_CLIENTS).splitlines()
    return [None if answer == "refused" else answer.split("\t") for answer in answers]


def what_is_used(case: dict[str, Any]) -> list[str] | None:
    """Return the same for this producer."""
    try:
        config = producer_config(ADDRESS | case)
    except ConfigException:
        return None
    return [
        str(config.enable_idempotence).lower(),
        str(config.acks_number),
        str(config.retries),
        config.transactional_id or "null",
        str(config.transaction_timeout_ms),
        str(config.delivery_timeout_ms),
        str(config.reconnect_backoff_max_ms),
        ",".join(f"{node.host}:{node.port}" for node in config.bootstrap_nodes),
    ]


def combinations(**choices: list[Any]) -> list[dict[str, Any]]:
    """Return every combination of the values of these options; None leaves one out."""
    return [
        {
            name.replace("_", "."): value
            for name, value in zip(choices, values, strict=True)
            if value is not None
        }
        for values in itertools.product(*choices.values())
    ]


def test_the_rules_between_options_give_what_java_gives(tmp_path: Path) -> None:
    cases = [
        *combinations(
            enable_idempotence=[None, "true", "false"],
            acks=[None, "all", "-1", "1", "0"],
            retries=[None, 0, 1, MAX_INT],
            max_in_flight_requests_per_connection=[None, 5, 6],
            transactional_id=[None, "orders"],
        ),
        *combinations(
            transactional_id=[None, "orders"],
            transaction_timeout_ms=[None, 1, 60_000, MAX_INT],
            transaction_two_phase_commit_enable=[None, "false"],
            enable_idempotence=[None, "true", "false"],
            delivery_timeout_ms=[None, 30_004, 30_005],
        ),
        *combinations(
            delivery_timeout_ms=[None, 0, 35_004, 35_005, 30_000, MAX_INT],
            linger_ms=[None, 0, 100_000, MAX_LONG],
            request_timeout_ms=[None, 1, 30_000, MAX_INT],
        ),
        *combinations(
            reconnect_backoff_ms=[None, 7, 5000], reconnect_backoff_max_ms=[None, 3, 1000]
        ),
        *combinations(bootstrap_servers=["a:1,b:2", "a:1,b:2,a:1", ""]),
    ]
    for case, java in zip(cases, ask_java(tmp_path, cases), strict=True):
        assert what_is_used(case) == java, case


def test_idempotence_that_was_asked_for_names_what_stands_against_it() -> None:
    options = {"enable.idempotence": "true", "acks": "1", "retries": "0"}
    message = "acks is 1 and must be all and kafka.retries is 0 and must be positive"
    with pytest.raises(ConfigException, match=message):
        config_of_spark(ADDRESS | options)


def test_a_transactional_producer_names_all_that_it_cannot_do_without() -> None:
    options = {"enable.idempotence": "false", "acks": "0", "retries": "0"}
    message = (
        "^kafka.transactional.id is set, but kafka.enable.idempotence is false and must be true "
        "and kafka.acks is 0 and must be all and kafka.retries is 0 and must be positive$"
    )
    with pytest.raises(ConfigException, match=message):
        config_of_spark(ADDRESS | {"transactional.id": "orders"} | options)


def test_too_many_in_flight_names_both_ways_out() -> None:
    with pytest.raises(ConfigException, match=r"at most 5; lower it, or .*idempotence to false"):
        producer_config(ADDRESS | {"max.in.flight.requests.per.connection": 6})


def test_a_delivery_timeout_that_is_too_short_names_what_it_must_be() -> None:
    options = {"delivery.timeout.ms": 1000, "linger.ms": 10, "request.timeout.ms": 995}
    with pytest.raises(ConfigException, match=r"at least .*, which is 1005"):
        producer_config(ADDRESS | options)


@pytest.mark.parametrize(
    "name", ["retry.backoff", "reconnect.backoff", "socket.connection.setup.timeout"]
)
def test_a_pause_over_its_maximum_is_said(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    config_of_spark(ADDRESS | {f"{name}.ms": 10, f"{name}.max.ms": 10})
    assert not caplog.records
    config_of_spark(ADDRESS | {f"{name}.ms": 11, f"{name}.max.ms": 10})
    (record,) = caplog.records
    assert record.message == (
        f"kafka.{name}.ms=11 is more than kafka.{name}.max.ms=10: using 10 ms"
    )


def test_defaults_of_the_caller_are_not_the_users_words() -> None:
    defaults = {"acks": "1", "delivery.timeout.ms": 10, "batch.size": 1}
    config = producer_config(ADDRESS, defaults=defaults)
    assert (config.acks, config.enable_idempotence) == ("1", False)
    assert config.delivery_timeout_ms == 30_005
    assert producer_config(ADDRESS | {"batch.size": 2}, defaults=defaults).batch_size == 2


# -- the document --------------------------------------------------------------------------------


def test_the_table_of_options_is_what_the_code_says() -> None:
    assert DOCUMENT.read_text() == render(), (
        "docs/reference/configuration.md is stale: "
        "PYTHONPATH=tests:jobs python -m support.documents.configuration_table"
    )


@pytest.mark.parametrize("servers", [" , ", ",", []])
def test_addresses_that_are_all_empty_are_refused(servers: object) -> None:
    with pytest.raises(ConfigException, match=r"kafka\.bootstrap\.servers (has no|is not set)"):
        config_of_spark({"bootstrap.servers": servers})


@pytest.mark.parametrize("option", ["client.id", "transactional.id"])
def test_names_that_no_request_can_carry_are_refused(option: str) -> None:
    said = "has 32759 bytes: expected at most 32758"
    with pytest.raises(ConfigException, match=f"^kafka.{option} {said}"):
        config_of_spark(ADDRESS | {option: "x" * 32_759})


@pytest.mark.parametrize("name", [*ROWS, "config.providers.vault.param.allowed.paths"])
@pytest.mark.parametrize(
    "value",
    ["s3cret\ud800", "\udcff", Secret("s3cret\ud800"), ["a", "\ud800"]],
    ids=["text", "byte", "secret", "list"],
)
def test_text_with_half_of_a_surrogate_pair_is_refused_and_not_shown(
    name: str, value: object
) -> None:
    given = ADDRESS | used(name) | {"config.providers": "vault", name: value}
    said = f"^kafka.{name} cannot be encoded as UTF-8, because it has an unpaired surrogate"
    with pytest.raises(ConfigException, match=said) as refused:
        config_of_spark(given)
    assert "s3cret" not in str(refused.value)


def test_a_name_with_half_of_a_surrogate_pair_is_refused() -> None:
    said = r"^'acks\\ud800' is not an option name: it cannot be encoded as UTF-8$"
    with pytest.raises(ConfigException, match=said):
        producer_config(ADDRESS | {"acks\ud800": "all"})
