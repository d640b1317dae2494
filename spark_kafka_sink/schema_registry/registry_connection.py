"""How the driver connects to a schema registry: its URLs, the credentials and TLS.

This module replaces references in options, such as ``${env:NAME}``, with their values. No error
message shows a secret, and no URL in a message contains a user. A user without a password counts as
a secret, too. If it is not clear where the user in a URL ends, messages show only the scheme of the
URL.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.auth.mechanisms import OAUTHBEARER, PLAIN, utf8
from spark_kafka_sink.auth.token_endpoint import (
    basic_authorization,
    by_secret,
    secrets_in,
    token_of_answer,
)
from spark_kafka_sink.auth.token_renewal import TokenException
from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.errors import (
    ConfigException,
    Option,
    SaslAuthenticationException,
    name_options,
)
from spark_kafka_sink.logs import shown_value, warn_once, warnings_disabled
from spark_kafka_sink.network.http import (
    HttpException,
    HttpLimits,
    has_at_behind_host,
    is_encrypted,
    is_remote,
    is_url,
    post,
    shown_url,
    without_user,
)
from spark_kafka_sink.network.oauth import OAuth
from spark_kafka_sink.network.option_values import OptionValues
from spark_kafka_sink.network.ssl_options import tls_settings
from spark_kafka_sink.schema_registry.schema_registry_client import (
    CERTIFICATE_HINT,
    RegistryUrl,
    SchemaRegistryClient,
)
from spark_kafka_sink.schema_registry.settings import TLS_PREFIX, URL_OPTION, RegistrySettings

if TYPE_CHECKING:
    from spark_kafka_sink.network.tls import SSLContext

logger = logging.getLogger(__name__)

_BASIC: Final = "basic.auth.credentials.source"
_USER_INFO: Final = "basic.auth.user.info"
_INHERITED: Final = "SASL_INHERIT"
_BASIC_SOURCES: Final = ("URL", "USER_INFO", _INHERITED)
_BEARER: Final = "bearer.auth.credentials.source"
_TOKEN: Final = "bearer.auth.token"  # noqa: S105 - a name
_ENDPOINT: Final = "bearer.auth.issuer.endpoint.url"
_CLIENT_ID: Final = "bearer.auth.client.id"
_CLIENT_SECRET: Final = "bearer.auth.client.secret"  # noqa: S105 - a name
_SCOPE: Final = "bearer.auth.scope"
_OF_ENDPOINT: Final = (_CLIENT_ID, _CLIENT_SECRET, _SCOPE)
_SECRETS: Final = (_USER_INFO, _TOKEN)
_HEADERS: Final = {
    "bearer.auth.logical.cluster": "target-sr-cluster",
    "bearer.auth.identity.pool.id": "Confluent-Identity-Pool-Id",
}
_OF_BROKERS: Final = "kafka.".__add__
# URLs may contain commas, for example in a password. The next URL may be a reference.
_BETWEEN_URLS: Final = re.compile(r",(?=\s*(?:https?://|\$\{|,|$))", re.IGNORECASE)
_ENDPOINT_LIMITS: Final = HttpLimits(connect_s=3, read_s=7)


def connect(settings: RegistrySettings, config: ProducerConfig) -> SchemaRegistryClient:
    """Return a client for the registry. Send no request.

    config: the options of the producer. They contain config.providers, which resolve references,
    and the credentials for the brokers, which the client may also use for the registry. Raise
    ConfigException if an option is invalid.
    """
    # The options of the registry have the same names in Spark as in Confluent's clients.
    with name_options(str):
        return _Connection(settings, config).client()


class _Connection:
    """The options of one connection. References are replaced with their values."""

    def __init__(self, settings: RegistrySettings, config: ProducerConfig) -> None:
        self._config = config
        self._values = OptionValues(config)
        self._given = {name: secret.value for name, secret in settings.connection}
        self._users: dict[str, str] = {}
        listed = self._listed_urls()
        self._given_urls = [given for given, _ in listed]
        self._urls = [self._url(*each) for each in listed]
        self._tls_options = {
            name: value
            for name, value in self._given.items()
            if name.startswith(f"{TLS_PREFIX}ssl.")
        }
        self._uses_tls = any(is_encrypted(url.address) for url in self._urls)
        self._context = self._tls_context() if self._uses_tls else None

    def client(self) -> SchemaRegistryClient:
        """Return the client."""
        headers = self._headers()
        given = [name for name, value in self._tls_options.items() if value]
        if given and not self._uses_tls:
            message = (
                f"option {given[0]} has no effect: use https in {URL_OPTION}, or remove the option"
            )
            raise ConfigException(message)
        return SchemaRegistryClient(self._urls, headers, self._context)

    # -- URLs and TLS -----------------------------------------------------------------------------

    def _text(self, name: str) -> str | None:
        """Return the value of an option, or None if it is unset or empty."""
        return self._values.text(name, self._given.get(name)) or None

    def _listed_urls(self) -> list[tuple[str, str]]:
        """Return each URL as the option gives it, and with its references resolved.

        As in Java, the value of a reference may be a list of URLs. Each of them is given as the
        same reference.
        """
        found: list[tuple[str, str]] = []
        for given in _split(self._given[URL_OPTION]):
            text = self._values.resolved(URL_OPTION, given)
            several = _split(text) if self._values.is_reference(given) else []
            # If the value has no URL in it, `_url` raises.
            found += [(given, each) for each in several or [text]]
        return found

    def _url(self, given: str, text: str) -> RegistryUrl:
        """Return a URL of the option. Raise ConfigException if it is invalid."""
        if not _is_registry_url(text):
            message = (
                f"option {URL_OPTION} is {self._shown_invalid(given)!r}: expected "
                "https://host:port, several separated by commas"
            )
            raise ConfigException(message)
        if has_at_behind_host(text):
            message = (
                f"option {URL_OPTION} is {_scheme_of(given)!r}, with an @ after the host: in the "
                "user or the password, write %2F for /, %3F for ? and %23 for #; in the rest of "
                "the URL, write %40 for @"
            )
            raise ConfigException(message)
        if _without_query(text) != text:
            message = (
                f"option {URL_OPTION} has a ? or a # after "
                f"{self._shown(given, without_user(text)[0])!r}: expected https://host:port, "
                "because the client appends the path of each request"
            )
            raise ConfigException(message)
        address, user = without_user(text)
        if user is not None:
            self._users[address] = user
        return RegistryUrl(address, self._shown(given, address))

    def _shown(self, given: str, address: str) -> str:
        """Return a URL as messages show it: with references in place of their values."""
        if self._values.is_reference(given):
            return given
        if not self._values.has_reference(given):
            return shown_url(address)
        scheme, colon, _ = given.partition("://")
        host = _without_query(given.rpartition("@")[2])
        return f"{scheme}://{host}" if colon and "://" not in host else host

    def _shown_invalid(self, given: str) -> str:
        if self._values.is_reference(given):
            return given
        may_have_user = "@" in self._given[URL_OPTION] or _has_no_port(given)
        return _scheme_of(given) if may_have_user else _without_query(given)

    def _tls_context(self) -> SSLContext:
        from spark_kafka_sink.network.tls import client_context  # noqa: PLC0415 - imports ssl

        options = {
            name.removeprefix(TLS_PREFIX): value for name, value in self._tls_options.items()
        }
        with name_options(TLS_PREFIX.__add__):
            config = producer_config(
                {"bootstrap.servers": "none:1", "security.protocol": "SSL", **options}
            )
            return client_context(tls_settings(config, self._values)).context

    # -- credentials ------------------------------------------------------------------------------

    def _headers(self) -> Callable[[str], Mapping[str, str]]:
        """Return a function that takes a URL and returns the headers for requests to it."""
        basic, bearer = self._basic(), self._bearer()
        if (basic or self._users) and bearer is not None:
            message = (
                "both basic.auth.* (or a user in schema.registry.url) and bearer.auth.* are set: "
                "expected one of them"
            )
            raise ConfigException(message)
        self._check_encryption(
            has_credentials=bool(basic or bearer is not None or self._users),
            is_inherited=self._source(_BASIC, _BASIC_SOURCES) == _INHERITED,
        )
        more = {header: text for name, header in _HEADERS.items() if (text := self._header(name))}

        def headers(url: str) -> Mapping[str, str]:
            if bearer is not None:
                return {"Authorization": f"Bearer {bearer()}", **more}
            user = basic or self._users.get(url)
            if user is None:
                return more
            name, _, password = user.partition(":")
            return {"Authorization": basic_authorization(name, password, None), **more}

        return headers

    def _check_encryption(self, *, has_credentials: bool, is_inherited: bool) -> None:
        """Log a warning if credentials are sent unencrypted.

        is_inherited: whether the credentials are those for the brokers. Raise ConfigException if
        the credentials, a header or a URL contain a reference such as ``${env:NAME}`` whose value
        would be sent unencrypted.
        """
        values = self._values
        plain = [
            (url, given)
            for url, given in zip(self._urls, self._given_urls, strict=True)
            if not is_encrypted(url.address) and is_remote(url.address)
        ]
        if not plain:
            return
        found = [
            f"option {name}"
            for name in (*_SECRETS, *_HEADERS)
            if values.has_reference(self._given.get(name, ""))
        ]
        if is_inherited and values.has_reference_in_login(self._config):
            found.append("the credentials for the brokers")
        # A URL that consists of one reference is allowed, because the reference also chooses the
        # host that gets the user and the password.
        if any(values.has_reference(each) and not values.is_reference(each) for _, each in plain):
            found.append(f"a part of option {URL_OPTION}")
        if found:
            message = (
                f"a reference (${{…}}) in {found[0]} cannot be used with {plain[0][0].shown}: "
                f"the value would be sent there unencrypted; use https in {URL_OPTION}"
            )
            raise ConfigException(message)
        if not has_credentials:
            return
        warn_once(
            logger,
            f"{URL_OPTION} is http: the credentials travel unencrypted, so anyone on the network "
            "can read them",
        )

    def _source(self, name: str, sources: tuple[str, ...]) -> str | None:
        given = self._text(name)
        if given is None or given.upper() in sources:
            return None if given is None else given.upper()
        # A reference may name the wrong variable, whose value may be a secret.
        written = self._given[name]
        shown = repr(written) if self._values.has_reference(written) else shown_value(given)
        raise ConfigException(f"option {name} is {shown}: expected {', '.join(sources)}")

    def _basic(self) -> str | None:
        """Return ``user:password`` if the options basic.auth.* set them, else None."""
        source = self._source(_BASIC, _BASIC_SOURCES)
        info = self._text(_USER_INFO)
        if info is not None and source not in (None, "USER_INFO"):
            message = f"option {_USER_INFO} has no effect: {_BASIC} is {source}, not USER_INFO"
            raise ConfigException(message)
        if source == _INHERITED:
            return self._inherited()
        if source == "URL" and not any(self._users.values()):
            message = (
                f"{_BASIC} is URL, but {URL_OPTION} has no user: set {URL_OPTION} to "
                f"https://user:password@host:port, or remove {_BASIC}"
            )
            raise ConfigException(message)
        if source == "USER_INFO" and info is None:
            raise ConfigException(f"{_BASIC} is USER_INFO: set {_USER_INFO} to user:password")
        if info is None:
            return None
        if ":" not in info:
            raise ConfigException(f"option {_USER_INFO} has no colon: expected user:password")
        utf8(info, _USER_INFO)
        return info

    def _inherited(self) -> str:
        """Return ``user:password`` from the SASL options for the brokers."""
        config, values = self._config, self._values
        with name_options(_OF_BROKERS):
            values = values.at_once()
            user = values.text("sasl.username", config.sasl_username)
            password = values.text("sasl.password", config.sasl_password)
            if config.sasl_jaas_config is not None:
                found = values.jaas(config.sasl_jaas_config.value, config.sasl_mechanism).options
                user, password = found.get("username"), found.get("password")
            jaas = str(Option("sasl.jaas.config"))
        if not user or password is None:
            message = (
                f"{_BASIC} is SASL_INHERIT, but the options of the brokers have no user and "
                f"password: set {jaas}, as for {PLAIN}, or {_USER_INFO}"
            )
            raise ConfigException(message)
        utf8(user + password, "sasl.jaas.config")
        return f"{user}:{password}"

    def _header(self, name: str) -> str | None:
        text = self._text(name)
        if text is not None and not (text.isascii() and text.isprintable()):
            raise ConfigException(
                f"option {name} is sent as an HTTP header: expected printable ASCII characters only"
            )
        return text

    def _bearer(self) -> Callable[[], str] | None:
        """Return a function that returns the token. Return None if no bearer.auth option is set.

        The function fetches a token only in its first call, and may raise TokenException.
        """
        sources = ("STATIC_TOKEN", "OAUTHBEARER", "SASL_OAUTHBEARER_INHERIT")
        source = self._source(_BEARER, sources)
        token = self._header(_TOKEN)
        if token is not None and source in (None, "STATIC_TOKEN"):
            return lambda: token
        if source is None and self._text(_ENDPOINT) is None:
            unused = [name for name in _OF_ENDPOINT if self._text(name) is not None]
            if unused:
                message = (
                    f"option {unused[0]} has no effect: set {_ENDPOINT}, or remove {unused[0]}"
                )
                raise ConfigException(message)
            return None
        if source == "STATIC_TOKEN":
            raise ConfigException(f"{_BEARER} is STATIC_TOKEN: set {_TOKEN}")
        if token is not None:
            raise ConfigException(
                f"option {_TOKEN} has no effect: {_BEARER} is {source}, not STATIC_TOKEN"
            )
        fetch = self._inherited_token() if source == sources[2] else self._token_of_endpoint()
        tokens: list[str] = []

        def fetched() -> str:
            if not tokens:
                tokens.append(fetch())
            return tokens[0]

        return fetched

    def _inherited_token(self) -> Callable[[], str]:
        """Return a function that fetches a token with the OAuth options of the brokers.

        The registry gets a token of its own, because it may reject a token that brokers accept. If
        the brokers get such tokens, too, the connection to them logs the warnings of the options.
        """
        of_brokers = self._config.sasl_mechanism == OAUTHBEARER
        try:
            with (
                name_options(_OF_BROKERS),
                warnings_disabled() if of_brokers else nullcontext(),
            ):
                oauth = OAuth(self._config, self._values)
        except SaslAuthenticationException as error:
            # A file has no valid token. It may be a file that is being written.
            raise ConfigException(str(error)) from None

        def fetch() -> str:
            with name_options(_OF_BROKERS):
                return oauth.new_token().value

        return fetch

    def _token_of_endpoint(self) -> Callable[[], str]:
        """Return a function that gets a token from the URL in `bearer.auth.issuer.endpoint.url`."""
        names = (_ENDPOINT, _CLIENT_ID, _CLIENT_SECRET)
        url, client_id, secret = (self._text(name) or "" for name in names)
        for name, value in zip(names, (url, client_id, secret), strict=True):
            if not value:
                raise ConfigException(f"{_BEARER} is OAUTHBEARER: set {name}")
            utf8(value, name)
        if not is_url(url) or without_user(url)[1] is not None or " " in url:
            raise ConfigException(f"option {_ENDPOINT} is not a URL: expected https://host/path")
        self._values.check_url(url, f"the URL that {_ENDPOINT} names")
        if not is_encrypted(url) and is_remote(url):
            for name in _OF_ENDPOINT:
                if self._values.has_reference(self._given.get(name, "")):
                    message = (
                        f"a reference (${{…}}) in option {name} cannot be used with {_ENDPOINT}, "
                        "which is http: the value would be sent there unencrypted; use https"
                    )
                    raise ConfigException(message)
            warn_once(
                logger,
                f"{_ENDPOINT} is http: the client's credentials and its tokens travel unencrypted, "
                "so anyone on the network can read them",
            )
        authorization = {"Authorization": basic_authorization(client_id, secret, None)}
        form = by_secret(self._text(_SCOPE))
        context = self._context
        if is_encrypted(url) and context is None:
            self._uses_tls = True
            context = self._tls_context()

        def fetch() -> str:
            try:
                answer = post(url, form, authorization, _ENDPOINT_LIMITS, context, CERTIFICATE_HINT)
            except HttpException as error:
                raise TokenException(str(error), is_final=error.is_refused) from None
            return token_of_answer(
                answer.status,
                answer.body,
                time.time(),
                secrets=secrets_in(authorization),
                retry_after_s=answer.retry_after_s,
            ).value

        return fetch


def _split(urls: str) -> list[str]:
    return [each.strip() for each in _BETWEEN_URLS.split(urls) if each.strip()]


def _is_registry_url(text: str) -> bool:
    return is_url(text) and " " not in text and "," not in shown_url(text).split("/")[2]


def _has_no_port(text: str) -> bool:
    """Return whether a colon follows the host, and something other than a port follows the colon.

    The text after the colon may then be a password, and the apparent host may be a user name.
    """
    host = re.match(r"(?:[A-Za-z][A-Za-z0-9+.-]*://)?(?:\[[^\]]*\]|[^/:\[\]]*):", text)
    return host is not None and re.match(r"[0-9]*(?:[/?#]|$)", text[host.end() :]) is None


def _without_query(url: str) -> str:
    return re.split(r"[?#]", url)[0]


def _scheme_of(text: str) -> str:
    """Return the scheme of a URL and an ellipsis, without anything that may be secret."""
    scheme, colon, _ = text.partition("://")
    return f"{scheme}://…" if colon and scheme.isalpha() else "…"
