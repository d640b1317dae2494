"""Each way to be refused: the right class and sentence, no row, and in Spark no task.

A call that has not failed after five seconds raises a TimeoutException, which is another error. A
batch would wait for longer than its test may take.
"""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from conftest import need_kdc
from pyspark.errors import PySparkException
from support.brokers.kdc import Kdc
from support.brokers.logins import (
    LOGINS,
    MUTUAL,
    SIGNED_LOGINS,
    Login,
    by_keytab,
    by_tls,
    new_topic,
    numbers,
    options,
    unsigned_token,
    write,
)
from support.brokers.secured_kafka import LISTENERS, PASSWORD, USER, SecuredKafka, quoted
from support.brokers.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer
from support.spark.sink import save

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import (
    KafkaException,
    SaslAuthenticationException,
    SslAuthenticationException,
    TimeoutException,
    TopicAuthorizationException,
    UnsupportedSaslMechanismException,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.long(reason="three nodes, each mechanism and each fault"),
    # Without the fixtures, which start brokers and Spark; less than delivery.timeout.ms.
    pytest.mark.timeout(120, func_only=True),
]

# No refusal may wait for one of them. After the first one, a call raises a TimeoutException.
LIMITS: Final = {"max.block.ms": "5000", "delivery.timeout.ms": "300000"}
WRONG: Final = "WRONG-SECRET"
KERBEROS: Final = "com.sun.security.auth.module.Krb5LoginModule"
SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


def each_of(logins: Sequence[Login]) -> pytest.MarkDecorator:
    """Return the parameter `login`, named."""
    return pytest.mark.parametrize("login", logins, ids=lambda each: each.name)


def by(*mechanisms: str) -> tuple[Login, ...]:
    """Return the logins by some mechanisms."""
    return tuple(Login(each, listener) for each in mechanisms for listener in LISTENERS)


@pytest.fixture
def server(guarded_cluster: SecuredKafka) -> Iterator[TokenServer]:
    """A token endpoint whose tokens the brokers take."""
    with TokenServer(guarded_cluster.jwt_key.read_text()) as running:
        yield running


@pytest.fixture
def kdc(guarded_cluster: SecuredKafka) -> Kdc:
    """The KDC of the cluster."""
    need_kdc()
    assert guarded_cluster.kdc is not None
    return guarded_cluster.kdc


class Refused:
    """Writes by a producer and by Spark that are refused alike."""

    def __init__(self, kafka: SecuredKafka, spark: SparkSession) -> None:
        self._kafka = kafka
        self._spark = spark

    def check(
        self,
        given: Mapping[str, str],
        kind: type[KafkaException],
        *sentences: str,
        may_write: bool = True,
    ) -> None:
        """Check the errors, and that nothing was written and no task was started."""
        topic = new_topic(self._kafka, may_write=may_write)
        given = {**given, **LIMITS}
        with pytest.raises(KafkaException) as by_producer:
            write(given, topic, 1)
        assert type(by_producer.value) is kind
        group = f"refused-{uuid.uuid4()}"
        self._spark.sparkContext.setJobGroup(group, "a write that is refused")
        address = given["bootstrap.servers"]
        names = {f"kafka_{name.replace('.', '_')}": value for name, value in given.items()}
        del names["kafka_bootstrap_servers"]
        with pytest.raises(PySparkException) as by_spark:
            save(self._spark.sql("SELECT '0' AS value"), address, topic, **names)
        for caught in (by_producer, by_spark):
            said = str(caught.value)
            assert all(each in said for each in sentences), said
            shown = "".join(traceback.format_exception(caught.value))
            assert not [each for each in (WRONG, PASSWORD, CLIENT_SECRET) if each in shown]
        assert kind.__name__ in str(by_spark.value)
        assert TimeoutException.__name__ not in str(by_spark.value)
        assert self._spark.sparkContext.statusTracker().getJobIdsForGroup(group) == []
        assert numbers(self._kafka, topic) == []


@pytest.fixture
def refused(guarded_cluster: SecuredKafka, spark: SparkSession) -> Refused:
    """Checks writes that are refused."""
    return Refused(guarded_cluster, spark)


# -- secrets, users, rights ----------------------------------------------------------------------


@each_of((*LOGINS, *SIGNED_LOGINS))
def test_a_wrong_secret(
    guarded_cluster: SecuredKafka,
    refused: Refused,
    server: TokenServer,
    login: Login,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if login.mechanism == "GSSAPI":
        need_kdc()
    given = options(guarded_cluster, login, tmp_path, server)
    sentences = [f"refused the login of user {USER!r} by {login.mechanism}"]
    if login in SIGNED_LOGINS:
        given["sasl.oauthbearer.client.credentials.client.secret"] = WRONG
        sentences = [f"{server.url} returned no token: it answered 401"]
    elif login.mechanism == "OAUTHBEARER":
        (tmp_path / "token").write_text("eyJhbGciOiJub25lIn0.e30.")
        source = "sasl.oauthbearer.token.endpoint.url"
        sentences = ["by OAUTHBEARER", "invalid_token", "(58); check the token from ", source]
    elif login.mechanism == "GSSAPI":
        realm = request.getfixturevalue("kdc")
        principal = f"wrong-{uuid.uuid4().hex[:8]}"
        keytab = realm.add(principal)
        content = keytab.read_bytes()
        realm.change_key(principal)
        keytab.write_bytes(content)
        given |= by_keytab(principal, keytab)
        sentences = [f"no ticket for principal {principal!r}", "has an old or wrong key"]
    else:
        given["sasl.password"] = WRONG
        sentences += ["(58); check ", "sasl.username and ", "sasl.password"]
    refused.check(given, SaslAuthenticationException, *sentences)


@each_of(by("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"))
def test_an_unknown_user(
    guarded_cluster: SecuredKafka, refused: Refused, login: Login, tmp_path: Path
) -> None:
    given = options(guarded_cluster, login, tmp_path) | {"sasl.username": "nobody"}
    said = f"refused the login of user 'nobody' by {login.mechanism}"
    refused.check(given, SaslAuthenticationException, said, "localhost:")


@each_of(by("GSSAPI"))
def test_an_unknown_principal(
    guarded_cluster: SecuredKafka, refused: Refused, kdc: Kdc, login: Login, tmp_path: Path
) -> None:
    principal = f"gone-{uuid.uuid4().hex[:8]}"
    keytab = kdc.add(principal)
    kdc.run("kadmin.local", "-q", f"delprinc -force {principal}")
    given = options(guarded_cluster, login, tmp_path) | by_keytab(principal, keytab)
    advice = "and its realm with those of the KDC"
    refused.check(given, SaslAuthenticationException, "not found in Kerberos database", advice)


@each_of((*LOGINS, *SIGNED_LOGINS, MUTUAL))
def test_a_missing_right(
    guarded_cluster: SecuredKafka,
    refused: Refused,
    server: TokenServer,
    login: Login,
    tmp_path: Path,
) -> None:
    if login.mechanism == "GSSAPI":
        need_kdc()
    # A user who may write to any topic may be idempotent.
    new_topic(guarded_cluster)
    given = options(guarded_cluster, login, tmp_path, server)
    # A token's subject is known once it has logged in.
    user = {**dict.fromkeys(SIGNED_LOGINS, CLIENT_ID), MUTUAL: "CN=client"}.get(login, USER)
    refused.check(
        given,
        TopicAuthorizationException,
        "TOPIC_AUTHORIZATION_FAILED (29)",
        f"--add --allow-principal User:{user} --operation WRITE",
        may_write=False,
    )


# -- what has expired ----------------------------------------------------------------------------


@each_of((*by("OAUTHBEARER"), *SIGNED_LOGINS))
def test_an_expired_token(
    guarded_cluster: SecuredKafka,
    refused: Refused,
    server: TokenServer,
    login: Login,
    tmp_path: Path,
) -> None:
    given = options(guarded_cluster, login, tmp_path, server)
    server.life_s = -600
    (tmp_path / "token").write_text(unsigned_token(life_s=-600))
    refused.check(given, SaslAuthenticationException, "invalid_token", "exp 20")


@each_of(by("SCRAM-SHA-256", "SCRAM-SHA-512"))
def test_an_expired_delegation_token_of_the_user_s_own(
    guarded_cluster: SecuredKafka, refused: Refused, login: Login, tmp_path: Path
) -> None:
    given = options(guarded_cluster, login, tmp_path)
    with KafkaAdmin(producer_config(given)) as admin:
        # Also a node that does not know it yet refuses it.
        token = admin.create_delegation_token(max_lifetime_ms=1)
    del given["sasl.username"], given["sasl.password"]
    given["sasl.jaas.config"] = (
        f"{SCRAM} required username={quoted(token.token_id)} "
        f'password={quoted(token.hmac.value)} tokenauth="true";'
    )
    said = f"refused the login of the delegation token {token.token_id!r} by {login.mechanism}"
    advice = "a delegation token expires if it is not renewed within"
    refused.check(given, SaslAuthenticationException, said, advice)


@each_of(by("GSSAPI"))
def test_an_expired_ticket(
    guarded_cluster: SecuredKafka, refused: Refused, kdc: Kdc, login: Login, tmp_path: Path
) -> None:
    cache = kdc.tickets(USER, kdc.keytab(USER), "-l", "1s")
    kdc.wait_until_expired(cache)
    given = options(guarded_cluster, login, tmp_path)
    del given["sasl.kerberos.principal"], given["sasl.kerberos.keytab"]
    given["sasl.jaas.config"] = f'{KERBEROS} required useTicketCache=true ticketCache="{cache}";'
    refused.check(given, SaslAuthenticationException, "has expired: run kinit again")


# -- mechanisms ----------------------------------------------------------------------------------


@each_of(LOGINS)
def test_a_mechanism_that_is_off(
    guarded_cluster: SecuredKafka, refused: Refused, login: Login, tmp_path: Path
) -> None:
    if login.mechanism == "GSSAPI":
        need_kdc()
    is_plaintext = login.listener == "SASL_PLAINTEXT"
    listener, there = "SCRAM_PLAINTEXT" if is_plaintext else "SCRAM", "SCRAM-SHA-512"
    if login.mechanism == there:
        listener, there = ("PLAIN_PLAINTEXT", "PLAIN") if is_plaintext else ("JWT", "OAUTHBEARER")
    given = options(guarded_cluster, login, tmp_path)
    given["bootstrap.servers"] = guarded_cluster.address(listener)
    refused.check(given, UnsupportedSaslMechanismException, f"it offers {there}")


# -- TLS -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listener", "sentences"),
    [
        ("SSL", ("unable to get local issuer certificate", "ssl.truststore.location")),
        ("NOINTERMEDIATE", ("unable to get local issuer certificate", "intermediate")),
        ("OTHERNAME", ("'localhost'", "subject alternative names")),
        ("EXPIRED", ("certificate has expired", "this certificate has expired, or")),
        ("MUTUAL", ("requires a client certificate", "ssl.keystore.location")),
        ("MUTUAL expired", ("the client's certificate, which has expired", "ssl.keystore")),
    ],
    ids=["unknown-ca", "no-intermediate", "other-name", "expired", "no-client", "client-expired"],
)
def test_tls(
    guarded_cluster: SecuredKafka, refused: Refused, listener: str, sentences: tuple[str, ...]
) -> None:
    name, _, kind = listener.partition(" ")
    given = by_tls(guarded_cluster, name)
    if listener == "SSL":
        given["ssl.truststore.location"] = str(guarded_cluster.other_ca)
    if kind:
        given["ssl.keystore.location"] = str(guarded_cluster.expired_client_pem)
    refused.check(given, SslAuthenticationException, "localhost:", *sentences)
