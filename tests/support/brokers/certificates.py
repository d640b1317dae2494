"""Certificates for tests: a root, an intermediate that signs, and leaves, all in memory.

By default, leaves are valid for localhost, 127.0.0.1 and ::1.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from support.brokers import keys

LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_DAYS: Final = 30
# Clocks of containers may be behind.
_BEFORE: Final = timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key (PKCS#8), both PEM; `chain` also has the ones that signed it.

    No chain contains the root.
    """

    name: str
    certificate: str
    key: str
    chain: str


class Authority:
    """Signs certificates with a root of its own.

    dates: the start and the end of the root's validity.
    """

    def __init__(self, name: str = "root", dates: tuple[datetime, datetime] | None = None) -> None:
        self.root = _signed(name, None, dates=dates, is_authority=True)

    def intermediate(
        self, name: str = "intermediate", dates: tuple[datetime, datetime] | None = None
    ) -> Certificate:
        """Return a certificate that signs, signed by the root."""
        return _signed(name, self.root, dates=dates, is_authority=True)

    def leaf(
        self,
        name: str,
        signer: Certificate | None = None,
        *,
        names: tuple[str, ...] = LOCAL_NAMES,
        dates: tuple[datetime, datetime] | None = None,
        key: rsa.RSAPrivateKey | None = None,
    ) -> Certificate:
        """Return a certificate of a server or a client, signed by the root or by `signer`.

        names: the host names and IP addresses that it is valid for. dates: the start and the end
        of its validity. key: its key, None for a new one.
        """
        made = _signed(name, signer or self.root, names, dates, key=key)
        if signer is None or signer is self.root:
            return made
        return Certificate(made.name, made.certificate, made.key, made.certificate + signer.chain)


def _signed(
    name: str,
    signer: Certificate | None,
    names: tuple[str, ...] = (),
    dates: tuple[datetime, datetime] | None = None,
    *,
    is_authority: bool = False,
    key: rsa.RSAPrivateKey | None = None,
) -> Certificate:
    """Return a certificate, with a new key if none is given; it signs itself without `signer`."""
    own = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signing = subject, own
    if signer is not None:
        issuer = x509.load_pem_x509_certificate(signer.certificate.encode()).subject
        signing = keys.loaded(
            signer.key,
            ec.EllipticCurvePrivateKey,  # type: ignore[type-abstract] # for isinstance only
        )
    now = datetime.now(UTC)
    start, end = dates or (now - _BEFORE, now + timedelta(days=_DAYS))
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )
    if is_authority:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), True)  # noqa: FBT003 - critical
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(each) for each in names]),
            False,  # noqa: FBT003 - not critical
        )
    text = builder.sign(signing, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
    return Certificate(name, text, keys.pkcs8(own), text)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
