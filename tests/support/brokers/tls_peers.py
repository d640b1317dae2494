"""TLS servers on 127.0.0.1 made with Python's ssl, and a client with a socket."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spark_kafka_sink.network.tls import TlsLayer
from support.brokers.certificates import Certificate


def server_context(
    folder: Path, certificate: Certificate, *, clients: str | None = None, version: str = ""
) -> ssl.SSLContext:
    """Return the context of a server.

    clients: the CA of client certificates, which are then required. version: the only TLS version.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    path = folder / f"{certificate.name}-server.pem"
    path.write_text(certificate.key + certificate.chain)
    context.load_cert_chain(path)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients)
    if version:
        only = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}[version]
        context.minimum_version = context.maximum_version = only
    return context


class Server:
    """A server for one connection, in a thread; `failure` is its exception, if any."""

    def __init__(self, context: ssl.SSLContext, serve: Callable[[ssl.SSLSocket], None]) -> None:
        self.failure: Exception | None = None
        self._context = context
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(20)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            plain, _ = self._listener.accept()
            plain.settimeout(20)
            with plain, self._context.wrap_socket(plain, server_side=True) as connection:
                self._serve(connection)
        except OSError as error:
            self.failure = error

    def join(self) -> None:
        """Wait for the end of the connection."""
        self._thread.join(20)
        self._listener.close()


@contextmanager
def served(
    context: ssl.SSLContext, serve: Callable[[ssl.SSLSocket], None] = lambda _: None
) -> Iterator[Server]:
    """Run a server for one connection, which ends with the block."""
    server = Server(context, serve)
    try:
        yield server
    finally:
        with suppress(OSError):  # wakes a server without a connection
            socket.create_connection(("127.0.0.1", server.port), timeout=1).close()
        server.join()


class Client:
    """A TLS layer with its socket, used synchronously."""

    def __init__(self, layer: TlsLayer, connection: socket.socket) -> None:
        self.layer = layer
        self.socket = connection
        connection.settimeout(20)

    def secure(self) -> bytes:
        """Complete the handshake, and return data that came after it."""
        found = b""
        self.socket.sendall(self.layer.outgoing())
        while not self.layer.is_secured:
            found += self.receive()
        return found

    def receive(self, size: int = 256 * 1024) -> bytes:
        """Read once; send the alert if the layer rejects the data."""
        data = self.socket.recv(size)
        if not data:
            raise EOFError("the broker closed the connection")
        try:
            return self.layer.received(data)
        finally:
            with suppress(OSError):
                self.socket.sendall(self.layer.outgoing())

    def receive_exactly(self, size: int) -> bytes:
        """Read until `size` bytes have arrived."""
        found = bytearray()
        while len(found) < size:
            found += self.receive()
        return bytes(found)

    def send(self, data: bytes) -> None:
        """Encrypt and send."""
        self.socket.sendall(self.layer.encrypt(data))


@contextmanager
def connected(layer: TlsLayer, port: int) -> Iterator[Client]:
    """Yield a client connected to a port."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        yield Client(layer, connection)
