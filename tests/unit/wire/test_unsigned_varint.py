"""Lengths of compact types are varints of at most five bytes and 32 bits, as in ByteUtils."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.schemas.fields.codecs import EncodeBuffer, UnsignedVarInt32

from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.wire.primitives import read_unsigned_varint, write_unsigned_varint

# Both sides of every value at which a varint takes another byte, and the largest.
EDGES = [2 ** (7 * groups) + step for groups in range(1, 5) for step in (-1, 0, 1)]
VALUES = st.integers(0, 2**31 - 1) | st.sampled_from([0, 1, *EDGES, 2**31 - 1])


def _written(value: int) -> bytes:
    out = bytearray()
    write_unsigned_varint(out, value)
    return bytes(out)


@given(value=VALUES, before=st.binary(max_size=3), after=st.binary(max_size=3))
def test_varints_are_kafka_python_s_and_are_read_where_they_stand(
    value: int, before: bytes, after: bytes
) -> None:
    theirs = EncodeBuffer()
    UnsignedVarInt32.encode_into(theirs, value)
    varint = _written(value)
    assert varint == theirs.result()
    read = read_unsigned_varint(before + varint + after, len(before))
    assert read == (value, len(before) + len(varint))


@pytest.mark.parametrize("value", [2**31, 2**32 - 1])
def test_all_32_bits_can_be_read(value: int) -> None:
    assert read_unsigned_varint(_written(value), 0) == (value, 5)


@pytest.mark.parametrize(
    "data",
    ["808080808000", "80808080808000", "ffffffffff01", "ffffffff1f", "ffffffff7f"],
)
def test_more_than_five_bytes_or_32_bits_are_refused(data: str) -> None:
    with pytest.raises(ProtocolError, match="varint"):
        read_unsigned_varint(bytes.fromhex(data), 0)
