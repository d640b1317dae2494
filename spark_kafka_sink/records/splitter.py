"""Split the records of a batch that was too large into several smaller batches.

The encoded records are decoded and encoded again, because each part counts its offset deltas from
0. Headers stay encoded. This happens only after a broker rejected a batch, so its cost does not
matter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.decoder import gather, read_fields
from spark_kafka_sink.records.encoder import encode, record_size_bounds
from spark_kafka_sink.records.layout import OpenBatch, Runs, lay_out


class RecordsPart(NamedTuple):
    """Encoded records for one batch; `stop` is the index of the record that follows them."""

    records: memoryview
    start: int
    stop: int
    base_timestamp_ms: int
    max_timestamp_ms: int


def split_records(
    section: memoryview, count: int, base_timestamp_ms: int, target_bytes: int
) -> list[RecordsPart]:
    """Divide the `count` records of an uncompressed section into parts of about `target_bytes`.

    A larger record becomes a part of its own. Raise CorruptRecordException if the section is
    invalid.
    """
    fields = read_fields(section, count, 0, base_timestamp_ms)
    all_valid = np.ones(count, np.bool_)
    columns = RecordColumns.of(
        key=BinaryColumn.of(fields.keys),
        value=BinaryColumn.of(fields.values),
        headers=BinaryColumn.of(gather(section, fields.header_starts, fields.ends, all_valid)),
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
