"""The network client over a selector that a test plays: connections, back-off, time-outs."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from random import Random

import pytest
from support.in_memory_selector import InMemorySelector

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.client import NetworkClient, NetworkConfig
from spark_kafka_sink.wire.exchange import (
    Answered,
    ClientRequest,
    Event,
    NodeDown,
    NodeReady,
    NodeThrottled,
    RequestFailed,
)
from spark_kafka_sink.wire.messages import MetadataRequest

NETWORK_EXCEPTION, REQUEST_TIMED_OUT = 13, 7
BOOTSTRAP = [
    Node(id=-1, host="127.0.0.1", port=1001),
    Node(id=-2, host="127.0.0.1", port=1002),
]
NODES = {1: Node(id=1, host="127.0.0.1", port=2001), 2: Node(id=2, host="127.0.0.1", port=2002)}


class World:
    """A client, its selector and its clock."""

    def __init__(self, bootstrap: Sequence[Node] = BOOTSTRAP) -> None:
        self.now = 0.0
        self.selector = InMemorySelector()
        self.client = NetworkClient(
            self.selector,  # type: ignore[arg-type]  # the same calls, without sockets
            NetworkConfig(
                client_id="client",
                request_timeout_s=30.0,
                reconnect_backoff=ExponentialBackoff(0.05, 1.0),
                connection_setup_timeout=ExponentialBackoff(10.0, 30.0),
                connections_max_idle_s=540.0,
            ),
            list(bootstrap),
            lambda: self.now,
            Random(1),
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
    world.now += 12.1
    events = world.poll()
    assert [type(e) for e in events] == [NodeDown]


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
