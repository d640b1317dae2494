"""`ssl.cipher.suites`: convert Java's or OpenSSL's names of cipher suites for OpenSSL.

Java uses the names of the standard. OpenSSL has its own names for the suites of TLS 1.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_kafka_sink.errors import ConfigException

TLS_1_3_SUITES: Final = (
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_GCM_SHA256",
)
_EVERYWHERE: Final = {
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "AES_128_CBC_SHA256": "AES128-SHA256",
    "AES_256_CBC_SHA": "AES256-SHA",
    "AES_128_CBC_SHA": "AES128-SHA",
}
_CHACHA20: Final = {"CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305"}
_SHA384: Final = {"AES_256_CBC_SHA384": "AES256-SHA384"}
_SHA256: Final = {"AES_256_CBC_SHA256": "AES256-SHA256"}
# The ciphers of each key exchange.
_CIPHERS: Final = {
    "ECDHE_ECDSA": _EVERYWHERE | _CHACHA20 | _SHA384,
    "ECDHE_RSA": _EVERYWHERE | _CHACHA20 | _SHA384,
    "DHE_RSA": _EVERYWHERE | _CHACHA20 | _SHA256,
    "DHE_DSS": _EVERYWHERE | _SHA256,
    "RSA": _EVERYWHERE | _SHA256,
}
# Java's names to OpenSSL's, which omit RSA.
TLS_1_2_SUITES: Final = {
    f"TLS_{exchange}_WITH_{java}": f"{exchange}-{ours}".replace("_", "-").removeprefix("RSA-")
    for exchange, ciphers in _CIPHERS.items()
    for java, ours in ciphers.items()
}
_OPENSSL_NAMES: Final = frozenset(TLS_1_2_SUITES.values())


@dataclass(frozen=True, slots=True)
class CipherSuites:
    """TLS 1.2 suites by OpenSSL's names, separated by colons, and the versions that have a suite.

    `openssl` is None if no TLS 1.2 suite is listed.
    """

    openssl: str | None
    protocols: frozenset[str]


def cipher_suites(names: Sequence[str]) -> CipherSuites:
    """Return the suites and versions for a list of names; an empty list means the defaults.

    Raise ConfigException for an unknown name, or for some of TLS 1.3's suites without the others.
    """
    new = [name for name in names if name in TLS_1_3_SUITES]
    old = [_known(name) for name in names if name not in TLS_1_3_SUITES]
    if new and {*new} != {*TLS_1_3_SUITES}:
        raise ConfigException(
            f"ssl.cipher.suites has {', '.join(new)}, but Python cannot choose among the suites of "
            f"TLS 1.3: list {', '.join(TLS_1_3_SUITES)}, or none of them, to use TLS 1.2"
        )
    versions = [("TLSv1.2", bool(old) or not names), ("TLSv1.3", bool(new) or not names)]
    return CipherSuites(
        ":".join(old) or None, frozenset(version for version, is_there in versions if is_there)
    )


def _known(name: str) -> str:
    found = name if name in _OPENSSL_NAMES else TLS_1_2_SUITES.get(name)
    if found is None:
        raise ConfigException(
            f"ssl.cipher.suites has {name!r}, which is unknown: expected a suite of TLS 1.2 "
            "with AES or ChaCha20, such as TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
        )
    return found
