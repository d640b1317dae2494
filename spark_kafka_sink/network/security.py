"""Security: the TLS and SASL of a client's connections, from its configuration.

Producer, admin and reader all use it. Files are read for each connection, so that renewed
certificates are used from the next connection on; equal contents share one context. Errors in files
are found when the client is constructed. Without TLS, the module ssl is not imported.

Values may have references, such as ``${env:NAME}``. They are resolved for each connection, in the
process that connects, so that their values are in no plan, no pickle and no pool.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec

from spark_kafka_sink.auth.gssapi import GssapiExchange, KerberosOptions, kerberos_options
from spark_kafka_sink.auth.jaas import JaasEntry, check_module, parse_jaas
from spark_kafka_sink.auth.mechanisms import (
    GSSAPI,
    OAUTHBEARER,
    PLAIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    PlainExchange,
    SaslExchange,
    checked_mechanism,
    printable,
)
from spark_kafka_sink.auth.oauthbearer import (
    OAuthBearerExchange,
    OAuthBearerToken,
    bearer_token,
    token_facts,
)
from spark_kafka_sink.auth.pem import StoreKind, store_kind
from spark_kafka_sink.auth.references import ALLOWED_PATHS, ProcessLimits, References, providers
from spark_kafka_sink.auth.scram import KeyCache, ScramExchange
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import ConfigException, KafkaException, SaslAuthenticationException
from spark_kafka_sink.logs import masked, warn_once
from spark_kafka_sink.model import Node, Secret
from spark_kafka_sink.network.cipher_suites import cipher_suites
from spark_kafka_sink.network.connection import Login
from spark_kafka_sink.network.gssapi import (
    cached_principal,
    check_kerberos,
    check_keytab,
    gssapi_exchange,
)
from spark_kafka_sink.network.helper_thread import MadeAhead
from spark_kafka_sink.network.selector import Selector

if TYPE_CHECKING:
    from spark_kafka_sink.network.tls import TlsContext, TlsLayer, TlsSettings

logger = logging.getLogger(__name__)

_SUPPORTED: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER, GSSAPI)
_EXTENSION: Final = "extension_"
_FILE_URL: Final = re.compile(r"file:(?://(?:localhost)?(?=/))?(?P<path>/.*)", re.DOTALL)
_KEY_CACHE: Final = KeyCache()
# A limit on memory; it is far more than any store or file of secrets has.
_MAX_FILE_BYTES: Final = 16 << 20
# Files of the kernel are not read, or a process's environment could be read in spite of the limits.
_KERNEL_FILES: Final = ("/proc/", "/sys/", "/dev/")
os.register_at_fork(after_in_child=_KEY_CACHE.forget)


@dataclass(frozen=True, slots=True)
class _Credentials:
    """Credentials. user: as it is sent. name: as messages show it, with unresolved references."""

    user: str = field(repr=False)
    password: str = field(repr=False)
    name: str
    is_token: bool = False

    def description(self, mechanism: str) -> str:
        """Return the description of the credentials for messages."""
        kind = "the delegation token" if self.is_token else "user"
        return f"of {kind} {printable(self.name)!r} by {mechanism}"


class _Disk:
    """The files of this machine."""

    def real_path(self, path: str) -> str:
        """Return the absolute path without links."""
        return os.path.realpath(path)

    def read(self, path: str) -> bytes:
        """Return the contents of a file. Raise OSError or ValueError if it cannot be used."""
        return _content(path)


def with_login_identity(config: ProducerConfig) -> ProducerConfig:
    """Return the configuration with whose tickets the cache has now, if no option says it.

    Without, whoever keeps what was made of a configuration could lend it to another user.
    """
    if not config.has_sasl or config.sasl_mechanism != GSSAPI:
        return config
    with suppress(KafkaException):  # that there is no ticket is said where one is needed
        identity = Security(config).identity()
        if identity:
            return msgspec.structs.replace(config, login_identity=identity)
    return config


class Security:
    """Makes the TLS layers and the logins of connections. Raise ConfigException if it cannot.

    wake: called from another thread when a login is ready that `has_login` asked for.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self._files = _Disk()
        self._limits = ProcessLimits.of(os.environ, "this process")
        self._references = References(providers({}), self._limits, os.environ, self._files)
        if config.has_tls:
            self._warn_of_tls()
            self._context(self._settings())
        self.wake: Callable[[], None] = lambda: None
        self._tickets = MadeAhead(self._gssapi_exchange, self._wake_client)
        # Whose tickets the cache had at first.
        self._cached_principal = config.login_identity or None
        if config.has_sasl:
            self._mechanism = self._checked_mechanism()
            self._check_credentials()
            if self._mechanism == PLAIN and not config.has_tls:
                warn_once(
                    logger,
                    f"{config.option_prefix}security.protocol=SASL_PLAINTEXT sends the password "
                    "of PLAIN in clear: anybody on the way can read it",
                )

    @classmethod
    def of(cls, config: ProducerConfig) -> Self | None:
        """Return the security of a configuration, None for PLAINTEXT."""
        return None if config.security_protocol == "PLAINTEXT" else cls(config)

    @property
    def selector_class(self) -> type[Selector]:
        """The class of the selector that the connections need."""
        if not self._config.has_tls:
            return Selector
        from spark_kafka_sink.network.tls_selector import TlsSelector  # noqa: PLC0415 - imports ssl

        return TlsSelector

    def layer(self, node: Node) -> TlsLayer | None:
        """Return the TLS layer of a new connection, None without TLS.

        Raise ConfigException if a file cannot be used (any more), and SslAuthenticationException if
        no certificate can have the host's name.
        """
        if not self._config.has_tls:
            return None
        return self._context(self._settings()).layer(node.host, str(node))

    def has_login(self, node: Node) -> bool:
        """Return whether `login` can be called; otherwise `wake` is called once it can be."""
        if not self._config.has_sasl or self._mechanism != GSSAPI:
            return True
        return self._tickets.is_there(node.host.rstrip("."))

    def login(self, node: Node, chance: float) -> Login | None:
        """Return the login of a new connection, None without SASL.

        chance: a random number from 0 to 1. Raise KafkaException if the credentials cannot be used
        (any more).
        """
        if not self._config.has_sasl:
            return None
        if self._mechanism == GSSAPI:
            return self._kerberos_login(node.host.rstrip("."), chance)
        # Find errors in the credentials before there is a connection.
        self._exchange()
        if self._mechanism == OAUTHBEARER:
            description = f"by {OAUTHBEARER} ({token_facts(self._token().value)})"
            return Login(self._exchange_again, description, chance)
        return Login(self._exchange_again, self._credentials().description(self._mechanism), chance)

    def _checked_mechanism(self) -> str:
        """Return the mechanism. Raise ConfigException if it is not supported."""
        config, prefix = self._config, self._config.option_prefix
        mechanism = checked_mechanism(config.sasl_mechanism)
        if mechanism not in _SUPPORTED:
            raise ConfigException(
                f"{prefix}sasl.mechanism is {mechanism}, which is not supported yet: set "
                f"{prefix}sasl.mechanism to one of {', '.join(_SUPPORTED)}"
            )
        if mechanism == PLAIN and not config.has_tls and self._has_reference():
            raise ConfigException(
                "a reference in the credentials cannot be used with PLAIN over SASL_PLAINTEXT, "
                "which would send what it gives in clear to any server that bootstrap.servers "
                "names: use SASL_SSL or SCRAM"
            )
        return mechanism

    def _has_reference(self) -> bool:
        """Return whether the user or the password has a reference."""
        config = self._config
        if config.sasl_jaas_config is not None:
            text = config.sasl_jaas_config.value
            if self._is_reference(text):
                return True
            # Search the parsed values, because escapes can hide a reference in the text.
            options = parse_jaas(text).options
            values = [options.get("username", ""), options.get("password", "")]
        else:
            password = config.sasl_password
            values = [config.sasl_username or "", "" if password is None else password.value]
        return any(self._references.within(value) for value in values)

    def _is_reference(self, text: str) -> bool:
        whole = self._references.within(text)
        return len(whole) == 1 and str(whole[0]) == text.strip()

    def _token(self) -> OAuthBearerToken:
        """Return the token that the file has now.

        Raise ConfigException if the file cannot be read, and SaslAuthenticationException if it has
        no token.
        """
        config, prefix = self._config, self._config.option_prefix
        option = f"{prefix}sasl.oauthbearer.token.endpoint.url"
        if config.sasl_username is not None:
            raise ConfigException(
                f"{prefix}sasl.username has no effect with {OAUTHBEARER}: remove it"
            )
        url = self._text(
            "sasl.oauthbearer.token.endpoint.url", config.sasl_oauthbearer_token_endpoint_url
        )
        found = None if url is None else _FILE_URL.fullmatch(url)
        if url is None or found is None:
            raise ConfigException(
                f"{option} is {'not set' if url is None else 'no URL of a file'}: expected "
                "file:///path of a file with the token; endpoints that are asked by HTTP are not "
                "supported yet"
            )
        extensions = {}
        if config.sasl_jaas_config is not None:
            entry = self._jaas(config.sasl_jaas_config.value)
            extensions = {
                name.removeprefix(_EXTENSION): value for name, value in entry.options.items()
            }
            if any(not name.startswith(_EXTENSION) for name in entry.options):
                raise ConfigException(
                    f"{prefix}sasl.jaas.config has options that are no {_EXTENSION}…: a client "
                    f"that asks for its token is not supported yet; {option} names a file with one"
                )
        self._limits.check_url(url)
        return bearer_token(
            self._file(option, found["path"]).strip(), time.time(), extensions=extensions
        )

    def _file(self, option: str, path: str) -> str:
        """Return the text of a file that this process may read; messages do not show its path."""
        try:
            real = self._files.real_path(path)
            self._limits.check_path(real, self._files)
            return self._files.read(real).decode()
        except ConfigException:
            why = f"{ALLOWED_PATHS} of this process does not allow it"
        except UnicodeDecodeError:
            why = "it is not UTF-8"
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
        raise ConfigException(f"the file of {option} cannot be read: {why}")

    def identity(self) -> str:
        """Return whose tickets the cache has, empty if an option says it.

        Raise SaslAuthenticationException if there are none.
        """
        options, _ = self._kerberos()
        return "" if options.principal is not None else cached_principal(options)

    def _wake_client(self) -> None:
        self.wake()

    def _check_credentials(self) -> None:
        """Raise ConfigException if a login is sure to fail, as far as this machine knows."""
        if self._mechanism != GSSAPI:
            self._exchange()
            return
        self._kerberos()
        check_kerberos()

    def _kerberos_login(self, host: str, chance: float) -> Login:
        # The first one was waited for; raises why there is none.
        made = [self._tickets.take(host)]
        user = self._kerberos()[0].user
        if self._cached_principal is not None:
            user = f"principal {self._cached_principal!r}"
        return Login(
            lambda: made.pop() if made else self._tickets.take(host),
            f"of {printable(user)} by {GSSAPI}",
            chance,
        )

    def _gssapi_exchange(self, host: str) -> GssapiExchange:
        """Return a login at a broker; the helper thread calls this, for the KDC may be asked."""
        options, keytab = self._kerberos()
        if options.principal is None and self._cached_principal is None:
            self._cached_principal = cached_principal(options)
        return gssapi_exchange(options, host, keytab, self._cached_principal)

    def _kerberos(self) -> tuple[KerberosOptions, bytes]:
        """Return whom to log in, and what the keytab has, which is empty if there is none.

        Raise ConfigException if the options do not say it, or the keytab is none.
        """
        config, prefix = self._config, self._config.option_prefix
        if config.sasl_username is not None:
            raise ConfigException(
                f"{prefix}sasl.username has no effect with {GSSAPI}, which is the default: set "
                f"{prefix}sasl.mechanism, or set {prefix}sasl.kerberos.principal in its place"
            )
        entry = None
        if config.sasl_jaas_config is not None:
            entry = self._jaas(config.sasl_jaas_config.value)
        principal, keytab = config.sasl_kerberos_principal, config.sasl_kerberos_keytab
        options = kerberos_options(
            None if entry is None else entry.options,
            self._text("sasl.kerberos.principal", principal),
            self._text("sasl.kerberos.keytab", keytab),
            config.sasl_kerberos_service_name,
            prefix,
        )
        if options.keytab is None:
            return options, b""
        option = f"{prefix}sasl.{'kerberos.keytab' if entry is None else 'jaas.config'}"
        given = f"the keytab {masked(keytab or Path(options.keytab).name)} of {option}"
        try:
            content = _content(options.keytab)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
        else:
            check_keytab(content, given)
            return options, content
        raise ConfigException(f"{given} cannot be read: {why}")

    def _exchange(self) -> SaslExchange:
        if self._mechanism == OAUTHBEARER:
            return OAuthBearerExchange(self._token())
        given = self._credentials()
        if self._mechanism == PLAIN:
            return PlainExchange(given.user, given.password)
        return ScramExchange(
            self._mechanism,
            given.user,
            given.password,
            nonce=secrets.token_urlsafe(24),
            keys=_KEY_CACHE,
            is_token=given.is_token,
        )

    def _exchange_again(self) -> SaslExchange:
        """Return another exchange.

        Raise SaslAuthenticationException if the credentials became invalid.
        """
        try:
            return self._exchange()
        except ConfigException as error:
            raise SaslAuthenticationException(str(error)) from None

    def _credentials(self) -> _Credentials:
        """Return the credentials. Raise ConfigException if the options have none."""
        config, prefix = self._config, self._config.option_prefix
        jaas, user, password = config.sasl_jaas_config, config.sasl_username, config.sasl_password
        if jaas is not None:
            entry = self._jaas(jaas.value)
            found = [entry.options.get(name, "") for name in ("username", "password")]
            is_token = entry.options.get("tokenauth", "").lower() == "true"
            name = jaas.value.strip()
            if not self._is_reference(jaas.value):
                name = parse_jaas(jaas.value).options.get("username", "")
            return _Credentials(found[0], found[1], name, is_token=is_token)
        if user is None or password is None:
            raise ConfigException(
                f"{prefix}security.protocol={config.security_protocol} needs credentials: set "
                f"{prefix}sasl.jaas.config, or {prefix}sasl.username and {prefix}sasl.password"
            )
        return _Credentials(
            self._resolved("sasl.username", user),
            self._resolved("sasl.password", password.value),
            user,
        )

    def _jaas(self, text: str) -> JaasEntry:
        option = "sasl.jaas.config"
        if self._is_reference(text):
            # The value of a reference is not searched for references again.
            entry = parse_jaas(self._resolved(option, text))
        else:
            entry = parse_jaas(text).resolved(lambda value: self._resolved(option, value))
        check_module(entry, self._mechanism)
        return entry

    def _resolved(self, option: str, text: str) -> str:
        return self._references.resolved(f"{self._config.option_prefix}{option}", text)

    def _text(self, option: str, value: str | Secret | None) -> str | None:
        """Return the value of an option with its references resolved."""
        text = value.value if isinstance(value, Secret) else value
        return None if text is None else self._resolved(option, text)

    def _pem(self, option: str, path: str) -> tuple[str, str]:
        return _pem_file(
            f"{self._config.option_prefix}{option}", path, self._resolved(option, path)
        )

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
        chain = self._text("ssl.keystore.certificate.chain", config.ssl_keystore_certificate_chain)
        key_text, origin = self._text("ssl.keystore.key", config.ssl_keystore_key), ""
        if config.ssl_keystore_location is not None:
            key_text, origin = self._pem("ssl.keystore.location", config.ssl_keystore_location)
        trusted = self._text("ssl.truststore.certificates", config.ssl_truststore_certificates)
        trusted_origin = ""
        if config.ssl_truststore_location is not None:
            trusted, trusted_origin = self._pem(
                "ssl.truststore.location", config.ssl_truststore_location
            )
        return TlsSettings(
            truststore=trusted,
            key=key_text,
            chain=chain,
            key_password=self._text("ssl.key.password", config.ssl_key_password),
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


def _content(path: str) -> bytes:
    """Return the contents of a file.

    Raise OSError or ValueError for other kinds and large files.
    """
    real = Path(os.path.realpath(path))
    # Check this before opening the file: opening a pipe would wait for a writer.
    if not stat.S_ISREG(real.stat().st_mode) or str(real).startswith(_KERNEL_FILES):
        raise ValueError("it is no file of a disk")
    with real.open("rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise ValueError(f"it has more than {_MAX_FILE_BYTES} bytes")
    return content


def _pem_file(option: str, given: str, path: str) -> tuple[str, str]:
    """Return the text of a PEM file, and its description for messages.

    given: the option's value with unresolved references. path: the resolved path.
    """
    shown = masked(given)
    origin = f"the file {shown} of {option}"
    scheme, found, _ = path.partition("://")
    if found:
        raise ConfigException(
            f"{option} is {shown}, and {scheme}: is no folder of this machine: ship the file by "
            "--files, and give its name alone"
        )
    try:
        content = _content(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
    else:
        why = ""
    if why:
        raise ConfigException(f"{origin} cannot be read: {why}")
    if store_kind(content, Path(given).name, origin) is StoreKind.PKCS12:
        raise ConfigException(
            f"{origin} is PKCS12, which is not supported yet: convert it by openssl pkcs12 -in "
            f"{Path(given).name} -out {Path(given).stem}.pem -nodes"
        )
    return content.decode(errors="replace"), origin
