"""The network client warns that nobody answers, also if requests fail sooner and are repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from support.pure.client_world import (
    BOOTSTRAP,
    CONFIG,
    NODES,
    World,
    metadata,
    named_by_bootstrap,
    poll_until,
)

from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.wire.exchange import Answered, Event, NodeReady, RequestFailed
from spark_kafka_sink.wire.messages import METADATA

SHORT_TIMEOUTS_S = [6.0, 5.0, 4.0, 1.0, 0.2]


def world_of(request_timeout_s: float, retry_backoff_s: float = 1.0) -> World:
    """Return a world of one bootstrap address, whose requests fail after this time."""
    config = replace(
        CONFIG, request_timeout_s=request_timeout_s, retry_backoff_max_s=retry_backoff_s
    )
    return World(BOOTSTRAP[:1], config)


def has(events: list[Event], kind: type[Event]) -> bool:
    """Return whether there is an event of this kind."""
    return any(isinstance(event, kind) for event in events)


def ask_until(
    world: World,
    end: float,
    backoff: ExponentialBackoff,
    is_over: Callable[[], object] = lambda: False,
) -> None:
    """Send a request that any node may answer, and repeat it after each failure."""
    failures, again_at = 0, world.now
    while world.now < end and not is_over():
        if world.now >= again_at:
            again_at = float("inf")
            world.client.send(metadata())
        if has(world.poll(), RequestFailed):
            again_at = world.now + backoff.delay_s(failures, Random(1))
            failures += 1
        world.now += 0.05


@pytest.mark.parametrize("request_timeout_s", [30.0, *SHORT_TIMEOUTS_S])
@pytest.mark.parametrize("trouble", ["refuse", "hang", "silent"])
def test_nobody_answers_is_told_whatever_the_time_after_which_requests_fail(
    trouble: str, request_timeout_s: float, warnings: Callable[[], list[str]]
) -> None:
    world = world_of(request_timeout_s)
    if trouble == "refuse":
        world.selector.refuse.add(1001)
    else:
        setattr(world.selector, trouble, True)
    ask_until(world, 60.0, ExponentialBackoff(0.1, 1.0), is_over=warnings)
    assert 5.0 < world.now < 6.5
    ask_until(world, 60.0, ExponentialBackoff(0.1, 1.0))
    (warning,) = warnings()
    assert ", still trying: bootstrap (127.0.0.1:1001): " in warning
    assert warning.startswith(("no broker has answered for 5 s", "no broker has answered for 6 s"))


def test_nobody_answers_is_told_between_long_pauses(warnings: Callable[[], list[str]]) -> None:
    world = world_of(1.0, retry_backoff_s=20.0)
    world.selector.refuse.add(1001)
    ask_until(world, 60.0, ExponentialBackoff(20.0, 20.0))
    (warning,) = warnings()
    assert warning.startswith("no broker has answered for 21 s, still trying: bootstrap")


@pytest.mark.parametrize("request_timeout_s", SHORT_TIMEOUTS_S)
def test_a_broker_that_takes_requests_and_answers_none_is_told_though_nothing_else_waits(
    request_timeout_s: float, warnings: Callable[[], list[str]]
) -> None:
    world = world_of(request_timeout_s)
    world.client.set_nodes(NODES)
    world.selector.unanswered.add(METADATA.key)
    is_asked, again_at = False, 0.0
    while world.now < 20.0:
        world.client.connect(set() if is_asked or world.now < again_at else {1})
        events = world.poll()
        if has(events, NodeReady):
            is_asked = True
            world.client.send(metadata(1))
        if has(events, RequestFailed):
            is_asked, again_at = False, world.now + 1.0
        world.now += 0.1
    (warning,) = warnings()
    assert ", still trying: node 1 (127.0.0.1:2001): no response to Metadata" in warning


def test_who_needs_nothing_is_not_warned(warnings: Callable[[], list[str]]) -> None:
    world = world_of(1.0)
    world.selector.refuse.add(1001)
    for _ in range(3):
        ask_until(world, world.now + 4.0, ExponentialBackoff(9.0, 9.0))
        for _ in range(100):
            world.poll_for(1.0)
            assert world.client._next_deadline(world.now) > world.now, "it would not sleep"
    assert warnings() == []
    world.poll_for(3600.0)
    ask_until(world, world.now + 4.0, ExponentialBackoff(0.1, 1.0))
    assert warnings() == [], "the hour in which nothing was needed is no silence"
    ask_until(world, world.now + 4.0, ExponentialBackoff(0.1, 1.0))
    assert len(warnings()) == 1


def test_an_answer_ends_the_silence_though_the_connection_breaks_at_once(
    warnings: Callable[[], list[str]],
) -> None:
    world = world_of(1.0)
    for _ in range(5):
        world.selector.refuse.add(1001)
        ask_until(world, world.now + 4.0, ExponentialBackoff(0.1, 1.0))
        world.selector.refuse.clear()
        world.events.clear()
        world.now += 2.0
        world.client.send(metadata())
        while not has(world.events, NodeReady):
            world.poll()
        world.selector.break_port(1001)
        world.poll()
        assert has(world.events, Answered)
        assert world.client.connection_count() == 0
    assert warnings() == []


def test_an_advertised_address_is_told_though_it_is_needed_for_a_moment_at_a_time(
    warnings: Callable[[], list[str]],
) -> None:
    world, bootstrap = named_by_bootstrap({1: NODES[1]})
    world.selector.refuse.add(2001)
    for _ in range(15):
        poll_until(world, world.now + 0.2, 1)
        poll_until(world, world.now + 0.4)
    (warning,) = warnings()
    assert warning.startswith("no broker that is needed has answered for 5 s, still trying: node 1")
    assert f"{bootstrap} returned this address" in warning
