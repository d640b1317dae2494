"""Replace a batch that is too large for its topic with smaller batches.

The encoded records are decoded and encoded again, because the offset deltas of each part start at
0. Headers stay encoded. A batch is only split after a broker rejected it, so the cost does not
matter. `RecordAccumulator.split` queues the parts, and `Sequences.replace` replaces the batch with
them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_kafka_sink.producer.producer_batch import (
    ProducerBatch,
    RetainedBuffer,
    SplitOrigin,
    split_spans,
)
from spark_kafka_sink.records.batch import increment_sequence
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns
from spark_kafka_sink.records.decoder import gather, read_fields
from spark_kafka_sink.records.decompression import decompress
from spark_kafka_sink.records.encoder import encode, record_size_bounds
from spark_kafka_sink.records.layout import OpenBatch, Runs, lay_out


class RecordsPart(NamedTuple):
    """Encoded records for one batch; `stop` is the index of the record after the last one."""

    records: memoryview
    start: int
    stop: int
    base_timestamp_ms: int
    max_timestamp_ms: int


def split_records(
    section: memoryview, count: int, base_timestamp_ms: int, target_bytes: int
) -> list[RecordsPart]:
    """Divide the `count` records of an uncompressed section into parts of about `target_bytes`.

    A record that is larger becomes a part of its own. Raise CorruptRecordException if the section
    is invalid.
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


def split(batch: ProducerBatch) -> list[ProducerBatch]:
    """Divide the records of a compressed batch among two or more new batches.

    The batch must contain at least two records. The parts are sealed. Each part has the same age
    and the same number of attempts as the batch. The batch's spans and sequence numbers are divided
    among the parts. If the batch may have been written, each part is marked as possibly written.
    """
    origin = batch.origin
    if batch.is_unanswered and not batch.is_in_doubt:
        origin = SplitOrigin()
    section = decompress(batch.codec.id, batch.records, batch.records_bytes)
    # Half the size, so that every part is clearly smaller than the original.
    target = max(1, batch.records_bytes // 2)
    parts = []
    spans = batch.spans
    made = split_records(memoryview(section), batch.record_count, batch.base_timestamp_ms, target)
    retained = RetainedBuffer(sum(len(part.records) for part in made))
    for part in made:
        records = part.stop - part.start
        smaller = ProducerBatch(
            batch.topic_partition, batch.codec, part.base_timestamp_ms, batch.created_at
        )
        smaller.append(part.records, records, part.max_timestamp_ms, retained)
        of_part, spans = split_spans(spans, records)
        sequence = increment_sequence(batch.base_sequence, part.start)
        smaller.become_part(batch, of_part, sequence, origin)
        parts.append(smaller)
    return parts
