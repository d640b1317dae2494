"""The ``ssl.*`` options as TLS settings: cipher suites, truststores and keystores.

Java gives cipher suites the names that they have in the TLS standard. OpenSSL uses different names
for the suites of TLS 1.2.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
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
_MAX_STORES: Final = 8


def tls_settings(config: ProducerConfig, values: OptionValues) -> TlsSettings:
    """Return the TLS settings of a configuration, with the current contents of its files.

    Log a warning if host names are not checked. Raise ConfigException if a file cannot be used.
    """
    found = _read(config, values)
    if found.has_key:
        # The key, its password and its certificates may be in several files, which may be replaced
        # between two reads. So read them again until two reads agree, or give up after a few reads.
        for _ in range(_MOST_READS):
            before, found = found, _read(config, values)
            if found == before:
                break
    return _settings(config, found)


@dataclass(frozen=True, slots=True)
class _Store:
    """The file that `ssl.keystore.location` or `ssl.truststore.location` names.

    kind: "keystore" or "truststore". password: of a PKCS12 store. origin: the name of the file in
    error messages.
    """

    kind: str
    format: StoreKind
    content: bytes = field(repr=False)
    password: str | None = field(repr=False)
    origin: str

    def text(self) -> str:
        """Return the store as PEM. Raise ConfigException if it cannot be used."""
        if self.format is StoreKind.PEM:
            return self.content.decode(errors="replace")
        option = str(Option(f"ssl.{self.kind}.password"))
        return _converted(self.kind, self.content, self.password, self.origin, option)


@lru_cache(maxsize=_MAX_STORES)
def _converted(kind: str, content: bytes, password: str | None, origin: str, option: str) -> str:
    """Return a PKCS12 store as PEM. Decrypting it and checking its key may take a second of CPU."""
    return (keystore if kind == "keystore" else truststore)(content, password, origin, option)


# The converted stores contain private keys, so a forked child does not keep them.
os.register_at_fork(after_in_child=_converted.cache_clear)


@dataclass(frozen=True, slots=True)
class _Read:
    """The values of options with their references resolved, and the contents of files.

    written_suites: as in `cipher_suites`.
    """

    key_store: _Store | None
    key: str | None = field(repr=False)
    chain: str | None = field(repr=False)
    key_password: str | None = field(repr=False)
    trust_store: _Store | None
    trusted: str | None = field(repr=False)
    suites: str
    written_suites: str | None

    @property
    def has_key(self) -> bool:
        """Whether there is a private key."""
        return self.key_store is not None or self.key is not None


def _read(config: ProducerConfig, values: OptionValues) -> _Read:
    """Return the current values. Raise ConfigException if one of them cannot be read."""
    values = values.at_once()
    suites = config.ssl_cipher_suites
    return _Read(
        _store("keystore", config.ssl_keystore_location, config.ssl_keystore_password, values),
        values.text("ssl.keystore.key", config.ssl_keystore_key),
        values.text("ssl.keystore.certificate.chain", config.ssl_keystore_certificate_chain),
        values.text("ssl.key.password", config.ssl_key_password),
        _store(
            "truststore", config.ssl_truststore_location, config.ssl_truststore_password, values
        ),
        values.text("ssl.truststore.certificates", config.ssl_truststore_certificates),
        values.resolved("ssl.cipher.suites", suites),
        suites if values.has_reference(suites) else None,
    )


def _settings(config: ProducerConfig, read: _Read) -> TlsSettings:
    from spark_kafka_sink.network.tls import PROTOCOLS, TlsSettings  # noqa: PLC0415 - imports ssl

    if not config.ssl_endpoint_identification_algorithm:
        warn_once(
            logger,
            f"{Option('ssl.endpoint.identification.algorithm')} is empty: anyone with a "
            "certificate of a trusted CA can pose as the server",
        )
    listed = read.suites.split(",")
    suites = cipher_suites([name for each in listed if (name := each.strip())], read.written_suites)
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
    key_store, trust_store = read.key_store, read.trust_store
    return TlsSettings(
        truststore=read.trusted if trust_store is None else trust_store.text(),
        key=read.key if key_store is None else key_store.text(),
        chain=read.chain,
        key_password=read.key_password,
        truststore_origin=(
            str(Option("ssl.truststore.certificates"))
            if trust_store is None
            else trust_store.origin
        ),
        key_origin=str(Option("ssl.keystore.key")) if key_store is None else key_store.origin,
        protocols=frozenset(protocols),
        ciphers=suites.openssl,
        checks_host=config.ssl_endpoint_identification_algorithm == "https",
    )


# The options that contain the text of a store, instead of the path of a file.
_FOR_TEXT: Final = {
    "keystore": ("ssl.keystore.key", "ssl.keystore.certificate.chain"),
    "truststore": ("ssl.truststore.certificates",),
}


def _store(
    kind: str, location: str | None, password: Secret | None, values: OptionValues
) -> _Store | None:
    """Return the store that `ssl.KIND.location` names, or None if the option is unset."""
    if location is None:
        return None
    option = str(Option(f"ssl.{kind}.location"))
    path = values.resolved(f"ssl.{kind}.location", location)
    if PEM_BEGIN in path:
        # Other messages show the location, and this text may be a private key.
        raise ConfigException(
            f"{option} is the text of a {kind} in PEM: expected the path of a file; set "
            f"{' and '.join(str(Option(name)) for name in _FOR_TEXT[kind])} to the text"
        )
    # The location in error messages has its references unresolved.
    origin = f"the file {unless_key(location)} of {option}"
    found = values.content(path, origin)
    # The file name in the command that converts a store. A shell cannot resolve a reference.
    name = f"{kind}.jks" if values.has_reference(location) else Path(location).name
    read_as = store_kind(found, name, origin)
    if read_as is StoreKind.PKCS12:
        given = values.text(f"ssl.{kind}.password", password)
        return _Store(kind, read_as, found, given, origin)
    if password is not None:
        warn_once(
            logger,
            f"{Option(f'ssl.{kind}.password')} has no effect: PEM files have no such password",
        )
    return _Store(kind, read_as, found, None, origin)
