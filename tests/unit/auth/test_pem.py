"""PEM in every form that clusters have it in, and what other files are."""

from __future__ import annotations

import base64
import traceback
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers import keys
from support.brokers.certificates import Authority, Certificate

from spark_kafka_sink.auth.pem import (
    PemBlock,
    StoreKind,
    certificates,
    pem_blocks,
    private_key,
    store_kind,
)
from spark_kafka_sink.errors import ConfigException

NAME: Final = "store.jks"
ORIGIN: Final = "the file store.jks of ssl.keystore.location"
# What `openssl ecparam -name prime256v1 -genkey` writes before the key.
P256_PARAMETERS: Final = """\
-----BEGIN EC PARAMETERS-----
BggqhkjOPQMBBw==
-----END EC PARAMETERS-----
"""


@pytest.fixture(scope="module")
def leaf() -> Certificate:
    """A certificate with its chain of two, and its key."""
    authority = Authority()
    return authority.leaf("client", authority.intermediate())


# What happens to PEM between the file and the option.
FORMS: Final[dict[str, Callable[[str], str]]] = {
    "as it is": lambda text: text,
    "on one line": lambda text: text.replace("\n", " "),
    "on one line, nothing between": lambda text: text.replace("\n", ""),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "indented": lambda text: text.replace("\n", "\n\t  "),
    "no newline at the end": lambda text: text.rstrip("\n"),
    "text around": lambda text: f"Bag Attributes\n  friendlyName: x\n{text}\nend: of it\n",
    "byte order mark": lambda text: f"\ufeff{text}",
    "headers inside": lambda text: text.replace("CATE-----\n", "CATE-----\na: b\nc: d\n\n", 1),
    "headers and CRLF": lambda text: FORMS["CRLF"](FORMS["headers inside"](text)),
}


@pytest.mark.parametrize("form", FORMS)
def test_certificates_and_key_are_read_in_every_form(form: str, leaf: Certificate) -> None:
    text = FORMS[form](leaf.chain + leaf.key)
    found = certificates(text, ORIGIN)
    assert [each.text for each in found] == [each.text for each in pem_blocks(leaf.chain, "")]
    assert "".join(each.text for each in found) == leaf.chain
    assert private_key(text, ORIGIN).text == leaf.key
    assert private_key(FORMS[form](leaf.key + leaf.chain), ORIGIN).text == leaf.key


# Keys have headers of their own, which end with their lines.
@pytest.mark.parametrize(
    "form",
    sorted(FORMS.keys() - {"headers inside", "headers and CRLF", "on one line, nothing between"}),
)
@pytest.mark.parametrize(
    ("label", "password", "write"),
    [
        ("EC PRIVATE KEY", None, keys.traditional),
        ("EC PRIVATE KEY", "hush", keys.traditional),
        ("PRIVATE KEY", None, keys.pkcs8),
        ("ENCRYPTED PRIVATE KEY", "hush", keys.pkcs8),
        ("RSA PRIVATE KEY", None, keys.traditional),
        ("RSA PRIVATE KEY", "hush", keys.traditional),
    ],
)
def test_keys_of_every_kind_are_read_in_every_form(
    *,
    form: str,
    label: str,
    password: str | None,
    write: Callable[[str, str | None], str],
    leaf: Certificate,
    rsa_key: str,
) -> None:
    given_key = rsa_key if label.startswith("RSA") else leaf.key
    text = write(given_key, password)
    key = private_key(FORMS[form](text), ORIGIN)
    assert (key.label, key.is_encrypted) == (label, password is not None)
    assert keys.public_key(key.text, password) == keys.public_key(given_key)


@pytest.fixture(scope="module")
def rsa_key() -> str:
    """A key of RSA."""
    return keys.rsa_key()


def test_parameters_of_curves_are_skipped(leaf: Certificate) -> None:
    assert private_key(P256_PARAMETERS + leaf.key, ORIGIN).text == leaf.key


def test_old_names_of_certificates_are_taken(leaf: Certificate) -> None:
    text = leaf.certificate.replace("CERTIFICATE", "X509 CERTIFICATE")
    assert certificates(text, ORIGIN)[0].text == leaf.certificate


@given(st.binary(min_size=1, max_size=300), st.integers(0, 2**32))
def test_a_block_is_read_as_it_was_written(data: bytes, seed: int) -> None:
    block = PemBlock("CERTIFICATE", data)
    assert pem_blocks(block.text, ORIGIN) == [block]
    assert max(map(len, block.text.splitlines())) <= 64
    assert "data" not in repr(block)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no private key in PEM$"),
        ("nothing at all", "has no private key in PEM$"),
        ("-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----", "PEM, but CERTIFICATE$"),
        ("-----BEGIN PRIVATE KEY-----\nQQ==\n", "block 1, PRIVATE KEY, has no END line"),
        (
            "-----BEGIN PRIVATE KEY-----\nQQ==\n-----END RSA PRIVATE KEY-----",
            "block 1, PRIVATE KEY, has no END line",
        ),
        ("-----BEGIN PRIVATE KEY----------END PRIVATE KEY-----", "is not valid base64"),
        ("-----BEGIN PRIVATE KEY-----\nhush!\n-----END PRIVATE KEY-----", "not valid base64"),
        ("-----BEGIN PRIVATE KEY-----\nhush\u00e9\n-----END PRIVATE KEY-----", "not valid base64"),
        ("-----BEGIN PRIVATE KEY-----\nhushh\n-----END PRIVATE KEY-----", "not valid base64"),
        (2 * "-----BEGIN PRIVATE KEY-----\nQQ==\n-----END PRIVATE KEY-----", "has 2 private keys"),
    ],
)
def test_what_has_no_key_is_refused_by_its_name(text: str, sentence: str) -> None:
    with pytest.raises(ConfigException, match=sentence) as caught:
        private_key(text, ORIGIN)
    assert str(caught.value).startswith(ORIGIN)
    assert "hush" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


def test_what_has_no_certificate_is_refused_with_what_it_has(leaf: Certificate) -> None:
    with pytest.raises(ConfigException, match=r"has no certificate in PEM, but PRIVATE KEY$"):
        certificates(leaf.key, ORIGIN)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (
            "-----BEGIN HUSH-----\nQQ==\n-----END HUSH-----",
            "PEM, but a block with an unknown label",
        ),
        ("-----BEGIN HUSH-----\nQQ==\n", "block 1, a block with an unknown label, has no END line"),
        ("-----BEGIN HUSH-----\n!\n-----END HUSH-----", "unknown label, is not valid base64"),
    ],
)
def test_a_label_that_is_unknown_is_not_shown(block: str, said: str) -> None:
    for read in (certificates, private_key):
        with pytest.raises(ConfigException, match=said) as caught:
            read(block, ORIGIN)
        assert "HUSH" not in str(caught.value)


def test_many_begins_without_an_end_take_no_time() -> None:
    with pytest.raises(ConfigException, match="has no END line"):
        pem_blocks("-----BEGIN CERTIFICATE-----\n" * 200_000, ORIGIN)


def _der(pem: str) -> bytes:
    return base64.b64decode("".join(pem.splitlines()[1:-1]))


def test_pem_and_pkcs12_are_told_by_their_first_bytes(leaf: Certificate) -> None:
    store = keys.pkcs12_store(leaf.chain, "hush", key=leaf.key)
    assert store_kind(store, NAME, ORIGIN) is StoreKind.PKCS12
    assert store_kind(b"\x30\x80\x02\x01\x03\x30", NAME, ORIGIN) is StoreKind.PKCS12
    for text in (leaf.chain, "Bag Attributes\n" * 1000 + leaf.key, "\ufeff" + leaf.key):
        assert store_kind(text.encode(), NAME, ORIGIN) is StoreKind.PEM


@pytest.mark.parametrize(("magic", "kind"), [("feedfeed", "JKS"), ("cececece", "JCEKS")])
def test_stores_of_java_are_refused_with_the_command_that_converts_them(
    magic: str, kind: str
) -> None:
    with pytest.raises(ConfigException) as caught:
        store_kind(bytes.fromhex(magic) + b"\0\0\0\2", NAME, ORIGIN)
    assert str(caught.value) == (
        f"the file store.jks of ssl.keystore.location is a store of type {kind}, which only Java "
        "can read: convert it with keytool -importkeystore -srckeystore store.jks -destkeystore "
        "store.p12 -deststoretype PKCS12, and that with openssl pkcs12 -in store.p12 -out "
        "store.pem -nodes"
    )


def test_what_is_no_store_is_refused_with_what_it_may_be(leaf: Certificate) -> None:
    with pytest.raises(ConfigException, match="a certificate in DER: convert it with openssl x509"):
        store_kind(_der(leaf.certificate), NAME, ORIGIN)
    with pytest.raises(ConfigException, match=r"is neither PEM nor PKCS12$"):
        store_kind(b"hello", NAME, ORIGIN)
    with pytest.raises(ConfigException, match=r"is empty$"):
        store_kind(b"", NAME, ORIGIN)
