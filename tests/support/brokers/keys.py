"""Private keys in each form that users have them in, and PKCS12 stores."""

from __future__ import annotations

from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    pkcs12,
)

_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
_Kind = TypeVar("_Kind", ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)


def rsa_key() -> str:
    """Return a new key of RSA, PKCS#8 in PEM."""
    return pkcs8(rsa.generate_private_key(65_537, 2048))


def loaded(text: str, kind: type[_Kind], password: str | None = None) -> _Kind:
    """Return the key in PEM, which must be of this kind."""
    key = load_pem_private_key(text.encode(), _bytes(password))
    assert isinstance(key, kind)
    return key


def pkcs8(key: _Key | str, password: str | None = None) -> str:
    """Return a key as PKCS#8 in PEM, encrypted if there is a password."""
    return _text(key, PrivateFormat.PKCS8, password)


def traditional(key: _Key | str, password: str | None = None) -> str:
    """Return a key in PEM as OpenSSL wrote it in former times: PKCS#1, or SEC 1 for EC.

    With a password, the PEM has headers that name the cipher.
    """
    return _text(key, PrivateFormat.TraditionalOpenSSL, password)


def public_key(text: str, password: str | None = None) -> bytes:
    """Return the public key of a private key in PEM; the password is for an encrypted one."""
    is_encrypted = "ENCRYPTED" in text
    key = load_pem_private_key(text.encode(), _bytes(password) if is_encrypted else None)
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def pkcs12_store(chain: str, password: str, *, key: str | None = None) -> bytes:
    """Return a PKCS12 store of the certificates in `chain`, with the first one's key or without.

    password: empty for a store that is not encrypted.
    """
    found = x509.load_pem_x509_certificates(chain.encode())
    first, others = (None, found) if key is None else (found[0], found[1:])
    return pkcs12.serialize_key_and_certificates(
        b"1",
        None if key is None else _private_key(key),
        first,
        others,
        _encryption(password),
    )


def _text(key: _Key | str, form: PrivateFormat, password: str | None) -> str:
    given = _private_key(key) if isinstance(key, str) else key
    return given.private_bytes(Encoding.PEM, form, _encryption(password)).decode()


def _private_key(text: str) -> _Key:
    key = load_pem_private_key(text.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey)
    return key


def _encryption(password: str | None) -> KeySerializationEncryption:
    return BestAvailableEncryption(password.encode()) if password else NoEncryption()


def _bytes(password: str | None) -> bytes | None:
    return None if password is None else password.encode()
