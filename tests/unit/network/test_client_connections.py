"""The network client's connections, over a selector that a test plays: made, named, closed."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.pure.client_world import CONFIG, NODES, World, metadata

from spark_kafka_sink.errors import NO_BROKER, NO_BROKER_BY_TLS, SslAuthenticationException
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.selector import Address, HostResolver
from spark_kafka_sink.wire.exchange import Answered, NodeDown, NodeReady, RequestFailed


def test_connections_are_made_only_to_wanted_nodes() -> None:
    world = World()
    world.bring_up(1)
    assert world.selector.connects == [2001]
    world.client.connect(set())
    world.poll()
    assert world.selector.connects == [2001]


def test_one_connection_is_made_at_a_time_for_requests_to_any_node() -> None:
    world = World()
    world.client.set_nodes(NODES)
    world.selector.hang = True
    for _ in range(3):
        world.client.send(metadata())
        world.poll()
    assert len(world.selector.connects) == 1


def test_attempts_back_off_up_to_the_maximum_and_start_over_after_success() -> None:
    world = World()
    world.selector.refuse.add(2001)
    world.client.set_nodes(NODES)
    world.client.connect({1})
    times = []
    while world.now < 12:
        before = len(world.selector.connects)
        world.poll()
        if len(world.selector.connects) > before:
            times.append(world.now)
        world.now += 0.01
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert waits[0] < 0.1
    assert all(0.75 < wait < 1.25 for wait in waits[-3:])
    world.selector.refuse.clear()
    world.now += 2
    for _ in range(4):
        world.poll()
    world.client.send(metadata(1))
    for _ in range(2):
        world.poll()
    assert any(isinstance(e, Answered) for e in world.events)
    world.selector.break_all()
    world.poll()
    broke = world.now
    while not world.selector.connects_since(broke):
        world.now += 0.01
        world.poll()
    assert world.now - broke < 0.1


def test_a_broker_that_leaves_the_cluster_or_moves_is_disconnected() -> None:
    world = World()
    world.bring_up(1, 2)
    world.client.set_nodes({1: Node(id=1, host="127.0.0.1", port=2009)})
    events = world.poll()
    assert {e.node_id for e in events if isinstance(e, NodeDown)} == {1, 2}
    world.client.connect({1})
    world.now += 5
    for _ in range(3):
        world.poll()
    assert world.selector.connects[-1] == 2009


def test_a_peer_that_hangs_up_on_the_first_request_may_expect_something_else() -> None:
    world = World()
    world.selector.silent = True
    world.client.set_nodes(NODES)
    world.client.connect({1})
    world.poll()
    world.poll()
    world.selector.break_port(2001)
    (down,) = world.poll()
    assert isinstance(down, NodeDown)
    assert "it may expect TLS, or may not be a Kafka broker" in down.reason


def test_a_peer_that_hangs_up_after_it_said_its_versions_may_expect_sasl() -> None:
    world = World()
    pauses = []
    world.client.set_nodes(NODES)
    for _ in range(8):
        world.client.connect({1})
        tried = world.now
        while not world.client.connection_count():
            world.poll()
            world.now += 0.01
        pauses.append(world.now - tried)
        for _ in range(3):
            world.poll()
        assert isinstance(world.events[-1], NodeReady)
        world.selector.silent = True
        world.client.send(metadata(1))
        world.selector.break_port(2001)
        failed, down = world.poll()
        world.selector.silent = False
        assert isinstance(failed, RequestFailed)
        assert isinstance(down, NodeDown)
        assert "before it answered the first request; it may expect SASL" in down.reason
        assert "it may expect SASL" in world.client.last_errors()
    assert pauses[-1] > 10 * pauses[1], "a connection that came up is no reason to hurry"


def test_a_peer_that_hangs_up_on_a_later_request_expects_nothing_else() -> None:
    world = World()
    world.bring_up(1)
    world.client.send(metadata(1))
    for _ in range(2):
        world.poll()
    world.selector.silent = True
    world.client.send(metadata(1))
    world.selector.break_port(2001)
    assert NodeDown(1, "Connection reset by peer") in world.poll()


# -- time-outs -----------------------------------------------------------------------------------


def test_a_connection_that_does_not_come_up_is_given_up() -> None:
    world = World()
    world.selector.hang = True
    world.client.set_nodes(NODES)
    world.client.connect({1})
    world.poll()
    world.now += 12.1
    (down,) = world.poll()
    assert isinstance(down, NodeDown)
    assert "socket.connection.setup.timeout.ms" in down.reason


def test_a_broker_that_accepts_but_says_nothing_is_given_up() -> None:
    world = World()
    world.selector.silent = True
    world.client.set_nodes(NODES)
    world.client.connect({1})
    world.poll()
    world.poll()
    world.now += 29.9
    assert world.poll() == [], "a connection that is up has request.timeout.ms to answer"
    world.now += 0.1
    (down,) = world.poll()
    assert isinstance(down, NodeDown)
    assert "no response within request.timeout.ms=30000" in down.reason


def test_a_connection_may_take_longer_after_each_that_did_not_come_up() -> None:
    world = World()
    world.selector.hang = True
    world.client.set_nodes(NODES)
    world.client.connect({1})
    took = []
    for attempt in range(1, 6):
        while len(world.selector.connects) < attempt:
            world.poll()
            world.now += 0.05
        began = world.now
        while not any(isinstance(e, NodeDown) for e in world.poll()):
            world.now += 0.1
        took.append(world.now - began)
    assert 7.9 <= took[0] <= 12.1
    assert 15.9 <= took[1] <= 24.1
    assert all(23.9 <= each <= 30.1 for each in took[2:]), took


def test_a_connection_that_was_up_does_not_lengthen_the_time_for_the_next() -> None:
    world = World()
    for _ in range(5):
        world.bring_up(1)
        world.selector.break_all()
        world.poll()
        world.now += 2
    world.selector.hang = True
    world.poll()
    world.now += 12.1
    (down,) = [e for e in world.poll() if isinstance(e, NodeDown)]
    assert "socket.connection.setup.timeout.ms" in down.reason


# -- names and addresses -------------------------------------------------------------------------


class Names:
    """A name service that a test plays: addresses by host, canonical names by host."""

    def __init__(
        self, addresses: Mapping[str, list[str]], names: Mapping[str, list[str]] | None = None
    ) -> None:
        self.addresses = dict(addresses)
        self.names = dict(names or {})
        self.asked: list[str] = []
        self.resolver = HostResolver(self._resolve, self._canonical)

    def _resolve(self, host: str, port: int) -> list[Address]:
        self.asked.append(host)
        if host not in self.addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, (address, port)) for address in self.addresses[host]]

    def _canonical(self, host: str) -> list[str]:
        if host not in self.names:
            raise socket.gaierror(-2, "Name or service not known")
        return self.names[host]


KAFKA = [Node(id=-1, host="kafka", port=9092)]


def attempts(world: World, count: int) -> list[str]:
    """Poll until `count` connections were attempted, and return their addresses."""
    for _ in range(10_000):
        if len(world.selector.hosts) >= count:
            return world.selector.hosts[:count]
        world.poll()
        world.now += 0.1
    raise AssertionError(f"only {world.selector.hosts}")


def poll_for(world: World, seconds: float) -> None:
    """Poll every tenth of a second."""
    until = world.now + seconds
    while world.now < until:
        world.poll()
        world.now += 0.1


def failures(world: World) -> list[RequestFailed]:
    """Return the requests that have failed."""
    return [event for event in world.events if isinstance(event, RequestFailed)]


def test_every_address_of_a_broker_that_was_heard_of_is_tried_before_it_counts_as_lost() -> None:
    names = Names({"b": ["x", "y", "z"], "kafka": ["k"]})
    world = World(KAFKA, resolver=names.resolver)
    world.selector.refuse.update({"x", "y", "z", "k"})
    world.client.set_initial_nodes([Node(id=1, host="b", port=1)])
    world.client.send(metadata())
    assert [host for host in attempts(world, 20) if host != "k"] == ["x", "y", "z"] * 2


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 70 + ".invalid"])
def test_a_host_that_does_not_resolve_is_a_failed_connection(host: str) -> None:
    world = World([Node(id=-1, host=host, port=1)])
    world.client.send(metadata())
    (down,) = world.poll()
    assert isinstance(down, NodeDown)
    assert "the host name cannot be resolved" in down.reason
    assert host in world.client.last_errors()


def test_a_broker_that_cannot_be_reached_is_told_with_the_bootstrap_address_that_named_it() -> None:
    names = Names({"kafka": ["k"], "inside": ["i"]})
    world = World(KAFKA, resolver=names.resolver)
    inside = Node(id=1, host="inside", port=9092)
    world.selector.refuse.add("i")
    world.client.send(metadata())
    for _ in range(4):
        world.poll()
    world.client.set_nodes({1: inside})
    world.client.connect({1})
    world.events.clear()
    world.poll()
    hint = (
        "Connection refused; bootstrap (kafka:9092) returned this address: check the broker's "
        "advertised.listeners"
    )
    assert [e.reason for e in world.events if isinstance(e, NodeDown)] == [hint]
    assert world.client.last_errors() == f"node 1 (inside:9092): {hint}"
    # A broker that was reached has the right address, whatever happens to it.
    world.selector.refuse.clear()
    for _ in range(4):
        world.now += 5
        world.poll()
    world.selector.refuse.add("i")
    world.selector.break_all()
    for _ in range(3):
        world.poll()
        world.now += 5
    assert "node 1 (inside:9092): " in world.client.last_errors()
    assert "advertised.listeners" not in world.client.last_errors()


def test_all_addresses_of_a_host_are_tried_in_turn_and_then_the_name_is_resolved_again() -> None:
    names = Names({"kafka": ["a", "b", "c"]})
    world = World(KAFKA, resolver=names.resolver)
    world.selector.refuse.update("abcde")
    world.client.send(metadata())
    assert attempts(world, 3) == ["a", "b", "c"]
    assert names.asked == ["kafka"]
    names.addresses["kafka"] = ["d", "e"]
    assert attempts(world, 5)[3:] == ["d", "e"]
    assert names.asked == ["kafka"] * 2


def test_after_a_connection_that_was_up_the_name_is_resolved_anew_and_its_address_left_out() -> (
    None
):
    names = Names({"kafka": ["a", "b"]})
    world = World(KAFKA, resolver=names.resolver)
    for _ in range(2):
        world.client.send(metadata())
        for _ in range(5):
            world.poll()
        world.selector.break_all()
        world.poll()
        world.now += 5
    assert world.selector.hosts == ["a", "b"]
    assert names.asked == ["kafka"] * 2


def test_a_client_is_shut_out_by_tls_once_every_address_of_a_host_refused_it() -> None:
    names = Names({"kafka": ["a", "b", "c"]})
    world = World(KAFKA, resolver=names.resolver)
    world.selector.refuse_by_tls.update("abc")
    world.client.send(metadata())
    while not any(isinstance(event, RequestFailed) for event in world.events):
        world.poll()
        world.now += 0.1
    assert world.selector.hosts == ["a", "b", "c"]
    assert isinstance(world.events[-1], RequestFailed)
    assert isinstance(world.events[-1].error, SslAuthenticationException)


def test_a_broker_behind_another_address_of_the_host_lets_the_client_in() -> None:
    names = Names({"kafka": ["a", "b", "c"]})
    world = World(KAFKA, resolver=names.resolver)
    world.selector.refuse_by_tls.update("ab")
    world.client.send(metadata())
    assert attempts(world, 3) == ["a", "b", "c"]
    for _ in range(4):
        world.poll()
    assert any(isinstance(event, Answered) for event in world.events)
    assert not any(isinstance(event, RequestFailed) for event in world.events)


def test_a_host_is_refused_by_tls_even_if_its_other_addresses_cannot_be_reached() -> None:
    for refuses_by_tls in ("a", "b"):  # such as IPv4, while nobody listens at the address of IPv6
        names = Names({"kafka": ["a", "b"]})
        world = World(KAFKA, resolver=names.resolver)
        world.selector.refuse.update("ab")
        world.selector.refuse.remove(refuses_by_tls)
        world.selector.refuse_by_tls.add(refuses_by_tls)
        world.client.send(metadata())
        poll_for(world, 1)
        assert [type(each.error) for each in failures(world)] == [SslAuthenticationException]
        assert world.selector.hosts == ["a", "b"]


A_AND_B = [Node(id=-1, host="a", port=9092), Node(id=-2, host="b", port=9092)]


@pytest.mark.parametrize("seed", [0, 1])  # of the bootstrap address that is tried first
def test_tls_at_one_bootstrap_address_ends_a_client_if_the_other_cannot_be_reached(
    seed: int,
) -> None:
    names = Names({"a": ["a"], "b": ["b"]})
    world = World(A_AND_B, resolver=names.resolver, seed=seed)
    world.selector.refuse_by_tls.add("a")
    world.selector.refuse.add("b")
    world.client.send(metadata())
    poll_for(world, 0.2)
    (failed,) = failures(world)
    assert isinstance(failed.error, SslAuthenticationException)
    assert failed.reason.startswith("the TLS handshake failed")
    assert "bootstrap (b:9092): Connection refused" in failed.reason
    assert sorted(world.selector.hosts) == ["a", "b"], "each address was tried once"


def test_tls_at_one_bootstrap_address_does_not_end_a_client_that_still_connects_to_the_other() -> (
    None
):
    names = Names({"a": ["a"], "b": ["b"]})
    world = World(A_AND_B, resolver=names.resolver)
    world.selector.refuse_by_tls.add("a")
    world.selector.hang = True
    world.client.send(metadata())
    poll_for(world, 5)
    assert not failures(world)
    assert world.selector.hosts[-1] == "b"
    said = world.client.last_errors()
    assert "bootstrap (a:9092): the TLS handshake failed" in said
    assert "bootstrap (b:9092): no connection after" in said
    assert world.client.no_broker is NO_BROKER_BY_TLS
    poll_for(world, 15)
    assert [type(each.error) for each in failures(world)] == [SslAuthenticationException]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_broker_behind_the_other_bootstrap_address_lets_the_client_in(seed: int) -> None:
    names = Names({"a": ["a"], "b": ["b"]})
    world = World(A_AND_B, resolver=names.resolver, seed=seed)
    world.selector.refuse_by_tls.add("a")
    world.client.send(metadata())
    poll_for(world, 1)
    assert any(isinstance(event, Answered) for event in world.events)
    assert not failures(world)
    assert world.client.no_broker is NO_BROKER


def test_tls_ends_a_client_also_after_other_failures() -> None:
    names = Names({"a": ["a"], "b": ["b"]})
    world = World(A_AND_B, resolver=names.resolver)
    world.selector.refuse.update("ab")
    world.client.send(metadata())
    poll_for(world, 3)
    assert not failures(world)
    world.selector.refuse.remove("a")
    world.selector.refuse_by_tls.add("a")
    poll_for(world, 3)
    assert [type(each.error) for each in failures(world)] == [SslAuthenticationException]


def test_tls_that_fails_no_more_is_not_the_error_of_a_call() -> None:
    names = Names({"kafka": ["a"], "b": ["b"]})
    world = World(KAFKA, resolver=names.resolver)
    world.client.set_nodes({1: Node(id=1, host="b", port=9092)})
    world.client.connect({1})
    world.selector.refuse_by_tls.add("b")
    poll_for(world, 3)
    assert world.client.no_broker is NO_BROKER_BY_TLS
    world.selector.refuse.add("b")
    poll_for(world, 3)
    assert world.client.no_broker is NO_BROKER


def test_a_host_with_one_address_is_tried_there_again() -> None:
    names = Names({"kafka": ["a"]})
    world = World(KAFKA, resolver=names.resolver)
    world.selector.refuse.add("a")
    world.client.send(metadata())
    assert attempts(world, 3) == ["a"] * 3


CANONICAL = replace(CONFIG, client_dns_lookup="resolve_canonical_bootstrap_servers_only")


def test_a_bootstrap_host_stands_for_the_canonical_names_of_its_addresses() -> None:
    names = Names({"b1.kafka": ["a"], "b2.kafka": ["b"]}, {"kafka": ["b1.kafka", "b2.kafka"]})
    world = World(KAFKA, CANONICAL, names.resolver)
    world.selector.refuse.update("ab")
    world.client.send(metadata())
    assert set(attempts(world, 6)) == {"a", "b"}
    assert set(names.asked) == {"b1.kafka", "b2.kafka"}
    assert "bootstrap (b2.kafka:9092): Connection refused" in world.client.last_errors()


def test_a_bootstrap_host_without_address_is_asked_for_again() -> None:
    names = Names({"b1.kafka": ["a"]})
    world = World(KAFKA, CANONICAL, names.resolver)
    world.client.send(metadata())
    assert isinstance(world.poll()[0], NodeDown)
    names.names["kafka"] = ["b1.kafka"]
    assert attempts(world, 1) == ["a"]


def test_brokers_are_connected_to_by_the_names_they_give() -> None:
    names = Names({"broker": ["x"]})
    world = World(KAFKA, CANONICAL, names.resolver)
    world.client.set_nodes({1: Node(id=1, host="broker", port=1)})
    world.client.connect({1})
    assert attempts(world, 1) == ["x"]


# -- idle connections ----------------------------------------------------------------------------


def test_an_idle_connection_is_closed() -> None:
    world = World()
    world.bring_up(1)
    world.client.connect(set())
    world.now += 541
    assert world.poll() == [NodeDown(1, "idle")]


def test_idle_connections_are_closed_one_a_poll_the_longest_unused_first() -> None:
    world = World()
    world.bring_up(1, 2)
    world.client.connect(set())
    world.now = 100.0
    world.client.send(metadata(1))
    for _ in range(2):
        world.poll()
    world.now = 700.0
    assert [world.poll(), world.poll(), world.poll()] == [
        [NodeDown(2, "idle")],
        [NodeDown(1, "idle")],
        [],
    ]


def test_a_connection_in_use_is_not_idle_and_does_not_keep_the_client_busy() -> None:
    world = World(config=replace(CONFIG, connections_max_idle_s=1.0))
    world.bring_up(1)
    world.selector.silent = True
    world.client.send(metadata(1))
    world.poll()
    world.poll_for(20.0)
    for _ in range(2):  # the first poll reads a response that may have arrived
        assert world.client.poll(60.0) == []
    assert world.selector.waits[-1] == pytest.approx(10.0), "until request.timeout.ms"


def test_a_connection_that_is_being_made_is_not_idle() -> None:
    world = World(config=replace(CONFIG, connections_max_idle_s=0.0))
    world.client.send(metadata())
    for _ in range(5):
        world.poll()
    assert any(isinstance(e, Answered) for e in world.events)


def test_connections_may_be_kept_for_ever() -> None:
    world = World(config=replace(CONFIG, connections_max_idle_s=float("inf")))
    world.bring_up(1)
    world.now = 1e9
    assert world.poll() == []
