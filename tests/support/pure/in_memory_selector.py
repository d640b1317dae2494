"""A selector without sockets, with brokers that answer, refuse, hang or stay silent."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from spark_kafka_sink.errors import SslAuthenticationException
from spark_kafka_sink.network.selector import (
    Address,
    Closed,
    Connected,
    PartlySent,
    Received,
    SelectorEvent,
    Sent,
)
from spark_kafka_sink.wire import message_codecs
from spark_kafka_sink.wire.messages import (
    APIS,
    ApiVersion,
    ApiVersionsResponse,
    MetadataResponse,
    ProduceResponse,
    Response,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from spark_kafka_sink.wire.primitives import Buffer, Writer


class InMemorySelector:
    """Replaces `Selector`; one broker per port answers a few APIs.

    It answers ApiVersions, Metadata, Produce and logins by PLAIN.

    refuse: the ports and hosts that refuse connections. hang: connections never complete. silent:
    requests get no response. unanswered: the API keys whose requests get none. throttle_ms: the
    throttle time in responses. session_lifetime_ms: of a login, 0 for no limit. is_slow: frames are
    not completely written. pass_time: called with the timeout of each poll.
    """

    def __init__(self) -> None:
        self.refuse: set[int | str] = set()
        self.refuse_by_tls: set[str] = set()
        self.hang = False
        self.silent = False
        self.unanswered = set[int]()
        self.is_slow = False
        self.pass_time: Callable[[float], None] = lambda _: None
        self.throttle_ms = 0
        self.session_lifetime_ms = 0
        self.connects: list[int] = []
        self.hosts: list[str] = []
        self.waits: list[float] = []
        # The API key and the version of every request.
        self.versions: list[tuple[int, int]] = []
        self._ports: dict[int, int] = {}
        self._requests: dict[int, list[int]] = {}
        self._pending: list[SelectorEvent] = []
        self._broken_at = 0

    def connect(self, channel_id: int, address: Address, layer: object = None) -> None:
        """Accept, refuse or ignore a connection."""
        host, port = address[1][:2]
        self.connects.append(port)
        self.hosts.append(host)
        if port in self.refuse or host in self.refuse:
            self._pending.append(Closed(channel_id, "Connection refused"))
            return
        self._ports[channel_id] = port
        if not self.hang:
            self._pending.append(Connected(channel_id))
        if host in self.refuse_by_tls:
            error = SslAuthenticationException("the TLS handshake failed")
            self._pending.append(Closed(channel_id, str(error), error))

    def send(self, channel_id: int, buffers: Sequence[Buffer]) -> None:
        """Process a request and answer it."""
        port = self._ports[channel_id]
        frame = b"".join(bytes(buffer) for buffer in buffers)
        _, key, version, correlation_id = struct.unpack_from(">ihhi", frame)
        self.versions.append((key, version))
        self._requests.setdefault(port, []).append(key)
        if not self.is_slow:
            self._pending.append(Sent(channel_id))
        if not self.silent and key not in self.unanswered:
            answer = self.answer(key, version, correlation_id)
            self._pending.append(Received(channel_id, answer))

    def rest(self, channel_id: int) -> Iterator[SelectorEvent]:
        """Yield the pending events of a channel."""
        yield from [event for event in self._pending if event.channel == channel_id]

    def close(self, channel_id: int) -> None:
        """Close a channel."""
        self._ports.pop(channel_id, None)

    def close_all(self) -> None:
        """Close all channels."""
        self._ports.clear()

    def wakeup(self) -> None:
        """Do nothing, because nothing waits."""

    def poll(self, timeout_s: float) -> list[SelectorEvent]:
        """Return the pending events, and record the timeout."""
        self.waits.append(timeout_s)
        self.pass_time(timeout_s)
        pending, self._pending = self._pending, []
        return pending

    def break_port(self, port: int, error: SslAuthenticationException | None = None) -> None:
        """Break every connection to a port. error: if the TLS handshake has failed."""
        for channel_id in [c for c, p in self._ports.items() if p == port]:
            del self._ports[channel_id]
            if Connected(channel_id) in self._pending:
                self._pending.remove(Connected(channel_id))
            reason = "Connection reset by peer" if error is None else str(error)
            self._pending.append(Closed(channel_id, reason, error))

    def break_all(self) -> None:
        """Break every connection, and start to record new ones."""
        self._broken_at = len(self.connects)
        for port in set(self._ports.values()):
            self.break_port(port)

    def connects_since(self, _time: float) -> list[int]:
        """Return the ports that were connected to since `break_all`."""
        return self.connects[self._broken_at :]

    def say(self, port: int, data: bytes) -> None:
        """Deliver bytes that a broker sends without a request."""
        for channel_id in [c for c, p in self._ports.items() if p == port]:
            self._pending.append(Received(channel_id, data))

    def take(self, port: int) -> None:
        """Write a part of a frame of slow connections to a port."""
        self._pending += [PartlySent(c) for c, p in self._ports.items() if p == port]

    def write(self, port: int) -> None:
        """Write the frames of slow connections to a port."""
        self._pending += [Sent(c) for c, p in self._ports.items() if p == port]

    def requests_to(self, port: int) -> list[int]:
        """Return the API keys of the requests to a broker."""
        return self._requests.get(port, [])

    def answer(self, key: int, version: int, correlation_id: int) -> bytes:
        """Return the frame of a response."""
        response: Response
        if key == 18:
            response = ApiVersionsResponse(
                error_code=0,
                api_keys=[
                    ApiVersion(api_key=api.key, min_version=0, max_version=api.max_version)
                    for api in APIS.values()
                ],
            )
        elif key == 0:
            response = ProduceResponse(responses=[])
        elif key == 17:
            response = SaslHandshakeResponse(error_code=0, mechanisms=[])
        elif key == 36:
            response = SaslAuthenticateResponse(
                error_code=0,
                error_message=None,
                auth_bytes=b"",
                session_lifetime_ms=self.session_lifetime_ms,
            )
        else:
            response = MetadataResponse(brokers=[], topics=[], throttle_time_ms=self.throttle_ms)
        flexible = APIS[key].is_flexible(version)
        writer = Writer()
        writer.out += struct.pack(">ii", 0, correlation_id)
        if flexible and key != 18:
            writer.out.append(0)
        message_codecs.writer(APIS[key].response, version, flexible=flexible)(response, writer)
        struct.pack_into(">i", writer.out, 0, len(writer.out) - 4)
        return bytes(writer.out)
