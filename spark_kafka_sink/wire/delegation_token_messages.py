"""The requests and responses about delegation tokens (KIP-48).

The classes are declared in the same way as in `messages`. `repr` never shows the HMAC of a token,
because the HMAC is the password with which clients log in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from spark_kafka_sink.wire.message_codecs import Int16, Int32, Int64, Nullable, Since


@dataclass(slots=True, kw_only=True)
class CreatableRenewers:
    """A principal that may renew the token, besides its owner."""

    principal_type: str
    principal_name: str


@dataclass(slots=True, kw_only=True)
class CreateDelegationTokenRequest:
    """Creates a token. If no owner is set, the connection's principal is the owner.

    max_lifetime_ms: -1 for the brokers' maximum lifetime.
    """

    owner_principal_type: Annotated[str | None, Since(3), Nullable(3)] = ""
    owner_principal_name: Annotated[str | None, Since(3), Nullable(3)] = ""
    renewers: list[CreatableRenewers] = field(default_factory=list)
    max_lifetime_ms: Int64 = -1


@dataclass(slots=True, kw_only=True)
class CreateDelegationTokenResponse:
    """The new token; timestamps are milliseconds since 1970, by the clock of the brokers."""

    error_code: Int16
    principal_type: str
    principal_name: str
    token_requester_principal_type: Annotated[str, Since(3)] = ""
    token_requester_principal_name: Annotated[str, Since(3)] = ""
    issue_timestamp_ms: Int64
    expiry_timestamp_ms: Int64
    max_timestamp_ms: Int64
    token_id: str
    hmac: bytes = field(repr=False)
    throttle_time_ms: Int32


@dataclass(slots=True, kw_only=True)
class RenewDelegationTokenRequest:
    """Sets a new expiry of a token.

    renew_period_ms: the time from now to the new expiry, -1 for the brokers' default.
    """

    hmac: bytes = field(repr=False)
    renew_period_ms: Int64 = -1


@dataclass(slots=True, kw_only=True)
class RenewDelegationTokenResponse:
    """The new expiry of the renewed token, in ms since 1970."""

    error_code: Int16
    expiry_timestamp_ms: Int64
    throttle_time_ms: Int32


@dataclass(slots=True, kw_only=True)
class ExpireDelegationTokenRequest:
    """Sets a new expiry of a token, or deletes the token.

    expiry_time_period_ms: the time from now to the new expiry, -1 to delete the token now.
    """

    hmac: bytes = field(repr=False)
    expiry_time_period_ms: Int64 = -1


@dataclass(slots=True, kw_only=True)
class ExpireDelegationTokenResponse:
    """The new expiry of the token, in ms since 1970."""

    error_code: Int16
    expiry_timestamp_ms: Int64
    throttle_time_ms: Int32


@dataclass(slots=True, kw_only=True)
class DescribeDelegationTokenOwner:
    """An owner of the tokens to describe."""

    principal_type: str
    principal_name: str


@dataclass(slots=True, kw_only=True)
class DescribeDelegationTokenRequest:
    """The request for tokens; owners: None for all tokens that the client may see."""

    owners: Annotated[list[DescribeDelegationTokenOwner] | None, Nullable(0)]


@dataclass(slots=True, kw_only=True)
class DescribedDelegationTokenRenewer:
    """A principal that may renew the token, besides its owner."""

    principal_type: str
    principal_name: str


@dataclass(slots=True, kw_only=True)
class DescribedDelegationToken:
    """A token; timestamps are milliseconds since 1970, by the clock of the brokers."""

    principal_type: str
    principal_name: str
    token_requester_principal_type: Annotated[str, Since(3)] = ""
    token_requester_principal_name: Annotated[str, Since(3)] = ""
    issue_timestamp: Int64
    expiry_timestamp: Int64
    max_timestamp: Int64
    token_id: str
    hmac: bytes = field(repr=False)
    renewers: list[DescribedDelegationTokenRenewer]


@dataclass(slots=True, kw_only=True)
class DescribeDelegationTokenResponse:
    """The requested tokens."""

    error_code: Int16
    tokens: list[DescribedDelegationToken]
    throttle_time_ms: Int32
