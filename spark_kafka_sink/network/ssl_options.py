"""The ``ssl.*`` options as TLS settings: cipher suites, truststores and keystores.

Java gives cipher suites the names that they have in the TLS standard. OpenSSL uses different names
for the suites of TLS 1.2.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.auth.pem import PEM_BEGIN, StoreKind, store_kind
from spark_kafka_sink.auth.pkcs12 import keystore, truststore
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import ConfigException, Option
from spark_kafka_sink.logs import shown_value, unless_key, warn_once
from spark_kafka_sink.model import Secret
from spark_kafka_sink.network.option_values import OptionValues

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
# The ciphers of each key exchange, by Java's name.
_CIPHERS: Final = {
    "ECDHE_ECDSA": _EVERYWHERE | _CHACHA20 | _SHA384,
    "ECDHE_RSA": _EVERYWHERE | _CHACHA20 | _SHA384,
    "DHE_RSA": _EVERYWHERE | _CHACHA20 | _SHA256,
    "DHE_DSS": _EVERYWHERE | _SHA256,
    "RSA": _EVERYWHERE | _SHA256,
}
# Maps Java's names to OpenSSL's names. OpenSSL's names omit the key exchange if it is only RSA.
TLS_1_2_SUITES: Final = {
    f"TLS_{exchange}_WITH_{java}": f"{exchange}-{ours}".replace("_", "-").removeprefix("RSA-")
    for exchange, ciphers in _CIPHERS.items()
    for java, ours in ciphers.items()
}
_OPENSSL_NAMES: Final = frozenset(TLS_1_2_SUITES.values())


@dataclass(frozen=True, slots=True)
class CipherSuites:
    """The TLS 1.2 suites and the TLS versions that may be used.

    openssl: OpenSSL's names of the suites, separated by colons, or None if no TLS 1.2 suite is
    listed. protocols: the versions that have a suite.
    """

    openssl: str | None
    protocols: frozenset[str]


def cipher_suites(names: Sequence[str], written: str | None = None) -> CipherSuites:
    """Return the suites and versions for a list of suite names; an empty list means the defaults.

    written: the option with its references unresolved, for error messages; None if it has no
    reference. Raise ConfigException for an unknown name, or if only some of the TLS 1.3 suites are
    listed.
    """
    new = [name for name in names if name in TLS_1_3_SUITES]
    old = [_known(name, written) for name in names if name not in TLS_1_3_SUITES]
    if new and {*new} != {*TLS_1_3_SUITES}:
        raise ConfigException(
            f"{Option('ssl.cipher.suites')} has {', '.join(new)}, but Python cannot enable only "
            f"some of the suites of TLS 1.3: list all of them ({', '.join(TLS_1_3_SUITES)}), or "
            "list none of them and use TLS 1.2"
        )
    versions = [("TLSv1.2", bool(old) or not names), ("TLSv1.3", bool(new) or not names)]
    return CipherSuites(
        ":".join(old) or None, frozenset(version for version, is_there in versions if is_there)
    )


def _known(name: str, written: str | None) -> str:
    found = name if name in _OPENSSL_NAMES else TLS_1_2_SUITES.get(name)
    if found is None:
        suite = shown_value(name) if written is None else f"a suite of {shown_value(written)}"
        raise ConfigException(
            f"{Option('ssl.cipher.suites')} has {suite}, which is unknown: expected a suite of "
            "TLS 1.2 with AES or ChaCha20, such as TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
        )
    return found


if TYPE_CHECKING:
    from spark_kafka_sink.network.tls import TlsSettings

logger = logging.getLogger(__name__)

_MOST_READS: Final = 3


def tls_settings(config: ProducerConfig, values: OptionValues) -> TlsSettings:
    """Return the TLS settings of a configuration, with the current contents of its files.

    Log a warning if host names are not checked. Raise ConfigException if a file cannot be used.
    """
    found = _read_settings(config, values)
    if found.key is None:
        return found
    # The key, its password and its certificates may be in several files, which may be replaced
    # between two reads. So read them again until two reads agree, or give up after a few reads.
    for _ in range(_MOST_READS):
        before, found = found, _read_settings(config, values)
        if found == before:
            break
    return found


def _read_settings(config: ProducerConfig, values: OptionValues) -> TlsSettings:
    from spark_kafka_sink.network.tls import PROTOCOLS, TlsSettings  # noqa: PLC0415 - imports ssl

    if not config.ssl_endpoint_identification_algorithm:
        warn_once(
            logger,
            f"{Option('ssl.endpoint.identification.algorithm')} is empty: anyone with a "
            "certificate of a trusted CA can pose as the server",
        )
    values = values.at_once()
    written = config.ssl_cipher_suites
    listed = values.resolved("ssl.cipher.suites", written).split(",")
    suites = cipher_suites(
        [name for each in listed if (name := each.strip())],
        written if values.has_reference(written) else None,
    )
    allowed = PROTOCOLS if config.ssl_protocol != "TLSv1.2" else frozenset({"TLSv1.2"})
    enabled = config.ssl_enabled_protocols.split(",")
    if too_old := [each for each in enabled if each not in PROTOCOLS]:
        warn_once(
            logger,
            f"{Option('ssl.enabled.protocols')}: {', '.join(too_old)} has no effect: the versions "
            "of TLS are TLSv1.2 and TLSv1.3",
        )
    protocols = suites.protocols & allowed & {*enabled}
    if not protocols:
        raise ConfigException(
            f"{Option('ssl.protocol')}, {Option('ssl.enabled.protocols')} and "
            f"{Option('ssl.cipher.suites')} have no version of TLS in common"
        )
    stores = _Stores(values)
    key, key_origin = stores.text(
        "keystore", config.ssl_keystore_location, config.ssl_keystore_password
    )
    if key is None:
        key = values.text("ssl.keystore.key", config.ssl_keystore_key)
    trusted, trusted_origin = stores.text(
        "truststore", config.ssl_truststore_location, config.ssl_truststore_password
    )
    if trusted is None:
        trusted = values.text("ssl.truststore.certificates", config.ssl_truststore_certificates)
    return TlsSettings(
        truststore=trusted,
        key=key,
        chain=values.text("ssl.keystore.certificate.chain", config.ssl_keystore_certificate_chain),
        key_password=values.text("ssl.key.password", config.ssl_key_password),
        truststore_origin=trusted_origin or str(Option("ssl.truststore.certificates")),
        key_origin=key_origin or str(Option("ssl.keystore.key")),
        protocols=frozenset(protocols),
        ciphers=suites.openssl,
        checks_host=config.ssl_endpoint_identification_algorithm == "https",
    )


# The options that contain the text of a store, instead of the path of a file.
_FOR_TEXT: Final = {
    "keystore": ("ssl.keystore.key", "ssl.keystore.certificate.chain"),
    "truststore": ("ssl.truststore.certificates",),
}


class _Stores:
    """The files that `ssl.truststore.location` and `ssl.keystore.location` name."""

    def __init__(self, values: OptionValues) -> None:
        self._values = values

    def text(
        self, kind: str, location: str | None, password: Secret | None
    ) -> tuple[str | None, str]:
        """Return a store as PEM, and its name in error messages.

        If the option is unset, return None instead of the PEM.
        """
        if location is None:
            return None, ""
        option = str(Option(f"ssl.{kind}.location"))
        path = self._values.resolved(f"ssl.{kind}.location", location)
        if PEM_BEGIN in path:
            # Other messages show the location, and this text may be a private key.
            raise ConfigException(
                f"{option} is the text of a {kind} in PEM: expected the path of a file; set "
                f"{' and '.join(str(Option(name)) for name in _FOR_TEXT[kind])} to the text"
            )
        # The location in error messages has its references unresolved.
        origin = f"the file {unless_key(location)} of {option}"
        found = self._values.content(path, origin)
        # The file name in the command that converts a store. A shell cannot resolve a reference.
        name = f"{kind}.jks" if self._values.has_reference(location) else Path(location).name
        if store_kind(found, name, origin) is StoreKind.PEM:
            if password is not None:
                warn_once(
                    logger,
                    f"{Option(f'ssl.{kind}.password')} has no effect: PEM files have no such "
                    "password",
                )
            return found.decode(errors="replace"), origin
        given = self._values.text(f"ssl.{kind}.password", password)
        read = keystore if kind == "keystore" else truststore
        return read(found, given, origin, str(Option(f"ssl.{kind}.password"))), origin
