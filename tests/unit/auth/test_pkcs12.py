"""PKCS12 stores: their contents, and the errors for files that cannot be read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.brokers.certificates import Authority, Certificate, openssl
from support.brokers.keytool import import_certificates

from spark_kafka_sink.auth.pem import certificates, private_key
from spark_kafka_sink.auth.pkcs12 import keystore, truststore
from spark_kafka_sink.errors import ConfigException

ORIGIN = "the file of the option"
OPTION = "ssl.x.password"
PASSWORD = "pässwort"


def store(folder: Path, certificate: Certificate, *more: str, password: str = PASSWORD) -> bytes:
    """Return a store that openssl makes."""
    (folder / "key.pem").write_text(certificate.key)
    (folder / "chain.pem").write_text(certificate.chain)
    out = folder / "store.p12"
    openssl(
        "pkcs12", "-export", "-out", out, "-in", folder / "chain.pem", *more,
        "-passout", f"pass:{password}",
    )  # fmt: skip
    return out.read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the module's files."""
    return tmp_path_factory.mktemp("pkcs12")


@pytest.fixture(scope="module")
def client(folder: Path) -> Certificate:
    """A certificate that an intermediate has signed."""
    authority = Authority(folder)
    return authority.leaf("client", authority.intermediate())


def test_a_key_and_its_chain_are_read(folder: Path, client: Certificate) -> None:
    content = store(folder, client, "-inkey", str(folder / "key.pem"))
    text = keystore(content, PASSWORD, ORIGIN, OPTION)
    assert not private_key(text, ORIGIN).is_encrypted
    found = certificates(text, ORIGIN)
    assert found == certificates(client.chain, ORIGIN)
    assert len(found) == 2


def test_every_certificate_of_a_truststore_is_read(folder: Path, client: Certificate) -> None:
    content = store(folder, client, "-nokeys")
    found = certificates(truststore(content, PASSWORD, ORIGIN, OPTION), ORIGIN)
    assert {each.data for each in found} == {
        each.data for each in certificates(client.chain, ORIGIN)
    }
    # The key of a store that has one is not asked for.
    content = store(folder, client, "-inkey", str(folder / "key.pem"))
    assert len(certificates(truststore(content, PASSWORD, ORIGIN, OPTION), ORIGIN)) == 2


def test_a_store_may_have_neither_password_nor_encryption(
    folder: Path, client: Certificate
) -> None:
    plain = ("-certpbe", "NONE", "-keypbe", "NONE", "-nomac")
    content = store(folder, client, "-nokeys", *plain, password="")
    assert len(certificates(truststore(content, None, ORIGIN, OPTION), ORIGIN)) == 2


def test_what_keytool_writes_is_read(folder: Path, client: Certificate) -> None:
    path = folder / "trust.p12"
    import_certificates(path, [client.certificate], "changeit")
    found = certificates(truststore(path.read_bytes(), "changeit", ORIGIN, OPTION), ORIGIN)
    assert found == certificates(client.certificate, ORIGIN)


@pytest.mark.parametrize(
    ("password", "sentence"),
    [
        (None, f"set {OPTION}"),
        ("wrong", f"{OPTION} does not open it"),
        ("", f"{OPTION} does not open it"),
    ],
)
def test_a_password_that_does_not_open_a_store_is_told(
    folder: Path, client: Certificate, password: str | None, sentence: str
) -> None:
    content = store(folder, client, "-inkey", str(folder / "key.pem"))
    for read in (keystore, truststore):
        with pytest.raises(ConfigException, match=sentence) as caught:
            read(content, password, ORIGIN, OPTION)
        assert str(caught.value).startswith(ORIGIN)
        assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\x30\x82\x05\xd0\x02\x01\x03", b"\x30" * 1000])
def test_a_damaged_store_is_told(content: bytes) -> None:
    with pytest.raises(ConfigException, match="cannot be read as PKCS12"):
        truststore(content, "x", ORIGIN, OPTION)


def test_a_keystore_without_a_key_is_told(folder: Path, client: Certificate) -> None:
    content = store(folder, client, "-nokeys")
    with pytest.raises(ConfigException, match="no private key with its certificate"):
        keystore(content, PASSWORD, ORIGIN, OPTION)


def test_where_the_library_is_missing_the_extra_is_named(
    folder: Path, client: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = store(folder, client, "-nokeys")
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization.pkcs12", None)
    with pytest.raises(ConfigException, match=r'pip install "path/to/spark-kafka-sink\[pkcs12\]"'):
        truststore(content, PASSWORD, ORIGIN, OPTION)
