"""OAUTHBEARER: the exchange and its refusals, what tokens say, and the Java client's renewals."""

from __future__ import annotations

import base64
import json
import traceback
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.jvm import run_java

from spark_kafka_sink.auth.oauthbearer import (
    OAuthBearerExchange,
    OAuthBearerToken,
    RefreshWindow,
    bearer_token,
    checked_extensions,
    ends_with_token,
    jwt_claims,
    refresh_at,
    subject,
    token_facts,
)
from spark_kafka_sink.errors import ConfigException, SaslAuthenticationException

NOW = 1_700_000_000.0
REFUSAL = b'{"status":"invalid_token"}'


def jwt(claims: object) -> str:
    """Return a JWT with the signature algorithm none."""
    parts = (json.dumps(each).encode() for each in ({"alg": "none"}, claims))
    return ".".join(
        [*(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts), "c2c"]
    )


def test_the_token_is_sent_and_an_empty_answer_takes_it() -> None:
    exchange = OAuthBearerExchange(OAuthBearerToken("abc.d=="))
    assert exchange.mechanism == "OAUTHBEARER"
    assert exchange.first() == b"n,,\x01auth=Bearer abc.d==\x01\x01"
    assert not exchange.is_complete
    assert exchange.step(b"") is None
    assert exchange.is_complete


def test_extensions_are_sent_behind_the_token() -> None:
    given = {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"}
    exchange = OAuthBearerExchange(bearer_token("abc", NOW, extensions=given))
    assert exchange.first() == (
        b"n,,\x01auth=Bearer abc\x01logicalCluster=lkc-1\x01identityPoolId=pool-2\x01\x01"
    )


def test_a_refusal_is_acknowledged_before_it_is_an_error() -> None:
    token = jwt({"sub": "alice", "aud": ["kafka"], "exp": NOW, "secret": "hush"})
    exchange = OAuthBearerExchange(bearer_token(token, NOW))
    assert exchange.step(REFUSAL) == b"\x01"
    assert not exchange.is_complete
    with pytest.raises(SaslAuthenticationException) as caught:
        exchange.step(REFUSAL)
    assert str(caught.value) == (
        "the login by OAUTHBEARER failed: the broker says: invalid_token; the token has "
        'sub "alice", aud ["kafka"], exp 2023-11-14T22:13:20+00:00'
    )


@pytest.mark.parametrize("second", [b"", b"x", REFUSAL])
def test_a_broker_that_goes_on_ends_the_login(second: bytes) -> None:
    for first in (b"", REFUSAL):
        exchange = OAuthBearerExchange(OAuthBearerToken("hush"))
        exchange.step(first)
        with pytest.raises(SaslAuthenticationException, match="the token is not a JWT") as caught:
            exchange.step(second)
        assert "hush" not in str(caught.value)


@given(st.binary(min_size=1))
def test_any_refusal_is_told_in_a_short_line(answer: bytes) -> None:
    exchange = OAuthBearerExchange(OAuthBearerToken("t"))
    assert exchange.step(answer) == b"\x01"
    with pytest.raises(SaslAuthenticationException) as caught:
        exchange.step(b"")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "value",
    ["", " hush", "hush\n", "Bearer hush", '"hush"', "hush\x01user=eve", "hush\u00e4", "=h"],
)
def test_what_is_no_token_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(
        SaslAuthenticationException, match="has invalid characters or is empty"
    ) as caught:
        bearer_token(value, NOW)
    assert "hush" not in "".join(traceback.format_exception(caught.value))


def test_a_token_is_not_shown() -> None:
    token = bearer_token("hush", NOW, extensions={"pool": "quiet"})
    for shown in (repr(token), str(token), f"{token}", repr(OAuthBearerExchange(token))):
        assert "hush" not in shown
        assert "quiet" not in shown


@pytest.mark.parametrize("name", ["auth", "", "a1", "a b", "a\x01", "\u00e4"])
def test_a_name_of_an_extension_is_letters_and_not_auth(name: str) -> None:
    with pytest.raises(ConfigException, match="not the name of an OAUTHBEARER extension"):
        checked_extensions({name: "x"})


@pytest.mark.parametrize("value", ["", "hush\x01", "hush\x7f", "hush\u00e4"])
def test_the_value_of_an_extension_is_printable_and_not_shown(value: str) -> None:
    with pytest.raises(ConfigException, match="the extension 'pool' of OAUTHBEARER") as caught:
        checked_extensions({"pool": value})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("claims", "expires_at"),
    [
        ({"exp": 1_700_000_300}, 1_700_000_300),
        ({"exp": 1_700_000_300.5}, 1_700_000_300.5),
        ({"exp": "1700000300"}, NOW + 60),
        ({"exp": True}, NOW + 60),
        ({"exp": None}, NOW + 60),
        ({"exp": 10**400}, NOW + 60),
        ({"exp": float("inf")}, NOW + 60),
        ({}, NOW + 60),
        ([5], NOW + 60),
    ],
)
def test_a_jwt_s_own_expiry_counts_before_the_endpoint_s(claims: object, expires_at: float) -> None:
    assert bearer_token(jwt(claims), NOW, expires_in=60).expires_at == expires_at


def test_of_an_opaque_token_only_the_endpoint_knows_the_expiry() -> None:
    assert bearer_token("opaque", NOW, expires_in=60).expires_at == NOW + 60
    assert bearer_token("opaque", NOW).expires_at is None
    assert bearer_token(jwt({"iat": 5}), NOW).issued_at == 5


@given(st.text("aA0-_.=", max_size=30))
def test_what_is_no_jwt_has_no_claims(token: str) -> None:
    assert jwt_claims(token) is None


def test_deep_json_is_no_jwt() -> None:
    deep = base64.urlsafe_b64encode(b"[" * 100_000).decode().rstrip("=")
    assert jwt_claims(f"a.{deep}.c") is None


def test_the_subject_of_a_jwt_is_the_principal() -> None:
    assert subject(jwt({"sub": "carol"})) == "carol"
    for strange in (jwt({}), jwt({"sub": 5}), jwt({"sub": "a\nb"}), "opaque"):
        assert subject(strange) == ""


def test_facts_of_strange_tokens_are_told_all_the_same() -> None:
    assert token_facts("opaque") == "the token is not a JWT"
    assert token_facts(jwt({})) == "the token has no sub, aud or exp"
    assert token_facts(jwt({"exp": 1e300})) == "the token has exp 1e+300"
    assert token_facts(jwt({"sub": "x" * 10_000})).endswith("x…")


def test_renewals_are_at_the_java_client_s_times(tmp_path: Path) -> None:
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    random = Random(seed)
    cases = []
    for _ in range(2_000):
        window = RefreshWindow(
            random.choice([0.5, 0.8, 1.0, random.uniform(0.5, 1)]),
            0.0,
            random.choice([0, 60, random.randint(0, 900)]),
            random.choice([0, 300, random.randint(0, 3600)]),
        )
        life = random.choice([8, 60, 360, random.randint(1, 86_400)])
        begin = random.choice([None, NOW, NOW - random.randint(0, life)])
        cases.append((window, begin, NOW + life - random.randint(0, life)))
    lines = tmp_path / "cases"
    lines.write_text(
        "\n".join(
            f"{window.factor} {window.min_period_s} {window.buffer_s} {NOW * 1000:.0f} "
            f"{'-' if begin is None else f'{begin * 1000:.0f}'} {end * 1000:.0f}"
            for window, begin, end in cases
        )
    )
    java = [int(line) / 1000 for line in run_java("RefreshTimes", lines).split()]
    ours = [
        refresh_at(window, now=NOW, issued_at=begin, expires_at=end, chance=0.7)
        for window, begin, end in cases
    ]
    assert ours == pytest.approx(java, rel=0, abs=0.002)


def test_jitter_makes_it_later_by_its_share_of_the_life() -> None:
    def at(chance: float) -> float:
        return refresh_at(
            RefreshWindow(), now=NOW, issued_at=NOW, expires_at=NOW + 10_000, chance=chance
        )

    assert [at(chance) - NOW for chance in (0.0, 0.5, 1.0)] == [8_000, 8_250, 8_500]


def test_a_token_that_is_over_is_renewed_at_once() -> None:
    assert (
        refresh_at(RefreshWindow(), now=NOW, issued_at=None, expires_at=NOW - 5, chance=0.5) == NOW
    )


@pytest.mark.parametrize(
    ("expires_at", "lifetime_s", "expected"),
    [
        (1008.0, 8.0, True),
        (1100.0, 98.0, True),  # the login took 2 s
        (1100.0, 95.0, False),  # a session that is nearly as long as the life of the token
        (4300.0, 3000.0, False),
        (1060.0, 5.0, False),
        (1060.0, 0.0, False),  # no limit
        (None, 85.0, False),
        (990.0, 1.0, False),  # by another clock
    ],
)
def test_a_session_that_ends_with_its_token_is_told_from_one_that_is_shorter(
    expires_at: float | None, lifetime_s: float, *, expected: bool
) -> None:
    token = OAuthBearerToken("t", expires_at)
    assert ends_with_token(token, 1000.0, lifetime_s) is expected


def test_a_rejection_does_not_show_the_token() -> None:
    exchange = OAuthBearerExchange(OAuthBearerToken("hunter2"))
    exchange.step(b'{"status":"no hunter2"}')
    with pytest.raises(SaslAuthenticationException, match=r"says: no \*\*\*;"):
        exchange.step(b"")
