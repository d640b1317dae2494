"""Records that are divided are the same records, in the same order, in smaller parts.

Spark's strings may hold bytes that are not UTF-8, and so may the keys of headers: these are written
with U+FFFD.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from support.oracles.log_records import decode

from spark_kafka_sink.producer.batch_splitter import split_records
from spark_kafka_sink.records.columns import decode_utf8
from spark_kafka_sink.records.decoder import read_fields
from spark_kafka_sink.records.encoder import encode
from spark_kafka_sink.serde.arrow_columns import read_rows

CELLS = st.none() | st.binary(max_size=200)
HEADER_KEYS = st.text(max_size=5).map(str.encode) | st.binary(max_size=5)
HEADERS = st.none() | st.lists(st.tuples(HEADER_KEYS, CELLS), max_size=3)
ROWS = st.lists(st.tuples(CELLS, CELLS, HEADERS, st.integers(0, 2**62)), min_size=1, max_size=60)
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))


def varint(number: int) -> bytes:
    zigzag = number << 1 if number >= 0 else -number * 2 - 1
    low, high = zigzag & 0x7F, zigzag >> 7
    return bytes([low | 0x80, high]) if high else bytes([low])


def header_section(headers: list[tuple[bytes, bytes | None]] | None) -> bytes:
    """Write headers by hand; bytes of a key that are no text have become some."""
    section = varint(len(headers or []))
    for key, value in headers or []:
        text = decode_utf8(key).encode()
        section += varint(len(text)) + text
        section += varint(-1) if value is None else varint(len(value)) + value
    return section


def headers_array(rows: Sequence[list[tuple[bytes, bytes | None]] | None]) -> pa.Array:
    """Return headers as Spark makes them, of strings without UTF-8 validation."""
    made = pa.array(rows, HEADERS_TYPE)
    keys, values = made.values.flatten()
    entries = pa.StructArray.from_arrays([keys.view(pa.string()), values], ["key", "value"])
    valid = pa.array([row is None for row in rows])
    return pa.ListArray.from_arrays(made.offsets, entries, mask=valid)


@given(rows=ROWS, target_bytes=st.integers(1, 5000))
def test_the_parts_are_the_records(
    rows: list[tuple[bytes | None, bytes | None, list[tuple[bytes, bytes | None]] | None, int]],
    target_bytes: int,
) -> None:
    keys, values, headers, times = zip(*rows, strict=True)
    batch = pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": headers_array(headers),
            "timestamp": pa.array(times, pa.int64()),
        }
    )
    columns = read_rows(batch, "t", 0).columns
    count = len(rows)
    order, base = np.arange(count), times[0]
    encoded = encode(columns, order, order, np.array(times) - base)
    section = encoded.buffer[encoded.offsets[0] : encoded.offsets[-1]]

    parts = split_records(section, count, base, target_bytes)

    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == count
    found = []
    for part in parts:
        records = part.stop - part.start
        assert len(part.records) <= target_bytes or records == 1
        decoded = decode(part.records, records, 0, part.base_timestamp_ms)
        assert decoded.offsets.tolist() == list(range(records))
        part_times = decoded.timestamps_ms.tolist()
        assert (part_times[0], max(part_times)) == (part.base_timestamp_ms, part.max_timestamp_ms)
        fields = read_fields(part.records, records, 0, part.base_timestamp_ms)
        places = zip(fields.header_starts, fields.ends, strict=True)
        sections = [bytes(part.records[start:end]) for start, end in places]
        keys_of_part, values_of_part = decoded.keys.to_pylist(), decoded.values.to_pylist()
        found += list(zip(keys_of_part, values_of_part, sections, part_times, strict=True))
    assert found == [(key, value, header_section(each), time) for key, value, each, time in rows]
