"""NodeStates: the nodes that a client knows, and which of them it uses.

A node is a broker or a bootstrap address (ClusterConnectionStates of the Java client). Brokers come
from the metadata, or from another client that has learned them. This module uses no socket and no
clock.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Final

from spark_kafka_sink.errors import AuthenticationException, SslAuthenticationException
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.node_state import NetworkConfig, NodeState, next_look
from spark_kafka_sink.network.selector import HostResolver

# The limits for brokers that another client learned. The bootstrap addresses are used after this
# many failures, or after one failure once this time has passed. There is then still time to reach a
# bootstrap address within max.block.ms.
_INITIAL_NODES_FAILURES: Final = 2
_INITIAL_NODES_S: Final = 15.0
# The time without any response after which a warning lists the failing nodes.
_NO_RESPONSE_S: Final = 5.0
# How late a poll after a back-off may be.
_POLL_DELAY_S: Final = 0.5
_MAX_LISTED: Final = 10


class NodeStates:
    """The nodes that a client knows (ClusterConnectionStates). Bootstrap addresses have ids < 0."""

    def __init__(self, bootstrap: Iterable[Node], config: NetworkConfig) -> None:
        as_written = config.client_dns_lookup == "use_all_dns_ips"
        self._by_id = {node.id: NodeState(node, is_canonical=as_written) for node in bootstrap}
        self._rebootstraps = config.rebootstraps
        # How many failures are still tolerated for brokers that another client learned, and the
        # time from which one failure is enough to drop them.
        self._failures_left = 0
        self._tolerant_until = float("inf")
        self._initial_nodes_error = ""
        # `was_ever_ready`: whether any broker has accepted this client. `fatal_error`: the error if
        # no broker will ever accept it.
        self.was_ever_ready = False
        self.fatal_error: AuthenticationException | None = None
        self._tls_rejection: SslAuthenticationException | None = None
        # The time since which no needed node has answered.
        self._silent_since: float | None = None
        # The ids of the needed nodes, and whether a request that any node may answer is waiting.
        # Both keep their last values while nothing is needed. `_unneeded_since`: the time since
        # which nothing is needed, or None if something is needed. A silence continues during the
        # back-off between two requests, but it ends if nothing is needed for a longer time.
        self._needed_ids: set[int] = set()
        self._is_any_needed = False
        self._unneeded_since: float | None = None
        self._retry_backoff_max_s = config.retry_backoff_max_s
        self._has_warned = False

    def __iter__(self) -> Iterator[NodeState]:
        """Iterate over a copy of the nodes, because they may change during the iteration."""
        return iter(list(self._by_id.values()))

    def get(self, node_id: int) -> NodeState | None:
        """Return the state of a node, or None if the node is not known."""
        return self._by_id.get(node_id)

    def replace(self, nodes: Mapping[int, Node]) -> Iterator[tuple[NodeState, str]]:
        """Replace the brokers, and yield each node to disconnect from, with the reason.

        The caller disconnects from a node before it takes the next one. If `nodes` is empty, every
        node is yielded.
        """
        self._failures_left = 0
        if nodes:
            self._initial_nodes_error = ""
        for state in self:
            if not nodes:
                yield state, "reconnecting to the bootstrap servers"
            elif state.node.id < 0:  # the brokers are known now, so its error no longer matters
                state.last_error = ""
        for node_id in [n for n in self._by_id if n >= 0 and n not in nodes]:
            yield self._by_id.pop(node_id), "the cluster no longer lists this broker"
        named_by = next((s.node for s in self if s.node.id < 0 and s.is_ready), None)
        for node_id, node in nodes.items():
            known = self._by_id.get(node_id)
            if known is not None and (known.node.host, known.node.port) == (node.host, node.port):
                continue
            if known is not None:
                yield known, f"the broker moved to {address(node)}"
            self._by_id[node_id] = NodeState(node, named_by=named_by)

    def tolerate_failures(self, now: float) -> None:
        """Count the failures of the brokers whose addresses come from another client.

        The addresses are dropped after a few failures, or at the first one after some time.
        """
        self._failures_left = _INITIAL_NODES_FAILURES
        self._tolerant_until = now + _INITIAL_NODES_S

    def are_given_up(self, state: NodeState, reason: str, now: float) -> bool:
        """Count a failure. Return whether to drop the addresses that come from another client."""
        if not self._failures_left or state.node.id < 0 or state.addresses:
            return False
        self._failures_left -= 1
        if self._failures_left and now < self._tolerant_until:
            return False
        self._initial_nodes_error = f"{state.node}: {reason}"
        return True

    def reject(self, error: AuthenticationException) -> None:
        """Record that a broker rejected this client, or that this client rejected the broker.

        All brokers check the same credentials, so one rejected login sets `fatal_error`, unless a
        broker has accepted this client. For a failure of TLS, see `check_tls`.
        """
        if isinstance(error, SslAuthenticationException):
            self._tls_rejection = error
        elif not self.was_ever_ready:
            self.fatal_error = error

    def check_tls(self) -> None:
        """Set `fatal_error` if TLS failed and no bootstrap address is left to try.

        Certificates differ between brokers, so every bootstrap address is tried first. It does not
        matter in which way the other addresses fail, unless the failure is expected to pass.
        """
        error = self._tls_rejection
        if error is None or self.was_ever_ready or self.fatal_error is not None:
            return
        bootstrap = [state for state in self if state.node.id < 0]
        if not all(state.has_failed for state in bootstrap):
            return
        if any(state.has_tls_error for state in bootstrap):
            others = [f"{s.node}: {s.last_error}" for s in bootstrap if not s.has_tls_error]
            self.fatal_error = (
                SslAuthenticationException("; ".join([str(error), *others])) if others else error
            )

    @property
    def has_tls_error(self) -> bool:
        """Whether TLS is among the last errors, and no broker has ever accepted this client."""
        is_last = any(state.last_error and state.has_tls_error for state in self)
        return is_last and not self.was_ever_ready

    def errors(self, now: float, problem: str = "") -> str:
        """Return a description of all nodes with errors. problem: an error that all nodes share."""
        found = [(state.node, state.problem(now)) for state in self]
        failures = [problem, *(f"{node}: {problem}" for node, problem in found if problem)]
        failures = list(filter(None, [*failures, self._initial_nodes_error]))
        if len(failures) > _MAX_LISTED:
            failures[_MAX_LISTED:] = [f"and {len(failures) - _MAX_LISTED} more"]
        return "; ".join(failures)

    def addresses_in_trouble(self, now: float) -> list[str]:
        """Return the addresses of the nodes with errors, or of all nodes if none has an error."""
        in_trouble = [address(state.node) for state in self if state.problem(now)]
        return in_trouble or [address(state.node) for state in self]

    def has_answering(self, now: float) -> bool:
        """Return whether any node, even a bootstrap address, is connected and answers."""
        return any(state.answers(now, _NO_RESPONSE_S) for state in self)

    def missed(self, gap_s: float) -> None:
        """Record that the client did not poll for `gap_s` seconds. They do not count as silence."""
        if self._silent_since is not None:
            self._silent_since += gap_s
        for state in self:
            if state.connection is not None:
                state.connection.in_flight.missed(gap_s)

    def extend_setup(self, begun_at: float, now: float) -> None:
        """Extend the setup timeouts by the time in which the client began other connections.

        Meanwhile it did not read from the network, so the brokers are not the cause of this delay.
        But a timeout at most doubles, so that the client tries the next address of a silent broker.
        begun_at: the time at which the client started to begin connections.
        """
        for state in self:
            if state.connection is not None:
                state.extend_setup(now - max(begun_at, state.last_attempt))

    def silence_s(
        self, now: float, connect_to: Container[int], *, is_any_needed: bool
    ) -> float | None:
        """Return the seconds since a needed node last answered, or None if no warning is due.

        The first call during a silence returns None, because some responses may have arrived but
        not been read yet. No warning is due while no node is needed. connect_to, is_any_needed: as
        in `next_deadline`.
        """
        longest_pause_s = self._retry_backoff_max_s + _POLL_DELAY_S
        if self._unneeded_since is not None and now >= self._unneeded_since + longest_pause_s:
            self._silent_since = None
        needed = self._needed(now, connect_to)
        is_needed = is_any_needed or bool(needed)
        if is_needed:
            self._needed_ids = {state.node.id for state in needed}
            self._is_any_needed = is_any_needed
            self._unneeded_since = None
        elif self._unneeded_since is None:
            self._unneeded_since = now
        if not is_needed:
            self._end_silence(now)
        elif not self._is_silent(now, needed):
            self._silent_since = None
        elif self._silent_since is None:
            unanswered = filter(None, (state.unanswered(now) for state in self))
            self._silent_since = now - min((each.silent_s for each in unanswered), default=0.0)
        elif now >= self._silent_since + _NO_RESPONSE_S and not self._has_warned:
            self._has_warned = True
            return now - self._silent_since
        return None

    def answered(self, state: NodeState, now: float) -> None:
        """Record that a node has answered, even if its connection breaks right afterwards."""
        state.succeeded()
        self._end_silence(now)

    def _end_silence(self, now: float) -> None:
        """End the silence if the last needed nodes are no longer silent (`_is_silent`)."""
        if self._silent_since is None:
            return
        if not self._is_silent(now, self._needed(now, self._needed_ids)):
            self._silent_since = None

    def _needed(self, now: float, connect_to: Container[int]) -> list[NodeState]:
        """Return the nodes to connect to, and those that seem not to answer a request."""
        return [
            state
            for state in self
            if state.node.id in connect_to or state.owes_response(now, _NO_RESPONSE_S)
        ]

    def _is_silent(self, now: float, needed: Sequence[NodeState]) -> bool:
        """Return whether no needed node answers.

        If any other broker answers, the needed nodes may be restarting, so the result is False.
        There is one exception: if a needed broker was never reached since a bootstrap address
        listed it, the result is still True. Bootstrap addresses do not count as other brokers.
        """
        if self._is_any_needed and not self.has_answering(now):
            return True
        if not needed or any(state.answers(now, _NO_RESPONSE_S) for state in needed):
            return False
        brokers = [state for state in self if state.node.id >= 0]
        return not any(state.answers(now, _NO_RESPONSE_S) for state in brokers) or any(
            state.named_by is not None for state in needed
        )

    def _warns_at(self, now: float) -> float:
        """Return when the next warning may be due; infinity if no warning can become due."""
        if self._has_warned:
            return float("inf")
        if self._silent_since is not None and self._unneeded_since is None:
            return max(self._silent_since + _NO_RESPONSE_S, now)
        unanswered = filter(None, (state.unanswered(now) for state in self))
        left = (_NO_RESPONSE_S - each.silent_s for each in unanswered)
        return now + min(filter(lambda left_s: left_s > 0, left), default=float("inf"))

    def next_deadline(
        self, now: float, config: NetworkConfig, connect_to: Container[int], *, is_any_needed: bool
    ) -> float:
        """Return the time of the next timeout or retry of any node; infinity if nothing is due.

        connect_to: the ids of the nodes to connect to. is_any_needed: whether a request that any
        node may answer is waiting.
        """
        due = [self._warns_at(now)]
        for state in self:
            if state.connection is None:
                # The selector wakes up when a ticket or token is available.
                if state.awaits_login_since is not None:
                    due += [state.setup_until, next_look(state.awaits_login_since, now)]
                elif state.node.id in connect_to or (is_any_needed and state.retry_at > now):
                    due.append(state.retry_at)
                continue
            if is_any_needed and state.throttled_until > now:
                due.append(state.throttled_until)
            due.append(state.next_deadline(config, now))
        return min(due)

    def oldest_unused(self) -> NodeState | None:
        """Return the node whose connection has been idle longest, or None if all are in use."""
        unused = [state for state in self if state.is_ready and not state.load]
        return min(unused, key=lambda state: state.last_used, default=None)

    def canonical(self, state: NodeState, resolver: HostResolver) -> NodeState:
        """Replace a bootstrap host with its canonical names. Return the node of the first name."""
        names = resolver.canonical_names(state.node.host)
        del self._by_id[state.node.id]
        next_id = min([-1, *self._by_id, state.node.id]) - 1
        made = [
            NodeState(Node(id=next_id - number, host=name, port=state.node.port))
            for number, name in enumerate(names)
        ]
        self._by_id.update({each.node.id: each for each in made})
        return made[0]

    def least_loaded(self, now: float, random: Random) -> NodeState | None:
        """Return the least loaded broker, or else the least loaded bootstrap address.

        A bootstrap address with an open connection counts as a broker. Using it saves a connection.
        The other bootstrap addresses are used if no broker is connected or can be connected to now.
        If rebootstrapping (KIP-899) is disabled, they are used only if there are no brokers.
        """
        brokers = [state for state in self if state.node.id >= 0]
        bootstrap = [state for state in self if state.node.id < 0]
        in_use = [*brokers, *(state for state in bootstrap if state.connection is not None)]
        chosen = least_loaded(in_use, now, random)
        if chosen is None and all(state.connection is None for state in in_use):
            if brokers and not self._rebootstraps:
                return None
            chosen = least_loaded(bootstrap, now, random)
        return chosen


def address(node: Node) -> str:
    """Return the host and the port of a node."""
    return f"{node.host}:{node.port}"


def least_loaded(states: Sequence[NodeState], now: float, random: Random) -> NodeState | None:
    """Return the node for a request that any node may answer (NetworkClient.leastLoadedNode).

    The first choice is the node with the fewest requests in flight among those that accept
    requests. The second choice is a node that is being connected to. The third choice is the node
    whose last connection attempt was longest ago, among those that can be connected to. The search
    starts at a random node, so that many clients spread over the nodes. Return None if no node can
    be used now.
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
