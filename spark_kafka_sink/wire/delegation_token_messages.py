"""The messages about delegation tokens (KIP-48), declared as those of `messages`.

`repr` never shows the HMAC of a token, because clients log in with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from spark_kafka_sink.wire.schema import Int16, Int32, Int64, Nullable, Since


@dataclass(slots=True, kw_only=True)
class CreatableRenewers:
    """A principal that may renew the token, besides its owner."""

    principal_type: str
    principal_name: str


@dataclass(slots=True, kw_only=True)
class CreateDelegationTokenRequest:
    """Creates a token, for the principal of the connection if no owner is named.

    max_lifetime_ms: -1 for the brokers' maximum.
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
    """Moves the expiry of a token; renew_period_ms: from now on, -1 for the brokers' period."""

    hmac: bytes = field(repr=False)
    renew_period_ms: Int64 = -1


@dataclass(slots=True, kw_only=True)
class RenewDelegationTokenResponse:
    """The new expiry of the token."""

    error_code: Int16
    expiry_timestamp_ms: Int64
    throttle_time_ms: Int32


@dataclass(slots=True, kw_only=True)
class ExpireDelegationTokenRequest:
    """Moves the expiry of a token; expiry_time_period_ms: from now on, -1 to delete it now."""

    hmac: bytes = field(repr=False)
    expiry_time_period_ms: Int64 = -1


@dataclass(slots=True, kw_only=True)
class ExpireDelegationTokenResponse:
    """The new expiry of the token."""

    error_code: Int16
    expiry_timestamp_ms: Int64
    throttle_time_ms: Int32


@dataclass(slots=True, kw_only=True)
class DescribeDelegationTokenOwner:
    """An owner whose tokens are described."""

    principal_type: str
    principal_name: str


@dataclass(slots=True, kw_only=True)
class DescribeDelegationTokenRequest:
    """Asks for tokens; owners: None for all that the client may see."""

    owners: Annotated[list[DescribeDelegationTokenOwner] | None, Nullable(0)]


@dataclass(slots=True, kw_only=True)
class DescribedDelegationTokenRenewer:
    """A principal that may renew the token, besides its owner."""

    principal_type: str
    principal_name: str


@dataclass(slots=True, kw_only=True)
class DescribedDelegationToken:
    """A token; timestamps as in CreateDelegationTokenResponse."""

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
    """The tokens."""

    error_code: Int16
    tokens: list[DescribedDelegationToken]
    throttle_time_ms: Int32
