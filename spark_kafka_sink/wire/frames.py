"""Encode requests into frames, and decode response frames.

A frame is an int32 size followed by that many bytes. A request frame has a header and a message::

    size i32 | api_key i16 | api_version i16 | correlation_id i32 | client_id | [tags] | message

The client_id in the header has an int16 length in flexible versions too (RequestHeader v2). A
response header is a correlation id. In flexible versions, tagged fields follow it. The header of an
ApiVersions response is an exception: it never contains tagged fields, so that a client can read a
response in a version that it did not request (KIP-511).

`decode_response` decodes all responses of brokers. For any bytes, it either returns a message or
raises ProtocolError. It ignores extra bytes after a message, because some brokers of other vendors
write a superfluous empty tag buffer. The Java client and librdkafka ignore them, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.wire import message_codecs
from spark_kafka_sink.wire.messages import API_VERSIONS, Api, Request, Response
from spark_kafka_sink.wire.primitives import Buffer, Writer, read_unsigned_varint, write_string

UNLIMITED = -1

# The first bytes that servers of other protocols send.
_OTHER_PROTOCOLS: Final = {
    b"HTTP": "speaks HTTP",
    b"SSH-": "speaks SSH",
}
# The first bytes of a TLS alert: the record type, and the major version.
_TLS_ALERT: Final = b"\x15\x03"
_HEADER = struct.Struct(">ihhi")
_INT32 = struct.Struct(">i")


def encode_request(
    api: Api, version: int, correlation_id: int, client_id: str, message: Request
) -> list[Buffer]:
    """Return one request frame as the buffers to send, in order. Record batches are not copied."""
    flexible = api.is_flexible(version)
    writer = Writer()
    writer.out += _HEADER.pack(0, api.key, version, correlation_id)
    write_string(writer.out, client_id)
    if flexible:
        writer.out.append(0)
    message_codecs.writer(api.request, version, flexible=flexible)(message, writer)
    _INT32.pack_into(writer.out, 0, writer.size_bytes - 4)
    return writer.buffers()


def response_correlation_id(frame: Buffer) -> int:
    """Return the correlation id of a response frame. Raise ProtocolError if it is too short."""
    if len(frame) < 4:
        message = f"a response of {len(frame)} bytes has no correlation id"
        raise ProtocolError(message)
    correlation_id: int = _INT32.unpack_from(frame)[0]
    return correlation_id


def decode_response(api: Api, version: int, frame: Buffer) -> Response:
    """Return the message in a response frame. Raise ProtocolError if the bytes are invalid.

    frame: the frame without the int32 size.
    """
    flexible = api.is_flexible(version)
    try:
        position = 4
        if flexible and api is not API_VERSIONS:
            position = _skip_tagged(frame, position)
        read = message_codecs.reader(api.response, version, flexible=flexible)
        message: Response
        message, _end = read(frame, position)
    except (ProtocolError, IndexError, struct.error, UnicodeDecodeError) as error:
        text = f"a {api.name} v{version} response of {len(frame)} bytes cannot be read: {error}"
        raise ProtocolError(text, api=api.name) from error
    return message


def _skip_tagged(frame: Buffer, position: int) -> int:
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):
        _tag, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position += size
    return position


class FrameSplitter:
    """Splits a stream of bytes into response frames (NetworkReceive).

    The bytes may arrive in pieces of any size. Raise ProtocolError if the size field of a frame is
    negative or larger than `max_size_bytes`. This check comes before memory is used for the frame.
    has_tls: whether the bytes came through TLS, for error messages.
    """

    __slots__ = ("_buffer", "_has_tls", "max_size_bytes")

    def __init__(self, max_size_bytes: int = UNLIMITED, *, has_tls: bool = False) -> None:
        self._buffer = bytearray()
        self._has_tls = has_tls
        self.max_size_bytes = max_size_bytes

    @property
    def is_inside_frame(self) -> bool:
        """Whether the bytes received so far end in the middle of a frame."""
        return bool(self._buffer)

    @property
    def holds_tls(self) -> bool:
        """Whether the received bytes are a TLS alert. A peer that expects TLS sends one."""
        return self._buffer.startswith(_TLS_ALERT)

    def feed(self, data: Buffer) -> Iterator[bytes]:
        """Add received bytes. Yield the frames that are now complete, without the int32 size."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= 4:
            (size,) = _INT32.unpack_from(self._buffer, start)
            self._check(size, start)
            if len(self._buffer) - start - 4 < size:
                break
            start += 4
            yield bytes(memoryview(self._buffer)[start : start + size])
            start += size
        if start:
            del self._buffer[:start]

    def _check(self, size: int, start: int) -> None:
        if size < 0:
            message = f"invalid receive (size = {size}): the peer does not speak Kafka's protocol"
            raise ProtocolError(message)
        if self.max_size_bytes != UNLIMITED and size > self.max_size_bytes:
            del self._buffer[:start]
            said = bytes(self._buffer[:4])
            known = [text for first, text in _OTHER_PROTOCOLS.items() if said.startswith(first)]
            if not known and not self._has_tls:
                known = ["may expect TLS"]
            message = (
                f"invalid receive (size = {size} larger than {self.max_size_bytes}): "
                f"the peer does not speak Kafka's protocol{''.join(f': it {it}' for it in known)}"
            )
            raise ProtocolError(message)
