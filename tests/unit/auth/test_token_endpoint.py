"""Requests to token endpoints, and the meaning of their responses."""

from __future__ import annotations

import base64
import json

import pytest

from spark_kafka_sink.auth.token_endpoint import (
    basic_authorization,
    by_client_assertion,
    by_jwt_bearer,
    by_secret,
    secrets_in,
    token_of_answer,
)
from spark_kafka_sink.auth.token_renewal import TokenException


def body(**members: object) -> bytes:
    """Return an answer's body."""
    return json.dumps(members).encode()


def test_a_client_with_a_secret_asks_as_the_java_client_does() -> None:
    assert by_secret(None) == {"grant_type": "client_credentials"}
    assert by_secret("a b") == {"grant_type": "client_credentials", "scope": "a b"}
    # This pair has the two letters in which base64 for URLs differs, which Java once used.
    header = basic_authorization("SE99agmnEPvjd4SCbVRzJw", "?>?~~\xff", None)
    assert header == "Basic " + base64.b64encode(b"SE99agmnEPvjd4SCbVRzJw:?>?~~\xc3\xbf").decode()
    assert "/" in header.removeprefix("Basic ") or "+" in header


def test_names_and_secrets_are_encoded_where_that_is_asked_for() -> None:
    header = basic_authorization("a", "b", lambda text: f"<{text}>")
    assert base64.b64decode(header.removeprefix("Basic ")) == b"<a>:<b>"


def test_a_user_without_a_password_is_a_secret() -> None:
    def shown(user: str, password: str) -> bool:
        return user not in secrets_in({"Authorization": basic_authorization(user, password, None)})

    assert shown("alice", "s3cret")
    assert not shown("t0ken", "")


def test_a_client_with_an_assertion_asks_as_the_java_client_does() -> None:
    kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    assert by_client_assertion("a.b.c", None, None) == {
        "grant_type": "client_credentials",
        "client_assertion_type": kind,
        "client_assertion": "a.b.c",
    }
    form = by_client_assertion("a.b.c", "id", "s")
    assert (form["client_id"], form["scope"]) == ("id", "s")
    assert by_jwt_bearer("a.b.c", "s") == {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": "a.b.c",
        "scope": "s",
    }


@pytest.mark.parametrize(
    ("answer", "expires_at"),
    [
        (body(access_token="abc", expires_in=60), 160.0),
        (body(access_token="abc", expires_in="60"), 160.0),
        (body(access_token="abc", expires_in=1e300), None),
        (body(access_token="abc", expires_in=True), None),
        (body(access_token="abc", expires_in=[]), None),
        (body(access_token="abc"), None),
        (body(id_token="abc"), None),
        (body(id_token="x!", access_token="abc"), None),
    ],
)
def test_a_token_is_taken_with_its_end(answer: bytes, expires_at: float | None) -> None:
    token = token_of_answer(200, answer, 100.0, extensions={"a": "b"})
    assert (token.value, token.expires_at, token.extensions) == ("abc", expires_at, {"a": "b"})


@pytest.mark.parametrize(
    ("status", "is_final"),
    [
        (302, True), (400, True), (401, True), (403, True), (404, True), (408, False),
        (412, False), (425, False), (429, False), (500, False), (501, True), (502, False),
        (503, False), (504, False), (505, True), (100, True),
    ],
)  # fmt: skip
def test_which_refusals_are_tried_again(status: int, *, is_final: bool) -> None:
    with pytest.raises(TokenException, match=f"it answered {status}") as caught:
        token_of_answer(status, b"", 0.0, retry_after_s=7.0)
    assert caught.value.is_final is is_final
    assert caught.value.retry_after_s == (None if is_final else 7.0)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_has_advice(status: int) -> None:
    with pytest.raises(TokenException) as caught:
        token_of_answer(status, b"", 0.0)
    advice = "set the URL of the token endpoint to the one that it redirects to"
    assert str(caught.value) == f"it answered {status}; {advice}"


def test_of_a_refusal_only_the_two_members_are_shown() -> None:
    said = body(error="invalid_client", error_description="no\nsuch", secret="s3cret")
    with pytest.raises(TokenException) as caught:
        token_of_answer(401, said, 0.0)
    assert str(caught.value) == "it answered 401 (invalid_client: no such)"


@pytest.mark.parametrize(
    "answer", [b"", b"<html>Bearer a</html>", b"[]", b"null", b"\xff", b"[" * 100_000]
)
def test_an_answer_that_is_no_json_object_is_tried_again(answer: bytes) -> None:
    with pytest.raises(TokenException) as caught:
        token_of_answer(200, answer, 0.0, retry_after_s=7.0)
    assert str(caught.value) == "it answered 200 without a JSON object"
    assert not caught.value.is_final
    assert caught.value.retry_after_s == 7.0


@pytest.mark.parametrize(
    "answer",
    [
        body(), body(access_token=7), body(access_token=""), body(access_token="Bearer a"),
        body(access_token="a\nb"),
    ],
)  # fmt: skip
def test_what_is_no_token_is_an_error_that_shows_nothing_of_it(answer: bytes) -> None:
    with pytest.raises(TokenException) as caught:
        token_of_answer(200, answer, 0.0)
    assert caught.value.is_final
    assert "Bearer a" not in str(caught.value)
