"""NodeState: the connection of one node, its past errors, and the timeouts of the connection.

It determines when a connection may be retried, at which address, and how long an attempt may take.
It corresponds to the state of one node in the Java client's ClusterConnectionStates. It uses no
socket and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final, Literal, NamedTuple, Self

from spark_kafka_sink import error_codes
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import Option
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection import LARGE_REQUEST_BYTES, Connection, Unanswered
from spark_kafka_sink.network.connection_state import ConnectionState
from spark_kafka_sink.network.selector import Address, HostResolver
from spark_kafka_sink.wire.messages import API_VERSIONS

_ADVERTISED: Final = "advertised.listeners"
# `_MIN_CONNECTING_S`: a connection attempt that takes longer is reported as an error.
# `_MIN_UNANSWERED_S`: a request that waits longer for its response is reported as an error.
# `_MIN_READY_S`: messages omit the last error if the connection is ready and was begun longer ago
# than this.
_MIN_CONNECTING_S: Final = 0.5
_MIN_UNANSWERED_S: Final = 1.0
_MIN_READY_S: Final = 5.0
# How often to check whether a login is ready. If a call for another login is slow
# (`helper_thread._SLOW_S`), this check starts another thread.
_LOOK_S: Final = 2.0
# If a broker closes so many connections in a row with a large Produce request in flight, the
# request may exceed the broker's limit.
_MIN_LARGE_LOSSES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """The network options of a client; times in seconds, infinity for no limit.

    retry_backoff_max_s: the longest wait before a caller repeats a failed request. rebootstraps:
    whether to connect to the bootstrap addresses when no broker can be reached (KIP-899).
    """

    client_id: str
    request_timeout_s: float
    retry_backoff_max_s: float
    reconnect_backoff: ExponentialBackoff
    connection_setup_timeout: ExponentialBackoff
    connections_max_idle_s: float
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"] = (
        "use_all_dns_ips"
    )
    rebootstraps: bool = True

    @classmethod
    def of(cls, config: ProducerConfig, client_id: str) -> Self:
        """Return the network options of a configuration."""
        idle_ms = config.connections_max_idle_ms
        return cls(
            client_id=client_id,
            request_timeout_s=config.request_timeout_ms / 1000,
            retry_backoff_max_s=config.retry_backoff_max_ms / 1000,
            reconnect_backoff=ExponentialBackoff.of_ms(
                config.reconnect_backoff_ms, config.reconnect_backoff_max_ms
            ),
            connection_setup_timeout=ExponentialBackoff.of_ms(
                config.socket_connection_setup_timeout_ms,
                config.socket_connection_setup_timeout_max_ms,
            ),
            connections_max_idle_s=idle_ms / 1000 if idle_ms >= 0 else float("inf"),
            client_dns_lookup=config.client_dns_lookup,
            rebootstraps=config.rebootstraps,
        )


class Expired(NamedTuple):
    """The timeout that a connection exceeded, and the error code for its requests."""

    reason: str
    code: int


@dataclass(slots=True, eq=False)
class NodeState:
    """The connection of one node and its past errors; times are seconds of the client's clock."""

    node: Node
    is_canonical: bool = True
    channel: int = -1
    connection: Connection | None = None
    addresses: list[Address] | None = None
    last_address: Address | None = None
    # `failures`: the number of failures since the last response. `failed_connects`: the number of
    # failed attempts since the last TCP connection.
    failures: int = 0
    failed_connects: int = 0
    last_attempt: float = float("-inf")
    retry_at: float = 0.0
    setup_until: float = float("inf")
    latest_setup_until: float = 0.0
    # When a connection attempt began to wait for its login; None if no attempt waits.
    awaits_login_since: float | None = None
    last_used: float = 0.0
    throttled_until: float = 0.0
    # The last error and its time; the error is empty after a response.
    last_error: str = ""
    failed_at: float = 0.0
    # Whether the last error is expected to pass, for example because there was no token in time.
    last_error_passes: bool = False
    # Whether TLS failed at one of the addresses that the host name was last resolved to.
    has_failed_by_tls: bool = False
    # The same for the addresses up to the last error, whose host name may have been resolved again.
    has_tls_error: bool = False
    # How many times in a row the peer closed a connection with a large Produce request in flight. A
    # response to a large request ends the row.
    large_losses: int = 0
    # The version of the ApiVersions request on the next connection.
    api_versions_version: int = API_VERSIONS.max_version
    # The bootstrap node whose metadata listed this broker; None once a connection to the broker was
    # ready.
    named_by: Node | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the connection accepts requests; true even while the broker throttles it."""
        return self.connection is not None and self.connection.is_ready

    def unanswered(self, now: float) -> Unanswered | None:
        """Return the unanswered request of a ready connection, or None if no response is due.

        Any thread may call this.
        """
        connection = self.connection
        if connection is None or not connection.is_ready:
            return None
        return connection.in_flight.unanswered(now)

    def is_overdue(self, now: float, longest_silence_s: float) -> bool:
        """Return whether a response is due and the node has been silent for `longest_silence_s`."""
        unanswered = self.unanswered(now)
        return unanswered is not None and unanswered.silent_s >= longest_silence_s

    def answers(self, now: float, longest_silence_s: float) -> bool:
        """Return whether the connection accepts requests and the node seems to answer them.

        The node seems to answer if it has answered since the last error and no response is overdue.
        """
        return self.is_ready and not self.last_error and not self.is_overdue(now, longest_silence_s)

    def owes_response(self, now: float, longest_silence_s: float) -> bool:
        """Return whether a response is due and the node seems not to answer (see `answers`)."""
        unanswered = self.unanswered(now)
        if unanswered is None:
            return False
        return bool(self.last_error) or unanswered.silent_s >= longest_silence_s

    @property
    def load(self) -> int:
        """The number of requests in flight or held."""
        return 0 if self.connection is None else self.connection.load

    @property
    def has_failed(self) -> bool:
        """Whether all addresses of the node have failed, and none is being tried.

        False after a failure that is expected to pass.
        """
        is_tried_now = self.connection is not None or self.awaits_login_since is not None
        has_untried = self.addresses or self.last_error_passes
        return bool(self.last_error) and not has_untried and not is_tried_now

    def can_send(self, now: float) -> bool:
        """Return whether requests may be sent and the broker does not throttle them (KIP-219)."""
        return self.is_ready and self.throttled_until <= now

    def can_connect(self, now: float) -> bool:
        """Return whether there is no connection and the back-off is over."""
        return self.connection is None and now >= self.retry_at

    def next_address(self, resolver: HostResolver) -> Address:
        """Return the next address to try. After the last address, resolve the host name again.

        If the first of the new addresses is the one that was tried last, it is skipped, because it
        may not be reachable (KIP-302). The only address of a host is never skipped. Raise OSError
        or UnicodeError if the host has no address.
        """
        if not self.addresses:
            self.has_failed_by_tls = False
            addresses = resolver.resolve(self.node.host, self.node.port)
            if not addresses:
                message = f"{self.node.host} has no address"
                raise OSError(message)
            if len(addresses) > 1 and addresses[0] == self.last_address:
                del addresses[0]
            self.addresses = addresses
        self.last_address = self.addresses.pop(0)
        return self.last_address

    def awaiting_login(self, now: float, setup_timeout: ExponentialBackoff, random: Random) -> None:
        """Record that a connection attempt waits for a login, at most for the setup timeout."""
        if self.awaits_login_since is None:
            self.awaits_login_since = now
            self.setup_until = now + setup_timeout.delay_s(self.failed_connects, random)

    def is_late_for_login(self, now: float) -> bool:
        """Return whether an attempt has waited for its login longer than the setup timeout."""
        is_waiting = self.connection is None and self.awaits_login_since is not None
        return is_waiting and now >= self.setup_until

    def connecting(self, now: float, setup_timeout: ExponentialBackoff, random: Random) -> None:
        """Record a connection attempt. The setup timeout grows with each failure (KIP-601)."""
        self.last_attempt = self.last_used = now
        timeout_s = setup_timeout.delay_s(self.failed_connects, random)
        self.setup_until, self.latest_setup_until = now + timeout_s, now + 2 * timeout_s

    def extend_setup(self, seconds: float) -> None:
        """Extend the setup timeout, at most to twice its length."""
        if self.setup_until < self.latest_setup_until:
            self.setup_until = min(self.setup_until + seconds, self.latest_setup_until)

    def connected(self, *, is_set_up: bool) -> None:
        """Record that TCP is connected; is_set_up: whether neither TLS nor SASL follows."""
        if is_set_up:
            self.set_up()
        self.failed_connects = 0

    def ready(self) -> None:
        """Record that the connection accepts requests, which shows that its address is right."""
        self.named_by = None
        self.set_up()

    def set_up(self) -> None:
        """Record that the connection is set up, which ends its setup timeout."""
        self.setup_until = float("inf")

    def succeeded(self) -> None:
        """Record a success: a response arrived, or a request without response (acks=0) was written.

        This clears the last error. An open connection alone does not clear it, because a listener
        that expects SASL responds to ApiVersions and then closes the connection at the next
        request.
        """
        self.failures = 0
        self.last_error = ""
        if self.connection is not None and self.connection.has_answered_large:
            self.large_losses = 0

    def problem(self, now: float) -> str:
        """Return a description of the node's error, or an empty string if there is no error."""
        if not self.last_error:
            return self._pending(now)
        waited = now - self.last_attempt
        if self.is_ready and waited > _MIN_READY_S:
            return self._pending(now)
        minutes = int((now - self.failed_at) // 60)
        return self.last_error + (f", {minutes} min ago" if minutes else "")

    def _pending(self, now: float) -> str:
        """Return what the connection waits for, or an empty string if it has not waited long."""
        waited = now - self.last_attempt
        connection = self.connection
        since = self.awaits_login_since  # another thread may set it
        if connection is None and since is not None:
            awaited = now - since
            return (
                f"no ticket or token after {awaited:.0f} s" if awaited >= _MIN_CONNECTING_S else ""
            )
        unanswered = self.unanswered(now)
        if unanswered is not None and unanswered.silent_s >= _MIN_UNANSWERED_S:
            return f"no response to {unanswered.api.name} for {unanswered.silent_s:.0f} s"
        if connection is None or connection.is_ready or waited < _MIN_CONNECTING_S:
            return ""
        if connection.state is ConnectionState.CONNECTING:
            state = f"no connection after {waited:.0f} s"
        elif connection.state is ConnectionState.CHECKING_API_VERSIONS:
            cause = _no_versions(connection)
            state = f"it accepts connections but has sent nothing for {waited:.0f} s; {cause}"
        else:
            state = f"it is still {connection.state.value} after {waited:.0f} s"
        return self.with_advertised_hint(state)

    def expired(self, now: float, request_timeout_s: float) -> Expired | None:
        """Return the timeout that the connection exceeded, or None if it exceeded no timeout."""
        connection = self.connection
        if connection is None:
            return None
        where = connection.state
        if now >= self.setup_until:
            option = Option("socket.connection.setup.timeout.ms")
            reason = f"the connection was still {where.value} after {option}"
            if where is ConnectionState.CONNECTING:
                reason = f"no connection within {option}"
            return Expired(reason, error_codes.NETWORK_EXCEPTION)
        if now >= connection.in_flight.expires_at():
            timeout = Option("request.timeout.ms", round(request_timeout_s * 1000))
            reason = f"no response within {timeout}"
            if where is ConnectionState.CHECKING_API_VERSIONS:
                reason += f", even to ApiVersions; {_no_versions(connection)}"
            elif not connection.is_ready:
                reason += f" {where.value}"
            elif (oldest := connection.in_flight.oldest()) is not None:
                reason = f"no response to {oldest.api.name} within {timeout}"
                if oldest.written_at is None:
                    what = f"a {oldest.api.name} request of {oldest.size_bytes} bytes"
                    reason = f"nothing more could be sent of {what} within {timeout}"
            return Expired(reason, error_codes.REQUEST_TIMED_OUT)
        return None

    def next_deadline(self, config: NetworkConfig, now: float) -> float:
        """Return when the next timeout of the connection is due: setup, request, login or idle.

        While the connection waits for a ticket or token, return the time of `next_look` if that is
        earlier.
        """
        connection, due = self.connection, self.setup_until
        if connection is None:
            return due
        due = min(due, connection.in_flight.expires_at())
        if connection.awaits_login_since is not None:
            since = connection.awaits_login_since
            due = min(due, since + config.request_timeout_s, next_look(since, now))
        if self.is_ready and not self.load:
            due = min(due, self.last_used + config.connections_max_idle_s)
        return due

    def closed_by_peer(self) -> None:
        """Record that the peer closed the connection, or that the connection broke."""
        connection = self.connection
        if connection is None:
            return
        if connection.in_flight.largest_produce_bytes() > LARGE_REQUEST_BYTES:
            self.large_losses += 1

    def why_closed(self, *, speaks_tls: bool, was_ever_answered: bool) -> str:
        """Return the likely reason why the peer closed the connection, for error messages.

        Call `closed_by_peer` first. speaks_tls: whether the peer has sent TLS records.
        was_ever_answered: whether any node has answered a request of this client's callers.
        """
        connection = self.connection
        if connection is None or connection.is_inside_answer:
            return "" if connection is None else " in the middle of a response"
        if connection.state is ConnectionState.TLS_HANDSHAKE:
            protocol = Option("security.protocol")
            said = (
                " without an error"
                if speaks_tls
                else "; it may be a listener without TLS: compare the port and "
                f"{protocol} with the broker's listeners"
            )
            return f" in the TLS handshake{said}"
        if connection.state is ConnectionState.CHECKING_API_VERSIONS:
            return f" before it answered ApiVersions; {_no_versions(connection)}"
        if in_login := _where_in_login(connection):
            return f" {in_login}, without an error: some brokers reject a login this way"
        if self._hung_up_on_first_request and not was_ever_answered:
            return (
                " before it answered the first request; it may expect SASL: compare the port and "
                f"{Option('security.protocol')} with the broker's listeners"
            )
        return self._why_large(connection)

    def may_have_other_protocol(self, *, speaks_tls: bool) -> bool:
        """Return whether the peer may be a listener with a different security protocol.

        speaks_tls: whether the peer has sent TLS records.
        """
        connection = self.connection
        is_in_handshake = (
            connection is not None and connection.state is ConnectionState.TLS_HANDSHAKE
        )
        return (is_in_handshake and not speaks_tls) or self._hung_up_on_first_request

    @property
    def _hung_up_on_first_request(self) -> bool:
        """Whether the peer closed a ready connection without answering a caller's request on it.

        Only connections without SASL count.
        """
        connection = self.connection
        return (
            connection is not None
            and connection.is_ready
            and not connection.has_login
            and not connection.has_answered
            and len(connection.in_flight) > 0
        )

    def _why_large(self, connection: Connection) -> str:
        """Return a hint if the peer may have closed the connection because a request is too large.

        A broker that restarts closes its connections, too, so one closed connection shows nothing.
        """
        size_bytes = connection.in_flight.largest_produce_bytes()
        if size_bytes <= LARGE_REQUEST_BYTES or self.large_losses < _MIN_LARGE_LOSSES:
            return ""
        return (
            f" again before it answered a Produce request of {size_bytes} bytes; the broker's "
            f"limit (socket.request.max.bytes) may be lower: lower {Option('max.request.size')}"
        )

    def invalid_frame(self) -> None:
        """Record that the peer's bytes are not Kafka frames.

        The next connection uses ApiVersions version 0, because a broker that cannot respond to the
        newest version may respond to version 0 on a new connection. If that connection also gets
        invalid frames, the connection after it uses the newest version again.
        """
        if self.connection is None or self.connection.is_ready:
            return
        newest = API_VERSIONS.max_version
        self.api_versions_version = 0 if self.api_versions_version == newest else newest

    def with_advertised_hint(self, reason: str) -> str:
        """Return an error message, with a hint if this broker's address may be wrong.

        The address may be wrong if no connection to this broker was ever ready, but the bootstrap
        node that listed it was ready at a different address.
        """
        named_by, node = self.named_by, self.node
        if named_by is None or (named_by.host, named_by.port) == (node.host, node.port):
            return reason
        hint = f"{reason}; {named_by} returned this address"
        if _ADVERTISED in reason:
            return hint
        return f"{hint}: check the broker's {_ADVERTISED}"

    def disconnected(
        self,
        reason: str,
        now: float,
        backoff: ExponentialBackoff,
        random: Random,
        *,
        by_tls: bool = False,
        passes: bool = False,
    ) -> None:
        """Record that the connection broke or failed; it may be retried after a back-off.

        If the connection had been ready, the host name is resolved again, because its address may
        have changed. Otherwise, the host's next address is tried. by_tls: whether the TLS handshake
        failed. passes: whether the error is expected to pass.
        """
        if self.connection is None or self.connection.state is ConnectionState.CONNECTING:
            self.failed_connects += 1
        else:
            self.failed_connects = 0
            if self.connection.is_ready:
                self.addresses = None
        self.connection = None
        self.awaits_login_since = None
        self.setup_until = float("inf")
        self.last_error, self.failed_at, self.last_error_passes = reason, now, passes
        self.has_tls_error = self.has_failed_by_tls = self.has_failed_by_tls or by_tls
        self.last_attempt = now
        self.retry_at = now + backoff.delay_s(self.failures, random)
        self.failures += 1


def next_look(since: float, now: float) -> float:
    """Return when to check again whether a login is ready. since: when the wait for it began."""
    found = since + ((now - since) // _LOOK_S + 1) * _LOOK_S
    return found if found > now else found + _LOOK_S


def _where_in_login(connection: Connection) -> str:
    """Return which part of its SASL login a connection is in; empty if it is not logging in."""
    if connection.state in (ConnectionState.SASL_HANDSHAKE, ConnectionState.SASL_TOKENS):
        return "during the SASL login"
    if connection.is_renewing:
        return "while re-authenticating"
    if connection.awaits_login_since is not None:
        return "after its session ended, while it waited for a ticket or token to re-authenticate"
    return ""


def _no_versions(connection: Connection) -> str:
    """Return the likely cause if a peer does not answer ApiVersions."""
    if not connection.has_tls:
        return "it may expect TLS, or may not be a Kafka broker"
    return (
        f"it may require a client certificate ({Option('ssl.keystore.*')}), or may not be a Kafka "
        "broker"
    )
