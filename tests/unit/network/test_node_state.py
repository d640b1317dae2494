"""The choice of a node for requests (NetworkClient.leastLoadedNode), and why peers hang up."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from socket import AddressFamily
from typing import cast

import pytest

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection import Connection
from spark_kafka_sink.network.connection_state import ConnectionState
from spark_kafka_sink.network.node_state import NodeState
from spark_kafka_sink.network.nodes import least_loaded
from spark_kafka_sink.network.selector import Address, HostResolver


@dataclass
class FakeConnection:
    """A connection as far as the choice sees it."""

    is_ready: bool
    load: int = 0
    state: ConnectionState = ConnectionState.TLS_HANDSHAKE


def node(number: int) -> NodeState:
    """Return a node without a connection."""
    return NodeState(Node(id=number, host="h", port=number))


def ready(number: int, load: int = 0, throttled_until: float = 0.0) -> NodeState:
    """Return a node that accepts requests."""
    state = node(number)
    state.connection = cast("Connection", FakeConnection(is_ready=True, load=load))
    state.throttled_until = throttled_until
    return state


def preparing(number: int) -> NodeState:
    """Return a node that is being connected to."""
    state = node(number)
    state.connection = cast("Connection", FakeConnection(is_ready=False))
    return state


def tried(number: int, at: float, retry_at: float = 0.0) -> NodeState:
    """Return a node whose last attempt failed."""
    state = node(number)
    state.last_attempt, state.retry_at = at, retry_at
    return state


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([ready(1, 3), ready(2, 0), ready(3, 1)], 2),
        ([ready(1, 3), ready(2, 2), preparing(3)], 2),
        ([ready(1, 9), preparing(2), node(3)], 1),
        ([preparing(1), node(2)], 1),
        ([node(1), tried(2, at=5.0)], 1),
        ([tried(1, at=5.0), tried(2, at=4.0), tried(3, at=6.0)], 2),
        ([tried(1, at=9.9, retry_at=10.1), tried(2, at=9.0)], 2),
        ([tried(1, at=9.9, retry_at=10.1)], None),
        ([ready(1, throttled_until=11.0), ready(2, 5)], 2),
        ([ready(1, throttled_until=11.0)], None),
        ([ready(1, throttled_until=10.0)], 1),
        ([], None),
    ],
)
def test_the_choice_is_the_java_clients(states: list[NodeState], expected: int | None) -> None:
    for seed in range(20):
        chosen = least_loaded(states, 10.0, Random(seed))
        assert (None if chosen is None else chosen.node.id) == expected, f"seed {seed}"


@pytest.mark.parametrize("kind", [ready, preparing, node])
def test_among_equals_chance_decides_so_that_clients_spread(kind: type) -> None:
    states = [kind(number) for number in range(4)]
    chosen = [least_loaded(states, 0.0, Random(seed)) for seed in range(100)]
    assert {each.node.id for each in chosen if each is not None} == {0, 1, 2, 3}


# -- why a peer hangs up -------------------------------------------------------------------------


def connected_by_tls(*, is_secured: bool) -> NodeState:
    """Return a node with a connection in its TLS handshake, or after it."""
    state = node(1)
    state.connection = Connection(1, "client", 30.0, has_tls=True)
    state.last_attempt = 0.0
    state.connection.connected(0.0)
    if is_secured:
        state.connection.secured(0.0)
    return state


def test_only_a_peer_that_sends_no_tls_may_be_a_listener_without_tls() -> None:
    state = connected_by_tls(is_secured=False)
    assert "it may be a listener without TLS" in state.why_closed(
        speaks_tls=False, was_ever_answered=False
    )
    assert state.may_have_other_protocol(speaks_tls=False)
    assert (
        state.why_closed(speaks_tls=True, was_ever_answered=False)
        == " in the TLS handshake without an error"
    )
    assert not state.may_have_other_protocol(speaks_tls=True)


def test_a_peer_that_is_silent_after_the_tls_handshake_does_not_expect_tls() -> None:
    state = connected_by_tls(is_secured=True)
    said = [state.why_closed(speaks_tls=True, was_ever_answered=False), state.problem(3.0)]
    expired = state.expired(31.0, 30.0)
    assert expired is not None
    for each in (*said, expired.reason):
        assert "it may require a client certificate (ssl.keystore.*)" in each
        assert "may expect TLS" not in each


def fail(state: NodeState, *, by_tls: bool = False, passes: bool = False) -> None:
    """Let the attempt to connect fail."""
    backoff = ExponentialBackoff(1.0, 1.0)
    state.disconnected("failed", 0.0, backoff, Random(0), by_tls=by_tls, passes=passes)


def bootstrap(name: str, *addresses: str) -> tuple[NodeState, HostResolver]:
    """Return a bootstrap address, and a resolver that knows the addresses of its host name."""
    found: list[Address] = [(AddressFamily.AF_INET, (each, 9092)) for each in addresses]
    return NodeState(Node(id=-1, host=name, port=9092)), HostResolver(lambda *_: list(found))


def test_a_host_has_failed_when_each_of_its_addresses_has() -> None:
    state, resolver = bootstrap("kafka", "10.0.0.1", "10.0.0.2", "10.0.0.3")
    for by_tls in (True, False, False):
        assert not state.has_failed
        state.next_address(resolver)
        state.connection = preparing(-1).connection  # TCP connects, and the peer hangs up
        fail(state, by_tls=by_tls)
    assert state.has_failed


def test_a_failure_that_is_expected_to_pass_is_not_the_end_of_a_host() -> None:
    state, resolver = bootstrap("kafka", "10.0.0.1")
    state.next_address(resolver)
    fail(state, passes=True)
    assert not state.has_failed
    state.next_address(resolver)
    fail(state)
    assert state.has_failed
