"""`Security`: what a connection needs, what is rejected, and that no message shows a secret."""

from __future__ import annotations

import os
import re
import socket
import tempfile
import time
import traceback
from pathlib import Path

import pytest
from support.brokers import keys
from support.brokers.certificates import Authority, Certificate
from support.brokers.scripted_broker import ScriptedBroker
from support.brokers.token_server import new_key
from support.programs.forked import in_child

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.auth.delegation_tokens import with_delegation_token
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import (
    ConfigException,
    KafkaException,
    SaslAuthenticationException,
    TimeoutException,
    name_options,
)
from spark_kafka_sink.logs import _warn
from spark_kafka_sink.model import DelegationToken, Node, Secret
from spark_kafka_sink.network import option_values
from spark_kafka_sink.network import security as network_security
from spark_kafka_sink.network.login import TokenSource
from spark_kafka_sink.network.option_values import Disk, OptionValues
from spark_kafka_sink.network.sasl_authenticator import Login, SaslAuthenticator
from spark_kafka_sink.network.security import Security
from spark_kafka_sink.network.ssl_options import tls_settings
from spark_kafka_sink.schema_registry.registry_connection import connect
from spark_kafka_sink.schema_registry.settings import registry_settings
from spark_kafka_sink.spark.formats import FormatOptions
from spark_kafka_sink.spark.planning.given_schemas import given_schema
from spark_kafka_sink.wire.messages import Response, SaslHandshakeResponse

SECRET = "hunter2-of-the-environment"
REFERENCE = "${env:SECRET_OF_A_TEST}"
OAUTH = "sasl.oauthbearer"
REGISTRY = "schema.registry"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in the environment of the process."""
    monkeypatch.setenv("SECRET_OF_A_TEST", SECRET)


def security(**options: str) -> Security:
    """Return the security of a configuration; options by name with _ for the dot."""
    given = {name.replace("_", "."): value for name, value in options.items()}
    made = Security.of(producer_config({"bootstrap.servers": "h:1", **given}))
    assert made is not None
    return made


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"ssl_truststore_location": REFERENCE}, id="truststore"),
        pytest.param({"ssl_truststore_location": f"s3://{REFERENCE}"}, id="scheme"),
        pytest.param({"ssl_keystore_location": REFERENCE}, id="keystore"),
    ],
)
def test_a_path_that_a_reference_gives_is_not_shown(options: dict[str, str]) -> None:
    with pytest.raises(ConfigException) as caught:
        security(security_protocol="SSL", **options)
    assert SECRET not in str(caught.value)
    assert REFERENCE in str(caught.value)


def of_password(user: str, password: str) -> str:
    return f'{PLAIN_MODULE} required username="{user}" password="{password}";'


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"sasl_username": REFERENCE, "sasl_password": "p"}, REFERENCE),
        ({"sasl_jaas_config": of_password(REFERENCE, "p")}, REFERENCE),
        ({"sasl_jaas_config": "${env:JAAS_OF_A_TEST}"}, "${env:JAAS_OF_A_TEST}"),
    ],
    ids=["option", "JAAS option", "whole JAAS"],
)
def test_a_user_that_a_reference_gives_is_not_shown(
    options: dict[str, str], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAAS_OF_A_TEST", of_password(SECRET, "p"))
    made = security(security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-256", **options)
    login = made.login(Node(id=1, host="h", port=1), 0.5)
    assert login is not None
    exchange = login.exchange()
    assert exchange is not None
    assert SECRET.encode() in exchange.first()
    with pytest.raises(SaslAuthenticationException) as caught:
        exchange.step(b"e=other-error")
    for said in (repr(login), str(caught.value)):
        assert SECRET not in said
        assert shown in said


@pytest.mark.parametrize("written", [REFERENCE, f" {SECRET}\r\n"])
def test_a_password_is_trimmed_as_in_java(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As a mounted secret that an editor has written; Java keeps the last of these blanks.
    monkeypatch.setenv("SECRET_OF_A_TEST", f"\t{SECRET}\r\n")
    options = {"sasl_mechanism": "PLAIN", "sasl_username": "u\xa0\n", "sasl_password": written}
    assert first_token(security_protocol="SASL_SSL", **options) == f"\0u\xa0\0{SECRET}".encode()


def test_values_inside_jaas_are_not_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_A_TEST", f" {SECRET} ")
    options = {"sasl_mechanism": "PLAIN", "sasl_jaas_config": of_password(" u ", REFERENCE)}
    assert first_token(security_protocol="SASL_SSL", **options) == f"\0 u \0 {SECRET} ".encode()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sasl_username": "u", "sasl_password": "${env:EMPTY_OF_A_TEST}"},
         "sasl.password (${env:EMPTY_OF_A_TEST}) is unset or empty"),
        ({"sasl_username": " ${env:EMPTY_OF_A_TEST}", "sasl_password": "p"},
         "sasl.username (${env:EMPTY_OF_A_TEST}) is unset or empty"),
        ({"sasl_jaas_config": f'{PLAIN_MODULE} required user="hun7" password="p";'},
         "username in sasl.jaas.config is unset or empty"),
        ({"sasl_jaas_config": of_password("u", "${env:EMPTY_OF_A_TEST}")},
         "password in sasl.jaas.config (${env:EMPTY_OF_A_TEST}) is unset or empty"),
        ({"sasl_jaas_config": "${env:JAAS_OF_A_TEST}"},
         "username in sasl.jaas.config (${env:JAAS_OF_A_TEST}) is unset or empty"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_an_empty_user_or_password_is_told_with_its_option_and_its_reference(
    mechanism: str, options: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY_OF_A_TEST", "")
    monkeypatch.setenv("JAAS_OF_A_TEST", of_password("", "hun7"))
    with pytest.raises(ConfigException) as caught:
        security(security_protocol="SASL_SSL", sasl_mechanism=mechanism, **options)
    assert str(caught.value) == f"{sentence}: {mechanism} needs a user name and a password"


def first_token(**options: str) -> bytes:
    """Return what a client with these options sends first."""
    login = security(**options).login(Node(id=1, host="h", port=1), 0.5)
    assert login is not None
    exchange = login.exchange()
    assert exchange is not None
    return exchange.first()


@pytest.mark.parametrize("kind", ["truststore", "keystore", "key and chain"])
def test_files_that_are_replaced_in_place_count_from_the_next_connection_on(
    kind: str, tmp_path: Path
) -> None:
    file, chain = tmp_path / "file", tmp_path / "chain"
    options = {
        "truststore": {"ssl_truststore_location": str(file)},
        "keystore": {"ssl_keystore_location": str(file)},
        "key and chain": {
            "ssl_keystore_key": f"${{directory:{tmp_path}:file}}",
            "ssl_keystore_certificate_chain": f"${{directory:{tmp_path}:chain}}",
        },
    }[kind]

    def replace(old: os.stat_result | None) -> os.stat_result:
        """Replace the files in place, with the time, the size and the inode that they have."""
        client = Authority().leaf("client")
        chain.write_text(client.chain)
        parts = {"truststore": [client.chain], "keystore": [client.key, client.chain]}
        text = "".join(parts.get(kind, [client.key]))
        file.write_text(text.ljust(4_000, "\n"))
        if old is not None:
            for each in (file, chain):
                os.utime(each, ns=(old.st_atime_ns, old.st_mtime_ns))
        return file.stat()

    old = replace(None)
    made = security(security_protocol="SSL", **options)
    before = made._context(made._settings())
    assert made._context(made._settings()) is before
    new = replace(old)
    facts = [(each.st_mtime_ns, each.st_size, each.st_ino) for each in (old, new)]
    assert facts[0] == facts[1]
    assert made._context(made._settings()) is not before


def test_key_and_chain_are_of_one_version_if_they_are_replaced_between_two_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = (Authority().leaf("client") for _ in range(2))

    def put(client: Certificate) -> None:
        (tmp_path / "key").write_text(client.key)
        (tmp_path / "chain").write_text(client.chain)

    put(old)
    made = security(
        security_protocol="SSL",
        ssl_keystore_key=f"${{directory:{tmp_path}:key}}",
        ssl_keystore_certificate_chain=f"${{directory:{tmp_path}:chain}}",
    )
    reads, read = list[str](), Disk.read

    def read_and_replace(self: Disk, path: str) -> bytes:
        found = read(self, path)
        if not reads:
            put(new)
        reads.append(Path(path).name)
        return found

    monkeypatch.setattr(Disk, "read", read_and_replace)
    settings = made._settings()
    assert (settings.key, settings.chain) == (new.key.strip(), new.chain.strip())
    assert made._context(settings) is not None
    assert reads == ["key", "chain"] * 3


def test_a_store_that_a_reference_names_is_converted_by_a_command_that_a_shell_can_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.jks").write_bytes(bytes.fromhex("feedfeed00000002"))
    monkeypatch.setenv("STORE", str(tmp_path / "a.jks"))
    with pytest.raises(ConfigException, match=r"-srckeystore truststore\.jks -destkeystore trust"):
        security(security_protocol="SSL", ssl_truststore_location="${env:STORE}")._settings()


def test_the_password_of_a_key_may_be_a_file_that_ends_with_a_line_end(tmp_path: Path) -> None:
    client = Authority().leaf("client")
    (tmp_path / "password").write_text("of-the-key\n")
    key = keys.pkcs8(client.key, "of-the-key")
    made = security(
        security_protocol="SSL",
        ssl_keystore_key=key,
        ssl_keystore_certificate_chain=client.chain,
        ssl_key_password=f"${{directory:{tmp_path}:password}}",
    )
    assert made.layer(Node(id=1, host="h", port=1)) is not None


@pytest.mark.parametrize("suites", [REFERENCE, ("${env:NO_SUITE}", REFERENCE)])
def test_cipher_suites_may_be_references_that_each_connection_resolves(
    monkeypatch: pytest.MonkeyPatch, suites: object
) -> None:
    given = {"bootstrap.servers": "h:1", "security.protocol": "SSL", "ssl.cipher.suites": suites}
    config = producer_config(given)
    monkeypatch.setenv("NO_SUITE", " ")
    for java, openssl_name in (
        ("TLS_RSA_WITH_AES_128_CBC_SHA, TLS_RSA_WITH_AES_256_CBC_SHA\n", "AES128-SHA:AES256-SHA"),
        ("AES256-SHA", "AES256-SHA"),
    ):
        monkeypatch.setenv("SECRET_OF_A_TEST", java)
        assert tls_settings(config, OptionValues(config)).ciphers == openssl_name
    assert "AES" not in repr(config)
    monkeypatch.setenv("SECRET_OF_A_TEST", SECRET)
    with pytest.raises(ConfigException) as caught:
        Security.of(config)
    said = "".join(traceback.format_exception(caught.value))
    assert (
        f"ssl.cipher.suites has a suite of '{config.ssl_cipher_suites}', which is unknown" in said
    )
    assert SECRET not in said


@pytest.mark.parametrize(
    ("is_task", "ahead_s", "elapsed_s", "may_be"),
    [
        (True, 60, 9.9, True), (True, 60, 10.1, False), (False, 60, 0.0, False),
        # An old token that is refused is not tried for ten seconds by each new task.
        (True, 300, 0.0, True), (True, 311, 0.0, False),
    ],
)  # fmt: skip
def test_a_task_s_token_is_new_for_ten_seconds_though_clocks_differ_by_minutes(
    monkeypatch: pytest.MonkeyPatch,
    is_task: bool,  # noqa: FBT001 - a parameter of the test
    ahead_s: int,
    elapsed_s: float,
    may_be: bool,  # noqa: FBT001
) -> None:
    options = {"security.protocol": "SASL_SSL", "sasl.username": "u", "sasl.password": "p"}
    day_ms = 86_400_000
    # This machine's clock is ahead of the driver's.
    issued_ms = round(time.time() * 1000) - 1000 * ahead_s
    token = DelegationToken(
        owner="User:u",
        issue_timestamp_ms=issued_ms,
        expiry_timestamp_ms=issued_ms + day_ms,
        max_timestamp_ms=issued_ms + 7 * day_ms,
        token_id="id",
        hmac=Secret("hmac"),
    )
    driver = producer_config({"bootstrap.servers": "h:1", "sasl.mechanism": "PLAIN", **options})
    config = with_delegation_token(driver, token, "SCRAM-SHA-512")
    now = 100.0
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now)
        made = Security(config, is_one_of_many=is_task)
        now += elapsed_s
        assert made.may_be_accepted_later is may_be


def test_a_forked_child_has_none_of_its_parent_s_keys() -> None:
    options = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "u", "sasl_password": "p"}
    login = security(security_protocol="SASL_SSL", **options).login(Node(id=1, host="h", port=1), 0)
    assert login is not None
    exchange = login.exchange()
    assert exchange is not None
    nonce = exchange.first().decode().rpartition("r=")[2]
    assert exchange.step(f"r={nonce}x,s=QQ==,i=4096".encode())
    kept = network_security._KEY_CACHE

    def look() -> None:
        assert len(kept) == 0

    assert len(kept) > 0
    assert in_child({"look": look}) == {"look": "nothing"}


class NoKerberos:
    """Stands for the Kerberos library, which this machine may not have."""

    def __init__(self, *_: object) -> None:
        pass

    def login(self, node: Node, chance: float) -> Login:
        """Return a login that has no exchange."""
        return Login(lambda: None, "of principal 'p' by GSSAPI", chance)


KERBEROS_MODULE = "com.sun.security.auth.module.Krb5LoginModule"


@pytest.mark.parametrize(
    ("mechanism", "options", "advice"),
    [
        (
            "PLAIN",
            {"sasl_username": "u", "sasl_password": "p"},
            "check kafka.sasl.username and kafka.sasl.password",
        ),
        (
            "PLAIN",
            {"sasl_jaas_config": of_password("u", "p")},
            "check username and password in kafka.sasl.jaas.config",
        ),
        (
            "SCRAM-SHA-512",
            {"sasl_username": "u", "sasl_password": "p"},
            "check kafka.sasl.username and kafka.sasl.password",
        ),
        (
            "GSSAPI",
            {"sasl_kerberos_principal": "p", "sasl_kerberos_keytab": "/k"},
            "check kafka.sasl.kerberos.principal and kafka.sasl.kerberos.keytab",
        ),
        (
            "GSSAPI",
            {"sasl_kerberos_principal": "p"},
            "check kafka.sasl.kerberos.principal and the ticket cache",
        ),
        (
            "GSSAPI",
            {"sasl_jaas_config": f"{KERBEROS_MODULE} required useTicketCache=true;"},
            "check principal and the keytab or ticket cache in kafka.sasl.jaas.config",
        ),
        (
            "OAUTHBEARER",
            {"sasl_oauthbearer_token_endpoint_url": "file:///FOLDER/token"},
            "check the token from kafka.sasl.oauthbearer.token.endpoint.url",
        ),
        (
            "OAUTHBEARER",
            {"sasl_oauthbearer_jwt_retriever_class": "time.time"},
            "check the token from kafka.sasl.oauthbearer.jwt.retriever.class",
        ),
        ("AWS_MSK_IAM", {}, "check the AWS credentials and their IAM policy"),
    ],
)
def test_a_login_that_brokers_refuse_names_the_options_to_check(
    mechanism: str,
    options: dict[str, str],
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(network_security, "Kerberos", NoKerberos)
    monkeypatch.setattr(TokenSource, "_go_on", lambda _: None)
    monkeypatch.setattr(TokenSource, "token", lambda _: None)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    (tmp_path / "token").write_text("e30.e30.sig")
    given = {name: value.replace("/FOLDER", str(tmp_path)) for name, value in options.items()}
    made = security(security_protocol="SASL_SSL", sasl_mechanism=mechanism, **given)
    with name_options("kafka.".__add__):
        login = made.login(Node(id=1, host="h", port=1), 0.5)
        assert login is not None
        refused = SaslAuthenticator(login, "host:1", 1)
        said = str(refused.refusal(codes.SASL_AUTHENTICATION_FAILED, "Authentication failed"))
        assert said.endswith(f"Authentication failed (58); {advice}")
        # Other errors have nothing to do with the credentials.
        assert "check" not in str(refused.refusal(codes.ILLEGAL_SASL_STATE, "no"))
        assert "check" not in str(refused.refusal(codes.UNKNOWN_SERVER_ERROR, "no"))
    made.close()


@pytest.mark.parametrize("is_reference", [False, True])
def test_a_token_endpoint_whose_host_name_is_not_checked_is_told(
    is_reference: bool,  # noqa: FBT001 - a parameter of the test
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(TokenSource, "_go_on", lambda _: None)
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    option = "ssl.endpoint.identification.algorithm"
    jaas = f'{module} clientId="c" clientSecret="s" {option}="";'
    monkeypatch.setenv("JAAS_OF_A_TEST", jaas)
    _warn.cache_clear()
    security(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url="https://endpoint.invalid/token",
        sasl_jaas_config="${env:JAAS_OF_A_TEST}" if is_reference else jaas,
    ).close()
    assert f"sasl.jaas.config: {option} is empty: anyone with a certificate" in caplog.text


@pytest.mark.parametrize("keytab", [REFERENCE, f"/no/pw@{SECRET}", f"/no/{SECRET}"])
def test_the_keytab_of_jaas_is_not_shown(keytab: str) -> None:
    module = "com.sun.security.auth.module.Krb5LoginModule required"
    with pytest.raises(ConfigException, match=r"the keytab keyTab of sasl\.jaas\.config") as caught:
        security(
            security_protocol="SASL_SSL",
            sasl_kerberos_service_name="kafka",
            sasl_jaas_config=f'{module} useKeyTab=true keyTab="{keytab}" principal=u;',
        )
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_user_that_is_not_ascii_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_A_TEST", "pässwort")
    options = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_password": "p"}
    with pytest.raises(ConfigException, match="ASCII names only") as caught:
        security(security_protocol="SASL_SSL", sasl_username=REFERENCE, **options)
    assert "pässwort" not in str(caught.value)


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/self/root/proc/self/environ"])
@pytest.mark.parametrize("kind", ["file", "directory", "location"])
def test_the_environment_is_not_read_as_a_file(path: str, kind: str) -> None:
    folder, name = os.path.split(path)
    value = {
        "file": f"${{file:{path}:SECRET_OF_A_TEST}}",
        "directory": f"${{directory:{folder}:{name}}}",
        "location": path,
    }[kind]
    with pytest.raises(ConfigException) as caught:
        security(security_protocol="SSL", ssl_truststore_location=value)
    assert SECRET not in str(caught.value)


def test_a_device_is_no_store() -> None:
    with pytest.raises(ConfigException, match="not a regular file on a disk"):
        security(security_protocol="SSL", ssl_truststore_location="/dev/zero")


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("ssl_keystore_location", r"ssl\.keystore\.key and ssl\.keystore\.certificate\.chain"),
        ("ssl_truststore_location", r"ssl\.truststore\.certificates"),
    ],
)
@pytest.mark.parametrize("break_of_line", ["\n", " ", ""])
def test_a_private_key_in_place_of_a_path_is_not_shown(
    option: str, instead: str, break_of_line: str
) -> None:
    key = Authority().leaf("alice").key
    text = key.replace("\n", break_of_line)
    with pytest.raises(ConfigException, match=f"set {instead} to the text") as caught:
        security(security_protocol="SSL", **{option: text})
    shown = "".join(traceback.format_exception(caught.value))
    assert not any(line in shown for line in key.splitlines()[1:-1])


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there are no files in memory")
def test_a_file_in_memory_is_a_store(tmp_path: Path) -> None:
    with tempfile.NamedTemporaryFile("w", dir="/dev/shm", suffix=".pem") as file:
        file.write(Authority().root.certificate)
        file.flush()
        made = security(security_protocol="SSL", ssl_truststore_location=file.name)
        assert made.layer(Node(id=1, host="h", port=1)) is not None


def test_a_pipe_is_no_store_and_nobody_waits_for_its_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.pem"
    os.mkfifo(pipe)
    with pytest.raises(ConfigException, match="not a regular file on a disk"):
        security(security_protocol="SSL", ssl_truststore_location=str(pipe))


@pytest.mark.parametrize("allowed", [None, "/nowhere"])
def test_the_path_of_a_token_that_a_reference_gives_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, allowed: str | None
) -> None:
    if allowed is not None:
        monkeypatch.setenv("PYKAFKA_ALLOWED_PATHS", allowed)
    with pytest.raises(ConfigException, match="cannot be read") as caught:
        security(
            security_protocol="SASL_SSL",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauthbearer_token_endpoint_url=f"file:///{REFERENCE}",
        )
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_file_that_is_too_large_is_no_store(tmp_path: Path) -> None:
    large = tmp_path / "large.pem"
    with large.open("wb") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(ConfigException, match="more than 16777216 bytes"):
        security(security_protocol="SSL", ssl_truststore_location=str(large))


@pytest.mark.parametrize(
    "password", [REFERENCE, r"$\{env:SECRET_OF_A_TEST}", r"\044{env:SECRET_OF_A_TEST}"]
)
def test_no_reference_goes_in_clear_however_it_is_written(password: str) -> None:
    jaas = f'{PLAIN_MODULE} required username="u" password="{password}";'
    with pytest.raises(ConfigException, match="SASL_PLAINTEXT"):
        security(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_jaas_config=jaas)


# -- what may be read ----------------------------------------------------------------------------

JAVA = "org.apache.kafka.common.config.provider."


@pytest.mark.parametrize(
    ("mechanism", "more", "sent"),
    [
        ("PLAIN", {"sasl.username": "u", "sasl.password": "p"}, "PLAIN password"),
        ("OAUTHBEARER", {f"{OAUTH}.token.endpoint.url": "https://h.invalid/"}, "OAuth token"),
        ("AWS_MSK_IAM", {}, "AWS token"),
        ("SCRAM-SHA-256", {"sasl.username": "u", "sasl.password": "p"}, None),
    ],
)
def test_credentials_that_brokers_get_in_clear_are_warned_of(
    mechanism: str,
    more: dict[str, str],
    sent: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.setattr(TokenSource, "attach", lambda *_: None)
    if mechanism == "OAUTHBEARER":
        more = more | {
            f"{OAUTH}.client.credentials.client.{each}": "x" for each in ("id", "secret")
        }
    for protocol in ("SASL_SSL", "SASL_PLAINTEXT"):
        _warn.cache_clear()
        caplog.clear()
        options = {"bootstrap.servers": "h:1", "security.protocol": protocol}
        made = Security.of(producer_config({**options, "sasl.mechanism": mechanism, **more}))
        assert made is not None
        made.close()
        expected = sent is not None and protocol == "SASL_PLAINTEXT"
        assert ("unencrypted" in caplog.text) is expected
        assert not expected or f"sends the {sent} unencrypted" in caplog.text


def provider(kind: str, **params: str) -> dict[str, str]:
    """Return the options of a provider with the name mine."""
    return {
        "config_providers": "mine",
        "config_providers_mine_class": f"{JAVA}{kind}ConfigProvider",
    } | {f"config_providers_mine_param_{name}": value for name, value in params.items()}


def written(folder: Path) -> dict[str, str]:
    """Return, by the name of its provider, a reference to the secret; and the path of its file."""
    (folder / "secret").write_text(SECRET)
    (folder / "secrets.properties").write_text(f"key={SECRET}")
    return {
        "EnvVar": "${mine:SECRET_OF_A_TEST}",
        "File": f"${{mine:{folder}/secrets.properties:key}}",
        "Directory": f"${{mine:{folder}:secret}}",
    }


def password_login(**options: str) -> Security:
    return security(
        security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="u", **options
    )


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The reads of a file that another program replaces after each; `n` in it counts them."""
    found: list[str] = []

    def content(path: str) -> bytes:
        found.append(path)
        return f"user=u\nn={len(found)}\n".encode()

    monkeypatch.setattr(option_values, "content", content)
    return found


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"sasl_username": "${file:/f:user}", "sasl_password": "${file:/f:n}"}, b"\0u\x001"),
        (
            {
                "sasl_jaas_config": 'x.PlainLoginModule required username="${file:/f:user}" '
                'password="${file:/f:n}${file:/f:n}";'
            },
            b"\0u\x0011",
        ),
    ],
)
def test_user_and_password_are_of_one_version_of_their_file(
    options: dict[str, str], sent: bytes, reads: list[str]
) -> None:
    made = security(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", **options)
    login = made.login(Node(id=1, host="h", port=1), 0.5)
    assert login is not None
    reads.clear()
    exchange = login.exchange()
    assert exchange is not None
    assert exchange.first() == sent


def test_a_key_and_its_chain_are_of_one_version_of_their_file(reads: list[str]) -> None:
    config = producer_config(
        {
            "bootstrap.servers": "h:1",
            "security.protocol": "SSL",
            "ssl.keystore.key": "${file:/f:n}",
            "ssl.keystore.certificate.chain": "${file:/f:n}",
        }
    )
    found = tls_settings(config, OptionValues(config))
    # The file changes at every read, so it is read again until that seems useless.
    assert (found.key, found.chain, len(reads)) == ("4", "4", 4)


@pytest.mark.parametrize(
    ("kind", "param", "forbids"),
    [
        ("EnvVar", "allowlist_pattern", "OTHER.*"),
        ("File", "allowed_paths", "/nowhere"),
        ("Directory", "allowed_paths", "/nowhere"),
    ],
)
def test_config_providers_give_names_and_limit_what_may_be_read(
    tmp_path: Path, kind: str, param: str, forbids: str
) -> None:
    reference = written(tmp_path)[kind]
    password_login(sasl_password=reference, **provider(kind))
    allows = {"allowlist_pattern": "SECRET_.*", "allowed_paths": str(tmp_path)}[param]
    made = password_login(sasl_password=reference, **provider(kind, **{param: allows}))
    login = made.login(Node(id=1, host="h", port=1), 0.5)
    assert login is not None
    exchange = login.exchange()
    assert exchange is not None
    assert SECRET.encode() in exchange.first()
    with pytest.raises(ConfigException, match=param.replace("_", ".")) as caught:
        password_login(sasl_password=reference, **provider(kind, **{param: forbids}))
    assert SECRET not in str(caught.value)


def test_other_providers_and_parameters_are_rejected() -> None:
    for options, sentence in (
        ({"config_providers": "vault"}, "config.providers.vault.class is ''"),
        (
            provider("EnvVar") | {"config_providers_mine_class": "com.acme.VaultProvider"},
            "com.acme.VaultProvider",
        ),
        (provider("EnvVar", timeout="5"), "config.providers.mine.param.timeout is not supported"),
        (
            {"config_providers_other_class": f"{JAVA}EnvVarConfigProvider"},
            "config.providers.other.class is an option of a provider that config.providers does",
        ),
    ):
        with pytest.raises(ConfigException, match=re.escape(sentence)):
            password_login(sasl_password="p", **options)


def by_each_way(folder: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the ways to have the secret read: the variable that forbids it, and the options."""
    references = {
        "EnvVar": REFERENCE,
        "File": f"${{file:{folder}/secrets.properties:key}}",
        "Directory": f"${{directory:{folder}:secret}}",
    }
    variables = {"EnvVar": "PYKAFKA_ENV_ALLOWLIST"}
    ways: dict[str, tuple[str, dict[str, str]]] = {}
    base = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}
    for kind, reference in references.items():
        variable = variables.get(kind, "PYKAFKA_ALLOWED_PATHS")
        jaas = f'{PLAIN_MODULE} required username="u" password="{reference}";'
        ways[f"{kind} password"] = (
            variable,
            base | {"sasl_username": "u", "sasl_password": reference},
        )
        ways[f"{kind} JAAS option"] = variable, base | {"sasl_jaas_config": jaas}
        ways[f"{kind} whole JAAS"] = variable, base | {"sasl_jaas_config": reference}
        ways[f"{kind} store"] = (
            variable,
            {"security_protocol": "SSL", "ssl_truststore_certificates": reference},
        )
        ways[f"{kind} rack"] = (
            variable,
            {"partitioner_rack_aware": "true", "client_rack": reference},
        )
        ways[f"{kind} truststore of the token endpoint"] = (
            variable,
            in_jaas("ssl.truststore.certificates", reference),
        )
        for name in ("basic.auth.user.info", "bearer.auth.token", f"{REGISTRY}.url"):
            ways[f"{kind} {name}"] = variable, {f"{REGISTRY}.url": "https://h", name: reference}
    oauth = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
    store = {"security_protocol": "SSL"}
    kerberos = {"security_protocol": "SASL_SSL", "sasl_kerberos_service_name": "kafka"}
    module = "com.sun.security.auth.module.Krb5LoginModule required"
    signed = oauth | {
        "sasl_oauthbearer_token_endpoint_url": "https://127.0.0.1:1/token",
        "sasl_oauthbearer_assertion_claim_iss": "me",
    }
    issuer = "bearer.auth.issuer.endpoint.url"
    registry = {f"{REGISTRY}.url": "https://h"}
    by_path = {
        "truststore of the token endpoint": in_jaas("ssl.truststore.location", f"{folder}/secret"),
        "keystore of the token endpoint": in_jaas("ssl.keystore.location", f"{folder}/secret"),
        "truststore of a registry": registry
        | {f"{REGISTRY}.ssl.truststore.location": f"{folder}/secret"},
        "keystore of a registry": registry
        | {f"{REGISTRY}.ssl.keystore.location": f"{folder}/secret"},
        "truststore": store | {"ssl_truststore_location": f"{folder}/secret"},
        "keystore": store | {"ssl_keystore_location": f"{folder}/secret"},
        "keytab": kerberos
        | {"sasl_kerberos_principal": "u", "sasl_kerberos_keytab": f"{folder}/secret"},
        "keytab of JAAS": kerberos
        | {"sasl_jaas_config": f'{module} useKeyTab=true principal=u keyTab="{folder}/secret";'},
        **{
            f"ticket cache {name}": kerberos
            | {"sasl_jaas_config": f'{module} useTicketCache=true ticketCache="{cache}";'}
            for name, cache in {
                "by its path": f"{folder}/secret",
                "of its kind": f"FILE:{folder}/secret",
                "in a folder": f"DIR:{folder}",
                "of a folder": f"DIR::{folder}/secret",
                "without a folder": "secret",
            }.items()
        },
        "assertion": signed | {"sasl_oauthbearer_assertion_file": f"{folder}/secret"},
        "key of assertions": signed
        | {"sasl_oauthbearer_assertion_private_key_file": f"{folder}/secret"},
        "template of assertions": signed
        | {"sasl_oauthbearer_assertion_template_file": f"{folder}/secret"}
        | {"sasl_oauthbearer_assertion_private_key_file": "key.pem"},
    }
    ways |= {name: ("PYKAFKA_ALLOWED_PATHS", options) for name, options in by_path.items()}
    token = oauth | {"sasl_oauthbearer_token_endpoint_url": f"file://{folder}/secret"}
    ways["file of a token, by its path"] = "PYKAFKA_ALLOWED_PATHS", token
    ways["file of a token, by its URL"] = "PYKAFKA_OAUTH_ALLOWED_URLS", token
    endpoint = oauth | {
        "sasl_oauthbearer_token_endpoint_url": "http://127.0.0.1:1/token",
        "sasl_oauthbearer_client_credentials_client_id": "u",
        "sasl_oauthbearer_client_credentials_client_secret": "s",
    }
    ways["endpoint of tokens"] = "PYKAFKA_OAUTH_ALLOWED_URLS", endpoint
    ways["endpoint by a reference"] = (
        "PYKAFKA_OAUTH_ALLOWED_URLS",
        endpoint | {"sasl_oauthbearer_token_endpoint_url": REFERENCE},
    )
    ways["endpoint of a registry's tokens"] = (
        "PYKAFKA_OAUTH_ALLOWED_URLS",
        registry
        | {issuer: "http://127.0.0.1:1/token", "bearer.auth.client.id": "u"}
        | {"bearer.auth.client.secret": "s", "bearer.auth.credentials.source": "OAUTHBEARER"},
    )
    ways["schema in a file"] = "PYKAFKA_ALLOWED_PATHS", {"valueSchema": f"{folder}/secret"}
    return ways


def in_jaas(option: str, value: str) -> dict[str, str]:
    """Return the options of a token endpoint with an option about its TLS."""
    module = "x.OAuthBearerLoginModule required clientId=u clientSecret=s"
    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": "https://127.0.0.1:1/token",
        "sasl_jaas_config": f'{module} {option}="{value}";',
    }


def use(options: dict[str, str]) -> None:
    """Use options of a connection, of a producer or of a registry, or a file with a schema."""
    if f"{REGISTRY}.url" in options:
        settings = registry_settings(options)
        assert settings is not None
        connect(settings, producer_config({"bootstrap.servers": "h:1"}))
    elif "client_rack" in options:
        given = {name.replace("_", "."): value for name, value in options.items()}
        KafkaProducer({"bootstrap.servers": "h:1", **given}).close(0)
    elif "valueSchema" in options:
        schemas = FormatOptions(schemas={"value": options["valueSchema"]})
        given_schema("value", schemas, "an Avro schema")
    else:
        security(**options)


@pytest.mark.parametrize("way", by_each_way(Path("/f")))
def test_the_process_forbids_a_file_a_variable_and_a_url_by_each_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    written(tmp_path)
    variable, options = by_each_way(tmp_path)[way]
    if way == "template of assertions":
        # The key is shipped, so only the template can be forbidden.
        (tmp_path / "key.pem").write_text(new_key())
        monkeypatch.setattr(option_values, "_finders", [{"key.pem": f"{tmp_path}/key.pem"}.get])
    if way == "endpoint by a reference":
        monkeypatch.setenv("SECRET_OF_A_TEST", f"http://127.0.0.1:1/{SECRET}")
    for forbidden in ("", "nothing" if variable == "PYKAFKA_ENV_ALLOWLIST" else "/nothing"):
        monkeypatch.setenv(variable, forbidden)
        with pytest.raises(KafkaException, match=variable) as caught:
            use(options)
        assert SECRET not in "".join(traceback.format_exception(caught.value))
    if way.split(maxsplit=1)[0] in ("EnvVar", "File", "Directory"):
        monkeypatch.delenv(variable)
        monkeypatch.setenv("PYKAFKA_CONFIG_PROVIDERS", "none")
        with pytest.raises(KafkaException, match="PYKAFKA_CONFIG_PROVIDERS"):
            use(options)


@pytest.mark.parametrize(
    "scheme",
    [
        "s3://bucket",
        "s3a://bucket",
        "gs://bucket",
        "dbfs:/certs",
        "hdfs:///certs",
        "hdfs:/certs",
        "abfss://c@account",
    ],
)
@pytest.mark.parametrize(
    ("option", "more"),
    [
        ("ssl.truststore.location", {"security_protocol": "SSL"}),
        ("ssl.keystore.location", {"security_protocol": "SSL"}),
        (
            "sasl.kerberos.keytab",
            {
                "security_protocol": "SASL_SSL",
                "sasl_kerberos_service_name": "kafka",
                "sasl_kerberos_principal": "u",
            },
        ),
        (
            "sasl.oauthbearer.assertion.file",
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauthbearer_token_endpoint_url": "https://127.0.0.1:1/token",
            },
        ),
    ],
)
def test_a_file_of_another_file_system_has_to_be_shipped(
    option: str, more: dict[str, str], scheme: str
) -> None:
    with pytest.raises(
        ConfigException, match=r"ship the file with --files or .* to its name"
    ) as caught:
        security(**more, **{option.replace(".", "_"): f"{scheme}/x.pem"})
    assert option in str(caught.value)
    assert f"{scheme.partition(':')[0]}: is not a folder of this machine" in str(caught.value)


@pytest.mark.parametrize("scheme", ["file://", "file:", "FILE://"])
def test_a_file_s_url_is_not_its_path(scheme: str, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_bytes(b"")
    with pytest.raises(ConfigException, match=r"it is a URL: write the path without (?i:file:)"):
        security(security_protocol="SSL", ssl_truststore_location=f"{scheme}{path}")


def test_messages_say_which_process_lacks_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option_values, "_names", list(option_values._names))
    option_values.name_process(lambda: "this executor")
    with pytest.raises(ConfigException, match="'NOT_SET' is not set on this executor"):
        password_login(sasl_password="${env:NOT_SET}")
    monkeypatch.setenv("PYKAFKA_ALLOWED_PATHS", "")
    with pytest.raises(ConfigException, match="PYKAFKA_ALLOWED_PATHS of this executor does not"):
        security(security_protocol="SSL", ssl_truststore_location="/ca.pem")


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files that `--files` has shipped, with a forbidden one beside it."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    (tmp_path / "ca.pem").write_text("not shipped")
    monkeypatch.setattr(option_values, "_finders", [])

    def find(name: str) -> str | None:
        path = folder / name
        return str(path) if path.is_file() else None

    option_values.find_shipped_files(find)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYKAFKA_ALLOWED_PATHS", "")
    return folder


def test_a_name_without_a_folder_is_that_of_a_shipped_file_whatever_may_be_read(
    shipped: Path,
) -> None:
    (shipped / "ca.pem").write_text(Authority().root.certificate)
    (shipped / "secrets.properties").write_text(f"password={SECRET}")
    (shipped / "alice.keytab").write_text("no keytab")
    security(security_protocol="SSL", ssl_truststore_location="ca.pem")
    made = password_login(sasl_password="${file:secrets.properties:password}")
    login = made.login(Node(id=1, host="h", port=1), 0.5)
    assert login is not None
    exchange = login.exchange()
    assert exchange is not None
    assert SECRET.encode() in exchange.first()
    module = "com.sun.security.auth.module.Krb5LoginModule required"
    with pytest.raises(ConfigException, match=r"keyTab of sasl\.jaas\.config is not a keytab"):
        security(
            security_protocol="SASL_SSL",
            sasl_kerberos_service_name="kafka",
            sasl_jaas_config=f'{module} useKeyTab=true keyTab="alice.keytab" principal=u;',
        )
    for path in ("./ca.pem", "../ca.pem", str(shipped.parent / "ca.pem"), "other.pem"):
        with pytest.raises(ConfigException, match=r"PYKAFKA_ALLOWED_PATHS|No such file"):
            security(security_protocol="SSL", ssl_truststore_location=path)


def test_the_url_of_a_token_may_have_the_name_of_a_shipped_file(shipped: Path) -> None:
    (shipped / "token.jwt").write_text("e30.e30.sig")
    options = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
    for retriever in ("DefaultJwtRetriever", "FileJwtRetriever"):
        first = first_token(
            sasl_oauthbearer_token_endpoint_url="file:token.jwt",
            sasl_oauthbearer_jwt_retriever_class=retriever,
            **options,
        )
        assert b"Bearer e30.e30.sig" in first
    for url, words in (
        ("file:other.jwt", "PYKAFKA_ALLOWED_PATHS"),
        ("file:../token.jwt", "expected"),
        ("file:", "expected"),
        ("token.jwt", "expected"),
    ):
        with pytest.raises(ConfigException, match=words):
            security(sasl_oauthbearer_token_endpoint_url=url, **options)


# -- time limits ---------------------------------------------------------------------------------


BY_SCRAM = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "u",
    "sasl.password": "p",
}


def said_in_time(port: int, options: dict[str, str]) -> str:
    """Return what an admin says of a broker that is silent before the client is ready."""
    limits = {"socket.connection.setup.timeout.ms": "500", "max.block.ms": "1200"}
    config = producer_config({"bootstrap.servers": f"127.0.0.1:{port}"} | options | limits)
    with KafkaAdmin(config) as admin, pytest.raises(TimeoutException) as caught:
        admin.topics([])
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ({"security.protocol": "SSL"}, "in the TLS handshake"),
        (BY_SCRAM, "waiting for the broker's versions"),
    ],
    ids=["tls", "versions"],
)
def test_the_setup_timeout_includes_tls_and_the_versions(
    options: dict[str, str], state: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = said_in_time(silent.getsockname()[1], options)
    assert f"still {state} after socket.connection.setup.timeout.ms" in said


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        ({}, "waiting for the response to SaslHandshake"),
        (
            {17: SaslHandshakeResponse(error_code=codes.NONE, mechanisms=["SCRAM-SHA-256"])},
            "in the SASL login",
        ),
    ],
    ids=["handshake", "tokens"],
)
def test_the_setup_timeout_includes_each_step_of_the_sasl_login(
    answers: dict[int, Response], state: str
) -> None:
    with ScriptedBroker() as broker:
        broker.answers |= answers
        said = said_in_time(broker.port, BY_SCRAM)
    assert f"still {state} after socket.connection.setup.timeout.ms" in said
