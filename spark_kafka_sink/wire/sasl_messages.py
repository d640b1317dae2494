"""The messages of SASL (KIP-43, KIP-152, KIP-368), as data like those of `messages`.

What the tokens hold is never printed: that of PLAIN has the password.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from spark_kafka_sink.wire.schema import Int16, Int64, Nullable, Since


@dataclass(slots=True, kw_only=True)
class SaslHandshakeRequest:
    """Asks to log in by a mechanism; in version 0 bare tokens follow, later SaslAuthenticate."""

    mechanism: str


@dataclass(slots=True, kw_only=True)
class SaslHandshakeResponse:
    """Whether the listener offers the mechanism, and which it offers."""

    error_code: Int16
    mechanisms: list[str]


@dataclass(slots=True, kw_only=True)
class SaslAuthenticateRequest:
    """One token of a login."""

    auth_bytes: bytes = field(repr=False)


@dataclass(slots=True, kw_only=True)
class SaslAuthenticateResponse:
    """The broker's token; the last one has how long the session lasts, 0 for ever."""

    error_code: Int16
    error_message: Annotated[str | None, Nullable(0)]
    auth_bytes: bytes = field(repr=False)
    session_lifetime_ms: Annotated[Int64, Since(1)] = 0
