"""The network client's requests with a simulated selector: their nodes and responses."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.pure.client_world import CONFIG, NODES, World, metadata

from spark_kafka_sink import error_codes
from spark_kafka_sink.model import Node
from spark_kafka_sink.wire.exchange import (
    Answered,
    ClientRequest,
    NodeDown,
    NodeReady,
    NodeThrottled,
    RequestFailed,
)
from spark_kafka_sink.wire.messages import (
    API_VERSIONS,
    MetadataRequest,
    MetadataRequestTopic,
)
from spark_kafka_sink.wire.primitives import Buffer

NETWORK_EXCEPTION, REQUEST_TIMED_OUT = 13, 7


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
    assert "cannot be encoded" in failed.reason
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
    world.poll()
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
    assert "no response to Metadata within request.timeout.ms=30000" in failed[0].reason
    assert NodeDown(1, failed[0].reason) in events


def test_what_has_arrived_is_read_before_a_connection_is_given_up() -> None:
    world, answers = World(), list[bytes]()
    world.bring_up(1)
    world.selector.silent = True
    send = world.selector.send

    def send_and_prepare_answer(channel_id: int, buffers: Sequence[Buffer]) -> None:
        send(channel_id, buffers)
        frame = b"".join(bytes(buffer) for buffer in buffers)
        answers.append(world.selector.answer(*struct.unpack_from(">hhi", frame, 4)))

    world.selector.send = send_and_prepare_answer  # type: ignore[method-assign]
    requests = [metadata(1), metadata(1)]
    for request in requests:
        world.client.send(request)
    world.poll()
    world.now += 40  # a callback took so long
    arrived = b"".join(answers)
    for part in (arrived[:5], arrived[5:9], arrived[9:]):
        world.selector.say(NODES[1].port, part)
        world.poll()
    assert [e.request for e in world.events if isinstance(e, Answered)] == requests
    assert not any(isinstance(event, NodeDown) for event in world.events)
    world.client.send(metadata(1))
    world.poll()
    world.now += 40
    world.selector.say(NODES[1].port, answers[-1][:5])
    assert world.poll() == []
    assert any(isinstance(event, NodeDown) for event in world.poll())


def test_a_broker_that_answers_with_broken_frames_is_asked_in_version_0_on_a_new_connection() -> (
    None
):
    world = World()
    world.selector.silent = True
    world.client.set_nodes(NODES)
    world.client.connect({1})
    for _ in range(3):
        world.poll()
    world.selector.say(2001, struct.pack(">ii", 4, 77))
    world.poll()
    assert world.events == [NodeDown(1, "node 1 answered with correlation id 77, expected 0")]
    world.selector.silent = False
    world.now += 1.0
    for _ in range(4):
        world.poll()
    assert [v for key, v in world.selector.versions if key == API_VERSIONS.key] == [4, 0]
    assert isinstance(world.events[-1], NodeReady)


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


def test_a_request_to_a_node_that_is_gone_fails_at_once() -> None:
    world = World()
    request = metadata(1)
    world.client.send(request)
    (failed,) = world.poll()
    assert isinstance(failed, RequestFailed)
    assert (failed.request, failed.code) == (request, NETWORK_EXCEPTION)
    assert not failed.was_sent


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


# -- brokers that another client learned ---------------------------------------------------------


def test_brokers_that_were_heard_of_share_what_would_come_to_the_bootstrap_addresses() -> None:
    asked = Counter[int]()
    for seed in range(40):
        world = World(seed=seed)
        world.client.set_initial_nodes(NODES.values())
        world.client.send(metadata())
        for _ in range(4):
            world.poll()
        (answer,) = [e for e in world.events if isinstance(e, Answered)]
        assert len(world.selector.connects) == 1
        asked[answer.node_id] += 1
    assert asked.keys() == NODES.keys()
    assert min(asked.values()) > 10


def test_a_broker_that_was_heard_of_and_is_asked_is_written_to_over_that_connection() -> None:
    world = World()
    world.client.set_initial_nodes(NODES.values())
    world.client.send(metadata())
    for _ in range(4):
        world.poll()
    world.client.set_nodes(NODES)
    world.client.connect({1, 2})
    for _ in range(4):
        world.poll()
    assert sorted(world.selector.connects) == [2001, 2002]
    assert not any(isinstance(e, NodeDown) for e in world.events)


@pytest.mark.parametrize(
    ("trouble", "brokers"), [("refused", 2), ("dropped", 2), ("broken", 2), ("silent", 1)]
)
def test_brokers_that_were_heard_of_and_cannot_be_reached_leave_time_for_the_bootstrap_addresses(
    trouble: str, brokers: int
) -> None:
    world = World()
    world.selector.refuse.update({2001, 2002, 2003} if trouble == "refused" else ())
    world.selector.hang = trouble == "dropped"
    world.selector.silent = trouble in ("silent", "broken")
    third = Node(id=3, host="127.0.0.1", port=2003)
    world.client.set_initial_nodes([*NODES.values(), third])
    world.client.send(metadata())
    while {1001, 1002}.isdisjoint(world.selector.connects) and world.now < 35:
        if any(isinstance(event, RequestFailed) for event in world.poll()):
            world.client.send(metadata())
        if trouble == "broken":
            world.selector.break_all()
        world.now += 0.25
    assert world.now < 35
    assert len(world.selector.connects) == brokers + 1
    assert re.search(r"node \d \(127\.0\.0\.1:200\d\): ", world.client.last_errors())
    world.selector.break_all()
    world.selector.hang = world.selector.silent = False
    world.client.send(metadata())
    for _ in range(8):
        world.poll()
        world.now += 0.25
    assert {2001, 2002, 2003}.isdisjoint(world.selector.connects[brokers:])
    assert any(isinstance(e, Answered) and e.node_id < 0 for e in world.events)


def test_one_broker_that_was_heard_of_and_is_down_leaves_the_others() -> None:
    world = World()
    world.selector.refuse.add(2001)
    while 2001 not in world.selector.connects:
        world.client.set_initial_nodes(NODES.values())
        world.client.send(metadata())
        for _ in range(4):
            world.poll()
            world.now += 0.25
    assert {1001, 1002}.isdisjoint(world.selector.connects)
    assert any(isinstance(e, Answered) and e.node_id == 2 for e in world.events)


def test_brokers_that_the_cluster_has_named_itself_are_not_forgotten_for_one() -> None:
    world = World()
    world.client.set_initial_nodes(NODES.values())
    world.bring_up(1, 2)
    world.selector.break_port(2001)
    world.poll()
    world.now += 2
    for _ in range(4):
        world.poll()
    assert sorted(world.selector.connects) == [2001, 2001, 2002]


# -- pauses --------------------------------------------------------------------------------------


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
    assert "in the middle of a response" in failed.reason
    assert down == NodeDown(1, "Connection reset by peer in the middle of a response")
