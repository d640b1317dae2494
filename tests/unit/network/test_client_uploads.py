"""Requests that take long to write, and requests that are too large for a broker."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from random import Random

from support.pure.client_world import CONFIG, NODES, World, metadata
from support.pure.in_memory_selector import InMemorySelector

from spark_kafka_sink.error_codes import REQUEST_TIMED_OUT
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.client import NetworkClient
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.wire.exchange import (
    Answered,
    ClientRequest,
    Event,
    NodeDown,
    NodeReady,
    RequestFailed,
)
from spark_kafka_sink.wire.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from spark_kafka_sink.wire.primitives import Records

LARGE = 2_000_000
RESET = "Connection reset by peer"


def produce(size: int, acks: int = 1) -> ClientRequest:
    """Return a Produce request with so many bytes of records."""
    data = [PartitionProduceData(index=0, records=Records((bytes(size),), size))]
    topics = [TopicProduceData(name="t", partition_data=data)]
    message = ProduceRequest(acks=acks, timeout_ms=1, topic_data=topics)
    return ClientRequest(node_id=1, message=message, expects_response=acks != 0)


# -- slow uploads --------------------------------------------------------------------------------


def slow(request: ClientRequest) -> World:
    """Return a world whose request is not written yet."""
    world = World()
    world.bring_up(1)
    world.selector.silent = world.selector.is_slow = True
    world.client.send(request)
    return world


def failure(world: World) -> RequestFailed:
    """Let 30 s pass, request.timeout.ms, and return the failure at their end."""
    world.now += 29.9
    assert world.poll() == []
    world.now += 0.2
    failed, down = world.poll()
    assert isinstance(failed, RequestFailed)
    assert isinstance(down, NodeDown)
    assert failed.code == REQUEST_TIMED_OUT
    return failed


def upload(world: World) -> None:
    """Let the connection take bytes for 100 s."""
    for _ in range(5):
        world.now += 20
        world.selector.take(2001)
        assert world.poll() == []


def test_a_steady_upload_goes_on_and_its_answer_has_request_timeout_ms() -> None:
    world = slow(produce(100))
    upload(world)
    world.selector.write(2001)
    assert world.poll() == []
    expected = "no response to Produce within request.timeout.ms=30000"
    assert failure(world).reason == expected


def test_an_upload_that_stops_ends_after_request_timeout_ms() -> None:
    world = slow(produce(100_000))
    upload(world)
    reason = failure(world).reason
    assert reason.startswith("nothing more could be sent of a Produce request of 1000")
    assert reason.endswith(" bytes within request.timeout.ms=30000")


def receive(client: NetworkClient, peer: socket.socket, size: int, events: list[Event]) -> bytes:
    """Read so many bytes, which the client writes meanwhile."""
    data = bytearray()
    while len(data) < size:
        events += client.poll(0.01)
        assert NodeDown not in map(type, events), events
        with suppress(BlockingIOError):
            data += peer.recv(size - len(data))
    return bytes(data)


def test_an_upload_through_a_slow_socket_goes_on() -> None:
    # The socket buffers hold much less than a step.
    buffer, step = 65_536, 2_000_000
    selector = Selector(send_buffer_bytes=buffer, receive_buffer_bytes=buffer)
    now = [0.0]
    events: list[Event] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        node = Node(id=1, host="127.0.0.1", port=listener.getsockname()[1])
        client = NetworkClient(selector, CONFIG, [node], lambda: now[0], Random(1))
        client.set_nodes({1: node})
        client.connect({1})
        client.poll(0)
        peer, _ = listener.accept()
        peer.setblocking(False)  # noqa: FBT003 - the only form there is
        with peer:
            for kind in (NodeReady, Answered):
                size, *header = struct.unpack(">ihhi", receive(client, peer, 12, events))
                left = size - 8
                while left:
                    left -= len(receive(client, peer, min(left, step), events))
                    now[0] += 20
                peer.sendall(InMemorySelector().answer(*header))
                while not events:
                    events += client.poll(0.01)
                assert [type(event) for event in events] == [kind]
                events.clear()
                if kind is NodeReady:
                    client.send(produce(10 * step))
        client.close()


# -- requests that a broker finds too large ------------------------------------------------------


def lost(world: World, size: int, acks: int = 1) -> str:
    """Connect, and return the reason if the broker closes the connection at a Produce request."""
    world.now += 2
    world.events.clear()
    while not any(isinstance(event, NodeReady) for event in world.events):
        world.poll()
    world.selector.silent = world.selector.is_slow = True
    world.client.send(produce(size, acks))
    world.poll()
    world.selector.break_port(2001)
    failed, down = world.poll()
    world.selector.silent = world.selector.is_slow = False
    assert isinstance(failed, RequestFailed)
    assert isinstance(down, NodeDown)
    return down.reason


def answered() -> World:
    """Return a world in which a node has answered a request."""
    world = World()
    world.client.set_nodes(NODES)
    world.client.connect({1})
    world.client.send(metadata())
    for _ in range(4):
        world.poll()
    assert any(isinstance(event, Answered) for event in world.events)
    world.client.connect({1})
    world.selector.break_all()
    world.poll()
    return world


def test_a_broker_that_hangs_up_on_large_requests_again_may_have_a_lower_limit() -> None:
    world = answered()
    assert lost(world, LARGE) == RESET, "any restart does this"
    said = lost(world, LARGE)
    beginning = f"{RESET} again before it answered a Produce request of 20000"
    end = "the broker's limit (socket.request.max.bytes) may be lower: lower max.request.size"
    assert said.startswith(beginning)
    assert said.endswith(f" bytes; {end}")
    assert end in world.client.last_errors()


def test_a_large_request_that_is_answered_shows_that_the_limit_is_higher() -> None:
    world = answered()
    assert lost(world, LARGE) == RESET
    world.now += 2
    for _ in range(4):
        world.poll()
    world.selector.unanswered = set()
    world.client.send(produce(LARGE))
    world.poll()
    world.poll()
    world.selector.break_port(2001)
    world.poll()
    assert lost(world, LARGE) == RESET


def test_small_requests_are_not_too_large() -> None:
    world = answered()
    assert [lost(world, 900_000) for _ in range(3)] == [RESET] * 3


def test_a_broker_behind_one_that_answered_does_not_expect_sasl() -> None:
    world = answered()
    assert lost(world, 100) == RESET
