"""The network client begins connections slowly, because the name server is slow."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest
from support.pure import client_world
from support.pure.client_world import CONFIG

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.selector import Address, HostResolver
from spark_kafka_sink.wire.exchange import NodeDown

LOOKUP_S = 4.0


class World(client_world.World):
    """A client of brokers with these host names. A host with "unknown" has no address."""

    def __init__(self, *hosts: str, setup_s: float = 10.0) -> None:
        config = replace(CONFIG, connection_setup_timeout=ExponentialBackoff(setup_s, setup_s))
        super().__init__(config=config, resolver=HostResolver(self._resolve))
        self.asked: list[str] = []
        self.client.set_nodes(
            {at: Node(id=at, host=host, port=2000 + at) for at, host in enumerate(hosts)}
        )
        self.selector.hang = True

    def nodes_down(self) -> set[int]:
        """Poll, and return the nodes whose connections were given up."""
        return {each.node_id for each in self.poll() if isinstance(each, NodeDown)}

    def _resolve(self, host: str, port: int) -> list[Address]:
        self.asked.append(host)
        self.pass_time(LOOKUP_S)
        if "unknown" in host:
            raise socket.gaierror
        return [(socket.AF_INET, ("127.0.0.1", port))]


def test_each_connection_has_its_whole_setup_time_although_others_are_begun_slowly() -> None:
    world = World(*"abc")
    world.client.connect({0})
    assert world.poll() == []
    # The first connection is not made yet when the others are begun.
    world.client.connect({0, 1, 2})
    assert world.poll() == []
    assert (len(world.asked), world.now) == (3, 3 * LOOKUP_S)
    world.pass_time(9.9)
    assert world.poll() == []
    world.pass_time(0.1)
    assert world.nodes_down() == {0, 1, 2}


def test_a_setup_time_at_most_doubles_although_others_are_begun_slowly() -> None:
    world = World(*"abcdef")
    world.client.connect({0})
    assert world.poll() == []
    assert world.now == LOOKUP_S
    world.client.connect({*range(6)})
    assert world.nodes_down() == {0}
    assert world.now == LOOKUP_S + 20.0


def test_a_poll_waits_no_longer_than_a_timer_although_connections_are_begun_slowly() -> None:
    world = World("a", setup_s=2.0)
    world.client.connect({0})
    world.client.poll(60.0)
    assert world.selector.waits == [pytest.approx(2.0)]


def test_a_back_off_begins_when_a_slow_lookup_has_failed() -> None:
    world = World("unknown")
    world.client.connect({0})
    world.poll()
    world.poll()
    assert len(world.asked) == 1
    world.pass_time(0.1)
    world.poll()
    assert len(world.asked) == 2
