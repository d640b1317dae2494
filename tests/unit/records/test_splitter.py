"""Records that are divided are the same records, in the same order, in smaller parts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.records.decoder import decode
from spark_kafka_sink.records.encoder import encode
from spark_kafka_sink.records.splitter import split_records
from spark_kafka_sink.serde.columns import read_rows

CELLS = st.none() | st.binary(max_size=200)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), CELLS), max_size=3)
ROWS = st.lists(st.tuples(CELLS, CELLS, HEADERS, st.integers(0, 2**62)), min_size=1, max_size=60)
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@given(rows=ROWS, target_bytes=st.integers(1, 5000))
def test_the_parts_are_the_records(
    rows: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int]],
    target_bytes: int,
) -> None:
    keys, values, headers, times = zip(*rows, strict=True)
    batch = pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(headers, HEADERS_TYPE),
            "timestamp": pa.array(times, pa.int64()),
        }
    )
    columns = read_rows(batch, "t", 0).columns
    count = len(rows)
    order, base = np.arange(count), times[0]
    whole = encode(columns, order, order, np.array(times) - base)
    section = whole.buffer[whole.offsets[0] : whole.offsets[-1]]

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
        cells = zip(
            decoded.keys.to_pylist(),
            decoded.values.to_pylist(),
            ([(h["key"], h["value"]) for h in each] for each in decoded.headers.to_pylist()),
            part_times,
            strict=True,
        )
        found += list(cells)
    assert found == [(key, value, each or [], time) for key, value, each, time in rows]
