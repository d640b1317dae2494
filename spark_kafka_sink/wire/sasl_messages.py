"""The SASL messages (KIP-43, KIP-152, KIP-368), declared as those of `messages`.

`repr` never shows the bytes of a token, because a PLAIN token contains the password.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from spark_kafka_sink.wire.schema import Int16, Int64, Nullable, Since


@dataclass(slots=True, kw_only=True)
class SaslHandshakeRequest:
    """Selects a SASL mechanism.

    In version 0, tokens follow without a header. From version 1 on they are sent in
    SaslAuthenticate requests.
    """

    mechanism: str


@dataclass(slots=True, kw_only=True)
class SaslHandshakeResponse:
    """Whether the listener supports the mechanism, and which mechanisms it supports."""

    error_code: Int16
    mechanisms: list[str]


@dataclass(slots=True, kw_only=True)
class SaslAuthenticateRequest:
    """One token of a login."""

    auth_bytes: bytes = field(repr=False)


@dataclass(slots=True, kw_only=True)
class SaslAuthenticateResponse:
    """A token of the broker. The last one has the lifetime of the session in ms, 0 for no limit."""

    error_code: Int16
    error_message: Annotated[str | None, Nullable(0)]
    auth_bytes: bytes = field(repr=False)
    session_lifetime_ms: Annotated[Int64, Since(1)] = 0
