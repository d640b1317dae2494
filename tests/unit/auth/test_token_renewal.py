"""The current token, and the time of the next fetch."""

from __future__ import annotations

from random import Random

import pytest

from spark_kafka_sink.auth.oauthbearer import OAuthBearerToken, RefreshWindow
from spark_kafka_sink.auth.token_renewal import UNUSED_S, TokenException, TokenRenewal
from spark_kafka_sink.backoff import ExponentialBackoff


class NoJitter(Random):
    """Chance that makes no pause shorter or longer."""

    def uniform(self, a: float, b: float) -> float:
        """Return the middle."""
        return (a + b) / 2

    def random(self) -> float:
        """Return the least number."""
        return 0.0


CHANCE = NoJitter(0)


def renewal() -> TokenRenewal:
    """Return one with the Java client's defaults."""
    return TokenRenewal(RefreshWindow(), ExponentialBackoff.of_ms(100, 10_000))


def token(expires_at: float | None, value: str = "t") -> OAuthBearerToken:
    """Return a token."""
    return OAuthBearerToken(value, expires_at, None)


def test_a_token_serves_until_it_ends_and_is_refreshed_before() -> None:
    made = renewal()
    assert made.serving(1000.0) is None
    assert made.fetch_at <= 1000.0
    first = token(4600.0)
    made.fetched(first, 1000.0, 0.0)
    assert made.fetch_at == 1000 + 0.8 * 3600
    assert made.serving(4599.0) is first
    assert made.serving(4600.0) is None


def test_while_a_refresh_fails_the_old_token_serves_until_it_ends() -> None:
    made = renewal()
    first = token(1060.0)
    made.fetched(first, 1000.0, 0.0)
    assert made.fetch_at == 1048.0
    pauses, tried_at, now = [], [], 1048.0
    while now < 1090:
        tried_at.append(now)
        made.failed(TokenException("down"), now, CHANCE)
        pauses.append(made.fetch_at - now)
        assert (made.serving(now) is first) == (now < 1060)
        now = made.fetch_at
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    # A long one does not end behind the token.
    assert any(1059 < at < 1060 for at in tried_at)
    assert max(pauses) == pytest.approx(10.0)
    second = token(9000.0)
    made.fetched(second, now, 0.0)
    assert made.serving(now) is second
    assert made.failure is None
    made.failed(TokenException("down"), now, CHANCE)
    assert made.fetch_at == pytest.approx(now + 0.1)


def test_there_is_a_pause_between_two_fetches_whatever_is_asked_for() -> None:
    made = TokenRenewal(RefreshWindow(), ExponentialBackoff.of_ms(0, 0))
    for is_final in (False, True):
        made.failed(TokenException("down", is_final=is_final), 1000.0, CHANCE)
        assert made.fetch_at == 1000.05
    made.fetched(token(1000.001), 1000.0, 0.0)
    assert made.fetch_at == 1000.05


def test_a_refusal_that_is_final_is_tried_again_after_the_longest_pause() -> None:
    made = renewal()
    made.failed(TokenException("wrong secret", is_final=True), 1000.0, CHANCE)
    assert made.fetch_at == 1010.0
    assert made.failure is not None
    assert made.failure.is_final


@pytest.mark.parametrize(
    ("asked_s", "pause_s"), [(None, 0.1), (0.0, 0.1), (7.5, 7.5), (1e9, 300.0), (-5.0, 0.1)]
)
def test_an_endpoint_is_left_alone_for_as_long_as_it_wants(
    asked_s: float | None, pause_s: float
) -> None:
    made = renewal()
    made.failed(TokenException("busy", retry_after_s=asked_s), 1000.0, CHANCE)
    assert made.fetch_at == pytest.approx(1000 + pause_s)


@pytest.mark.parametrize(("asked_s", "spread_s"), [(5.0, 1.0), (200.0, 20.0), (1e9, 30.0)])
def test_workers_that_an_endpoint_asks_to_wait_do_not_all_come_back_at_once(
    asked_s: float, spread_s: float
) -> None:
    pauses = []
    for worker in range(200):
        made = renewal()
        made.failed(TokenException("busy", retry_after_s=asked_s), 1000.0, Random(worker))
        pauses.append(made.fetch_at - 1000.0)
    least = min(asked_s, 300.0)
    assert least <= min(pauses) < least + 0.1 * spread_s
    assert least + 0.9 * spread_s < max(pauses) <= least + spread_s


def test_a_token_without_an_end_serves_for_five_minutes() -> None:
    made = renewal()
    made.fetched(token(None), 1000.0, 0.0)
    assert made.serving(1299.0) is not None
    assert made.serving(1300.0) is None
    assert made.fetch_at == 1240.0


def test_a_token_that_seems_to_have_ended_is_for_the_broker_to_judge() -> None:
    made = renewal()
    made.fetched(token(500.0), 1000.0, 0.0)
    assert made.serving(1059.0) is not None
    assert made.serving(1060.0) is None
    assert 1010 < made.fetch_at < 1060


def test_another_token_is_fetched_for_a_refused_one_but_not_at_once() -> None:
    made = renewal()
    first, second = token(9000.0), token(9000.0, "second")
    made.fetched(first, 1000.0, 0.0)
    due = made.fetch_at
    made.refused(first, 1059.0)
    assert made.fetch_at == due
    made.refused(token(9000.0, "another"), 1060.0)
    assert made.fetch_at == due
    made.refused(first, 1060.0)
    assert made.fetch_at == 1060.0
    made.fetched(second, 1061.0, 0.0)
    assert made.serving(1061.0) is second


def fetches_in_an_hour(min_period_s: float, *, accepted_each_s: int | None = None) -> list[int]:
    """Return when tokens of an hour are fetched if a broker refuses each one, once a second.

    accepted_each_s: how often another broker accepts the token, None for never.
    """
    made = TokenRenewal(
        RefreshWindow(min_period_s=min_period_s), ExponentialBackoff.of_ms(100, 10_000)
    )
    fetches = []
    for now in range(3600):
        current = made.serving(now)
        if current is not None:
            if accepted_each_s is not None and now % accepted_each_s == 0:
                made.accepted(current)
            made.refused(current, now)
        if now >= made.fetch_at:
            fetches.append(now)
            made.fetched(token(now + 7200.0, str(now)), now, 0.0)
    return fetches


@pytest.mark.parametrize(
    ("min_period_s", "fetches"),
    [
        (60, [0, 60, 180, 420, *range(720, 3600, 300)]),
        (0, [0, 10, 30, 70, 150, 310, *range(610, 3600, 300)]),
        (900, [0, 900, 1800, 2700]),
    ],
)
def test_while_new_tokens_are_refused_too_they_are_fetched_more_and_more_rarely(
    min_period_s: int, fetches: list[int]
) -> None:
    assert fetches_in_an_hour(min_period_s) == fetches


def test_a_login_that_succeeds_ends_the_long_pauses_but_not_the_shortest_one() -> None:
    assert fetches_in_an_hour(60, accepted_each_s=20) == [*range(0, 3600, 60)]


def test_a_token_that_one_broker_refuses_serves_until_another_one_is_fetched_or_it_ends() -> None:
    made = renewal()
    first = token(1100.0)
    made.fetched(first, 1000.0, 0.0)
    made.refused(first, 1061.0)
    assert made.fetch_at == 1061.0
    assert made.serving(1061.0) is first
    made.failed(TokenException("down"), 1062.0, CHANCE)
    made.refused(first, 1063.0)
    assert made.serving(1099.0) is first
    assert made.serving(1100.0) is None


def test_a_refused_token_does_not_shorten_a_pause_that_the_endpoint_wants() -> None:
    made = renewal()
    first = token(9000.0)
    made.fetched(first, 1000.0, 0.0)
    made.failed(TokenException("busy", retry_after_s=60.0), 1020.0, CHANCE)
    made.refused(first, 1030.0)
    assert made.fetch_at == 1080.0
    assert made.serving(1030.0) is first


def test_the_first_client_of_all_gets_no_token_that_was_refused() -> None:
    made = renewal()
    first, second = token(9000.0), token(9000.0, "second")
    made.attached(1000.0, 0.5, is_first=True)
    made.fetched(first, 1000.0, 0.0)
    made.unused(1000.0)
    made.attached(1000.0, 0.5, is_first=True)
    assert made.serving(1000.0) is first
    made.refused(first, 1000.0)
    made.attached(1001.0, 0.5, is_first=False)
    assert made.serving(1001.0) is first
    # The next one is fetched before the cause is mended, and nobody logs in with it.
    made.fetched(second, 1060.0, 0.0)
    made.unused(1060.0)
    made.attached(1061.0, 0.5, is_first=True)
    assert made.serving(1061.0) is None
    assert made.fetch_at <= 1061.0
    # Another is refused once the shortest pause is over.
    made.fetched(third := token(9000.0, "third"), 1061.0, 0.0)
    made.refused(third, 1121.0)
    assert made.fetch_at == 1121.0


def test_a_new_client_does_not_shorten_a_pause_that_the_endpoint_wants() -> None:
    made = renewal()
    first = token(9000.0)
    made.fetched(first, 1000.0, 0.0)
    made.refused(first, 1060.0)
    made.failed(TokenException("busy", retry_after_s=60.0), 1060.0, CHANCE)
    made.attached(1061.0, 0.5, is_first=True)
    assert made.serving(1061.0) is None
    assert made.fetch_at == 1120.0
    made.failed(TokenException("wrong", is_final=True), 1120.0, CHANCE)
    made.attached(1121.0, 0.5, is_first=False)
    assert (made.failure, made.fetch_at) == (None, 0.0)


def unused(*, failure: TokenException | None = None) -> tuple[TokenRenewal, OAuthBearerToken]:
    """Return one that has a token and no clients since 1100, and its token.

    failure: the error of a fetch in 1090.
    """
    made = renewal()
    made.attached(1000.0, 0.0, is_first=True)
    found = token(4600.0)
    made.fetched(found, 1000.0, 0.0)
    if failure is not None:
        made.failed(failure, 1090.0, CHANCE)
    made.unused(1100.0)
    # Others may tell it later.
    made.unused(1150.0)
    return made, found


def test_the_first_client_after_a_pause_gets_a_new_token() -> None:
    made, _ = unused()
    now = 1100.0 + UNUSED_S + 1
    made.attached(now, 0.0, is_first=True)
    assert made.fetch_at == now
    assert made.serving(now) is None
    # A second client waits for the same fetch.
    made.attached(now + 1, 0.0, is_first=False)
    assert made.fetch_at == now
    assert made.serving(now + 1) is None
    made.fetched(second := token(9000.0, "second"), now + 2, 0.0)
    assert made.serving(now + 2) is second
    assert made.fetch_at > now + 1000


def test_clients_a_short_time_apart_share_a_token() -> None:
    made, first = unused()
    due = made.fetch_at
    now = 1100.0
    for _ in range(10):
        now += UNUSED_S
        made.attached(now, 0.0, is_first=True)
        assert made.serving(now) is first
        made.attached(now, 0.0, is_first=False)
        made.unused(now)
    made.attached(now, 0.0, is_first=True)
    # As long as one is there, another one shares its token.
    made.attached(now + 1000, 0.0, is_first=False)
    assert made.serving(now + 1000) is first
    assert made.fetch_at == due


@pytest.mark.parametrize("is_final", [False, True])
def test_the_old_token_serves_if_none_can_be_fetched_after_a_pause(
    is_final: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    made, first = unused()
    made.attached(2000.0, 0.0, is_first=True)
    made.failed(TokenException("down", is_final=is_final), 2001.0, CHANCE)
    assert made.serving(2001.0) is first
    assert made.serving(4599.0) is first
    assert made.serving(4600.0) is None
    assert made.fetch_at == pytest.approx(2011.0 if is_final else 2001.1)


def test_the_old_token_serves_if_a_fetch_after_a_pause_takes_long() -> None:
    made, first = unused()
    made.attached(2000.0, 0.0, is_first=True)
    assert made.serving(2002.9) is None
    assert made.serving(2003.0) is first
    made, _ = unused()
    made.attached(4598.0, 0.0, is_first=True)
    assert made.serving(4601.0) is None


def test_a_client_after_a_pause_waits_for_a_fetch_that_is_due_and_for_no_later_one() -> None:
    made, first = unused(failure=TokenException("down"))
    made.attached(1200.0, 0.0, is_first=True)
    assert made.serving(1200.0) is None
    made, first = unused(failure=TokenException("busy", retry_after_s=300.0))
    made.attached(1200.0, 0.0, is_first=True)
    assert made.serving(1200.0) is first
    assert made.fetch_at == 1390.0


def test_the_fetches_for_the_first_clients_of_many_processes_are_spread() -> None:
    made = TokenRenewal(RefreshWindow(), ExponentialBackoff.of_ms(100, 10_000), 2.0)
    made.attached(1000.0, 0.25, is_first=True)
    assert made.fetch_at == 1000.5
    made.fetched(token(4600.0), 1001.0, 0.0)
    made.unused(1100.0)
    made.attached(1200.0, 0.75, is_first=True)
    assert made.fetch_at == 1201.5
    assert made.serving(1201.5) is None


def test_a_token_may_be_wanted_before_its_window_but_no_failed_fetch_is_hurried() -> None:
    made = renewal()
    first = token(1060.0)
    made.fetched(first, 1000.0, 0.0)
    made.fetch_now(token(1060.0, "another"), 1010.0)
    assert made.fetch_at == 1048.0
    made.fetch_now(first, 1010.0)
    assert made.fetch_at == 1010.0
    made.failed(TokenException("busy", retry_after_s=20.0), 1011.0, CHANCE)
    made.fetch_now(first, 1012.0)
    assert made.fetch_at == 1031.0
