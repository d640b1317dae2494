"""SaslAuthenticator: the SASL login and re-authentication of a connection.

It corresponds to Java's SaslClientAuthenticator. A SASL session may expire. Before it expires, the
connection re-authenticates (KIP-368). The re-authentication begins when the next request is to be
sent, so an idle connection needs no timer. The first request of the re-authentication follows the
requests in flight, so their responses come first. This module determines the next step of a login,
and `Connection` sends it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spark_kafka_sink import error_codes
from spark_kafka_sink.auth.mechanisms import SaslExchange, printable
from spark_kafka_sink.errors import (
    AuthenticationException,
    IllegalSaslStateException,
    KafkaException,
    Option,
    ProtocolError,
    SaslAuthenticationException,
    UnsupportedSaslMechanismException,
    error_code,
)
from spark_kafka_sink.wire.messages import SaslHandshakeResponse

# Brokers reject a second re-authentication of a session within a second.
_RENEWAL_PAUSE_S: Final = 1.0
# If there are no credentials, wait this long before the next request to a KDC, because the KDC may
# lock the account.
_FAILURE_PAUSE_S: Final = 1.0
# A slow broker may read a request some time after it was sent.
_SLOWNESS_S: Final = 2.0
# The limits for the steps of one exchange, and for the size of the broker's tokens in them. Every
# mechanism needs far less.
_MOST_STEPS: Final = 20
_MOST_TOKEN_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Login:
    """The login of a connection.

    exchange: starts a SASL exchange. It returns None while there are no credentials, and raises
    SaslAuthenticationException if no credentials can be obtained. user: str(user) is the user in
    error messages. chance: a random number from 0 to 1, so that connections re-authenticate at
    different times. is_token: whether the login uses a delegation token; then a session lifetime of
    0 means that the token has expired. hint: str(hint) is the advice if a broker rejects the
    credentials; it may be empty. mechanism_option: the option that sets the mechanism, for error
    messages. mechanism: the value of this option if a different mechanism is sent to brokers, as
    for AWS_MSK_IAM; otherwise empty. accepted: called after each login with the lifetime of the
    session in seconds, or 0 for no limit. refused: called if a broker rejects the credentials with
    an error code.
    """

    exchange: Callable[[], SaslExchange | None]
    user: object
    chance: float = 0.0
    is_token: bool = False
    hint: object = ""
    mechanism_option: object = Option("sasl.mechanism")
    mechanism: str = ""
    accepted: Callable[[float], None] | None = None
    refused: Callable[[], None] | None = None


class SaslAuthenticator:
    """Runs the SASL exchanges of a connection, one after the other. Times are in seconds.

    login: None for a connection without SASL. node_id, peer: the node's id, and its name in error
    messages.
    """

    def __init__(self, login: Login | None, peer: str, node_id: int) -> None:
        self._login = login
        self._peer = peer
        self._node_id = node_id
        self._exchange: SaslExchange | None = None
        self._steps = self._token_bytes = 0
        self._renewals: list[float] = []
        self._renew_at = self._ends_at = self._began_at = float("inf")
        self._logged_in_at = self._failed_at = float("-inf")

    @property
    def is_used(self) -> bool:
        """Whether the connection has a login."""
        return self._login is not None

    def take_renewals(self) -> list[float]:
        """Return the duration in seconds of each re-authentication since the last call."""
        renewals, self._renewals = self._renewals, []
        return renewals

    def begin(self, now: float) -> str | None:
        """Start an exchange. Return its mechanism, or None if the credentials are not there yet.

        Raise KafkaException if they could not be obtained.
        """
        try:
            exchange = None if self._login is None else self._login.exchange()
        except KafkaException:
            self._failed_at = now
            raise
        if exchange is None:
            return None
        self._exchange, self._began_at = exchange, now
        self._steps = self._token_bytes = 0
        return exchange.mechanism

    def check_handshake(self, response: SaslHandshakeResponse, *, is_renewal: bool) -> None:
        """Raise an AuthenticationException if the broker does not accept the mechanism."""
        code = response.error_code
        if code == error_codes.UNSUPPORTED_SASL_MECHANISM:
            mechanism = "" if self._exchange is None else self._exchange.mechanism
            offered = printable(", ".join(response.mechanisms), self._secrets) or "none"
            login = self._login
            option = "" if login is None else login.mechanism_option
            if login is not None and login.mechanism:
                raise UnsupportedSaslMechanismException(
                    f"{self._peer} does not offer the mechanism {mechanism}, which "
                    f"{option}={login.mechanism} needs: it offers {offered}; have the broker "
                    f"offer {mechanism}"
                )
            raise UnsupportedSaslMechanismException(
                f"{self._peer} does not offer the mechanism {mechanism}: it offers {offered}; set "
                f"{option} to one that it offers, or have the broker offer it"
            )
        if code == error_codes.ILLEGAL_SASL_STATE and not is_renewal:
            raise IllegalSaslStateException(
                f"{self._peer} does not accept a SASL login on this listener: compare the port and "
                f"{Option('security.protocol')} with the broker's listeners"
            )
        if code != error_codes.NONE:
            raise self.refusal(code, None)

    def refusal(self, code: int, words: str | None) -> AuthenticationException:
        """Return the exception for a login that a broker refused. words: the broker's message.

        If the broker rejected the credentials, call `Login.refused`.
        """
        user = "" if self._login is None else f" {self._login.user}"
        said = printable(words, self._secrets) if words else error_code(code).name
        sentence = f"{self._peer} refused the login{user}: {said} ({code})"
        if code == error_codes.ILLEGAL_SASL_STATE:
            return IllegalSaslStateException(sentence)
        if self._login is not None and code == error_codes.SASL_AUTHENTICATION_FAILED:
            hint = str(self._login.hint)
            sentence += f"; {hint}" if hint else ""
            if self._login.refused is not None:
                self._login.refused()
        return SaslAuthenticationException(sentence)

    def first(self) -> bytes:
        """Return the client's first token of the exchange."""
        return self._open_exchange().first()

    def step(self, token: bytes) -> bytes | None:
        """Return the response to the broker's token, or None if the exchange is complete."""
        exchange = self._open_exchange()
        self._steps += 1
        self._token_bytes += len(token)
        if self._steps > _MOST_STEPS:
            raise SaslAuthenticationException(
                f"{self._peer} still sends SASL challenges after {_MOST_STEPS} steps of the login"
            )
        if self._token_bytes > _MOST_TOKEN_BYTES:
            raise SaslAuthenticationException(
                f"{self._peer} has sent SASL challenges of more than {_MOST_TOKEN_BYTES} bytes in "
                "one login"
            )
        try:
            answer = exchange.step(token)
        except SaslAuthenticationException as error:
            raise SaslAuthenticationException(f"{self._peer}: {error}") from None
        if answer is None and not exchange.is_complete:
            raise SaslAuthenticationException(f"{self._peer} ended the SASL login too early")
        return answer

    @property
    def _secrets(self) -> tuple[str, ...]:
        return () if self._exchange is None else self._exchange.secrets

    @property
    def is_complete(self) -> bool:
        """Whether the client has sent its last token and has nothing more to verify."""
        return self._exchange is not None and self._exchange.is_complete

    def _open_exchange(self) -> SaslExchange:
        if self._exchange is None:
            message = f"{self._peer} sent a SASL token that was not requested"
            raise ProtocolError(message, node_id=self._node_id)
        return self._exchange

    def completed(self, lifetime_ms: int | None, now: float, *, is_renewal: bool) -> None:
        """Record the end of the exchange and the lifetime of the session.

        lifetime_ms: 0 for no limit, or None if the broker does not return it.
        """
        self._exchange = None
        if lifetime_ms == 0 and self._login is not None and self._login.is_token:
            # Brokers accept an expired delegation token until they delete it, and then close the
            # connection.
            code = error_codes.SASL_AUTHENTICATION_FAILED
            raise self.refusal(code, "the delegation token has expired")
        self._logged_in_at = now
        if is_renewal:
            self._renewals.append(now - self._began_at)
        lifetime_s = (lifetime_ms or 0) / 1000
        self._renew_at = now + self._time_to_renew(lifetime_s)
        self._ends_at = now + lifetime_s
        if self._login is not None and self._login.accepted is not None:
            self._login.accepted(lifetime_s)

    def _time_to_renew(self, lifetime_s: float) -> float:
        """Return the seconds until re-authentication (see Java's SaslClientAuthenticator)."""
        if lifetime_s <= 0:
            return float("inf")
        chance = 0.0 if self._login is None else self._login.chance
        share = lifetime_s * (0.85 + 0.1 * chance)
        return min(share, lifetime_s - _SLOWNESS_S) if lifetime_s > 1.5 * _SLOWNESS_S else share

    def may_renew(self, now: float) -> bool:
        """Return whether to re-authenticate now: it is due, and the last login is not recent."""
        # The pause begins at the end of the last login, because a slow broker may have read the
        # first request of that login late.
        if now < self._renew_at or now < self._logged_in_at + _RENEWAL_PAUSE_S:
            return False
        # After the session's end, do not wait, because the broker rejects all other requests.
        return self.is_over(now) or now >= self._failed_at + _FAILURE_PAUSE_S

    def is_over(self, now: float) -> bool:
        """Return whether the session has ended."""
        return now >= self._ends_at
