"""Security: the TLS of a client's connections, from its configuration.

Producer, admin and reader take theirs here. Files are read for each connection, so that renewed
certificates count from the next one on; equal contents share one context. What is wrong with them
is found when the client is made. Without TLS, the module ssl is not imported.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Self

from spark_kafka_sink.auth.pem import StoreKind, store_kind
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.logs import masked, warn_once
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.cipher_suites import cipher_suites
from spark_kafka_sink.network.selector import Selector

if TYPE_CHECKING:
    from spark_kafka_sink.network.tls import TlsContext, TlsLayer, TlsSettings

logger = logging.getLogger(__name__)


class Security:
    """What connections need besides TCP. Raise ConfigException if it cannot be had."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        if config.has_tls:
            self._warn_of_tls()
            self._context(self._settings())

    @classmethod
    def of(cls, config: ProducerConfig) -> Self | None:
        """Return the security of a configuration, None where connections are bare TCP."""
        return None if config.security_protocol == "PLAINTEXT" else cls(config)

    @property
    def selector_class(self) -> type[Selector]:
        """The class of the selector that the connections need."""
        if not self._config.has_tls:
            return Selector
        from spark_kafka_sink.network.tls_selector import TlsSelector  # noqa: PLC0415 - imports ssl

        return TlsSelector

    def layer(self, node: Node) -> TlsLayer | None:
        """Return the TLS of a new connection, None where it is not encrypted.

        Raise ConfigException if a file cannot be used any more, and SslAuthenticationException if
        the host can have no certificate.
        """
        if not self._config.has_tls:
            return None
        return self._context(self._settings()).layer(node.host, str(node))

    def _settings(self) -> TlsSettings:
        from spark_kafka_sink.network.tls import PROTOCOLS, TlsSettings  # noqa: PLC0415 - imports ssl

        config = self._config
        suites = cipher_suites([each for each in config.ssl_cipher_suites.split(",") if each])
        allowed = PROTOCOLS if config.ssl_protocol != "TLSv1.2" else frozenset({"TLSv1.2"})
        protocols = suites.protocols & allowed & {*config.ssl_enabled_protocols.split(",")}
        if not protocols:
            raise ConfigException(
                "ssl.protocol, ssl.enabled.protocols and ssl.cipher.suites leave no version of TLS "
                "that all three allow"
            )
        key, chain, origin = config.ssl_keystore_key, config.ssl_keystore_certificate_chain, ""
        key_text = None if key is None else key.value
        if config.ssl_keystore_location is not None:
            key_text, origin = _pem_file(
                f"{config.option_prefix}ssl.keystore.location", config.ssl_keystore_location
            )
        trusted, trusted_origin = config.ssl_truststore_certificates, ""
        if config.ssl_truststore_location is not None:
            trusted, trusted_origin = _pem_file(
                f"{config.option_prefix}ssl.truststore.location", config.ssl_truststore_location
            )
        password = config.ssl_key_password
        return TlsSettings(
            truststore=trusted,
            key=key_text,
            chain=chain,
            key_password=None if password is None else password.value,
            truststore_origin=trusted_origin or "ssl.truststore.certificates",
            key_origin=origin or "ssl.keystore.key",
            protocols=frozenset(protocols),
            ciphers=suites.openssl,
            checks_host=config.ssl_endpoint_identification_algorithm == "https",
        )

    def _context(self, settings: TlsSettings) -> TlsContext:
        from spark_kafka_sink.network.tls import client_context  # noqa: PLC0415 - imports ssl

        return client_context(settings)

    def _warn_of_tls(self) -> None:
        config, prefix = self._config, self._config.option_prefix
        if not config.ssl_endpoint_identification_algorithm:
            warn_once(
                logger,
                f"{prefix}ssl.endpoint.identification.algorithm is empty: whoever has a "
                "certificate of a trusted CA can pass for a broker",
            )
        passwords = {
            "ssl.truststore.password": config.ssl_truststore_password,
            "ssl.keystore.password": config.ssl_keystore_password,
        }
        for name in (name for name, value in passwords.items() if value is not None):
            warn_once(logger, f"{prefix}{name} has no effect: PEM has no such password")


def _pem_file(option: str, path: str) -> tuple[str, str]:
    """Return the text of a file of PEM, and how messages call it."""
    shown = masked(path)
    origin = f"the file {shown} of {option}"
    scheme, found, _ = path.partition("://")
    if found:
        raise ConfigException(
            f"{option} is {shown}, and {scheme}: is no folder of this machine: ship the file by "
            "--files, and give its name alone"
        )
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no path"
    else:
        why = ""
    if why:
        raise ConfigException(f"{origin} cannot be read: {why}")
    if store_kind(content, Path(path).name, origin) is StoreKind.PKCS12:
        raise ConfigException(
            f"{origin} is PKCS12, which is not supported yet: convert it by openssl pkcs12 -in "
            f"{Path(path).name} -out {Path(path).stem}.pem -nodes"
        )
    return content.decode(errors="replace"), origin
