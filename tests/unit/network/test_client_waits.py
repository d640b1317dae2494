"""The network client waits until the next timer is due, and not at all before a due one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.pure import client_world
from support.pure.client_world import BOOTSTRAP, CONFIG, NODES, metadata

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.wire.exchange import Event, NodeDown, RequestFailed

PORT = NODES[1].port
# The time after which users are warned that no broker answers.
SILENCE = 5.0


class World(client_world.World):
    """A client of brokers and one bootstrap address, which has long to connect."""

    def __init__(self) -> None:
        timeout = ExponentialBackoff(100.0, 100.0)
        super().__init__(BOOTSTRAP[:1], replace(CONFIG, connection_setup_timeout=timeout))
        self.client.set_nodes(NODES)
        self._happened: list[Event] = []

    def wait(self) -> float:
        """Poll, and wait as long as the client wants; return how long that was."""
        assert self._happened == []
        self.selector.pass_time = self.pass_time
        self._happened = self.client.poll(10_000.0)
        self.selector.pass_time = lambda _: None
        return self.selector.waits[-1]

    def due(self) -> list[type[Event]]:
        """Return the events that have come after the last wait, and those that are due now."""
        happened, self._happened = self._happened, []
        return [type(event) for event in [*happened, *self.poll()]]


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
    assert world.wait() == pytest.approx(SILENCE)
    assert world.wait() == pytest.approx(30.0 - SILENCE)
    assert world.due() == [RequestFailed]


def test_a_request_that_is_not_answered_fails_when_its_time_is_over() -> None:
    world = World()
    world.bring_up(1)
    world.client.connect(set())
    world.selector.silent = True
    world.client.send(metadata(1))
    assert world.due() == []
    assert world.wait() == pytest.approx(SILENCE)
    assert world.wait() == 0.0, "a response may have arrived meanwhile"
    assert world.wait() == pytest.approx(30.0 - SILENCE)
    assert world.due() == [RequestFailed, NodeDown]


def test_a_connection_that_does_not_come_up_is_given_up_when_its_time_is_over() -> None:
    world = World()
    world.selector.hang = True
    world.client.connect({1})
    assert world.wait() == pytest.approx(SILENCE)
    assert world.wait() == pytest.approx(100.0 - SILENCE, rel=0.2)
    assert world.due() == [NodeDown]


def test_a_node_that_refused_is_connected_to_when_the_back_off_is_over() -> None:
    world = World()
    world.selector.refuse.add(PORT)
    world.client.connect({1})
    assert world.due() == [NodeDown]
    assert world.wait() == pytest.approx(0.05, rel=0.2)
    world.poll()
    assert world.selector.connects == [PORT, PORT]


def test_a_connection_is_closed_when_it_was_idle_for_long_enough() -> None:
    world = World()
    world.bring_up(1)
    world.client.connect(set())
    assert world.wait() == pytest.approx(540.0)
    assert world.due() == [NodeDown]
