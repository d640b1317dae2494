"""Every option `security.*`, `ssl.*` and `sasl.*` of the Java producer, and what is done with it.

The table has a row for each value that is treated in its own way. A client is made, which connects
to nothing: what it accepts here is accepted wherever Security is made.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from typing import Final, NamedTuple

import pytest
from support.brokers import keys
from support.brokers.certificates import Authority

from spark_kafka_sink.config import OTHER_CLIENTS, java_names, producer_config
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.logs import _warn
from spark_kafka_sink.network.login import TokenSource
from spark_kafka_sink.network.security import Security

ADDRESS: Final = {"bootstrap.servers": "h:1"}
TLS: Final = {"security.protocol": "SSL"}
SCRAM: Final = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "u",
    "sasl.password": "p",
}
PLAIN: Final = SCRAM | {"sasl.mechanism": "PLAIN"}
SASL: Final = {"security.protocol": "SASL_SSL"}
TOKENS: Final = SASL | {"sasl.mechanism": "OAUTHBEARER"}
OAUTH: Final = TOKENS | {
    "sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:1/token",
    "sasl.oauthbearer.client.credentials.client.id": "id",
    "sasl.oauthbearer.client.credentials.client.secret": "secret",
}
SIGNED: Final = TOKENS | {
    "sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:1/token",
    "sasl.oauthbearer.assertion.claim.iss": "me",
    "sasl.oauthbearer.assertion.private.key.file": "FOLDER/rsa.pem",
}
KERBEROS: Final = SASL | {
    "sasl.kerberos.service.name": "kafka",
    "sasl.kerberos.principal": "u@REALM",
    "sasl.kerberos.keytab": "FOLDER/keytab",
}
AWS: Final = SASL | {"sasl.mechanism": "AWS_MSK_IAM"}
JAAS: Final = "org.apache.kafka.common.security."
BY_JAAS: Final = {
    "SCRAM": f'{JAAS}scram.ScramLoginModule required username=u password="p";',
    "KERBEROS": (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true "
        'keyTab="FOLDER/keytab" principal="u@REALM";'
    ),
}
OAUTH_PACKAGE: Final = f"{JAAS}oauthbearer."
NO_EFFECT: Final = "has no effect"
UNSUPPORTED: Final = "is not supported"


class Row(NamedTuple):
    """A value of an option, beside other options.

    refused, warned: what the error or the only warning says; None for neither.
    """

    option: str
    value: str
    base: Mapping[str, str]
    refused: str | None = None
    warned: str | None = None


def accepted(option: str, base: Mapping[str, str], *values: str) -> list[Row]:
    """Make rows of values that are accepted without a word."""
    return [Row(option, value, base) for value in values]


def refused(option: str, base: Mapping[str, str], sentence: str, *values: str) -> list[Row]:
    """Make rows of values that are refused."""
    return [Row(option, value, base, refused=sentence) for value in values]


def ignored(option: str, base: Mapping[str, str], sentence: str = NO_EFFECT) -> list[Row]:
    """Make a row of an option without an effect, which is said once."""
    return [Row(option, "x", base, warned=sentence)]


def _without(base: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in base.items() if name not in names}


_OAUTH = "sasl.oauthbearer."
_ASSERTION = f"{_OAUTH}assertion."
_NO_PROTOCOL = "have no effect with security.protocol="
ROWS: Final = [
    # -- which protocol --
    *accepted("security.protocol", {}, "PLAINTEXT", "plaintext", "SSL", "ssl"),
    *accepted("security.protocol", SCRAM, "SASL_SSL", "sasl_ssl", "SASL_PLAINTEXT"),
    *refused("security.protocol", {}, "expected one of PLAINTEXT, SSL, SASL_PL", "TLS", ""),
    *refused("security.protocol", SCRAM, _NO_PROTOCOL, "PLAINTEXT", "SSL"),
    *refused("security.providers", TLS, UNSUPPORTED, "com.acme.Provider"),
    # -- references --
    *accepted("config.providers", TLS, "", " "),
    *refused("config.providers", TLS, r"config\.providers\.vault\.class is ''", "vault"),
    # -- TLS --
    *refused("ssl.provider", TLS, UNSUPPORTED, "BC"),
    *refused("ssl.secure.random.implementation", TLS, UNSUPPORTED, "SHA1PRNG"),
    *refused("ssl.keymanager.algorithm", TLS, UNSUPPORTED, "SunX509"),
    *refused("ssl.trustmanager.algorithm", TLS, UNSUPPORTED, "PKIX"),
    *refused("ssl.engine.factory.class", TLS, UNSUPPORTED, "com.acme.Factory"),
    *accepted("ssl.protocol", TLS, "TLSv1.3", "TLSv1.2", "TLS"),
    *refused("ssl.protocol", TLS, r"expected one of TLSv1\.3", "SSLv3", "TLSv1.1", ""),
    *refused(
        "ssl.protocol", TLS | {"ssl.enabled.protocols": "TLSv1.3"}, "no version of TLS", "TLSv1.2"
    ),
    *accepted(
        "ssl.enabled.protocols",
        TLS,
        "TLSv1.2",
        "TLSv1.3",
        "TLSv1.2, TLSv1.3",
        "TLSv1.3,TLSv1.2",
    ),
    # The default of Kafka before 2.6.
    Row(
        "ssl.enabled.protocols",
        "TLSv1.2,TLSv1.1,TLSv1",
        TLS,
        warned="TLSv1.1, TLSv1 has no effect",
    ),
    *refused(
        "ssl.enabled.protocols",
        TLS,
        r"expected one of TLSv1\.2",
        "TLSv1.1",
        "TLSv1",
        "TLSv1.1,TLSv1",
        "TLSv1.2,TLSv1.4",
        "",
    ),
    *accepted(
        "ssl.cipher.suites",
        TLS,
        "",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
        "TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256",
    ),
    *refused(
        "ssl.cipher.suites", TLS, "cannot enable only some of the suites of TLS 1.3",
        "TLS_AES_256_GCM_SHA384",
    ),
    *refused("ssl.cipher.suites", TLS, "which is unknown", "TLS_RSA_WITH_RC4_128_MD5"),
    *accepted("ssl.endpoint.identification.algorithm", TLS, "https", "HTTPS"),
    Row("ssl.endpoint.identification.algorithm", "", TLS, warned="can pose as the server"),
    *refused("ssl.endpoint.identification.algorithm", TLS, "or empty to skip", "none", "LDAPS"),
    *(
        row
        for kind, file in (("truststore", "ca.pem"), ("keystore", "client.pem"))
        for location in [{f"ssl.{kind}.location": f"FOLDER/{file}"}]
        for row in (
            *accepted(f"ssl.{kind}.type", TLS | location, "PEM", "PKCS12", "JKS", "pem"),
            *refused(f"ssl.{kind}.type", TLS | location, "JKS, PKCS12, PEM", "BKS", ""),
            *accepted(f"ssl.{kind}.location", TLS, f"FOLDER/{file}", "FOLDER/p12"),
            *refused(f"ssl.{kind}.location", TLS, "which only Java can read", "FOLDER/jks"),
            *refused(f"ssl.{kind}.location", TLS, "No such file", "FOLDER/none"),
            Row(f"ssl.{kind}.password", "x", TLS | location, warned="PEM files have no such"),
            *accepted(
                f"ssl.{kind}.password", TLS | {f"ssl.{kind}.location": "FOLDER/secret.p12"}, "pass"
            ),
            *refused(
                f"ssl.{kind}.password", TLS | {f"ssl.{kind}.location": "FOLDER/secret.p12"},
                "does not open it", "wrong",
            ),
        )
    ),
    *refused("ssl.truststore.location", TLS | {"ssl.truststore.certificates": "x"},
             "remove the location or these options", "FOLDER/ca.pem"),
    *refused("ssl.keystore.location", TLS | {"ssl.keystore.key": "x"},
             "remove the location or these options", "FOLDER/client.pem"),
    *accepted("ssl.truststore.certificates", TLS, "CA"),
    *refused("ssl.truststore.certificates", TLS, "has no certificate in PEM", "x"),
    *accepted("ssl.keystore.key", TLS | {"ssl.keystore.certificate.chain": "CHAIN"}, "KEY"),
    *refused("ssl.keystore.key", TLS, r"without ssl\.keystore\.certificate\.chain", "KEY"),
    *accepted("ssl.keystore.certificate.chain", TLS | {"ssl.keystore.key": "KEY"}, "CHAIN"),
    *refused("ssl.keystore.certificate.chain", TLS, r"without ssl\.keystore\.key", "CHAIN"),
    *accepted("ssl.key.password", TLS | {"ssl.keystore.location": "FOLDER/locked.pem"}, "pass"),
    *refused(
        "ssl.key.password", TLS | {"ssl.keystore.location": "FOLDER/locked.pem"},
        "does not decrypt the key", "wrong",
    ),
    *refused(
        "ssl.keystore.location", TLS, r"is encrypted: set ssl\.key\.password", "FOLDER/locked.pem"
    ),
    # -- SASL --
    *accepted("sasl.mechanism", SCRAM, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    *accepted("sasl.mechanism", OAUTH, "OAUTHBEARER"),
    *accepted("sasl.mechanism", KERBEROS, "GSSAPI"),
    *accepted("sasl.mechanism", AWS, "AWS_MSK_IAM"),
    *refused("sasl.mechanism", SCRAM, "write it SCRAM-SHA-512", "scram-sha-512"),
    *refused("sasl.mechanism", SCRAM, "expected one of PLAIN, SCRAM-SHA-256", "EXTERNAL", ""),
    *accepted(
        "sasl.jaas.config", _without(SCRAM, "sasl.username", "sasl.password"), BY_JAAS["SCRAM"]
    ),
    *refused("sasl.jaas.config", SCRAM, "both name a user", BY_JAAS["SCRAM"]),
    *refused("sasl.jaas.config", SASL, "set sasl.mechanism", BY_JAAS["SCRAM"]),
    *refused(
        "sasl.jaas.config", TOKENS, "name OAuthBearerLoginModule, or change", BY_JAAS["SCRAM"]
    ),
    *accepted("sasl.username", _without(SCRAM, "sasl.username"), "u"),
    *refused("sasl.username", SASL, "go together", "u"),
    *accepted("sasl.password", _without(SCRAM, "sasl.password"), "p"),
    *refused("sasl.password", SASL, "go together", "p"),
    # -- Kerberos --
    *accepted("sasl.kerberos.service.name", KERBEROS, "kafka"),
    *refused(
        "sasl.kerberos.service.name",
        SASL | {"sasl.jaas.config": BY_JAAS["KERBEROS"].replace(";", " serviceName=other;")},
        "remove one of the two", "kafka",
    ),
    *accepted("sasl.kerberos.principal", KERBEROS, "u@REALM"),
    *refused(
        "sasl.kerberos.principal", SASL | {"sasl.jaas.config": BY_JAAS["KERBEROS"]},
        "both set the user that logs in", "u",
    ),
    *accepted("sasl.kerberos.keytab", KERBEROS, "FOLDER/keytab"),
    *refused("sasl.kerberos.keytab", KERBEROS, "is not a keytab", "FOLDER/ca.pem"),
    *ignored("sasl.kerberos.kinit.cmd", KERBEROS, "has no effect: no command is run"),
    *ignored("sasl.kerberos.ticket.renew.window.factor", KERBEROS),
    *ignored("sasl.kerberos.ticket.renew.jitter", KERBEROS),
    *ignored("sasl.kerberos.min.time.before.relogin", KERBEROS),
    # -- tokens --
    *accepted("sasl.login.refresh.window.factor", OAUTH, "0.5", "1"),
    *refused("sasl.login.refresh.window.factor", OAUTH, "number from 0.5 to 1", "0.4", "1.1"),
    *accepted("sasl.login.refresh.window.jitter", OAUTH, "0", "0.25"),
    *refused("sasl.login.refresh.window.jitter", OAUTH, "number from 0 to 0.25", "0.3"),
    *accepted("sasl.login.refresh.min.period.seconds", OAUTH, "0", "900"),
    *refused("sasl.login.refresh.min.period.seconds", OAUTH, "from 0 to 900", "901"),
    *accepted("sasl.login.refresh.buffer.seconds", OAUTH, "0", "3600"),
    *refused("sasl.login.refresh.buffer.seconds", OAUTH, "from 0 to 3600", "3601"),
    *accepted("sasl.login.connect.timeout.ms", OAUTH, "1"),
    *accepted("sasl.login.read.timeout.ms", OAUTH, "1"),
    *accepted("sasl.login.retry.backoff.ms", OAUTH, "1"),
    *accepted("sasl.login.retry.backoff.max.ms", OAUTH, "1"),
    *refused("sasl.login.class", OAUTH, UNSUPPORTED, "com.acme.Login"),
    *accepted(
        "sasl.login.callback.handler.class",
        OAUTH,
        f"{OAUTH_PACKAGE}OAuthBearerLoginCallbackHandler",
        f"{OAUTH_PACKAGE}secured.OAuthBearerLoginCallbackHandler",
        f"kafkashaded.{OAUTH_PACKAGE}secured.OAuthBearerLoginCallbackHandler",
    ),
    *accepted(
        "sasl.login.callback.handler.class", TOKENS,
        "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler",
        "shadedmskiam.software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler",
    ),
    *refused(
        "sasl.login.callback.handler.class", OAUTH,
        r"a Java class: .*as with Strimzi's handler, set sasl\.oauthbearer\.token\.endpoint\.url, "
        r".*client\.secret; .*Python callable .* sasl\.oauthbearer\.jwt\.retriever\.class",
        "com.acme.Handler", "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler",
        "xorg.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    ),
    *accepted(
        "sasl.client.callback.handler.class", AWS,
        "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
        "shadedmskiam.software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    ),
    *refused("sasl.client.callback.handler.class", AWS, "a Java class", "com.acme.Handler"),
    *(
        row
        for package in ("", f"{JAAS}oauthbearer.", "com.acme.repackaged.")
        for row in (
            *accepted(
                f"{_OAUTH}jwt.retriever.class", OAUTH, f"{package}DefaultJwtRetriever",
                f"{package}ClientCredentialsJwtRetriever",
            ),
            *accepted(f"{_OAUTH}jwt.retriever.class", SIGNED, f"{package}JwtBearerJwtRetriever"),
            *accepted(
                f"{_OAUTH}jwt.retriever.class",
                TOKENS | {f"{_OAUTH}token.endpoint.url": "file://FOLDER/token"},
                f"{package}FileJwtRetriever",
            ),
        )
    ),
    *accepted(f"{_OAUTH}jwt.retriever.class", TOKENS, f"{__name__}.token"),
    *refused(f"{_OAUTH}jwt.retriever.class", TOKENS, "no other Java class", "com.acme.Retriever"),
    *refused(f"{_OAUTH}jwt.retriever.class", TOKENS, "cannot be imported", "no.such"),
    *(
        row
        for name in (
            "jwt.validator.class", "jwks.endpoint.url", "jwks.endpoint.refresh.ms",
            "jwks.endpoint.retry.backoff.ms", "jwks.endpoint.retry.backoff.max.ms",
            "expected.audience", "expected.issuer", "clock.skew.seconds", "scope.claim.name",
            "allow.unverified.audience", "allow.unverified.issuer",
        )
        for row in ignored(f"{_OAUTH}{name}", OAUTH, "has no effect: brokers check tokens")
    ),
    *accepted(f"{_OAUTH}token.endpoint.url", OAUTH, "https://h/token", "http://127.0.0.1:1/token"),
    Row(f"{_OAUTH}token.endpoint.url", "http://h/token", OAUTH, warned="travel unencrypted"),
    *refused(f"{_OAUTH}token.endpoint.url", OAUTH, "is not the URL", "ftp://h/x", "h", "data:,x"),
    *accepted(f"{_OAUTH}scope", OAUTH, "kafka"),
    *accepted(f"{_OAUTH}sub.claim.name", OAUTH, "azp"),
    *refused(f"{_OAUTH}sub.claim.name", OAUTH, "expected non-empty text", ""),
    *accepted(f"{_OAUTH}client.credentials.client.id", OAUTH, "id"),
    *accepted(f"{_OAUTH}client.credentials.client.secret", OAUTH, "secret"),
    *refused(f"{_OAUTH}client.credentials.client.secret", OAUTH, "needs credentials", ""),
    *accepted(f"{_OAUTH}header.urlencode", OAUTH, "true", "false"),
    *refused(f"{_OAUTH}header.urlencode", OAUTH, "expected true or false", "yes"),
    *accepted(f"{_ASSERTION}file", SIGNED, "FOLDER/token"),
    *accepted(f"{_ASSERTION}algorithm", SIGNED, "RS256"),
    *refused(f"{_ASSERTION}algorithm", SIGNED, "requires a key of the curve P-256", "ES256"),
    *refused(f"{_ASSERTION}algorithm", SIGNED, "expected one of RS256, ES256", "HS256"),
    *accepted(f"{_ASSERTION}claim.aud", SIGNED, "a"),
    *accepted(f"{_ASSERTION}claim.iss", SIGNED, "a"),
    *accepted(f"{_ASSERTION}claim.sub", SIGNED, "a"),
    *accepted(f"{_ASSERTION}claim.exp.seconds", SIGNED, "300"),
    *accepted(f"{_ASSERTION}claim.nbf.seconds", SIGNED, "60"),
    *accepted(f"{_ASSERTION}claim.jti.include", SIGNED, "true"),
    *accepted(f"{_ASSERTION}private.key.file", SIGNED, "FOLDER/rsa.pem"),
    *refused(f"{_ASSERTION}private.key.file", SIGNED, "cannot be read as PEM", "FOLDER/token"),
    *accepted(
        f"{_ASSERTION}private.key.passphrase",
        SIGNED | {f"{_ASSERTION}private.key.file": "FOLDER/locked-rsa.pem"}, "pass",
    ),
    *refused(f"{_ASSERTION}private.key.passphrase", SIGNED, "is not encrypted: remove", "pass"),
    *accepted(f"{_ASSERTION}template.file", SIGNED, "FOLDER/template.json"),
    *refused(
        f"{_ASSERTION}template.file", SIGNED, "is not an assertion template", "FOLDER/token"
    ),
]  # fmt: skip
NEEDS_KERBEROS: Final = "needs the Python package gssapi"


def token() -> tuple[str, float]:
    """Return a token, as a user's callable does."""
    return "t", 2e9


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What stands for the words of the table in capitals."""
    folder = tmp_path_factory.mktemp("files")
    authority = Authority()
    leaf = authority.leaf("client")
    locked = authority.leaf("locked")
    texts = {
        "ca.pem": authority.root.certificate,
        "client.pem": leaf.key + leaf.chain,
        "rsa.pem": keys.rsa_key(),
        "locked-rsa.pem": keys.pkcs8(keys.rsa_key(), "pass"),
        "locked.pem": keys.pkcs8(locked.key, "pass") + locked.certificate,
        "token": "e30.e30.sig",
        "template.json": '{"payload": {"a": 1}}',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "keytab").write_bytes(b"\x05\x02")
    (folder / "jks").write_bytes(b"\xfe\xed\xfe\xed")
    for name, password in (("p12", ""), ("secret.p12", "pass")):
        chain = leaf.chain + authority.root.certificate
        (folder / name).write_bytes(keys.pkcs12_store(chain, password, key=leaf.key))
    return {
        "FOLDER": str(folder),
        "CHAIN": leaf.chain,
        "KEY": leaf.key,
        "CA": authority.root.certificate,
    }


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not warned yet, with credentials of AWS; it asks for no token."""
    _warn.cache_clear()
    monkeypatch.setattr(TokenSource, "_go_on", lambda _: None)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def filled(value: str, files: Mapping[str, str]) -> str:
    """Return a value of the table with what stands for words in capitals."""
    return files.get(value) or value.replace("FOLDER", files["FOLDER"])


def make(row: Row, files: Mapping[str, str]) -> None:
    """Make what connections of a client need, and end it."""
    options = ADDRESS | {**row.base, row.option: row.value}
    config = producer_config({name: filled(value, files) for name, value in options.items()})
    made = Security.of(config)
    if made is not None:
        made.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.option}={row.value}"[:80])
def test_an_option_is_accepted_refused_or_warned_of(
    row: Row, files: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    if row.refused is None:
        try:
            make(row, files)
        except ConfigException as error:
            if NEEDS_KERBEROS in str(error):
                pytest.skip(str(error))
            raise
    else:
        with pytest.raises(ConfigException) as caught:
            make(row, files)
        said = str(caught.value)
        assert re.search(row.refused, said), said
        assert row.option in said, said
    # Threads of earlier tests may still log.
    here = threading.get_ident()
    warnings = [record.getMessage() for record in caplog.records if record.thread == here]
    assert len(warnings) == (0 if row.warned is None else 1), warnings
    if row.warned is not None:
        assert re.search(row.warned, warnings[0]), warnings
        assert row.option in warnings[0]


def test_every_option_of_the_java_producer_has_a_row() -> None:
    families = ("security.", "ssl.", "sasl.", "config.providers")
    assert {row.option for row in ROWS} == {n for n in java_names() if n.startswith(families)}


def test_every_security_option_of_kafka_python_is_known() -> None:
    kafka_python = pytest.importorskip("kafka")
    families = ("security_", "ssl_", "sasl_")
    names = {n for n in kafka_python.KafkaProducer.DEFAULT_CONFIG if n.startswith(families)}
    assert "ssl_cafile" in names
    assert names - OTHER_CLIENTS.keys() == set()
