"""The TLS layer with real servers: what passes, what is rejected, and the messages."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Final, NoReturn

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from support.brokers import keys
from support.brokers.certificates import Authority, Certificate
from support.brokers.key_updates import KeyUpdatingServer
from support.brokers.tls_peers import Client, connected, served, server_context

from spark_kafka_sink.errors import ConfigException, SslAuthenticationException, name_options
from spark_kafka_sink.network import tls
from spark_kafka_sink.network.tls import (
    PIECE_BYTES,
    TlsLayer,
    TlsSettings,
    _kept_context,
    client_context,
    take_piece,
)

PEER: Final = "node 1 (localhost:9093)"
VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
PAST: Final = (datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC))
FUTURE: Final = (datetime(2090, 1, 1, tzinfo=UTC), datetime(2090, 1, 2, tzinfo=UTC))
# Longer than a piece, and no multiple of a record.
DATA: Final = os.urandom(3 * PIECE_BYTES + 12_345)


@dataclass(frozen=True)
class Certificates:
    """The certificates of the tests."""

    root: str
    other_root: str
    intermediate: Certificate
    server: Certificate
    client: Certificate
    self_signed: Certificate
    by_name: dict[str, Certificate]


@pytest.fixture(scope="module")
def made() -> Certificates:
    """Certificates of one CA with an intermediate, and of another."""
    authority, other = Authority(), Authority("other")
    intermediate = authority.intermediate()
    return Certificates(
        root=authority.root.certificate,
        other_root=other.root.certificate,
        intermediate=intermediate,
        server=authority.leaf("server", intermediate),
        client=authority.leaf("client", intermediate, names=()),
        self_signed=Authority("localhost").root,
        by_name={
            "expired": authority.leaf("expired", dates=PAST),
            "future": authority.leaf("future", dates=FUTURE),
            "elsewhere": authority.leaf("elsewhere", names=("elsewhere",)),
            "localhost": authority.leaf("localhost", names=()),
            "stranger": other.leaf("stranger"),
        },
    )


@pytest.fixture
def trusting(made: Certificates) -> TlsSettings:
    """Settings that trust the servers' CA."""
    return TlsSettings(truststore=made.root)


@pytest.fixture
def showing(made: Certificates, trusting: TlsSettings) -> TlsSettings:
    """Settings that show a certificate of the client, too."""
    return replace(trusting, key=made.client.key, chain=made.client.chain)


def layer(settings: TlsSettings, host: str = "localhost") -> TlsLayer:
    """Return the layer of a new connection."""
    return client_context(settings).layer(host, PEER)


def echo(connection: ssl.SSLSocket) -> None:
    """Send back what comes."""
    while data := connection.recv(100_000):
        connection.sendall(data)


def pieces(data: bytes, size: int) -> deque[memoryview]:
    """Return data as buffers of a size."""
    return deque(memoryview(data)[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [100, 8192, 10**9])
@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_pass_both_ways(
    version: str, size: int, made: Certificates, trusting: TlsSettings, tmp_path: Path
) -> None:
    context = server_context(tmp_path, made.server, version=version)
    with served(context, echo) as server, connected(layer(trusting), server.port) as client:
        assert client.secure() == b""
        buffers, found, finished = pieces(DATA, size), bytearray(), 0
        total = len(buffers)
        while buffers:
            piece, ended = take_piece(buffers)
            finished += ended
            client.socket.sendall(client.layer.encrypt(piece))
            found += client.receive_exactly(len(piece))
        assert found == DATA
        assert finished == total
        client.socket.sendall(client.layer.end())
    assert server.failure is None


class InMemoryServer:
    """A server without a socket, whose bytes can be given in any portions."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_secured = False

    def received(self, data: bytes) -> bytes:
        """Process bytes and return the response: an echo, after the handshake."""
        self._incoming.write(data)
        try:
            if not self._is_secured:
                self.ssl.do_handshake()
                self._is_secured = True
            while True:
                self.ssl.write(self.ssl.read(PIECE_BYTES))
        except ssl.SSLWantReadError:
            return self._outgoing.read()


@pytest.mark.parametrize("portion", [1, 5, 1000, 10**9])
@pytest.mark.parametrize("version", VERSIONS)
def test_whole_or_byte_by_byte_it_gives_the_same(
    version: str, portion: int, made: Certificates, showing: TlsSettings, tmp_path: Path
) -> None:
    server = InMemoryServer(
        server_context(tmp_path, made.server, clients=made.root, version=version)
    )
    client, found, data = layer(showing), bytearray(), DATA[:50_000]
    buffers, going = deque([memoryview(data)]), client.outgoing()
    while len(found) < len(data):
        coming = server.received(going)
        going = b""
        for at in range(0, len(coming), portion):
            found += client.received(coming[at : at + portion])
            going += client.outgoing()
        if client.is_secured and buffers:
            going += client.encrypt(take_piece(buffers)[0])
        assert going or coming
    assert found == data


@pytest.mark.parametrize("version", VERSIONS)
def test_both_sides_show_certificates(
    version: str, made: Certificates, showing: TlsSettings, tmp_path: Path
) -> None:
    shown: list[object] = []

    def serve(connection: ssl.SSLSocket) -> None:
        found = connection.getpeercert() or {}
        shown.append(found["subject"])
        connection.sendall(b"welcome")

    context = server_context(tmp_path, made.server, clients=made.root, version=version)
    with served(context, serve) as server, connected(layer(showing), server.port) as client:
        found = client.secure()
        while len(found) < len(b"welcome"):
            found += client.receive()
        assert found == b"welcome"
    assert shown == [((("commonName", "client"),),)]


def _read_on(client: Client) -> None:
    """Read until the layer rejects something, also after the handshake."""
    client.secure()
    while True:
        client.receive()


def _refusal(
    context: ssl.SSLContext, client_layer: TlsLayer
) -> tuple[SslAuthenticationException, Exception | None]:
    """Return the client's error and the server's error."""
    with served(context, echo) as server, connected(client_layer, server.port) as client:
        with pytest.raises(SslAuthenticationException) as caught:
            _read_on(client)
        assert str(caught.value).startswith(f"the TLS handshake with {PEER} failed: ")
    return caught.value, server.failure


UNTRUSTED: Final = (
    "the broker's certificate is not accepted (unable to get local issuer certificate): set "
    "ssl.truststore.location or ssl.truststore.certificates to the certificate of the CA that "
    "signed it; if the truststore has that certificate, the broker probably does not send the "
    "intermediate certificates"
)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "sentence", "alert"),
    [
        ("stranger", UNTRUSTED, "UNKNOWN_CA"),
        ("without intermediate", UNTRUSTED, "UNKNOWN_CA"),
        ("self-signed", "(self-signed certificate): set ssl.truststore", "UNKNOWN_CA"),
        (
            "expired",
            "the broker's certificate is not accepted (certificate has expired): this certificate "
            "has expired, or the certificate of a CA in its chain or in the truststore: replace",
            "CERTIFICATE_EXPIRED",
        ),
        (
            "future",
            "(certificate is not yet valid): compare the clocks",
            "BAD_CERTIFICATE",
        ),
        (
            "elsewhere",
            "the host name 'localhost' comes from the broker's advertised.listeners or from ",
            "BAD_CERTIFICATE",
        ),
    ],
)
def test_a_certificate_that_is_refused_is_told_to_both_sides(
    *,
    name: str,
    sentence: str,
    alert: str,
    version: str,
    made: Certificates,
    trusting: TlsSettings,
    tmp_path: Path,
) -> None:
    alone = replace(made.server, chain=made.server.certificate)
    shown = {"without intermediate": alone, "self-signed": made.self_signed, **made.by_name}[name]
    context = server_context(tmp_path, shown, version=version)
    error, peer_error = _refusal(context, layer(trusting))
    assert sentence in str(error)
    # The alert is sent before the connection is closed.
    assert isinstance(peer_error, ssl.SSLError)
    assert alert in (peer_error.reason or "")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["none", "expired", "future", "stranger"])
def test_a_broker_that_refuses_the_client_s_certificate_is_believed(
    version: str, name: str, made: Certificates, trusting: TlsSettings, tmp_path: Path
) -> None:
    shown = made.by_name.get(name)
    settings = trusting
    if shown is not None:
        settings = replace(trusting, key=shown.key, chain=shown.chain)
    context = server_context(tmp_path, made.server, clients=made.root, version=version)
    error, _ = _refusal(context, layer(settings))
    assert "the broker says '" in str(error)
    if shown is None:
        assert "requires a client certificate: set ssl.keystore.location" in str(error)
    else:
        assert "it rejects the client's certificate, which has expired, is not" in str(error)


@pytest.mark.parametrize(("theirs", "ours"), [("TLSv1.2", "TLSv1.3"), ("TLSv1.3", "TLSv1.2")])
def test_no_common_version_is_told_with_the_options(
    theirs: str, ours: str, made: Certificates, trusting: TlsSettings, tmp_path: Path
) -> None:
    context = server_context(tmp_path, made.server, version=theirs)
    error, _ = _refusal(context, layer(replace(trusting, protocols=frozenset({ours}))))
    assert "see ssl.enabled.protocols and ssl.cipher.suites" in str(error)


def test_no_common_suite_is_told_with_the_options(
    made: Certificates, trusting: TlsSettings, tmp_path: Path
) -> None:
    context = server_context(tmp_path, made.server, version="TLSv1.2")
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    settings = replace(trusting, ciphers="ECDHE-ECDSA-AES256-GCM-SHA384")
    error, _ = _refusal(context, layer(settings))
    assert "see ssl.enabled.protocols and ssl.cipher.suites" in str(error)


def test_suites_that_python_does_not_enable_can_be_set(
    made: Certificates, trusting: TlsSettings, tmp_path: Path
) -> None:
    suite = "ECDHE-ECDSA-AES256-SHA"  # Java enables it
    context = server_context(tmp_path, made.server, version="TLSv1.2")
    context.set_ciphers(suite)
    error, _ = _refusal(context, layer(trusting))
    assert "see ssl.enabled.protocols and ssl.cipher.suites" in str(error)
    with (
        served(context, echo) as server,
        connected(layer(replace(trusting, ciphers=suite)), server.port) as client,
    ):
        client.secure()
        client.send(b"hello")
        assert client.receive_exactly(5) == b"hello"


def test_certificates_with_short_keys_are_not_said_to_be_of_another_ca(
    trusting: TlsSettings, tmp_path: Path
) -> None:
    authority = Authority()
    trusting = replace(trusting, truststore=authority.root.certificate)
    short = authority.leaf("short", key=rsa.generate_private_key(65_537, 1024))
    sentence = "OpenSSL accepts RSA keys of 2048 bits or more"
    path = tmp_path / "short.pem"
    path.write_text(short.key + short.chain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.load_cert_chain(path)
    error, _ = _refusal(context, layer(trusting))
    assert f"(EE certificate key too weak): {sentence}" in str(error)
    with pytest.raises(ConfigException, match=rf"cannot be used: ee key too small: {sentence}"):
        client_context(replace(trusting, key=short.key, chain=short.chain))


@pytest.mark.parametrize("trusted", ["root", "intermediate", "leaf", "one line", "with others"])
def test_any_certificate_of_the_truststore_is_an_anchor(
    trusted: str, made: Certificates, tmp_path: Path
) -> None:
    truststore = {
        "root": made.root,
        "intermediate": made.intermediate.certificate,
        "leaf": made.server.certificate,
        "one line": made.root.replace("\n", " "),
        "with others": f"of others:\n{made.other_root}{made.other_root}ours:\n{made.root}",
    }[trusted]
    context = server_context(tmp_path, made.server)
    settings = TlsSettings(truststore=truststore)
    with served(context, echo) as server, connected(layer(settings), server.port) as client:
        assert client.secure() == b""
        client.send(b"trusted")
        assert client.receive_exactly(7) == b"trusted"


@pytest.mark.parametrize(
    ("name", "host", "is_right"),
    [
        ("server", "localhost", True),
        ("server", "localhost.", True),
        ("server", "LOCALHOST", True),
        ("server", "127.0.0.1", True),
        ("server", "::1", True),
        ("server", "[::1]", True),
        ("server", "127.0.0.2", False),
        ("server", "::2", False),
        ("server", "server", False),
        ("server", "kafka_1.example", False),
        ("elsewhere", "elsewhere", True),
        ("localhost", "localhost", True),
        ("localhost", "127.0.0.1", False),
    ],
)
def test_names_and_addresses_are_checked(
    *,
    name: str,
    host: str,
    is_right: bool,
    made: Certificates,
    trusting: TlsSettings,
    tmp_path: Path,
) -> None:
    shown = made.by_name.get(name, made.server)
    context = server_context(tmp_path, shown)
    if is_right:
        with (
            served(context, echo) as server,
            connected(layer(trusting, host), server.port) as client,
        ):
            client.secure()
    else:
        error, _ = _refusal(context, layer(trusting, host))
        assert f"{host!r} comes from the broker's advertised.listeners" in str(error)
        # The certificate itself is right.
        unchecked = replace(trusting, checks_host=False)
        with served(context, echo) as server, connected(layer(unchecked, host), server.port) as c:
            c.secure()


@pytest.mark.parametrize("host", ["", ".a", "a..b", "a" * 64, "\ud800", "a\0b"])
def test_what_is_no_host_is_one_clear_error(host: str, trusting: TlsSettings) -> None:
    with pytest.raises(SslAuthenticationException, match="cannot be a name in a certificate"):
        layer(trusting, host)


def test_an_unchecked_name_does_not_make_any_certificate_good(
    made: Certificates, trusting: TlsSettings, tmp_path: Path
) -> None:
    context = server_context(tmp_path, made.by_name["stranger"])
    error, _ = _refusal(context, layer(replace(trusting, checks_host=False)))
    assert UNTRUSTED in str(error)


def _answers(answer: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.recv(10_000)
        connection.sendall(answer)

    return serve


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x10hello, I am no TLS"]
)
def test_a_listener_without_tls_that_answers_is_told(answer: bytes, trusting: TlsSettings) -> None:
    client = layer(trusting)
    assert client.outgoing()[:1] == b"\x16"
    with pytest.raises(SslAuthenticationException, match="is not TLS: compare the port"):
        client.received(answer)


def _secured(
    made: Certificates, settings: TlsSettings, folder: Path
) -> tuple[TlsLayer, InMemoryServer]:
    server = InMemoryServer(server_context(folder, made.server, version="TLSv1.3"))
    client = layer(settings)
    while not client.is_secured:
        client.received(server.received(client.outgoing()))
    client.received(server.received(client.outgoing()))
    return client, server


def test_garbage_behind_the_handshake_breaks_the_connection(
    made: Certificates, trusting: TlsSettings, tmp_path: Path
) -> None:
    for garbage in (b"\x17\x03\x03\0\x20" + bytes(32), b"\0" * 100, os.urandom(300)):
        client, _ = _secured(made, trusting, tmp_path)
        with pytest.raises(ConnectionError, match=r"^TLS: "):
            client.received(garbage)


def test_what_came_before_the_garbage_is_given_first(
    made: Certificates, trusting: TlsSettings, tmp_path: Path
) -> None:
    client, server = _secured(made, trusting, tmp_path)
    answer = server.received(client.encrypt(b"hello"))
    assert client.received(answer + b"\x17\x03\x03\0\x20" + bytes(32)) == b"hello"
    with pytest.raises(ConnectionError, match=r"^TLS: "):
        client.check()


def test_an_alert_behind_the_first_answer_is_no_refusal(
    made: Certificates, trusting: TlsSettings, tmp_path: Path
) -> None:
    answered, server = _secured(made, trusting, tmp_path)
    assert answered.received(server.received(answered.encrypt(b"hello"))) == b"hello"
    # A server that cannot decrypt a record sends an alert.
    with pytest.raises(ssl.SSLError):
        server.received(b"\x17\x03\x03\0\x20" + bytes(32))
    alert = server._outgoing.read()
    with pytest.raises(ConnectionError, match="bad record mac"):
        answered.received(alert)
    unanswered, server = _secured(made, trusting, tmp_path)
    with pytest.raises(ssl.SSLError):
        server.received(b"\x17\x03\x03\0\x20" + bytes(32))
    with pytest.raises(
        SslAuthenticationException, match="'bad record mac': check the broker's log"
    ):
        unanswered.received(server._outgoing.read())


@given(st.binary(min_size=1, max_size=200))
def test_any_answer_to_the_first_message_is_waited_for_or_one_error(answer: bytes) -> None:
    client = layer(TlsSettings(truststore=_ANY_ROOT))
    client.outgoing()
    with suppress(SslAuthenticationException):
        assert client.received(answer) == b""
    assert not client.is_secured


_ANY_ROOT: Final = Authority("anybody").root.certificate


def test_the_end_is_told_and_heard(
    made: Certificates, trusting: TlsSettings, tmp_path: Path
) -> None:
    def serve(connection: ssl.SSLSocket) -> None:
        assert connection.recv(100) == b""
        connection.sendall(b"bye")
        connection.unwrap()

    context = server_context(tmp_path, made.server)
    with served(context, serve) as server, connected(layer(trusting), server.port) as client:
        client.secure()
        client.socket.sendall(client.layer.end())
        assert client.receive_exactly(3) == b"bye"
        while not client.layer.is_ended:
            client.receive()
    assert server.failure is None


# An alert of the level warning: close_notify.
CLOSE_NOTIFY: Final = bytes.fromhex("15 0303 0002 01 00")


def test_an_end_that_is_told_in_the_handshake_is_no_refusal() -> None:
    client = layer(TlsSettings(truststore=_ANY_ROOT))
    client.outgoing()
    assert client.received(CLOSE_NOTIFY) == b""
    assert client.is_ended
    assert not client.is_secured


def test_a_broker_may_renew_its_keys_and_ask_for_ours(
    made: Certificates, trusting: TlsSettings, tmp_path: Path
) -> None:
    server, client = KeyUpdatingServer(made.server, tmp_path), layer(trusting)
    while not client.is_secured:
        client.received(server.handshake(client.outgoing()))
    assert server.handshake(client.outgoing()) == b""
    for number in range(4):
        assert client.received(server.key_update()) == b""
        to_client, to_server = b"to the client %d" % number, b"to the server %d" % number
        assert client.received(server.encrypt(to_client)) == to_client
        # Our own renewal goes before the data.
        assert server.decrypt_updated(client.encrypt(to_server)) == to_server


def test_a_broker_that_reads_our_answers_may_renew_its_keys_as_often_as_it_likes(
    made: Certificates, trusting: TlsSettings, tmp_path: Path
) -> None:
    server, client = KeyUpdatingServer(made.server, tmp_path), layer(trusting)
    while not client.is_secured:
        client.received(server.handshake(client.outgoing()))
    assert server.handshake(client.outgoing()) == b""
    sent = 0
    for _ in range(10):
        assert client.received(b"".join(server.key_update() for _ in range(500))) == b""
        sent += len(client.outgoing())
    assert sent > 2 * 64 * 1024


def _records(sent: bytes) -> int:
    count = at = 0
    while at < len(sent):
        at += 5 + int.from_bytes(sent[at + 3 : at + 5])
        count += 1
    return count


@pytest.mark.parametrize("form", ["PKCS#8", "PKCS#1", "encrypted", "encrypted PKCS#1", "one file"])
def test_keys_are_shown_in_every_form(
    form: str, made: Certificates, showing: TlsSettings, tmp_path: Path
) -> None:
    key, chain = made.client.key, made.client.chain
    settings = {
        "PKCS#8": showing,
        "PKCS#1": replace(showing, key=keys.traditional(key).replace("\n", "\r\n")),
        "encrypted": replace(
            showing,
            key=keys.pkcs8(key, "hush").replace("\n", " "),
            key_password="hush",
        ),
        "encrypted PKCS#1": replace(
            showing,
            key=keys.traditional(key, "hush"),
            key_password="hush",
        ),
        "one file": replace(showing, key=f"{chain}\n{key}", chain=None),
    }[form]
    context = server_context(tmp_path, made.server, clients=made.root)
    with served(context, echo) as server, connected(layer(settings), server.port) as client:
        client.secure()
        client.send(b"hello")
        assert client.receive_exactly(5) == b"hello"


NOT_DECRYPTED: Final = (
    "the file k.pem cannot be used: ssl.key.password does not decrypt the key, or the key is "
    "encrypted with RC4 or DES, which this OpenSSL does not support ("
)
# By openssl pkcs8 -topk8 -v1 PBE-SHA1-RC4-128, with the password hush.
WITH_RC4: Final = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIGrMBwGCiqGSIb3DQEMAQEwDgQIyrLGJpT87MYCAggABIGKl90NE6VFQe8bDk5r
9qMGD3MV3FZQi6L1gMLU8c/b52FJJbysFAMVyFkB98jdHq79XGpmlCqqI2/O1e8m
tUeomSWZ2TN8Ve2zeosd30k4XQlfgtcdBFYf+1dHhVkSxQsucDq6I3+ndFrOgJ7V
7KHCh+Hs+5PCf6VqhB0tklAW4Gv9MzG6pknyas9q
-----END ENCRYPTED PRIVATE KEY-----
"""


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("no password", "the key of the file k.pem is encrypted: set ssl.key.password"),
        ("old encryption", NOT_DECRYPTED),
        ("wrong password", NOT_DECRYPTED),
        ("long password", NOT_DECRYPTED),
        (
            "other key",
            "the file k.pem cannot be used: its first certificate does not match the key",
        ),
        ("broken key", "the file k.pem cannot be used: "),
        ("no key", "the file k.pem has no private key in PEM, but CERTIFICATE"),
        ("no chain", "the file k.pem has no certificate in PEM, but PRIVATE KEY"),
        ("broken anchor", "ssl.truststore.certificates: certificate 2 cannot be read: "),
        ("no anchor", "ssl.truststore.certificates has no certificate in PEM"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_origin(
    wrong: str, sentence: str, made: Certificates, showing: TlsSettings
) -> None:
    key = made.client.key
    encrypted = keys.pkcs8(key, "hush")
    label = "-----{} PRIVATE KEY-----\n"
    broken = made.root.replace("\n", "\nMIIB", 1)
    settings = {
        "no password": replace(showing, key=encrypted),
        "wrong password": replace(showing, key=encrypted, key_password="hushhush"),
        "old encryption": replace(showing, key=WITH_RC4, key_password="hush"),
        "long password": replace(showing, key=encrypted, key_password="hush" * 1000),
        "other key": replace(showing, key=made.server.key),
        "broken key": replace(showing, key=f"{label.format('BEGIN')}QUJD\n{label.format('END')}"),
        "no key": replace(showing, key=made.client.chain),
        "no chain": replace(showing, chain=None),
        "broken anchor": replace(showing, truststore=made.root + broken),
        "no anchor": replace(showing, truststore="nothing"),
    }[wrong]
    with pytest.raises(ConfigException) as caught:
        client_context(replace(settings, key_origin="the file k.pem"))
    assert str(caught.value).startswith(sentence)
    assert "hush" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_key_never_lies_in_a_file_where_memory_will_do(
    showing: TlsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_file(*_: object, **__: object) -> None:
        raise AssertionError("a file was made")

    _kept_context.cache_clear()
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", no_file)
    assert client_context(showing).has_certificate


def test_without_such_memory_a_key_s_file_is_private_and_soon_gone(
    showing: TlsSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    modes = []
    load = ssl.SSLContext.load_cert_chain

    def noting(self: ssl.SSLContext, path: str, password: str) -> None:
        modes.append(Path(path).stat().st_mode & 0o777)
        load(self, path, password=password)

    _kept_context.cache_clear()
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", noting)
    assert client_context(showing).has_certificate
    assert modes == [0o600]
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_may_open_no_more_files_in_memory_uses_one_on_a_disk(
    showing: TlsSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    _kept_context.cache_clear()
    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert client_context(showing).has_certificate
    assert list(tmp_path.iterdir()) == []
    _kept_context.cache_clear()
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(ConfigException, match="OpenSSL cannot read the key") as caught:
        client_context(showing)
    assert "Too many open files" in str(caught.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk here is always full")
def test_a_full_disk_leaves_no_part_of_a_key(
    showing: TlsSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def on_a_full_disk(number: int, mode: str) -> IO[Any]:
        os.close(number)
        return Path("/dev/full").open(mode)

    _kept_context.cache_clear()
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "fdopen", on_a_full_disk)
    with pytest.raises(ConfigException, match="No space left on device") as caught:
        client_context(showing)
    # The exception, and with it what its frames hold, is still there.
    assert caught.value.__traceback__ is not None
    assert list(tmp_path.iterdir()) == []


def test_no_secret_is_shown(showing: TlsSettings) -> None:
    settings = replace(showing, key_password="hush")
    for shown in (repr(settings), str(settings), repr(client_context(settings))):
        assert "hush" not in shown
        assert "KEY-----" not in shown


@pytest.mark.parametrize("name", ["root", "intermediate", "leaf in the truststore"])
def test_an_expired_certificate_of_a_ca_is_not_said_to_be_the_broker_s(
    name: str, tmp_path: Path
) -> None:
    authority = Authority("expired" if name == "root" else "root", dates=PAST)
    chain = authority.intermediate(dates=PAST) if name == "intermediate" else None
    shown = authority.leaf("server", chain, dates=PAST if name.startswith("leaf") else None)
    trusted = shown.certificate if name.startswith("leaf") else authority.root.certificate
    error, _ = _refusal(server_context(tmp_path, shown), layer(TlsSettings(truststore=trusted)))
    assert "or the certificate of a CA in its chain or in the truststore" in str(error)


def test_equal_settings_share_a_context_and_renewed_ones_do_not(
    made: Certificates, trusting: TlsSettings
) -> None:
    assert client_context(trusting) is client_context(TlsSettings(truststore=made.root))
    assert client_context(trusting) is not client_context(TlsSettings(truststore=made.other_root))


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine where Python finds no certificates; it has the path of the system's first file."""
    _kept_context.cache_clear()
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    built = ssl.get_default_verify_paths()._replace(
        openssl_cafile=str(tmp_path / "built.pem"), openssl_capath=str(tmp_path / "built")
    )
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: built)
    monkeypatch.setattr(tls, "SYSTEM_FILES", (str(tmp_path / "first"), str(tmp_path / "second")))
    monkeypatch.setitem(sys.modules, "certifi", None)
    return tmp_path


def _is_trusted(made: Certificates, folder: Path) -> bool:
    server = InMemoryServer(server_context(folder, made.server))
    client = layer(TlsSettings())
    try:
        while not client.is_secured:
            client.received(server.received(client.outgoing()))
    except SslAuthenticationException:
        return False
    return True


def test_without_a_truststore_the_system_s_certificates_count(
    nowhere: Path, made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "built.pem").write_text(made.root)
    assert _is_trusted(made, nowhere)
    (nowhere / "ca.pem").write_text(made.other_root)
    monkeypatch.setenv("SSL_CERT_FILE", str(nowhere / "ca.pem"))
    assert not _is_trusted(made, nowhere)
    # As if it were not set.
    monkeypatch.setenv("SSL_CERT_FILE", "")
    assert _is_trusted(made, nowhere)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        ("", "it has no certificate, or a broken one"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "or a broken one"),
    ],
    ids=["missing", "empty", "broken"],
)
def test_a_file_that_ssl_cert_file_names_counts_or_is_an_error(
    nowhere: Path,
    made: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    content: str | None,
    why: str,
) -> None:
    for other in ("built.pem", "first"):
        (nowhere / other).write_text(made.root)
    client_context(TlsSettings())
    file = nowhere / "ca.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(ConfigException) as caught:
        client_context(TlsSettings())
    assert f"'{file}' that the environment variable SSL_CERT_FILE names" in str(caught.value)
    assert why in str(caught.value)
    client_context(TlsSettings(truststore=made.root))
    file.write_text(made.root)
    assert _is_trusted(made, nowhere)


def test_a_file_of_revocations_alone_has_no_certificate(
    nowhere: Path, made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")])
    builder = x509.CertificateRevocationListBuilder(name, now, now + timedelta(days=1))
    revoked = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    (nowhere / "built.pem").write_text(revoked)
    (nowhere / "first").write_text(made.root)
    assert _is_trusted(made, nowhere)
    monkeypatch.setenv("SSL_CERT_FILE", str(nowhere / "built.pem"))
    with pytest.raises(ConfigException, match=r"SSL_CERT_FILE names .it has only revocation lists"):
        client_context(TlsSettings())


def test_a_folder_that_ssl_cert_dir_names_may_be_empty_or_one_of_several(
    nowhere: Path, made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "built.pem").write_text(made.root)
    monkeypatch.setenv("SSL_CERT_DIR", str(nowhere / "none"))
    assert _is_trusted(made, nowhere)
    (nowhere / "built.pem").unlink()
    (nowhere / "first").write_text(made.root)
    monkeypatch.setenv("SSL_CERT_DIR", f"{nowhere / 'none'}:{nowhere / 'certs'}")
    assert _is_trusted(made, nowhere)
    (nowhere / "certs").mkdir()
    (nowhere / "certs" / "89abcdef.0").write_text(made.root)
    # OpenSSL looks there, but not for a certificate of another name.
    assert not _is_trusted(made, nowhere)


def test_a_folder_counts_only_if_it_has_a_certificate_under_its_hash(
    nowhere: Path, made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = nowhere / "certs"
    (folder / "java").mkdir(parents=True)
    (folder / "ca.pem").write_text(made.root)
    (folder / "0123abcd.0").mkdir()
    (folder / "0123abcd.1").symlink_to(nowhere / "none")
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    (nowhere / "first").write_text(made.root)
    assert _is_trusted(made, nowhere)
    (nowhere / "first").unlink()
    (folder / "89abcdef.0").write_text(made.root)
    # OpenSSL looks there, but not for a certificate of another name.
    assert not _is_trusted(made, nowhere)


def test_where_python_looks_in_vain_the_usual_places_count(
    nowhere: Path, made: Certificates
) -> None:
    (nowhere / "first").write_text("broken")
    (nowhere / "second").write_text(made.root)
    assert _is_trusted(made, nowhere)


def test_then_certifi_counts(
    nowhere: Path, made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "certifi.pem").write_text(made.root)
    certifi = ModuleType("certifi")
    monkeypatch.setattr(certifi, "where", lambda: str(nowhere / "certifi.pem"), raising=False)
    monkeypatch.setitem(sys.modules, "certifi", certifi)
    assert _is_trusted(made, nowhere)


@pytest.mark.parametrize("place", ["python", "first", "certifi"])
def test_the_system_s_certificates_count_as_soon_as_they_are_replaced(
    place: str, nowhere: Path, made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = nowhere / place
    if place == "python":
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
    if place == "certifi":
        certifi = ModuleType("certifi")
        monkeypatch.setattr(certifi, "where", lambda: str(file), raising=False)
        monkeypatch.setitem(sys.modules, "certifi", certifi)
    file.write_text(made.other_root)
    assert not _is_trusted(made, nowhere)
    assert client_context(TlsSettings()) is client_context(TlsSettings())
    file.write_text(made.root)
    assert _is_trusted(made, nowhere)


def test_with_none_of_these_a_sentence_says_what_to_set(nowhere: Path) -> None:
    with pytest.raises(ConfigException, match=r"set ssl\.truststore\.location or .* certifi"):
        client_context(TlsSettings())


BARE_NAME: Final = re.compile(r"(?<!kafka\.)\b(ssl\.[a-z]|security\.protocol|bootstrap\.servers)")


@pytest.mark.parametrize("is_named", [False, True], ids=["no certificates", "SSL_CERT_FILE"])
def test_an_option_about_the_system_s_certificates_is_named_as_its_user_knows_it(
    *, is_named: bool, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_named:
        monkeypatch.setenv("SSL_CERT_FILE", str(nowhere / "none"))
    for prefix in ("kafka.", "schema.registry."):
        expected = f"{prefix}ssl.truststore.location or {prefix}ssl.truststore.certificates"
        with (
            name_options(prefix.__add__),
            pytest.raises(ConfigException, match=f" set {re.escape(expected)}"),
        ):
            client_context(TlsSettings())


@pytest.mark.parametrize("name", ["stranger", "self-signed", "elsewhere", "no suite", "no key"])
def test_an_option_about_a_handshake_is_named_as_its_user_knows_it(
    name: str, tmp_path: Path, made: Certificates, trusting: TlsSettings
) -> None:
    leaf = made.self_signed if name == "self-signed" else made.by_name.get(name, made.server)
    clients = made.root if name == "no key" else None
    context = server_context(tmp_path, leaf, clients=clients)
    if name == "no suite":
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        trusting = replace(trusting, ciphers="ECDHE-ECDSA-AES256-GCM-SHA384")
    with name_options("kafka.".__add__):
        error, _ = _refusal(context, layer(trusting))
    assert "kafka." in str(error)
    assert not BARE_NAME.search(str(error))


def test_a_context_is_as_strict_as_java_s(trusting: TlsSettings) -> None:
    context = client_context(trusting).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.maximum_version is ssl.TLSVersion.TLSv1_3
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT


@given(st.lists(st.integers(1, 3 * PIECE_BYTES), max_size=8), st.integers(0, 255))
def test_pieces_are_all_bytes_in_order_and_never_too_large(sizes: list[int], byte: int) -> None:
    data = bytes([byte, *range(255)]) * (sum(sizes) // 256 + 1)
    buffers, at = deque[memoryview](), 0
    for size in sizes:
        buffers.append(memoryview(data)[at : at + size])
        at += size
    found, finished = bytearray(), 0
    while buffers:
        piece, ended = take_piece(buffers)
        assert len(piece) == PIECE_BYTES or not buffers
        found += piece
        finished += ended
        # A buffer has ended exactly when its last byte was taken.
        assert finished == sum(sum(sizes[: n + 1]) <= len(found) for n in range(len(sizes)))
    assert found == data[:at]


def test_a_large_buffer_is_cut_and_not_copied() -> None:
    data = bytearray(2 * PIECE_BYTES)
    buffers = deque([memoryview(data)])
    piece, finished = take_piece(buffers)
    assert isinstance(piece, memoryview)
    assert (piece.obj, finished) == (data, 0)
    assert take_piece(buffers)[1] == 1


def test_one_call_encrypts_a_piece_in_full_records(
    made: Certificates, trusting: TlsSettings, tmp_path: Path
) -> None:
    client, _ = _secured(made, trusting, tmp_path)
    sent = client.encrypt(bytes(PIECE_BYTES))
    assert _records(sent) == 16
    assert len(sent) < PIECE_BYTES * 1.002


def test_clients_are_used_by_one_call_after_the_other(
    made: Certificates, trusting: TlsSettings, tmp_path: Path
) -> None:
    with served(server_context(tmp_path, made.server), echo) as server, ExitStack() as stack:
        client: Client = stack.enter_context(connected(layer(trusting), server.port))
        client.secure()
        for number in range(50):
            client.send(b"%d" % number)
            assert client.receive_exactly(len(str(number))) == b"%d" % number


def test_no_other_module_imports_ssl_even_for_its_types() -> None:
    package = Path(tls.__file__).parents[1]
    found = [
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        if re.search(r"^\s*(import ssl|from ssl )", file.read_text(), re.MULTILINE)
    ]
    assert found == ["network/tls.py"]
