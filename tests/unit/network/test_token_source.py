"""Tokens that are fetched beside the network's thread, and who shares them."""

from __future__ import annotations

import gc
import logging
import queue
import time
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

import pytest
from support.programs.forked import in_child
from support.pure.interrupts import interrupted

from spark_kafka_sink.auth.oauthbearer import OAuthBearerToken, RefreshWindow
from spark_kafka_sink.auth.token_renewal import TokenException, TokenRenewal
from spark_kafka_sink.backoff import ExponentialBackoff
from spark_kafka_sink.errors import SaslAuthenticationException
from spark_kafka_sink.network import login
from spark_kafka_sink.network.login import SOURCES, TokenSource, TokenSources

Answer = OAuthBearerToken | BaseException
WAIT_S = 30


class Client:
    """A client that waits until it is woken."""

    def __init__(self) -> None:
        self._woken: queue.Queue[None] = queue.Queue()

    def wake(self) -> None:
        """Note it."""
        self._woken.put(None)

    def wait(self) -> None:
        """Wait for it."""
        self._woken.get(timeout=WAIT_S)

    @property
    def is_woken(self) -> bool:
        """Whether it was woken since."""
        return not self._woken.empty()


class Endpoint:
    """Returns the responses that a test queues, at the time of the test's clock.

    set_by: how far somebody has set the clock.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.set_by = 0.0
        self.fetches = 0
        self._answers: queue.Queue[Answer] = queue.Queue()
        self.source = TokenSource(
            "the endpoint",
            self.fetch,
            TokenRenewal(RefreshWindow(), ExponentialBackoff.of_ms(100, 10_000)),
            Random(1),
            lambda: self.now + self.set_by,
            steady=lambda: self.now,
        )

    def fetch(self) -> OAuthBearerToken:
        """Return or raise what was put in; waits for it."""
        self.fetches += 1
        answer = self._answers.get(timeout=WAIT_S)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def respond(self, answer: Answer) -> Answer:
        """Put something in."""
        self._answers.put(answer)
        return answer


def token(expires_at: float, value: str = "t") -> OAuthBearerToken:
    """Return a token."""
    return OAuthBearerToken(value, expires_at)


def thread_of(source: TokenSource) -> object | None:
    """Return what stands for the thread that fetches."""
    return source._thread


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    ends_at = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.001)


def test_a_client_waits_for_the_first_token_and_is_woken() -> None:
    endpoint, client = Endpoint(), Client()
    endpoint.source.attach(client)
    assert endpoint.source.token() is None
    assert not client.is_woken
    answer = endpoint.respond(token(1100.0))
    client.wait()
    assert endpoint.source.token() is answer
    assert endpoint.source.problem() == ""
    assert endpoint.fetches == 1


def test_a_token_is_refreshed_while_the_old_one_serves() -> None:
    endpoint, client = Endpoint(), Client()
    endpoint.source.attach(client)
    first = endpoint.respond(token(1100.0))
    client.wait()
    endpoint.now = 1090.0
    assert endpoint.source.token() is first
    # Nobody asks any more: the thread looks by itself.
    endpoint.source.attach(client)
    second = endpoint.respond(token(1190.0))
    client.wait()
    assert endpoint.source.token() is second


def test_while_a_refresh_fails_the_old_token_serves_until_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    endpoint, client = Endpoint(), Client()
    endpoint.source.attach(client)
    first = endpoint.respond(token(1100.0))
    client.wait()
    endpoint.now = 1090.0
    endpoint.respond(TokenException("it cannot be reached: down"))
    assert endpoint.source.token() is first
    endpoint.source.attach(client)
    client.wait()
    assert endpoint.source.token() is first
    assert endpoint.source.problem() == ""
    assert "down; another attempt follows in " in caplog.text
    assert "the last token is still used" in caplog.text
    endpoint.now = 1100.0
    assert endpoint.source.token() is None
    assert endpoint.source.problem() == "the endpoint returned no token: it cannot be reached: down"
    second = endpoint.respond(token(1200.0))
    client.wait()
    assert endpoint.source.token() is second


def test_a_refusal_that_is_final_is_raised_until_another_try() -> None:
    endpoint, client = Endpoint(), Client()
    endpoint.source.attach(client)
    endpoint.respond(TokenException("it answered 401", is_final=True))
    client.wait()
    with pytest.raises(SaslAuthenticationException, match="endpoint returned no token: it answ"):
        endpoint.source.token()
    endpoint.now = 1010.0
    assert endpoint.source.token() is None
    answer = endpoint.respond(token(1100.0))
    client.wait()
    assert endpoint.source.token() is answer


def test_another_client_tries_again_at_once() -> None:
    endpoint, client, other = Endpoint(), Client(), Client()
    endpoint.source.attach(client)
    endpoint.respond(TokenException("it answered 401", is_final=True))
    client.wait()
    endpoint.source.attach(other)
    assert endpoint.source.token() is None
    endpoint.respond(token(1100.0))
    other.wait()
    assert endpoint.source.token() is not None


@pytest.mark.parametrize("error", [ValueError("s3cret"), SystemExit(1), KeyboardInterrupt()])
def test_whatever_is_raised_is_a_failure_that_shows_nothing(error: BaseException) -> None:
    endpoint, client = Endpoint(), Client()
    endpoint.source.attach(client)
    endpoint.respond(error)
    client.wait()
    assert endpoint.source.token() is None
    assert endpoint.source.problem() == f"the endpoint returned no token: {type(error).__name__}"
    endpoint.now += 1
    endpoint.source.attach(client)
    endpoint.respond(token(1100.0))
    client.wait()
    assert endpoint.source.token() is not None


def test_the_thread_ends_with_the_last_client_and_the_token_stays() -> None:
    endpoint, client = Endpoint(), Client()
    endpoint.source.attach(client)
    first = endpoint.respond(token(1100.0))
    client.wait()
    assert thread_of(endpoint.source) is not None
    endpoint.source.detach(client)
    wait_until(lambda: thread_of(endpoint.source) is None)
    assert endpoint.source.token() is first
    assert thread_of(endpoint.source) is None
    other = Client()
    endpoint.source.attach(other)
    assert endpoint.source.token() is first
    endpoint.source.detach(other)
    assert endpoint.fetches == 1


def unused_endpoint() -> tuple[Endpoint, Answer]:
    """Return an endpoint whose only client is closed, and the token of this client."""
    endpoint, client = Endpoint(), Client()
    endpoint.source.attach(client)
    answer = endpoint.respond(token(9000.0, "first"))
    client.wait()
    endpoint.source.detach(client)
    return endpoint, answer


def test_after_a_minute_without_clients_the_next_ones_share_a_new_token() -> None:
    endpoint, first = unused_endpoint()
    clients = [Client() for _ in range(3)]
    endpoint.now += 60
    endpoint.source.attach(clients[0])
    assert endpoint.source.token() is first
    endpoint.source.detach(clients[0])
    endpoint.now += 61
    second = endpoint.respond(token(9000.0, "second"))
    for client in clients:
        endpoint.source.attach(client)
        assert served(endpoint.source, client) is second
    assert endpoint.fetches == 2


def test_a_client_that_nobody_closed_begins_the_minute_without_clients() -> None:
    endpoint, client = Endpoint(), Client()
    endpoint.source.attach(client)
    endpoint.respond(token(9000.0, "first"))
    client.wait()
    del client
    gc.collect()
    with endpoint.source._changed:
        # The thread looks for clients from time to time.
        endpoint.source._changed.notify_all()
    wait_until(lambda: thread_of(endpoint.source) is None)
    endpoint.now += 61
    other = Client()
    endpoint.source.attach(other)
    second = endpoint.respond(token(9000.0, "second"))
    assert served(endpoint.source, other) is second


def test_after_a_minute_without_clients_the_old_token_serves_if_the_endpoint_is_down() -> None:
    endpoint, first = unused_endpoint()
    endpoint.now += 61
    other = Client()
    endpoint.source.attach(other)
    assert endpoint.source.token() is None
    endpoint.respond(TokenException("it answered 401", is_final=True))
    other.wait()
    assert endpoint.source.token() is first


def test_a_client_that_nobody_closes_is_not_kept() -> None:
    endpoint, client = Endpoint(), Client()
    endpoint.source.attach(client)
    endpoint.respond(token(1100.0))
    client.wait()
    del client
    gc.collect()
    assert not endpoint.source.is_in_use


def test_another_token_is_fetched_for_a_refused_one_which_serves_meanwhile() -> None:
    endpoint, client = Endpoint(), Client()
    endpoint.source.attach(client)
    first = endpoint.respond(token(9000.0))
    client.wait()
    assert isinstance(first, OAuthBearerToken)
    endpoint.now += 60
    endpoint.source.refused(first)
    assert endpoint.source.token() is first
    second = endpoint.respond(token(9000.0, "u"))
    client.wait()
    assert endpoint.source.token() is second


def test_a_token_that_arrived_by_a_fast_clock_is_replaced_when_the_clock_is_right() -> None:
    endpoint, client = Endpoint(), Client()
    endpoint.set_by = 3600.0
    endpoint.source.attach(client)
    first = endpoint.respond(token(1300.0))
    client.wait()
    endpoint.set_by = 0.0
    endpoint.now += 59
    assert endpoint.source.token() is first
    endpoint.now += 1
    assert endpoint.source.token() is None
    second = endpoint.respond(token(1600.0))
    client.wait()
    # The lifetime of the second token is counted by the clock as it is now.
    endpoint.now = 1599.0
    assert endpoint.source.token() is second
    endpoint.now = 1600.0
    assert endpoint.source.token() is None


def test_a_rejected_token_is_replaced_though_the_clock_was_set_back() -> None:
    endpoint, client = Endpoint(), Client()
    endpoint.source.attach(client)
    first = endpoint.respond(token(9000.0))
    client.wait()
    assert isinstance(first, OAuthBearerToken)
    endpoint.set_by = -3600.0
    endpoint.now += 60
    endpoint.source.refused(first)
    second = endpoint.respond(token(9000.0))
    client.wait()
    assert endpoint.source.token() is second


def test_a_token_expires_while_the_machine_is_suspended() -> None:
    endpoint, client = Endpoint(), Client()
    endpoint.source.attach(client)
    endpoint.respond(token(1300.0))
    client.wait()
    # The steady clock has stopped.
    endpoint.set_by = 300.0
    assert endpoint.source.token() is None
    second = endpoint.respond(token(1600.0))
    client.wait()
    assert endpoint.source.token() is second


def refused_client(endpoint: Endpoint) -> OAuthBearerToken:
    """Let a client get a token that a broker rejects, and close the client."""
    client = Client()
    endpoint.source.attach(client)
    refused = endpoint.source.token()
    if refused is None:
        answer = endpoint.respond(token(9000.0, "refused"))
        client.wait()
        refused = endpoint.source.token()
        assert refused is answer
    assert refused is not None
    endpoint.source.refused(refused)
    endpoint.source.detach(client)
    return refused


def test_a_new_client_fetches_a_token_if_brokers_rejected_that_of_closed_clients() -> None:
    endpoint = Endpoint()
    for fetches in (1, 2, 3):
        refused_client(endpoint)
        assert endpoint.fetches == fetches
    other = Client()
    endpoint.source.attach(other)
    assert endpoint.source.token() is None
    right = endpoint.respond(token(9000.0, "right"))
    other.wait()
    assert endpoint.source.token() is right


def test_while_a_client_lives_another_one_shares_its_token_though_it_was_rejected() -> None:
    endpoint, client = Endpoint(), Client()
    endpoint.source.attach(client)
    answer = endpoint.respond(token(9000.0))
    client.wait()
    assert refused_client(endpoint) is answer
    assert endpoint.source.token() is answer
    assert endpoint.fetches == 1


# -- calls that do not return --------------------------------------------------------------------


class Stuck:
    """Calls that each return when a test says so, at the time of the test's clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.begun: queue.Queue[tuple[object, queue.Queue[Answer]]] = queue.Queue()
        self.source = TokenSource(
            "tokens.stuck",
            self.fetch,
            TokenRenewal(RefreshWindow(), ExponentialBackoff.of_ms(100, 10_000)),
            Random(1),
            lambda: self.now,
            steady=lambda: self.now,
        )

    def fetch(self) -> OAuthBearerToken:
        """Note the call, and return what a test puts in."""
        answers: queue.Queue[Answer] = queue.Queue()
        self.begun.put((thread_of(self.source), answers))
        answer = answers.get(timeout=WAIT_S)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def call(self) -> tuple[object, queue.Queue[Answer]]:
        """Wait for the next call; return its thread, and where its result goes."""
        return self.begun.get(timeout=WAIT_S)


def test_a_call_that_does_not_return_is_made_again_in_another_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck, client = Stuck(), Client()
    stuck.source.attach(client)
    _, late = stuck.call()
    stuck.now += 59
    assert stuck.source.token() is None
    assert stuck.begun.empty()
    stuck.now += 2
    assert stuck.source.token() is None
    assert stuck.source.problem() == "tokens.stuck returned no token: no result after 60 s"
    _, answers = stuck.call()
    assert "no result after 60 s; another thread retries" in caplog.text
    found = token(9000.0, "of the second")
    answers.put(found)
    client.wait()
    assert stuck.source.token() is found
    late.put(token(9000.0, "of the first"))
    wait_until(lambda: stuck.source._slow_threads == 0)
    assert stuck.source.token() is found


@pytest.mark.parametrize(
    ("result", "serves"),
    [(token(9000.0), True), (token(1001.0), False), (TokenException("down"), False)],
)
def test_a_late_token_serves_where_there_is_no_other(
    result: OAuthBearerToken | TokenException,
    serves: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    stuck, client = Stuck(), Client()
    stuck.source.attach(client)
    _, late = stuck.call()
    stuck.now += 61
    stuck.source.token()
    stuck.call()
    late.put(result)
    wait_until(lambda: stuck.source._slow_threads == 0)
    if serves:
        client.wait()
    assert stuck.source.token() is (result if serves else None)
    assert not client.is_woken


def test_calls_that_do_not_return_take_few_threads() -> None:
    stuck, client = Stuck(), Client()
    stuck.source.attach(client)
    calls = [stuck.call()]
    for _ in range(8):
        stuck.now += 61
        stuck.source.token()
        calls.append(stuck.call())
    stuck.now += 61
    stuck.source.token()
    last = thread_of(stuck.source)
    assert last is calls[-1][0], "no other thread is started"
    # Each that returns makes room for another one.
    _, answers = calls[0]
    answers.put(TokenException("at last"))
    wait_until(lambda: stuck.source._slow_threads == 7)
    stuck.source.token()
    assert stuck.call()[0] is not last


# -- interrupts ----------------------------------------------------------------------------------

FIRST = token(9000.0, "the first")
INTERRUPTED: dict[str, Callable[[TokenSource, Client], object]] = {
    "attach": lambda source, _: source.attach(Client()),
    "detach": lambda source, client: source.detach(client),
    "token": lambda source, _: source.token(),
    "problem": lambda source, _: source.problem(),
    "refresh": lambda source, _: source.refresh(FIRST),
    "refused": lambda source, _: source.refused(FIRST),
    "accepted": lambda source, _: source.accepted(FIRST),
}


def served(source: TokenSource, client: Client) -> OAuthBearerToken:
    """Return a token, once there is one."""
    while (found := source.token()) is None:
        client.wait()
    return found


def test_a_source_works_wherever_its_first_client_was_interrupted() -> None:
    for moment in count(1):
        endpoint, first, second = Endpoint(), Client(), Client()
        answer = endpoint.respond(token(9000.0))
        where = interrupted(lambda: endpoint.source.attach(first), moment)  # noqa: B023 - called at once
        assert endpoint.source._lock.acquire(timeout=WAIT_S), where
        endpoint.source._lock.release()
        endpoint.source.attach(second)
        assert served(endpoint.source, second) is answer, where
        if where is None:
            break


@pytest.mark.parametrize("call", INTERRUPTED)
def test_a_source_works_wherever_a_call_was_interrupted(call: str) -> None:
    for moment in count(1):
        endpoint, first, second = Endpoint(), Client(), Client()
        endpoint.respond(FIRST)
        endpoint.source.attach(first)
        assert served(endpoint.source, first) is FIRST
        endpoint.now += 100
        where = interrupted(lambda: INTERRUPTED[call](endpoint.source, first), moment)  # noqa: B023 - called at once
        assert endpoint.source._lock.acquire(timeout=WAIT_S), where
        endpoint.source._lock.release()
        endpoint.now = 9001.0
        answer = endpoint.respond(token(20_000.0))
        endpoint.source.attach(second)
        assert served(endpoint.source, second) is answer, where
        if where is None:
            break


def test_a_slow_thread_is_replaced_wherever_the_caller_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # An interrupt inside Python's logging may leave a handler locked.
    monkeypatch.setattr(logging.getLogger(login.__name__), "disabled", True)
    for moment in count(1):
        stuck, client = Stuck(), Client()
        stuck.source.attach(client)
        _, late = stuck.call()
        stuck.now += 61
        where = interrupted(stuck.source.token, moment)
        assert stuck.source._lock.acquire(timeout=WAIT_S), where
        stuck.source._lock.release()
        stuck.source.token()
        _, answers = stuck.call()
        found = token(9000.0)
        answers.put(found)
        assert served(stuck.source, client) is found, where
        late.put(TokenException("late"))
        wait_until(lambda: stuck.source._slow_threads == 0)  # noqa: B023 - called at once
        if where is None:
            break


def test_a_source_stays_the_one_of_its_key_wherever_a_call_was_interrupted() -> None:
    for moment in count(1):
        sources, numbers = TokenSources(), [0]
        first = sources.source("a", made(numbers))
        sources.source("b", made(numbers))
        where = interrupted(lambda: sources.source("a", made(numbers)), moment)  # noqa: B023 - called at once
        assert sources.source("a", made(numbers)) is first, where
        if where is None:
            break


# -- who shares ----------------------------------------------------------------------------------


def made(count: list[int]) -> Callable[[], Any]:
    """Return what makes sources and counts them."""

    def make() -> TokenSource:
        count.append(1)
        return Endpoint().source

    return make


def test_equal_configurations_share_a_source_and_others_do_not() -> None:
    sources, count = TokenSources(), list[int]()
    first = sources.source(("alice", "a"), made(count))
    assert sources.source(("alice", "a"), made(count)) is first
    assert sources.source(("alice", "b"), made(count)) is not first
    assert len(count) == 2


def test_few_sources_are_kept_and_those_in_use_always() -> None:
    sources, count = TokenSources(), list[int]()
    used = Endpoint()
    client = Client()
    used.source.attach(client)
    used.respond(token(9000.0))
    client.wait()
    sources.source("used", lambda: used.source)
    for number in range(200):
        sources.source(number, made(count))
    assert sources.source("used", made(count)) is used.source
    assert len(sources._sources) <= 64


def test_a_forked_child_has_no_token_of_its_parent() -> None:
    endpoint, client = Endpoint(), Client()
    key = object()
    source = SOURCES.source(key, lambda: endpoint.source)
    source.attach(client)
    endpoint.respond(token(9000.0))
    client.wait()

    def look() -> None:
        count: list[int] = []
        assert SOURCES.source(key, made(count)) is not source
        assert count == [1]

    with SOURCES._lock, endpoint.source._changed:
        assert in_child({"look": look}) == {"look": "nothing"}
    assert SOURCES.source(key, made([])) is source
