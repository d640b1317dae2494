"""NetworkClient: requests to nodes, over connections that it makes and keeps.

Owns which nodes are known, and the connection of each. It does what `connect` and `send` ask for,
and `poll` reports what came of it as events; it decides nothing about the requests' meaning. One
thread uses it.

A connection is made only to a node that is wanted. After a failure the next attempt waits
reconnect.backoff.ms, doubled per failure up to reconnect.backoff.max.ms, with 20 % of chance (so
that thousands of tasks do not come back at once), and goes to the host's next address.

How many Produce requests a node has in flight is the sender's business; the few others, which go to
any node, are never held back by them.
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
    ProtocolError,
    RetriableException,
    SslAuthenticationException,
    UnsupportedVersionException,
)
from spark_kafka_sink.logs import safe_logging, warn_once
from spark_kafka_sink.metrics import Metrics
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection import Connection, ConnectionState
from spark_kafka_sink.network.network_metrics import NetworkMetrics
from spark_kafka_sink.network.node_state import NO_BROKER, NodeState, least_loaded
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
# So many brokers that were only heard of may be lost, or one that took so long: then there is time
# for the bootstrap addresses within max.block.ms.
_HEARSAY_LOSSES: Final = 2
_HEARSAY_S: Final = 15.0
# After so long without an answer of anybody, users are told who is being tried.
_SILENCE_S: Final = 5.0
_MOST_TOLD: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """What the client is configured with; times in seconds, infinity for never.

    rebootstraps: whether bootstrap addresses are tried while no broker can be (KIP-899).
    option_prefix: what the user writes before the name of an option.
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
    option_prefix: str = ""

    @classmethod
    def of(cls, config: ProducerConfig, client_id: str) -> Self:
        """Take what concerns the network from a configuration."""
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
            option_prefix=config.option_prefix,
        )


class NetworkClient:
    """Connections by node id; bootstrap addresses have negative ids.

    security: None where connections have neither TLS nor SASL.
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
        # Whether a broker has ever let this client in, and why none ever will.
        self._was_let_in = False
        self._shut_out: AuthenticationException | None = None
        self._refusal: AuthenticationException | None = None
        if security is not None:
            security.wake = selector.wakeup
        self._selector = selector
        self._config = config
        self._clock = clock
        self._random = random
        self._resolver = resolver or HostResolver()
        as_written = config.client_dns_lookup == "use_all_dns_ips"
        self._states = {node.id: NodeState(node, is_canonical=as_written) for node in bootstrap}
        # Every connection is a new channel, so that no event of an old one can meet a new one.
        self._channels: dict[int, NodeState] = {}
        self._next_channel = 0
        self._wanted: set[int] = set()
        # Of brokers that were only heard of: how many may be lost yet, and when one is enough.
        self._losses_left = 0
        self._patient_until = _NEVER
        self._heard_in_vain = ""
        self._for_any: list[tuple[ClientRequest, float]] = []
        # Since when no node is ready although one is wanted.
        self._in_vain_since: float | None = None
        self._has_warned = False
        self._events: list[Event] = []

    # -- what is asked for ------------------------------------------------------------------------

    def hear_of_nodes(self, brokers: Iterable[Node]) -> None:
        """Take brokers that the cluster has named to somebody else, before it is asked from here.

        They spread over all brokers what would else come to the bootstrap addresses, which may be
        reached from here while brokers cannot. One may be busy or down, so another is tried; with
        the second that is not up, or is lost, or the first after a while, all are forgotten.
        """
        nodes = {node.id: node for node in brokers}
        if nodes:
            self.set_nodes(nodes)
            self._losses_left = _HEARSAY_LOSSES
            self._patient_until = self._clock() + _HEARSAY_S

    def set_nodes(self, nodes: Mapping[int, Node]) -> None:
        """Take the brokers that the cluster's metadata names; gone ones are disconnected.

        None at all: every connection is closed, and the bootstrap addresses are asked anew.
        """
        self._losses_left = 0
        if nodes:
            self._heard_in_vain = ""
            for state in self._states.values():
                if state.node.id < 0:  # another one has led to the brokers: it is not missed
                    state.last_error = ""
        else:
            with safe_logging():
                message = "asking the bootstrap servers anew: the brokers known give no metadata"
                logger.info(message)
            for state in self._states.values():
                self._disconnect(state, "the bootstrap servers are asked anew")
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
        """Say what is wrong with each node that is not well; from any thread."""
        now = self._clock()
        found = [(state.node, state.trouble(now)) for state in list(self._states.values())]
        failures = [f"{node}: {trouble}" for node, trouble in found if trouble]
        if self._heard_in_vain:
            failures.append(self._heard_in_vain)
        if len(failures) > _MOST_TOLD:
            failures[_MOST_TOLD:] = [f"and {len(failures) - _MOST_TOLD} more"]
        return "; ".join(failures)

    def in_flight_count(self) -> int:
        """Give how many requests wait for their response; from any thread."""
        return sum(state.load for state in list(self._states.values()))

    def connection_count(self) -> int:
        """Give how many connections there are or are being made; from any thread."""
        return len(self._channels)

    def close(self) -> None:
        """Drop every connection."""
        for state in list(self._channels.values()):
            self._release(state)
        self._selector.close_all()

    # -- what happens -----------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[Event]:
        """Make connections, send what waits, wait for the network, and give what happened."""
        now = self._clock()
        self._send_waiting(now)
        self._connect_wanted(now)
        self._close_idle(now)
        self._warn_of_silence(now)
        wait = 0.0 if self._events else min(timeout_s, self._next_deadline(now) - now)
        happened = self._selector.poll(wait)
        self._metrics.fold(self._clock())
        for event in happened:
            self._on(event, self._clock())
        now = self._clock()
        self._expire(now)
        self._send_waiting(now)
        events, self._events = self._events, []
        return events

    def _warn_of_silence(self, now: float) -> None:
        """Say who is being tried in vain, long before a caller's wait for it is over."""
        is_wanted = bool(self._for_any or self._wanted)
        states = self._states.values()
        if not is_wanted or any(state.is_ready and not state.last_error for state in states):
            self._in_vain_since = None
        elif self._in_vain_since is None:
            self._in_vain_since = now
        elif now >= self._in_vain_since + _SILENCE_S and not self._has_warned:
            self._has_warned = True
            message = f"no broker has answered for {now - self._in_vain_since:.0f} s, still trying"
            tried = self.last_errors()
            whole = f"{message}: {tried}" if tried else message
            with safe_logging():
                warn_once(logger, whole, "silence")

    def _next_deadline(self, now: float) -> float:
        due = [deadline for _, deadline in self._for_any]
        if self._in_vain_since is not None and not self._has_warned:
            due.append(self._in_vain_since + _SILENCE_S)
        for node_id, state in self._states.items():
            connection = state.connection
            if connection is None:
                is_wanted = node_id in self._wanted or (self._for_any and state.not_before > now)
                # The selector is woken when there is a login.
                if is_wanted and state.awaits_login_since is None:
                    due.append(state.not_before)
                continue
            if self._for_any and state.throttled_until > now:
                due.append(state.throttled_until)
            due += [state.setup_until, connection.in_flight.expires_at()]
            if state.is_ready and not state.load:
                due.append(state.last_used + self._config.connections_max_idle_s)
        return min(due, default=_NEVER)

    def _on(self, event: SelectorEvent, now: float) -> None:
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
                state.well()
                self._events.append(done)
        elif isinstance(event, Closed):
            why = event.reason
            if event.error is None:
                why += _circumstances(state.connection)
            self._lost(state, why, now, error=event.error)

    def _received(self, state: NodeState, connection: Connection, data: bytes, now: float) -> None:
        answers = 0
        try:
            for event in connection.received(data, now):
                if isinstance(event, NodeThrottled):
                    # A shorter pause does not end a longer one that was asked for before.
                    state.throttled_until = max(state.throttled_until, event.until)
                    self._events.append(NodeThrottled(state.node.id, state.throttled_until))
                    continue
                answers += 1
                if isinstance(event, Answered):
                    state.well()
                elif isinstance(event, NodeReady):
                    self._was_let_in = True
                    state.set_up()
                self._events.append(event)
        except AuthenticationException as error:
            self._lost(state, str(error), now, error=error)
            return
        except ProtocolError as error:
            state.frame_broken()
            self._lost(state, str(error), now)
            return
        finally:
            self._metrics.received(state.node.id, len(data), answers)
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
        except (ProtocolError, UnicodeError) as error:  # text that no request can carry
            reason = f"the request cannot be written: {error}"
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
        """Send what any node may answer to the least loaded one, or have that one connected."""
        waiting, self._for_any = self._for_any, []
        for request, deadline in waiting:
            if self._shut_out is not None:
                self._events.append(_refused(request, self._shut_out))
                continue
            state = self._least_loaded(now)
            if state is not None and state.can_send(now):
                self._send_to(state, request, now)
            elif now >= deadline:
                reason = self.last_errors() or "no broker could be reached"
                self._failed(request, None, error_codes.REQUEST_TIMED_OUT, reason)
            else:
                self._for_any.append((request, deadline))
                if state is not None and state.can_connect(now):
                    self._connect(state, now)

    def _least_loaded(self, now: float) -> NodeState | None:
        """Choose among the brokers, and among the bootstrap addresses while there are none.

        A bootstrap connection that is still up leads to a broker like any other, and saves a
        connection: it counts.
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

    def _connect_wanted(self, now: float) -> None:
        for node_id in self._wanted:
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
            self._lost(state, f"the host name cannot be resolved ({error})", now)
            return
        layer = login = None
        if self._security is not None:
            try:
                layer = self._security.layer(node)
                login = self._security.login(node, self._random.random())
            except RetriableException as error:
                self._lost(state, str(error), now)
                return
            except KafkaException as error:
                refusal = AuthenticationException(str(error))
                if isinstance(error, AuthenticationException):
                    refusal = error
                self._lost(state, str(error), now, error=refusal)
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
        )
        with safe_logging():
            logger.debug("connecting to %s at %s", node, address)
        state.channel, self._next_channel = self._next_channel, self._next_channel + 1
        self._channels[state.channel] = state
        self._selector.connect(state.channel, address, layer)

    def _has_login(self, state: NodeState, now: float) -> bool:
        """Return whether the login of a new connection is there: it may have to be waited for."""
        if self._security is None or self._security.has_login(state.node):
            state.awaits_login_since = None
            return True
        if state.awaits_login_since is None:
            state.awaits_login_since = now
        return False

    def _canonical(self, state: NodeState) -> NodeState:
        """Put the canonical names of a bootstrap host in its place, and give the first of them."""
        names = self._resolver.canonical_names(state.node.host)
        del self._states[state.node.id]
        next_id = min([-1, *self._states, state.node.id]) - 1
        made = [
            NodeState(Node(id=next_id - number, host=name, port=state.node.port))
            for number, name in enumerate(names)
        ]
        self._states.update({each.node.id: each for each in made})
        return made[0]

    def _lost(
        self,
        state: NodeState,
        reason: str,
        now: float,
        code: int = error_codes.NETWORK_EXCEPTION,
        error: AuthenticationException | None = None,
    ) -> None:
        """Take a connection as gone: fail all its requests, tell, and wait before the next try.

        error: why the broker and this client do not let each other in.
        """
        connection = state.connection
        was_ready = state.is_ready
        reason += state.advertised_hint
        self._release(state)
        state.lost(reason, now, self._config.reconnect_backoff, self._random)
        was = "ready" if was_ready else "being made"
        with safe_logging():
            logger.info("connection to %s lost (it was %s): %s", state.node, was, reason)
        if connection is not None:
            lost = code == error_codes.NETWORK_EXCEPTION
            for request in connection.closed():
                self._failed(
                    request, state.node.id, code, f"connection lost: {reason}" if lost else reason
                )
        self._events.append(NodeDown(state.node.id, reason))
        self._refusal = error or self._refusal
        self._look_whether_shut_out()
        if self._losses_left and state.node.id >= 0 and not state.addresses:
            self._losses_left -= 1
            if not self._losses_left or now >= self._patient_until:
                self._heard_in_vain = f"{state.node}: {reason}"
                self.set_nodes({})

    def _look_whether_shut_out(self) -> None:
        """Give up where no broker was ever reached and none will be.

        A login that one broker refuses, all refuse. Certificates are each broker's own: every
        bootstrap address is tried.
        """
        if self._was_let_in or self._refusal is None:
            return
        if isinstance(self._refusal, SslAuthenticationException):
            bootstrap = [state for state in self._states.values() if state.node.id < 0]
            if not all(state.was_tried for state in bootstrap):
                return
        self._shut_out = self._refusal

    def _release(self, state: NodeState) -> None:
        state.sending.clear()
        if self._channels.pop(state.channel, None) is not None:
            self._metrics.closed()
            self._selector.close(state.channel)

    def _disconnect(self, state: NodeState, reason: str) -> None:
        """Close a connection of our own accord, which says nothing against the node."""
        if state.connection is not None:
            said = state.last_error
            state.named_by = None
            self._lost(state, reason, self._clock())
            state.last_error = said

    def _expire(self, now: float) -> None:
        """Drop connections that took too long to come up, or to answer."""
        prefix = self._config.option_prefix
        for state in list(self._states.values()):
            connection = state.connection
            if connection is None:
                continue
            if now >= state.setup_until:
                option = f"{prefix}socket.connection.setup.timeout.ms"
                where = connection.state.value
                if connection.state is ConnectionState.CONNECTING:
                    reason = f"the connection was not up within {option}"
                else:
                    reason = f"the connection was still {where} after {option}"
                self._lost(state, reason, now)
            elif now >= connection.in_flight.expires_at():
                timeout_ms = round(self._config.request_timeout_s * 1000)
                reason = f"no answer within {prefix}request.timeout.ms={timeout_ms}"
                if connection.state is ConnectionState.CHECKING_API_VERSIONS:
                    reason += f", not even to ApiVersions; {NO_BROKER}"
                elif not connection.is_ready:
                    reason += f" {connection.state.value}"
                self._lost(state, reason, now, error_codes.REQUEST_TIMED_OUT)

    def _close_idle(self, now: float) -> None:
        """Close the connection that was longest unused, if that is too long; one a poll."""
        unused = [s for s in self._states.values() if s.is_ready and not s.load]
        oldest = min(unused, key=lambda state: state.last_used, default=None)
        if oldest is None or oldest.connection is None:
            return
        if now >= oldest.last_used + self._config.connections_max_idle_s:
            self._release(oldest)
            oldest.connection.closed()
            oldest.connection, oldest.addresses = None, None
            self._events.append(NodeDown(oldest.node.id, "idle"))


def _refused(request: ClientRequest, error: AuthenticationException) -> RequestFailed:
    return RequestFailed(request, None, error.code, str(error), error)


def _circumstances(connection: Connection) -> str:
    """Say what a peer's closing of the connection may mean, from where it happened."""
    if connection.is_inside_answer:
        return " in the middle of an answer"
    if connection.state is ConnectionState.CHECKING_API_VERSIONS:
        return f" before it said which versions it speaks; {NO_BROKER}"
    if connection.state in (ConnectionState.SASL_HANDSHAKE, ConnectionState.SASL_TOKENS):
        return " in the login by SASL, without a word: some brokers refuse a login so"
    if connection.is_ready and not connection.has_answered and len(connection.in_flight):
        return " before it answered the first request; it may expect SASL"
    return ""
