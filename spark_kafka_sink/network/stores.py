"""Truststores and keystores: what the options ``ssl.*`` and their files say, as settings of TLS."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from spark_kafka_sink.auth.pem import StoreKind, store_kind
from spark_kafka_sink.auth.pkcs12 import keystore, truststore
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import ConfigException, Option
from spark_kafka_sink.logs import masked, warn_once, without_path
from spark_kafka_sink.model import Secret
from spark_kafka_sink.network.cipher_suites import cipher_suites
from spark_kafka_sink.network.files import content
from spark_kafka_sink.network.option_values import OptionValues

if TYPE_CHECKING:
    from spark_kafka_sink.network.tls import TlsSettings

logger = logging.getLogger(__name__)


def tls_settings(config: ProducerConfig, values: OptionValues) -> TlsSettings:
    """Return the TLS settings of a configuration, with the present contents of its files.

    Raise ConfigException if a file cannot be used.
    """
    from spark_kafka_sink.network.tls import PROTOCOLS, TlsSettings  # noqa: PLC0415 - imports ssl

    suites = cipher_suites([each for each in config.ssl_cipher_suites.split(",") if each])
    allowed = PROTOCOLS if config.ssl_protocol != "TLSv1.2" else frozenset({"TLSv1.2"})
    protocols = suites.protocols & allowed & {*config.ssl_enabled_protocols.split(",")}
    if not protocols:
        raise ConfigException(
            "ssl.protocol, ssl.enabled.protocols and ssl.cipher.suites have no version of TLS "
            "in common"
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
        truststore_origin=trusted_origin or "ssl.truststore.certificates",
        key_origin=key_origin or "ssl.keystore.key",
        protocols=frozenset(protocols),
        ciphers=suites.openssl,
        checks_host=config.ssl_endpoint_identification_algorithm == "https",
    )


class _Stores:
    """The files that `ssl.truststore.location` and `ssl.keystore.location` name."""

    def __init__(self, values: OptionValues) -> None:
        self._values = values

    def text(
        self, kind: str, location: str | None, password: Secret | None
    ) -> tuple[str | None, str]:
        """Return a store as PEM and its name in messages; None if no option names one."""
        if location is None:
            return None, ""
        option = str(Option(f"ssl.{kind}.location"))
        path = self._values.resolved(f"ssl.{kind}.location", location)
        # With unresolved references.
        shown = masked(location)
        origin = f"the file {shown} of {option}"
        scheme, is_url, _ = path.partition("://")
        if is_url:
            raise ConfigException(
                f"{option} is {shown}, and {scheme}: is not a folder of this machine: ship the "
                "file with --files, and set the option to its name"
            )
        try:
            found = content(path)
        except (OSError, ValueError) as error:
            why = without_path(error)
        else:
            why = ""
        if why:
            raise ConfigException(f"{origin} cannot be read: {why}")
        if store_kind(found, Path(location).name, origin) is StoreKind.PEM:
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
