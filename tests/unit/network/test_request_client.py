"""Requests wait for their node, and every one ends with a response or an error with a reason."""

from __future__ import annotations

from functools import partial
from random import Random
from traceback import walk_tb
from typing import cast

import pytest
from support.pure import client_world
from support.pure.awaited_logins import Logins
from support.pure.in_memory_selector import InMemorySelector
from support.pure.interrupts import interrupted, places_of

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.errors import (
    ApiException,
    IllegalStateException,
    NetworkException,
    SaslAuthenticationException,
    TimeoutException,
    UnsupportedVersionException,
)
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.client import NetworkClient
from spark_kafka_sink.network.node_state import NetworkConfig
from spark_kafka_sink.network.request_client import ConsumerNetworkClient, RequestFuture
from spark_kafka_sink.network.security import Security
from spark_kafka_sink.wire.messages import MetadataRequest, MetadataResponse

METADATA = 3
NODES = {1: Node(id=1, host="127.0.0.1", port=2001), 2: Node(id=2, host="127.0.0.1", port=2002)}


class World:
    """A client, its selector and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.connections = 0
        self.client = ConsumerNetworkClient(self._connect, lambda: self.now, 30.0)
        self.client.set_nodes(NODES)

    def _connect(self) -> NetworkClient:
        self.connections += 1
        self.selector = InMemorySelector()
        return NetworkClient(
            self.selector,  # type: ignore[arg-type]  # the same calls, without sockets
            NetworkConfig(
                client_id="client",
                request_timeout_s=30.0,
                retry_backoff_max_s=1.0,
                reconnect_backoff=ExponentialBackoff(0.05, 1.0),
                connection_setup_timeout=ExponentialBackoff(1000.0, 1000.0),
                connections_max_idle_s=540.0,
            ),
            [Node(id=-1, host="127.0.0.1", port=1001)],
            lambda: self.now,
            Random(1),
        )

    def pass_time(self, wait_s: float) -> None:
        """Let time pass."""
        self.now += wait_s

    def send(
        self, node_id: int | None, max_version: int | None = None, send_by: float = float("inf")
    ) -> RequestFuture:
        """Send a request."""
        return self.client.send(node_id, MetadataRequest(topics=[]), max_version, send_by=send_by)

    def poll(self, times: int = 5) -> None:
        """Poll often enough for a connection and an answer."""
        for _ in range(times):
            self.client.poll(0.0)

    def asked(self, port: int) -> int:
        """Return the number of Metadata requests that a broker got."""
        return self.selector.requests_to(port).count(METADATA)


def _error(future: RequestFuture) -> ApiException:
    assert future.is_done
    with pytest.raises(ApiException) as raised:
        _ = future.response
    return raised.value


def test_requests_wait_until_their_node_is_ready_and_are_answered_in_order() -> None:
    world = World()
    futures = [world.send(1), world.send(1), world.send(2)]
    assert (len(world.client._unsent[1]), len(world.client._unsent[2])) == (2, 1)
    world.poll(2)
    assert not any(future.is_done for future in futures), "sent before the node was ready"
    world.poll()
    assert all(isinstance(future.response, MetadataResponse) for future in futures)
    assert (world.asked(2001), world.asked(2002)) == (2, 1)
    assert not world.client._unsent.get(1)
    at_once = world.send(1)
    assert world.asked(2001) == 3, "the node is ready, yet the request waits for a poll"
    world.poll(1)
    assert at_once.is_done


def test_a_request_without_an_answer_yet_has_none() -> None:
    world = World()
    future = world.send(1)
    assert not future.is_done
    with pytest.raises(IllegalStateException, match="no response yet"):
        _ = future.response


def test_connections_are_made_only_for_requests_that_wait() -> None:
    world = World()
    world.poll()
    assert world.selector.connects == []
    world.send(2)
    world.poll()
    assert world.selector.connects == [2002]


def test_a_connection_that_broke_is_made_again_only_for_requests_that_wait() -> None:
    world = World()
    world.send(2)
    world.poll()
    world.selector.break_port(2002)
    world.poll()
    world.now += 5.0
    world.poll()
    assert world.selector.connects == [2002]
    world.send(2)
    world.poll()
    assert world.selector.connects == [2002, 2002]


def test_a_request_for_any_node_is_sent_to_one() -> None:
    world = World()
    world.send(1)
    world.poll()
    future = world.send(None)
    world.poll()
    assert isinstance(future.response, MetadataResponse)
    assert world.asked(2001) == 2


def test_what_waits_for_a_node_that_refuses_fails_and_a_later_request_tries_again() -> None:
    world = World()
    world.selector.refuse.add(2001)
    waiting = [world.send(1), world.send(1)]
    other = world.send(2)
    world.poll()
    for future in waiting:
        error = _error(future)
        assert isinstance(error, NetworkException)
        assert "Metadata to node 1 failed: NETWORK_EXCEPTION (13)" in str(error)
        assert "Connection refused" in str(error)
    assert other.is_done
    world.selector.refuse.clear()
    world.now += 1
    again = world.send(1)
    world.poll()
    assert isinstance(again.response, MetadataResponse)


def test_the_error_of_a_rejected_login_does_not_grow_with_each_request() -> None:
    logins, error = Logins(), SaslAuthenticationException("it answered 401")
    logins.is_there, logins.refusal = True, error
    network = client_world.World(security=cast("Security", logins)).client
    client = ConsumerNetworkClient(lambda: network, lambda: 0.0, 30.0)
    for _ in range(20):
        future = client.send(None, MetadataRequest(topics=[]))
        client.poll(0.0)
        assert _error(future) is error
        assert len(list(walk_tb(error.__traceback__))) < 10


def test_what_is_in_flight_fails_with_its_connection_and_the_next_waits_for_a_new_one() -> None:
    world = World()
    world.send(1)
    world.poll()
    world.selector.silent = True
    lost = world.send(1)
    world.selector.break_port(2001)
    world.poll(1)
    assert isinstance(_error(lost), NetworkException)
    world.selector.silent = False
    later = world.send(1)
    assert not later.is_done
    world.now += 1
    world.poll()
    assert isinstance(later.response, MetadataResponse)


def test_a_request_that_could_not_be_sent_expires_after_request_timeout_ms() -> None:
    world = World()
    world.selector.hang = True
    first = world.send(1)
    world.now = 20.0
    second = world.send(1)
    world.now = 29.9
    world.poll()
    assert not first.is_done
    world.now = 30.0
    world.poll(1)
    error = _error(first)
    assert isinstance(error, TimeoutException)
    assert "not ready within request.timeout.ms=30000" in str(error)
    assert not second.is_done
    world.now = 50.0
    world.poll(1)
    assert isinstance(_error(second), TimeoutException)
    assert not world.client._unsent.get(1), "what has expired waits no longer"


def test_a_request_is_not_sent_after_its_last_time_and_those_behind_it_are() -> None:
    world = World()
    world.selector.throttle_ms = 12_000
    world.send(1)
    world.poll()
    first, late, last = world.send(1), world.send(1, send_by=10.0), world.send(1)
    world.now = 9.9
    world.poll(1)
    assert not late.is_done
    world.now = 10.0
    world.poll(1)
    error = _error(late)
    assert isinstance(error, TimeoutException)
    assert "not ready within the last time at which the request may be sent" in str(error)
    world.now = 12.0
    world.poll()
    assert world.asked(2001) == 3, "the late request was sent, or another one was not"
    assert isinstance(first.response, MetadataResponse)
    assert isinstance(last.response, MetadataResponse)


def test_a_process_that_was_suspended_sends_no_request_that_has_expired() -> None:
    world = World()
    world.selector.throttle_ms = 1_000
    world.send(1)
    world.poll()
    late, expired = world.send(1, send_by=10.0), world.send(1)
    world.now = 40.0
    world.poll()
    assert world.asked(2001) == 1
    assert "the last time at which the request may be sent" in str(_error(late))
    assert "within request.timeout.ms=30000" in str(_error(expired))


def test_a_poll_waits_no_longer_than_a_request_may_wait_for_its_node() -> None:
    world = World()
    world.selector.hang = True
    world.selector.pass_time = world.pass_time
    world.send(1)
    world.client.poll(10_000.0)  # until users are warned that no broker answers
    world.client.poll(10_000.0)
    assert world.selector.waits == pytest.approx([5.0, 25.0])


def test_a_request_that_is_never_answered_times_out() -> None:
    world = World()
    world.send(1)
    world.poll()
    world.selector.silent = True
    future = world.send(1)
    world.poll(1)
    world.now += 30.0
    world.poll(1)
    assert isinstance(_error(future), TimeoutException)


def test_a_throttled_node_is_left_alone_until_the_throttle_ends() -> None:
    world = World()
    world.selector.throttle_ms = 5000
    world.send(1)
    world.poll()
    held_back = world.send(1)
    world.now = 4.9
    world.poll()
    assert world.asked(2001) == 1
    world.now = 5.0
    world.poll()
    assert world.asked(2001) == 2
    assert held_back.is_done


def test_requests_for_a_node_that_leaves_the_cluster_fail() -> None:
    world = World()
    world.selector.hang = True
    future = world.send(1)
    world.client.set_nodes({2: NODES[2]})
    assert "no longer lists this broker" in str(_error(future))
    world.client.poll(20.0)
    world.client.poll(20.0)
    # The owner of the failed request gets its turn at once.
    assert world.selector.waits[-2:] == [0.0, 20.0]


def test_a_version_that_the_broker_lacks_fails_the_request_alone() -> None:
    world = World()
    refused, fine = world.send(1, max_version=0), world.send(1)
    world.poll()
    assert isinstance(_error(refused), UnsupportedVersionException)
    assert isinstance(fine.response, MetadataResponse)


def _ask_both(world: World) -> list[RequestFuture]:
    futures = [world.send(1), world.send(2), world.send(None)]
    world.poll()
    return futures


def test_after_an_interrupt_at_any_point_requests_are_answered_and_earlier_ones_end() -> None:
    first = World()
    for moment, _ in enumerate(places_of(lambda: _ask_both(first)), 1):
        world = World()
        _ask_both(world)
        before = [world.send(1), world.send(2), world.send(None)]
        where = interrupted(partial(_ask_both, world), moment)
        after = _ask_both(world)
        world.poll()
        assert all(isinstance(future.response, MetadataResponse) for future in after), where
        for future in before:
            assert future.is_done, where
            if future.error is not None:
                assert "a call was interrupted" in str(future.error), where


def test_after_an_interrupt_between_two_calls_connections_are_kept() -> None:
    world = World()
    _ask_both(world)
    _ask_both(world)
    assert world.connections == 1
