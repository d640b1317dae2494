"""Varints of entire columns equal those of a plain reference and of other clients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.util import encode_varint, size_of_varint

from spark_kafka_sink.records.varint import varint_size, varint_widths, varint_words, zigzag

LONG_MAX = 2**63 - 1
LONG_MIN = -(2**63)
INT64 = st.integers(LONG_MIN, LONG_MAX)

# ByteUtilsTest of the Java client; the last three from librdkafka.
VECTORS = {
    0: "00",
    -1: "01",
    1: "02",
    63: "7e",
    -64: "7f",
    64: "8001",
    -65: "8101",
    8191: "fe7f",
    -8192: "ff7f",
    8192: "808001",
    1_048_575: "feff7f",
    134_217_727: "feffff7f",
    134_217_728: "8080808001",
    2_147_483_647: "feffffff0f",
    -2_147_483_648: "ffffffff0f",
    17_179_869_183: "feffffff7f",
    LONG_MAX: "feffffffffffffffff01",
    LONG_MIN: "ffffffffffffffffff01",
    253: "fa03",
    1_234_567_890_101_112: "f08dd3c8a7b5b104",
    -1_234_567_890_101_112: "ef8dd3c8a7b5b104",
}

# Both sides of every value at which a varint takes another byte.
EDGES = sorted(
    {
        sign * 2**bits + step
        for bits in range(63)
        for sign in (1, -1)
        for step in (-1, 0, 1)
        if LONG_MIN <= sign * 2**bits + step <= LONG_MAX
    }
    | {LONG_MIN, LONG_MAX}
)


def _reference(value: int) -> bytes:
    rest = value * 2 if value >= 0 else -value * 2 - 1
    groups = []
    while rest > 127:
        groups.append(rest % 128 + 128)
        rest //= 128
    return bytes([*groups, rest])


def _column(values: list[int]) -> list[bytes]:
    zigzagged = zigzag(np.array(values, np.int64))
    widths = varint_widths(zigzagged)
    first, second = varint_words(zigzagged, widths)
    words = np.stack([first, np.zeros_like(first) if second is None else second], axis=1)
    assert not any(any(row.tobytes()[width:]) for row, width in zip(words, widths, strict=True))
    return [row.tobytes()[:width] for row, width in zip(words, widths.tolist(), strict=True)]


@pytest.mark.parametrize(("value", "expected"), VECTORS.items())
def test_varints_are_those_of_other_clients(value: int, expected: str) -> None:
    assert [varint.hex() for varint in _column([value])] == [expected]
    assert varint_size(value) == len(expected) // 2


def test_varints_at_every_edge_in_one_column() -> None:
    assert _column(EDGES) == [_reference(value) for value in EDGES]


@given(values=st.lists(INT64 | st.integers(-70, 70), max_size=30))
def test_a_column_of_varints_is_each_value_s_varint(values: list[int]) -> None:
    column = _column(values)
    assert column == [_reference(value) for value in values]
    for value, varint in zip(values, column, strict=True):
        theirs = bytearray()
        encode_varint(value, theirs.append)
        assert varint == theirs


@given(value=INT64 | st.sampled_from(EDGES))
def test_sizes_are_known_before_encoding(value: int) -> None:
    assert varint_size(value) == len(_reference(value)) == size_of_varint(value)


@given(values=st.lists(INT64, max_size=30))
def test_zigzag_puts_small_magnitudes_first(values: list[int]) -> None:
    zigzagged = zigzag(np.array(values, np.int64))
    assert zigzagged.dtype == np.uint64
    assert zigzagged.tolist() == [v * 2 if v >= 0 else -v * 2 - 1 for v in values]
