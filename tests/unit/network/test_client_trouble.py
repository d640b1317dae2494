"""The network client's messages on brokers that cannot be reached, or that have recovered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from socket import AF_INET

import pytest
from support.pure.client_world import (
    BOOTSTRAP,
    NODES,
    World,
    metadata,
    named_by_bootstrap,
    poll_until,
)

from spark_kafka_sink.logs import warn_once_now
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.selector import HostResolver
from spark_kafka_sink.wire.exchange import Answered, ClientRequest
from spark_kafka_sink.wire.fetch_messages import FetchRequest
from spark_kafka_sink.wire.messages import FETCH, METADATA


def test_a_broker_that_has_recovered_is_not_blamed() -> None:
    world = World()
    world.selector.refuse.add(2001)
    world.client.set_nodes(NODES)
    world.client.connect({1, 2})
    for _ in range(4):
        world.poll()
    assert world.client.last_errors() == "node 1 (127.0.0.1:2001): Connection refused"
    world.selector.refuse.clear()
    world.now += 1
    for _ in range(4):
        world.poll()
    world.client.send(metadata(1))
    for _ in range(2):
        world.poll()
    assert world.client.last_errors() == ""


def test_a_failure_of_long_ago_is_told_with_its_age() -> None:
    world = World()
    world.selector.refuse.add(2001)
    world.client.set_nodes(NODES)
    world.client.connect({1})
    world.poll()
    world.poll()
    world.client.connect(set())
    world.now += 200
    assert world.client.last_errors().endswith("Connection refused, 3 min ago")


def test_a_bootstrap_server_is_not_blamed_once_another_one_has_led_to_the_brokers() -> None:
    world = World(seed=3)
    world.selector.refuse.add(1001)
    world.client.send(metadata())
    for _ in range(6):
        world.poll()
    assert world.selector.connects[0] == 1001, "the seed has the first one tried first"
    assert world.client.last_errors() == "bootstrap (127.0.0.1:1001): Connection refused"
    world.client.set_nodes(NODES)
    assert world.client.last_errors() == ""


def test_a_connection_that_the_client_closes_is_no_failure_of_the_node() -> None:
    world = World()
    world.client.send(metadata())
    for _ in range(4):
        world.poll()
    world.client.set_nodes({})
    assert world.client.last_errors() == ""


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [
        ("hang", "no connection after 3 s"),
        (
            "silent",
            "it accepts connections but has sent nothing for 3 s; it may expect TLS, or may "
            "not be a Kafka broker",
        ),
    ],
)
def test_what_a_connection_that_is_being_made_waits_for_is_told(
    trouble: str, expected: str
) -> None:
    world = World()
    setattr(world.selector, trouble, True)
    world.client.set_nodes(NODES)
    world.client.connect({1})
    for _ in range(3):
        world.poll()
    assert world.client.last_errors() == "", "it may come up any moment"
    world.now += 3
    assert world.client.last_errors() == f"node 1 (127.0.0.1:2001): {expected}"


def test_of_many_brokers_in_trouble_ten_are_told() -> None:
    nodes = {number: Node(id=number, host=f"b{number}", port=9092) for number in range(25)}
    world = World(resolver=HostResolver(resolve=lambda host, port: [(AF_INET, (host, port))]))
    world.selector.refuse.update(f"b{number}" for number in nodes)
    world.client.set_nodes(nodes)
    world.client.connect(set(nodes))
    world.poll()
    expected = world.client.last_errors().split("; ")
    assert len(expected) == 11
    assert expected[-1] == "and 15 more"


# -- nobody answers ------------------------------------------------------------------------------


def test_who_is_tried_in_vain_is_told_once_in_a_process_after_five_seconds(
    warnings: Callable[[], list[str]],
) -> None:
    for _ in range(2):
        world = World()
        world.selector.refuse.add(1001)
        world.selector.silent = True
        world.client.send(metadata())
        before = warnings()
        while world.now < 4.9:
            world.poll()
            world.now += 0.1
        assert warnings() == before, "it is too early"
        while world.now < 29:
            world.poll()
            world.now += 0.1
    (warning,) = warnings()
    assert "no broker has answered for 5 s, still trying: " in warning
    assert "bootstrap (127.0.0.1:1002): it accepts connections but has sent nothing" in warning


@pytest.mark.parametrize("node_id", [None, 1], ids=["bootstrap", "broker"])
def test_a_broker_that_answers_api_versions_and_then_nothing_is_named_with_the_request(
    node_id: int | None, warnings: Callable[[], list[str]]
) -> None:
    world = World(bootstrap=BOOTSTRAP[:1])
    world.selector.unanswered.add(METADATA.key)
    if node_id is not None:
        world.bring_up(node_id)
    world.client.send(metadata(node_id))
    node = "bootstrap (127.0.0.1:1001)" if node_id is None else "node 1 (127.0.0.1:2001)"
    while world.now < 4.9:
        world.poll()
        world.now += 0.1
    assert warnings() == [], "it is too early"
    for _ in range(5):
        world.now += 0.1
        world.poll()
    assert warnings() == [
        f"no broker has answered for 5 s, still trying: {node}: no response to Metadata for 5 s"
    ]
    assert world.client.last_errors() == f"{node}: no response to Metadata for 5 s"


def test_the_client_wakes_up_when_the_warning_about_a_request_is_due() -> None:
    world = World()
    world.bring_up(1)
    world.selector.unanswered.add(METADATA.key)
    world.client.send(metadata(1))
    world.poll()
    world.poll_for(2)
    assert world.client._next_deadline(world.now) == pytest.approx(5.0)
    world.poll_for(4)
    for _ in range(2):
        world.poll()
    assert world.client._next_deadline(world.now) == pytest.approx(30.0)


def test_a_broker_that_answers_one_request_after_the_other_is_not_silent(
    warnings: Callable[[], list[str]],
) -> None:
    world = World()
    world.bring_up(1)
    world.selector.unanswered.add(METADATA.key)
    for _ in range(5):
        world.client.send(metadata(1))
    _, version = world.selector.versions[-1]
    for number in range(1, 6):
        world.poll()
        world.poll_for(3)
        world.poll()
        world.selector.say(2001, world.selector.answer(METADATA.key, version, number))
    assert warnings() == []


def test_a_broker_whose_response_comes_in_parts_is_not_silent(
    warnings: Callable[[], list[str]],
) -> None:
    world = World()
    world.bring_up(1)
    world.selector.unanswered.add(METADATA.key)
    world.client.send(metadata(1))
    _, version = world.selector.versions[-1]
    response = world.selector.answer(METADATA.key, version, 1)
    for part in (response[:1], response[1:2], response[2:3], response[3:]):
        world.poll_for(3)
        world.selector.say(2001, part)
    world.poll()
    assert warnings() == []
    assert any(isinstance(event, Answered) for event in world.events)


def test_a_broker_is_not_silent_while_a_request_is_written(
    warnings: Callable[[], list[str]],
) -> None:
    world = World()
    world.bring_up(1)
    world.selector.unanswered.add(METADATA.key)
    world.selector.is_slow = True
    world.client.send(metadata(1))
    for _ in range(7):
        world.poll_for(1)
    assert (warnings(), world.client.last_errors()) == ([], "")
    world.selector.write(2001)
    for _ in range(8):
        world.poll_for(1)
    (warning,) = warnings()
    assert warning.endswith("no response to Metadata for 6 s")


def test_the_time_that_a_broker_may_wait_before_it_answers_fetch_is_no_silence(
    warnings: Callable[[], list[str]],
) -> None:
    world = World()
    world.bring_up(1)
    world.selector.unanswered.add(FETCH.key)
    fetch = FetchRequest(max_wait_ms=8000, min_bytes=1, max_bytes=1, isolation_level=0, topics=[])
    world.client.send(ClientRequest(node_id=1, message=fetch))
    for _ in range(13):
        world.poll_for(1)
    assert (warnings(), world.client.last_errors()[-3:]) == ([], "4 s")
    for _ in range(3):
        world.poll_for(1)
    (warning,) = warnings()
    assert warning.endswith("no response to Fetch for 6 s")


@pytest.mark.parametrize("node_id", [None, 1], ids=["connecting", "in flight"])
def test_the_time_in_which_nobody_polls_is_no_silence_of_a_broker(
    node_id: int | None, warnings: Callable[[], list[str]]
) -> None:
    world = World()
    if node_id is not None:
        world.bring_up(node_id)
    world.selector.unanswered.add(METADATA.key)
    world.client.send(metadata(node_id))
    for _ in range(3):
        world.poll()
        world.now += 7
        world.poll()
    assert warnings() == []
    for _ in range(7):
        world.poll_for(1)
    assert len(warnings()) == 1


def test_a_broker_that_has_answered_while_the_thread_was_busy_is_not_silent(
    warnings: Callable[[], list[str]],
) -> None:
    world = World()
    world.bring_up(1)
    world.client.send(metadata(1))
    world.now += 10
    assert any(isinstance(event, Answered) for event in world.poll())
    assert warnings() == []


def test_a_handler_that_raises_for_the_warning_of_silence_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]
) -> None:
    def fail(*_: object) -> None:
        message = "of the handler"
        raise RuntimeError(message)

    monkeypatch.setattr(logging.getLogger("spark_kafka_sink.network.client"), "warning", fail)
    world = World()
    world.selector.silent = True
    world.client.send(metadata())
    for _ in range(2):
        world.poll_for(6)
    world.poll()
    assert world.client.poll(0.0) == []
    assert warnings() == []


def test_a_listener_that_hangs_up_on_every_first_request_is_told_after_five_seconds(
    warnings: Callable[[], list[str]],
) -> None:
    world = World()
    world.client.set_nodes(NODES)
    while world.now < 6:
        world.client.connect({1})
        for _ in range(3):
            world.poll()
        if world.client.in_flight_count():
            continue
        if world.client.connection_count():
            world.selector.silent = True
            world.client.send(metadata(1))
            world.selector.break_port(2001)
            world.poll()
            world.selector.silent = False
        world.now += 0.1
    at_once, warning = warnings()
    assert at_once.startswith("node 1 (127.0.0.1:2001): ")
    assert "; it may expect SASL: compare the port and security.protocol" in at_once
    assert "for 5 s, still trying: node 1 (127.0.0.1:2001): " in warning
    assert "it may expect SASL" in warning


def test_another_address_with_another_protocol_is_told_too(
    warnings: Callable[[], list[str]],
) -> None:
    for node in (1, 2, 1):
        world = World()
        world.client.set_nodes(NODES)
        world.client.connect({node})
        for _ in range(3):
            world.poll()
        world.selector.silent = True
        world.client.send(metadata(node))
        world.selector.break_port(NODES[node].port)
        world.poll()
    assert [each.partition(": ")[0] for each in warnings()] == [
        "node 1 (127.0.0.1:2001)",
        "node 2 (127.0.0.1:2002)",
    ]


def test_another_address_that_does_not_answer_is_told_too(
    warnings: Callable[[], list[str]],
) -> None:
    for node in (1, 2, 1):
        world, _ = named_by_bootstrap({node: NODES[node]})
        world.selector.refuse.add(NODES[node].port)
        poll_until(world, 20.0, node)
    first, second = warnings()
    assert "still trying: node 1 (127.0.0.1:2001): " in first
    assert "still trying: node 2 (127.0.0.1:2002): " in second


def test_the_warnings_of_a_process_about_addresses_are_limited(
    warnings: Callable[[], list[str]],
) -> None:
    for number in range(1000):
        warn_once_now(logging.getLogger("x"), "why", "protocol", [f"127.0.0.1:{number}"])
    assert len(warnings()) == 100


def test_the_protocol_is_not_suspected_once_a_broker_has_answered(
    warnings: Callable[[], list[str]],
) -> None:
    world = World()
    world.bring_up(1)
    world.client.send(metadata(1))
    for _ in range(2):
        world.poll()
    world.client.set_nodes(NODES)
    world.client.connect({2})
    for _ in range(3):
        world.poll()
    world.selector.silent = True
    world.client.send(metadata(2))
    world.selector.break_port(2002)
    world.poll()
    assert world.client.last_errors().startswith("node 2")
    assert warnings() == []


def test_nobody_is_warned_while_a_broker_answers_or_none_is_wanted(
    warnings: Callable[[], list[str]],
) -> None:
    world = World()
    world.bring_up(1)
    world.selector.refuse.add(2002)
    for node_ids in (set[int](), {2}):
        world.client.connect(node_ids)
        for _ in range(100):
            world.poll()
            world.now += 0.1
    assert warnings() == []


@pytest.mark.parametrize("others", [[], [2]], ids=["alone", "among others"])
def test_an_advertised_address_that_cannot_be_reached_is_told_after_five_seconds(
    others: list[int], warnings: Callable[[], list[str]]
) -> None:
    world, bootstrap = named_by_bootstrap({number: NODES[number] for number in (1, *others)})
    world.selector.refuse.add(2001)
    poll_until(world, 1.0, *others)
    poll_until(world, 5.9, 1)
    assert warnings() == [], "it is too early"
    poll_until(world, 20.0, 1)
    assert warnings() == [
        "no broker that is needed has answered for 5 s, still trying: node 1 (127.0.0.1:2001): "
        f"Connection refused; {bootstrap} returned this address: check the broker's "
        "advertised.listeners"
    ]


def test_a_broker_that_is_down_is_told_if_it_is_the_only_one(
    warnings: Callable[[], list[str]],
) -> None:
    world, _ = named_by_bootstrap({1: NODES[1]})
    poll_until(world, 1.0, 1)
    world.selector.refuse.add(2001)
    world.selector.break_port(2001)
    poll_until(world, 20.0, 1)
    (warning,) = warnings()
    assert warning == (
        "no broker that is needed has answered for 5 s, still trying: node 1 (127.0.0.1:2001): "
        "Connection refused"
    )


def test_a_broker_that_is_down_is_not_told_while_others_answer(
    warnings: Callable[[], list[str]],
) -> None:
    world, _ = named_by_bootstrap(NODES)
    poll_until(world, 1.0, 1, 2)
    world.selector.refuse.add(2002)
    world.selector.break_port(2002)
    poll_until(world, 20.0, 2)
    assert warnings() == []
