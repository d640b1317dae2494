"""NodeState: one node's connection and its history; and which node is asked.

Owns when a node may be tried again, at which address, and for how long (ClusterConnectionStates of
the Java client, one node of it); `least_loaded` chooses among nodes. It decides with what it is
told: no socket, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection import Connection, ConnectionState
from spark_kafka_sink.network.selector import Address, HostResolver
from spark_kafka_sink.wire.messages import API_VERSIONS

NO_BROKER: Final = "it may expect TLS, or be no Kafka broker"
"""What a peer may be that does not even answer ApiVersions."""
# A connection that comes up takes less time, and so does a peer that hangs up on a first request.
_PATIENCE_S: Final = 0.5
_HANGS_UP_S: Final = 5.0


@dataclass(slots=True, eq=False)
class NodeState:
    """One node's connection and its history; times are seconds of the producer's clock."""

    node: Node
    is_canonical: bool = True
    channel: int = -1
    # The sizes of the requests that are being written, oldest first.
    sending: deque[int] = field(default_factory=deque)
    connection: Connection | None = None
    addresses: list[Address] | None = None
    last_address: Address | None = None
    # Failures since the node was last well, and attempts since a TCP connection last came up.
    failures: int = 0
    failed_connects: int = 0
    last_attempt: float = float("-inf")
    not_before: float = 0.0
    setup_until: float = float("inf")
    # Since when a connection waits for a login that is being made; None if none does.
    awaits_login_since: float | None = None
    last_used: float = 0.0
    throttled_until: float = 0.0
    # What went wrong last, and when; nothing once the node has proved that it is well.
    last_error: str = ""
    failed_at: float = 0.0
    # The version in which the next connection asks for the broker's versions.
    api_versions_version: int = API_VERSIONS.max_version
    # The bootstrap node that answered and named this broker; None once it was reached.
    named_by: Node | None = None

    @property
    def is_ready(self) -> bool:
        """Whether requests may be sent, but for throttling."""
        return self.connection is not None and self.connection.is_ready

    @property
    def load(self) -> int:
        """How many requests are in flight."""
        return 0 if self.connection is None else self.connection.load

    @property
    def was_tried(self) -> bool:
        """Whether each address of the node was tried in vain, and none is being tried."""
        return bool(self.last_error) and self.connection is None and not self.addresses

    def can_send(self, now: float) -> bool:
        """Whether requests may be sent: the broker has not asked to be left alone (KIP-219)."""
        return self.is_ready and self.throttled_until <= now

    def can_connect(self, now: float) -> bool:
        """Whether there is no connection and the pause after the last one is over."""
        return self.connection is None and now >= self.not_before

    def next_address(self, resolver: HostResolver) -> Address:
        """Give the address to try: each of the host's in turn, then resolve again.

        The address that was tried last is not the first one again where there are others: it may
        be what is broken (KIP-302). Raises OSError or UnicodeError where the host has none.
        """
        if not self.addresses:
            addresses = resolver.resolve(self.node.host, self.node.port)
            if not addresses:
                message = f"{self.node.host} has no address"
                raise OSError(message)
            if len(addresses) > 1 and addresses[0] == self.last_address:
                del addresses[0]
            self.addresses = addresses
        self.last_address = self.addresses.pop(0)
        return self.last_address

    def connecting(self, now: float, setup_timeout: ExponentialBackoff, random: Random) -> None:
        """Note an attempt; it may take longer after each that did not come up (KIP-601)."""
        self.last_attempt = self.last_used = now
        self.setup_until = now + setup_timeout.delay_s(self.failed_connects, random)

    def connected(self, *, is_set_up: bool) -> None:
        """Note that TCP is up; is_set_up: whether there is neither TLS nor SASL to come."""
        if is_set_up:
            self.set_up()
        self.failed_connects = 0
        self.named_by = None

    def set_up(self) -> None:
        """Note that the connection is set up in time."""
        self.setup_until = float("inf")

    def well(self) -> None:
        """Note that a request was answered, or written where none is: what was wrong is over.

        That a connection came up is no such proof: a listener that expects SASL lets a client ask
        for its versions, and hangs up on the first request.
        """
        self.failures = 0
        self.last_error = ""

    def trouble(self, now: float) -> str:
        """Say what is wrong with the node, nothing where all is well as far as is known."""
        if not self.last_error:
            return self._awaited(now)
        waited = now - self.last_attempt
        if self.is_ready and waited > _HANGS_UP_S:
            return ""
        minutes = int((now - self.failed_at) // 60)
        return self.last_error + (f", {minutes} min ago" if minutes else "")

    def _awaited(self, now: float) -> str:
        """Say what is not there after a while, where nothing went wrong."""
        waited = now - self.last_attempt
        connection = self.connection
        if connection is None and self.awaits_login_since is not None:
            awaited = now - self.awaits_login_since
            return f"no ticket or token after {awaited:.0f} s" if awaited >= _PATIENCE_S else ""
        if connection is None or connection.is_ready or waited < _PATIENCE_S:
            return ""
        if connection.state is ConnectionState.CONNECTING:
            return f"no connection after {waited:.0f} s{self.advertised_hint}"
        if connection.state is not ConnectionState.CHECKING_API_VERSIONS:
            return f"it is still {connection.state.value} after {waited:.0f} s"
        return f"it takes connections, but has said nothing for {waited:.0f} s; {NO_BROKER}"

    def frame_broken(self) -> None:
        """Note that what the peer sent is not made of frames.

        A broker that cannot answer the newest ApiVersions may answer version 0, on a connection
        that nothing has gone wrong on.
        """
        if self.connection is None or self.connection.is_ready:
            return
        newest = API_VERSIONS.max_version
        self.api_versions_version = 0 if self.api_versions_version == newest else newest

    @property
    def advertised_hint(self) -> str:
        """What to say where the broker cannot be reached, though the one that named it can."""
        named_by, node = self.named_by, self.node
        if named_by is None or (named_by.host, named_by.port) == (node.host, node.port):
            return ""
        return (
            f"; {named_by} answered and named this address: see the broker's advertised.listeners"
        )

    def lost(self, reason: str, now: float, backoff: ExponentialBackoff, random: Random) -> None:
        """Note that the connection broke or did not come up; it may be tried again after a pause.

        After one that was up, the host is resolved anew: it may have moved.
        """
        if self.connection is None or self.connection.state is ConnectionState.CONNECTING:
            self.failed_connects += 1
        else:
            self.failed_connects = 0
            self.addresses = None
        self.connection = None
        self.setup_until = float("inf")
        self.last_error, self.failed_at = reason, now
        self.last_attempt = now
        self.not_before = now + backoff.delay_s(self.failures, random)
        self.failures += 1


def least_loaded(states: Sequence[NodeState], now: float, random: Random) -> NodeState | None:
    """Choose the node for a request that any may answer (NetworkClient.leastLoadedNode).

    Best is one that takes requests, with the fewest in flight; then one whose connection is being
    made; then one that can be connected to, the longest untried first. Looking begins anywhere, so
    that many clients spread. None: no node can be used now.
    """
    if not states:
        return None
    start = random.randrange(len(states))
    ready: NodeState | None = None
    preparing: NodeState | None = None
    idle: NodeState | None = None
    for state in [*states[start:], *states[:start]]:
        if state.can_send(now):
            if ready is None or state.load < ready.load:
                ready = state
        elif state.connection is not None:
            preparing = preparing if state.is_ready else state
        elif state.can_connect(now) and (idle is None or state.last_attempt < idle.last_attempt):
            idle = state
    return ready or preparing or idle
