"""SCRAM: the RFC's vectors, Kafka's own server as the judge, and brokers that break the rules."""

from __future__ import annotations

import base64
import hashlib
import hmac
import traceback
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.jvm import run_java

from spark_kafka_sink.auth.mechanisms import SCRAM_SHA_256, SCRAM_SHA_512
from spark_kafka_sink.auth.scram import (
    KEPT,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    KeyCache,
    ScramExchange,
    scram_keys,
)
from spark_kafka_sink.errors import ConfigException, SaslAuthenticationException

# RFC 7677, section 3; for SHA-512 with the same nonces and salt.
CLIENT_NONCE: Final = "rOprNGfwEbeRWgbNEkqO"
NONCE: Final = CLIENT_NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT: Final = "W22ZaJ0SNY7soEsUEjb6gQ=="
SERVER_FIRST: Final = f"r={NONCE},s={SALT},i=4096".encode()
VECTORS: Final = {
    SCRAM_SHA_256: (
        "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
    SCRAM_SHA_512: (
        "gMGXRcevScNtxZ6/8lQYpGtnsNAc3mGcmNomv+xnoOMw+3R2xNJdMNnzMlTN8PPC6wdp6dybEmDYXYTxwnYPJQ==",
        None,
    ),
}


def user_s(
    mechanism: str = SCRAM_SHA_256, password: str = "pencil", **more: object
) -> ScramExchange:
    """Return the login of the RFC's user."""
    return ScramExchange(mechanism, "user", password, nonce=CLIENT_NONCE, **more)  # type: ignore[arg-type] # of the call


@pytest.mark.parametrize("mechanism", VECTORS)
def test_the_rfc_s_vectors(mechanism: str) -> None:
    proof, signature = VECTORS[mechanism]
    exchange = user_s(mechanism)
    assert exchange.mechanism == mechanism
    assert exchange.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.step(SERVER_FIRST) == f"c=biws,r={NONCE},p={proof}".encode()
    assert not exchange.is_complete
    if signature is not None:
        assert exchange.step(f"v={signature}".encode()) is None
        assert exchange.is_complete


class _Login(NamedTuple):
    mechanism: str
    user: str
    password: str
    is_token: bool
    exchange: ScramExchange
    lines: str


def _login(random: Random) -> _Login:
    mechanism = random.choice([SCRAM_SHA_256, SCRAM_SHA_512])
    user = "".join(random.choices("ab=,\"\\ '%;\x01\x7f", k=random.randint(1, 6)))
    # Combining accents and ligatures must not be normalized.
    password = "".join(
        random.choices("aZ0 =,\"\\'\u00e9e\u0301\ufb03\u00df\U0001f600", k=random.randint(1, 9))
    )
    is_token = random.random() < 0.3
    nonce = base64.b64encode(random.randbytes(18)).decode()
    exchange = ScramExchange(mechanism, user, password, nonce=nonce, is_token=is_token)
    first = exchange.first()
    salt = base64.b64encode(random.randbytes(random.randint(1, 40))).decode()
    iterations = random.randint(MIN_ITERATIONS, MIN_ITERATIONS + 50)
    answer = f"r={nonce}{random.randrange(10**9)},s={salt},i={iterations}".encode()
    last = exchange.step(answer)
    assert last is not None
    hexes = (each.hex() for each in (password.encode(), first, answer, last))
    return _Login(mechanism, user, password, is_token, exchange, " ".join((mechanism, *hexes)))


def test_kafka_s_own_server_takes_every_login(tmp_path: Path) -> None:
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    random = Random(seed)
    logins = [_login(random) for _ in range(100)]
    lines = tmp_path / "logins"
    lines.write_text("\n".join(login.lines for login in logins))
    for login, line in zip(logins, run_java("CheckScram", lines).splitlines(), strict=True):
        user, is_token, is_right, signature = line.split()
        assert bytes.fromhex(user).decode() == login.user
        assert is_token == str(login.is_token).lower()
        assert is_right == "true"
        login.exchange.step(b"v=" + base64.b64encode(bytes.fromhex(signature)))
        assert login.exchange.is_complete


def test_tokenauth_is_said_of_tokens_only() -> None:
    assert user_s(is_token=True).first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO,tokenauth=true"
    assert b"tokenauth" not in user_s().first()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"r=another,s=QQ==,i=4096", "nonce does not begin with the client's nonce"),
        (
            f"r={NONCE},s={SALT},i=4095".encode(),
            "asks for 4095 iterations: expected 4096 to 1000000",
        ),
        (f"r={NONCE},s={SALT},i=1000001".encode(), "asks for 1000001 iterations"),
        (f"r={NONCE},s={SALT},i={'9' * 100_000}".encode(), "asks for 999"),
        (f"r={NONCE},s={SALT},i=0".encode(), "not a SCRAM message"),
        (f"r={NONCE},s={SALT},i=-4096".encode(), "not a SCRAM message"),
        (f"r={NONCE},s={SALT},i=4096x".encode(), "not a SCRAM message"),
        (f"r={NONCE},s=Q,i=4096".encode(), "salt is not base64"),
        (f"r={NONCE},s=,i=4096".encode(), "not a SCRAM message"),
        (f"m=x,r={NONCE},s={SALT},i=4096".encode(), "an extension of SCRAM that does not exist"),
        (b"e=unknown-user", "the broker says: unknown-user"),
        (b"\xff", "is not UTF-8"),
        (b"", "not a SCRAM message"),
        (b"v=QQ==", "not a SCRAM message"),
    ],
)
def test_a_first_answer_that_breaks_the_rules_ends_the_login(answer: bytes, sentence: str) -> None:
    exchange = user_s()
    with pytest.raises(SaslAuthenticationException, match=sentence) as caught:
        exchange.step(answer)
    assert "the login of 'user' by SCRAM-SHA-256 failed" in str(caught.value)
    assert len(str(caught.value)) < 600
    assert not exchange.is_complete


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"e=invalid-proof,x=y", "the broker says: invalid-proof$"),
        (b"v=" + base64.b64encode(bytes(32)), "the broker's signature is wrong"),
        (b"v=" + base64.b64encode(bytes(31)), "the broker's signature is wrong"),
        (b"v=A", "signature is not base64"),
        (b"", "last message is not a SCRAM message"),
        (SERVER_FIRST, "last message is not a SCRAM message"),
    ],
)
def test_a_last_answer_that_proves_nothing_ends_the_login(answer: bytes, sentence: str) -> None:
    exchange = user_s()
    exchange.step(SERVER_FIRST)
    with pytest.raises(SaslAuthenticationException, match=sentence):
        exchange.step(answer)
    assert not exchange.is_complete


def test_nothing_may_come_behind_the_last_answer() -> None:
    exchange = user_s()
    exchange.step(SERVER_FIRST)
    last = f"v={VECTORS[SCRAM_SHA_256][1]},x=y".encode()
    exchange.step(last)
    with pytest.raises(
        SaslAuthenticationException, match="sent another message after its final SCRAM message"
    ):
        exchange.step(last)


def test_a_million_iterations_are_taken() -> None:
    asked = []

    def keys(*given: object) -> object:
        asked.append(given)
        return scram_keys(SCRAM_SHA_256, "", "pencil", b"s", MIN_ITERATIONS)

    user_s(keys=keys).step(f"r={NONCE},s=QQ==,i={MAX_ITERATIONS},x=y".encode())
    assert asked == [(SCRAM_SHA_256, "user", "pencil", b"A", MAX_ITERATIONS)]


@given(st.binary(max_size=80))
def test_any_answer_ends_in_the_one_exception_or_in_a_message(answer: bytes) -> None:
    for exchange in (user_s(), user_s()):
        try:
            exchange.step(answer)
            exchange.step(answer)
        except SaslAuthenticationException:
            assert not exchange.is_complete


@pytest.mark.parametrize(
    ("user", "password", "sentence"),
    [
        ("", "hun7ret", "not empty"),
        ("alice", "", "not empty"),
        ("\u00e4lice", "hun7ret", "accept ASCII names only"),
        ("al\0ice", "hun7ret", "accept ASCII names only"),
        ("alice", "hun7\ud800ret", "the password has an invalid character"),
    ],
)
def test_what_brokers_do_not_take_is_refused(user: str, password: str, sentence: str) -> None:
    with pytest.raises(ConfigException, match=sentence) as caught:
        ScramExchange(SCRAM_SHA_256, user, password, nonce="n")
    assert "hun7" not in "".join(traceback.format_exception(caught.value))


def test_a_user_that_messages_name_otherwise_is_not_shown() -> None:
    exchange = user_s(name="${env:KAFKA_USER}")
    with pytest.raises(SaslAuthenticationException) as caught:
        exchange.step(b"e=unknown-user")
    assert "the login of '${env:KAFKA_USER}' by SCRAM-SHA-256 failed" in str(caught.value)
    assert "'user'" not in str(caught.value)


def test_no_secret_is_shown() -> None:
    keys = scram_keys(SCRAM_SHA_256, "user", "pencil", b"salt", MIN_ITERATIONS)
    exchange = user_s()
    assert repr(keys) == "ScramKeys()"
    assert "pencil" not in repr(exchange)


class _CountedHashing:
    """Counts how often passwords are hashed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._hash = hashlib.pbkdf2_hmac
        monkeypatch.setattr(hashlib, "pbkdf2_hmac", self)

    def __call__(self, name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        self.count += 1
        return self._hash(name, password, salt, iterations)


def test_a_hundred_brokers_with_one_salt_cost_one_hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    hashing, kept = _CountedHashing(monkeypatch), KeyCache()
    answers = {user_s(keys=kept).step(SERVER_FIRST) for _ in range(100)}
    assert hashing.count == 1
    assert answers == {user_s().step(SERVER_FIRST)}


@pytest.mark.parametrize(
    "other",
    [
        (SCRAM_SHA_512, "user", "pencil", b"salt", 4096),
        (SCRAM_SHA_256, "another", "pencil", b"salt", 4096),
        (SCRAM_SHA_256, "user", "pencils", b"salt", 4096),
        (SCRAM_SHA_256, "user", "pencil", b"salts", 4096),
        (SCRAM_SHA_256, "user", "pencil", b"salt", 4097),
    ],
)
def test_kept_keys_serve_nobody_else(
    other: tuple[str, str, str, bytes, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    hashing, kept = _CountedHashing(monkeypatch), KeyCache()
    kept(SCRAM_SHA_256, "user", "pencil", b"salt", 4096)
    assert kept(*other) == scram_keys(*other)
    assert hashing.count == 3


def test_a_wrong_password_is_not_saved_by_kept_keys() -> None:
    kept = KeyCache()
    right, wrong = user_s(keys=kept), user_s(password="pencils", keys=kept)
    assert right.step(SERVER_FIRST) != wrong.step(SERVER_FIRST)


def test_no_more_than_64_are_kept_and_none_after_forgetting() -> None:
    kept = KeyCache()
    for number in range(KEPT + 2):
        kept(SCRAM_SHA_256, "user", "pencil", bytes([number]), 1)
    assert len(kept) == KEPT == 64
    kept.forget()
    assert len(kept) == 0


def test_signatures_are_compared_in_the_same_time_whatever_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[bytes] = []

    def compare(ours: bytes, theirs: bytes) -> bool:
        compared.append(ours)
        return ours == theirs

    monkeypatch.setattr(hmac, "compare_digest", compare)
    exchange = user_s()
    exchange.step(SERVER_FIRST)
    exchange.step(f"v={VECTORS[SCRAM_SHA_256][1]}".encode())
    assert len(compared) == 1


def test_the_broker_s_error_does_not_show_the_password() -> None:
    exchange = ScramExchange(SCRAM_SHA_256, "user", "hunter2", nonce="n")
    with pytest.raises(SaslAuthenticationException, match=r"says: no \*\*\*$"):
        exchange.step(b"e=no hunter2")
