"""NetworkClient: requests to nodes, over connections that it makes and keeps.

Owns which nodes are known, the connection of each, and when a broken one may be tried again. It
does what `connect` and `send` ask for, and `poll` reports what came of it as events; it decides
nothing about the requests' meaning. One thread uses it.

A connection is made only to a node that is wanted. After a failure the next attempt waits
reconnect.backoff.ms, doubled per failure up to reconnect.backoff.max.ms, with 20 % of chance (so
that thousands of tasks do not come back at once), and goes to the host's next address.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from spark_kafka_sink import error_codes
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.errors import ProtocolError, UnsupportedVersionException
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection import Connection
from spark_kafka_sink.network.selector import (
    Address,
    Closed,
    Connected,
    Received,
    Selector,
    SelectorEvent,
    Sent,
    resolve,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """What the client is configured with; times in seconds."""

    client_id: str
    request_timeout_s: float
    reconnect_backoff: ExponentialBackoff
    connection_setup_timeout: ExponentialBackoff
    connections_max_idle_s: float


@dataclass(slots=True)
class _NodeState:
    """One node's connection and its history (ClusterConnectionStates)."""

    node: Node
    channel: int = -1
    connection: Connection | None = None
    addresses: list[Address] | None = None
    failures: int = 0
    not_before: float = 0.0
    setup_until: float = float("inf")
    last_used: float = 0.0
    throttled_until: float = 0.0
    last_error: str = ""

    @property
    def is_ready(self) -> bool:
        return self.connection is not None and self.connection.is_ready


class NetworkClient:
    """Connections by node id; bootstrap addresses have negative ids."""

    def __init__(
        self,
        selector: Selector,
        config: NetworkConfig,
        bootstrap: list[Node],
        clock: Callable[[], float],
        random: Random,
    ) -> None:
        self._selector = selector
        self._config = config
        self._clock = clock
        self._random = random
        self._bootstrap = {node.id: _NodeState(node) for node in bootstrap}
        self._states: dict[int, _NodeState] = dict(self._bootstrap)
        # Every connection is a new channel, so that no event of an old one can meet a new one.
        self._channels: dict[int, _NodeState] = {}
        self._next_channel = 0
        self._wanted: set[int] = set()
        self._for_any: list[tuple[ClientRequest, float]] = []
        self._events: list[Event] = []

    # -- what is asked for ------------------------------------------------------------------------

    def set_nodes(self, nodes: Mapping[int, Node]) -> None:
        """Take the brokers that the cluster's metadata names; gone ones are disconnected."""
        for node_id in [n for n in self._states if n >= 0 and n not in nodes]:
            self._disconnect(node_id, "the cluster no longer lists this broker")
            del self._states[node_id]
        for node_id, node in nodes.items():
            state = self._states.get(node_id)
            if state is None:
                self._states[node_id] = _NodeState(node)
            elif (state.node.host, state.node.port) != (node.host, node.port):
                self._disconnect(node_id, f"the broker moved to {node.host}:{node.port}")
                self._states[node_id] = _NodeState(node)

    def connect(self, node_ids: set[int]) -> None:
        """Want connections to these nodes, and to no others that have none."""
        self._wanted = node_ids

    def send(self, request: ClientRequest) -> None:
        """Send a request; what becomes of it comes as an event of a later poll."""
        now = self._clock()
        if request.node_id is None:
            self._for_any.append((request, now + self._config.request_timeout_s))
            return
        state = self._states.get(request.node_id)
        if state is None or not state.is_ready:
            reason = "the connection to the node is gone"
            self._failed(request, request.node_id, error_codes.NETWORK_EXCEPTION, reason)
            return
        self._send_to(state, request, now)

    def wakeup(self) -> None:
        """End a poll early; from any thread."""
        self._selector.wakeup()

    def last_errors(self) -> str:
        """Say what the latest failure of each node that has no connection was."""
        failures = [
            f"{state.node}: {state.last_error}"
            for state in self._states.values()
            if state.last_error and not state.is_ready
        ]
        return "; ".join(failures)

    def close(self) -> None:
        """Drop every connection."""
        self._selector.close_all()

    # -- what happens -----------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[Event]:
        """Make connections, send what waits, wait for the network, and give what happened."""
        now = self._clock()
        self._send_waiting(now)
        self._connect_wanted(now)
        self._close_idle(now)
        wait = 0.0 if self._events else min(timeout_s, self._next_deadline() - now)
        for event in self._selector.poll(wait):
            self._on(event, self._clock())
        now = self._clock()
        self._expire(now)
        self._send_waiting(now)
        events, self._events = self._events, []
        return events

    def _next_deadline(self) -> float:
        due = [deadline for _, deadline in self._for_any]
        want = set(self._wanted)
        if self._for_any:
            want.update(self._candidates())
        for node_id, state in self._states.items():
            connection = state.connection
            if connection is None:
                if node_id in want:
                    due.append(state.not_before)
                continue
            due += [state.setup_until, connection.in_flight.expires_at()]
            due.append(state.last_used + self._config.connections_max_idle_s)
        return min(due, default=float("inf"))

    def _on(self, event: SelectorEvent, now: float) -> None:
        state = self._channels.get(event.channel)
        if state is None or state.connection is None:
            return
        state.last_used = now
        if isinstance(event, Connected):
            state.connection.connected(now)
            self._flush(state)
        elif isinstance(event, Received):
            self._received(state, state.connection, event.data, now)
        elif isinstance(event, Sent):
            done = state.connection.sent()
            if done is not None:
                self._events.append(done)
        elif isinstance(event, Closed):
            self._lost(state, event.reason, now)

    def _received(self, state: _NodeState, connection: Connection, data: bytes, now: float) -> None:
        try:
            for event in connection.received(data, now):
                self._events.append(event)
                if isinstance(event, NodeReady):
                    state.failures = 0
                    state.setup_until = float("inf")
                    state.last_error = ""
                elif isinstance(event, Answered):
                    self._throttle(state, event, now)
        except ProtocolError as error:
            self._lost(state, str(error), now)
            return
        self._flush(state)

    def _throttle(self, state: _NodeState, answered: Answered, now: float) -> None:
        throttle_ms = getattr(answered.response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            state.throttled_until = max(state.throttled_until, now + throttle_ms / 1000)
            self._events.append(NodeThrottled(state.node.id, state.throttled_until))

    def _send_to(self, state: _NodeState, request: ClientRequest, now: float) -> None:
        if state.connection is None:
            return
        try:
            state.connection.send(request, now)
        except UnsupportedVersionException as error:
            code = error_codes.UNSUPPORTED_VERSION
            self._failed(request, state.node.id, code, str(error))
            return
        state.last_used = now
        self._flush(state)

    def _flush(self, state: _NodeState) -> None:
        if state.connection is not None:
            for buffers in state.connection.take_outgoing():
                self._selector.send(state.channel, buffers)

    # -- connections ------------------------------------------------------------------------------

    def _send_waiting(self, now: float) -> None:
        """Send what any node may answer to the ready node with the least in flight."""
        if not self._for_any:
            return
        ready = [s for s in self._states.values() if s.is_ready and s.throttled_until <= now]
        if ready:
            waiting, self._for_any = self._for_any, []
            for request, _ in waiting:
                self._send_to(min(ready, key=_load), request, now)
            return
        for entry in [e for e in self._for_any if now >= e[1]]:
            self._for_any.remove(entry)
            reason = self.last_errors() or "no broker could be reached"
            self._failed(entry[0], None, error_codes.REQUEST_TIMED_OUT, reason)

    def _candidates(self) -> list[int]:
        """Give the nodes to try for a request to any node: brokers before bootstrap addresses."""
        connecting = [s for s in self._states.values() if s.connection is not None]
        if connecting:
            return []
        nodes = [n for n in self._states if n >= 0] or list(self._bootstrap)
        due = min(self._states[n].not_before for n in nodes)
        soonest = [n for n in nodes if self._states[n].not_before == due]
        return [self._random.choice(soonest)]

    def _connect_wanted(self, now: float) -> None:
        want = set(self._wanted)
        if self._for_any:
            want.update(self._candidates())
        for node_id in want:
            state = self._states.get(node_id)
            if state is not None and state.connection is None and now >= state.not_before:
                self._connect(state, now)

    def _connect(self, state: _NodeState, now: float) -> None:
        node = state.node
        try:
            if not state.addresses:
                state.addresses = resolve(node.host, node.port)
            address = state.addresses.pop(0)
        except (OSError, IndexError, UnicodeError) as error:
            self._lost(state, f"the host name cannot be resolved ({error})", now)
            return
        state.connection = Connection(
            node.id, self._config.client_id, self._config.request_timeout_s
        )
        setup = self._config.connection_setup_timeout.delay_s(state.failures, self._random)
        state.setup_until = now + setup
        state.last_used = now
        logger.debug("connecting to %s at %s", node, address)
        state.channel, self._next_channel = self._next_channel, self._next_channel + 1
        self._channels[state.channel] = state
        self._selector.connect(state.channel, address)

    def _lost(self, state: _NodeState, reason: str, now: float) -> None:
        """Take a connection as gone: fail its requests, tell, and wait before the next try."""
        connection = self._drop(state)
        was_ready = connection is not None and connection.is_ready
        state.setup_until = float("inf")
        state.last_error = reason
        state.not_before = now + self._config.reconnect_backoff.delay_s(
            state.failures, self._random
        )
        state.failures += 1
        logger.info("connection to %s lost (it was %s): %s", state.node,
                    "ready" if was_ready else "being made", reason)  # fmt: skip
        if connection is not None:
            for request in connection.closed():
                code = error_codes.NETWORK_EXCEPTION
                self._failed(request, state.node.id, code, f"connection lost: {reason}")
        self._events.append(NodeDown(state.node.id, reason))

    def _drop(self, state: _NodeState) -> Connection | None:
        connection, state.connection = state.connection, None
        if self._channels.pop(state.channel, None) is not None:
            self._selector.close(state.channel)
        return connection

    def _disconnect(self, node_id: int, reason: str) -> None:
        state = self._states[node_id]
        if state.connection is not None:
            self._lost(state, reason, self._clock())

    def _expire(self, now: float) -> None:
        """Drop connections that took too long to come up, or to answer."""
        for state in self._states.values():
            connection = state.connection
            if connection is None:
                continue
            if now >= state.setup_until:
                reason = "the connection was not up within socket.connection.setup.timeout.ms"
            elif now >= connection.in_flight.expires_at():
                timeout_ms = round(self._config.request_timeout_s * 1000)
                reason = f"no answer within request.timeout.ms={timeout_ms}"
                for request in connection.closed():
                    code = error_codes.REQUEST_TIMED_OUT
                    self._failed(request, state.node.id, code, reason)
            else:
                continue
            self._lost(state, reason, now)

    def _close_idle(self, now: float) -> None:
        for state in self._states.values():
            idle_for = now - state.last_used
            connection = state.connection
            if connection is None or len(connection.in_flight):
                continue
            if idle_for >= self._config.connections_max_idle_s:
                self._drop(state)
                connection.closed()
                self._events.append(NodeDown(state.node.id, "idle"))

    def _failed(self, request: ClientRequest, node_id: int | None, code: int, reason: str) -> None:
        self._events.append(RequestFailed(request, node_id, code, reason))


def _load(state: _NodeState) -> int:
    return len(state.connection.in_flight) if state.connection is not None else 0
