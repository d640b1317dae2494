"""`login_identity`: whose producer a task may use, and that a client does not change its user."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from support.brokers.certificates import Authority
from support.brokers.logins import unsigned_token
from support.pure.interrupts import InterruptError

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.errors import (
    AuthenticationException,
    ConfigException,
    KafkaException,
    SaslAuthenticationException,
    SslAuthenticationException,
)
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.login import SOURCES
from spark_kafka_sink.network.security import Security, login_identity
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.spark.tasks import producer_pool
from spark_kafka_sink.spark.tasks.producer_pool import ProducerPool

NODE = Node(id=1, host="h", port=1)
OAUTH = "sasl.oauthbearer"
MODULES = "org.apache.kafka.common.security"
NAME = "${env:USER_OF_A_TEST}"
BY_FILE = {"sasl.mechanism": "OAUTHBEARER", f"{OAUTH}.token.endpoint.url": "file://FOLDER/token"}
BY_ASSERTION = {
    "sasl.mechanism": "OAUTHBEARER",
    f"{OAUTH}.token.endpoint.url": "http://127.0.0.1:1/token",
    f"{OAUTH}.assertion.file": "FOLDER/token",
}
BY_TEMPLATE = {
    "sasl.mechanism": "OAUTHBEARER",
    f"{OAUTH}.token.endpoint.url": "http://127.0.0.1:1/token",
    f"{OAUTH}.jwt.retriever.class": "JwtBearerJwtRetriever",
    f"{OAUTH}.assertion.algorithm": "ES256",
    f"{OAUTH}.assertion.private.key.file": "FOLDER/key.pem",
    f"{OAUTH}.assertion.template.file": "FOLDER/template.json",
}
BY_NAME = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": NAME, "sasl.password": "p"}
IN_JAAS = {
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": (
        f'{MODULES}.scram.ScramLoginModule required username="{NAME}" password="p";'
    ),
}
BY_JAAS_REFERENCE = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": "${env:JAAS_OF_A_TEST}"}
BY_CLIENT_ID = {
    "sasl.mechanism": "OAUTHBEARER",
    f"{OAUTH}.token.endpoint.url": "http://127.0.0.1:1/token",
    "sasl.jaas.config": (
        f'{MODULES}.oauthbearer.OAuthBearerLoginModule required clientId="{NAME}" clientSecret="p";'
    ),
}
BY_ENDPOINT = {
    "sasl.mechanism": "OAUTHBEARER",
    f"{OAUTH}.token.endpoint.url": "${env:URL_OF_A_TEST}",
    f"{OAUTH}.client.credentials.client.id": "u",
    f"{OAUTH}.client.credentials.client.secret": "p",
}
BY_CALLABLE = {
    "sasl.mechanism": "OAUTHBEARER",
    f"{OAUTH}.jwt.retriever.class": "${env:CALLABLE_OF_A_TEST}",
}
BY_EXTENSION = {
    "sasl.mechanism": "OAUTHBEARER",
    f"{OAUTH}.token.endpoint.url": "http://127.0.0.1:1/token",
    "sasl.jaas.config": (
        f"{MODULES}.oauthbearer.OAuthBearerLoginModule required "
        f'clientId="u" clientSecret="p" extension_identityPoolId="{NAME}";'
    ),
}


class Users:
    """Sets the user of the file with the token, and of the environment variables."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._token = folder / "token"
        self._template = folder / "template.json"
        key = ec.generate_private_key(ec.SECP256R1())
        (folder / "key.pem").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        self._monkeypatch = monkeypatch
        self._callables = ModuleType("tokens_of_a_test")
        monkeypatch.setitem(sys.modules, "tokens_of_a_test", self._callables)

    def set(self, user: str, *, password: str = "p", is_opaque: bool = False) -> None:
        """Set the user."""
        self._token.write_text(f"token-of-{user}" if is_opaque else unsigned_token(user))
        module = f"{MODULES}.plain.PlainLoginModule"
        jaas = f'{module} required username="{user}" password="{password}";'
        self._template.write_text(json.dumps({"payload": {"sub": user}}))
        self._monkeypatch.setenv("USER_OF_A_TEST", user)
        self._monkeypatch.setenv("URL_OF_A_TEST", f"http://127.0.0.1:1/{user}/token")
        self._monkeypatch.setenv("JAAS_OF_A_TEST", jaas)
        setattr(self._callables, user, lambda: (f"opaque-{user}", None))
        self._monkeypatch.setenv("CALLABLE_OF_A_TEST", f"tokens_of_a_test.{user}")

    def remove(self) -> None:
        """Remove the file, and unset the environment variables."""
        self._token.unlink()
        for name in ("USER_OF_A_TEST", "JAAS_OF_A_TEST"):
            self._monkeypatch.delenv(name)


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Users:
    """The user, who is alice at first."""
    found = Users(tmp_path, monkeypatch)
    found.set("alice")
    return found


def config(options: dict[str, str], folder: Path) -> ProducerConfig:
    """Return the configuration of a client whose files are in a folder."""
    given = {name: value.replace("FOLDER", str(folder)) for name, value in options.items()}
    return producer_config(
        {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_SSL", **given}
    )


@pytest.mark.parametrize(
    "options",
    [
        *(BY_FILE, BY_ASSERTION, BY_TEMPLATE, BY_NAME, IN_JAAS, BY_JAAS_REFERENCE),
        *(BY_CLIENT_ID, BY_ENDPOINT, BY_CALLABLE, BY_EXTENSION),
    ],
    ids=[
        "token",
        "assertion",
        "template of assertions",
        "name",
        "JAAS name",
        "whole JAAS",
        "client id",
        "token endpoint",
        "callable",
        "extension",
    ],
)
def test_tasks_of_two_users_do_not_share_a_producer(
    options: dict[str, str], users: Users, tmp_path: Path
) -> None:
    given = config(options, tmp_path)

    class Timer:
        def cancel(self) -> None:
            pass

    pool = ProducerPool(lambda _seconds, _close: Timer())
    used = []
    for user in ("alice", "alice", "bob", "alice"):
        users.set(user)
        with pool.producer(given) as producer:
            used.append(producer)
    for each in {*used}:
        each.close(0)
    assert used[0] is used[1] is used[3]
    assert used[2] is not used[0]


@pytest.mark.parametrize(
    "options",
    [
        *(BY_TEMPLATE, BY_NAME, IN_JAAS, BY_JAAS_REFERENCE, BY_CLIENT_ID),
        *(BY_ENDPOINT, BY_CALLABLE, BY_EXTENSION),
    ],
)
def test_an_identity_does_not_show_a_name_that_a_variable_gives(
    options: dict[str, str], users: Users, tmp_path: Path
) -> None:
    users.set("the-name-of-bob")
    found = login_identity(config(options, tmp_path))
    assert found
    assert "the-name-of-bob" not in found


def test_a_new_password_or_a_new_token_of_the_same_user_is_no_new_identity(
    users: Users, tmp_path: Path
) -> None:
    for options in (BY_FILE, BY_TEMPLATE, BY_JAAS_REFERENCE):
        given = config(options, tmp_path)
        users.set("alice")
        before = login_identity(given)
        assert before
        users.set("alice", password="another")
        (tmp_path / "token").write_text(unsigned_token("alice", life_s=7_000))
        assert login_identity(given) == before


def test_the_issuer_of_a_template_is_the_user_and_an_unused_template_is_not_read(
    users: Users, tmp_path: Path
) -> None:
    del users
    template = tmp_path / "template.json"
    found = []
    for issuer in ("alice", "bob"):
        template.write_text(json.dumps({"payload": {"iss": issuer}}))
        found.append(login_identity(config(BY_TEMPLATE, tmp_path)))
    assert found[0] != found[1]
    template.unlink()
    unused = BY_CLIENT_ID | {f"{OAUTH}.assertion.template.file": str(template)}
    assert login_identity(config(unused, tmp_path)) == login_identity(
        config(BY_CLIENT_ID, tmp_path)
    )


def test_a_token_that_does_not_name_its_user_is_its_own_identity(
    users: Users, tmp_path: Path
) -> None:
    given = config(BY_FILE, tmp_path)
    users.set("alice", is_opaque=True)
    alice = login_identity(given)
    users.set("bob", is_opaque=True)
    assert "" != alice != login_identity(given)
    assert "token-of-alice" not in alice


def test_the_user_of_a_token_is_in_the_claim_that_the_option_names(tmp_path: Path) -> None:
    given = config(BY_FILE | {f"{OAUTH}.sub.claim.name": "azp"}, tmp_path)
    token = tmp_path / "token"
    token.write_text(unsigned_token("of-all", azp="alice"))
    made = Security.of(given)
    assert made is not None
    made.login(NODE, 0.5)
    assert (login_identity(given), made.principal) == ("alice", "alice")
    token.write_text(unsigned_token("of-none", azp="alice"))
    assert made.login(NODE, 0.5) is not None
    token.write_text(unsigned_token("of-all", azp="bob"))
    assert login_identity(given) == "bob"
    with pytest.raises(SaslAuthenticationException, match="is now of 'bob', and was of 'alice'"):
        made.login(NODE, 0.5)


@pytest.mark.parametrize("options", [BY_FILE, BY_NAME, BY_JAAS_REFERENCE])
def test_a_user_who_cannot_be_found_shares_no_producer(
    options: dict[str, str], users: Users, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = config(options, tmp_path)
    timers: list[Callable[[], None]] = []

    class Timer:
        def cancel(self) -> None:
            pass

    def after(_seconds: float, close: Callable[[], None]) -> Timer:
        timers.append(close)
        return Timer()

    def without_the_user(given: ProducerConfig) -> str:
        # A file that is being replaced is there again when the producer logs in.
        users.remove()
        try:
            return login_identity(given)
        finally:
            users.set(next(names))

    monkeypatch.setattr(producer_pool, "login_identity", without_the_user)
    names = iter(("alice", "bob"))
    pool = ProducerPool(after)
    for _ in range(2):
        with (
            pytest.raises(ConfigException, match=r"cannot be read|is not set"),
            pool.producer(given),
        ):
            pass
    assert not timers


def test_the_producers_of_earlier_tokens_are_closed(users: Users, tmp_path: Path) -> None:
    given = config(BY_FILE, tmp_path)
    at_end: list[Callable[[], None]] = []

    class Timer:
        def cancel(self) -> None:
            pass

    def after(_seconds: float, close: Callable[[], None]) -> Timer:
        at_end.append(close)
        return Timer()

    pool = ProducerPool(after)
    made = []
    for number in range(3):
        users.set(f"token-{number}", is_opaque=True)
        with pool.producer(given) as producer:
            made.append(producer)
    assert len({*map(id, made)}) == len(at_end) == 3
    for close in at_end:
        close()
    assert not pool._kept
    for each in made:
        with pytest.raises(KafkaException, match="closed"):
            each.flush()


@pytest.fixture(scope="module")
def authority() -> Authority:
    """The authority of the certificates."""
    return Authority()


# The client's certificate, which is in these files.
BY_CERTIFICATE = {"ssl.keystore.location": "FOLDER/client.pem"}
BY_CHAIN = {
    "ssl.keystore.key": "${directory:FOLDER:key.pem}",
    "ssl.keystore.certificate.chain": "${directory:FOLDER:chain.pem}",
}


def written(folder: Path, authority: Authority, user: str) -> None:
    """Write a new key and a new certificate of a user."""
    leaf = authority.leaf(user)
    (folder / "client.pem").write_text(leaf.key + leaf.chain)
    (folder / "key.pem").write_text(leaf.key)
    (folder / "chain.pem").write_text(leaf.chain)


@pytest.mark.parametrize("options", [BY_CERTIFICATE, BY_CHAIN], ids=["keystore", "chain"])
def test_a_client_s_certificate_may_be_renewed_but_not_become_another_user_s(
    options: dict[str, str], authority: Authority, tmp_path: Path
) -> None:
    given = config({"security.protocol": "SSL", **options}, tmp_path)
    written(tmp_path, authority, "alice")
    identity = login_identity(given)
    made = Security.of(given)
    assert made is not None
    written(tmp_path, authority, "alice")
    assert login_identity(given) == identity != ""
    assert made.layer(NODE) is not None
    assert Security.of(given, identity=identity) is not None
    written(tmp_path, authority, "bob")
    # The pool of producers has it in its keys.
    assert login_identity(given) not in ("", identity)
    words = r"ssl\.keystore\.\w+ has changed since this client was created: a client cannot change"
    with pytest.raises(SslAuthenticationException, match=words):
        made.layer(NODE)
    with pytest.raises(SslAuthenticationException, match="cannot change its user"):
        Security.of(given, identity=identity)
    assert Security.of(given) is not None
    written(tmp_path, authority, "alice")
    assert made.layer(NODE) is not None


@pytest.mark.parametrize(
    "options",
    [BY_FILE, BY_NAME, {"security.protocol": "SSL", **BY_CERTIFICATE}],
    ids=["token", "name", "certificate"],
)
def test_a_client_does_not_become_another_user_after_an_interrupt(
    options: dict[str, str],
    users: Users,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_selector: Selector, _timeout_s: float) -> list[object]:
        raise InterruptError

    written(tmp_path, authority, "alice")
    with KafkaAdmin(config(options | {"max.block.ms": "3000"}, tmp_path)) as admin:
        with monkeypatch.context() as patch:
            patch.setattr(Selector, "poll", interrupt)
            with pytest.raises(InterruptError):
                admin.topics(["t"])
        users.set("bob")
        written(tmp_path, authority, "bob")
        with pytest.raises(AuthenticationException, match="a client cannot change its user"):
            admin.topics(["t"])


def test_with_sasl_a_certificate_is_not_the_user(authority: Authority, tmp_path: Path) -> None:
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
    given = config(login | BY_CERTIFICATE, tmp_path)
    written(tmp_path, authority, "alice")
    assert login_identity(given) == ""
    made = Security.of(given)
    assert made is not None
    written(tmp_path, authority, "bob")
    assert made.layer(NODE) is not None


def test_options_that_determine_the_user_need_no_identity(users: Users, tmp_path: Path) -> None:
    del users
    options = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": NAME}
    assert login_identity(config(options, tmp_path)) == ""
    assert login_identity(producer_config({"bootstrap.servers": "h:1"})) == ""
    assert login_identity(config({"security.protocol": "SSL"}, tmp_path)) == ""


def test_an_identity_starts_no_fetch_of_tokens(users: Users, tmp_path: Path) -> None:
    # A source that is made by the first client of many waits for a moment.
    del users
    SOURCES.forget()
    assert login_identity(config(BY_ASSERTION, tmp_path)) == "alice"
    assert not SOURCES._sources


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            BY_FILE,
            f"the token from {OAUTH}.token.endpoint.url is now of 'bob', and was of 'alice' before",
        ),
        (BY_NAME, f"the user name is now '{NAME}', but was another at the first login"),
        (IN_JAAS, f"the user name is now '{NAME}', but was another at the first login"),
        (
            BY_JAAS_REFERENCE,
            "the user name is now '${env:JAAS_OF_A_TEST}', but was another at the first login",
        ),
    ],
    ids=["token", "name", "JAAS name", "whole JAAS"],
)
def test_a_client_does_not_become_another_user(
    options: dict[str, str], sentence: str, users: Users, tmp_path: Path
) -> None:
    made = Security.of(config(options, tmp_path))
    assert made is not None
    login = made.login(NODE, 0.5)
    assert login is not None
    assert login.exchange() is not None
    users.set("bob")
    expected = f"{sentence}: a client cannot change its user, so create a new client"
    # A connection that re-authenticates, and a new connection.
    with pytest.raises(SaslAuthenticationException) as caught:
        login.exchange()
    assert str(caught.value) == expected
    with pytest.raises(SaslAuthenticationException) as caught:
        made.login(NODE, 0.5)
    assert str(caught.value) == expected
    users.set("alice")
    assert made.login(NODE, 0.5) is not None


def test_another_token_of_its_own_user_is_no_other_user(users: Users, tmp_path: Path) -> None:
    module = f"{MODULES}.scram.ScramLoginModule required"
    jaas = f'{module} username="{NAME}" password="p" tokenauth="true";'
    made = Security.of(
        config({"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas}, tmp_path)
    )
    assert made is not None
    assert made.login(NODE, 0.5) is not None
    users.set("another-token-id")
    assert made.login(NODE, 0.5) is not None


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "plain.PlainLoginModule"),
        ("PLAIN", "scram.ScramLoginModule"),
        ("SCRAM-SHA-256", "plain.PlainLoginModule"),
    ],
)
def test_only_scram_has_logins_by_a_token(mechanism: str, module: str, tmp_path: Path) -> None:
    jaas = f'{MODULES}.{module} required username="a" password="p" tokenauth="true";'
    made = Security.of(config({"sasl.mechanism": mechanism, "sasl.jaas.config": jaas}, tmp_path))
    assert made is not None
    login = made.login(NODE, 0.5)
    assert login is not None
    assert not login.is_token
    exchange = login.exchange()
    assert exchange is not None
    assert b"tokenauth" not in exchange.first()


def test_a_client_of_an_identity_logs_in_as_that_user_only(users: Users, tmp_path: Path) -> None:
    for options in (BY_FILE, BY_NAME):
        users.set("alice")
        given = config(options, tmp_path)
        identity = login_identity(given)
        made = Security.of(given, identity=identity)
        assert made is not None
        users.set("bob")
        with pytest.raises(SaslAuthenticationException, match="cannot change its user"):
            Security.of(given, identity=identity)
        # Also if the user changes before the first login.
        with pytest.raises(SaslAuthenticationException, match="cannot change its user"):
            made.login(NODE, 0.5)
        users.set("alice")
        assert made.login(NODE, 0.5) is not None
