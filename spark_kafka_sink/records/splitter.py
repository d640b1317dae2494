"""The records of a batch that was too large, as several smaller batches' records.

What was encoded is read back and encoded again, because each part counts its offset deltas from 0;
headers stay as they are. It happens only after a broker refused a batch, so reading it back costs
nobody who is in time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.decoder import gather, read_fields
from spark_kafka_sink.records.encoder import encode, record_size_bounds
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
    fields = read_fields(section, count, 0, base_timestamp_ms)
    every = np.ones(count, np.bool_)
    columns = RecordColumns.of(
        key=BinaryColumn.of(fields.keys),
        value=BinaryColumn.of(fields.values),
        headers=BinaryColumn.of(gather(section, fields.header_starts, fields.ends, every)),
        timestamps_ms=fields.timestamps_ms,
    )
    order = np.arange(count)
    times = fields.timestamps_ms
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
