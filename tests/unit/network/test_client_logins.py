"""Connections that wait for a login that is fetched: how long, and what is said meanwhile."""

from __future__ import annotations

from typing import cast

import pytest
from support.pure.awaited_logins import ENDPOINT, Logins
from support.pure.client_world import BOOTSTRAP, CONFIG, World, metadata

from spark_kafka_sink.auth.mechanisms import PlainExchange, SaslExchange
from spark_kafka_sink.errors import (
    SaslAuthenticationException,
    UnsupportedSaslMechanismException,
)
from spark_kafka_sink.network.sasl_authenticator import Login
from spark_kafka_sink.network.security import Security
from spark_kafka_sink.wire.exchange import Answered, NodeDown, RequestFailed


@pytest.fixture
def logins() -> Logins:
    """Logins that are being fetched."""
    return Logins()


@pytest.fixture
def world(logins: Logins) -> World:
    """A client of one bootstrap address."""
    return World(BOOTSTRAP[:1], CONFIG, security=cast("Security", logins))


def failures(world: World) -> tuple[float, float]:
    """Return how many first logins and how many re-authentications failed."""
    world.client._metrics.fold(world.now)
    registry = world.client._metrics._metrics
    found = {name.name: value for name, value in registry.measure(world.now).items()}
    return found["failed-authentication-total"], found["failed-reauthentication-total"]


def test_no_connection_is_made_before_there_is_a_login(world: World, logins: Logins) -> None:
    world.client.send(metadata())
    assert world.poll() == []
    assert world.selector.connects == []
    logins.is_there = True
    logins.problem = ""
    for _ in range(4):
        world.poll()
    assert any(isinstance(event, Answered) for event in world.events)


def test_a_client_that_waits_for_a_login_does_not_look_all_the_time(
    world: World, logins: Logins
) -> None:
    world.client.connect({-1})
    world.client.send(metadata())
    world.selector.pass_time = world.pass_time
    while len(world.selector.waits) < 9 and not world.client.poll(1000.0):
        pass
    # It looks every 2 s for a thread that is held up by another login, once more for the warning of
    # silence, and until the login has to be there (after 10 s, with a jitter).
    assert world.selector.waits[:4] == pytest.approx([2.0, 2.0, 1.0, 1.0])
    assert sum(world.selector.waits) == pytest.approx(10.0, abs=2.0)


def test_a_login_that_does_not_come_is_given_up_and_begun_again(
    world: World, logins: Logins
) -> None:
    world.client.send(metadata())
    assert world.poll() == []
    world.now = 12.1
    (down,) = world.poll()
    assert isinstance(down, NodeDown)
    assert down.reason == "no ticket or token within socket.connection.setup.timeout.ms"
    assert down.error is None
    assert logins.given_up == BOOTSTRAP[:1]
    assert down.reason in world.client.last_errors()
    logins.is_there = True
    world.now = 14.0
    for _ in range(4):
        world.poll()
    assert any(isinstance(event, Answered) for event in world.events)


def test_a_login_that_nobody_has_fetched_is_not_given_up(world: World, logins: Logins) -> None:
    world.client.connect({-1})
    assert world.poll() == []
    world.client.connect(set())
    logins.is_there = True
    world.now = 100.0
    assert world.poll() == []
    assert logins.given_up == []


def test_a_request_that_found_no_login_says_why(world: World, logins: Logins) -> None:
    world.client.send(metadata())
    world.poll()
    assert ENDPOINT in world.client.last_errors()
    world.now = 30.0
    (failed,) = [event for event in world.poll() if isinstance(event, RequestFailed)]
    assert ENDPOINT in failed.reason


def test_credentials_that_end_while_a_connection_is_made_are_waited_for(
    world: World, logins: Logins
) -> None:
    logins.is_there, logins.made = True, Login(lambda: None, "u")
    world.client.send(metadata())
    for _ in range(4):
        world.poll()
    (down,) = world.events
    assert isinstance(down, NodeDown)
    assert down.error is None
    assert "no credentials to log in with now" in down.reason
    logins.made = None
    world.now += 1.2
    for _ in range(4):
        world.poll()
    assert any(isinstance(event, Answered) for event in world.events)


def test_a_request_that_is_held_when_its_connection_breaks_fails_as_never_sent(
    world: World, logins: Logins
) -> None:
    logins.is_there, logins.made = True, Login(lambda: PlainExchange("u", "p"), "u")
    world.selector.session_lifetime_ms = 10_000
    world.client.send(metadata())
    for _ in range(6):
        world.poll()
    assert any(isinstance(event, Answered) for event in world.events)
    world.selector.silent = True
    early, held = metadata(-1), metadata(-1)
    world.client.send(early)
    world.now = 9.0
    world.client.send(held)
    # Only SaslHandshake follows the first request.
    assert world.selector.requests_to(BOOTSTRAP[0].port)[-2:] == [3, 17]
    world.selector.break_port(BOOTSTRAP[0].port)
    failed = [event for event in world.poll() if isinstance(event, RequestFailed)]
    assert [(event.request, event.was_sent) for event in failed] == [(early, True), (held, False)]
    assert [event.reason.startswith("not sent: ") for event in failed] == [False, True]


def test_a_login_that_renews_a_session_is_looked_for_every_two_seconds(
    world: World, logins: Logins
) -> None:
    given: list[SaslExchange | None] = [PlainExchange("u", "p")]
    logins.is_there, logins.made = True, Login(lambda: given.pop() if given else None, "u")
    world.selector.session_lifetime_ms = 10_000
    world.client.send(metadata())
    for _ in range(6):
        world.poll()
    world.now = 20.0
    world.client.send(metadata(-1))
    world.selector.waits.clear()
    world.selector.pass_time = world.pass_time
    for _ in range(3):
        world.client.poll(1000.0)
    assert world.selector.waits == pytest.approx([2.0, 2.0, 2.0])


def test_if_the_login_fails_after_the_session_s_end_requests_fail_as_never_sent(
    world: World, logins: Logins
) -> None:
    refusal = SaslAuthenticationException("the token endpoint answered 401")
    given: list[SaslExchange] = [PlainExchange("u", "p")]

    def exchange() -> SaslExchange:
        if not given:
            raise refusal
        return given.pop()

    logins.is_there, logins.made = True, Login(exchange, "u")
    world.selector.session_lifetime_ms = 10_000
    world.client.send(metadata())
    for _ in range(6):
        world.poll()
    assert any(isinstance(event, Answered) for event in world.events)
    before = world.selector.requests_to(BOOTSTRAP[0].port)
    world.now = 11.0
    held = metadata(-1)
    world.client.send(held)
    failed, down = world.poll()
    assert isinstance(down, NodeDown)
    assert down.error is refusal
    assert isinstance(failed, RequestFailed)
    assert (failed.request, failed.was_sent) == (held, False)
    assert failed.reason.startswith("not sent: ")
    assert world.selector.requests_to(BOOTSTRAP[0].port) == before
    assert failures(world) == (0, 1)


def test_a_refusal_of_the_endpoint_ends_everything_at_once(world: World, logins: Logins) -> None:
    logins.is_there, logins.refusal = True, SaslAuthenticationException("it answered 401")
    world.client.send(metadata())
    down, failed = world.poll()
    assert isinstance(down, NodeDown)
    assert isinstance(failed, RequestFailed)
    assert failed.error is logins.refusal
    assert failures(world) == (1, 0)
    world.poll()
    assert failures(world) == (1, 0)


def test_a_refusal_that_may_end_soon_is_tried_again_with_a_pause(
    world: World, logins: Logins
) -> None:
    logins.is_there, logins.may_be_accepted_later = True, True
    logins.refusal = SaslAuthenticationException("the token is not known")
    world.client.send(metadata())
    events = []
    for _ in range(20):
        events += world.poll()
        world.now += 1.2
    assert len(events) == 20
    assert all(isinstance(each, NodeDown) and each.error is logins.refusal for each in events)
    assert failures(world) == (20, 0)
    logins.refusal = None
    for _ in range(4):
        world.poll()
    assert any(isinstance(event, Answered) for event in world.events)


def test_a_refusal_ends_everything_once_the_token_is_not_new_any_more(
    world: World, logins: Logins
) -> None:
    logins.is_there, logins.may_be_accepted_later = True, True
    logins.refusal = SaslAuthenticationException("the token is not known")
    world.client.send(metadata())
    (down,) = world.poll()
    assert isinstance(down, NodeDown)
    logins.may_be_accepted_later = False
    world.now += 1.2
    _, failed = world.poll()
    assert isinstance(failed, RequestFailed)
    assert failed.error is logins.refusal


def test_no_other_error_is_tried_again_for_a_new_token(world: World, logins: Logins) -> None:
    logins.is_there, logins.may_be_accepted_later = True, True
    logins.refusal = UnsupportedSaslMechanismException("it offers PLAIN")
    world.client.send(metadata())
    _, failed = world.poll()
    assert isinstance(failed, RequestFailed)
    assert failed.error is logins.refusal


def test_nobody_is_woken_after_the_client_is_closed(world: World, logins: Logins) -> None:
    world.client.close()
    assert logins.is_closed
