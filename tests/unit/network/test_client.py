"""The network client over a selector that a test plays: connections, back-off, time-outs."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from support.in_memory_selector import InMemorySelector

from spark_kafka_sink import error_codes
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.client import NetworkClient, NetworkConfig
from spark_kafka_sink.network.selector import Address, HostResolver
from spark_kafka_sink.wire.exchange import (
    Answered,
    ClientRequest,
    Event,
    NodeDown,
    NodeReady,
    NodeThrottled,
    RequestFailed,
)
from spark_kafka_sink.wire.messages import MetadataRequest, MetadataRequestTopic

NETWORK_EXCEPTION, REQUEST_TIMED_OUT = 13, 7
BOOTSTRAP = [
    Node(id=-1, host="127.0.0.1", port=1001),
    Node(id=-2, host="127.0.0.1", port=1002),
]
NODES = {1: Node(id=1, host="127.0.0.1", port=2001), 2: Node(id=2, host="127.0.0.1", port=2002)}
CONFIG = NetworkConfig(
    client_id="client",
    request_timeout_s=30.0,
    reconnect_backoff=ExponentialBackoff(0.05, 1.0),
    connection_setup_timeout=ExponentialBackoff(10.0, 30.0),
    connections_max_idle_s=540.0,
)


class World:
    """A client, its selector and its clock."""

    def __init__(
        self,
        bootstrap: Sequence[Node] = BOOTSTRAP,
        config: NetworkConfig = CONFIG,
        resolver: HostResolver | None = None,
    ) -> None:
        self.now = 0.0
        self.selector = InMemorySelector()
        self.client = NetworkClient(
            self.selector,  # type: ignore[arg-type]  # the same calls, without sockets
            config,
            list(bootstrap),
            lambda: self.now,
            Random(1),
            resolver=resolver,
        )
        self.events: list[Event] = []

    def poll(self) -> list[Event]:
        """Poll once and give what happened."""
        happened = self.client.poll(0.0)
        self.events += happened
        return happened

    def bring_up(self, *nodes: int) -> None:
        """Connect nodes and let them be ready."""
        self.client.set_nodes(NODES)
        self.client.connect(set(nodes))
        for _ in range(4):
            self.poll()
        assert {e.node_id for e in self.events if isinstance(e, NodeReady)} >= set(nodes)
        self.events.clear()


def metadata(node_id: int | None = None) -> ClientRequest:
    """Make a request."""
    return ClientRequest(node_id=node_id, message=MetadataRequest(topics=[]))


def test_a_request_to_any_node_connects_to_a_bootstrap_address_and_is_answered() -> None:
    world = World()
    request = metadata()
    world.client.send(request)
    for _ in range(5):
        world.poll()
    (answered,) = [e for e in world.events if isinstance(e, Answered)]
    assert answered.request is request
    assert answered.node_id in (-1, -2)
    assert len(world.selector.connects) == 1, "more connections than one were made"


@pytest.mark.parametrize("name", ["\ud800", "x" * 32_768])
@pytest.mark.parametrize("node_id", [None, 1])
def test_a_request_that_cannot_be_written_fails_alone(node_id: int | None, name: str) -> None:
    world = World()
    world.bring_up(1)
    topics = [MetadataRequestTopic(name=name)]
    bad = ClientRequest(node_id=node_id, message=MetadataRequest(topics=topics))
    good = metadata(1)
    world.client.send(bad)
    world.client.send(good)
    for _ in range(3):
        world.poll()
    (failed,) = [event for event in world.events if isinstance(event, RequestFailed)]
    (answered,) = [event for event in world.events if isinstance(event, Answered)]
    assert (failed.request, failed.code) == (bad, error_codes.INVALID_REQUEST)
    assert "cannot be written" in failed.reason
    assert answered.request is good


def test_a_dead_bootstrap_address_is_not_the_end() -> None:
    world = World()
    world.selector.refuse.add(1001)
    for _ in range(3):
        request = metadata()
        world.client.send(request)
        for _ in range(10):
            world.poll()
            world.now += 0.5
    assert sum(isinstance(e, Answered) for e in world.events) == 3


def test_when_no_broker_can_be_reached_the_request_fails_with_the_reasons() -> None:
    world = World()
    world.selector.refuse.update({1001, 1002})
    request = metadata()
    world.client.send(request)
    while world.now < 31:
        world.poll()
        world.now += 0.25
    (failed,) = [e for e in world.events if isinstance(e, RequestFailed)]
    assert (failed.request, failed.code) == (request, REQUEST_TIMED_OUT)
    assert "bootstrap (127.0.0.1:1001): Connection refused" in failed.reason
    assert "bootstrap (127.0.0.1:1002): Connection refused" in failed.reason


def test_connections_are_made_only_to_wanted_nodes() -> None:
    world = World()
    world.bring_up(1)
    assert world.selector.connects == [2001]
    world.client.connect(set())
    world.poll()
    assert world.selector.connects == [2001]


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
    assert any(isinstance(e, NodeReady) for e in world.events)
    world.selector.break_all()
    world.poll()
    broke = world.now
    while not world.selector.connects_since(broke):
        world.now += 0.01
        world.poll()
    assert world.now - broke < 0.1


def test_a_broken_connection_fails_its_requests_and_tells() -> None:
    world = World()
    world.bring_up(1, 2)
    world.selector.silent = True
    lost, kept = metadata(1), metadata(2)
    world.client.send(lost)
    world.client.send(kept)
    world.poll()
    world.selector.break_port(2001)
    events = world.poll()
    failed = [e for e in events if isinstance(e, RequestFailed)]
    assert [(e.request, e.code) for e in failed] == [(lost, NETWORK_EXCEPTION)]
    assert [e.node_id for e in events if isinstance(e, NodeDown)] == [1]


def test_a_request_without_answer_breaks_the_connection_after_request_timeout() -> None:
    world = World()
    world.bring_up(1)
    world.selector.silent = True
    first, second = metadata(1), metadata(1)
    world.client.send(first)
    world.now += 20
    world.client.send(second)
    world.now += 9.9
    assert world.poll() == []
    world.now += 0.1
    events = world.poll()
    failed = [e for e in events if isinstance(e, RequestFailed)]
    assert [(e.request, e.code) for e in failed] == [
        (first, REQUEST_TIMED_OUT),
        (second, REQUEST_TIMED_OUT),
    ]
    assert "no answer within request.timeout.ms=30000" in failed[0].reason
    assert NodeDown(1, failed[0].reason) in events


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
    assert "no answer within request.timeout.ms=30000" in down.reason


def test_garbage_closes_the_connection_and_fails_its_requests() -> None:
    world = World()
    world.bring_up(1)
    world.selector.silent = True
    request = metadata(1)
    world.client.send(request)
    world.poll()
    world.selector.say(2001, b"HTTP/1.1 400 Bad Request\r\n")
    events = world.poll()
    (failed,) = [e for e in events if isinstance(e, RequestFailed)]
    assert failed.request is request
    assert "does not speak Kafka's protocol" in failed.reason


@pytest.mark.parametrize(
    "garbage",
    [struct.pack(">ii", 8, 2) + b"\xa5" * 4, struct.pack(">ii", 8, 77) + bytes(4), b"\xff" * 4],
    ids=["body", "correlation_id", "size"],
)
def test_a_garbled_answer_loses_neither_the_answer_before_it_nor_any_request(
    garbage: bytes,
) -> None:
    world = World()
    world.bring_up(1)
    world.selector.silent = True
    requests = [metadata(1) for _ in range(3)]
    for request in requests:
        world.client.send(request)
    world.poll()
    world.selector.say(2001, world.selector.answer(3, 13, 1) + garbage)
    events = world.poll()
    assert [e.request for e in events if isinstance(e, Answered)] == requests[:1]
    failed = [e for e in events if isinstance(e, RequestFailed)]
    assert [(e.request, e.code) for e in failed] == [(r, NETWORK_EXCEPTION) for r in requests[1:]]
    assert isinstance(events[-1], NodeDown)


def test_an_idle_connection_is_closed() -> None:
    world = World()
    world.bring_up(1)
    world.client.connect(set())
    world.now += 541
    assert world.poll() == [NodeDown(1, "idle")]


def test_a_throttled_node_is_named_and_not_asked_for_any() -> None:
    world = World()
    world.bring_up(1, 2)
    world.selector.throttle_ms = 5000
    world.client.send(metadata(1))
    for _ in range(2):
        world.poll()
    (throttled,) = [e for e in world.events if isinstance(e, NodeThrottled)]
    assert throttled == NodeThrottled(1, 5.0)
    world.events.clear()
    for _ in range(4):
        world.client.send(metadata())
        world.poll()
        world.poll()
    assert {e.node_id for e in world.events if isinstance(e, Answered)} == {2}


def test_requests_to_any_node_go_to_the_one_with_the_least_in_flight() -> None:
    world = World()
    world.bring_up(1, 2)
    world.selector.silent = True
    world.client.send(metadata(1))
    world.client.send(metadata(1))
    anywhere = metadata()
    world.client.send(anywhere)
    world.poll()
    assert world.selector.requests_to(2002)[-1] == 3, "not sent to the idle node"


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


def test_a_request_to_a_node_that_is_gone_fails_at_once() -> None:
    world = World()
    request = metadata(1)
    world.client.send(request)
    (failed,) = world.poll()
    assert isinstance(failed, RequestFailed)
    assert (failed.request, failed.code) == (request, NETWORK_EXCEPTION)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 70 + ".invalid"])
def test_a_host_that_does_not_resolve_is_a_failed_connection(host: str) -> None:
    world = World([Node(id=-1, host=host, port=1)])
    world.client.send(metadata())
    (down,) = world.poll()
    assert isinstance(down, NodeDown)
    assert "the host name cannot be resolved" in down.reason
    assert host in world.client.last_errors()


def test_a_frame_size_is_never_trusted() -> None:
    world = World()
    world.bring_up(1)
    world.selector.say(2001, struct.pack(">i", 2**31 - 1))
    events = world.poll()
    assert [type(e) for e in events] == [NodeDown]


# -- which node ----------------------------------------------------------------------------------


def test_when_all_brokers_known_are_gone_the_bootstrap_addresses_are_asked() -> None:
    world = World()
    world.bring_up(1, 2)
    world.client.connect(set())
    world.selector.refuse.update({2001, 2002})
    world.selector.break_all()
    world.poll()
    world.client.send(metadata())
    for _ in range(8):
        world.poll()
    assert {e.node_id for e in world.events if isinstance(e, Answered)} <= {-1, -2}
    assert any(isinstance(e, Answered) for e in world.events)


def test_a_bootstrap_connection_that_is_up_is_used_rather_than_another_made() -> None:
    world = World()
    world.client.send(metadata())
    for _ in range(4):
        world.poll()
    world.client.set_nodes(NODES)
    world.client.send(metadata())
    for _ in range(4):
        world.poll()
    assert sum(isinstance(e, Answered) for e in world.events) == 2
    assert len(world.selector.connects) == 1


def test_without_rebootstrap_only_the_brokers_known_are_asked() -> None:
    world = World(config=replace(CONFIG, rebootstraps=False))
    world.bring_up(1, 2)
    world.client.connect(set())
    world.selector.refuse.update({2001, 2002})
    world.selector.break_all()
    world.poll()
    world.client.send(metadata())
    while world.now < 31:
        world.poll()
        world.now += 0.2
    assert {1001, 1002}.isdisjoint(world.selector.connects)
    (failed,) = [e for e in world.events if isinstance(e, RequestFailed)]
    assert failed.code == REQUEST_TIMED_OUT


def test_no_brokers_at_all_closes_every_connection_and_begins_anew() -> None:
    world = World()
    world.client.send(metadata())
    for _ in range(4):
        world.poll()
    world.bring_up(1)
    before = len(world.selector.connects)
    pending = metadata(1)
    world.selector.silent = True
    world.client.send(pending)
    world.poll()
    world.client.set_nodes({})
    world.client.connect(set())
    events = world.poll()
    assert [e.request for e in events if isinstance(e, RequestFailed)] == [pending]
    assert {e.node_id for e in events if isinstance(e, NodeDown)} in ({1, -1}, {1, -2})
    world.selector.silent = False
    world.client.send(metadata())
    world.now += 1
    for _ in range(4):
        world.poll()
    assert set(world.selector.connects[before:]) <= {1001, 1002}
    assert any(isinstance(e, Answered) and e.node_id < 0 for e in world.events)


def test_one_connection_is_made_at_a_time_for_requests_to_any_node() -> None:
    world = World()
    world.client.set_nodes(NODES)
    world.selector.hang = True
    for _ in range(3):
        world.client.send(metadata())
        world.poll()
    assert len(world.selector.connects) == 1


# -- pauses and time-outs ------------------------------------------------------------------------


def test_a_shorter_pause_does_not_end_a_longer_one() -> None:
    world = World()
    world.bring_up(1)
    for throttle_ms in (5000, 1000):
        world.selector.throttle_ms = throttle_ms
        world.client.send(metadata(1))
        for _ in range(2):
            world.poll()
    assert [e for e in world.events if isinstance(e, NodeThrottled)] == [NodeThrottled(1, 5.0)] * 2


def test_what_is_in_flight_at_a_broker_that_pauses_has_that_much_longer() -> None:
    world = World()
    world.bring_up(1)
    world.selector.throttle_ms = 5000
    world.client.send(metadata(1))
    world.selector.silent = True
    late = metadata(1)
    world.client.send(late)
    for _ in range(2):
        world.poll()
    assert any(isinstance(e, NodeThrottled) for e in world.events)
    world.now = 34.9
    assert world.poll() == []
    world.now = 35.0
    assert [e.request for e in world.poll() if isinstance(e, RequestFailed)] == [late]


def test_while_all_brokers_pause_a_request_waits_for_the_first_to_come_back() -> None:
    world = World()
    world.bring_up(1, 2)
    world.selector.throttle_ms = 5000
    for node in (1, 2):
        world.client.send(metadata(node))
        for _ in range(2):
            world.poll()
    world.events.clear()
    world.selector.throttle_ms = 0
    world.client.send(metadata())
    world.client.poll(60.0)
    assert world.selector.waits[-1] == pytest.approx(5.0)
    assert world.poll() == []
    world.now = 5.0
    for _ in range(2):
        world.poll()
    assert [type(e) for e in world.events] == [Answered]
    assert {1001, 1002}.isdisjoint(world.selector.connects)


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
    """Poll until so many connections were attempted and give their addresses."""
    for _ in range(10_000):
        if len(world.selector.hosts) >= count:
            return world.selector.hosts[:count]
        world.poll()
        world.now += 0.1
    raise AssertionError(f"only {world.selector.hosts}")


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
    world.now = 20.0
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


# -- what peers do -------------------------------------------------------------------------------


def test_a_connection_that_ends_inside_an_answer_says_so() -> None:
    world = World()
    world.bring_up(1)
    world.selector.silent = True
    request = metadata(1)
    world.client.send(request)
    world.poll()
    world.selector.say(2001, struct.pack(">ii", 100, 1))
    assert world.poll() == []
    world.selector.break_port(2001)
    (failed, down) = world.poll()
    assert isinstance(failed, RequestFailed)
    assert failed.request is request
    assert "in the middle of an answer" in failed.reason
    assert down == NodeDown(1, "Connection reset by peer in the middle of an answer")


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
    assert "it may expect TLS or SASL" in down.reason
