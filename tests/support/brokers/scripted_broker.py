"""A broker on a loopback socket that answers as a test says: properly, with noise, or not."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

from spark_kafka_sink.wire import message_codecs
from spark_kafka_sink.wire.frames import FrameSplitter
from spark_kafka_sink.wire.messages import (
    APIS,
    PRODUCE,
    ApiVersion,
    ApiVersionsResponse,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    ProduceResponse,
    Response,
)
from spark_kafka_sink.wire.primitives import Writer
from support.brokers.server import Server

# The first byte of a TLS record of the handshake.
_TLS_HANDSHAKE = b"\x16"


class ScriptedBroker(Server):
    """Answers ApiVersions; answers Metadata with `metadata` and Produce with `produced`.

    Requests whose response is None get no response.

    answers: by API key, the responses to requests of other APIs.

    speaks: by API key, the last supported version instead of the newest; None if the API is
    unknown.

    hangs_up_on: the API keys of requests at which the connection is closed.

    noise: the bytes that answer a connection's first request, or the start of a TLS handshake; the
    connection is then closed.
    listens: the address, with port 0 for any. asked: the API keys of all requests so far.
    """

    def __init__(
        self, noise: bytes | None = None, listens: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        self.metadata: MetadataResponse | None = None
        self.produced: ProduceResponse | None = None
        self.answers: dict[int, Response] = {}
        self.asked: list[int] = []
        self.speaks: dict[int, int | None] = {}
        self.hangs_up_on: set[int] = set()
        self._noise = noise
        self._server = socket.create_server(listens)
        self.port: int = self._server.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def address(self) -> str:
        """The broker's address for bootstrap.servers."""
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Close the listener and every connection, also one that is accepted meanwhile."""
        _end(self._server)
        self._threads[0].join(10)
        for connection in self._connections:
            _end(connection)
        for thread in self._threads:
            thread.join(10)

    def _start(self, target: object, *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        splitter = FrameSplitter()
        try:
            while data := connection.recv(65536):
                if self._noise is not None and data.startswith(_TLS_HANDSHAKE):
                    connection.sendall(self._noise)
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                for frame in splitter.feed(data):
                    key, version, correlation_id = struct.unpack_from(">hhi", frame)
                    self.asked.append(key)
                    if self._noise is not None:
                        connection.sendall(self._noise)
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                    if key in self.hangs_up_on:
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                    connection.sendall(self._answer(key, version, correlation_id))
        except OSError:
            return

    def _answer(self, key: int, version: int, correlation_id: int) -> bytes:
        response: Response | None = self.produced if key == PRODUCE.key else self.metadata
        response = self.answers.get(key, response)
        if key == 18:
            response = ApiVersionsResponse(
                error_code=0,
                api_keys=[
                    ApiVersion(api_key=api.key, min_version=0, max_version=last)
                    for api in APIS.values()
                    if (last := self.speaks.get(api.key, api.max_version)) is not None
                ],
            )
        elif response is None:
            return b""
        flexible = APIS[key].is_flexible(version)
        writer = Writer()
        writer.out += struct.pack(">ii", 0, correlation_id)
        if flexible and key != 18:
            writer.out.append(0)
        message_codecs.writer(APIS[key].response, version, flexible=flexible)(response, writer)
        struct.pack_into(">i", writer.out, 0, len(writer.out) - 4)
        return bytes(writer.out)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):  # closed already, or never connected
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def describe(port: int, *topics: str, node_id: int = 1) -> MetadataResponse:
    """Return metadata of one broker that leads the only partition of each topic."""
    leader = MetadataResponsePartition(
        error_code=0, partition_index=0, leader_id=node_id, leader_epoch=0,
        replica_nodes=[node_id], isr_nodes=[node_id],
    )  # fmt: skip
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=port)],
        topics=[MetadataResponseTopic(error_code=0, name=n, partitions=[leader]) for n in topics],
    )
