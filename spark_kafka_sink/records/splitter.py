"""The records of a batch that was too large, as several smaller batches' records.

What was encoded is read back and encoded again, because each part counts its offset deltas from 0.
It happens only after a broker refused a batch, so reading it back costs nobody who is in time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.decoder import decode
from spark_kafka_sink.records.encoder import encode, record_size_bounds
from spark_kafka_sink.records.headers import encode_headers
from spark_kafka_sink.records.layout import OpenBatch, Runs, lay_out


class RecordsPart(NamedTuple):
    """Encoded records for one batch; `stop` is the number of the record that follows them."""

    records: memoryview
    start: int
    stop: int
    base_timestamp_ms: int
    max_timestamp_ms: int


def split_records(
    section: memoryview, count: int, base_timestamp_ms: int, target_bytes: int
) -> list[RecordsPart]:
    """Divide the `count` records of an uncompressed section into parts of about `target_bytes`.

    A record larger than that becomes a part of its own. Raises CorruptRecordException where the
    section is not what it should be.
    """
    decoded = decode(section, count, 0, base_timestamp_ms)
    columns = RecordColumns.of(
        key=BinaryColumn.of(decoded.keys),
        value=BinaryColumn.of(decoded.values),
        headers=_headers(decoded.headers),
        timestamps_ms=decoded.timestamps_ms,
    )
    order = np.arange(count)
    times = decoded.timestamps_ms
    bounds = record_size_bounds(columns, int(times.max() - times.min()), count)
    new_batch = OpenBatch(0, 0, target_bytes, 0)
    layout = lay_out(Runs(order, [0], [0, count]), bounds, times, [new_batch])
    encoded = encode(columns, order, layout.offset_deltas, layout.timestamp_deltas)
    edges = encoded.offsets[[cut.start for cut in layout.cuts] + [count]].tolist()
    return [
        RecordsPart(
            encoded.buffer[edges[number] : edges[number + 1]],
            cut.start,
            cut.stop,
            cut.base_timestamp_ms,
            cut.max_timestamp_ms,
        )
        for number, cut in enumerate(layout.cuts)
    ]


def _headers(headers: pa.Array) -> BinaryColumn | None:
    entries = headers.flatten()
    if not len(entries):
        return None
    keys, values = entries.flatten()
    counts = pc.list_value_length(headers).to_numpy().astype(np.int64)
    return encode_headers(counts, BinaryColumn.of(keys), BinaryColumn.of(values))
