"""Security: the TLS and SASL of a client's connections, from its configuration.

Producer, admin client and reader all use it. Files are read again for each connection, so that the
next connection uses a replaced certificate. Equal contents share one TLS context. Invalid files are
reported when the client is constructed. Without TLS, the module ssl is not imported.

Values may contain references, such as ``${env:NAME}``. They are resolved for each connection, in
the process that connects, so that no plan, pickle or producer pool contains the resolved values.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from spark_kafka_sink.auth.delegation_tokens import (
    CLOCK_SKEW_MS,
    FRESH_MS,
    TOKEN_MECHANISM_OPTION,
    delegation_token,
    is_fresh,
    refusal_hint,
)
from spark_kafka_sink.auth.mechanisms import (
    AWS_MSK_IAM,
    GSSAPI,
    OAUTHBEARER,
    OTHER_USER,
    PLAIN,
    PlainExchange,
    SaslExchange,
    checked_mechanism,
)
from spark_kafka_sink.auth.oauthbearer import (
    OAuthBearerExchange,
    OAuthBearerToken,
    ends_with_token,
    subject,
    token_facts,
)
from spark_kafka_sink.auth.scram import KeyCache, ScramExchange
from spark_kafka_sink.config import ProducerConfig, option_fields
from spark_kafka_sink.errors import (
    ConfigException,
    KafkaException,
    Option,
    SaslAuthenticationException,
    SslAuthenticationException,
)
from spark_kafka_sink.logs import may_be_key, shown_value, warn_once
from spark_kafka_sink.model import DelegationToken, Node, Secret
from spark_kafka_sink.network.aws_credentials import AwsTokens, aws_identity
from spark_kafka_sink.network.kerberos import Kerberos
from spark_kafka_sink.network.login import TokenSource
from spark_kafka_sink.network.oauth import EXTENSION, OAuth, user_claim, user_of_file
from spark_kafka_sink.network.option_values import OptionValues
from spark_kafka_sink.network.sasl_authenticator import Login
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.ssl_options import tls_settings

if TYPE_CHECKING:
    from spark_kafka_sink.network.tls import TlsContext, TlsLayer, TlsSettings

logger = logging.getLogger(__name__)

# The secret that each of these mechanisms sends to the broker without hashing it, for a warning.
_SENT_IN_CLEAR: Final = {
    PLAIN: "PLAIN password",
    OAUTHBEARER: "OAuth token",
    AWS_MSK_IAM: "AWS token",
}
# The options that determine the user, outside and inside JAAS. The same client name may belong to a
# different user at a different token endpoint, or with different extensions. A different Python
# callable may return the tokens of a different user.
_NAMES: Final = frozenset(
    {
        "sasl_username",
        "sasl_kerberos_principal",
        "sasl_oauthbearer_client_credentials_client_id",
        "sasl_oauthbearer_assertion_claim_iss",
        "sasl_oauthbearer_assertion_claim_sub",
        "sasl_oauthbearer_jwt_retriever_class",
        "sasl_oauthbearer_token_endpoint_url",
    }
)
_NAMES_IN_JAAS: Final = (
    "username", "principal", "clientId", "awsProfileName", "awsRoleArn", "awsRoleSessionName",
)  # fmt: skip
_KEY_CACHE: Final = KeyCache()
os.register_at_fork(after_in_child=_KEY_CACHE.forget)


@dataclass(frozen=True, slots=True)
class _Credentials:
    """A user and a password.

    user: the user name to send. name: the user name in error messages, with references unresolved.
    """

    user: str = field(repr=False)
    password: str = field(repr=False)
    name: str
    is_token: bool = False

    def description(self, mechanism: str) -> str:
        """Return a description of the credentials for error messages."""
        kind = "the delegation token" if self.is_token else "user"
        return f"of {kind} {shown_value(self.name)} by {mechanism}"


class _TokenHint:
    """An object whose str() is the likely reason why brokers reject the delegation token now."""

    def __init__(self, token: DelegationToken | None) -> None:
        self._token = token

    def __str__(self) -> str:
        return refusal_hint(self._token, time.time() * 1000)


def login_identity(config: ProducerConfig) -> str:
    """Return a key that changes if the same configuration would log in as a different user.

    For GSSAPI, the key is the principal in the ticket cache. For OAUTHBEARER, it is the user of the
    token, assertion or template in a file. For AWS_MSK_IAM, it is a digest of the long-term access
    key, or of the role of a profile. Without SASL, it is a digest of the subject of the client
    certificate, if the certificate is in a file or set by a reference. If options that determine
    the user contain references (``${…}``), the key is a digest that includes their values. Such
    options are user, client and role names, the token endpoint, the Python callable, and the
    extensions of OAUTHBEARER. The key is an empty string if the options alone determine the user.
    It does not depend on tokens of an endpoint or a Python callable, or on session tokens of AWS.

    Raise KafkaException if the user cannot be found. The login would raise it, too. If this
    function returned a key instead, two users could share a producer.
    """
    if config.has_sasl:
        return _identity(config, checked_mechanism(config.sasl_mechanism))
    return _identity_of_certificate(config) if config.has_tls else ""


def _identity_of_certificate(config: ProducerConfig) -> str:
    values = OptionValues(config)
    chain = config.ssl_keystore_certificate_chain
    is_in_options = chain is None or not values.has_reference(chain.value)
    if config.ssl_keystore_location is None and is_in_options:
        return ""
    from spark_kafka_sink.network.tls import client_context  # noqa: PLC0415 - imports ssl

    subject_der = client_context(tls_settings(config, values)).subject
    return "" if subject_der is None else hashlib.sha256(subject_der).hexdigest()


def _identity(config: ProducerConfig, mechanism: str) -> str:
    values = OptionValues(config)
    user = ""
    if mechanism == GSSAPI:
        user = Kerberos(config, values, lambda: None).identity()
        if user:
            return user
    elif config.has_aws_tokens:
        user = aws_identity(config, values)
    elif mechanism == OAUTHBEARER:
        user = user_of_file(config, values)
    names = _names_by_references(config, values, mechanism)
    return _digest([user, *names]) if names else user


def _names_by_references(
    config: ProducerConfig, values: OptionValues, mechanism: str
) -> list[tuple[str, str]]:
    """Return the options that specify the user with a reference (``${…}``), and their values."""
    found = [
        (each.encode_name, values.resolved(each.encode_name, given))
        for each in option_fields()
        if each.name in _NAMES and values.has_reference(given := getattr(config, each.name) or "")
    ]
    jaas = config.sasl_jaas_config
    if jaas is None:
        return found
    written = values.references_of_jaas(jaas.value)
    if written is not None and not any(map(_is_name_in_jaas, written)):
        return found
    given_there = values.jaas(jaas.value, mechanism).options
    names = [*filter(_is_name_in_jaas, sorted(given_there if written is None else written))]
    return [*found, *((name, given_there.get(name, "")) for name in names)]


def _is_name_in_jaas(option: str) -> bool:
    return option in _NAMES_IN_JAAS or option.startswith(EXTENSION)


def _digest(values: list[Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def resolved_login(config: ProducerConfig) -> str:
    """Return a digest of the SASL options with their references (``${…}``) resolved now.

    If a file contains an OAuth token, assertion or template, the digest includes its user. If two
    logins have the same configuration, `login_identity` and digest, their user is the same. Raise
    KafkaException if a reference has no value, or if the file contains no token.
    """
    mechanism = checked_mechanism(config.sasl_mechanism)
    values = OptionValues(config).at_once()
    found: list[Any] = []
    for each in option_fields():
        given = getattr(config, each.name)
        if not each.name.startswith("sasl_") or not isinstance(given, str | Secret):
            continue
        if each.name == "sasl_jaas_config" and isinstance(given, Secret):
            found.append(sorted(values.jaas(given.value, mechanism).options.items()))
        else:
            found.append(values.text(each.encode_name, given))
    if mechanism == OAUTHBEARER and not config.has_aws_tokens:
        found.append(user_of_file(config, values))
    return _digest(found)


class _TokenLogin:
    """The logins of a connection with OAuth or AWS tokens. Its str() describes the last token.

    token: returns the valid token, or None while it is being fetched. It is called when this object
    is made, and again for each exchange. For a token from a file (`source` is None), the first
    exchange uses the token of the first call instead.
    """

    def __init__(
        self,
        token: Callable[[], OAuthBearerToken | None],
        source: TokenSource | None,
        *,
        shows_facts: bool,
    ) -> None:
        self._token = token
        self._source = source
        self._shows_facts = shows_facts
        self._first = self._last = token()
        self._last_at = time.time()
        self._ends_with_token = False

    def __str__(self) -> str:
        if not self._shows_facts:
            return f"by {AWS_MSK_IAM}"
        facts = "there is no token" if self._last is None else token_facts(self._last.value)
        return f"by {OAUTHBEARER} ({facts})"

    def exchange(self) -> SaslExchange | None:
        """Return a SASL exchange, or None while the token is being fetched.

        Raise SaslAuthenticationException if no token can be fetched.
        """
        first, self._first = self._first, None
        try:
            # A fetched token may have expired while the connection was made.
            token = first if first is not None and self._source is None else self._token()
        except ConfigException as error:
            raise SaslAuthenticationException(str(error)) from None
        if token is None:
            return None
        now = time.time()
        if self._source is None:
            self._last = token
            return OAuthBearerExchange(token)
        is_renewal = first is None and token is self._last
        if is_renewal and self._ends_with_token:
            # A new session with the same token would end at the same time.
            self._source.refresh(token)
            return None
        self._last, self._last_at = token, now
        source = self._source
        return OAuthBearerExchange(token, refused=source.refused, accepted=source.accepted)

    def accepted(self, lifetime_s: float) -> None:
        """Record whether the new session ends when its token expires."""
        token = self._last
        self._ends_with_token = token is not None and ends_with_token(
            token, self._last_at, lifetime_s
        )

    def refused(self) -> None:
        """Record in the source that a broker rejected the last token with an error code.

        Some brokers send only this error. Apache Kafka sends a challenge first, and the exchange
        records it. The second record of the same rejection changes nothing.
        """
        if self._source is not None and self._last is not None:
            self._source.refused(self._last)


class Security:
    """Makes the TLS layers and the SASL logins of connections.

    Raise ConfigException if the configuration is invalid. wake: called from another thread when the
    login that a connection waits for is ready. is_one_of_many: whether other processes log in at
    the same time. identity: the result of `login_identity`, or an empty string if it is not known.
    Each login must be of this user. If the user is not known, each login must be of the user whose
    token was read first.
    """

    def __init__(
        self, config: ProducerConfig, *, is_one_of_many: bool = False, identity: str = ""
    ) -> None:
        self._config = config
        self._identity = identity
        # The user name of the first login, and the subject of the first token.
        self._user = ""
        self._subject = ""
        self._values = OptionValues(config)
        self.wake: Callable[[], None] = lambda: None
        self._is_closed = False
        # The driver may have just created the token of a task. The token's issue time does not show
        # this reliably, because the clocks of the two machines may differ.
        self._fresh_until = time.monotonic() + (FRESH_MS / 1000 if is_one_of_many else 0.0)
        self._oauth: OAuth | AwsTokens | None = None
        self._kerberos: Kerberos | None = None
        # The subject of the client's certificate; None if brokers take the user from SASL.
        self._certificate: bytes | None = None
        if config.has_tls:
            context = self._context(self._settings())
            if not config.has_sasl:
                self._certificate = context.subject
                self._check_identity()
        if config.has_sasl:
            self._mechanism = self._checked_mechanism()
            self._check_credentials(is_one_of_many=is_one_of_many)
            self._check_identity()
            sent = _SENT_IN_CLEAR.get(self._mechanism)
            if sent is not None and not config.has_tls:
                warn_once(
                    logger,
                    f"{Option('security.protocol')}=SASL_PLAINTEXT sends the {sent} unencrypted: "
                    "anyone on the network can read it",
                )

    @classmethod
    def of(
        cls, config: ProducerConfig, *, is_one_of_many: bool = False, identity: str = ""
    ) -> Self | None:
        """Return the Security object of a configuration, or None for PLAINTEXT."""
        if config.security_protocol == "PLAINTEXT":
            return None
        return cls(config, is_one_of_many=is_one_of_many, identity=identity)

    def close(self) -> None:
        """Stop calling `wake`."""
        self._is_closed = True
        self.wake = lambda: None
        if self._oauth is not None and self._oauth.source is not None:
            self._oauth.source.detach(self)

    def reopen(self) -> None:
        """Make logins again after `close`, for new connections of the same client.

        They log in as the same user as the connections before.
        """
        if self._is_closed and self._oauth is not None and self._oauth.source is not None:
            self._oauth.source.attach(self)
        self._is_closed = False

    @property
    def selector_class(self) -> type[Selector]:
        """The class of the selector for these connections."""
        if not self._config.has_tls:
            return Selector
        from spark_kafka_sink.network.tls_selector import TlsSelector  # noqa: PLC0415 - imports ssl

        return TlsSelector

    def layer(self, node: Node) -> TlsLayer | None:
        """Return the TLS layer of a new connection, or None without TLS.

        Raise ConfigException if a file cannot be used (any more), and SslAuthenticationException if
        the host's name cannot occur in a certificate, or if the subject of the client's certificate
        has changed.
        """
        if not self._config.has_tls:
            return None
        settings = self._settings()
        context = self._context(settings)
        if self._certificate not in (None, context.subject):
            raise SslAuthenticationException(
                f"the subject of the certificate in {settings.key_origin} has changed since this "
                f"client was created: {OTHER_USER}"
            )
        return context.layer(node.host, str(node))

    def has_login(self, node: Node) -> bool:
        """Return whether `login` can be called now. If not, `wake` is called when it can be."""
        if self._kerberos is not None:
            return self._kerberos.has_login(node)
        if self._oauth is None or self._oauth.source is None:
            return True
        try:
            return self._oauth.source.token() is not None
        except SaslAuthenticationException:
            return True

    def give_up(self, node: Node) -> None:
        """Discard the login that is being prepared. The next `has_login` prepares a new one."""
        if self._kerberos is not None:
            self._kerberos.give_up(node)

    @property
    def problem(self) -> str:
        """Why no login is possible now; an empty string if no reason is known.

        Any thread may read this.
        """
        if self._oauth is None or self._oauth.source is None:
            return ""
        return self._oauth.source.problem()

    @property
    def principal(self) -> str:
        """The name of the client's principal, if a certificate, token or ticket has shown it.

        Otherwise, it is empty, for example for mechanisms whose user is in the configuration. Any
        thread may read it.
        """
        if self._certificate is not None:
            from spark_kafka_sink.auth import x500_names  # noqa: PLC0415 - only denials need it

            return x500_names.distinguished_name(self._certificate)
        return self._subject if self._kerberos is None else self._kerberos.principal

    def login(self, node: Node, chance: float) -> Login | None:
        """Return the login of a new connection, or None without SASL.

        chance: as in `Login`. Raise KafkaException if the credentials cannot be used (any more).
        """
        if not self._config.has_sasl:
            return None
        if self._oauth is not None:
            is_aws = isinstance(self._oauth, AwsTokens)
            tokens = _TokenLogin(self._token, self._oauth.source, shows_facts=not is_aws)
            login = Login(
                tokens.exchange,
                tokens,
                chance,
                hint=self._hint(),
                accepted=tokens.accepted,
                refused=tokens.refused,
            )
            is_sent = self._mechanism == OAUTHBEARER
            return login if is_sent else replace(login, mechanism=self._mechanism)
        if self._kerberos is not None:
            return replace(self._kerberos.login(node, chance), hint=self._hint())
        given = self._credentials()
        # Find errors in the credentials before there is a connection.
        self._exchange(given)
        user = given.description(self._mechanism)
        token = delegation_token(self._config)
        hint = _TokenHint(token) if given.is_token else self._hint()
        login = Login(self._exchange_again, user, chance, given.is_token, hint)
        return login if token is None else replace(login, mechanism_option=TOKEN_MECHANISM_OPTION)

    def _hint(self) -> str:
        """Return which options to check if a broker rejects the credentials."""
        config = self._config
        if isinstance(self._oauth, AwsTokens):
            return "check the AWS credentials and their IAM policy"
        if self._oauth is not None:
            return f"check the token from {self._oauth.origin}"
        of_kerberos = self._kerberos is not None
        if config.sasl_jaas_config is not None:
            names = "username and password"
            if of_kerberos:
                names = "principal and the keytab or ticket cache"
            return f"check {names} in {Option('sasl.jaas.config')}"
        if not of_kerberos:
            return f"check {Option('sasl.username')} and {Option('sasl.password')}"
        keytab = config.sasl_kerberos_keytab
        tickets = "the ticket cache" if keytab is None else Option("sasl.kerberos.keytab")
        return f"check {Option('sasl.kerberos.principal')} and {tickets}"

    @property
    def may_be_accepted_later(self) -> bool:
        """Whether a rejected login may succeed soon: some brokers may not know a new token yet."""
        token = delegation_token(self._config)
        if token is None:
            return False
        skew_ms = CLOCK_SKEW_MS if time.monotonic() < self._fresh_until else 0
        return is_fresh(token, time.time() * 1000, skew_ms)

    def _checked_mechanism(self) -> str:
        """Return the SASL mechanism. Raise ConfigException if it is not supported."""
        config = self._config
        mechanism = checked_mechanism(config.sasl_mechanism)
        has_reference = self._values.has_reference_in_login
        if mechanism == PLAIN and not config.has_tls and has_reference(config):
            raise ConfigException(
                "a reference (${…}) in the credentials cannot be used with PLAIN over "
                "SASL_PLAINTEXT, which would send its value unencrypted to any server that "
                "bootstrap.servers names: use SASL_SSL or SCRAM"
            )
        return mechanism

    def _token(self) -> OAuthBearerToken | None:
        """Return the current token to log in with, or None while it is being fetched.

        Raise KafkaException if no token can be fetched.
        """
        if self._oauth is None:
            return None
        if self._oauth.source is not None:
            token = self._oauth.source.token()
        else:
            token = self._oauth.file_token()
        claim = user_claim(self._config, self._values)
        found = "" if token is None else subject(token.value, claim)
        if self._subject and found and found != self._subject:
            origin = self._oauth.origin if isinstance(self._oauth, OAuth) else AWS_MSK_IAM
            raise SaslAuthenticationException(
                f"the token from {origin} is now of {found!r}, and was of "
                f"{self._subject!r} before: {OTHER_USER}"
            )
        self._subject = found or self._subject
        return token

    def _check_identity(self) -> None:
        """Raise AuthenticationException if the user of the credentials is no longer `identity`."""
        if not self._identity or self._kerberos is not None:
            return
        if login_identity(self._config) == self._identity:
            return
        message = f"the user of the credentials changed while a client was created: {OTHER_USER}"
        if self._config.has_sasl:
            raise SaslAuthenticationException(message)
        raise SslAuthenticationException(message)

    def _check_credentials(self, *, is_one_of_many: bool) -> None:
        """Raise ConfigException if every login with the credentials would fail."""
        if self._config.has_aws_tokens:
            self._oauth = AwsTokens(self._config, self._values)
            self._oauth.source.attach(self)
        elif self._mechanism == OAUTHBEARER:
            self._oauth = OAuth(self._config, self._values, is_one_of_many=is_one_of_many)
            if self._oauth.source is not None:
                self._oauth.source.attach(self)
            else:
                # `_check_identity` compares the user of this token, and later logins must have it.
                # If the file has no valid token now, it may have one at the login.
                with suppress(KafkaException):
                    self._token()
        elif self._mechanism == GSSAPI:
            self._kerberos = Kerberos(self._config, self._values, self._wake_client, self._identity)
        else:
            self._exchange(self._credentials())

    def _wake_client(self) -> None:
        self.wake()

    def _exchange(self, given: _Credentials) -> SaslExchange:
        """Return a SASL exchange. Raise KafkaException if the credentials cannot be used."""
        if self._mechanism == PLAIN:
            return PlainExchange(given.user, given.password)
        return ScramExchange(
            self._mechanism,
            given.user,
            given.password,
            nonce=secrets.token_urlsafe(24),
            keys=_KEY_CACHE,
            is_token=given.is_token,
            name="***" if may_be_key(given.name) else given.name,
        )

    def _exchange_again(self) -> SaslExchange:
        """Return the SASL exchange of a re-authentication.

        Raise SaslAuthenticationException if the credentials are no longer valid.
        """
        try:
            return self._exchange(self._credentials())
        except ConfigException as error:
            raise SaslAuthenticationException(str(error)) from None

    def _credentials(self) -> _Credentials:
        """Return the user and the password. Raise ConfigException if one of them is not set."""
        config = self._config
        token = delegation_token(config)
        if token is not None:
            return _Credentials(token.token_id, token.hmac.value, token.token_id, is_token=True)
        jaas, user, password = config.sasl_jaas_config, config.sasl_username, config.sasl_password
        if jaas is not None:
            entry = self._values.jaas(jaas.value, self._mechanism)
            found = [entry.options.get(name, "") for name in ("username", "password")]
            is_token = entry.has_token(self._mechanism)
            name, shown = (
                self._values.shown_jaas(jaas.value, each) for each in ("username", "password")
            )
            where = Option("sasl.jaas.config")
            self._check_not_empty(f"username in {where}", found[0], name)
            self._check_not_empty(f"password in {where}", found[1], shown)
            return self._of_same_user(_Credentials(found[0], found[1], name, is_token=is_token))
        if user is None or password is None:
            raise ConfigException(
                f"{Option('security.protocol')}={config.security_protocol} needs credentials: set "
                f"{Option('sasl.jaas.config')}, or {Option('sasl.username')} and "
                f"{Option('sasl.password')}"
            )
        values = self._values.at_once()
        found = [
            values.resolved("sasl.username", user),
            values.resolved("sasl.password", password.value),
        ]
        self._check_not_empty(str(Option("sasl.username")), found[0], user)
        self._check_not_empty(str(Option("sasl.password")), found[1], password.value)
        return self._of_same_user(_Credentials(found[0], found[1], user))

    def _check_not_empty(self, name: str, value: str, written: str) -> None:
        """Raise ConfigException if a value is empty. The message shows the value's reference."""
        if value:
            return
        reference = f" ({written.strip()})" if self._values.has_reference(written) else ""
        raise ConfigException(
            f"{name}{reference} is unset or empty: {self._mechanism} needs a user name and a "
            "password"
        )

    def _of_same_user(self, given: _Credentials) -> _Credentials:
        """Return the credentials.

        Raise SaslAuthenticationException if their user is not the user of the earlier credentials.
        The ids of delegation tokens are not compared, because a user can have several tokens.
        """
        if not given.is_token and self._user not in {"", given.user}:
            raise SaslAuthenticationException(
                f"the user name is now {shown_value(given.name)}, but was another at the first "
                f"login: {OTHER_USER}"
            )
        self._user = given.user
        return given

    def _settings(self) -> TlsSettings:
        return tls_settings(self._config, self._values)

    def _context(self, settings: TlsSettings) -> TlsContext:
        from spark_kafka_sink.network.tls import client_context  # noqa: PLC0415 - imports ssl

        return client_context(settings)
