"""PKCS12 stores are opened once for each content and password, not for each connection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12
from support.brokers import keys
from support.brokers.certificates import Authority, Certificate
from support.programs.forked import in_child

from spark_kafka_sink.config import producer_config
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.option_values import OptionValues
from spark_kafka_sink.network.security import Security, login_identity
from spark_kafka_sink.network.ssl_options import _converted
from spark_kafka_sink.network.tls import _kept_context

NODE = Node(id=1, host="h", port=1)
PASSWORD = "secret"


class Stores:
    """A keystore and a truststore in a folder, and how often stores were opened."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._authority = Authority()
        self.opened = 0
        real = pkcs12.load_pkcs12

        def load(content: bytes, password: bytes | None) -> object:
            self.opened += 1
            return real(content, password)

        monkeypatch.setattr(pkcs12, "load_pkcs12", load)
        self.write()
        self.config = producer_config(
            {
                "bootstrap.servers": "h:1",
                "security.protocol": "SSL",
                "ssl.keystore.location": str(folder / "key.p12"),
                "ssl.keystore.password": f"${{directory:{folder}:password}}",
                "ssl.truststore.location": str(folder / "trust.p12"),
                "ssl.truststore.password": PASSWORD,
            }
        )

    def write(self, password: str = PASSWORD) -> Certificate:
        """Write new stores of the same user; return the certificate. password: of the key."""
        leaf = self._authority.leaf("client")
        trusted = keys.pkcs12_store(self._authority.root.certificate, PASSWORD)
        (self._folder / "trust.p12").write_bytes(trusted)
        (self._folder / "key.p12").write_bytes(
            keys.pkcs12_store(leaf.chain, password, key=leaf.key)
        )
        self.write_password(password)
        return leaf

    def write_password(self, password: str) -> None:
        """Write the password of the keystore."""
        (self._folder / "password").write_text(password)

    def security(self) -> Security:
        """Return the security of a new client."""
        made = Security.of(self.config)
        assert made is not None
        return made


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    """Return stores that no client has opened yet."""
    return Stores(tmp_path, monkeypatch)


def test_a_store_is_opened_once_for_many_connections_and_clients(stores: Stores) -> None:
    made = stores.security()
    for _ in range(10):
        assert made.layer(NODE) is not None
    for _ in range(3):
        assert login_identity(stores.config) != ""
        assert stores.security().layer(NODE) is not None
    assert stores.opened == 2, "the keystore and the truststore"


def test_a_store_that_is_replaced_counts_from_the_next_connection_on(stores: Stores) -> None:
    made = stores.security()
    before = made._settings()
    leaf = stores.write()
    assert made.layer(NODE) is not None
    assert stores.opened == 4
    after = made._settings()
    assert before.key != after.key
    assert before.truststore == after.truststore
    assert leaf.certificate.strip() in (after.key or "")


def test_a_store_is_not_used_with_another_password_than_its_own(stores: Stores) -> None:
    made = stores.security()
    for wrong in ("wrong", ""):
        stores.write_password(wrong)
        with pytest.raises(ConfigException, match=r"ssl\.keystore\.password does not open it"):
            made.layer(NODE)
    stores.write_password(PASSWORD)
    assert made.layer(NODE) is not None
    stores.write("another")
    assert made.layer(NODE) is not None


def test_a_keystore_is_not_taken_for_a_truststore(stores: Stores) -> None:
    config = producer_config(
        {
            "bootstrap.servers": "h:1",
            "security.protocol": "SSL",
            **dict.fromkeys(
                ("ssl.keystore.location", "ssl.truststore.location"),
                str(stores.config.ssl_keystore_location),
            ),
            **dict.fromkeys(("ssl.keystore.password", "ssl.truststore.password"), PASSWORD),
        }
    )
    made = Security.of(config)
    assert made is not None
    settings = made._settings()
    assert "PRIVATE KEY" in (settings.key or "")
    assert "PRIVATE KEY" not in (settings.truststore or "")


def test_a_store_and_its_password_may_be_replaced_between_two_reads(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stores.security()
    read: Callable[[OptionValues, str, str], bytes] = OptionValues.content
    written = list[Certificate]()

    def read_and_replace(values: OptionValues, path: str, origin: str) -> bytes:
        found = read(values, path, origin)
        if not written:
            written.append(stores.write("another"))
        return found

    monkeypatch.setattr(OptionValues, "content", read_and_replace)
    key = made._settings().key or ""
    assert written[0].certificate.strip() in key


def test_old_stores_are_dropped(stores: Stores) -> None:
    made = stores.security()
    for _ in range(20):
        stores.write()
        assert made.layer(NODE) is not None
    assert _converted.cache_info().currsize == 8


def test_a_forked_child_has_none_of_its_parent_s_stores(stores: Stores) -> None:
    def look() -> None:
        assert _converted.cache_info().currsize == 0
        assert _kept_context.cache_info().currsize == 0

    assert stores.security().layer(NODE) is not None
    assert _converted.cache_info().currsize > 0
    assert _kept_context.cache_info().currsize > 0
    assert in_child({"look": look}) == {"look": "nothing"}
