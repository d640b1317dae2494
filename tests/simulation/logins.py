"""The logins of simulated brokers: a listener with SASL whose sessions end (KIP-368).

It follows SocketServer and SaslServerAuthenticator. After a session's end, a broker closes the
connection at the next request, unless it begins another login. A request between SaslHandshake and
the end of the login would be read as a token: no client may send one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from simulation.scheduler import Scheduler, SimulationError
from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.auth.mechanisms import PLAIN, PlainExchange
from spark_kafka_sink.wire.messages import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

USER: Final = "alice"
PASSWORD: Final = "secret"
OPTIONS: Final = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": PLAIN,
    "sasl.username": USER,
    "sasl.password": PASSWORD,
}
_TOKEN: Final = PlainExchange(USER, PASSWORD).first()
# Brokers reject a second renewal within this time (KafkaChannel).
_LEAST_PAUSE_S: Final = 1.0


@dataclass(slots=True)
class LoginState:
    """What a broker knows of the login of a connection.

    ends_at: the end of the session, None before the first login. renewed_at: the beginning of the
    last renewal. expects_token: whether the next request must be a token.
    """

    ends_at: float | None = None
    renewed_at: float = float("-inf")
    expects_token: bool = False
    is_over: bool = False


class Logins:
    """Decides what brokers do with the requests of a connection; lifetime_s: of a session."""

    def __init__(self, lifetime_s: float, scheduler: Scheduler) -> None:
        self._lifetime_s = lifetime_s
        self._scheduler = scheduler
        self.renewals = 0

    def take(
        self,
        state: LoginState,
        request: Any,  # noqa: ANN401 - any request type
        reply: Callable[[Any], None],
        hang_up: Callable[[], None],
    ) -> bool:
        """Process a request of a login; return whether it is another request, to be answered."""
        now = self._scheduler.now
        if isinstance(request, SaslAuthenticateRequest):
            self._authenticate(state, request, now)
            reply(
                SaslAuthenticateResponse(
                    error_code=codes.NONE,
                    error_message=None,
                    auth_bytes=b"",
                    session_lifetime_ms=round(self._lifetime_s * 1000),
                )
            )
            return False
        if state.expects_token:
            kind = type(request).__name__
            raise SimulationError(f"{kind} came between SaslHandshake and the end of the login")
        if isinstance(request, SaslHandshakeRequest):
            self._handshake(state, now)
            reply(SaslHandshakeResponse(error_code=codes.NONE, mechanisms=[PLAIN]))
            return False
        if state.ends_at is None:
            if not isinstance(request, ApiVersionsRequest):
                raise SimulationError(f"{type(request).__name__} came before the login")
            return True
        if now > state.ends_at:
            state.is_over = True
            hang_up()
            return False
        return True

    def takes_late(self, state: LoginState, request: Any) -> bool:  # noqa: ANN401 - any request type
        """Return whether a request is processed though its connection is closed already."""
        if isinstance(request, SaslHandshakeRequest | SaslAuthenticateRequest):
            # The next requests belong to a login that is never complete.
            state.is_over = True
        has_session = state.ends_at is not None and self._scheduler.now <= state.ends_at
        return has_session and not state.is_over and not state.expects_token

    def _handshake(self, state: LoginState, now: float) -> None:
        if state.ends_at is not None:
            if now < state.renewed_at + _LEAST_PAUSE_S:
                pause = now - state.renewed_at
                raise SimulationError(f"a session was renewed again after {pause:.3f} s")
            state.renewed_at = now
            self.renewals += 1
        state.expects_token = True

    def _authenticate(
        self, state: LoginState, request: SaslAuthenticateRequest, now: float
    ) -> None:
        if not state.expects_token or bytes(request.auth_bytes) != _TOKEN:
            raise SimulationError("a token came without SaslHandshake, or it is not the user's")
        state.expects_token = False
        state.ends_at = now + self._lifetime_s
