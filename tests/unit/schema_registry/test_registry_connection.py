"""How the driver connects to a schema registry: URLs, credentials, variables and TLS."""

# ruff: noqa: E501 - messages stand in one piece

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.brokers.certificates import Authority
from support.brokers.registry_server import RegistryServer, Reply, basic, error, registry_server
from support.brokers.tls_peers import server_context
from support.brokers.token_server import (
    CLIENT_ID,
    CLIENT_SECRET,
    Answer,
    TokenServer,
    new_key,
)

from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import ConfigException, RestClientException
from spark_kafka_sink.logs import _warn
from spark_kafka_sink.schema_registry.registry_connection import connect
from spark_kafka_sink.schema_registry.schema_registry_client import SchemaRegistryClient
from spark_kafka_sink.schema_registry.settings import registry_settings

# A host that is never asked.
REMOTE = "http://registry.invalid:8081"


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A registry."""
    with registry_server() as found:
        yield found


def client_of(
    url: str,
    kafka: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
    **options: str,
) -> SchemaRegistryClient:
    """Return a client; the names of its options have _ for a dot."""
    every = {**(more or {}), **options}
    given = {name.replace("_", "."): value for name, value in every.items()}
    settings = registry_settings({"schema.registry.url": url, **given})
    assert settings is not None
    return connect(settings, producer_config({"bootstrap.servers": "b:1", **(kafka or {})}))


def authorization(server: RegistryServer, client: SchemaRegistryClient) -> str | None:
    """Return the header Authorization that a client sends."""
    client.latest("t")
    return server.calls[-1].headers.get("authorization")


def refusal(url: str = "http://localhost:8081", **options: str) -> str:
    """Return why a client cannot be made."""
    with pytest.raises(ConfigException) as caught:
        client_of(url, more=options)
    return str(caught.value)


def test_without_credentials_none_are_sent(server: RegistryServer) -> None:
    assert authorization(server, client_of(server.url)) is None


def test_requests_go_through_the_proxy_of_the_environment(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    assert client_of(REMOTE).latest("t") is None
    assert [call.headers["host"] for call in server.calls] == [REMOTE.removeprefix("http://")]


def test_users_and_passwords_are_sent(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_url = server.url.replace("//", "//us%40er:s3%3Acret@")
    assert authorization(server, client_of(of_url)) == basic("us@er", "s3:cret")
    chosen = client_of(of_url, basic_auth_credentials_source="URL")
    assert authorization(server, chosen) == basic("us@er", "s3:cret")
    both = client_of(of_url, basic_auth_user_info="ü:p:w")
    assert authorization(server, both) == basic("ü", "p:w")
    monkeypatch.setenv("REGISTRY", "of:env")
    of_env = client_of(
        server.url,
        basic_auth_user_info="${env:REGISTRY}",
        basic_auth_credentials_source="USER_INFO",
    )
    assert authorization(server, of_env) == basic("of", "env")
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u" password="p";'
    )
    kafka = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    inherited = client_of(server.url, kafka, basic_auth_credentials_source="SASL_INHERIT")
    assert authorization(server, inherited) == basic("u", "p")
    kafka = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u2",
        "sasl.password": "p2",
    }
    inherited = client_of(server.url, kafka, basic_auth_credentials_source="sasl_inherit")
    assert authorization(server, inherited) == basic("u2", "p2")


def test_a_password_may_contain_commas(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_url = server.url.replace("//", "//user:s3,cret,@")
    for urls in (of_url, f"{of_url} , {REMOTE},", f",{of_url},HTTP://registry.invalid"):
        assert authorization(server, client_of(urls)) == basic("user", "s3,cret,")
    monkeypatch.setenv("FIRST", of_url)
    monkeypatch.setenv("HOST", server.url.rpartition("/")[2])
    for urls in ("${env:FIRST}, ${env:SECOND}", "http://user:s3,cret,@${env:HOST}"):
        monkeypatch.setenv("SECOND", REMOTE)
        assert authorization(server, client_of(urls)) == basic("user", "s3,cret,")


def test_a_variable_may_have_several_urls(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_url = server.url.replace("//", "//user:s3,cret@")
    with registry_server() as away:
        pass
    for urls in (f"{of_url},", f"{away.url} , {of_url}\n"):
        monkeypatch.setenv("URLS", urls)
        for given in ("${env:URLS}", f"{away.url},${{env:URLS}}"):
            assert authorization(server, client_of(given)) == basic("user", "s3,cret")


def test_no_message_shows_a_url_of_a_variable_that_has_several(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.fault = lambda call: Reply(503, {}, {"Retry-After": "0"})
    monkeypatch.setenv("URLS", f"{server.url},{server.url}/second")
    with pytest.raises(RestClientException) as caught:
        client_of("${env:URLS}").latest("t")
    assert "${env:URLS}: it answered 503" in str(caught.value)
    assert server.url not in str(caught.value)
    for urls in ("https://u:s3cret@h,x", "https://h,https://u:s3cret", ",", ""):
        monkeypatch.setenv("URLS", urls)
        for given in ("${env:URLS}", "https://h, ${env:URLS}"):
            said = refusal(given)
            assert "option schema.registry.url is '${env:URLS}': expected https://host:po" in said


def test_the_urls_of_a_variable_are_checked_for_encryption(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("URLS", f"https://h,{REMOTE}")
    monkeypatch.setenv("SECRET", "u:s3cret")
    said = refusal("${env:URLS}", basic_auth_user_info="${env:SECRET}")
    assert "option basic.auth.user.info cannot be used with ${env:URLS}: the value would" in said
    _warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        client_of("${env:URLS}", basic_auth_user_info="u:s3cret")
    assert "schema.registry.url is http: the credentials travel unencrypted" in caplog.text


def test_errors_show_variables_of_a_url_but_no_password(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST", server.url.rpartition("/")[2])
    server.faults = [Reply(503, {}, {"Retry-After": "0"})] * 4
    with pytest.raises(RestClientException) as caught:
        client_of("http://user:s3cret@${env:HOST}").latest("t")
    assert "http://${env:HOST}: it answered 503" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_wrong_credentials_are_an_error_without_them(server: RegistryServer) -> None:
    server.authorization = basic("user", "right")
    for client in (
        client_of(server.url.replace("//", "//user:s3cret@")),
        client_of(server.url, basic_auth_user_info="user:s3cret"),
        client_of(server.url, bearer_auth_token="s3cret"),
    ):
        with pytest.raises(RestClientException, match="401") as caught:
            client.latest("t")
        assert "s3cret" not in str(caught.value)
        assert caught.value.error_code == 401
    assert len(server.calls) == 3


@pytest.mark.parametrize("user", ["t0ken-x", "t0ken-x:", "t0ken%2Dx"])
def test_a_user_without_a_password_is_not_shown_if_the_registry_sends_it_back(
    server: RegistryServer, user: str
) -> None:
    server.fault = lambda call: error(401, 401, "no token t0ken-x")
    with pytest.raises(RestClientException, match=r"\(no token \*\*\*\)"):
        client_of(server.url.replace("//", f"//{user}@")).latest("t")


def test_a_token_is_sent_with_the_headers_of_confluent_cloud(server: RegistryServer) -> None:
    more = {"bearer_auth_logical_cluster": "lsrc-1", "bearer_auth_identity_pool_id": "pool-1"}
    client = client_of(server.url, bearer_auth_token="t0k", more=more)
    assert authorization(server, client) == "Bearer t0k"
    headers = server.calls[-1].headers
    assert headers["target-sr-cluster"] == "lsrc-1"
    assert headers["confluent-identity-pool-id"] == "pool-1"


def test_a_token_is_fetched_once_for_all_calls(server: RegistryServer) -> None:
    with TokenServer(new_key()) as issuer:
        options = {
            "bearer_auth_issuer_endpoint_url": issuer.url,
            "bearer_auth_client_id": CLIENT_ID,
            "bearer_auth_client_secret": CLIENT_SECRET,
            "bearer_auth_scope": "schemas",
        }
        client = client_of(server.url, bearer_auth_credentials_source="OAUTHBEARER", more=options)
        assert issuer.asked == []
        assert authorization(server, client) == authorization(server, client)
        assert server.calls[-1].headers["authorization"] == f"Bearer {issuer.tokens[0]}"
        (asked,) = issuer.asked
        assert asked.form == {"grant_type": "client_credentials", "scope": "schemas"}
        options["bearer_auth_client_secret"] = "s3cret"
        wrong = client_of(server.url, bearer_auth_credentials_source="OAUTHBEARER", more=options)
        with pytest.raises(RestClientException, match=r"no OAuth token: it answered 401") as caught:
            wrong.latest("t")
        assert "s3cret" not in str(caught.value)
        issuer.answer = lambda asked: Answer(401, {"error": "s3cret is wrong"})
        with pytest.raises(RestClientException, match=r"answered 401 \(\*\*\* is wrong\)"):
            wrong.latest("t")
        assert len(server.calls) == 2


def test_the_tls_options_of_the_registry_are_for_the_endpoint_of_its_tokens_too(
    server: RegistryServer, tmp_path: Path
) -> None:
    authority = Authority()
    leaf = authority.leaf("localhost")
    (tmp_path / "server.pem").write_text(leaf.key + leaf.chain)
    (tmp_path / "ca.pem").write_text(authority.root.certificate)
    with TokenServer(new_key(), tls=tmp_path / "server.pem") as issuer:
        options = {
            "bearer_auth_issuer_endpoint_url": issuer.url,
            "bearer_auth_client_id": CLIENT_ID,
            "bearer_auth_client_secret": CLIENT_SECRET,
            "bearer_auth_credentials_source": "OAUTHBEARER",
        }
        with pytest.raises(RestClientException) as caught:
            client_of(server.url, more=options).latest("t")
        hint = "set schema.registry.ssl.truststore.location or schema.registry.ssl.truststore.cert"
        assert hint in str(caught.value)
        options["schema.registry.ssl.truststore.location"] = str(tmp_path / "ca.pem")
        client = client_of(server.url, more=options)
        assert authorization(server, client) == f"Bearer {issuer.tokens[-1]}"


def test_tls_options_need_one_url_with_https(server: RegistryServer, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(Authority().root.certificate)
    truststore = {"schema.registry.ssl.truststore.location": str(tmp_path / "ca.pem")}
    client_of(f"{server.url},https://registry.invalid", more=truststore)
    with pytest.raises(ConfigException, match="has no effect: use https"):
        client_of(server.url, more=truststore)
    # An empty value is that of an unset variable.
    client_of(server.url, more=dict.fromkeys(truststore, ""))


@pytest.mark.parametrize("is_registry", [True, False], ids=["registry", "endpoint"])
def test_an_ssl_cert_file_without_certificates_names_the_options_of_the_registry(
    *, is_registry: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    options = {
        "bearer_auth_issuer_endpoint_url": "https://issuer.invalid/token",
        "bearer_auth_client_id": CLIENT_ID,
        "bearer_auth_client_secret": CLIENT_SECRET,
        "bearer_auth_credentials_source": "OAUTHBEARER",
    }
    said = refusal("https://h") if is_registry else refusal("http://localhost", **options)
    assert " set schema.registry.ssl.truststore.location or schema.registry.ssl.trust" in said


def test_a_token_comes_from_where_tokens_for_the_brokers_come_from(
    server: RegistryServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    with TokenServer(new_key()) as issuer:
        text = issuer.token().body
        assert isinstance(text, dict)
        token.write_text(text["access_token"])
        kafka = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"file://{token}",
        }
        source = {"bearer_auth_credentials_source": "SASL_OAUTHBEARER_INHERIT"}
        client = client_of(server.url, kafka, source)
        assert authorization(server, client) == f"Bearer {token.read_text()}"
        kafka |= {
            "sasl.oauthbearer.token.endpoint.url": issuer.url,
            "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
        }
        client = client_of(server.url, kafka, source)
        assert authorization(server, client) == f"Bearer {issuer.tokens[-1]}"
        issuer.answer = lambda asked: Answer(400, {"error": "invalid_scope"})
        with pytest.raises(RestClientException, match=r"it answered 400 \(invalid_scope\)"):
            client_of(server.url, kafka, source).latest("t")


WRONG = {
    "no URL": ({"url": "localhost:8081"}, "option schema.registry.url is 'localhost:8081': expected https://host:port"),
    "a user in no URL": ({"url": "ftp://u:s3cret@h"}, "option schema.registry.url is 'ftp://…': expected"),
    "a user and no scheme": ({"url": "u:s3cret@h"}, "option schema.registry.url is '…': expected https://host:port"),
    "a slash in a password": ({"url": "https://u:12/s3cret@h"}, "option schema.registry.url is 'https://…', with an @ after the host: in the user or the password, write %2F for /, %3F for ? and %23 for #; in the rest"),
    "a question mark in a password": ({"url": "https://u:12?s3cret@h"}, "'https://…', with an @ after the host"),
    "a fragment in a password": ({"url": "https://u:12#s3cret@h"}, "'https://…', with an @ after the host"),
    "a slash and no port": ({"url": "https://u:s3cret/x@h"}, "option schema.registry.url is 'https://…': expected"),
    "a variable and a slash": ({"url": "https://u:${env:PYKAFKA_12}/s3cret@h"}, "'https://…', with an @ after the host"),
    "a variable and no URL": ({"url": "https://u:s3cret@${env:PYKAFKA_12}:x"}, "'https://…': expected"),
    "a query in no URL": ({"url": "https://h:x?key=s3cret"}, "option schema.registry.url is 'https://…': expected"),
    "a query and no port": ({"url": "ftp://h?key=s3cret"}, "option schema.registry.url is 'ftp://h': expected"),
    "a query": ({"url": "https://u:s3cret@h:1/a?key=s3cret"}, "option schema.registry.url has a ? or a # after 'https://h:1/a': expected https://host:port, because"),
    "a fragment": ({"url": "https://h#s3cret"}, "option schema.registry.url has a ? or a # after 'https://h'"),
    "an empty query": ({"url": "https://${env:PYKAFKA_12}?"}, "option schema.registry.url has a ? or a # after 'https://${env:PYKAFKA_12}'"),
    "no host": ({"url": "http://user:s3cret"}, "option schema.registry.url is 'http://…': expected https://host:port"),
    "no host in a path": ({"url": "https://user:12s3cret/x"}, "option schema.registry.url is 'https://…': expected"),
    "no host with colons": ({"url": "https://user:12:s3cret"}, "option schema.registry.url is 'https://…': expected"),
    "no host and no scheme": ({"url": "user:s3cret"}, "option schema.registry.url is '…': expected"),
    "no scheme": ({"url": "localhost:8081"}, "option schema.registry.url is 'localhost:8081': expected"),
    "no scheme of HTTP": ({"url": "mock://[::1]:8081/x"}, "option schema.registry.url is 'mock://[::1]:8081/x': expected"),
    "another list": ({"url": "http://h,h2:8081"}, "option schema.registry.url is 'http://h,h2:8081': expected https://host:port, several separated by commas"),
    "no colon": ({"basic_auth_user_info": "s3cret"}, "option basic.auth.user.info has no colon: expected user:password"),
    "surrogate": ({"basic_auth_user_info": "s3cret:\udcff"}, "basic.auth.user.info has an invalid character"),
    "no info": ({"basic_auth_credentials_source": "USER_INFO"}, "set basic.auth.user.info to user:password"),
    "no user in the URL": ({"basic_auth_credentials_source": "URL"}, "basic.auth.credentials.source is URL, but schema.registry.url has no user: set schema.registry.url to https://user:password@host:port, or remove basic.auth.credentials.source"),
    "empty user in the URL": ({"basic_auth_credentials_source": "URL", "url": "https://@h"}, "basic.auth.credentials.source is URL, but schema.registry.url has no user"),
    "nothing to inherit": ({"basic_auth_credentials_source": "SASL_INHERIT"}, "the options of the brokers have no user and password"),
    "source": ({"basic_auth_credentials_source": "FILE"}, "option basic.auth.credentials.source is 'FILE': expected URL, USER_INFO, SASL_INHERIT"),
    "another variable": ({"basic_auth_credentials_source": "${env:PYKAFKA_SECRET}"}, "option basic.auth.credentials.source is '${env:PYKAFKA_SECRET}': expected URL"),
    "another variable as a token": ({"bearer_auth_credentials_source": "${env:PYKAFKA_SECRET}"}, "option bearer.auth.credentials.source is '${env:PYKAFKA_SECRET}': expected STATIC_TOKEN"),
    "ignored info": ({"basic_auth_credentials_source": "URL", "basic_auth_user_info": "u:s3cret"}, "basic.auth.credentials.source is URL, not USER_INFO"),
    "both": ({"basic_auth_user_info": "u:s3cret", "bearer_auth_token": "s3cret"}, "bearer.auth.* are set: expected one of them"),
    "both with a user": ({"url": "http://u:s3cret@localhost", "bearer_auth_token": "s3cret"}, "bearer.auth.* are set: expected one of them"),
    "no token": ({"bearer_auth_credentials_source": "STATIC_TOKEN"}, "set bearer.auth.token"),
    "ignored token": ({"bearer_auth_credentials_source": "OAUTHBEARER", "bearer_auth_token": "s3cret"}, "option bearer.auth.token has no effect"),
    "no endpoint": ({"bearer_auth_credentials_source": "OAUTHBEARER"}, "set bearer.auth.issuer.endpoint.url"),
    "a client of no endpoint": ({"bearer_auth_client_id": "c", "bearer_auth_client_secret": "s3cret"}, "option bearer.auth.client.id has no effect: set bearer.auth.issuer.endpoint.url, or remove bearer.auth.client.id"),
    "a secret of no endpoint": ({"bearer_auth_client_secret": "s3cret"}, "option bearer.auth.client.secret has no effect: set bearer.auth.issuer.endpoint.url"),
    "no endpoint's URL": ({"bearer_auth_issuer_endpoint_url": "x", "bearer_auth_client_id": "c", "bearer_auth_client_secret": "s3cret"}, "option bearer.auth.issuer.endpoint.url is not a URL"),
    "line end": ({"bearer_auth_token": "s3cret\r\nX: y"}, "option bearer.auth.token is sent as an HTTP header: expected printable ASCII"),
    "class": ({"bearer_auth_credentials_source": "CUSTOM"}, "expected STATIC_TOKEN, OAUTHBEARER, SASL_OAUTHBEARER_INHERIT"),
    "no variable": ({"basic_auth_user_info": "${env:PYKAFKA_NOT_SET}"}, "basic.auth.user.info has ${env:PYKAFKA_NOT_SET}: the variable"),
    "truststore": ({"url": "https://h", "schema.registry.ssl.truststore.location": "/not/there"}, "the file /not/there of schema.registry.ssl.truststore.location cannot be read"),
    "truststore without TLS": ({"url": "http://h,http://h2", "schema.registry.ssl.truststore.location": "/not/there"}, "option schema.registry.ssl.truststore.location has no effect: use https in schema.registry.url, or remove the option"),
    "keystore without TLS": ({"schema.registry.ssl.keystore.location": "/not/there", "bearer.auth.token": "s3cret", "bearer.auth.issuer.endpoint.url": "https://h"}, "option schema.registry.ssl.keystore.location has no effect: use https in schema.registry.url, or remove the option"),
    "java": ({"url": "https://h", "schema.registry.ssl.protocol": "SSLv3"}, "schema.registry.ssl.protocol is 'SSLv3'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_without_a_call(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, words = WRONG[name]
    monkeypatch.setenv("PYKAFKA_12", "12")
    monkeypatch.setenv("PYKAFKA_SECRET", "u:s3cret")
    said = refusal(**options)
    assert words in said
    assert "s3cret" not in said


def test_variables_are_not_sent_unencrypted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SECRET", "u:s3cret")
    said = refusal(REMOTE, basic_auth_user_info="${env:SECRET}")
    assert (
        "a reference (${…}) in option basic.auth.user.info cannot be used with "
        "http://registry.invalid:8081: the value would be sent there unencrypted" in said
    )
    _warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        client_of(REMOTE, basic_auth_user_info="u:s3cret")
    assert "schema.registry.url is http: the credentials travel unencrypted" in caplog.text
    assert "s3cret" not in caplog.text


JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required username=u password="


@pytest.mark.parametrize(
    ("options", "kafka", "where"),
    [
        ({"bearer_auth_logical_cluster": "${env:SECRET}"}, {}, "option bearer.auth.logical.cluster"),
        ({"bearer_auth_identity_pool_id": "${env:SECRET}"}, {}, "option bearer.auth.identity.pool.id"),
        ({"url": f"{REMOTE}/${{env:SECRET}}"}, {}, "a part of option schema.registry.url"),
        ({"basic_auth_credentials_source": "SASL_INHERIT"}, {"sasl.username": "u", "sasl.password": "${env:SECRET}"}, "the credentials for the brokers"),
        ({"basic_auth_credentials_source": "sasl_inherit"}, {"sasl.username": "${env:SECRET}", "sasl.password": "p"}, "the credentials for the brokers"),
        ({"basic_auth_credentials_source": "SASL_INHERIT"}, {"sasl.jaas.config": f'{JAAS}"${{env:SECRET}}";'}, "the credentials for the brokers"),
        ({"basic_auth_credentials_source": "SASL_INHERIT"}, {"sasl.jaas.config": "${env:JAAS}"}, "the credentials for the brokers"),
    ],
)  # fmt: skip
def test_no_variable_is_sent_unencrypted_by_any_way(
    options: dict[str, str], kafka: dict[str, str], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    monkeypatch.setenv("JAAS", f"{JAAS}s3cret;")
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"} if kafka else {}
    given = {"url": REMOTE, **options}
    with pytest.raises(ConfigException) as caught:
        client_of(kafka=login | kafka, more=given, url=given.pop("url"))
    said = str(caught.value)
    assert f"a reference (${{…}}) in {where} cannot be used with {REMOTE}" in said
    assert "s3cret" not in said
    # To this machine, and encrypted, it may be sent.
    for url in ("http://localhost:1", "https://registry.invalid"):
        client_of(kafka=login | kafka, more=given, url=url)


@pytest.mark.parametrize("name", ["client_id", "client_secret", "scope"])
def test_the_variables_of_a_client_go_to_the_token_endpoint_and_not_unencrypted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    client = {"client_id": "c", "client_secret": "s", "scope": "x", name: "${env:SECRET}"}
    options = {f"bearer_auth_{option}": value for option, value in client.items()}
    said = refusal("https://h", bearer_auth_issuer_endpoint_url="http://idp.invalid/x", **options)
    option = f"bearer.auth.{name.replace('_', '.')}"
    assert said.startswith(f"a reference (${{…}}) in option {option} cannot be used with bearer")
    assert "s3cret" not in said
    for url in ("https://idp.invalid/x", "http://localhost:1/x"):
        made = client_of(REMOTE, more={**options, "bearer_auth_issuer_endpoint_url": url})
        assert isinstance(made, SchemaRegistryClient)


def test_urls_may_be_variables_that_no_message_resolves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URL", "http://u:s3cret@nobody.invalid:8081")
    monkeypatch.setenv("WRONG", "s3cret")
    assert "option schema.registry.url is '${env:WRONG}': expected" in refusal("${env:WRONG}")
    client_of("${env:URL}")
    assert "a reference" in refusal("http://${env:WRONG}@nobody.invalid")


def test_a_registry_whose_host_name_is_not_checked_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    option = "schema.registry.ssl.endpoint.identification.algorithm"
    _warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        client_of("https://registry.invalid", more={option: ""})
    assert f"{option} is empty: anyone with a certificate" in caplog.text


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "PLAIN"])
def test_of_the_brokers_oauth_options_the_registry_warns_only_if_the_brokers_do_not_use_them(
    mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.oauthbearer.token.endpoint.url": "http://issuer.invalid/token",
        "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
    }
    _warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        client_of(
            "https://registry.invalid",
            kafka,
            bearer_auth_credentials_source="SASL_OAUTHBEARER_INHERIT",
        )
    endpoint = "kafka.sasl.oauthbearer.token.endpoint.url is http: the client's credentials"
    expected = [] if mechanism == "OAUTHBEARER" else [True]
    assert [each.startswith(endpoint) for each in caplog.messages] == expected


def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    authority = Authority()
    context = server_context(
        tmp_path, authority.leaf("localhost"), clients=authority.root.certificate
    )
    leaf = authority.leaf("client")
    (tmp_path / "ca.pem").write_text(authority.root.certificate)
    (tmp_path / "client.pem").write_text(leaf.key + leaf.chain)
    trust = {"schema.registry.ssl.truststore.location": str(tmp_path / "ca.pem")}
    own = {"schema.registry.ssl.keystore.location": str(tmp_path / "client.pem")}
    with registry_server(context) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        assert client_of(url, more=trust | own).latest("t") is None
        with pytest.raises(RestClientException, match="does not accept its certificate") as caught:
            client_of(url, more=own).latest("t")
        assert "set schema.registry.ssl.truststore.location" in str(caught.value)
