"""NetworkClient: sends requests to nodes, over connections that it makes and keeps.

It owns the known nodes and their connections. It acts on `connect` and `send`, and `poll` returns
the results as events. The meaning of requests is left to its callers. One thread uses it.

::

    connect, send                      poll returns Answered, NodeReady, NodeDown, RequestFailed
        │                                                   ^
        v                                                   │
    NodeState: one per node ───────── frames ────────> Connection: bytes <-> requests (pure)
    address, back-off, last error                           │ ^
        │ connect                                     bytes v │ bytes
        └───────────────────────────────────────────> Selector: sockets, TLS, one select() for all

What is hard:

- Every request that was taken ends in exactly one event, whatever happens: a response, a broken
  connection, request.timeout.ms, an unknown version, or a login that is refused. A response that
  has come in before a connection breaks still counts, so what was received is read first.
- Thousands of tasks must not reconnect at the same time. A connection is made only to a node that
  was requested by `connect`, or for a request to any node. After a failure, the next attempt waits
  reconnect.backoff.ms, doubled per failure up to reconnect.backoff.max.ms, with a jitter of 20 %.
  It uses the next address of the host.
- A connection that came up proves little: a listener that expects SASL lets a client ask for its
  versions, and hangs up on the first request. So a node counts as well once a request was answered,
  and the last error stays known until then, for messages.
- Brokers may all have moved. When no known node can be reached, the bootstrap addresses are asked
  again, in time for max.block.ms.

The sender limits the Produce requests in flight per node. The few other requests, which go to any
node, do not count against that limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, Self

from spark_kafka_sink import error_codes
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import (
    AuthenticationException,
    KafkaException,
    Option,
    ProtocolError,
    RetriableException,
    SaslAuthenticationException,
    SslAuthenticationException,
    UnsupportedVersionException,
)
from spark_kafka_sink.logs import safe_logging, warn_once
from spark_kafka_sink.metrics import Metrics
from spark_kafka_sink.model import Node, __version__
from spark_kafka_sink.network.connection import Connection
from spark_kafka_sink.network.connection_state import ConnectionState
from spark_kafka_sink.network.network_metrics import NetworkMetrics
from spark_kafka_sink.network.node_state import NO_BROKER, WITHOUT_TLS, NodeState, least_loaded
from spark_kafka_sink.network.security import Security
from spark_kafka_sink.network.selector import (
    Closed,
    Connected,
    HostResolver,
    Received,
    Secured,
    Selector,
    SelectorEvent,
    Sent,
)
from spark_kafka_sink.wire.exchange import (
    Answered,
    ClientRequest,
    Event,
    NodeDown,
    NodeReady,
    NodeThrottled,
    RequestFailed,
)

logger = logging.getLogger(__name__)

_NEVER: Final = float("inf")
# The limits for brokers learned from the driver: after this many failures, or the first failure
# after this time, the bootstrap addresses are used. That leaves time for them within max.block.ms.
_INITIAL_NODES_FAILURES: Final = 2
_INITIAL_NODES_S: Final = 15.0
# The time without any response after which a warning lists the failing nodes.
_NO_RESPONSE_S: Final = 5.0
_MAX_LISTED: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """The configuration of a client; times in seconds, infinity for never.

    rebootstraps: whether to connect to bootstrap addresses when no broker can be reached (KIP-899).
    """

    client_id: str
    request_timeout_s: float
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
            reconnect_backoff=ExponentialBackoff.of_ms(
                config.reconnect_backoff_ms, config.reconnect_backoff_max_ms
            ),
            connection_setup_timeout=ExponentialBackoff.of_ms(
                config.socket_connection_setup_timeout_ms,
                config.socket_connection_setup_timeout_max_ms,
            ),
            connections_max_idle_s=idle_ms / 1000 if idle_ms >= 0 else _NEVER,
            client_dns_lookup=config.client_dns_lookup,
            rebootstraps=config.rebootstraps,
        )


class NetworkClient:
    """Connections by node id; bootstrap addresses have negative ids.

    security: None if connections use neither TLS nor SASL.
    """

    def __init__(
        self,
        selector: Selector,
        config: NetworkConfig,
        bootstrap: list[Node],
        clock: Callable[[], float],
        random: Random,
        *,
        resolver: HostResolver | None = None,
        metrics: NetworkMetrics | None = None,
        security: Security | None = None,
    ) -> None:
        self._metrics = metrics or NetworkMetrics(Metrics())
        self._security = security
        # Whether any broker has accepted this client, and the error if none ever will.
        self._was_ever_ready = False
        # Whether any broker has answered a request of a caller.
        self._was_ever_answered = False
        self._fatal_error: AuthenticationException | None = None
        self._auth_error: AuthenticationException | None = None
        if security is not None:
            security.wake = selector.wakeup
        self._selector = selector
        self._config = config
        self._clock = clock
        self._random = random
        self._resolver = resolver or HostResolver()
        as_written = config.client_dns_lookup == "use_all_dns_ips"
        self._states = {node.id: NodeState(node, is_canonical=as_written) for node in bootstrap}
        # Every connection has a new channel id, so that late events of an old connection are
        # ignored.
        self._channels: dict[int, NodeState] = {}
        self._next_channel = 0
        self._connect_to: set[int] = set()
        # Failures still tolerated for brokers learned from the driver, and the time from which one
        # failure is enough.
        self._failures_left = 0
        self._tolerant_until = _NEVER
        self._initial_nodes_error = ""
        self._unassigned: list[tuple[ClientRequest, float]] = []
        # Since when no node is ready although a connection is needed.
        self._no_response_since: float | None = None
        self._has_warned = False
        self._events: list[Event] = []

    # -- what is asked for ------------------------------------------------------------------------

    def set_initial_nodes(self, brokers: Iterable[Node]) -> None:
        """Use brokers that another client learned from the cluster, until the metadata arrives.

        They spread the first requests over all brokers, while otherwise all clients would ask the
        bootstrap addresses. If a broker fails (it may be busy, down, or unreachable from here),
        another one is used. After a few failures all of them are dropped, and the bootstrap
        addresses are used.
        """
        nodes = {node.id: node for node in brokers}
        if nodes:
            self.set_nodes(nodes)
            self._failures_left = _INITIAL_NODES_FAILURES
            self._tolerant_until = self._clock() + _INITIAL_NODES_S

    def set_nodes(self, nodes: Mapping[int, Node]) -> None:
        """Replace the known brokers by those in the metadata, and disconnect from the others.

        If `nodes` is empty, close every connection and start again from the bootstrap addresses.
        """
        self._failures_left = 0
        if nodes:
            self._initial_nodes_error = ""
            for state in self._states.values():
                if state.node.id < 0:  # the brokers are known, so its failure no longer matters
                    state.last_error = ""
        else:
            with safe_logging():
                message = (
                    "connecting to the bootstrap servers again: no known broker returns metadata"
                )
                logger.info(message)
            for state in self._states.values():
                self._disconnect(state, "reconnecting to the bootstrap servers")
        for node_id in [n for n in self._states if n >= 0 and n not in nodes]:
            state = self._states.pop(node_id)
            self._disconnect(state, "the cluster no longer lists this broker")
        states = self._states.values()
        named_by = next((s.node for s in states if s.node.id < 0 and s.is_ready), None)
        for node_id, node in nodes.items():
            known = self._states.get(node_id)
            if known is not None and (known.node.host, known.node.port) == (node.host, node.port):
                continue
            if known is not None:
                self._disconnect(known, f"the broker moved to {node.host}:{node.port}")
            self._states[node_id] = NodeState(node, named_by=named_by)

    def connect(self, node_ids: set[int]) -> None:
        """Set the nodes to keep connecting to; other nodes are not connected to."""
        self._connect_to = node_ids

    def send(self, request: ClientRequest) -> None:
        """Send a request. The result is an event of a later poll."""
        now = self._clock()
        if request.node_id is None:
            self._unassigned.append((request, now + self._config.request_timeout_s))
            return
        state = self._states.get(request.node_id)
        if state is None or not state.is_ready:
            reason = "the connection to the node was closed"
            self._failed(request, request.node_id, error_codes.NETWORK_EXCEPTION, reason)
            return
        self._send_to(state, request, now)

    def wakeup(self) -> None:
        """End a poll early. Any thread may call this."""
        self._selector.wakeup()

    def last_errors(self) -> str:
        """Return a description of the nodes with errors. Any thread may call this."""
        now = self._clock()
        found = [(state.node, state.problem(now)) for state in list(self._states.values())]
        failures = [f"{node}: {problem}" for node, problem in found if problem]
        if self._initial_nodes_error:
            failures.append(self._initial_nodes_error)
        if self._security is not None and (problem := self._security.problem):
            failures.insert(0, problem)
        if len(failures) > _MAX_LISTED:
            failures[_MAX_LISTED:] = [f"and {len(failures) - _MAX_LISTED} more"]
        return "; ".join(failures)

    @property
    def principal(self) -> str:
        """The name by which brokers know this client, empty if unknown; any thread may read it."""
        return "" if self._security is None else self._security.principal

    def in_flight_count(self) -> int:
        """Return the number of requests that wait for their response. Any thread may call this."""
        return sum(state.load for state in list(self._states.values()))

    def connection_count(self) -> int:
        """Return the number of connections, including unfinished ones. Any thread may call this."""
        return len(self._channels)

    def close(self) -> None:
        """Close every connection."""
        for state in list(self._channels.values()):
            self._release(state)
        if self._security is not None:
            self._security.close()
        self._selector.close_all()

    # -- what happens -----------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[Event]:
        """Make connections, send pending requests, wait for the network, and return the events."""
        now = self._clock()
        self._send_waiting(now)
        self._renew_sessions(now)
        self._connect_requested(now)
        self._close_idle(now)
        self._warn_of_no_response(now)
        wait = 0.0 if self._events else min(timeout_s, self._next_deadline(now) - now)
        happened = self._selector.poll(wait)
        self._metrics.fold(self._clock())
        for event in happened:
            self._handle(event, self._clock())
        now = self._clock()
        self._expire(now)
        self._send_waiting(now)
        events, self._events = self._events, []
        return events

    def _warn_of_no_response(self, now: float) -> None:
        """Log the nodes that fail, once, long before a caller's timeout."""
        is_needed = bool(self._unassigned or self._connect_to)
        states = self._states.values()
        if not is_needed or any(state.is_ready and not state.last_error for state in states):
            self._no_response_since = None
        elif self._no_response_since is None:
            self._no_response_since = now
        elif now >= self._no_response_since + _NO_RESPONSE_S and not self._has_warned:
            self._has_warned = True
            message = (
                f"no broker has answered for {now - self._no_response_since:.0f} s, still trying"
            )
            tried = self.last_errors()
            text = f"{message}: {tried}" if tried else message
            with safe_logging():
                warn_once(logger, text, "silence")

    def _warn_of_wrong_protocol(self, node: Node, connection: Connection, why: str) -> None:
        """Log at once if a listener may have another security protocol; it is not certain."""
        if not self._was_ever_answered and _may_have_other_protocol(connection):
            with safe_logging():
                warn_once(logger, f"{node}: {why}", "protocol")

    def _next_deadline(self, now: float) -> float:
        due = [deadline for _, deadline in self._unassigned]
        if self._no_response_since is not None and not self._has_warned:
            due.append(self._no_response_since + _NO_RESPONSE_S)
        for node_id, state in self._states.items():
            connection = state.connection
            if connection is None:
                is_wanted = node_id in self._connect_to or (
                    self._unassigned and state.retry_at > now
                )
                # The selector is woken when there is a login.
                if state.awaits_login_since is not None:
                    due.append(state.setup_until)
                elif is_wanted:
                    due.append(state.retry_at)
                continue
            if self._unassigned and state.throttled_until > now:
                due.append(state.throttled_until)
            due += [state.setup_until, connection.in_flight.expires_at()]
            if connection.awaits_login_since is not None:
                due.append(connection.awaits_login_since + self._config.request_timeout_s)
            if state.is_ready and not state.load:
                due.append(state.last_used + self._config.connections_max_idle_s)
        return min(due, default=_NEVER)

    def _handle(self, event: SelectorEvent, now: float) -> None:
        state = self._channels.get(event.channel)
        if state is None or state.connection is None:
            return
        state.last_used = now
        if isinstance(event, Connected):
            self._metrics.connected()
            state.connected(is_set_up=self._security is None)
            state.connection.connected(now)
            self._flush(state)
        elif isinstance(event, Secured):
            state.connection.secured(now)
            self._flush(state)
        elif isinstance(event, Received):
            self._received(state, state.connection, event.data, now)
        elif isinstance(event, Sent):
            self._metrics.sent(state.node.id, state.sending.popleft())
            done = state.connection.sent()
            if done is not None:
                state.succeeded()
                self._events.append(done)
        elif isinstance(event, Closed):
            why = event.reason
            if event.error is None:
                why += _likely_cause(state.connection)
                self._warn_of_wrong_protocol(state.node, state.connection, why)
            self._connection_lost(state, why, now, error=event.error)

    def _received(self, state: NodeState, connection: Connection, data: bytes, now: float) -> None:
        answers = 0
        try:
            for event in connection.received(data, now):
                if isinstance(event, NodeThrottled):
                    # A shorter throttle time does not end a longer one.
                    state.throttled_until = max(state.throttled_until, event.until)
                    self._events.append(NodeThrottled(state.node.id, state.throttled_until))
                    continue
                answers += 1
                if isinstance(event, Answered):
                    self._was_ever_answered = True
                    state.succeeded()
                elif isinstance(event, NodeReady):
                    self._was_ever_ready = True
                    state.set_up()
                    if self._security is not None:
                        self._metrics.authenticated()
                self._events.append(event)
        except AuthenticationException as error:
            self._connection_lost(state, str(error), now, error=error)
            return
        except ProtocolError as error:
            state.invalid_frame()
            self._connection_lost(state, str(error), now)
            return
        finally:
            self._metrics.received(state.node.id, len(data), answers)
            for renewal_s in connection.take_renewals():
                self._metrics.reauthenticated(renewal_s * 1000)
        self._flush(state)

    def _send_to(self, state: NodeState, request: ClientRequest, now: float) -> None:
        if state.connection is None:
            return
        try:
            state.connection.send(request, now)
        except UnsupportedVersionException as error:
            code = error_codes.UNSUPPORTED_VERSION
            self._failed(request, state.node.id, code, f"{state.node}: {error}")
            return
        except (ProtocolError, UnicodeError) as error:  # text that cannot be encoded
            reason = f"the request cannot be encoded: {error}"
            self._failed(request, state.node.id, error_codes.INVALID_REQUEST, reason)
            return
        state.last_used = now
        self._flush(state)

    def _flush(self, state: NodeState) -> None:
        if state.connection is not None:
            for buffers in state.connection.take_outgoing():
                state.sending.append(sum(map(len, buffers)))
                self._selector.send(state.channel, buffers)

    def _failed(self, request: ClientRequest, node_id: int | None, code: int, reason: str) -> None:
        self._events.append(RequestFailed(request, node_id, code, reason))

    # -- requests to any node ---------------------------------------------------------------------

    def _send_waiting(self, now: float) -> None:
        """Send requests for any node to the least loaded one, or connect to it."""
        waiting, self._unassigned = self._unassigned, []
        for request, deadline in waiting:
            if self._fatal_error is not None:
                self._events.append(_auth_failed(request, self._fatal_error))
                continue
            state = self._least_loaded(now)
            if state is not None and state.can_send(now):
                self._send_to(state, request, now)
            elif now >= deadline:
                reason = self.last_errors() or "no broker could be reached"
                self._failed(request, None, error_codes.REQUEST_TIMED_OUT, reason)
            else:
                self._unassigned.append((request, deadline))
                if state is not None and state.can_connect(now):
                    self._connect(state, now)

    def _least_loaded(self, now: float) -> NodeState | None:
        """Return the least loaded broker, or bootstrap address if there are no brokers.

        A bootstrap connection that is still open counts as a broker, which saves a connection.
        """
        brokers = [s for s in self._states.values() if s.node.id >= 0]
        bootstrap = [s for s in self._states.values() if s.node.id < 0]
        in_use = [*brokers, *(s for s in bootstrap if s.connection is not None)]
        chosen = least_loaded(in_use, now, self._random)
        if chosen is None and all(s.connection is None for s in in_use):
            if brokers and not self._config.rebootstraps:
                return None
            chosen = least_loaded(bootstrap, now, self._random)
        return chosen

    # -- connections ------------------------------------------------------------------------------

    def _connect_requested(self, now: float) -> None:
        for node_id in self._connect_to:
            state = self._states.get(node_id)
            if state is not None and state.can_connect(now):
                self._connect(state, now)

    def _connect(self, state: NodeState, now: float) -> None:
        node = state.node
        try:
            if not state.is_canonical:
                state = self._canonical(state)
                node = state.node
            if not self._has_login(state, now):
                return
            address = state.next_address(self._resolver)
        except (OSError, UnicodeError) as error:
            self._connection_lost(state, f"the host name cannot be resolved ({error})", now)
            return
        layer = login = None
        if self._security is not None:
            try:
                layer = self._security.layer(node)
                login = self._security.login(node, self._random.random())
            except RetriableException as error:
                self._connection_lost(state, str(error), now)
                return
            except KafkaException as error:
                auth_error = AuthenticationException(str(error))
                if isinstance(error, AuthenticationException):
                    auth_error = error
                self._connection_lost(state, str(error), now, error=auth_error)
                return
        state.connecting(now, self._config.connection_setup_timeout, self._random)
        state.connection = Connection(
            node.id,
            self._config.client_id,
            self._config.request_timeout_s,
            state.api_versions_version,
            has_tls=layer is not None,
            login=login,
            peer=str(node),
            software_version=__version__,
        )
        with safe_logging():
            logger.debug("connecting to %s at %s", node, address)
        state.channel, self._next_channel = self._next_channel, self._next_channel + 1
        self._channels[state.channel] = state
        self._selector.connect(state.channel, address, layer)

    def _has_login(self, state: NodeState, now: float) -> bool:
        """Return whether a new connection can log in now; it may have to wait."""
        if self._security is None or self._security.has_login(state.node):
            state.awaits_login_since = None
            return True
        state.awaiting_login(now, self._config.connection_setup_timeout, self._random)
        return False

    def _canonical(self, state: NodeState) -> NodeState:
        """Replace a bootstrap host by its canonical names, and return the first of them."""
        names = self._resolver.canonical_names(state.node.host)
        del self._states[state.node.id]
        next_id = min([-1, *self._states, state.node.id]) - 1
        made = [
            NodeState(Node(id=next_id - number, host=name, port=state.node.port))
            for number, name in enumerate(names)
        ]
        self._states.update({each.node.id: each for each in made})
        return made[0]

    def _connection_lost(
        self,
        state: NodeState,
        reason: str,
        now: float,
        code: int = error_codes.NETWORK_EXCEPTION,
        error: AuthenticationException | None = None,
    ) -> None:
        """Drop a connection: fail its requests, add the event, and set the back-off.

        error: set if the broker and this client reject each other.
        """
        connection = state.connection
        was_ready = state.is_ready
        if connection is not None and error is not None:
            self._metrics.authentication_failed(is_renewal=connection.is_renewing)
        reason += state.advertised_hint
        self._release(state)
        by_tls = isinstance(error, SslAuthenticationException)
        backoff = self._config.reconnect_backoff
        state.disconnected(reason, now, backoff, self._random, by_tls=by_tls)
        was = "ready" if was_ready else "being made"
        with safe_logging():
            logger.info("connection to %s lost (it was %s): %s", state.node, was, reason)
        if connection is not None:
            lost = code == error_codes.NETWORK_EXCEPTION
            for request in connection.closed():
                self._failed(
                    request, state.node.id, code, f"connection lost: {reason}" if lost else reason
                )
        self._events.append(NodeDown(state.node.id, reason, error))
        if not self._may_be_accepted_later(error):
            self._auth_error = error or self._auth_error
        self._check_fatal_error()
        if self._failures_left and state.node.id >= 0 and not state.addresses:
            self._failures_left -= 1
            if not self._failures_left or now >= self._tolerant_until:
                self._initial_nodes_error = f"{state.node}: {reason}"
                self.set_nodes({})

    def _may_be_accepted_later(self, error: AuthenticationException | None) -> bool:
        """Return whether a broker refused a login that it may accept soon."""
        is_refusal = isinstance(error, SaslAuthenticationException)
        return is_refusal and self._security is not None and self._security.may_be_accepted_later

    def _check_fatal_error(self) -> None:
        """Decide whether no broker will ever accept this client, and if so, fail all its requests.

        All brokers check the same credentials, so one rejected login is enough. Certificates differ
        between brokers, so every bootstrap address is tried.
        """
        if self._was_ever_ready or self._auth_error is None:
            return
        if isinstance(self._auth_error, SslAuthenticationException):
            bootstrap = [state for state in self._states.values() if state.node.id < 0]
            if not all(state.has_failed for state in bootstrap):
                return
        self._fatal_error = self._auth_error

    def _release(self, state: NodeState) -> None:
        state.sending.clear()
        if self._channels.pop(state.channel, None) is not None:
            self._metrics.closed()
            self._selector.close(state.channel)

    def _disconnect(self, state: NodeState, reason: str) -> None:
        """Close a connection that has not failed; the node's last error is kept."""
        if state.connection is not None:
            said = state.last_error
            state.named_by = None
            self._connection_lost(state, reason, self._clock())
            state.last_error = said

    def _expire(self, now: float) -> None:
        """Close connections that exceeded the setup timeout or the request timeout.

        Also end the attempts for which there was no login in time.
        """
        option = Option("socket.connection.setup.timeout.ms")
        for state in list(self._states.values()):
            connection = state.connection
            if connection is None:
                is_late = state.awaits_login_since is not None and now >= state.setup_until
                if is_late and not self._has_login(state, now):
                    self._no_login(state, f"no ticket or token within {option}", now)
                continue
            if now >= state.setup_until:
                where = connection.state.value
                if connection.state is ConnectionState.CONNECTING:
                    reason = f"no connection within {option}"
                else:
                    reason = f"the connection was still {where} after {option}"
                self._connection_lost(state, reason, now)
            elif now >= connection.in_flight.expires_at():
                timeout_ms = round(self._config.request_timeout_s * 1000)
                reason = f"no response within {Option('request.timeout.ms')}={timeout_ms}"
                if connection.state is ConnectionState.CHECKING_API_VERSIONS:
                    reason += f", even to ApiVersions; {NO_BROKER}"
                elif not connection.is_ready:
                    reason += f" {connection.state.value}"
                self._connection_lost(state, reason, now, error_codes.REQUEST_TIMED_OUT)

    def _renew_sessions(self, now: float) -> None:
        """Begin the logins that requests wait for: their sessions are over.

        The selector is woken when there is a login.
        """
        for state in list(self._states.values()):
            connection = state.connection
            if connection is None or connection.awaits_login_since is None:
                continue
            try:
                has_begun = connection.go_on(now)
            except KafkaException as error:
                auth_error = error if isinstance(error, AuthenticationException) else None
                self._connection_lost(state, str(error), now, error=auth_error)
                continue
            if has_begun:
                self._flush(state)
            elif now >= connection.awaits_login_since + self._config.request_timeout_s:
                timeout = Option("request.timeout.ms", round(self._config.request_timeout_s * 1000))
                self._no_login(
                    state, f"no ticket or token within {timeout} to renew the session", now
                )

    def _no_login(self, state: NodeState, reason: str, now: float) -> None:
        """Drop a connection, or an attempt, that has waited for a login for too long."""
        if self._security is not None:
            self._security.give_up(state.node)
        self._connection_lost(state, reason, now)

    def _close_idle(self, now: float) -> None:
        """Close the connection that was unused for longest, if for too long; one per poll."""
        unused = [s for s in self._states.values() if s.is_ready and not s.load]
        oldest = min(unused, key=lambda state: state.last_used, default=None)
        if oldest is None or oldest.connection is None:
            return
        if now >= oldest.last_used + self._config.connections_max_idle_s:
            self._release(oldest)
            oldest.connection.closed()
            oldest.connection, oldest.addresses = None, None
            self._events.append(NodeDown(oldest.node.id, "idle"))


def _auth_failed(request: ClientRequest, error: AuthenticationException) -> RequestFailed:
    return RequestFailed(request, None, error.code, str(error), error)


def _likely_cause(connection: Connection) -> str:
    """Return the likely reason why a peer closed the connection, from its state."""
    if connection.is_inside_answer:
        return " in the middle of a response"
    if connection.state is ConnectionState.TLS_HANDSHAKE:
        return (
            f" in the TLS handshake; {WITHOUT_TLS}: compare the port and "
            f"{Option('security.protocol')} with the broker's listeners"
        )
    if connection.state is ConnectionState.CHECKING_API_VERSIONS:
        return f" before it answered ApiVersions; {NO_BROKER}"
    if connection.state in (ConnectionState.SASL_HANDSHAKE, ConnectionState.SASL_TOKENS):
        return " during the SASL login without an error: some brokers reject a login this way"
    if _hung_up_on_first_request(connection):
        return (
            " before it answered the first request; it may expect SASL: compare the port and "
            f"{Option('security.protocol')} with the broker's listeners"
        )
    return ""


def _hung_up_on_first_request(connection: Connection) -> bool:
    return connection.is_ready and not connection.has_answered and len(connection.in_flight) > 0


def _may_have_other_protocol(connection: Connection) -> bool:
    """Return whether a listener of another security protocol closes connections like this one."""
    is_in_handshake = connection.state is ConnectionState.TLS_HANDSHAKE
    return is_in_handshake or _hung_up_on_first_request(connection)
