"""PKCS12 stores, converted to PEM with the library cryptography (the extra `[pkcs12]`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import ConfigException, install_extra

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

_LONGEST_CHAIN: Final = 20
# How the type of a bag in a store begins, in DER. The last byte is 1 for a private key, 2 for an
# encrypted private key, and 5 for a secret. A secret contains a type, too: Java uses type 2.
_BAG_TYPE: Final = re.escape(b"\x06\x0b\x2a\x86\x48\x86\xf7\x0d\x01\x0c\x0a\x01")
_BAG: Final = re.compile(
    _BAG_TYPE + rb"(?:(?P<key>[\x01\x02])|\x05\xa0.{1,5}?\x30.{1,5}?" + _BAG_TYPE + rb"\x02)",
    re.DOTALL,
)


def truststore(content: bytes, password: str | None, origin: str, option: str) -> str:
    """Return the certificates in a store as PEM. Raise ConfigException if it has no certificate.

    origin: the name of the store in error messages. option: the option with the store's password.
    """
    store = _store(content, password, origin, option)
    found = [store.cert, *store.additional_certs]
    text = "".join(_pem(each.certificate) for each in found if each is not None)
    if not text:
        raise ConfigException(f"{origin} has no certificate")
    return text


def keystore(content: bytes, password: str | None, origin: str, option: str) -> str:
    """Return a store's private key and certificate chain as PEM, the client's certificate first.

    Raise ConfigException if the store has no private key or several, or no certificate for its key.
    """
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - an extra

    store = _store(content, password, origin, option)
    count = _key_count(content)
    if count > 1:
        # cryptography returns only one of them, which may be the wrong one.
        raise ConfigException(
            f"{origin} has {count} private keys: expected one; copy the right one to a new store "
            "with keytool -importkeystore -srckeystore OLD.p12 -srcalias ALIAS -destkeystore "
            "NEW.p12 -deststoretype PKCS12; keytool -list -keystore OLD.p12 shows the aliases"
        )
    if store.key is None or store.cert is None:
        raise ConfigException(
            f"{origin} must contain a private key and the certificate of that key"
        )
    key = store.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    chain = _chain(store.cert.certificate, [each.certificate for each in store.additional_certs])
    return key.decode() + "".join(map(_pem, chain))


def _key_count(content: bytes) -> int:
    """Return the number of private keys in a store, without those among its encrypted bags.

    Common tools encrypt each private key in its bag, but not the list of these bags.
    """
    return sum(bag["key"] is not None for bag in _BAG.finditer(content))


def _chain(first: x509.Certificate, others: list[x509.Certificate]) -> list[x509.Certificate]:
    """Return the certificate chain: each certificate is signed by the next one."""
    chain = [first]
    while len(chain) < _LONGEST_CHAIN and chain[-1].issuer != chain[-1].subject:
        signer = next((each for each in others if each.subject == chain[-1].issuer), None)
        if signer is None or signer in chain:
            break
        chain.append(signer)
    return chain


def _store(
    content: bytes, password: str | None, origin: str, option: str
) -> PKCS12KeyAndCertificates:
    try:
        from cryptography.hazmat.primitives.serialization.pkcs12 import (  # noqa: PLC0415 - an extra
            load_pkcs12,
        )
    except ImportError:
        raise ConfigException(
            f"{origin} is PKCS12, which needs the library cryptography: "
            f"{install_extra('pkcs12')}, or convert the file to PEM with openssl pkcs12 -nodes"
        ) from None
    try:
        return load_pkcs12(content, None if password is None else password.encode())
    except Exception as error:  # noqa: BLE001 - several kinds, whose messages name no cause
        why = type(error).__name__
    advice = f"set {option}" if password is None else f"{option} does not open it, or it is damaged"
    raise ConfigException(f"{origin} cannot be read as PKCS12 ({why}): {advice}")


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - an extra

    return certificate.public_bytes(serialization.Encoding.PEM).decode()
