"""The selector with TLS, over real loopback sockets, against servers of Python's own ssl."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.brokers.certificates import Authority, Certificate
from support.brokers.key_updates import KeyUpdatingServer
from support.brokers.tls_peers import served, server_context

from spark_kafka_sink.errors import SslAuthenticationException
from spark_kafka_sink.network.selector import (
    UNSET_BUFFER,
    Channel,
    Closed,
    Connected,
    PartlySent,
    Received,
    Secured,
    SelectorEvent,
    Sent,
    resolve,
)
from spark_kafka_sink.network.tls import TlsLayer, TlsSettings, client_context
from spark_kafka_sink.network.tls_selector import TlsSelector


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Return the authority that signs the certificates."""
    return Authority()


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    """The server's."""
    return authority.leaf("server")


@pytest.fixture
def selector() -> Iterator[TlsSelector]:
    """A selector with small socket buffers, which a piece does not fit into."""
    made = TlsSelector(send_buffer_bytes=20_000, receive_buffer_bytes=UNSET_BUFFER)
    yield made
    made.close_all()


def layer(root: Certificate) -> TlsLayer:
    """Return the layer of a client that trusts a root."""
    settings = TlsSettings(truststore=root.certificate)
    return client_context(settings).layer("localhost", "localhost:1 (id: 1)")


def poll_until(
    selector: TlsSelector, done: Callable[[list[SelectorEvent]], bool]
) -> list[SelectorEvent]:
    """Poll until what happened is enough."""
    happened: list[SelectorEvent] = []
    for _ in range(10_000):
        happened += selector.poll(1.0)
        if done(happened):
            return happened
    raise AssertionError(f"not enough happened: {happened[-5:]}")


def is_closed(events: list[SelectorEvent]) -> bool:
    """Return whether a channel is closed."""
    return any(isinstance(event, Closed) for event in events)


def received(events: list[SelectorEvent]) -> bytes:
    """Join what came."""
    return b"".join(event.data for event in events if isinstance(event, Received))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_sends_arrive_in_order_and_answers_come_decrypted(
    selector: TlsSelector,
    authority: Authority,
    certificate: Certificate,
    tmp_path: Path,
    version: str,
) -> None:
    large = [bytes([number]) * 300_000 for number in range(4)]
    small = [bytes([number]) * 10 for number in range(100)]
    sends = [[piece] for piece in large] + [small, [b"", b"end"]]
    expected = b"".join(b"".join(send) for send in sends)
    got = bytearray()

    def serve(connection: ssl.SSLSocket) -> None:
        while len(got) < len(expected):
            got.extend(connection.recv(65_536))
        for at in range(0, 1000, 7):
            connection.sendall(expected[-1000:][at : at + 7])
        connection.unwrap()

    context = server_context(tmp_path, certificate, version=version)
    with served(context, serve) as server:
        selector.connect(7, resolve("127.0.0.1", server.port)[0], layer(authority.root))
        for send in sends:
            selector.send(7, send)
        events = poll_until(selector, is_closed)
    assert bytes(got) == expected
    assert received(events) == expected[-1000:]
    kinds = [type(event) for event in events]
    assert kinds[:2] == [Connected, Secured]
    assert kinds.count(Sent) == len(sends)
    assert kinds[-1] is Closed


def test_a_peer_that_reads_only_a_part_of_a_send_is_told(
    selector: TlsSelector, authority: Authority, certificate: Certificate, tmp_path: Path
) -> None:
    reads = threading.Event()
    size = 20_000_000

    def serve(connection: ssl.SSLSocket) -> None:
        left = size
        while left:
            left -= len(connection.recv(65_536))
            if left < size // 2:
                reads.wait(60)

    with served(server_context(tmp_path, certificate), serve) as server:
        selector.connect(7, resolve("127.0.0.1", server.port)[0], layer(authority.root))
        selector.send(7, [bytes(size)])
        *_, first = poll_until(selector, lambda events: PartlySent(7) in events)
        reads.set()
        *parts, last = poll_until(selector, lambda events: Sent(7) in events)
    assert first == PartlySent(7)
    assert (set(parts), last) == ({PartlySent(7)}, Sent(7))


# The second is the alert close_notify.
@pytest.mark.parametrize("said", [b"", bytes.fromhex("15 0303 0002 01 00")])
def test_an_end_in_the_handshake_is_an_end_of_the_connection(
    selector: TlsSelector, authority: Authority, said: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        selector.connect(7, resolve(*listener.getsockname())[0], layer(authority.root))
        connection, _ = listener.accept()
        with connection:
            happened = selector.poll(10.0)
            # Without this, the close would be a reset.
            connection.recv(10_000)
            connection.sendall(said)
        if not is_closed(happened):
            happened = poll_until(selector, is_closed)
    assert happened[-1] == Closed(7, "the broker closed the connection", speaks_tls=bool(said))


def test_a_fault_behind_an_answer_ends_the_channel_at_once(
    selector: TlsSelector, authority: Authority, certificate: Certificate, tmp_path: Path
) -> None:
    ended = threading.Event()

    def serve(connection: ssl.SSLSocket) -> None:
        connection.recv(100)
        # One segment: the answer, and a record that cannot be decrypted.
        answer = os.dup(connection.fileno())
        with socket.socket(fileno=answer) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            connection.sendall(b"answer")
            plain.sendall(b"\x17\x03\x03\0\x20" + bytes(32))
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
            ended.wait(30)

    with served(server_context(tmp_path, certificate), serve) as server:
        selector.connect(7, resolve("127.0.0.1", server.port)[0], layer(authority.root))
        selector.send(7, [b"request"])
        events = poll_until(selector, is_closed)
        ended.set()
    assert received(events) == b"answer"
    closed = events[-1]
    assert isinstance(closed, Closed)
    assert closed.reason.startswith("TLS: ")
    assert closed.error is None


def test_a_broker_that_requests_keys_and_does_not_read_gets_no_memory_of_ours(
    selector: TlsSelector, authority: Authority, certificate: Certificate, tmp_path: Path
) -> None:
    server, client = KeyUpdatingServer(certificate, tmp_path), layer(authority.root)
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                for _ in range(2):
                    connection.sendall(server.handshake(connection.recv(100_000)))
                for _ in range(30):
                    connection.sendall(b"".join(server.key_update() for _ in range(1000)))
                is_over.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        selector.connect(7, resolve(*listener.getsockname())[0], client)
        poll_until(selector, lambda events: any(isinstance(event, Secured) for event in events))
        selector.send(7, [bytes(20_000_000)])
        happened = poll_until(selector, is_closed)
        is_over.set()
        thread.join(20)
    words = "the broker requests key updates again and again, and reads no responses"
    ends = [event for event in happened if event != PartlySent(7)]
    assert ends == [Closed(7, f"TLS: {words}", speaks_tls=True)]


def test_the_rest_of_a_channel_comes_decrypted_and_nothing_is_written(
    selector: TlsSelector,
    authority: Authority,
    certificate: Certificate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()

    def serve(connection: ssl.SSLSocket) -> None:
        connection.recv(100)
        connection.sendall(b"answer")
        ended.wait(30)

    writes: list[Channel] = []
    with served(server_context(tmp_path, certificate), serve) as server:
        selector.connect(7, resolve("127.0.0.1", server.port)[0], layer(authority.root))
        selector.send(7, [b"request"])
        events = poll_until(selector, lambda events: Sent(7) in events)
        monkeypatch.setattr(selector, "_write", writes.append)
        while not received(events):
            assert select.select([selector._channels[7].socket], [], [], 60.0)[0]
            events += selector.rest(7)
        ended.set()
    assert received(events) == b"answer"
    assert writes == []


def test_a_refusal_tells_why_and_its_alert_goes_out(
    selector: TlsSelector, authority: Authority, certificate: Certificate, tmp_path: Path
) -> None:
    other = Authority("other")
    with served(server_context(tmp_path, certificate)) as server:
        selector.connect(7, resolve("127.0.0.1", server.port)[0], layer(other.root))
        events = poll_until(selector, is_closed)
    closed = events[-1]
    assert isinstance(closed, Closed)
    assert isinstance(closed.error, SslAuthenticationException)
    assert "ssl.truststore.location" in closed.reason
    assert "ALERT_UNKNOWN_CA" in str(server.failure)


def test_a_broker_that_asks_for_a_certificate_says_so_after_the_handshake(
    selector: TlsSelector, authority: Authority, certificate: Certificate, tmp_path: Path
) -> None:
    context = server_context(tmp_path, certificate, clients=authority.root.certificate)
    with served(context) as server:
        selector.connect(7, resolve("127.0.0.1", server.port)[0], layer(authority.root))
        selector.send(7, [b"a request" * 100_000])
        events = poll_until(selector, is_closed)
    closed = events[-1]
    assert Secured(7) in events
    assert isinstance(closed, Closed)
    assert isinstance(closed.error, SslAuthenticationException)
    assert "set ssl.keystore.location" in closed.reason


def test_a_server_without_tls_is_told_by_its_silence_or_its_words(
    selector: TlsSelector, authority: Authority
) -> None:
    for words, sentence, is_error in (
        (b"", "the broker closed the connection", False),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not TLS", True),
    ):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = resolve("127.0.0.1", listener.getsockname()[1])[0]
            selector.connect(7, address, layer(authority.root))
            peer, _ = listener.accept()
            peer.settimeout(10)
            poll_until(selector, lambda events: Connected(7) in events)
            peer.recv(65_536)
            peer.sendall(words)
            peer.close()
            events = poll_until(selector, is_closed)
        closed = events[-1]
        assert isinstance(closed, Closed)
        assert sentence in closed.reason
        # The client says in which state the broker closed it.
        assert is_error or closed.reason == sentence
        assert (closed.error is not None) is is_error
