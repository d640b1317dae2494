"""NetworkClient: sends requests to nodes, over connections that it makes and keeps.

It owns the known nodes and their connections. The caller calls `connect` and `send`, and `poll`
returns the results as events. The client does not interpret the requests of its callers. One thread
uses it.

::

    connect, send                      poll returns Answered, NodeReady, NodeDown, RequestFailed
        │                                                   ^
        v                                                   │
    NodeState: one per node ───────── frames ────────> Connection: bytes <-> requests (pure)
    address, back-off, last error                           │ ^
        │ connect                                     bytes v │ bytes
        └───────────────────────────────────────────> Selector: sockets, TLS, one select() for all

What is hard:

- Every request that was passed to `send` results in exactly one event. Its cause is a response, a
  broken connection, request.timeout.ms, an unsupported version, or a rejected login. A response
  that arrived before its connection closed still counts. So the client reads all received bytes
  before it reports a connection as closed, and before it closes one itself (`_take_rest`).
- Thousands of tasks must not reconnect at the same time. A connection is made only to a node that
  was passed to `connect`, or for a request that any node may answer. After a failure, the client
  backs off for reconnect.backoff.ms. The back-off doubles with each failure, up to
  reconnect.backoff.max.ms, and has a jitter of 20 %. The next attempt uses the next address.
- An open connection does not show that a node works. For example, a listener that expects SASL
  answers ApiVersions, and closes the connection at any other request. So the last error of a node
  is kept for error messages until the node answers another request.
- All brokers may move to different addresses. If no known node can be reached, the client connects
  to the bootstrap addresses again, early enough for a call to succeed within max.block.ms.

The sender limits the Produce requests in flight per node. The few requests that any node may answer
do not count against that limit.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from random import Random
from typing import Final

from spark_kafka_sink import error_codes
from spark_kafka_sink.errors import (
    NO_BROKER,
    NO_BROKER_BY_TLS,
    AuthenticationException,
    Cause,
    KafkaException,
    NetworkException,
    Option,
    ProtocolError,
    RetriableException,
    SaslAuthenticationException,
    SslAuthenticationException,
    UnsupportedVersionException,
)
from spark_kafka_sink.logs import safe_logging, warn_once_now
from spark_kafka_sink.metrics import Metrics
from spark_kafka_sink.model import Node, __version__
from spark_kafka_sink.network.connection import Connection
from spark_kafka_sink.network.network_metrics import NetworkMetrics
from spark_kafka_sink.network.node_state import NetworkConfig, NodeState
from spark_kafka_sink.network.nodes import NodeStates, address
from spark_kafka_sink.network.security import Security
from spark_kafka_sink.network.selector import (
    Closed,
    Connected,
    HostResolver,
    PartlySent,
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
# If two polls are further apart, the time between them does not count as a broker's silence.
_MIN_GAP_S: Final = 0.5


class NetworkClient:
    """The connections of a client, by node id. Bootstrap addresses have negative ids.

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
        # Whether any broker has answered a request of a caller. The client's own requests, such as
        # ApiVersions, do not count.
        self._was_ever_answered = False
        if security is not None:
            security.wake = selector.wakeup
        self._selector = selector
        self._config = config
        self._clock = clock
        self._random = random
        self._resolver = resolver or HostResolver()
        self._nodes = NodeStates(bootstrap, config)
        # Every connection has a new channel id, so that late events of an old connection are
        # ignored.
        self._channels: dict[int, NodeState] = {}
        self._next_channel = 0
        self._connect_to: set[int] = set()
        self._unassigned: list[tuple[ClientRequest, float]] = []
        self._events: list[Event] = []
        # The events of the selector that this poll has not processed yet.
        self._happened: deque[SelectorEvent] = deque()
        # The end of the last poll.
        self._polled_at = clock()

    # -- called by the owner ----------------------------------------------------------------------

    def set_initial_nodes(self, brokers: Iterable[Node]) -> None:
        """Use brokers that another client learned from the cluster, until the metadata arrives.

        The first requests are then spread over all brokers. Otherwise, all clients would send their
        first requests to the bootstrap addresses. If a broker fails (it may be busy, down, or
        unreachable from here), another broker is used. After a few failures all of these brokers
        are dropped, and the bootstrap addresses are used.
        """
        nodes = {node.id: node for node in brokers}
        if nodes:
            self.set_nodes(nodes)
            self._nodes.tolerate_failures(self._clock())

    def set_nodes(self, nodes: Mapping[int, Node]) -> None:
        """Replace the known brokers with those in the metadata. Disconnect from removed brokers.

        If `nodes` is empty, close every connection and start again from the bootstrap addresses.
        """
        if not nodes:
            with safe_logging():
                logger.info(
                    "connecting to the bootstrap servers again: no known broker returns metadata"
                )
        for state, reason in self._nodes.replace(nodes):
            self._disconnect(state, reason)

    def connect(self, node_ids: set[int]) -> None:
        """Set the nodes to keep connected.

        The client connects to other nodes only for requests that any node may answer.
        """
        self._connect_to = node_ids

    def send(self, request: ClientRequest) -> None:
        """Send a request. A later poll returns its result as an event."""
        now = self._clock()
        if request.node_id is None:
            self._unassigned.append((request, now + self._config.request_timeout_s))
            return
        state = self._nodes.get(request.node_id)
        if state is None or not state.is_ready:
            reason = "the connection to the node was closed"
            self._failed(request, request.node_id, error_codes.NETWORK_EXCEPTION, reason)
            return
        self._send_to(state, request, now)

    def wakeup(self) -> None:
        """End the current or the next poll early. Any thread may call this."""
        self._selector.wakeup()

    def last_errors(self) -> str:
        """Return the errors of nodes, for error messages. Any thread may call this."""
        problem = "" if self._security is None else self._security.problem
        return self._nodes.errors(self._clock(), problem)

    @property
    def no_broker(self) -> Cause:
        """The error of a call that no broker has answered in time. Any thread may read it."""
        return NO_BROKER_BY_TLS if self._nodes.has_tls_error else NO_BROKER

    @property
    def principal(self) -> str:
        """The client's principal, or an empty string if unknown. Any thread may read it."""
        return "" if self._security is None else self._security.principal

    def in_flight_count(self) -> int:
        """Return the number of requests without a response yet. Any thread may call this."""
        return sum(state.load for state in self._nodes)

    def connection_count(self) -> int:
        """Return the number of connections, even those being made. Any thread may call this."""
        return len(self._channels)

    def close(self) -> None:
        """Close every connection."""
        for state in list(self._channels.values()):
            self._release(state)
        if self._security is not None:
            self._security.close()
        self._selector.close_all()

    # -- events -----------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[Event]:
        """Make connections, send pending requests, wait for the network, and return the events."""
        now = self._clock()
        if now - self._polled_at > _MIN_GAP_S:
            self._nodes.missed(now - self._polled_at)
        self._send_waiting(now)
        self._renew_sessions(now)
        for state in filter(None, map(self._nodes.get, self._connect_to)):
            if state.can_connect(now):
                self._connect(state)
        begun_at, now = now, self._clock()
        self._nodes.extend_setup(begun_at, now)
        self._close_idle(now)
        self._warn_of_no_response(now)
        wait = 0.0 if self._events else min(timeout_s, max(0.0, self._next_deadline(now) - now))
        happened = self._selector.poll(wait)
        self._metrics.fold(self._clock())
        self._happened += happened
        while self._happened:
            self._handle(self._happened.popleft(), self._clock())
        now = self._clock()
        self._expire(now, happened)
        self._send_waiting(now)
        events, self._events = self._events, []
        self._polled_at = now
        return events

    def _next_deadline(self, now: float) -> float:
        waiting = [deadline for _, deadline in self._unassigned]
        of_nodes = self._nodes.next_deadline(
            now, self._config, self._connect_to, is_any_needed=bool(waiting)
        )
        return min([of_nodes, *waiting])

    def _warn_of_no_response(self, now: float) -> None:
        """Log one warning that lists the failing nodes, long before a caller's timeout."""
        silent_s = self._nodes.silence_s(
            now, self._connect_to, is_any_needed=bool(self._unassigned)
        )
        if silent_s is not None:
            who = "no broker that is needed" if self._nodes.has_answering(now) else "no broker"
            message = f"{who} has answered for {silent_s:.0f} s, still trying"
            tried = self.last_errors()
            with safe_logging():
                warn_once_now(
                    logger,
                    f"{message}: {tried}" if tried else message,
                    "silence",
                    self._nodes.addresses_in_trouble(now),
                )

    def _handle(self, event: SelectorEvent, now: float) -> None:
        """Process an event, and write the frames that follow from it."""
        state = self._channels.get(event.channel)
        if state is not None and state.connection is not None:
            self._process(state, state.connection, event, now)
            self._flush(state)

    def _process(
        self, state: NodeState, connection: Connection, event: SelectorEvent, now: float
    ) -> None:
        state.last_used = now
        if isinstance(event, Connected):
            self._metrics.connected()
            state.connected(is_set_up=self._security is None)
            connection.connected(now)
        elif isinstance(event, Secured):
            connection.secured(now)
        elif isinstance(event, Received):
            self._received(state, connection, event.data, now)
        elif isinstance(event, Sent):
            self._metrics.sent(state.node.id, connection.in_flight.next_frame_bytes)
            done = connection.sent(now)
            if done is not None:
                self._nodes.answered(state, now)
                self._events.append(done)
        elif isinstance(event, PartlySent):
            connection.in_flight.taken(now)
        elif isinstance(event, Closed):
            why = event.reason
            if event.error is None:
                speaks_tls = event.speaks_tls
                state.closed_by_peer()
                why += state.why_closed(
                    speaks_tls=speaks_tls, was_ever_answered=self._was_ever_answered
                )
                # The reason is only likely, not certain, so it is logged as a warning.
                may_differ = state.may_have_other_protocol(speaks_tls=speaks_tls)
                if may_differ and not self._was_ever_answered:
                    with safe_logging():
                        where = address(state.node)
                        warn_once_now(logger, f"{state.node}: {why}", "protocol", [where])
            why = state.with_advertised_hint(why)
            self._connection_lost(state, why, now, error=event.error)

    def _received(self, state: NodeState, connection: Connection, data: bytes, now: float) -> None:
        answers = 0
        try:
            for event in connection.received(data, now):
                if isinstance(event, NodeThrottled):
                    # A shorter throttle time does not end an earlier, longer throttle time.
                    state.throttled_until = max(state.throttled_until, event.until)
                    self._events.append(NodeThrottled(state.node.id, state.throttled_until))
                    continue
                answers += 1
                if isinstance(event, Answered):
                    self._was_ever_answered = True
                    self._nodes.answered(state, now)
                elif isinstance(event, NodeReady):
                    self._nodes.was_ever_ready = True
                    state.ready()
                    if self._security is not None:
                        self._metrics.authenticated()
                self._events.append(event)
        except (AuthenticationException, NetworkException, ProtocolError) as error:
            self._unusable(state, error, now)
        finally:
            self._metrics.received(state.node.id, len(data), answers)
            for renewal_s in connection.take_renewals():
                self._metrics.reauthenticated(renewal_s * 1000)

    def _unusable(
        self,
        state: NodeState,
        error: AuthenticationException | NetworkException | ProtocolError,
        now: float,
    ) -> None:
        """Drop a connection after a rejected login, or after bytes that are not Kafka frames."""
        reason = str(error)
        if isinstance(error, ProtocolError):
            state.invalid_frame()
        if isinstance(error, ProtocolError | SslAuthenticationException):  # it may not be a broker
            reason = state.with_advertised_hint(reason)
        rejection = error if isinstance(error, AuthenticationException) else None
        self._connection_lost(state, reason, now, error=rejection)

    def _send_to(self, state: NodeState, request: ClientRequest, now: float) -> None:
        if state.connection is None:
            return
        try:
            state.connection.send(request, now)
        except UnsupportedVersionException as error:
            code = error_codes.UNSUPPORTED_VERSION
            self._failed(request, state.node.id, code, f"{state.node}: {error}")
            return
        except (ProtocolError, UnicodeError) as error:  # invalid text
            reason = f"the request cannot be encoded: {error}"
            self._failed(request, state.node.id, error_codes.INVALID_REQUEST, reason)
            return
        state.last_used = now
        self._flush(state)

    def _flush(self, state: NodeState) -> None:
        if state.connection is not None:
            for buffers in state.connection.take_outgoing():
                self._selector.send(state.channel, buffers)

    def _failed(
        self,
        request: ClientRequest,
        node_id: int | None,
        code: int,
        reason: str,
        *,
        was_sent: bool = False,
    ) -> None:
        self._events.append(RequestFailed(request, node_id, code, reason, was_sent=was_sent))

    # -- requests that any node may answer --------------------------------------------------------

    def _send_waiting(self, now: float) -> None:
        """Send requests that any node may answer, each to the least loaded node.

        If the least loaded node has no connection, connect to it first.
        """
        self._nodes.check_tls()
        waiting, self._unassigned = self._unassigned, []
        for request, deadline in waiting:
            if (error := self._nodes.fatal_error) is not None:
                # Each request raises this error. Its traceback must not grow each time.
                error.with_traceback(None)
                self._events.append(
                    RequestFailed(request, None, error.code, str(error), error, was_sent=False)
                )
                continue
            state = self._nodes.least_loaded(now, self._random)
            if state is not None and state.can_send(now):
                self._send_to(state, request, now)
            elif now >= deadline:
                reason = self.last_errors() or "no broker could be reached"
                self._failed(request, None, error_codes.REQUEST_TIMED_OUT, reason)
            else:
                self._unassigned.append((request, deadline))
                if state is not None and state.can_connect(now):
                    self._connect(state)

    # -- connections ------------------------------------------------------------------------------

    def _connect(self, state: NodeState) -> None:
        """Begin a connection. This may take long, for example because the name server is slow."""
        node = state.node
        try:
            if not state.is_canonical:
                state = self._nodes.canonical(state, self._resolver)
                node = state.node
            if not self._has_login(state, self._clock()):
                return
            address = state.next_address(self._resolver)
        except (OSError, UnicodeError) as error:
            self._connection_lost(
                state,
                state.with_advertised_hint(f"the host name cannot be resolved ({error})"),
                self._clock(),
            )
            return
        layer = login = None
        if self._security is not None:
            try:
                layer = self._security.layer(node)
                login = self._security.login(node, self._random.random())
            except KafkaException as error:
                auth_error = error if isinstance(error, AuthenticationException) else None
                if auth_error is None and not isinstance(error, RetriableException):
                    auth_error = AuthenticationException(str(error))
                self._connection_lost(
                    state, str(error), self._clock(), error=auth_error, passes=auth_error is None
                )
                return
        state.connecting(self._clock(), self._config.connection_setup_timeout, self._random)
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
        """Return whether a new connection can log in now. If not, fetch a ticket or token."""
        if self._security is None or self._security.has_login(state.node):
            state.awaits_login_since = None
            return True
        state.awaiting_login(now, self._config.connection_setup_timeout, self._random)
        return False

    def _connection_lost(
        self,
        state: NodeState,
        reason: str,
        now: float,
        code: int = error_codes.NETWORK_EXCEPTION,
        error: AuthenticationException | None = None,
        *,
        passes: bool = False,
    ) -> None:
        """Drop a connection: fail its requests, add the NodeDown event, and set the back-off.

        error: set if the broker rejected this client, or this client rejected the broker. passes:
        whether the failure is expected to pass.
        """
        connection = state.connection
        was = "ready" if state.is_ready else "being made"
        if error is not None:
            # A login may also fail before there is a connection.
            self._metrics.authentication_failed(
                is_renewal=connection is not None
                and (connection.is_renewing or connection.awaits_login_since is not None)
            )
        self._release(state)
        by_tls = isinstance(error, SslAuthenticationException)
        is_refusal = isinstance(error, SaslAuthenticationException)
        later = is_refusal and self._security and self._security.may_be_accepted_later
        state.disconnected(
            reason,
            now,
            self._config.reconnect_backoff,
            self._random,
            by_tls=by_tls,
            passes=passes or bool(later),
        )
        with safe_logging():
            logger.info("connection to %s lost (it was %s): %s", state.node, was, reason)
        if connection is not None:
            lost = code == error_codes.NETWORK_EXCEPTION
            why = f"connection lost: {reason}" if lost else reason
            in_flight, held = connection.closed()
            for request in in_flight:
                self._failed(request, state.node.id, code, why, was_sent=True)
            for request in held:
                self._failed(request, state.node.id, code, f"not sent: {why}")
        self._events.append(NodeDown(state.node.id, reason, error))
        if error is not None and not later:
            self._nodes.reject(error)
        if self._nodes.are_given_up(state, reason, now):
            self.set_nodes({})

    def _release(self, state: NodeState) -> None:
        if self._channels.pop(state.channel, None) is not None:
            self._metrics.closed()
            self._selector.close(state.channel)

    def _take_rest(self, state: NodeState) -> bool:
        """Process what has arrived on a connection, before the caller closes the connection.

        Otherwise, requests would be retried although their responses have arrived. Nothing is sent.
        Return False if the connection broke meanwhile. Otherwise, the caller must still close it.
        """
        channel, connection = state.channel, state.connection
        if connection is None or not connection.is_ready or not connection.in_flight:
            return True
        unprocessed = [event for event in self._happened if event.channel == channel]
        for event in chain(unprocessed, self._selector.rest(channel)):
            self._process(state, connection, event, self._clock())
            if state.connection is None:
                return False
            if not connection.in_flight:
                break
        return True

    def _disconnect(self, state: NodeState, reason: str) -> None:
        """Close a connection that has not failed. Keep the node's last error."""
        if state.connection is not None and self._take_rest(state):
            said = state.last_error
            self._connection_lost(state, reason, self._clock())
            state.last_error = said

    def _expire(self, now: float, happened: Sequence[SelectorEvent]) -> None:
        """Close connections that exceeded the setup timeout or the request timeout.

        Also end the connection attempts that got no ticket or token in time. If this poll has read
        from a connection, the socket may contain more responses. Such a connection stays open, and
        the next poll checks it again. happened: the events that this poll got from the selector.
        """
        for state in self._nodes:
            if state.is_late_for_login(now) and not self._has_login(state, now):
                timeout = Option("socket.connection.setup.timeout.ms")
                self._no_login(state, f"no ticket or token within {timeout}", now)
                continue
            expired = state.expired(now, self._config.request_timeout_s)
            if expired is not None and not _has_read(state, happened):
                reason = state.with_advertised_hint(expired.reason)
                self._connection_lost(state, reason, now, expired.code)

    def _renew_sessions(self, now: float) -> None:
        """Re-authenticate the connections whose session ended while there were no credentials.

        Until then, they hold requests back. The selector wakes up when credentials are available.
        """
        for state in self._nodes:
            connection = state.connection
            if connection is None or connection.awaits_login_since is None:
                continue
            try:
                has_begun = connection.go_on(now)
            except KafkaException as error:
                auth_error = error if isinstance(error, AuthenticationException) else None
                if self._take_rest(state):
                    self._connection_lost(state, str(error), now, error=auth_error)
                continue
            if has_begun:
                self._flush(state)
            elif now >= connection.awaits_login_since + self._config.request_timeout_s:
                timeout = Option("request.timeout.ms", round(self._config.request_timeout_s * 1000))
                self._no_login(
                    state, f"no ticket or token within {timeout} to re-authenticate", now
                )

    def _no_login(self, state: NodeState, reason: str, now: float) -> None:
        """Drop a connection, or a connection attempt, that got no ticket or token in time."""
        if self._security is not None:
            self._security.give_up(state.node)
        if self._take_rest(state):
            self._connection_lost(state, reason, now, passes=True)

    def _close_idle(self, now: float) -> None:
        """Close the connection that has been idle longest, if it exceeds connections.max.idle.ms.

        At most one connection is closed per poll.
        """
        oldest = self._nodes.oldest_unused()
        if oldest is None or oldest.connection is None:
            return
        if now >= oldest.last_used + self._config.connections_max_idle_s:
            self._release(oldest)
            oldest.connection.closed()
            oldest.connection, oldest.addresses = None, None
            self._events.append(NodeDown(oldest.node.id, "idle"))


def _has_read(state: NodeState, happened: Sequence[SelectorEvent]) -> bool:
    return any(isinstance(each, Received) and each.channel == state.channel for each in happened)
