"""Delegation tokens (KIP-48): when to renew or replace a token, and how clients log in with it.

This module does not read a clock: times are arguments, in milliseconds since 1970. With the default
config of brokers, a token expires after 24 hours without a renewal, and after 7 days at most. The
driver then renews and replaces tokens as follows::

    0 h            18 h           36 h    …    126 h                       168 h
    created        renewed        renewed      another one is created      the end of its life
    └─ 75 % of the time to its expiry ─┘       └─ 75 % of its life

A replaced token stays valid for a while, so that running tasks can still use it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Final, Self

import msgspec

from spark_kafka_sink.auth.mechanisms import SCRAM_SHA_256, SCRAM_SHA_512
from spark_kafka_sink.config import ProducerConfig, option_fields
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.model import DelegationToken

DEFAULT_MECHANISM: Final = SCRAM_SHA_512
TOKEN_MECHANISM_OPTION: Final = "delegationToken.mechanism"  # noqa: S105 - a name
"""The option of the sink that sets the SASL mechanism of tasks."""
_MECHANISMS: Final = (SCRAM_SHA_256, SCRAM_SHA_512)
# A token is renewed or replaced after this fraction of its lifetime, so that running tasks can
# still use it.
_USED_UP: Final = 0.75
# For this long after its creation, some brokers may not know a new token yet.
FRESH_MS: Final = 10_000
CLOCK_SKEW_MS: Final = 300_000
"""How much the clocks of two machines may differ. Kerberos has the same limit."""
_EXPIRY: Final = "delegation.token.expiry.time.ms"
_MAX_LIFETIME: Final = "delegation.token.max.lifetime.ms"


class TokenAction(Enum):
    """The action to take on a token before it is used."""

    KEEP = "keep"
    RENEW = "renew"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class TokenLife:
    """A token, and when it was last renewed; all times are by this machine's clock."""

    token: DelegationToken
    renewed_ms: int

    @classmethod
    def created(cls, token: DelegationToken, now_ms: int) -> Self:
        """Return the TokenLife of a token that was created just now.

        The times in `token` are by the brokers' clock. The difference between the two clocks is
        taken to be `now_ms` minus the token's issue time.
        """
        return cls.known(token, now_ms, now_ms - token.issue_timestamp_ms)

    @classmethod
    def known(cls, token: DelegationToken, renewed_ms: int, ahead_ms: int) -> Self:
        """Return the TokenLife of a token whose times were read from the brokers' clock.

        ahead_ms: how far this machine's clock is ahead of the brokers' clock.
        """
        here = replace(
            token,
            issue_timestamp_ms=token.issue_timestamp_ms + ahead_ms,
            expiry_timestamp_ms=token.expiry_timestamp_ms + ahead_ms,
            max_timestamp_ms=token.max_timestamp_ms + ahead_ms,
        )
        return cls(here, renewed_ms)

    def renewed(self, expiry_timestamp_ms: int, ahead_ms: int, now_ms: int) -> TokenLife:
        """Return the TokenLife after a renewal; expiry_timestamp_ms is by the brokers' clock."""
        expiry_ms = expiry_timestamp_ms + ahead_ms
        return TokenLife(replace(self.token, expiry_timestamp_ms=expiry_ms), now_ms)

    def action(self, now_ms: int) -> TokenAction:
        """Return the action to take on the token before tasks begin to use it."""
        token = self.token
        replaced_at_ms = late_in(token.issue_timestamp_ms, token.max_timestamp_ms)
        if now_ms >= min(token.expiry_timestamp_ms, replaced_at_ms):
            return TokenAction.REPLACE
        if now_ms < late_in(self.renewed_ms, token.expiry_timestamp_ms):
            return TokenAction.KEEP
        return TokenAction.RENEW


def late_in(begin_ms: int, end_ms: int) -> float:
    """Return when to renew or replace a token whose lifetime begins and ends at these times."""
    return begin_ms + _USED_UP * (end_ms - begin_ms)


def is_fresh(token: DelegationToken, now_ms: float, skew_ms: float = 0) -> bool:
    """Return whether a token is so new that a broker may not know it yet.

    skew_ms: how far this machine's clock may be ahead of the clock that set the token's issue time.
    """
    return now_ms < token.issue_timestamp_ms + FRESH_MS + skew_ms


def checked_token_mechanism(option: str, name: str) -> str:
    """Return the SASL mechanism for delegation tokens. Raise ConfigException if it is not SCRAM."""
    if name in _MECHANISMS:
        return name
    message = f"option {option} is {name!r}: expected {' or '.join(_MECHANISMS)}"
    raise ConfigException(f"{message}, since delegation tokens work only with SCRAM")


# The options other than sasl.* that contain the client's credentials.
_KEYSTORE: Final = (
    "ssl_keystore_location",
    "ssl_keystore_key",
    "ssl_keystore_certificate_chain",
    "ssl_keystore_password",
    "ssl_keystore_type",
    "ssl_key_password",
)


class DelegationTokenConfig(ProducerConfig, frozen=True, kw_only=True):
    """The configuration of a client that logs in with a token that the Spark driver created."""

    token: DelegationToken


def with_delegation_token(
    config: ProducerConfig, token: DelegationToken, mechanism: str
) -> DelegationTokenConfig:
    """Return a configuration that logs in with a token and contains no other credentials."""
    options = msgspec.structs.asdict(config)
    for each in option_fields():
        if each.name.startswith("sasl_") or each.name in _KEYSTORE:
            options[each.name] = each.default
    return DelegationTokenConfig(**options | {"sasl_mechanism": mechanism, "token": token})


def delegation_token(config: ProducerConfig) -> DelegationToken | None:
    """Return the token that a client logs in with, or None if it uses different credentials."""
    return config.token if isinstance(config, DelegationTokenConfig) else None


def refusal_hint(token: DelegationToken | None, now_ms: float) -> str:
    """Return why brokers may reject a token, and which broker configs limit its lifetime.

    token: None for a token that the user created, whose lifetime is unknown.
    """
    if token is None:
        return (
            "a delegation token expires if it is not renewed within "
            f"{_EXPIRY} of the brokers, and after {_MAX_LIFETIME}: create another one"
        )
    if now_ms >= token.max_timestamp_ms:
        return (
            f"the token's life ended at {_utc(token.max_timestamp_ms)}: raise {_MAX_LIFETIME} of "
            "the brokers, or let tasks take less time"
        )
    if now_ms >= token.expiry_timestamp_ms:
        return (
            f"the token expired at {_utc(token.expiry_timestamp_ms)} unless the driver renewed "
            "it; while tasks run, the driver renews tokens only in a classic session, and only for "
            "write_batch or after register(spark): use one of these, or raise "
            f"{_EXPIRY} of the brokers, or let tasks take less time"
        )
    return (
        f"the token should be valid until at least {_utc(token.expiry_timestamp_ms)}: somebody may "
        "have expired it, or this broker has a different delegation.token.secret.key"
    )


def _utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
