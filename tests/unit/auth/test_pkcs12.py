"""PKCS12 stores: their contents, and the errors for files that cannot be read."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest
from support.brokers import keys
from support.brokers.certificates import Authority, Certificate
from support.brokers.keytool import import_certificates, make_key, make_secret

from spark_kafka_sink.auth.pem import certificates, private_key
from spark_kafka_sink.auth.pkcs12 import keystore, truststore
from spark_kafka_sink.errors import ConfigException

ORIGIN = "the file of the option"
OPTION = "ssl.x.password"
PASSWORD = "pässwort"
# By openssl pkcs12 -export -nokeys -certpbe NONE -keypbe NONE -nomac: the certificate of nobody.
WITHOUT_MAC = base64.b64decode(
    "MIIB5AIBAzCCAd0GCSqGSIb3DQEHAaCCAc4EggHKMIIBxjCCAcIGCSqGSIb3DQEHAaCCAbMEggGvMIIBqzCCAacGCyqG"
    "SIb3DQEMCgEDoIIBljCCAZIGCiqGSIb3DQEJFgGgggGCBIIBfjCCAXowggEhoAMCAQICFDa/5YdLbX894PBsZMv2INFF"
    "bu+IMAoGCCqGSM49BAMCMBIxEDAOBgNVBAMMB2FueWJvZHkwIBcNMjYxMTI2MjAxMjU1WhgPMjEyNjExMDIyMDEyNTVa"
    "MBIxEDAOBgNVBAMMB2FueWJvZHkwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQa0y3IzSrp++Ayzdiqe3FvhruSOT6z"
    "PtNS5QlIp34XNXv4592tBfY/s9rq5dpqcFP/eBQ8KCtukBMRfmP0I2TDo1MwUTAdBgNVHQ4EFgQUjDfs6dhGEavwOpcE"
    "WOpXG7oOr34wHwYDVR0jBBgwFoAUjDfs6dhGEavwOpcEWOpXG7oOr34wDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQD"
    "AgNHADBEAiB9kQSpvNTWwauKM21cGZVEtoEc4cw9JgdfHkH7koj/rwIgFRnqM5jtG1RpaEe4QtXH08hqbp29dkexKJBH"
    "SCJbPFo="
)


@pytest.fixture(scope="module")
def client() -> Certificate:
    """A certificate that an intermediate has signed."""
    authority = Authority()
    return authority.leaf("client", authority.intermediate())


def with_key(client: Certificate) -> bytes:
    """Return a keystore."""
    return keys.pkcs12_store(client.chain, PASSWORD, key=client.key)


def without_key(client: Certificate) -> bytes:
    """Return a truststore."""
    return keys.pkcs12_store(client.chain, PASSWORD)


def test_a_key_and_its_chain_are_read(client: Certificate) -> None:
    content = with_key(client)
    text = keystore(content, PASSWORD, ORIGIN, OPTION)
    assert not private_key(text, ORIGIN).is_encrypted
    found = certificates(text, ORIGIN)
    assert found == certificates(client.chain, ORIGIN)
    assert len(found) == 2


def test_every_certificate_of_a_truststore_is_read(client: Certificate) -> None:
    content = without_key(client)
    found = certificates(truststore(content, PASSWORD, ORIGIN, OPTION), ORIGIN)
    assert {each.data for each in found} == {
        each.data for each in certificates(client.chain, ORIGIN)
    }
    # The key of a store that has one is not asked for.
    content = with_key(client)
    assert len(certificates(truststore(content, PASSWORD, ORIGIN, OPTION), ORIGIN)) == 2


def test_a_store_may_have_neither_password_nor_encryption(client: Certificate) -> None:
    content = keys.pkcs12_store(client.chain, "")
    assert len(certificates(truststore(content, None, ORIGIN, OPTION), ORIGIN)) == 2


def test_a_store_may_have_no_checksum() -> None:
    assert len(certificates(truststore(WITHOUT_MAC, None, ORIGIN, OPTION), ORIGIN)) == 1


def test_what_keytool_writes_is_read(tmp_path: Path, client: Certificate) -> None:
    path = tmp_path / "trust.p12"
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
    client: Certificate, password: str | None, sentence: str
) -> None:
    content = with_key(client)
    for read in (keystore, truststore):
        with pytest.raises(ConfigException, match=sentence) as caught:
            read(content, password, ORIGIN, OPTION)
        assert str(caught.value).startswith(ORIGIN)
        assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\x30\x82\x05\xd0\x02\x01\x03", b"\x30" * 1000])
def test_a_damaged_store_is_told(content: bytes) -> None:
    with pytest.raises(ConfigException, match="cannot be read as PKCS12"):
        truststore(content, "x", ORIGIN, OPTION)


def test_a_keystore_without_a_key_is_told(client: Certificate) -> None:
    content = without_key(client)
    with pytest.raises(
        ConfigException, match="must contain a private key and the certificate of that key"
    ):
        keystore(content, PASSWORD, ORIGIN, OPTION)


def test_of_several_keys_of_a_keystore_none_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "two.p12"
    for alias in ("first", "second"):
        make_key(path, alias, "changeit")
    with pytest.raises(ConfigException) as caught:
        keystore(path.read_bytes(), "changeit", ORIGIN, OPTION)
    assert f"{ORIGIN} has 2 private keys: expected one" in str(caught.value)
    assert "keytool -importkeystore -srckeystore OLD.p12 -srcalias ALIAS" in str(caught.value)
    # Its certificates can be trusted.
    found = truststore(path.read_bytes(), "changeit", ORIGIN, OPTION)
    assert len(certificates(found, ORIGIN)) == 2


def test_one_key_is_found_among_secrets_and_certificates(
    tmp_path: Path, client: Certificate
) -> None:
    path = tmp_path / "mixed.p12"
    make_key(path, "key", "changeit")
    for alias in ("one", "another"):
        make_secret(path, alias, "changeit")
    import_certificates(path, [client.certificate], "changeit")
    text = keystore(path.read_bytes(), "changeit", ORIGIN, OPTION)
    assert private_key(text, ORIGIN).is_key
    assert len(certificates(text, ORIGIN)) == 1


def test_a_key_without_encryption_is_one_key(client: Certificate) -> None:
    content = keys.pkcs12_store(client.chain, "", key=client.key)
    assert private_key(keystore(content, None, ORIGIN, OPTION), ORIGIN).is_key


def test_where_the_library_is_missing_the_extra_is_named(
    client: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = without_key(client)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization.pkcs12", None)
    with pytest.raises(ConfigException, match=r'pip install "path/to/spark-kafka-sink\[pkcs12\]"'):
        truststore(content, PASSWORD, ORIGIN, OPTION)
