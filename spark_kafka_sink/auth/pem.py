"""Detect the format of key and certificate stores, and parse PEM.

PEM blocks are parsed as in the Java client (DefaultSslEngineFactory): white space may occur inside
blocks, and any text between blocks. So PEM on a single line, for example in a properties file or an
environment variable, is valid. OpenSSL requires line breaks; `PemBlock.text` contains them. Keys
may also be in PKCS#1 or SEC1, which Java does not accept.
"""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from spark_kafka_sink.errors import ConfigException


class StoreKind(Enum):
    """A store format that can be read."""

    PEM = "PEM"
    PKCS12 = "PKCS12"


CERTIFICATE: Final = "CERTIFICATE"
# An older label for a certificate.
_X509_CERTIFICATE: Final = "X509 CERTIFICATE"
_PRIVATE_KEY: Final = "PRIVATE KEY"
_ENCRYPTED_KEY: Final = "ENCRYPTED PRIVATE KEY"
# Messages show only these labels, because a label in a file may be anything, even a secret.
_SHOWN_LABELS: Final = frozenset(
    {
        CERTIFICATE, _X509_CERTIFICATE, "TRUSTED CERTIFICATE", _PRIVATE_KEY, _ENCRYPTED_KEY,
        "RSA PRIVATE KEY", "EC PRIVATE KEY", "DSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "PUBLIC KEY",
        "RSA PUBLIC KEY", "CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST", "X509 CRL", "PKCS7",
        "EC PARAMETERS", "DH PARAMETERS",
    }
)  # fmt: skip

_JAVA_STORES: Final = {b"\xfe\xed\xfe\xed": "JKS", b"\xce\xce\xce\xce": "JCEKS"}
# An ASN.1 sequence, its length in one of three forms, and the version 3. Only PKCS12 begins so.
_PKCS12: Final = re.compile(rb"\x30(?:[\x00-\x80]|[\x81-\x84].{1,4}?)\x02\x01\x03", re.DOTALL)
_DER: Final = b"\x30"
PEM_BEGIN: Final = "-----BEGIN"
_BEGIN: Final = re.compile(r"-----BEGIN ([A-Z0-9][A-Z0-9 ]*)-----")
_HEADER_LINE: Final = re.compile(r"^[^\r\n:]*:[^\r\n]*\r?$", re.MULTILINE)
# The encryption headers of a key that is not in PKCS#8. In a text without line breaks, only this
# pattern finds the end of the headers.
_ENCRYPTION: Final = re.compile(
    r"Proc-Type:\s*4,\s*ENCRYPTED\s+DEK-Info:\s*([A-Za-z0-9-]+,[0-9A-Fa-f]+)\s"
)
_WHITE_SPACE: Final = re.compile(r"\s+")
_LINE_LENGTH: Final = 64


@dataclass(frozen=True, slots=True)
class PemBlock:
    """One PEM block. encryption: the DEK-Info of an encrypted key that is not in PKCS#8."""

    label: str
    data: bytes = field(repr=False)
    encryption: str | None = None

    @property
    def is_key(self) -> bool:
        """Whether this is a private key in any format."""
        return self.label.endswith(_PRIVATE_KEY)

    @property
    def is_encrypted(self) -> bool:
        """Whether this is a key that needs a password."""
        return self.encryption is not None or self.label == _ENCRYPTED_KEY

    @property
    def text(self) -> str:
        """The block as PEM with line breaks."""
        body = base64.b64encode(self.data).decode()
        headers = (
            ["Proc-Type: 4,ENCRYPTED", f"DEK-Info: {self.encryption}", ""]
            if self.encryption
            else []
        )
        lines = [body[at : at + _LINE_LENGTH] for at in range(0, len(body), _LINE_LENGTH)]
        return "\n".join(
            [f"-----BEGIN {self.label}-----", *headers, *lines, f"-----END {self.label}-----", ""]
        )


def store_kind(content: bytes, name: str, origin: str) -> StoreKind:
    """Return the format of a file. Raise ConfigException, with a remedy, if it is unsupported.

    name: the file's name, for the command in the exception's message. origin: the file's
    description in error messages, for example "the file a.jks of ssl.truststore.location".
    """
    java = _JAVA_STORES.get(content[:4])
    if java is not None:
        stem = re.sub(r"\.(jks|jceks|keystore|truststore)\Z", "", name, flags=re.IGNORECASE)
        raise ConfigException(
            f"{origin} is a store of type {java}, which only Java can read: convert it with "
            f"keytool -importkeystore -srckeystore {name} -destkeystore {stem}.p12 "
            f"-deststoretype PKCS12, and that with openssl pkcs12 -in {stem}.p12 -out "
            f"{stem}.pem -nodes"
        )
    if _PKCS12.match(content):
        return StoreKind.PKCS12
    if PEM_BEGIN.encode() in content:
        return StoreKind.PEM
    if content.startswith(_DER):
        raise ConfigException(
            f"{origin} is neither PEM nor PKCS12, but may be a certificate in DER: convert it with "
            f"openssl x509 -inform der -in {name} -out {name}.pem"
        )
    raise ConfigException(f"{origin} is {'neither PEM nor PKCS12' if content else 'empty'}")


def pem_blocks(text: str, origin: str) -> list[PemBlock]:
    """Return every PEM block in a text, in order. Raise ConfigException for an invalid block."""
    blocks: list[PemBlock] = []
    at = 0
    while begin := _BEGIN.search(text, at):
        label = begin[1]
        end = f"-----END {label}-----"
        until = text.find(end, begin.end())
        if until < 0:
            raise ConfigException(
                f"{origin}: block {len(blocks) + 1}, {_shown(label)}, has no END line"
            )
        blocks.append(
            _block(label, text[begin.end() : until], f"{origin}: block {len(blocks) + 1}")
        )
        at = until + len(end)
    return blocks


def _block(label: str, inside: str, origin: str) -> PemBlock:
    found = _ENCRYPTION.search(inside)
    body = inside if found is None else inside[found.end() :]
    body = _WHITE_SPACE.sub("", _HEADER_LINE.sub("", body))
    data = b""
    with suppress(ValueError):
        data = base64.b64decode(body, validate=True)
    if not data:
        raise ConfigException(f"{origin}, {_shown(label)}, is not valid base64")
    return PemBlock(label, data, None if found is None else found[1])


def certificates(text: str, origin: str) -> list[PemBlock]:
    """Return the certificates in a text, in order. Raise ConfigException if it has none."""
    blocks = pem_blocks(text, origin)
    found = [
        PemBlock(CERTIFICATE, each.data)
        for each in blocks
        if each.label in (CERTIFICATE, _X509_CERTIFICATE)
    ]
    if not found:
        raise ConfigException(f"{origin} has no certificate in PEM{_instead(blocks)}")
    return found


def private_key(text: str, origin: str) -> PemBlock:
    """Return the private key in a text. Raise ConfigException unless there is exactly one."""
    blocks = pem_blocks(text, origin)
    keys = [each for each in blocks if each.is_key]
    if not keys:
        raise ConfigException(f"{origin} has no private key in PEM{_instead(blocks)}")
    if len(keys) > 1:
        raise ConfigException(f"{origin} has {len(keys)} private keys: expected one")
    return keys[0]


def _instead(blocks: list[PemBlock]) -> str:
    labels = dict.fromkeys(_shown(each.label) for each in blocks)
    return f", but {', '.join(labels)}" if labels else ""


def _shown(label: str) -> str:
    return label if label in _SHOWN_LABELS else "a block with an unknown label"
