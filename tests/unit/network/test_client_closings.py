"""What has arrived counts, also if the client itself closes the connection then."""

from __future__ import annotations

from typing import cast

import pytest
from support.pure.awaited_logins import Logins
from support.pure.client_world import BOOTSTRAP, CONFIG, NODES, World, metadata

from spark_kafka_sink.auth.mechanisms import PlainExchange, SaslExchange
from spark_kafka_sink.errors import SaslAuthenticationException
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.sasl_authenticator import Login
from spark_kafka_sink.network.security import Security
from spark_kafka_sink.wire.exchange import (
    Answered,
    ClientRequest,
    Event,
    NodeDown,
    NodeReady,
    RequestFailed,
)

MOVED = {1: Node(id=1, host="127.0.0.1", port=2009)}


def ends(events: list[Event]) -> list[tuple[type[Event], ClientRequest | None]]:
    """Return the ends of requests and connections, in order."""
    kinds = (Answered, RequestFailed, NodeDown)
    return [(type(e), getattr(e, "request", None)) for e in events if isinstance(e, kinds)]


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (MOVED, "the broker moved to 127.0.0.1:2009"),
        ({2: NODES[2]}, "the cluster no longer lists this broker"),
        ({}, "reconnecting to the bootstrap servers"),
    ],
    ids=["moved", "removed", "bootstrap"],
)
def test_responses_that_arrived_count_if_the_metadata_ends_the_connection(
    nodes: dict[int, Node], reason: str
) -> None:
    world = World()
    world.bring_up(1)
    answered, unanswered = [metadata(1), metadata(1)], metadata(1)
    for request in answered:
        world.client.send(request)
    world.selector.silent = True
    world.client.send(unanswered)
    world.client.set_nodes(nodes)
    expected = [*((Answered, request) for request in answered), (RequestFailed, unanswered)]
    events = world.poll()
    assert ends(events) == [*expected, (NodeDown, None)]
    assert [e.reason for e in events if isinstance(e, NodeDown)] == [reason]
    assert [e.was_sent for e in events if isinstance(e, RequestFailed)] == [True]


def test_a_response_in_the_same_poll_counts_if_another_broker_s_failure_ends_the_connection() -> (
    None
):
    world = World()
    world.client.set_initial_nodes(NODES.values())
    world.client.connect({1, 2})
    for _ in range(4):
        world.poll()
    assert {e.node_id for e in world.events if isinstance(e, NodeReady)} == {1, 2}
    world.now = 16.0  # one failure is now enough to begin at the bootstrap addresses
    world.client.connect(set())
    world.selector.break_port(NODES[1].port)
    request = metadata(2)
    world.client.send(request)
    assert ends(world.poll()) == [(NodeDown, None), (Answered, request), (NodeDown, None)]


def test_a_connection_that_breaks_behind_its_last_response_ends_once() -> None:
    world = World()
    world.bring_up(1)
    answered, unanswered = metadata(1), metadata(1)
    world.client.send(answered)
    world.selector.silent = True
    world.client.send(unanswered)
    world.selector.break_port(NODES[1].port)
    world.client.set_nodes(MOVED)
    events = world.poll()
    assert ends(events) == [(Answered, answered), (RequestFailed, unanswered), (NodeDown, None)]
    assert [e.reason for e in events if isinstance(e, NodeDown)] == ["Connection reset by peer"]


def test_no_more_than_the_responses_to_the_requests_in_flight_is_read() -> None:
    world = World()
    world.bring_up(1)
    request = metadata(1)
    world.client.send(request)
    world.selector.say(NODES[1].port, b"this is no response")
    world.client.set_nodes(MOVED)
    events = world.poll()
    assert ends(events) == [(Answered, request), (NodeDown, None)]
    assert [e.reason for e in events if isinstance(e, NodeDown)] == [
        "the broker moved to 127.0.0.1:2009"
    ]


# -- sessions that are renewed --------------------------------------------------------------------


@pytest.fixture
def logins() -> Logins:
    """Logins by PLAIN."""
    logins = Logins()
    logins.is_there, logins.made = True, Login(lambda: PlainExchange("u", "p"), "u")
    return logins


@pytest.fixture
def world(logins: Logins) -> World:
    """A client of one bootstrap address, whose sessions last for 10 s."""
    world = World(BOOTSTRAP[:1], CONFIG, security=cast("Security", logins))
    world.selector.session_lifetime_ms = 10_000
    return world


def log_in(world: World) -> None:
    """Connect to the bootstrap address."""
    world.client.connect({-1})
    for _ in range(6):
        world.poll()
    assert any(isinstance(event, NodeReady) for event in world.events)


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_response_that_arrived_counts_if_there_is_no_login_for_the_next_session(
    world: World, logins: Logins, *, is_refused: bool
) -> None:
    given: list[SaslExchange] = [PlainExchange("u", "p")]
    refusals: list[SaslAuthenticationException] = []

    def exchange() -> SaslExchange | None:
        if refusals:
            raise refusals[0]
        return given.pop() if given else None

    logins.made = Login(exchange, "u")
    log_in(world)
    world.selector.silent = True
    early, held = metadata(-1), metadata(-1)
    world.now = 8.0
    world.client.send(early)
    version = world.selector.versions[-1][1]
    number = 3  # behind ApiVersions, SaslHandshake and SaslAuthenticate
    world.poll()
    world.now = 11.0
    world.client.send(held)
    world.poll()
    if is_refused:
        refusals.append(SaslAuthenticationException("the token endpoint answered 401"))
    else:
        world.now = 41.0
    world.selector.say(BOOTSTRAP[0].port, world.selector.answer(3, version, number))
    events = world.poll()
    assert ends(events) == [(Answered, early), (RequestFailed, held), (NodeDown, None)]
    assert [e.was_sent for e in events if isinstance(e, RequestFailed)] == [False]


def test_a_login_that_ends_while_its_connection_is_closed_sends_nothing(world: World) -> None:
    log_in(world)
    world.now = 9.0
    held = metadata(-1)
    world.client.send(held)
    world.poll()  # SaslHandshake is answered, and SaslAuthenticate will be
    keys = world.selector.requests_to(BOOTSTRAP[0].port)
    assert keys[-2:] == [17, 36]
    before = len(keys)
    world.client.connect(set())
    world.client.set_nodes({})
    events = world.poll()
    assert ends(events) == [(RequestFailed, held), (NodeDown, None)]
    assert [e.was_sent for e in events if isinstance(e, RequestFailed)] == [False]
    assert len(world.selector.requests_to(BOOTSTRAP[0].port)) == before
