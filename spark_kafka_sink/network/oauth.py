"""OAUTHBEARER: the token source that the options of a configuration define.

A token comes from one of three places: a file, which each login reads again; an HTTP endpoint, with
a client secret or an assertion; or a Python callable of the user. Endpoints and callables may be
slow, so the thread of a `TokenSource` calls them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from spark_kafka_sink.auth.assertion import (
    AssertionClaims,
    assertion,
    lasting_claims,
    parse_template,
    signing_key,
)
from spark_kafka_sink.auth.jaas import parse_jaas
from spark_kafka_sink.auth.mechanisms import OAUTHBEARER, OTHER_USER, utf8
from spark_kafka_sink.auth.oauthbearer import (
    OAuthBearerToken,
    RefreshWindow,
    bearer_token,
    checked_extensions,
    subject,
)
from spark_kafka_sink.auth.token_endpoint import (
    assertion_in,
    basic_authorization,
    by_client_assertion,
    by_jwt_bearer,
    by_secret,
    secrets_in,
    token_of_answer,
)
from spark_kafka_sink.auth.token_renewal import SPREAD_S, TokenException, TokenRenewal
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.config import (
    REFUSED,
    ProducerConfig,
    option_fields,
    producer_config,
    trimmed,
)
from spark_kafka_sink.errors import (
    ConfigException,
    Option,
    SaslAuthenticationException,
    name_options,
)
from spark_kafka_sink.logs import shown_value, unless_key, warn_once
from spark_kafka_sink.network.login import SLOW_S, SOURCES, TokenSource, call_within
from spark_kafka_sink.network.option_values import OptionValues
from spark_kafka_sink.network.token_callable import TokenCallable

if TYPE_CHECKING:
    from spark_kafka_sink.network.tls import SSLContext, TlsSettings

logger = logging.getLogger(__name__)

# The options of a Java runtime that have no effect inside sasl.jaas.config.
_OF_JAVA: Final = frozenset(
    {
        "ssl.keymanager.algorithm",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    }
)

_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
_CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"  # noqa: S105 - a name
_SCOPE: Final = "sasl.oauthbearer.scope"
_USER_CLAIM: Final = "sasl.oauthbearer.sub.claim.name"
_RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"
_ASSERTION: Final = "sasl.oauthbearer.assertion"
_DEFAULT: Final = "DefaultJwtRetriever"
_CLIENT_CREDENTIALS: Final = "ClientCredentialsJwtRetriever"
_FILE: Final = "FileJwtRetriever"
_JWT_BEARER: Final = "JwtBearerJwtRetriever"
_RETRIEVERS: Final = (_DEFAULT, _CLIENT_CREDENTIALS, _FILE, _JWT_BEARER)
_JAVA_CLASS: Final = re.compile(r"(com|org|io|net|edu|gov)(\.\w+)+\.[A-Z][\w$]*")
# A file URL. Its path is absolute, or is the name of a shipped file.
_FILE_URL: Final = re.compile(r"file:(?://(?:localhost)?(?=/))?(?P<path>/.*|[^/]+)", re.DOTALL)
EXTENSION: Final = "extension_"
"""The prefix of the names of extensions in JAAS."""
_IN_JAAS: Final = ("clientId", "clientSecret", "scope")
# The TLS options whose values messages show.
_SHOWN_OF_TLS: Final = ("ssl_truststore_location", "ssl_keystore_location", "ssl_cipher_suites")
_TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    """OAuth options with references (``${…}``) resolved. Clients with equal settings share a token.

    retriever: the simple name of one of Java's four retriever classes, or ``module.Name`` of a
    Python callable. shown_retriever: the callable as messages show it. path: the file with the
    token. shown_url: the endpoint as messages show it.
    """

    retriever: str = field(repr=False)
    shown_retriever: str = ""
    path: str | None = field(default=None, repr=False)
    url: str | None = field(default=None, repr=False)
    shown_url: str = ""
    client_id: str | None = field(default=None, repr=False)
    client_secret: str | None = field(default=None, repr=False)
    scope: str | None = None
    encodes_header: bool = False
    assertion_file: str | None = field(default=None, repr=False)
    key_file: str | None = field(default=None, repr=False)
    passphrase: str | None = field(default=None, repr=False)
    template_file: str | None = field(default=None, repr=False)
    algorithm: str = "RS256"
    claims: AssertionClaims = field(default=AssertionClaims(), repr=False)
    extensions: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    tls: TlsSettings | None = None
    times_ms: tuple[int, int] = (_TIMEOUT_MS, _TIMEOUT_MS)

    @property
    def is_java(self) -> bool:
        """Whether the retriever is one of Java's four classes, not a Python callable."""
        return self.retriever in _RETRIEVERS

    @property
    def has_assertion(self) -> bool:
        """Whether an assertion, not a secret, authenticates the client at the endpoint."""
        has_claim = self.assertion_file is not None or self.claims.iss is not None
        return has_claim or self.retriever == _JWT_BEARER


class OAuth:
    """The OAUTHBEARER tokens of one configuration.

    Raise ConfigException if no token can be fetched with the configuration. is_one_of_many: whether
    other processes begin to log in at the same time.
    """

    def __init__(
        self, config: ProducerConfig, values: OptionValues, *, is_one_of_many: bool = False
    ) -> None:
        self._config = config
        self._values = values
        self._random = Random()  # noqa: S311 - jitter, not secrets
        settings = self._settings()
        self.origin = Option(_URL if settings.is_java else _RETRIEVER)
        """The option that determines where tokens come from."""
        self._shared: Callable[[], TokenSource] | None = None
        self._callable: TokenCallable | None = None
        # What identifies the user: see the function `_user`.
        self._user = _user(settings, {})
        if settings.path is not None:
            self.file_token()
            return
        named: object = None
        if not settings.is_java:
            self._callable = TokenCallable.load(
                str(Option(_RETRIEVER)), settings.retriever, settings.shown_retriever
            )
            named = self._callable.named
        elif settings.url is not None:
            self._user = self._checked_endpoint(settings)
        spread_s = SPREAD_S if is_one_of_many else 0.0
        # The key contains `_user`, because the user of the assertion file may have changed. It
        # contains `id(named)`, because a notebook may define a callable again under the same name.
        key = (
            *(settings, self._user, _as_written(config)),
            *(renewal_options(config), id(named)),
        )
        self._shared = lambda: SOURCES.source(key, lambda: self._source(settings, spread_s))

    @cached_property
    def source(self) -> TokenSource | None:
        """The source that fetches the tokens, or None if the token is in a file."""
        return None if self._shared is None else self._shared()

    def file_token(self) -> OAuthBearerToken:
        """Return the token that is in the file now.

        Raise ConfigException if the file cannot be read, and SaslAuthenticationException if it has
        no valid token, or if the extensions have changed.
        """
        settings = self._settings()
        self._check_user(_user(settings, {}))
        return bearer_token(
            self._values.file(_URL, settings.path or "").strip(),
            time.time(),
            extensions=dict(settings.extensions),
        )

    def new_token(self) -> OAuthBearerToken:
        """Return a token that is read or fetched now. This may take a minute.

        Raise TokenException if there is none.
        """
        if self._callable is not None:
            return call_within(SLOW_S, self._fetch)
        if self._shared is not None:
            return self._fetch()
        try:
            return self.file_token()
        except (ConfigException, SaslAuthenticationException) as error:
            raise TokenException(str(error), is_final=True) from None

    def user_of_file(self, claim: str) -> str:
        """Return what identifies the user of the token, assertion or template in a file.

        claim: the name of the claim that contains the user. Raise the exceptions of `file_token`.
        """
        settings = self._settings()
        if settings.path is not None:
            return _user_or_digest(self.file_token().value, claim)
        # The user of an assertion is always its claim `sub` (RFC 7523).
        if settings.assertion_file is not None:
            return _user_or_digest(self._assertion(settings), "sub")
        if settings.template_file is None or not settings.has_assertion:
            return ""
        # The issuer is the user if no `sub` is set, as for service accounts.
        claims = lasting_claims(settings.claims, self._template(settings))
        return _digest([claims.get("iss"), claims.get("sub")])

    def _source(self, settings: OAuthSettings, spread_s: float) -> TokenSource:
        name = f"the token endpoint {settings.shown_url}"
        slow_s = SLOW_S + sum(settings.times_ms) / 1000
        if not settings.is_java:
            name, slow_s = settings.shown_retriever, SLOW_S
        renewal = TokenRenewal(*renewal_options(self._config), spread_s)
        return TokenSource(name, self._fetch, renewal, self._random, slow_s=slow_s)

    def _fetch(self) -> OAuthBearerToken:
        """Return a new token. This may take a long time.

        Raise TokenException if no token can be fetched.
        """
        try:
            settings = self._settings()
            if self._callable is not None or not settings.is_java:
                self._check_user(_user(settings, {}))
            if self._callable is not None:
                return self._callable.token(dict(settings.extensions))
            return self._asked(settings)
        except (ConfigException, SaslAuthenticationException) as error:
            raise TokenException(str(error), is_final=True) from None

    def _check_user(self, found: tuple[object, ...]) -> None:
        """Raise SaslAuthenticationException if `found` is not the user of this client.

        Otherwise, the clients that share the token would log in as a different user.
        """
        if found != self._user:
            raise SaslAuthenticationException(
                "the client id, the token endpoint, the Python callable, an extension, or the user "
                f"of the assertion has changed since this client was created: {OTHER_USER}"
            )

    # -- tokens from an endpoint -------------------------------------------------------------------

    def _checked_endpoint(self, settings: OAuthSettings) -> tuple[object, ...]:
        """Return what identifies the user at the token endpoint (see `_user`).

        Raise ConfigException if the options of the endpoint are invalid.
        """
        from spark_kafka_sink.network.http import (  # noqa: PLC0415 - imports urllib
            is_encrypted,
            is_remote,
        )

        url = settings.url or ""
        if not is_encrypted(url):
            if is_remote(url):
                warn_once(
                    logger,
                    f"{Option(_URL)} is http: the client's credentials and its tokens travel "
                    "unencrypted, so anyone on the network can read them",
                )
        else:
            self._tls_context(settings)
        form, _ = self._form(settings)
        return _user(settings, form)

    def _asked(self, settings: OAuthSettings) -> OAuthBearerToken:
        from spark_kafka_sink.network.http import HttpException, HttpLimits, post  # noqa: PLC0415

        form, headers = self._form(settings)
        self._check_user(_user(settings, form))
        connect_s, read_s = (each / 1000 for each in settings.times_ms)
        limits = HttpLimits(connect_s, read_s)
        try:
            context = self._tls_context(settings)
            answer = post(settings.url or "", form, headers, limits, context, _certificate_hint())
        except HttpException as error:
            raise TokenException(str(error), is_final=error.is_refused) from None
        return token_of_answer(
            answer.status,
            answer.body,
            time.time(),
            # The header may contain the client secret in a different encoding.
            secrets=(*secrets_in(headers), assertion_in(form), settings.client_secret or ""),
            retry_after_s=answer.retry_after_s,
            extensions=dict(settings.extensions),
        )

    def _tls_context(self, settings: OAuthSettings) -> SSLContext | None:
        if settings.tls is None:
            return None
        from spark_kafka_sink.network.tls import client_context  # noqa: PLC0415 - imports ssl

        with _named_in_jaas():
            return client_context(settings.tls).context

    def _form(self, settings: OAuthSettings) -> tuple[dict[str, str], dict[str, str]]:
        """Return the form and the headers of a token request.

        Raise ConfigException if credentials are missing.
        """
        from spark_kafka_sink.network.http import url_encoded  # noqa: PLC0415 - imports urllib

        if settings.retriever == _JWT_BEARER:
            return by_jwt_bearer(self._assertion(settings), settings.scope), {}
        if settings.has_assertion:
            proof = self._assertion(settings)
            return by_client_assertion(proof, settings.client_id, settings.scope), {}
        if not settings.client_id or not settings.client_secret:
            raise ConfigException(
                f"{Option(_URL)} needs credentials: set {Option(_CLIENT_ID)} and "
                f"{Option(_CLIENT_SECRET)}, or {Option(f'{_ASSERTION}.file')}, or "
                f"{Option(f'{_ASSERTION}.private.key.file')} with "
                f"{Option(f'{_ASSERTION}.claim.iss')}"
            )
        encode = url_encoded if settings.encodes_header else None
        header = basic_authorization(settings.client_id, settings.client_secret, encode)
        return by_secret(settings.scope), {"Authorization": header}

    def _assertion(self, settings: OAuthSettings) -> str:
        """Return the text of the assertion file, or a new assertion if there is no such file."""
        option = f"{_ASSERTION}.file"
        if settings.assertion_file is not None:
            found = self._values.file(option, settings.assertion_file).strip()
            if not found or not found.isascii() or not found.isprintable():
                raise ConfigException(
                    f"the file of {Option(option)} has no valid assertion: expected a JWT and "
                    "nothing else"
                )
            return found
        key_option = f"{_ASSERTION}.private.key.file"
        if settings.key_file is None:
            raise ConfigException(
                f"the client needs an assertion: set {Option(option)} or {Option(key_option)}"
            )
        origin = f"the file of {Option(key_option)}"
        key = signing_key(
            self._values.file(key_option, settings.key_file),
            settings.passphrase,
            settings.algorithm,
            origin,
        )
        return assertion(
            settings.claims,
            self._template(settings),
            settings.algorithm,
            key,
            now=time.time(),
            jti=str(uuid.uuid4()),
        )

    def _template(self, settings: OAuthSettings) -> dict[str, Mapping[str, object]]:
        if settings.template_file is None:
            return {}
        name = f"{_ASSERTION}.template.file"
        text = self._values.file(name, settings.template_file)
        return parse_template(text, f"the file of {Option(name)}")

    # -- the options -------------------------------------------------------------------------------

    def _settings(self) -> OAuthSettings:
        config = self._config
        if config.sasl_username is not None:
            raise ConfigException(
                f"{Option('sasl.username')} has no effect with {OAUTHBEARER}: remove it"
            )
        jaas: Mapping[str, str] = {}
        if config.sasl_jaas_config is not None:
            jaas = self._values.jaas(config.sasl_jaas_config.value, OAUTHBEARER).options
        extensions = self._extensions(jaas)
        written = config.sasl_oauthbearer_jwt_retriever_class
        retriever = self._retriever(written)
        if retriever not in _RETRIEVERS:
            return OAuthSettings(retriever, unless_key(written), extensions=extensions)
        given = config.sasl_oauthbearer_token_endpoint_url
        url = self._values.text(_URL, given)
        file = None if url is None else _FILE_URL.fullmatch(url)
        self._check_url(retriever, url, is_file=file is not None)
        if file is not None:
            return OAuthSettings(_FILE, path=file["path"], extensions=extensions)
        return self._endpoint_settings(retriever, url or "", given or "", jaas, extensions)

    def _endpoint_settings(
        self,
        retriever: str,
        url: str,
        given: str,
        jaas: Mapping[str, str],
        extensions: tuple[tuple[str, str], ...],
    ) -> OAuthSettings:
        from spark_kafka_sink.network.http import is_encrypted, shown_url  # noqa: PLC0415

        config, text = self._config, self._values.at_once().text
        secret = config.sasl_oauthbearer_client_credentials_client_secret
        client_id = text(_CLIENT_ID, config.sasl_oauthbearer_client_credentials_client_id)
        client_secret = text(_CLIENT_SECRET, secret)
        scope = text(_SCOPE, config.sasl_oauthbearer_scope)
        files = {
            name: text(f"{_ASSERTION}.{name}", value)
            for name, value in (
                ("file", config.sasl_oauthbearer_assertion_file),
                ("private.key.file", config.sasl_oauthbearer_assertion_private_key_file),
                ("template.file", config.sasl_oauthbearer_assertion_template_file),
            )
        }
        claims = AssertionClaims(
            text(f"{_ASSERTION}.claim.aud", config.sasl_oauthbearer_assertion_claim_aud),
            text(f"{_ASSERTION}.claim.iss", config.sasl_oauthbearer_assertion_claim_iss),
            text(f"{_ASSERTION}.claim.sub", config.sasl_oauthbearer_assertion_claim_sub),
            config.sasl_oauthbearer_assertion_claim_exp_seconds,
            config.sasl_oauthbearer_assertion_claim_nbf_seconds,
            has_jti=config.sasl_oauthbearer_assertion_claim_jti_include,
        )
        client_id = _trimmed(client_id, jaas.get("clientId"))
        client_secret = _trimmed(client_secret, jaas.get("clientSecret"))
        scope = _trimmed(scope, jaas.get("scope"))
        # Find encoding errors before a request is made. The errors of `utf8` do not show the text.
        for name, value in (
            (_CLIENT_ID, client_id),
            (_CLIENT_SECRET, client_secret),
            (_SCOPE, scope),
        ):
            utf8(value or "", str(Option(name)))
        return OAuthSettings(
            _CLIENT_CREDENTIALS if retriever == _DEFAULT else retriever,
            url=url,
            shown_url=given if self._values.has_reference(given) else shown_url(url),
            client_id=client_id,
            client_secret=client_secret,
            scope=scope,
            encodes_header=config.sasl_oauthbearer_header_urlencode,
            assertion_file=files["file"],
            key_file=files["private.key.file"],
            passphrase=text(
                f"{_ASSERTION}.private.key.passphrase",
                config.sasl_oauthbearer_assertion_private_key_passphrase,
            ),
            template_file=files["template.file"],
            algorithm=config.sasl_oauthbearer_assertion_algorithm,
            claims=claims,
            extensions=extensions,
            tls=self._endpoint_tls() if is_encrypted(url) else None,
            # 0 means the default here, and no limit in Java.
            times_ms=(
                config.sasl_login_connect_timeout_ms or _TIMEOUT_MS,
                config.sasl_login_read_timeout_ms or _TIMEOUT_MS,
            ),
        )

    def _endpoint_tls(self) -> TlsSettings:
        """Return the TLS settings of the endpoint, from the ``ssl.*`` options in JAAS."""
        from spark_kafka_sink.network.ssl_options import tls_settings  # noqa: PLC0415 - imports ssl

        jaas = self._config.sasl_jaas_config
        text = "" if jaas is None else jaas.value
        if self._values.is_reference(text):
            return self._tls_of_reference(text.strip())
        config = _endpoint_config(parse_jaas(text).options if text else {})
        with _named_in_jaas():
            return tls_settings(config, self._values)

    def _tls_of_reference(self, reference: str) -> TlsSettings:
        """Return the TLS settings of the endpoint if the whole JAAS text is one reference.

        Error messages show the reference, but no part of its resolved value.
        """
        from spark_kafka_sink.network.ssl_options import tls_settings  # noqa: PLC0415 - imports ssl

        options = parse_jaas(self._values.resolved("sasl.jaas.config", reference)).options
        try:
            config = _endpoint_config(options)
        except ConfigException:
            config = None
        # Raised outside the handler, because the caught exception shows a value.
        if config is None:
            raise ConfigException(
                f"{Option('sasl.jaas.config')} ({reference}) has an invalid option ssl.…: check "
                "the names and values of its ssl.… options (messages do not show them)"
            )
        shown = {name: reference for name in _SHOWN_OF_TLS if getattr(config, name)}
        config = msgspec.structs.replace(config, **shown)
        with _named_in_jaas():
            return tls_settings(config, _GivenValues(config, options))

    def _retriever(self, written: str) -> str:
        given = self._values.resolved(_RETRIEVER, written)
        simple = given.rpartition(".")[2]
        if simple in _RETRIEVERS and (simple == given or _JAVA_CLASS.search(given)):
            return simple
        if _JAVA_CLASS.fullmatch(given) or "." not in given:
            raise ConfigException(
                f"{Option(_RETRIEVER)} is {shown_value(written)}: expected one of Java's "
                f"{', '.join(_RETRIEVERS)}, or module.Name of a Python callable; no other Java "
                "class can be used"
            )
        return given

    def _check_url(self, retriever: str, url: str | None, *, is_file: bool) -> None:
        option = str(Option(_URL))
        if url is None:
            raise ConfigException(
                f"{option} is not set: expected https://host/path, or file:///path of a file with "
                "the token"
            )
        if is_file and retriever in (_CLIENT_CREDENTIALS, _JWT_BEARER):
            raise ConfigException(
                f"{option} is the URL of a file, which {retriever} cannot use: change "
                f"{Option(_RETRIEVER)}, or the URL"
            )
        if not is_file and retriever == _FILE:
            raise ConfigException(
                f"{option} is not the URL of a file, but {_FILE} reads a file: expected file:///path"
            )
        if not is_file:
            from spark_kafka_sink.network.http import check_url  # noqa: PLC0415 - imports urllib

            check_url(option, url)
        self._values.check_url(url, f"the URL that {option} names")

    def _extensions(self, jaas: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """Return the extensions of OAUTHBEARER. As in Java, unknown options have no effect."""
        for name in jaas:
            if not name.startswith((EXTENSION, "ssl.")) and name not in _IN_JAAS:
                # The name is not shown: it may be a part of a secret that is not in quotes.
                warn_once(
                    logger,
                    f"{Option('sasl.jaas.config')} has an option that OAuthBearerLoginModule does "
                    f"not have, and that has no effect: expected {', '.join(_IN_JAAS)}, "
                    f"{EXTENSION}… or ssl.…",
                )
        found = {
            name.removeprefix(EXTENSION): value
            for name, value in jaas.items()
            if name.startswith(EXTENSION)
        }
        text = self._config.sasl_jaas_config
        try:
            return tuple(checked_extensions(found).items())
        except ConfigException:
            if text is None or not self._values.is_reference(text.value):
                raise
        # Raised outside the handler, because the caught exception shows a name.
        raise ConfigException(
            f"{Option('sasl.jaas.config')} ({text.value.strip()}) has an invalid option "
            f"{EXTENSION}…: expected {EXTENSION}NAME, where NAME has only letters and is not auth, "
            "and a value of printable ASCII characters"
        )


def user_claim(config: ProducerConfig, values: OptionValues) -> str:
    """Return the name of the claim that contains the user of a token."""
    return values.resolved(_USER_CLAIM, config.sasl_oauthbearer_sub_claim_name)


def user_of_file(config: ProducerConfig, values: OptionValues) -> str:
    """Return what identifies the user of the token, assertion or template in a file.

    The result is an empty string without such a file. For a token or an assertion, it is the claim
    with the user, or a digest of the text if there is no such claim. For a template, it is a digest
    of the claims `iss` and `sub`. Raise the exceptions of `OAuth` and of `OAuth.file_token`.
    """
    url = values.text(_URL, config.sasl_oauthbearer_token_endpoint_url)
    files = (
        config.sasl_oauthbearer_assertion_file,
        config.sasl_oauthbearer_assertion_template_file,
    )
    if (url is None or _FILE_URL.fullmatch(url) is None) and files == (None, None):
        return ""
    return OAuth(config, values).user_of_file(user_claim(config, values))


def _user_or_digest(token: str, claim: str) -> str:
    return subject(token, claim) or hashlib.sha256(token.encode()).hexdigest()


def _digest(values: list[object]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _user(settings: OAuthSettings, form: Mapping[str, str]) -> tuple[object, ...]:
    """Return the values that identify the user of a token. They contain no secrets.

    They include the endpoint and the extensions, because a different tenant may have a client of
    the same name. For a Python callable, they are only its name and the extensions. A token in a
    file names its user itself. form: the form of the token request, or an empty mapping.
    """
    if settings.path is not None or not settings.is_java:
        return settings.retriever, settings.extensions
    found = assertion_in(form)
    names = settings.client_id, subject(found, "iss"), subject(found)
    return *names, settings.url, settings.extensions


def _trimmed(option: str | None, in_jaas: str | None) -> str | None:
    """Return the option's value, or the JAAS value if the option is unset; trimmed, as in Java."""
    value = in_jaas if option is None else option
    return None if value is None else value.strip() or None


def _as_written(config: ProducerConfig) -> tuple[object, ...]:
    """Return the options from which `OAuthSettings` are made, with references unresolved.

    A reference may resolve to a different identity at the next fetch. So a client with references
    must not share its source with a client without references.
    """
    found = [
        getattr(config, each.name)
        for each in option_fields()
        if each.name.startswith("sasl_oauthbearer_")
    ]
    return (*found, config.sasl_jaas_config, config.config_providers)


def renewal_options(config: ProducerConfig) -> tuple[RefreshWindow, ExponentialBackoff]:
    """Return when to refresh tokens, and the back-off after a failed fetch."""
    window = RefreshWindow(
        config.sasl_login_refresh_window_factor,
        config.sasl_login_refresh_window_jitter,
        config.sasl_login_refresh_min_period_seconds,
        config.sasl_login_refresh_buffer_seconds,
    )
    backoff = ExponentialBackoff.of_ms(
        config.sasl_login_retry_backoff_ms, config.sasl_login_retry_backoff_max_ms
    )
    return window, backoff


def _named_in_jaas() -> AbstractContextManager[None]:
    """Context manager: error messages say that an option is inside `sasl.jaas.config`."""
    return name_options(f"{Option('sasl.jaas.config')}: ".__add__)


def _certificate_hint() -> str:
    """Return the advice for an error message about a rejected certificate of the endpoint."""
    return (
        "set ssl.truststore.location or ssl.truststore.certificates inside "
        f"{Option('sasl.jaas.config')} to the certificate of its CA, unless the system trusts that "
        "CA"
    )


def _endpoint_config(jaas: Mapping[str, str]) -> ProducerConfig:
    """Return a configuration with the ``ssl.*`` options of JAAS, with references unresolved.

    Raise ConfigException if an option is invalid.
    """
    options = {name: value for name, value in jaas.items() if name.startswith("ssl.")}
    if options.get("ssl.protocol") == "SSL":  # Java's other name of TLS, in many JAAS texts
        options["ssl.protocol"] = "TLS"
    for name in sorted(_OF_JAVA & options.keys()):
        del options[name]
        warn_once(logger, f"{Option('sasl.jaas.config')}: {name} has no effect: {REFUSED[name]}")
    with _named_in_jaas():
        return producer_config(
            {"bootstrap.servers": "none:1", "security.protocol": "SSL", **options}
        )


class _GivenValues(OptionValues):
    """Returns the option values in `given`, whose references (``${…}``) are already resolved."""

    def __init__(self, config: ProducerConfig, given: Mapping[str, str]) -> None:
        super().__init__(config)
        self._given = given

    def resolved(self, option: str, text: str) -> str:
        """Return the option's value, trimmed as in Java."""
        return trimmed(self._given.get(option, text))
