"""OAUTHBEARER (RFC 7628): the exchange, the claims of a token, and when to refresh it.

A token may be opaque. If it is a JWT, it normally contains its expiry time. Brokers verify the
signature of a token; this module does not.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from spark_kafka_sink.auth.mechanisms import OAUTHBEARER, printable
from spark_kafka_sink.errors import ConfigException, SaslAuthenticationException

# The characters of tokens that brokers accept (OAuthBearerClientInitialResponse in Java).
_TOKEN: Final = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7E \t\r\n]+")
_RESERVED: Final = "auth"
_SEPARATOR: Final = "\x01"
# By how much a session may be shorter than the life of its token, because the login takes time.
_LONGEST_LOGIN_S: Final = 2.5


@dataclass(frozen=True, slots=True)
class OAuthBearerToken:
    """A token and its times in seconds since 1970. A time that is unknown is None."""

    value: str = field(repr=False)
    expires_at: float | None = None
    issued_at: float | None = None
    extensions: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)


def bearer_token(
    value: str,
    now: float,
    *,
    expires_in: float | None = None,
    extensions: Mapping[str, str] | None = None,
) -> OAuthBearerToken:
    """Return a token that was received at `now`.

    expires_in: the lifetime in seconds that the endpoint returned. It is used only if the token
    itself contains no expiry time. Raise SaslAuthenticationException if brokers would not accept
    the token. Raise ConfigException for an invalid extension.
    """
    if not _TOKEN.fullmatch(value):
        raise SaslAuthenticationException(
            "the OAuth token has invalid characters or is empty: expected the "
            "token alone, without 'Bearer', quotes, or JSON around it"
        )
    claims = jwt_claims(value) or {}
    expires_at = _time(claims, "exp")
    if expires_at is None and expires_in is not None:
        expires_at = now + expires_in
    return OAuthBearerToken(
        value, expires_at, _time(claims, "iat"), checked_extensions(extensions or {})
    )


def checked_extensions(extensions: Mapping[str, str]) -> dict[str, str]:
    """Return the SASL extensions of a token (KIP-342). Raise ConfigException if one is invalid."""
    for name, value in extensions.items():
        if name == _RESERVED or not _EXTENSION_NAME.fullmatch(name):
            raise ConfigException(
                f"{name!r} is not the name of an OAUTHBEARER extension: expected a name of "
                f"letters only, other than {_RESERVED!r}"
            )
        if not _EXTENSION_VALUE.fullmatch(value):
            raise ConfigException(
                f"the extension {name!r} of OAUTHBEARER is empty or has characters that are not "
                "printable ASCII"
            )
    return dict(extensions)


def jwt_claims(token: str) -> Mapping[str, object] | None:
    """Return the claims of a JWT, unverified; None if the token is not a JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    padded = parts[1] + "=" * (-len(parts[1]) % 4)
    try:
        claims = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


def subject(token: str, claim: str = "sub") -> str:
    """Return the user in a claim of a JWT; an empty string if it is missing or not printable."""
    found = (jwt_claims(token) or {}).get(claim)
    return found if isinstance(found, str) and printable(found) == found else ""


def token_facts(token: str) -> str:
    """Return a text for messages that states a token's subject, audience and expiry time.

    The text does not contain the token.
    """
    claims = jwt_claims(token)
    if claims is None:
        return "the token is not a JWT"
    facts = [f"{name} {_fact(name, claims)}" for name in ("sub", "aud", "exp") if name in claims]
    return f"the token has {', '.join(facts) or 'no sub, aud or exp'}"


def _fact(name: str, claims: Mapping[str, object]) -> str:
    at = _time(claims, name) if name == "exp" else None
    if at is not None:
        try:
            return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
        except (ValueError, OverflowError, OSError):
            pass
    return printable(json.dumps(claims[name], ensure_ascii=False))


def _time(claims: Mapping[str, object], name: str) -> float | None:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) else None


@dataclass(frozen=True, slots=True)
class RefreshWindow:
    """The options `sasl.login.refresh.*`, with the Java client's defaults."""

    factor: float = 0.8
    jitter: float = 0.05
    min_period_s: float = 60.0
    buffer_s: float = 300.0


def refresh_at(
    window: RefreshWindow, *, now: float, issued_at: float | None, expires_at: float, chance: float
) -> float:
    """Return when to refresh a token that was received at `now`.

    issued_at: the start of the token's lifetime; if it is None, `now` is used. chance: a random
    number from 0 to 1. The rules are those of Java's ExpiringCredentialRefreshingLogin.
    """
    share = window.factor + window.jitter * chance
    if now + window.min_period_s + window.buffer_s > expires_at:
        # The lifetime is too short for the minimum period and the buffer.
        return now + max(0.0, expires_at - now) * share
    begin = now if issued_at is None else issued_at
    proposed = begin + (expires_at - begin) * share
    if proposed > expires_at - window.buffer_s:
        return expires_at - window.buffer_s
    return max(proposed, now + window.min_period_s)


def ends_with_token(token: OAuthBearerToken, begun_at: float, lifetime_s: float) -> bool:
    """Return whether a session ends when its token expires.

    If not, `connections.max.reauth.ms` of the broker ends the session earlier. begun_at: the time
    at which the login began. lifetime_s: the session lifetime that the broker returned. Even if the
    session ends with the token, this is a little shorter than the token's lifetime, because the
    login takes time.
    """
    if token.expires_at is None or token.expires_at <= begun_at:
        return False
    return lifetime_s >= token.expires_at - begun_at - _LONGEST_LOGIN_S


class OAuthBearerExchange:
    """One login with a token.

    A broker rejects a token with a response that is not an error. The error follows after the
    client has acknowledged that response. refused: called with the token if the broker rejects it.
    accepted: called with the token if the broker accepts it.
    """

    mechanism: Final = OAUTHBEARER

    def __init__(
        self,
        token: OAuthBearerToken,
        *,
        refused: Callable[[OAuthBearerToken], None] | None = None,
        accepted: Callable[[OAuthBearerToken], None] | None = None,
    ) -> None:
        self.is_complete = False
        self._token = token
        self.secrets = (token.value,)
        self._refused, self._accepted = refused, accepted
        self._refusal: str | None = None

    def first(self) -> bytes:
        """Return the token and its extensions."""
        pairs = [f"{name}={value}" for name, value in self._token.extensions.items()]
        fields = [f"auth=Bearer {self._token.value}", *pairs]
        return "".join(each + _SEPARATOR for each in ("n,,", *fields, "")).encode()

    def step(self, challenge: bytes) -> bytes | None:
        """Return None if the broker accepted the token, else the response to its rejection."""
        if self.is_complete or self._refusal is not None:
            if self._refusal is None:
                raise self._failed(
                    "the broker sent another message after it had accepted the token"
                )
            raise self._failed(f"the broker says: {self._refusal}")
        if not challenge:
            self.is_complete = True
            if self._accepted is not None:
                self._accepted(self._token)
            return None
        self._refusal = _status(challenge, self.secrets)
        if self._refused is not None:
            self._refused(self._token)
        return _SEPARATOR.encode()

    def _failed(self, why: str) -> SaslAuthenticationException:
        return SaslAuthenticationException(
            f"the login by {OAUTHBEARER} failed: {why}; {token_facts(self._token.value)}"
        )


def _status(answer: bytes, secrets: tuple[str, ...]) -> str:
    """Return the status in a broker's rejection, or the entire rejection if it has no status."""
    text = answer.decode(errors="replace")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    status = found.get("status") if isinstance(found, dict) else None
    return printable(status if isinstance(status, str) else text, secrets)
