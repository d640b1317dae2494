"""What errors say if a broker's advertised address leads to another server, or to none."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from support.pure.client_world import (
    BOOTSTRAP,
    CONFIG,
    NODES,
    World,
    metadata,
    named_by_bootstrap,
    poll_until,
)

from spark_kafka_sink.auth.mechanisms import PlainExchange, SaslExchange
from spark_kafka_sink.errors import SaslAuthenticationException, SslAuthenticationException
from spark_kafka_sink.network.sasl_authenticator import Login
from spark_kafka_sink.network.security import Security
from spark_kafka_sink.wire.exchange import NodeDown

NODE = "node 1 (127.0.0.1:2001)"
PORT = NODES[1].port
HINT = "returned this address: check the broker's advertised.listeners"
NO_BROKER = "it may expect TLS, or may not be a Kafka broker"


def why_down(world: World) -> str:
    """Return why the last connection was lost."""
    return [event for event in world.events if isinstance(event, NodeDown)][-1].reason


def connect(world: World) -> None:
    """Connect to an address where a server says nothing."""
    world.selector.silent = True
    world.client.connect({1})
    for _ in range(2):
        world.poll()
    assert world.client.connection_count() == 2, "also to the bootstrap address"


def test_a_server_that_closes_the_connection_is_told_with_who_named_its_address() -> None:
    world, bootstrap = named_by_bootstrap(NODES)
    connect(world)
    world.selector.break_port(PORT)
    world.poll()
    expected = (
        f"Connection reset by peer before it answered ApiVersions; {NO_BROKER}; {bootstrap} {HINT}"
    )
    assert why_down(world) == expected
    assert world.client.last_errors() == f"{NODE}: {expected}"


def test_a_server_that_says_nothing_is_told_with_who_named_its_address() -> None:
    world, bootstrap = named_by_bootstrap(NODES)
    connect(world)
    world.now = 3.0
    assert world.client.last_errors() == (
        f"{NODE}: it accepts connections but has sent nothing for 3 s; {NO_BROKER}; "
        f"{bootstrap} {HINT}"
    )
    world.now = 30.0
    world.poll()
    assert why_down(world) == (
        "no response within request.timeout.ms=30000, even to ApiVersions; "
        f"{NO_BROKER}; {bootstrap} {HINT}"
    )


def test_a_server_that_says_nothing_is_a_warning_though_another_broker_answers(
    warnings: Callable[[], list[str]],
) -> None:
    world, bootstrap = named_by_bootstrap(NODES)
    poll_until(world, 1.0, 2)
    world.selector.silent = True
    poll_until(world, 11.0, 1)
    (warning,) = warnings()
    assert warning == (
        f"no broker that is needed has answered for 5 s, still trying: {NODE}: it accepts "
        f"connections but has sent nothing for 5 s; {NO_BROKER}; {bootstrap} {HINT}"
    )


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it speaks HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "expects TLS: set security.protocol"),
    ],
    ids=["http", "tls"],
)
def test_a_server_with_another_protocol_is_told_with_who_named_its_address(
    answer: bytes, expected: str
) -> None:
    world, bootstrap = named_by_bootstrap(NODES)
    connect(world)
    world.selector.say(PORT, answer)
    world.poll()
    assert expected in why_down(world)
    assert why_down(world).endswith(f"; {bootstrap} {HINT}")


def test_a_broker_that_was_reached_has_the_right_address() -> None:
    world, _ = named_by_bootstrap(NODES)
    poll_until(world, 1.0, 1)
    world.selector.break_port(PORT)
    world.poll()
    world.now += 5.0
    connect(world)
    world.selector.break_port(PORT)
    world.poll()
    assert why_down(world) == (
        f"Connection reset by peer before it answered ApiVersions; {NO_BROKER}"
    )


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        ("the certificate has expired", f"; bootstrap (127.0.0.1:1001) {HINT}"),
        (
            "the name comes from the broker's advertised.listeners",
            "; bootstrap (127.0.0.1:1001) returned this address",
        ),
    ],
)
def test_a_tls_handshake_that_fails_is_told_with_who_named_the_address(
    failure: str, advice: str
) -> None:
    world = World(BOOTSTRAP[:1])
    world.client.send(metadata())
    for _ in range(4):
        world.poll()
    world.client.set_nodes(NODES)
    connect(world)
    world.selector.break_port(PORT, SslAuthenticationException(failure))
    world.poll()
    assert why_down(world) == failure + advice


# -- logins --------------------------------------------------------------------------------------


class Logins:
    """What a client asks of `Security`; `exchange` returns the next login or raises."""

    problem = ""
    may_be_accepted_later = False

    def __init__(self) -> None:
        self.exchange: Callable[[], SaslExchange] = lambda: PlainExchange("u", "p")
        self.wake: Callable[[], None] = lambda: None

    def has_login(self, node: object) -> bool:
        """Return that there is a login."""
        return True

    def layer(self, node: object) -> None:
        """Return no TLS."""

    def login(self, node: object, chance: float) -> Login:
        """Return a login."""
        return Login(self.exchange, "u")

    def close(self) -> None:
        """Close nothing."""


def logged_in(logins: Logins) -> World:
    """Return a world whose bootstrap address has accepted a login and named the brokers."""
    world = World(BOOTSTRAP[:1], CONFIG, security=cast("Security", logins))
    world.client.send(metadata())
    for _ in range(6):
        world.poll()
    world.client.set_nodes(NODES)
    return world


def test_a_login_that_ends_without_an_answer_is_told_with_who_named_the_address() -> None:
    world = logged_in(Logins())
    world.selector.unanswered.add(17)
    world.client.connect({1})
    for _ in range(3):
        world.poll()
    world.now = 3.0
    assert world.client.last_errors() == (
        f"{NODE}: it is still waiting for the response to SaslHandshake after 3 s; "
        f"bootstrap (127.0.0.1:1001) {HINT}"
    )
    world.selector.break_port(PORT)
    world.poll()
    assert why_down(world) == (
        "Connection reset by peer during the SASL login, without an error: some brokers reject a "
        f"login this way; bootstrap (127.0.0.1:1001) {HINT}"
    )


def test_a_login_that_is_refused_says_nothing_of_the_address() -> None:
    logins = Logins()
    world = logged_in(logins)

    def refuse() -> SaslExchange:
        raise SaslAuthenticationException("the token is not known")

    logins.exchange = refuse
    world.client.connect({1})
    for _ in range(4):
        world.poll()
    assert "the token is not known" in why_down(world)
    assert "advertised" not in why_down(world)
