"""How the driver connects to a schema registry: its URLs, the credentials and TLS.

Variables in options, such as ``${env:NAME}``, are resolved here. No message shows a secret, or the
user in a URL.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.auth.mechanisms import PLAIN, utf8
from spark_kafka_sink.auth.token_endpoint import basic_authorization, by_secret, token_of_answer
from spark_kafka_sink.auth.token_renewal import TokenException
from spark_kafka_sink.config import ProducerConfig, producer_config
from spark_kafka_sink.errors import ConfigException, Option, name_options
from spark_kafka_sink.logs import masked, warn_once
from spark_kafka_sink.network.http import (
    HttpException,
    HttpLimits,
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
    RegistryUrl,
    SchemaRegistryClient,
)
from spark_kafka_sink.schema_registry.settings import TLS_PREFIX, URL_OPTION, RegistrySettings

if TYPE_CHECKING:
    import ssl

logger = logging.getLogger(__name__)

_BASIC: Final = "basic.auth.credentials.source"
_USER_INFO: Final = "basic.auth.user.info"
_BEARER: Final = "bearer.auth.credentials.source"
_TOKEN: Final = "bearer.auth.token"  # noqa: S105 - a name
_ENDPOINT: Final = "bearer.auth.issuer.endpoint.url"
_CLIENT_ID: Final = "bearer.auth.client.id"
_CLIENT_SECRET: Final = "bearer.auth.client.secret"  # noqa: S105 - a name
_SECRETS: Final = (_USER_INFO, _TOKEN, _CLIENT_SECRET)
_HEADERS: Final = {
    "bearer.auth.logical.cluster": "target-sr-cluster",
    "bearer.auth.identity.pool.id": "Confluent-Identity-Pool-Id",
}
_OF_BROKERS: Final = "kafka.".__add__
_ENDPOINT_LIMITS: Final = HttpLimits(connect_s=3, read_s=7)


def connect(settings: RegistrySettings, config: ProducerConfig) -> SchemaRegistryClient:
    """Return a client for the registry. This makes no request.

    config: of the producer, for the providers of variables and the credentials to inherit. Raise
    ConfigException if an option is invalid.
    """
    # The options of the registry have the same names in Spark as in Confluent's clients.
    with name_options(str):
        return _Connection(settings, config).client()


class _Connection:
    """The options of one connection, resolved."""

    def __init__(self, settings: RegistrySettings, config: ProducerConfig) -> None:
        self._config = config
        self._values = OptionValues(config)
        self._given = {name: secret.value for name, secret in settings.connection}
        self._users: dict[str, str] = {}
        listed = self._given[URL_OPTION].split(",")
        self._given_urls = [each.strip() for each in listed if each.strip()]
        self._urls = [self._url(each) for each in self._given_urls]
        self._context = self._tls_context()

    def client(self) -> SchemaRegistryClient:
        """Return the client."""
        headers = self._headers()
        return SchemaRegistryClient(self._urls, headers, self._context)

    # -- URLs and TLS -----------------------------------------------------------------------------

    def _text(self, name: str) -> str | None:
        """Return the value of an option, None if it is unset or empty."""
        return self._values.text(name, self._given.get(name)) or None

    def _url(self, given: str) -> RegistryUrl:
        has_reference = self._values.has_reference(given)
        text = self._values.resolved(URL_OPTION, given)
        if not is_url(text) or " " in text:
            shown = given if has_reference else masked(given)
            message = (
                f"option {URL_OPTION} is {shown!r}: expected https://host:port, several separated "
                "by commas"
            )
            raise ConfigException(message)
        address, user = without_user(text)
        if user is not None:
            self._users[address] = user
        return RegistryUrl(address, given if has_reference else shown_url(address))

    def _tls_context(self) -> ssl.SSLContext | None:
        if not any(is_encrypted(url.address) for url in self._urls):
            return None
        from spark_kafka_sink.network.tls import client_context  # noqa: PLC0415 - imports ssl

        options = {
            name.removeprefix(TLS_PREFIX): value
            for name, value in self._given.items()
            if name.startswith(f"{TLS_PREFIX}ssl.")
        }
        with name_options(TLS_PREFIX.__add__):
            config = producer_config(
                {"bootstrap.servers": "none:1", "security.protocol": "SSL", **options}
            )
            return client_context(tls_settings(config, self._values)).context

    # -- credentials ------------------------------------------------------------------------------

    def _headers(self) -> Callable[[str], Mapping[str, str]]:
        """Return a function that returns the headers for a URL."""
        basic, bearer = self._basic(), self._bearer()
        if (basic or self._users) and bearer is not None:
            message = (
                "both basic.auth.* (or a user in schema.registry.url) and bearer.auth.* are set: "
                "expected one of them"
            )
            raise ConfigException(message)
        if basic or bearer is not None or self._users:
            self._check_encryption()
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

    def _check_encryption(self) -> None:
        """Warn if credentials are sent unencrypted; raise ConfigException if they are variables."""
        plain = [u for u in self._urls if not is_encrypted(u.address) and is_remote(u.address)]
        if not plain:
            return
        secrets = [self._given.get(name, "") for name in _SECRETS]
        # A URL that is one variable has a host and a user of the same origin.
        secrets += [url for url in self._given_urls if not self._values.is_reference(url)]
        if any(map(self._values.has_reference, secrets)):
            message = (
                f"a variable (${{…}}) in the credentials cannot be used with {plain[0].shown}, to "
                f"which its value would be sent unencrypted: use https in {URL_OPTION}"
            )
            raise ConfigException(message)
        warn_once(
            logger,
            f"{URL_OPTION} is http: the credentials travel unencrypted, so anyone on the network "
            "can read them",
        )

    def _source(self, name: str, sources: tuple[str, ...]) -> str | None:
        given = self._text(name)
        if given is None or given.upper() in sources:
            return None if given is None else given.upper()
        raise ConfigException(f"option {name} is {given!r}: expected {', '.join(sources)}")

    def _basic(self) -> str | None:
        """Return ``user:password`` if basic.auth.* set them, None if not."""
        source = self._source(_BASIC, ("URL", "USER_INFO", "SASL_INHERIT"))
        info = self._text(_USER_INFO)
        if info is not None and source not in (None, "USER_INFO"):
            message = f"option {_USER_INFO} has no effect: {_BASIC} is {source}, not USER_INFO"
            raise ConfigException(message)
        if source == "SASL_INHERIT":
            return self._inherited()
        if source == "USER_INFO" and info is None:
            raise ConfigException(f"{_BASIC} is USER_INFO: set {_USER_INFO} to user:password")
        if info is None:
            return None
        if ":" not in info:
            raise ConfigException(f"option {_USER_INFO} has no colon: expected user:password")
        utf8(info, _USER_INFO)
        return info

    def _inherited(self) -> str:
        """Return the user and the password of the brokers."""
        config, values = self._config, self._values
        with name_options(_OF_BROKERS):
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
            raise ConfigException(f"option {name} is not in ASCII: it is sent as an HTTP header")
        return text

    def _bearer(self) -> Callable[[], str] | None:
        """Return a function that returns the token, None without one."""
        sources = ("STATIC_TOKEN", "OAUTHBEARER", "SASL_OAUTHBEARER_INHERIT")
        source = self._source(_BEARER, sources)
        token = self._header(_TOKEN)
        if token is not None and source in (None, "STATIC_TOKEN"):
            return lambda: token
        if source is None and self._text(_ENDPOINT) is None:
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
        """Return a function that returns a token for the brokers."""
        with name_options(_OF_BROKERS):
            oauth = OAuth(self._config, self._values)

        def fetch() -> str:
            with name_options(_OF_BROKERS):
                return oauth.new_token().value

        return fetch

    def _token_of_endpoint(self) -> Callable[[], str]:
        """Return a function that gets a token from bearer.auth.issuer.endpoint.url."""
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
            warn_once(
                logger,
                f"{_ENDPOINT} is http: the client's credentials and its tokens travel unencrypted, "
                "so anyone on the network can read them",
            )
        authorization = {"Authorization": basic_authorization(client_id, secret, None)}
        form = by_secret(self._text("bearer.auth.scope"))
        context = self._context
        if is_encrypted(url) and context is None:
            from spark_kafka_sink.network.tls import TlsSettings, client_context  # noqa: PLC0415 - imports ssl

            context = client_context(TlsSettings()).context

        def fetch() -> str:
            try:
                answer = post(url, form, authorization, _ENDPOINT_LIMITS, context)
            except HttpException as error:
                raise TokenException(str(error), is_final=error.is_refused) from None
            return token_of_answer(
                answer.status, answer.body, time.time(), retry_after_s=answer.retry_after_s
            ).value

        return fetch
