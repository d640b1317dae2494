"""PLAIN, and what all mechanisms of SASL share."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.auth.mechanisms import (
    MECHANISMS,
    PlainExchange,
    SaslExchange,
    checked_mechanism,
    printable,
    utf8,
)
from spark_kafka_sink.errors import ConfigException

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(WORDS, WORDS)
def test_plain_sends_the_user_and_the_password(user: str, password: str) -> None:
    exchange: SaslExchange = PlainExchange(user, password)
    assert exchange.first().split(b"\0") == [b"", user.encode(), password.encode()]
    assert not exchange.is_complete
    assert exchange.step(b"") is None
    assert exchange.is_complete


@pytest.mark.parametrize(
    ("user", "password", "sentence"),
    [
        ("", "hun7ret", "not empty"),
        ("alice", "", "not empty"),
        ("al\0ice", "hun7ret", "NUL"),
        ("alice", "hun7\0ret", "NUL"),
        ("alice", "hun7\ud800ret", "the password has an invalid character"),
        ("hun7\ud800ret", "p", "the user name has an invalid character"),
    ],
)
def test_what_plain_cannot_send_is_refused_and_not_shown(
    user: str, password: str, sentence: str
) -> None:
    with pytest.raises(ConfigException, match=sentence) as caught:
        PlainExchange(user, password)
    assert "hun7" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


def test_an_exchange_shows_no_secret() -> None:
    assert "secret" not in repr(PlainExchange("alice", "secret"))


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mechanism_is_known_by_its_name_and_told_in_the_wrong_case(name: str) -> None:
    assert checked_mechanism(name) == name
    with pytest.raises(ConfigException, match=f"write it {name}"):
        checked_mechanism(f"{name.lower()} ")


def test_an_unknown_mechanism_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigException, match="'CRAM-MD5': expected one of PLAIN, SCRAM-SHA-256"):
        checked_mechanism("CRAM-MD5")
    with pytest.raises(
        ConfigException, match=r"a reference such as \$\{env:M\} cannot be used here$"
    ):
        checked_mechanism("${env:M}")


def test_the_words_of_a_broker_are_one_short_line() -> None:
    assert printable("no\r\n\x1b[31msuch user") == "no   [31msuch user"
    assert printable("x" * 1000) == "x" * 200 + "…"


def test_text_becomes_utf8() -> None:
    assert utf8("\u00e9\U0001f600", "it") == "\u00e9\U0001f600".encode()


@pytest.mark.parametrize(
    ("text", "secrets", "shown"),
    [
        ("no hunter2", ["hunter2"], "no ***"),
        ("a\0hunter2", ["", "hunter", "hunter2"], "a ***"),
        ("no hun\nter2", ["hun\nter2"], "no ***"),
        ("x" * 195 + "hunter2", ["hunter2"], "x" * 195 + "***"),
        ("no principal p", ["p"], "no principal ***"),
    ],
)
def test_a_peer_s_text_is_shown_without_secrets(text: str, secrets: list[str], shown: str) -> None:
    assert printable(text, secrets) == shown
