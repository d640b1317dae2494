"""Each example of docs/how-to/secure.md writes rows, with the tests' brokers, files and secrets.

Only AWS_MSK_IAM is left out, for Kafka's own brokers do not know it.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Final

import pyarrow as pa
import pytest
from support.brokers.kdc import REALM
from support.brokers.secured_kafka import CONNECTION_STRING, PASSWORD, USER, SecuredKafka
from support.brokers.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer
from support.oracles.readers import create_topic

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.auth.oauthbearer import bearer_token, subject
from spark_kafka_sink.network import option_values
from spark_kafka_sink.network.tls import _kept_context

pytestmark = pytest.mark.kafka

ROWS = 10
DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "how-to" / "secure.md"
_BLOCK: Final = re.compile(r"(.*?)```python\n(.*?)```", re.DOTALL)
_TITLE: Final = re.compile(r"^(?:#+ |\*\*)([^*\n]+)", re.MULTILINE)
_OPTION: Final = re.compile(r'\.option\("kafka\.([^"]+)", "([^"]*)"\)')


def examples() -> dict[str, dict[str, str]]:
    """Return the options of each example, by the title above it."""
    found: dict[str, dict[str, str]] = {}
    title = ""
    for before, block in _BLOCK.findall(DOCUMENT.read_text()):
        title = [title, *_TITLE.findall(before)][-1]
        options = dict(_OPTION.findall(block))
        options.pop("bootstrap.servers", None)
        if options:
            found[f"{title}, again" if title in found else title] = options
    return found


@dataclass(frozen=True)
class Setting:
    """What an example needs: a listener of the brokers, variables, and other texts in its values.

    FOLDER, URL: the folder of the test's files, and the endpoint of its tokens.
    """

    listener: str = "SASL_SSL"
    variables: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)


_TO_REALM: Final = {"EXAMPLE.COM": REALM}
SETTINGS: Final = {
    "TLS": Setting("MUTUAL", texts={"/certs": "FOLDER"}),
    "SASL": Setting(variables={"KAFKA_PASSWORD": PASSWORD}),
    "OAuth": Setting(
        "JWT",
        {"OAUTH_SECRET": CLIENT_SECRET},
        {"https://idp.example.com/token": "URL", "orders": CLIENT_ID},
    ),
    "Kerberos": Setting(texts=_TO_REALM),
    "Delegation tokens": Setting(texts=_TO_REALM | {"/etc": "FOLDER"}),
    "Confluent Cloud": Setting(variables={"CONFLUENT_KEY": USER, "CONFLUENT_SECRET": PASSWORD}),
    "Azure Event Hubs": Setting(variables={"EVENT_HUBS_CONNECTION_STRING": CONNECTION_STRING}),
    "Azure Event Hubs, again": Setting(
        "JWT",
        {"ENTRA_SECRET": CLIENT_SECRET},
        {
            "https://login.microsoftonline.com/TENANT/oauth2/v2.0/token": "URL",
            "CLIENT_ID": CLIENT_ID,
        },
    ),
    "Amazon MSK, again": Setting(variables={"MSK_PASSWORD": PASSWORD}),
    "Google Managed Kafka": Setting("JWT"),
    "Aiven": Setting("MUTUAL", texts={"/aiven": "FOLDER"}),
    "Redpanda Cloud": Setting(variables={"REDPANDA_PASSWORD": PASSWORD}),
    "Databricks": Setting(
        variables={"KAFKA_PASSWORD": PASSWORD},
        texts={"/Volumes/CATALOG/SCHEMA/VOLUME": "FOLDER"},
    ),
    "Mutual TLS on Kubernetes": Setting("MUTUAL", texts={"/tls": "FOLDER"}),
}


def test_every_example_but_that_of_aws_is_tried() -> None:
    assert examples().keys() - SETTINGS.keys() == {"Amazon MSK"}
    assert SETTINGS.keys() <= examples().keys()
    assert examples()["Amazon MSK"]["sasl.mechanism"] == "AWS_MSK_IAM"


@pytest.fixture
def server(secured_kafka: SecuredKafka) -> Iterator[TokenServer]:
    """A token endpoint whose tokens the brokers take."""
    with TokenServer(secured_kafka.jwt_key.read_text()) as running:
        yield running


@pytest.fixture
def folder(secured_kafka: SecuredKafka, tmp_path: Path) -> Path:
    """A folder with the files that examples name, as their services name them."""
    client = secured_kafka.client
    ca = secured_kafka.ca.read_text()
    for name, text in {
        "ca.pem": ca, "client.pem": client.key + client.chain,
        "service.key": client.key, "service.cert": client.chain,
        "ca.crt": ca, "tls.key": client.key, "tls.crt": client.chain,
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture(autouse=True)
def machine(secured_kafka: SecuredKafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that trusts the brokers' CA, as it trusts those of public services."""
    monkeypatch.setenv("SSL_CERT_FILE", str(secured_kafka.ca))
    _kept_context.cache_clear()
    yield
    _kept_context.cache_clear()


def ship_keytab(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write the keytab of Kerberos's examples, and ship it as `--files` does."""
    keytab = folder / "alice.keytab"
    keytab.write_bytes(request.getfixturevalue("realm").keytab(USER).read_bytes())
    monkeypatch.setattr(option_values, "_finders", [])
    option_values.find_shipped_files(
        lambda name: str(keytab) if name == keytab.name and keytab.exists() else None
    )


def install_google(server: TokenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the module of Google's example, and the parts of google-auth that it uses.

    The tests' brokers do not know Google's form of a token, so they get the access token in it.
    """
    (code,) = (block for _, block in _BLOCK.findall(DOCUMENT.read_text()) if "google.auth" in block)

    class Credentials:
        token = ""
        expiry: datetime
        service_account_email = "alice@project.iam.gserviceaccount.com"

        def refresh(self, _request: object) -> None:
            server.token()
            self.token = server.tokens[-1]
            self.expiry = datetime.fromtimestamp(
                datetime.now(UTC).timestamp() + server.life_s, UTC
            ).replace(tzinfo=None)

    modules = {
        name: ModuleType(name)
        for name in (
            "google", "google.auth", "google.auth.transport", "google.auth.transport.requests",
            "google_tokens",
        )
    }  # fmt: skip
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    modules["google"].auth = modules["google.auth"]  # type: ignore[attr-defined] # made here
    modules["google.auth"].default = lambda scopes: (Credentials(), scopes)  # type: ignore[attr-defined]
    modules["google.auth.transport.requests"].Request = object  # type: ignore[attr-defined]
    example = modules["google_tokens"]
    exec(code, vars(example))  # the document is our own
    monkeypatch.setattr(example, "token", partial(access_token, example.token))


def access_token(google_token: Callable[[], tuple[str, float]]) -> tuple[str, float]:
    """Check that a token has the form of Google's login handler; return the access token in it."""
    value, expires_at = google_token()
    assert "=" not in value
    header, claims, token = (
        base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode()
        for part in value.split(".")
    )
    assert json.loads(header) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    found = json.loads(claims)
    assert found.keys() == {"exp", "iat", "iss", "scope", "sub"}
    assert found["exp"] == int(expires_at)
    assert found["iat"] <= time.time() < found["exp"]
    assert [found[name] for name in ("iss", "scope", "sub")] == [
        "Google",
        "kafka",
        "alice@project.iam.gserviceaccount.com",
    ]
    assert (subject(value), bearer_token(value, 0).expires_at) == (found["sub"], found["exp"])
    return token, expires_at


@pytest.mark.parametrize("title", SETTINGS)
def test_an_example_writes_rows(
    secured_kafka: SecuredKafka,
    server: TokenServer,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    title: str,
) -> None:
    setting, options = SETTINGS[title], examples()[title]
    for name, value in setting.variables.items():
        monkeypatch.setenv(name, value)
    if "sasl.kerberos.keytab" in options:
        ship_keytab(request, folder, monkeypatch)
    if title == "Google Managed Kafka":
        install_google(server, monkeypatch)
    for text, other in setting.texts.items():
        here = other.replace("FOLDER", str(folder)).replace("URL", server.url)
        assert any(text in value for value in options.values()), text
        options = {name: value.replace(text, here) for name, value in options.items()}
    topic = f"topic-{uuid.uuid4().hex[:12]}"
    create_topic(secured_kafka.bootstrap, topic, 1)
    given = {"bootstrap.servers": secured_kafka.address(setting.listener), "max.block.ms": "20000"}
    with KafkaProducer(given | options) as producer:
        producer.append(topic, pa.record_batch({"value": [str(row) for row in range(ROWS)]}))
        producer.flush()
    secured_kafka.check_rows(topic, ROWS)
