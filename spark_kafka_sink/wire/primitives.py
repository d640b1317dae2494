"""Read Kafka's primitive types from buffers, and write them.

Every read function takes ``(buffer, position)`` and returns ``(value, next position)``. It compares
a length with the number of remaining bytes *before* it allocates memory. So a wrong length raises
an exception and never uses much memory. The length of an array is rejected if its elements would
not fit into the remaining bytes even at their smallest size. `message_codecs` reads the fixed-width
integers itself.

Invalid UTF-8 in text is replaced by U+FFFD, as in the Java client, so that an invalid error message
of a broker does not break the connection.

Compact types (KIP-482) encode ``length + 1`` as an unsigned varint; 0 means null.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias
from uuid import UUID

from spark_kafka_sink.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

ZERO_UUID = UUID(int=0)

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class Records(NamedTuple):
    """Record batches to send, in several buffers that are never copied into one."""

    buffers: tuple[Buffer, ...]
    size_bytes: int


class Writer:
    """Collects the bytes of a message. Buffers with records are inserted without a copy."""

    __slots__ = ("_splices", "out")

    def __init__(self) -> None:
        self.out = bytearray()
        self._splices: list[tuple[int, Records]] = []

    def splice(self, records: Records) -> None:
        """Add `records` at the current end of the message without copying them."""
        self._splices.append((len(self.out), records))

    @property
    def size_bytes(self) -> int:
        """The size of the message in bytes, including its records."""
        return len(self.out) + sum(records.size_bytes for _, records in self._splices)

    def buffers(self) -> list[Buffer]:
        """Return the message as the buffers to send, in order."""
        if not self._splices:
            return [self.out]
        view, start = memoryview(self.out), 0
        parts: list[Buffer] = []
        for end, records in self._splices:
            parts.append(view[start:end])
            parts.extend(records.buffers)
            start = end
        if start < len(view):
            parts.append(view[start:])
        return parts


def need(buffer: Buffer, position: int, size: int) -> int:
    """Return the position `size` bytes after `position`.

    Raise ProtocolError if `size` is negative or the buffer ends before that position.
    """
    end = position + size
    if size < 0 or end > len(buffer):
        message = (
            f"a length of {size} bytes at byte {position} of the broker's response does not fit "
            f"the {len(buffer) - position} bytes that are left"
        )
        raise ProtocolError(message)
    return end


def read_unsigned_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a base-128 varint of at most five bytes (ByteUtils.readUnsignedVarint)."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            message = (
                f"the varint at byte {position - 5} of the broker's response is longer than "
                "five bytes"
            )
            raise ProtocolError(message)
    if value > 0xFFFFFFFF:
        message = (
            f"the varint that ends at byte {position} of the broker's response exceeds 32 bits"
        )
        raise ProtocolError(message)
    return value, position


def write_unsigned_varint(out: bytearray, value: int) -> None:
    """Append `value` (>= 0) as a base-128 varint."""
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _read_length16(buffer: Buffer, position: int) -> tuple[int, int]:
    return _INT16.unpack_from(buffer, position)[0], position + 2


def _read_length32(buffer: Buffer, position: int) -> tuple[int, int]:
    return _INT32.unpack_from(buffer, position)[0], position + 4


def _read_compact_length(buffer: Buffer, position: int) -> tuple[int, int]:
    length, position = read_unsigned_varint(buffer, position)
    return length - 1, position


def _not_null(kind: str, position: int) -> ProtocolError:
    return ProtocolError(
        f"the {kind} at byte {position} of the broker's response is null, which the protocol does "
        "not allow"
    )


def read_nullable_string(buffer: Buffer, position: int) -> tuple[str | None, int]:
    """Read a string with an int16 length; -1 means None. Invalid UTF-8 becomes U+FFFD."""
    length, position = _read_length16(buffer, position)
    if length == -1:
        return None, position
    end = need(buffer, position, length)
    return str(buffer[position:end], "utf-8", "replace"), end


def read_compact_nullable_string(buffer: Buffer, position: int) -> tuple[str | None, int]:
    """Read a string with a varint length; 0 means None. Invalid UTF-8 becomes U+FFFD."""
    length, position = _read_compact_length(buffer, position)
    if length == -1:
        return None, position
    end = need(buffer, position, length)
    return str(buffer[position:end], "utf-8", "replace"), end


def read_string(buffer: Buffer, position: int) -> tuple[str, int]:
    """Read a string with an int16 length. Raise ProtocolError if it is null."""
    value, end = read_nullable_string(buffer, position)
    if value is None:
        raise _not_null("string", position)
    return value, end


def read_compact_string(buffer: Buffer, position: int) -> tuple[str, int]:
    """Read a string with a varint length. Raise ProtocolError if it is null."""
    value, end = read_compact_nullable_string(buffer, position)
    if value is None:
        raise _not_null("string", position)
    return value, end


def read_nullable_bytes(buffer: Buffer, position: int) -> tuple[memoryview | None, int]:
    """Read bytes with an int32 length, as a view into the buffer; -1 means None."""
    length, position = _read_length32(buffer, position)
    if length == -1:
        return None, position
    end = need(buffer, position, length)
    return memoryview(buffer)[position:end], end


def read_compact_nullable_bytes(buffer: Buffer, position: int) -> tuple[memoryview | None, int]:
    """Read bytes with a varint length, as a view into the buffer; 0 means None."""
    length, position = _read_compact_length(buffer, position)
    if length == -1:
        return None, position
    end = need(buffer, position, length)
    return memoryview(buffer)[position:end], end


def read_nullable_array_length(buffer: Buffer, position: int, element: int) -> tuple[int, int]:
    """Read the int32 length of an array; -1 means a null array.

    element: the smallest size of one element, in bytes.
    """
    length, position = _read_length32(buffer, position)
    if length != -1:
        need(buffer, position, length * element)
    return length, position


def read_compact_nullable_array_length(
    buffer: Buffer, position: int, element: int
) -> tuple[int, int]:
    """Read the varint length of a compact array; the result -1 means a null array.

    element: the smallest size of one element, in bytes.
    """
    length, position = _read_compact_length(buffer, position)
    if length != -1:
        need(buffer, position, length * element)
    return length, position


def read_array_length(buffer: Buffer, position: int, element: int) -> tuple[int, int]:
    """Read the int32 length of an array. Raise ProtocolError if it is null."""
    length, end = read_nullable_array_length(buffer, position, element)
    if length == -1:
        raise _not_null("array", position)
    return length, end


def read_compact_array_length(buffer: Buffer, position: int, element: int) -> tuple[int, int]:
    """Read the varint length of a compact array. Raise ProtocolError if it is null."""
    length, end = read_compact_nullable_array_length(buffer, position, element)
    if length == -1:
        raise _not_null("array", position)
    return length, end


def read_uuid(buffer: Buffer, position: int) -> tuple[UUID, int]:
    """Read 16 bytes as a UUID."""
    end = need(buffer, position, 16)
    return UUID(bytes=bytes(buffer[position:end])), end


def write_string(out: bytearray, value: str | None) -> None:
    """Append a string with an int16 length, -1 for None.

    Raise ProtocolError if it is longer than 32,767 bytes.
    """
    if value is None:
        out += b"\xff\xff"
        return
    data = _encoded(value)
    out += _INT16.pack(len(data))
    out += data


def write_compact_string(out: bytearray, value: str | None) -> None:
    """Append a string with a varint length, 0 for None.

    Raise ProtocolError if it is longer than 32,767 bytes.
    """
    write_compact_bytes(out, None if value is None else _encoded(value))


def _encoded(value: str) -> bytes:
    data = value.encode()
    if len(data) > 0x7FFF:
        message = (
            f"a string of {len(data)} bytes is longer than the 32767 bytes that the protocol allows"
        )
        raise ProtocolError(message)
    return data


def write_bytes(out: bytearray, value: Buffer | None) -> None:
    """Append bytes with an int32 length, -1 for None."""
    if value is None:
        out += b"\xff\xff\xff\xff"
        return
    out += _INT32.pack(len(value))
    out += value


def write_compact_bytes(out: bytearray, value: Buffer | None) -> None:
    """Append bytes with a varint length, 0 for None."""
    if value is None:
        out.append(0)
        return
    write_unsigned_varint(out, len(value) + 1)
    out += value


def write_array_length(out: bytearray, length: int) -> None:
    """Append the int32 length of an array, -1 for a null array."""
    out += _INT32.pack(length)


def write_compact_array_length(out: bytearray, length: int) -> None:
    """Append the varint length of a compact array; `length` is -1 for a null array."""
    write_unsigned_varint(out, length + 1)


def write_records(writer: Writer, records: Records | None) -> None:
    """Append records with an int32 length, without copying them."""
    writer.out += _INT32.pack(-1 if records is None else records.size_bytes)
    if records is not None:
        writer.splice(records)


def write_compact_records(writer: Writer, records: Records | None) -> None:
    """Append records with a varint length, without copying them."""
    write_unsigned_varint(writer.out, 0 if records is None else records.size_bytes + 1)
    if records is not None:
        writer.splice(records)
