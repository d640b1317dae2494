"""Replace a batch that is too large for its topic by smaller ones (RecordAccumulator.split).

This module only makes the parts: the accumulator queues them, and `Sequences` replaces the original
batch by them.
"""

from __future__ import annotations

from spark_kafka_sink.producer.producer_batch import ProducerBatch, RetainedBuffer, SplitOrigin
from spark_kafka_sink.producer.record_spans import split_spans
from spark_kafka_sink.records.batch import increment_sequence
from spark_kafka_sink.records.decompression import decompress
from spark_kafka_sink.records.splitter import split_records


def split(batch: ProducerBatch) -> list[ProducerBatch]:
    """Return two or more batches with the records of a packed batch of two or more records.

    The parts are sealed. They have the batch's age and attempts, and its sequences one after the
    other. The waiters for its records wait for theirs. If the batch may have been written, so may
    the parts.
    """
    origin = batch.origin
    if batch.is_unanswered and not batch.is_in_doubt:
        origin = SplitOrigin()
    section = decompress(batch.codec.id, batch.records, batch.records_bytes)
    # Half as large each, so that every part is clearly smaller than the original.
    target = max(1, batch.records_bytes // 2)
    parts = []
    spans = batch.spans
    made = split_records(memoryview(section), batch.record_count, batch.base_timestamp_ms, target)
    whole = RetainedBuffer(sum(len(part.records) for part in made))
    for part in made:
        records = part.stop - part.start
        smaller = ProducerBatch(
            batch.topic_partition, batch.codec, part.base_timestamp_ms, batch.created_at
        )
        smaller.append(part.records, records, part.max_timestamp_ms, whole)
        of_part, spans = split_spans(spans, records)
        sequence = increment_sequence(batch.base_sequence, part.start)
        smaller.become_part(batch, of_part, sequence, origin)
        parts.append(smaller)
    return parts
