"""How long the network client waits: until something is due by time, and not at all before that."""

from __future__ import annotations

from random import Random

import pytest
from support.in_memory_selector import InMemorySelector

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.client import NetworkClient, NetworkConfig
from spark_kafka_sink.wire.exchange import ClientRequest, Event, NodeDown, RequestFailed
from spark_kafka_sink.wire.messages import MetadataRequest

BOOTSTRAP_PORT, PORT = 1001, 2001


class World:
    """A client of one broker and one bootstrap address, its selector and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.selector = InMemorySelector()
        self.client = NetworkClient(
            self.selector,  # type: ignore[arg-type]  # the same calls, without sockets
            NetworkConfig(
                client_id="client",
                request_timeout_s=30.0,
                reconnect_backoff=ExponentialBackoff(0.05, 1.0),
                connection_setup_timeout=ExponentialBackoff(100.0, 100.0),
                connections_max_idle_s=540.0,
            ),
            [Node(id=-1, host="127.0.0.1", port=BOOTSTRAP_PORT)],
            lambda: self.now,
            Random(1),
        )
        self.client.set_nodes({1: Node(id=1, host="127.0.0.1", port=PORT)})

    def bring_up(self) -> None:
        """Connect the broker and let it be ready."""
        self.client.connect({1})
        for _ in range(3):
            self.client.poll(0.0)
        self.client.connect(set())

    def wait(self) -> float:
        """Let time pass as where nothing comes; gives how long it was."""
        assert self.client.poll(10_000.0) == []
        waited = self.selector.waits[-1]
        self.now += waited
        return waited

    def poll(self) -> list[type[Event]]:
        """Give what is due now."""
        return [type(event) for event in self.client.poll(0.0)]


def metadata(node_id: int | None) -> ClientRequest:
    """Make a request."""
    return ClientRequest(node_id=node_id, message=MetadataRequest(topics=[]))


def test_a_poll_does_not_wait_where_it_has_something_to_tell() -> None:
    world = World()
    world.client.send(metadata(1))  # to which there is no connection
    (failed,) = world.client.poll(60.0)
    assert isinstance(failed, RequestFailed)
    assert world.selector.waits == [0.0]


def test_a_request_that_no_broker_takes_fails_when_its_time_is_over() -> None:
    world = World()
    world.selector.hang = True
    world.client.send(metadata(None))
    assert world.wait() == pytest.approx(30.0)
    assert world.poll() == [RequestFailed]


def test_a_request_that_is_not_answered_fails_when_its_time_is_over() -> None:
    world = World()
    world.bring_up()
    world.selector.silent = True
    world.client.send(metadata(1))
    assert world.poll() == []
    assert world.wait() == pytest.approx(30.0)
    assert world.poll() == [RequestFailed, NodeDown]


def test_a_connection_that_does_not_come_up_is_given_up_when_its_time_is_over() -> None:
    world = World()
    world.selector.hang = True
    world.client.connect({1})
    assert world.wait() == pytest.approx(100.0, rel=0.2)
    assert world.poll() == [NodeDown]


def test_a_node_that_refused_is_connected_to_when_the_back_off_is_over() -> None:
    world = World()
    world.selector.refuse.add(PORT)
    world.client.connect({1})
    assert world.poll() == [NodeDown]
    assert world.wait() == pytest.approx(0.05, rel=0.2)
    world.poll()
    assert world.selector.connects == [PORT, PORT]


def test_a_connection_is_closed_when_it_was_idle_for_long_enough() -> None:
    world = World()
    world.bring_up()
    assert world.wait() == pytest.approx(540.0)
    assert world.poll() == [NodeDown]
