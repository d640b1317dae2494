"""Varints side by side, compared with kafka-python's, row by row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.util import encode_varint

from spark_kafka_sink.records.varint import VarintFields, zigzag

WIDE_AND_NARROW = st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70)


def rows_of(*columns: list[int], constant: int) -> list[bytes]:
    """Return each row's varints, with a constant byte after the first."""
    fields = VarintFields(len(columns[0]))
    for number, values in enumerate(columns):
        fields.varint(zigzag(np.array(values, np.int64)))
        if not number:
            fields.constant(constant)
    words, lengths = fields.rows()
    return [row.tobytes()[:length] for row, length in zip(words, lengths.tolist(), strict=True)]


def expected(*columns: list[int], constant: int) -> list[bytes]:
    """Return the same, encoded with kafka-python."""
    rows = []
    for row in zip(*columns, strict=True):
        written = bytearray()
        encode_varint(row[0], written.append)
        written.append(constant)
        for value in row[1:]:
            encode_varint(value, written.append)
        rows.append(bytes(written))
    return rows


@given(st.lists(st.tuples(WIDE_AND_NARROW, WIDE_AND_NARROW), max_size=200), st.integers(0, 255))
def test_rows_are_those_of_kafka_python(rows: list[tuple[int, int]], constant: int) -> None:
    columns = [[row[i] for row in rows] for i in range(2)]
    assert rows_of(*columns, constant=constant) == expected(*columns, constant=constant)
