"""OAUTHBEARER: where options say that tokens come from, asked of a real endpoint on loopback."""

from __future__ import annotations

import base64
import logging
import queue
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from support.brokers.certificates import Authority
from support.brokers.token_server import (
    CLIENT_ID,
    CLIENT_SECRET,
    Answer,
    Asked,
    TokenServer,
    new_key,
    private_pem,
    signed,
    verified,
)

from spark_kafka_sink import error_codes
from spark_kafka_sink.auth.mechanisms import SaslExchange
from spark_kafka_sink.auth.oauthbearer import subject
from spark_kafka_sink.auth.token_renewal import TokenException, TokenRenewal
from spark_kafka_sink.client.assembly import assemble
from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import ConfigException, SaslAuthenticationException, name_options
from spark_kafka_sink.logs import _warn
from spark_kafka_sink.model import Node
from spark_kafka_sink.network import http, oauth, option_values
from spark_kafka_sink.network.http import HttpException, HttpLimits
from spark_kafka_sink.network.login import TokenSource
from spark_kafka_sink.network.oauth import OAuth
from spark_kafka_sink.network.option_values import OptionValues
from spark_kafka_sink.network.sasl_authenticator import SaslAuthenticator
from spark_kafka_sink.network.security import Security

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
NODE = Node(id=1, host="h", port=1)
WAIT_S = 30
KEY = new_key()
OPTION = "sasl.oauthbearer"
CHANGED = "the Python callable, an extension, or the user of the assertion has changed since"


@pytest.fixture
def server() -> Iterator[TokenServer]:
    """A token endpoint of the test's own: no other test shares its tokens."""
    with TokenServer(KEY) as running:
        yield running


def config(url: str | None, **more: object) -> dict[str, Any]:
    """Return the options of a client; more: by the last part of their names, _ for dots."""
    options: dict[str, Any] = {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
    }
    if url is not None:
        options[f"{OPTION}.token.endpoint.url"] = url
    return options | {name.replace("_", "."): value for name, value in more.items()}


def by_secret(url: str, secret: str = CLIENT_SECRET, **more: object) -> dict[str, Any]:
    """Return the options of a client with a secret."""
    return config(url, **more) | {
        f"{OPTION}.client.credentials.client.id": CLIENT_ID,
        f"{OPTION}.client.credentials.client.secret": secret,
    }


def security(options: dict[str, Any]) -> Security:
    """Return the security of a client."""
    made = Security.of(producer_config(options))
    assert made is not None
    return made


def exchange(made: Security) -> SaslExchange:
    """Wait for a login as a client does, and return it."""
    woken = threading.Event()
    made.wake = woken.set
    while not made.has_login(NODE):
        assert woken.wait(WAIT_S)
        woken.clear()
    login = made.login(NODE, 0.5)
    assert login is not None
    assert not any(secret in repr(login) for secret in (CLIENT_SECRET, "eyJ"))
    found = login.exchange()
    assert found is not None
    return found


def first_message(options: dict[str, Any]) -> str:
    """Return what goes to a broker first."""
    made = security(options)
    try:
        return exchange(made).first().decode()
    finally:
        made.close()


def refusal(options: dict[str, Any]) -> str:
    """Return why there is no login."""
    made = security(options)
    try:
        with pytest.raises(SaslAuthenticationException) as caught:
            exchange(made)
    finally:
        made.close()
    assert CLIENT_SECRET not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


def test_a_secret_gives_a_token_and_extensions_go_with_it(server: TokenServer) -> None:
    jaas = f'{MODULE} required extension_logicalCluster="lkc-1" extension_pool="p";'
    options = by_secret(server.url, sasl_jaas_config=jaas)
    options[f"{OPTION}.scope"] = "kafka all"
    said = first_message(options)
    (token,) = server.tokens
    assert said == f"n,,\x01auth=Bearer {token}\x01logicalCluster=lkc-1\x01pool=p\x01\x01"
    assert server.asked[0].form == {"grant_type": "client_credentials", "scope": "kafka all"}


def test_an_unknown_option_of_jaas_has_no_effect_which_is_said(
    server: TokenServer, caplog: pytest.LogCaptureFixture
) -> None:
    jaas = f'{MODULE} required debug="true" hunter2="hunter3" extension_pool="p";'
    said = first_message(by_secret(server.url, sasl_jaas_config=jaas))
    assert said.endswith("\x01pool=p\x01\x01")
    (warning,) = (each.message for each in caplog.records if each.levelno == logging.WARNING)
    assert "an option that OAuthBearerLoginModule does not have" in warning
    assert "hunter" not in warning


def test_what_goes_to_the_endpoint_is_of_one_version_of_a_file(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    def content(path: str) -> bytes:
        reads.append(path)
        return f"n={len(reads)}\n".encode()

    monkeypatch.setattr(option_values, "content", content)
    refusal(by_secret(server.url, "${file:/f:n}", sasl_oauthbearer_scope="${file:/f:n}"))
    assert server.asked[0].form["scope"] == server.asked[0].credentials[1]


def test_credentials_may_stand_in_jaas_and_the_options_win(server: TokenServer) -> None:
    quoted = CLIENT_SECRET.replace('"', r"\"")
    jaas = f'{MODULE} required clientId="{CLIENT_ID}" clientSecret="{quoted}" scope=" s ";'
    assert server.url in config(server.url).values()
    first_message(config(server.url, sasl_jaas_config=jaas))
    assert server.asked[0].form["scope"] == "s"
    wrong = f'{MODULE} required clientId="x" clientSecret="y" scope="s";'
    options = by_secret(server.url, sasl_jaas_config=wrong)
    options[f"{OPTION}.scope"] = "t"
    first_message(options)
    assert server.asked[1].credentials == (CLIENT_ID, CLIENT_SECRET)
    assert server.asked[1].form["scope"] == "t"


def test_the_header_is_url_encoded_where_that_is_asked_for(server: TokenServer) -> None:
    options = by_secret(server.url) | {f"{OPTION}.header.urlencode": "true"}
    refusal(options)
    assert server.asked[0].credentials == (
        CLIENT_ID, "s3cret+of+the+client%3A+%C3%BC%2B%26%3D"
    )  # fmt: skip


def test_a_wrong_secret_is_an_error_that_names_the_endpoint(
    server: TokenServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said = refusal(by_secret(server.url, "WRONG"))
    assert said == (
        f"the token endpoint {server.url} returned no token: it answered 401 (invalid_client: no "
        "such client)"
    )
    first_message(by_secret(server.url))
    assert not any(word in caplog.text for word in ("WRONG", CLIENT_SECRET, *server.tokens))


@pytest.mark.parametrize("options", [{}, {"sasl_oauthbearer_header_urlencode": "true"}])
def test_an_endpoint_that_sends_the_secret_back_does_not_show_it(
    server: TokenServer, options: dict[str, str]
) -> None:
    secret = "hunter/2 ü"

    def echo(asked: Asked) -> Answer:
        given = asked.headers["authorization"].partition(" ")[2]
        decoded = base64.b64decode(given).decode()
        said = f"{secret} of {decoded} in {given} is wrong"
        return Answer(401, {"error": secret, "error_description": said})

    server.answer = echo
    said = refusal(by_secret(server.url, secret, **options))
    assert said.endswith(f"it answered 401 (***: *** of {CLIENT_ID}:*** in *** is wrong)")


def test_an_endpoint_that_sends_an_assertion_back_does_not_show_it(
    server: TokenServer, tmp_path: Path
) -> None:
    (tmp_path / "assertion").write_text("a.b.c\n")
    server.answer = lambda asked: Answer(401, {"error": "a.b.c is wrong"})
    options = config(server.url, sasl_oauthbearer_assertion_file=str(tmp_path / "assertion"))
    assert refusal(options).endswith("it answered 401 (*** is wrong)")


def test_clients_that_are_configured_alike_share_a_token(server: TokenServer) -> None:
    made = [security(by_secret(server.url) | {"linger.ms": str(number)}) for number in range(3)]
    assert len({exchange(each).first() for each in made}) == 1
    assert len(server.asked) == 1
    for each in made:
        each.close()
    first_message(by_secret(server.url))
    assert len(server.asked) == 1


def test_other_credentials_never_get_that_token(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = lambda asked: server.token(sub=asked.credentials[0])
    monkeypatch.setenv("CLIENT_OF_TEST", "alice")
    options = by_secret(server.url) | {
        f"{OPTION}.client.credentials.client.id": "${env:CLIENT_OF_TEST}"
    }
    alice = first_message(options)
    assert first_message(options) == alice
    monkeypatch.setenv("CLIENT_OF_TEST", "bob")
    assert first_message(options) != alice
    assert [asked.credentials[0] for asked in server.asked] == ["alice", "bob"]
    for change in (
        {f"{OPTION}.scope": "another"},
        {"sasl.jaas.config": f'{MODULE} required extension_a="b";'},
        {f"{OPTION}.client.credentials.client.secret": "another"},
    ):
        count = len(server.asked)
        first_message(options | change)
        assert len(server.asked) == count + 1


def test_literal_credentials_never_get_a_token_of_a_reference(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = lambda asked: server.token(sub=asked.credentials[0])
    server.life_s = 0.001
    name = f"{OPTION}.client.credentials.client.id"
    monkeypatch.setenv("CLIENT_OF_TEST", "alice")
    first = security(by_secret(server.url) | {name: "${env:CLIENT_OF_TEST}"})
    exchange(first)
    monkeypatch.setenv("CLIENT_OF_TEST", "bob")
    second = security(by_secret(server.url) | {name: "alice"})
    exchange(second)
    assert [asked.credentials[0] for asked in server.asked] == ["alice", "alice"]
    for made in (first, second):
        made.close()


# -- assertions ----------------------------------------------------------------------------------


def test_an_assertion_of_a_file_is_read_for_each_token(server: TokenServer, tmp_path: Path) -> None:
    server.answer = lambda asked: server.token()
    file = tmp_path / "assertion"
    options = config(server.url) | {f"{OPTION}.assertion.file": str(file)}
    for text in ("a.b.c", "d.e.f"):
        file.write_text(f"{text}\n")
        made = security(options)
        exchange(made)
        server.life_s = 0.001
        made.close()
    file.write_text("")
    with pytest.raises(ConfigException, match="has no valid assertion"):
        security(options)
    file.unlink()
    with pytest.raises(ConfigException, match=r"assertion\.file cannot be read"):
        security(options)
    assert server.asked[0].form["client_assertion"] == "a.b.c"
    assert "authorization" not in server.asked[0].headers


def problem_of_a_refresh(made: Security) -> str:
    """Fetch the next token of a client, and return why there is none; the last one still serves."""
    assert isinstance(made._oauth, OAuth)
    source = made._oauth.source
    assert source is not None
    token = source.token()
    with pytest.raises(TokenException) as caught:
        source._fetch()
    assert source.token() is token is not None
    return str(caught.value)


def test_a_token_of_one_user_is_never_refreshed_as_another_user(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An opaque token does not tell its user.
    server.answer = lambda asked: Answer(200, {"access_token": f"of-{asked.credentials[0]}"})
    monkeypatch.setenv("CLIENT_OF_TEST", "alice")
    options = by_secret(server.url) | {
        f"{OPTION}.client.credentials.client.id": "${env:CLIENT_OF_TEST}"
    }
    alice = security(options)
    assert "Bearer of-alice\x01" in exchange(alice).first().decode()
    monkeypatch.setenv("CLIENT_OF_TEST", "bob")
    assert problem_of_a_refresh(alice) == (
        "the client id, the token endpoint, the Python callable, an extension, or the user of the "
        "assertion has changed since this client was created: "
        "a client cannot change its user, so create a new client"
    )
    assert "Bearer of-bob\x01" in first_message(options)
    monkeypatch.setenv("CLIENT_OF_TEST", "alice")
    assert "Bearer of-alice\x01" in first_message(options)
    alice.close()


@pytest.mark.parametrize("changed", ["TENANT_OF_TEST", "POOL_OF_TEST"])
def test_a_token_of_one_tenant_or_pool_is_never_refreshed_as_that_of_another(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    server.answer = lambda asked: Answer(200, {"access_token": "opaque"})
    monkeypatch.setenv("TENANT_OF_TEST", server.url)
    monkeypatch.setenv("POOL_OF_TEST", "pool-1")
    module = "x.OAuthBearerLoginModule required"
    made = security(
        by_secret("${env:TENANT_OF_TEST}")
        | {"sasl.jaas.config": f'{module} extension_identityPoolId="${{env:POOL_OF_TEST}}";'}
    )
    exchange(made)
    monkeypatch.setenv(changed, f"{server.url}?tenant=2")
    assert CHANGED in problem_of_a_refresh(made)
    made.close()


def test_a_client_never_gets_the_token_of_an_earlier_assertion_s_user(
    server: TokenServer, tmp_path: Path
) -> None:
    server.answer = lambda asked: server.token(sub=subject(asked.form["client_assertion"]))
    file = tmp_path / "assertion"
    options = config(server.url) | {f"{OPTION}.assertion.file": str(file)}
    clients = []
    for user in ("alice", "bob"):
        file.write_text(signed(KEY, 600, sub=user))
        clients.append(security(options))
        exchange(clients[-1])
        assert clients[-1].principal == user
    assert "the user of the assertion has changed" in problem_of_a_refresh(clients[0])
    # A new assertion of the same user.
    file.write_text(signed(KEY, 700, sub="bob"))
    before = len(server.asked)
    clients.append(security(options))
    exchange(clients[-1])
    assert len(server.asked) == before, "it shares the token"
    assert clients[-1].principal == "bob"
    for each in clients:
        each.close()


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
@pytest.mark.parametrize("retriever", ["DefaultJwtRetriever", "JwtBearerJwtRetriever"])
def test_an_assertion_is_signed_here(
    server: TokenServer, tmp_path: Path, algorithm: str, retriever: str
) -> None:
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey = ec.generate_private_key(ec.SECP256R1())
    if algorithm == "RS256":
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    server.answer = lambda asked: server.token()
    (tmp_path / "key.pem").write_text(private_pem(key, "a passphrase"))
    (tmp_path / "template.json").write_text('{"header": {"kid": "k"}, "payload": {"x": 1}}')
    first_message(
        config(server.url)
        | {
            f"{OPTION}.jwt.retriever.class": f"org.apache.kafka.common.security.oauthbearer."
            f"{retriever}",
            f"{OPTION}.assertion.private.key.file": str(tmp_path / "key.pem"),
            f"{OPTION}.assertion.private.key.passphrase": "a passphrase",
            f"{OPTION}.assertion.algorithm": algorithm,
            f"{OPTION}.assertion.template.file": str(tmp_path / "template.json"),
            f"{OPTION}.assertion.claim.iss": "me",
            f"{OPTION}.assertion.claim.sub": "me too",
            f"{OPTION}.assertion.claim.aud": server.url,
            f"{OPTION}.assertion.claim.jti.include": "true",
            f"{OPTION}.client.credentials.client.id": "an id",
            f"{OPTION}.scope": "s",
        }
    )
    form = server.asked[0].form
    bearer = retriever == "JwtBearerJwtRetriever"
    header, claims = verified(form["assertion" if bearer else "client_assertion"], key.public_key())
    assert header == {"kid": "k", "alg": algorithm, "typ": "JWT"}
    assert (claims["iss"], claims["sub"], claims["aud"], claims["x"]) == (
        "me", "me too", server.url, 1
    )  # fmt: skip
    assert claims["exp"] - claims["iat"] == 300
    assert claims["jti"]
    assert form.get("client_id") == (None if bearer else "an id")
    assert form["scope"] == "s"


def test_what_signs_is_needed_on_the_driver(
    server: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key.pem").write_text(KEY)
    options = config(server.url) | {
        f"{OPTION}.assertion.private.key.file": str(tmp_path / "key.pem"),
        f"{OPTION}.assertion.claim.iss": "me",
    }
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(ConfigException, match=r'pip install "path/to/spark-kafka-sink\[pkcs12\]"'):
        security(options)
    # A login that signs nothing does not need it.
    first_message(by_secret(server.url))


# -- TLS -----------------------------------------------------------------------------------------


def test_the_endpoint_s_tls_is_that_of_jaas(tmp_path: Path) -> None:
    authority = Authority()
    leaf = authority.leaf("localhost")
    (tmp_path / "server.pem").write_text(leaf.key + leaf.chain)
    (tmp_path / "ca.pem").write_text(authority.root.certificate)
    with TokenServer(KEY, tls=tmp_path / "server.pem") as server:
        # The truststore for brokers is not used for the endpoint, as in Java.
        options = by_secret(server.url, ssl_truststore_location=str(tmp_path / "ca.pem"))
        assert "does not accept its certificate" in refusal(options)
        location = f'{MODULE} required ssl.truststore.location="{tmp_path / "ca.pem"}";'
        first_message(by_secret(server.url, sasl_jaas_config=location))
        wrong = f'{MODULE} required ssl.truststore.location="/nowhere.pem";'
        with pytest.raises(ConfigException, match=r"sasl\.jaas\.config: ssl\.truststore\.location"):
            security(by_secret(server.url, sasl_jaas_config=wrong))


def test_options_of_the_endpoint_s_tls_are_named_as_their_user_knows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority()
    leaf = authority.leaf("localhost")
    (tmp_path / "server.pem").write_text(leaf.key + leaf.chain)
    (tmp_path / "ca.pem").write_text(authority.root.certificate)
    with name_options("kafka.".__add__), TokenServer(KEY, tls=tmp_path / "server.pem") as server:
        options = by_secret(server.url, ssl_truststore_location=str(tmp_path / "ca.pem"))
        assert "inside kafka.sasl.jaas.config to the certificate of its CA" in refusal(options)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
        named = re.escape(" set kafka.sasl.jaas.config: ssl.truststore.location or ")
        with pytest.raises(ConfigException, match=named):
            security(options)


def test_options_of_a_java_runtime_in_the_endpoint_s_tls_have_no_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # As in the examples of Databricks for Event Hubs.
    own = 'ssl.protocol="SSL" ssl.trustmanager.algorithm="PKIX"'
    url = "https://localhost:1/token"
    security(by_secret(url, sasl_jaas_config=f"{MODULE} required {own};")).close()
    assert "sasl.jaas.config: ssl.trustmanager.algorithm has no effect" in caplog.text


def test_a_reference_in_the_endpoint_s_tls_is_resolved_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca.pem").write_text(Authority().root.certificate)
    monkeypatch.setenv("CA_OF_TEST", str(tmp_path / "ca.pem"))
    url = "https://localhost:1/token"
    trusted = f'{MODULE} required ssl.truststore.location="${{env:CA_OF_TEST}}";'
    security(by_secret(url, sasl_jaas_config=trusted)).close()
    monkeypatch.setenv("JAAS_OF_TEST", trusted.replace("${env:CA_OF_TEST}", "/$CA.pem"))
    with pytest.raises(ConfigException, match=r"file \$\{env:JAAS_OF_TEST\} .* cannot be read"):
        security(by_secret(url, sasl_jaas_config="${env:JAAS_OF_TEST}"))
    monkeypatch.setenv("CA_OF_TEST", "hunter2")
    for name in ("truststore.location", "protocol", "cipher.suites"):
        jaas = f'{MODULE} required ssl.{name}="${{env:CA_OF_TEST}}";'
        with pytest.raises(ConfigException, match=rf"ssl\.{name}.*\$\{{env:CA|CA_OF") as caught:
            security(by_secret(url, sasl_jaas_config=jaas))
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.HiddenModule required;", "names an unknown module: expected"),
        (f"{MODULE} required extension_hidden1=v;", r"\) has an invalid option extension_…"),
        (f"{MODULE} required ssl.protocol=hidden;", r"\) has an invalid option ssl\.…"),
        (f"{MODULE} required ssl.hidden=a;", r"\) has an invalid option ssl\.…"),
        (f"{MODULE} required ssl.cipher.suites=hidden;", "a suite of '.*', which is unknown"),
        (f'{MODULE} required ssl.truststore.location="/hidden";', "the file .* cannot be read"),
        (f'{MODULE} required ssl.keystore.location="/hidden";', "the file .* cannot be read"),
    ],
)
def test_nothing_of_a_jaas_text_that_a_reference_gives_is_shown(
    text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAAS_OF_TEST", text)
    given = by_secret("https://localhost:1/token", sasl_jaas_config="${env:JAAS_OF_TEST}")
    with pytest.raises(ConfigException, match=expected) as caught:
        security(given)
    assert "hidden" not in "".join(traceback.format_exception(caught.value)).lower()


# -- callables -----------------------------------------------------------------------------------


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's."""
    module = ModuleType("own_tokens_of_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def by_callable(name: str, **more: object) -> dict[str, Any]:
    """Return the options of a client whose tokens come from a callable."""
    return config(None, **more) | {f"{OPTION}.jwt.retriever.class": f"own_tokens_of_test.{name}"}


def test_a_callable_gives_tokens(own_module: ModuleType) -> None:
    jaas = f'{MODULE} required extension_a="b";'
    calls = []

    class Tokens:
        def __init__(self) -> None:
            calls.append(f"made in {threading.current_thread().name}")

        def __call__(self) -> tuple[str, float, dict[str, str]]:
            calls.append(threading.current_thread().name)
            return "abc", 2e9, {"c": "d"}

    own_module.Tokens = Tokens  # type: ignore[attr-defined] # made here
    said = first_message(by_callable("Tokens", sasl_jaas_config=jaas))
    assert said == "n,,\x01auth=Bearer abc\x01a=b\x01c=d\x01\x01"
    # Only there may it take a long time.
    assert calls == ["made in kafka-login", "kafka-login"]
    for never in (float("inf"), 10**400, 253_402_300_799, sys.maxsize):
        own_module.ever = lambda never=never: ("ghi", never)  # type: ignore[attr-defined] # made here
        assert "auth=Bearer ghi\x01" in first_message(by_callable("ever"))
    own_module.plain = lambda: ["def", None]  # type: ignore[attr-defined] # made here
    assert "auth=Bearer def\x01" in first_message(by_callable("plain"))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, "an object of the type NoneType"),
        ("t0ken", "an object of the type str"),
        (("t0ken",), "(str)"),
        ((b"t0ken", 1), "(bytes, int)"),
        (("t0ken", "1"), "(str, str)"),
        (("t0ken", True), "(str, bool)"),
        (("t0ken", 1, None), "(str, int, NoneType)"),
        (("t0ken", 1, {"a": 1}), "(str, int, dict)"),
        (("t0ken", 1, {}, 1), "(str, int, dict, int)"),
        (("t0 ken", 1), "expected the token alone"),
        (("t0ken", 1, {"auth": "x"}), "is not the name of an OAUTHBEARER extension"),
        (("t0ken", float("nan")), "NaN as the time when the token expires"),
        (("t0ken", 1_800_000_000_000), "a time in milliseconds as the time when the token"),
    ],
)
def test_what_is_no_token_is_refused(own_module: ModuleType, found: object, expected: str) -> None:
    own_module.tokens = lambda: found  # type: ignore[attr-defined] # made here
    said = refusal(by_callable("tokens", client_id=str(found)))
    assert said.startswith("own_tokens_of_test.tokens returned no token: ")
    assert expected in said
    assert "t0" not in said


@pytest.mark.parametrize("error", [ValueError("s3cret"), SystemExit("s3cret"), KeyboardInterrupt()])
def test_a_callable_may_raise_anything_and_is_called_again(
    own_module: ModuleType, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    errors = [error]

    def tokens() -> tuple[str, float]:
        if errors:
            raise errors.pop()
        return "abc", 2e9

    setattr(own_module, f"after_{type(error).__name__}", tokens)
    assert "abc" in first_message(by_callable(f"after_{type(error).__name__}"))
    assert f"it raised {type(error).__name__} in tokens, line " in caplog.text
    assert "s3cret" not in caplog.text


def check_given_up(name: str, goes_on: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the wait for a callable ends, and that it gives a token once it goes on."""
    options = producer_config({"bootstrap.servers": "b:1", **by_callable(name)})
    oauth = OAuth(options, OptionValues(options))
    with monkeypatch.context() as patch:
        patch.setattr("spark_kafka_sink.network.oauth.SLOW_S", 0.01)
        with pytest.raises(TokenException, match="no result after 0 s"):
            oauth.new_token()
    goes_on.set()
    assert oauth.new_token().value == "abc"


def test_a_callable_that_does_not_return_is_given_up_outside_of_logins_too(
    own_module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def slow() -> tuple[str, float]:
        goes_on.wait(WAIT_S)
        return "abc", 2e9

    own_module.slow = slow  # type: ignore[attr-defined] # a module of the test
    check_given_up("slow", goes_on, monkeypatch)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("own_tokens_of_test.missing", "is not in that module"),
        ("no_module_of_test.Tokens", "no module named 'no_module_of_test'"),
        ("own_tokens_of_test.number", "cannot be called"),
        ("own_tokens_of_test.Silent", "is a class without a method __call__"),
        ("com.example.Retriever", "no other Java class"),
        ("Retriever", "expected one of Java's DefaultJwtRetriever"),
        ("org.apache.kafka.common.security.oauthbearer.X", "no other Java class"),
    ],
)
def test_what_cannot_be_called_is_refused_on_the_driver(
    own_module: ModuleType, name: str, sentence: str
) -> None:
    class Silent:
        pass

    for attribute, value in {"number": 5, "Silent": Silent}.items():
        setattr(own_module, attribute, value)
    with pytest.raises(ConfigException, match=sentence):
        security(config(None) | {f"{OPTION}.jwt.retriever.class": name})


def test_a_class_whose_constructor_needs_arguments_is_refused_at_the_first_login(
    own_module: ModuleType,
) -> None:
    class Broken:
        def __init__(self, secret: str) -> None:
            self._secret = secret

        def __call__(self) -> tuple[str, float]:
            return self._secret, 2e9

    own_module.Broken = Broken  # type: ignore[attr-defined] # a module of the test
    made = security(by_callable("Broken"))
    with pytest.raises(SaslAuthenticationException) as caught:
        exchange(made)
    made.close()
    said = "own_tokens_of_test.Broken returned no token: no instance of it can be made (TypeError"
    assert said in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("error", [OSError("s3cret"), SystemExit("s3cret"), KeyboardInterrupt()])
def test_a_constructor_that_fails_once_is_called_again(
    own_module: ModuleType, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    errors = [error]

    class Flaky:
        def __init__(self) -> None:
            if errors:
                raise errors.pop()

        def __call__(self) -> tuple[str, float]:
            return "abc", 2e9

    name = f"Flaky{type(error).__name__}"
    setattr(own_module, name, Flaky)
    made = security(by_callable(name))
    assert "Bearer abc\x01" in exchange(made).first().decode()
    made.close()
    assert errors == []
    said = f"no instance of it can be made ({type(error).__name__} in __init__, line "
    assert said in caplog.text
    assert "s3cret" not in caplog.text


def test_a_constructor_that_does_not_return_is_given_up(
    own_module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    class Slow:
        def __init__(self) -> None:
            goes_on.wait(WAIT_S)

        def __call__(self) -> tuple[str, float]:
            return "abc", 2e9

    own_module.Slow = Slow  # type: ignore[attr-defined] # a module of the test
    check_given_up("Slow", goes_on, monkeypatch)


def test_a_reference_names_the_callable_of_each_new_client(
    own_module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{OPTION}.jwt.retriever.class"
    options = config(None) | {name: "${env:RETRIEVER_OF_TEST}"}
    for token in ("abc", "def"):
        monkeypatch.setenv("RETRIEVER_OF_TEST", f"own_tokens_of_test.of_{token}")
        setattr(own_module, f"of_{token}", lambda token=token: (token, 2e9))
        made = security(options)
        assert f"auth=Bearer {token}\x01" in exchange(made).first().decode()
        assert isinstance(made._oauth, OAuth)
        assert "of_" not in repr(made._oauth._settings())
        # Another callable may return the tokens of another user, which an opaque token hides.
        own_module.of_ghi = lambda: ("ghi", 2e9)  # type: ignore[attr-defined] # made here
        for other in ("own_tokens_of_test.of_ghi", "ClientCredentialsJwtRetriever"):
            monkeypatch.setenv("RETRIEVER_OF_TEST", other)
            with pytest.raises(TokenException):
                made._oauth._fetch()
        monkeypatch.setenv("RETRIEVER_OF_TEST", "own_tokens_of_test.of_ghi")
        assert CHANGED in problem_of_a_refresh(made)
        made.close()
    own_module.fails = 5  # type: ignore[attr-defined]
    for wrong in ("own_tokens_of_test.fails", "hunter2.Tokens", "hunter2", "org.hunter2.Tokens"):
        monkeypatch.setenv("RETRIEVER_OF_TEST", wrong)
        with pytest.raises(ConfigException) as caught:
            security(options)
        said = "".join(traceback.format_exception(caught.value))
        assert f"{name} is '${{env:RETRIEVER_OF_TEST}}'" in said
        assert wrong not in said
        assert "hunter2" not in said


def test_a_client_of_an_endpoint_never_gets_the_tokens_of_a_callable(
    own_module: ModuleType, server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_module.ever = lambda: ("abc", 2e9)  # type: ignore[attr-defined] # made here
    monkeypatch.setenv("RETRIEVER_OF_TEST", "ClientCredentialsJwtRetriever")
    made = security(
        by_secret(server.url) | {f"{OPTION}.jwt.retriever.class": "${env:RETRIEVER_OF_TEST}"}
    )
    exchange(made)
    monkeypatch.setenv("RETRIEVER_OF_TEST", "own_tokens_of_test.ever")
    assert CHANGED in problem_of_a_refresh(made)
    made.close()


@pytest.mark.parametrize("is_in_file", [False, True], ids=["callable", "file"])
def test_a_client_keeps_its_extensions(
    own_module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_in_file: bool
) -> None:
    own_module.ever = lambda: ("opaque", 2e9)  # type: ignore[attr-defined] # made here
    (tmp_path / "token").write_text("opaque")
    monkeypatch.setenv("POOL_OF_TEST", "pool-1")
    jaas = f'{MODULE} required extension_identityPoolId="${{env:POOL_OF_TEST}}";'
    options = by_callable("ever")
    if is_in_file:
        options = config(f"file://{tmp_path}/token")
    made = security(options | {"sasl.jaas.config": jaas})
    assert "identityPoolId=pool-1\x01" in exchange(made).first().decode()
    monkeypatch.setenv("POOL_OF_TEST", "pool-2")
    if is_in_file:
        with pytest.raises(SaslAuthenticationException, match=CHANGED):
            made.login(NODE, 0.5)
    else:
        assert CHANGED in problem_of_a_refresh(made)
    made.close()


def test_the_callable_of_a_reference_is_not_shown_if_it_fails(
    own_module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_module.hunter2 = lambda: 5  # type: ignore[attr-defined] # made here
    monkeypatch.setenv("RETRIEVER_OF_TEST", "own_tokens_of_test.hunter2")
    said = refusal(config(None) | {f"{OPTION}.jwt.retriever.class": "${env:RETRIEVER_OF_TEST}"})
    assert said.startswith("${env:RETRIEVER_OF_TEST} returned no token: it returned an object of")


def test_a_callable_beside_the_url_of_a_file_reads_no_file(own_module: ModuleType) -> None:
    own_module.ever = lambda: ("abc", 2e9)  # type: ignore[attr-defined] # made here
    given = producer_config(
        by_callable("ever") | {f"{OPTION}.token.endpoint.url": "file:///no/file/of/test"}
    )
    assert oauth.user_of_file(given, OptionValues(given)) == ""


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (config(None), "token.endpoint.url is not set"),
        (config("https://h/"), "needs credentials"),
        (config("ftp://h/"), "not the URL of a token endpoint"),
        (config("https://u:s3cret@h/"), "contains a user name or a space"),
        (by_secret("file:///t") | {f"{OPTION}.jwt.retriever.class": "JwtBearerJwtRetriever"},
         "is the URL of a file, which JwtBearerJwtRetriever cannot use"),
        (by_secret("https://h/") | {f"{OPTION}.jwt.retriever.class": "FileJwtRetriever"},
         "is not the URL of a file"),
        (config("https://h/") | {f"{OPTION}.jwt.retriever.class": "JwtBearerJwtRetriever"},
         "the client needs an assertion"),
        (config("https://h/") | {f"{OPTION}.assertion.claim.iss": "me"},
         "the client needs an assertion"),
        (by_secret("https://h/", sasl_jaas_config=f'{MODULE} required extension_auth="x";'),
         "is not the name of an OAUTHBEARER extension"),
        (by_secret("https://h/", sasl_jaas_config=f'{MODULE} required unsecuredLogin_x="x";'),
         "unsecuredLogin"),
        (by_secret("https://h/", sasl_username="u", sasl_password="p"), "sasl.username has no"),
        (by_secret("https://h/", "s3cret\ud800"), "client.secret cannot be encoded as UTF-8"),
        (by_secret("https://h/", "s3cret\ud800", sasl_oauthbearer_header_urlencode="true"),
         "client.secret cannot be encoded as UTF-8"),
        (by_secret("https://h/", sasl_oauthbearer_scope="\ud800"),
         "scope cannot be encoded as UTF-8"),
    ],
)  # fmt: skip
def test_what_gives_no_token_is_refused_on_the_driver(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigException, match=sentence) as caught:
        security(options)
    assert "s3cret" not in "".join(map(repr, (caught.value, caught.value.__context__)))


def test_the_process_says_which_urls_may_be_asked(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYKAFKA_OAUTH_ALLOWED_URLS", f"https://other/,{server.url}")
    first_message(by_secret(server.url))
    for allowed in ("", server.url.removesuffix("token"), f"{server.url}/x"):
        monkeypatch.setenv("PYKAFKA_OAUTH_ALLOWED_URLS", allowed)
        with pytest.raises(ConfigException, match="PYKAFKA_OAUTH_ALLOWED_URLS"):
            security(by_secret(server.url))


@pytest.mark.parametrize(
    "option", ["assertion.file", "assertion.private.key.file", "assertion.template.file"]
)
def test_the_process_says_which_files_may_be_read(
    server: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    (tmp_path / "key").write_text(KEY)
    options = config(server.url) | {
        f"{OPTION}.assertion.private.key.file": str(tmp_path / "key"),
        f"{OPTION}.assertion.claim.iss": "me",
        f"{OPTION}.{option}": str(tmp_path / "key"),
    }
    monkeypatch.setenv("PYKAFKA_ALLOWED_PATHS", "/nowhere")
    with pytest.raises(ConfigException, match="PYKAFKA_ALLOWED_PATHS") as caught:
        security(options)
    assert str(tmp_path) not in str(caught.value)


def test_a_url_that_a_reference_gives_is_not_shown(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("URL_OF_TEST", server.url)
    said = refusal(by_secret("${env:URL_OF_TEST}", "wrong"))
    assert said.startswith("the token endpoint ${env:URL_OF_TEST} returned no token")


def test_credentials_that_travel_in_clear_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    _warn.cache_clear()
    security(by_secret("http://localhost:1/")).close()
    assert "unencrypted" not in caplog.text
    security(by_secret("http://idp.invalid/")).close()
    assert "travel unencrypted" in caplog.text


def test_an_endpoint_that_is_away_is_waited_for_and_told(server: TokenServer) -> None:
    server.stop()
    made = security(by_secret(server.url))
    woken = threading.Event()
    made.wake = woken.set
    while not made.problem:
        assert not made.has_login(NODE)
        woken.wait(0.1)
    assert "Connection refused" in made.problem
    server.start()
    exchange(made)
    made.close()


def test_the_deadline_of_the_options_is_kept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = by_secret(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        made = security(options | {"sasl.login.read.timeout.ms": "50"})
        woken = threading.Event()
        made.wake = woken.set
        assert woken.wait(WAIT_S)
        assert "its response was not complete within 0.05 s" in made.problem
        made.close()


def test_a_server_that_is_busy_is_asked_again(server: TokenServer) -> None:
    answers = [Answer(503), Answer(429, None, {"Retry-After": "0"}), Answer(500)]
    server.answer = lambda asked: answers.pop() if answers else server.by_secret(asked)
    first_message(by_secret(server.url))
    assert len(server.asked) == 4


def test_the_first_requests_of_many_workers_are_spread(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TokenSource, "_go_on", lambda source: None)
    monkeypatch.setattr(TokenSource, "_now", lambda source: 1000.0)
    begins: list[float] = []
    for number in range(50):
        config = producer_config(by_secret(server.url, f"secret {number}"))
        made = Security.of(config, is_one_of_many=number > 0)
        assert made is not None
        assert made._oauth is not None
        assert made._oauth.source is not None
        begins.append(made._oauth.source._renewal.fetch_at)
    alone, *many = begins
    assert alone == 1000.0
    assert all(1000 <= begin <= 1001 for begin in many)
    assert max(many) - min(many) > 0.5


def test_a_renewal_s_refusal_describes_the_token_of_the_renewal(
    server: TokenServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(signed(KEY, 600, aud="first"))
    made = security(config(file.as_uri()))
    login = made.login(NODE, 0.5)
    assert login is not None
    file.write_text(signed(KEY, 600, aud="second"))
    first = login.exchange()
    assert first is not None
    assert 'aud "first"' in str(login.user)
    second = login.exchange()
    assert second is not None
    assert first.first() != second.first()
    assert 'aud "second"' in str(login.user)
    assert made.principal == CLIENT_ID


@pytest.mark.parametrize(
    ("answer", "noted"),
    [
        (lambda login: login.step(b""), "accepted"),
        (lambda login: login.step(b'{"status":"invalid_token"}'), "refused"),
        # Brokers such as Redpanda send no challenge, but the error at once.
        (lambda login: login.refusal(error_codes.SASL_AUTHENTICATION_FAILED, "no"), "refused"),
    ],
)
def test_what_a_broker_says_of_a_token_counts_for_the_next_fetch(
    server: TokenServer,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[SaslAuthenticator], object],
    noted: str,
) -> None:
    notes: list[tuple[str, str]] = []
    for name in ("accepted", "refused"):
        monkeypatch.setattr(
            TokenRenewal, name, lambda *given, name=name: notes.append((name, given[1].value))
        )
    made = security(by_secret(server.url))
    exchange(made)
    login = SaslAuthenticator(made.login(NODE, 0.5), str(NODE), NODE.id)
    login.begin(0.0)
    answer(login)
    assert notes == [(noted, server.tokens[0])]
    made.close()


@pytest.mark.parametrize("given", ["0", None])
def test_no_limit_in_java_is_the_default_limit_here(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    limits: queue.Queue[HttpLimits] = queue.Queue()

    def note(*arguments: Any) -> NoReturn:  # noqa: ANN401 - as `post`
        limits.put(arguments[3])
        raise HttpException("it is not asked")

    monkeypatch.setattr(http, "post", note)
    options = by_secret(server.url)
    if given is not None:
        options |= {f"sasl.login.{each}.timeout.ms": given for each in ("connect", "read")}
    made = security(options)
    assert limits.get(timeout=WAIT_S) == HttpLimits(10.0, 10.0)
    made.close()


@pytest.mark.parametrize("brokers", [[], [NODE]])
def test_a_producer_that_knows_brokers_is_one_of_many(
    brokers: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bool] = []
    monkeypatch.setattr(Security, "of", lambda _, **given: said.append(given["is_one_of_many"]))
    _, thread = assemble(producer_config({"bootstrap.servers": "h:1"}), "client", brokers)
    thread._client.close()
    assert said == [bool(brokers)]


def test_a_session_that_ends_with_its_token_waits_for_another_one(server: TokenServer) -> None:
    server.life_s = 30
    made = security(by_secret(server.url))
    first = exchange(made).first()
    login = made.login(NODE, 0.5)
    assert login is not None
    assert (found := login.exchange()) is not None
    assert found.first() == first
    # The brokers end sessions sooner than the token expires: the next one uses it, too, however
    # late it begins.
    assert login.accepted is not None
    login.accepted(25.0)
    later = time.time() + 24
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_kafka_sink.network.security.time.time", lambda: later)
        assert (again := login.exchange()) is not None
    assert again.first() == first
    assert len(server.asked) == 1
    # The new session ends when the token expires.
    login.accepted(6.0)
    woken = threading.Event()
    made.wake = woken.set
    assert login.exchange() is None
    assert woken.wait(WAIT_S)
    assert (renewed := login.exchange()) is not None
    assert renewed.first() != first
    made.close()


def test_the_first_login_uses_a_token_that_is_about_to_end_and_none_that_has_ended(
    server: TokenServer,
) -> None:
    server.life_s = 30
    made = security(by_secret(server.url))
    expected = exchange(made).first()
    login, late = made.login(NODE, 0.5), made.login(NODE, 0.5)
    assert login is not None
    assert late is not None
    now = time.time()
    with pytest.MonkeyPatch.context() as patch:
        # TLS took longest.
        patch.setattr("spark_kafka_sink.network.security.time.time", lambda: now + 28)
        assert (found := login.exchange()) is not None
        assert found.first() == expected
    assert len(server.asked) == 1
    assert made._oauth is not None
    source = made._oauth.source
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "_clock", lambda: now + 31)
        assert late.exchange() is None
    made.close()
