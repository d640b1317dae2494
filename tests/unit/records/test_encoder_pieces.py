"""Pieces of many columns gathered into one buffer equal the pieces joined one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.records.columns import BinaryColumn
from spark_kafka_sink.records.encoder import Pieces
from spark_kafka_sink.records.varint import FieldBytes

# An Arrow view contains up to 12 bytes itself.
PIECES = st.none() | st.binary(max_size=14) | st.binary(min_size=11, max_size=80)
GIBIBYTE = 1 << 30


def column(values: list[bytes | None], skipped: int) -> BinaryColumn:
    """Return a column whose first rows are sliced off, and whose nulls have bytes."""
    there = [b"null" if value is None else value for value in values]
    plain = BinaryColumn.of(pa.array([b"xyz"] * skipped + there, pa.large_binary())[skipped:])
    valid = np.array([value is not None for value in values], np.bool_)
    return BinaryColumn(plain.data, plain.offsets, None if valid.all() else valid)


@given(
    st.lists(st.tuples(PIECES, PIECES), max_size=50),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_every_piece_is_where_it_was_put(
    rows: list[tuple[bytes | None, bytes | None]], skipped: int, random: object
) -> None:
    first, second = [row[0] for row in rows], [row[1] for row in rows]
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]  # hypothesis' Random
    pieces = Pieces(2 * len(rows))
    pieces.put(slice(0, None, 2), column(first, skipped))
    by_order = column(second, skipped)
    numbers = np.array(order, np.int64)
    pieces.put_in_order(slice(1, None, 2), by_order, numbers, by_order.wire_lengths[numbers])
    data, offsets = pieces.gather()
    expected = [
        piece or b"" for row, place in enumerate(order) for piece in (first[row], second[place])
    ]
    assert bytes(data) == b"".join(expected)
    assert offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()


@given(st.lists(st.binary(max_size=24), min_size=1, max_size=30))
def test_varints_of_any_length_are_pieces_too(rows: list[bytes]) -> None:
    words = np.frombuffer(b"".join(row.ljust(24, b"\0") for row in rows), np.uint64).reshape(-1, 3)
    lengths = np.array([len(row) for row in rows])
    used = -(-max(map(len, rows)) // 8) or 1
    pieces = Pieces(len(rows))
    at = np.arange(len(rows))[::-1]
    pieces.put_fields(at, FieldBytes(np.ascontiguousarray(words[:, :used]), lengths))
    assert bytes(pieces.gather()[0]) == b"".join(reversed(rows))


def test_rows_may_be_gibibytes_apart() -> None:
    """A view's place has 31 bits. The gaps between the rows here are nulls, and use no memory."""
    starts = [0, GIBIBYTE - 10, 2 * GIBIBYTE + 5, 3 * GIBIBYTE - 20]
    rows = [b"row at %13d" % start for start in starts]
    data = np.zeros(3 * GIBIBYTE, np.uint8)
    for start, row in zip(starts, rows, strict=True):
        data[start : start + 20] = np.frombuffer(row, np.uint8)
    offsets = np.array([edge for start in starts for edge in (start, start + 20)])
    valid = np.array([True, False] * 3 + [True])
    pieces = Pieces(7)
    pieces.put(slice(None), BinaryColumn(data, offsets, valid))
    assert bytes(pieces.gather()[0]) == b"".join(rows)
