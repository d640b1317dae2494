"""The choice of a node for requests to any node (NetworkClient.leastLoadedNode in Java)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import cast

import pytest

from spark_kafka_sink.model import Node
from spark_kafka_sink.network.connection import Connection
from spark_kafka_sink.network.node_state import NodeState
from spark_kafka_sink.network.nodes import least_loaded


@dataclass
class FakeConnection:
    """A connection as far as the choice sees it."""

    is_ready: bool
    load: int = 0


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
