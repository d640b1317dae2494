"""The one POST to a token endpoint: what it sends, and how hostile peers end it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.brokers.certificates import Authority
from support.brokers.token_server import Answer, TokenServer, new_key
from support.pure.traced_memory import traced_memory

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.network.http import (
    MOST_BYTES,
    HttpException,
    HttpLimits,
    _Deadline,
    check_url,
    is_remote,
    post,
    shown_url,
    without_user,
)
from spark_kafka_sink.network.tls import TlsSettings, client_context

LIMITS = HttpLimits(60.0, 60.0)
SHORT = HttpLimits(0.3, 0.3)
HEAD = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def peer(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a server that handles each connection as the test defines; yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        talk(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/token"
        # An accept that waits does not end with its socket.
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def says(*parts: bytes) -> Callable[[socket.socket], None]:
    """Return a peer that reads a request and says something."""

    def talk(connection: socket.socket) -> None:
        connection.recv(65_536)
        for part in parts:
            connection.sendall(part)

    return talk


def silent(connection: socket.socket) -> None:
    """Send nothing until the client is gone."""
    while connection.recv(65_536):
        pass


def half_a_handshake(connection: socket.socket) -> None:
    """Send the head of a TLS record, and nothing more until the client is gone."""
    connection.recv(65_536)
    connection.sendall(b"\x16\x03\x03")
    silent(connection)


def endlessly(first: bytes, part: bytes, pause_s: float = 0.0) -> Callable[[socket.socket], None]:
    """Return a peer that sends without end."""

    def talk(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(first)
        stopped = threading.Event()
        while not stopped.wait(pause_s):
            connection.sendall(part)

    return talk


def test_a_form_is_sent_and_the_answer_is_returned() -> None:
    with TokenServer("") as server:
        server.answer = lambda asked: Answer(418, {"got": asked.form}, {"Retry-After": "7"})
        form = {"a": "ü+&=", "b": "x y"}
        answer = post(server.url, form, {"Authorization": "Basic eA=="}, LIMITS)
    assert answer.status == 418
    assert json.loads(answer.body) == {"got": form}
    assert answer.retry_after_s == 7.0
    (asked,) = server.asked
    assert asked.headers["authorization"] == "Basic eA=="
    assert asked.headers["content-type"] == "application/x-www-form-urlencoded"
    assert asked.headers["accept"] == "application/json"
    assert "x y" not in repr(answer)


def test_a_program_that_prints_its_requests_prints_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Since Python 3.12, urllib reads it, too.
    monkeypatch.setattr(HTTPConnection, "debuglevel", 1)
    with TokenServer("") as server:
        server.answer = lambda _: Answer(200, "s3cret")
        headers = {"Authorization": "Basic s3cret"}
        assert post(server.url, {"assertion": "s3cret"}, headers, LIMITS).status == 200
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("soon", None), ("-5", None), ("", None),
        ("9" * 400, float("9" * 20)), ("1e5", None),
    ],
)  # fmt: skip
def test_a_date_may_say_when_to_come_again(value: str, expected: float | None) -> None:
    with TokenServer("") as server:
        server.answer = lambda asked: Answer(503, None, {"Retry-After": value})
        assert post(server.url, {}, {}, LIMITS).retry_after_s == expected


@pytest.mark.parametrize(
    "place", ["http://127.0.0.1:1/", "file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"]
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(status: int, place: str) -> None:
    with TokenServer("") as server:
        server.answer = lambda asked: Answer(status, None, {"Location": place})
        assert post(server.url, {}, {}, LIMITS).status == status
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    "talk",
    [
        pytest.param(endlessly(HEAD + b"\r\n", b"x", 0.01), id="body that drips"),
        pytest.param(endlessly(HEAD, b"x", 0.01), id="header that drips"),
        pytest.param(endlessly(b"", b"H", 0.01), id="status line that drips"),
        pytest.param(endlessly(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 C\r\n\r\n", 0.01),
                     id="continues for ever"),
        pytest.param(
            endlessly(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 0.01),
            id="chunks that drip",
        ),
        pytest.param(
            endlessly(HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n", 0.01),
            id="trailers for ever",
        ),
        pytest.param(silent, id="silence"),
    ],
)  # fmt: skip
def test_a_peer_that_takes_its_time_is_given_up_at_the_deadline(
    talk: Callable[[socket.socket], None],
) -> None:
    with peer(talk) as url, pytest.raises(HttpException) as caught:
        post(url, {}, {}, SHORT)
    assert str(caught.value) == "its response was not complete within 0.3 s"
    assert not caught.value.is_refused


@pytest.mark.parametrize(
    "talk",
    [
        pytest.param(endlessly(HEAD + b"\r\n", b"x" * 65_536), id="endless body"),
        pytest.param(says(HEAD + b"Content-Length: 99999999999\r\n\r\n", b"x" * (2 << 20)),
                     id="long body"),
        pytest.param(
            endlessly(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"ffff\r\n" + b"x" * 65_535
                      + b"\r\n"),
            id="endless chunks",
        ),
        pytest.param(
            endlessly(HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
                      b"1;" + b"e" * 60_000 + b"\r\nx\r\n"),
            id="chunks with long names",
        ),
        pytest.param(
            endlessly(b"HTTP/1.1 100 C\r\n\r\n", b"HTTP/1.1 100 C\r\n\r\n" * 1000),
            id="continues without a pause",
        ),
    ],
)  # fmt: skip
def test_an_answer_that_is_too_large_takes_no_memory(talk: Callable[[socket.socket], None]) -> None:
    with peer(talk) as url, traced_memory() as memory, pytest.raises(HttpException) as caught:
        post(url, {}, {}, LIMITS)
    assert str(caught.value) == f"its response is larger than {MOST_BYTES} bytes"
    assert caught.value.is_refused
    assert memory.peak_bytes < 8 * MOST_BYTES


@pytest.mark.parametrize("size", [MOST_BYTES + 1, 3 << 20])
def test_a_request_may_have_a_larger_limit(size: int) -> None:
    body = b"x" * size
    talk = says(HEAD + b"Content-Length: %d\r\n\r\n" % size, body)
    with peer(talk) as url:
        assert post(url, {}, {}, replace(LIMITS, most_bytes=3 << 20)).body == body
        with pytest.raises(HttpException, match=f"its response is larger than {size - 1} bytes"):
            post(url, {}, {}, replace(LIMITS, most_bytes=size - 1))


@pytest.mark.parametrize(
    "talk",
    [
        pytest.param(says(b"\x00\xff" * 1000 + b"\r\n\r\n"), id="garbage"),
        pytest.param(says(b"SSH-2.0-OpenSSH\r\n"), id="ssh"),
        pytest.param(endlessly(b"", b"x" * 65_536), id="endless garbage"),
        pytest.param(endlessly(HEAD + b"a: ", b"x" * 65_536), id="endless header"),
        pytest.param(endlessly(HEAD, b"a: b\r\n" * 1000), id="endless headers"),
        pytest.param(says(b"HTTP/1.1 secret\r\n\r\n"), id="status"),
        pytest.param(says(b"HTTP/1.1 99999999999999 x\r\n\r\n"), id="status too large"),
        pytest.param(lambda connection: None, id="reset"),
    ],
)
def test_what_is_not_http_is_one_error_that_shows_nothing_of_it(
    talk: Callable[[socket.socket], None],
) -> None:
    with peer(talk) as url, pytest.raises(HttpException) as caught:
        post(url, {}, {}, LIMITS)
    said = str(caught.value)
    # A reset may come as the end of the connection.
    kinds = ("its response is not HTTP", "it cannot be reached", "it closed the connection")
    assert said.startswith(kinds)
    assert "secret" not in said
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(HEAD + b"Content-Length: 500\r\n\r\nsecret", id="in the body"),
        pytest.param(HEAD + b"Content-Length: 500\r\n\r\n", id="before the body"),
        pytest.param(HEAD + b"Content-Le", id="in the headers"),
        pytest.param(HEAD + b"Content-Length: 5", id="in a length"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\n6\r\nsecr", id="in a chunk"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked\r\n\r\nsecret\r\n", id="in a size"),
        pytest.param(b"", id="before the response"),
    ],
)
def test_a_connection_that_ends_before_the_response_does_is_an_error_to_try_again(
    text: bytes,
) -> None:
    with peer(says(text)) as url, pytest.raises(HttpException) as caught:
        post(url, {}, {}, LIMITS)
    nothing, part = "it closed the connection without a response", "its response is incomplete"
    assert str(caught.value) == (part if text else nothing)
    assert not caught.value.is_refused


@pytest.mark.parametrize("status", [301, 401, 503])
def test_a_status_other_than_success_needs_neither_a_length_nor_a_body(status: int) -> None:
    with peer(says(b"HTTP/1.1 %d Moved\r\nLocation: /x\r\n\r\n" % status)) as url:
        assert post(url, {}, {}, LIMITS).status == status


def test_a_response_may_end_with_its_connection() -> None:
    with peer(says(HEAD + b"\r\nall of it")) as url:
        assert post(url, {}, {}, LIMITS).body == b"all of it"


def test_a_peer_that_cannot_be_reached_is_an_error_that_says_why() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
        with pytest.raises(HttpException, match="it cannot be reached: Connection refused"):
            post(url, {}, {}, LIMITS)
    with pytest.raises(HttpException, match="it cannot be reached: "):
        post("http://nobody.invalid/", {}, {}, LIMITS)


@pytest.mark.parametrize("host", ["a..b", f"{'x' * 64}.example"])
def test_a_name_that_no_host_can_have_is_an_error_that_no_retry_helps(host: str) -> None:
    with pytest.raises(
        HttpException, match=r"^its host name, or that of the proxy .* is not valid$"
    ) as caught:
        post(f"http://{host}:8081/", {}, {}, LIMITS)
    assert caught.value.is_refused


def test_a_handshake_of_tls_that_stalls_is_given_up() -> None:
    authority = Authority()
    context = client_context(TlsSettings(truststore=authority.root.certificate)).context
    with peer(half_a_handshake) as url, pytest.raises(HttpException) as caught:
        post(url.replace("http:", "https:"), {}, {}, SHORT, context)
    assert str(caught.value) == "no connection to it within 0.3 s"


def test_tls_is_checked_against_what_is_trusted(tmp_path: Path) -> None:
    authority, other = Authority(), Authority("other")
    store = tmp_path / "server.pem"
    leaf = authority.leaf("localhost")
    store.write_text(leaf.key + leaf.chain)
    wrong = tmp_path / "wrong.pem"
    named = authority.leaf("elsewhere", names=("elsewhere",))
    wrong.write_text(named.key + named.chain)
    trusted = client_context(TlsSettings(truststore=authority.root.certificate)).context
    with TokenServer(new_key(), tls=store) as server:
        server.answer = lambda asked: Answer(200, "here")
        assert post(server.url, {}, {}, LIMITS, trusted).body == b'"here"'
        untrusting = client_context(TlsSettings(truststore=other.root.certificate)).context
        with pytest.raises(HttpException, match="does not accept its certificate") as caught:
            post(server.url, {}, {}, LIMITS, untrusting)
        assert caught.value.is_refused
        assert len(server.asked) == 1
    with (
        TokenServer(new_key(), tls=wrong) as server,
        pytest.raises(HttpException, match="Hostname mismatch"),
    ):
        post(server.url, {}, {}, LIMITS, trusted)


def test_the_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with TokenServer("") as proxy:
        proxy.answer = lambda asked: Answer(200, asked.headers["host"])
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/token"))
        monkeypatch.delenv("no_proxy", raising=False)
        assert post("http://idp.invalid/token", {}, {}, LIMITS).body == b'"idp.invalid"'


def test_a_proxy_that_refuses_says_with_which_status(monkeypatch: pytest.MonkeyPatch) -> None:
    trusted = client_context(TlsSettings()).context
    with peer(says(b"HTTP/1.1 407 Say hunter2\r\n\r\n")) as url:
        monkeypatch.setenv("https_proxy", url.replace("//", "//user:hunter2@"))
        monkeypatch.delenv("no_proxy", raising=False)
        with pytest.raises(HttpException, match=r"proxy .* \(HTTP status 407\)$") as caught:
            post("https://idp.invalid/token", {}, {}, LIMITS, trusted)
    assert not caught.value.is_refused


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_proxy_is_not_asked_for_this_machine(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with TokenServer("") as proxy, TokenServer("") as server:
        proxy.answer = lambda asked: Answer(200, "of the proxy")
        server.answer = lambda asked: Answer(200, "of the server")
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/token"))
        monkeypatch.delenv("no_proxy", raising=False)
        url = f"http://{host}:{urlsplit(server.url).port}/token"
        assert post(url, {}, {}, LIMITS).body == b'"of the server"'


def test_each_address_of_a_host_has_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = ("192.0.2.1", 80)
    deadline = _Deadline(LIMITS)

    class Socket(socket.socket):
        def connect(self, address: Any) -> None:  # noqa: ANN401 - as in socket
            if address == silent:
                # As if the time of this address had passed.
                deadline._until -= self.gettimeout() or 0.0
                raise TimeoutError
            super().connect(address)

    with socket.create_server(("127.0.0.1", 0)) as server:
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", address)
            for address in (silent, silent, server.getsockname())
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        monkeypatch.setattr(socket, "socket", Socket)
        with deadline.connect(("host", 80)) as made:
            assert made.getpeername() == server.getsockname()


def test_a_slow_look_up_of_the_name_does_not_shorten_the_time_to_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deadline = _Deadline(LIMITS)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def look_up(*_: object, **__: object) -> list[object]:
            deadline._until -= 2 * LIMITS.connect_s  # as if it had taken that long
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", server.getsockname())]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        with deadline.connect(("host", 80)) as made:
            assert made.getpeername() == server.getsockname()


@pytest.mark.parametrize(
    "url",
    [
        "", "x", "ftp://h/x", "file:///x", "data:,x", "http:///x", "https://", "http://h:x/",
        "http://h:99999999/", "HTTP//h", "http://h/\n", "http://h/\xfc", "http://h/a b",
        "https://user:s3cret@h/", "https://user@h/", "http://[::1/",
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_without_a_word_of_it(url: str) -> None:
    with pytest.raises(ConfigException) as caught:
        check_url("the.option", url)
    assert str(caught.value).startswith("the.option")
    assert "s3cret" not in str(caught.value)


def test_what_can_be_asked_is_taken() -> None:
    for url in ("http://h/x", "https://h:8443/x?y=z", "https://[::1]/x", "HTTPS://h"):
        check_url("the.option", url)
    assert shown_url("https://h:8443/x?key=s3cret#y") == "https://h:8443/x"
    assert shown_url("https://u:12/s3cret@h/x") == "https://…"
    local = ("localhost", "127.9.9.9", "[::1]")
    assert not any(is_remote(f"http://{host}/") for host in local)
    assert all(is_remote(f"http://{host}/") for host in ("h", "10.0.0.1", "[fe80::1]"))


def test_a_user_is_taken_out_of_a_url() -> None:
    assert without_user("http://a%40b:c%3A@h:1/p") == ("http://h:1/p", "a@b:c:")
    assert without_user("http://a@b@[::1]/") == ("http://[::1]/", "a@b")
    assert without_user("https://h:1/p") == ("https://h:1/p", None)
