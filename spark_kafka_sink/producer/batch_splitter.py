"""Replace a batch that is too large for its topic by smaller ones (RecordAccumulator.split).

It makes the parts and nothing else: the accumulator queues them, `Sequences` puts them in the
place of the batch.
"""

from __future__ import annotations

from spark_kafka_sink.producer.producer_batch import ProducerBatch, RetainedBuffer, SplitOrigin
from spark_kafka_sink.producer.record_spans import split_spans
from spark_kafka_sink.records.batch import increment_sequence
from spark_kafka_sink.records.decompression import decompress
from spark_kafka_sink.records.splitter import split_records


def split(batch: ProducerBatch) -> list[ProducerBatch]:
    """Return two batches or more with the records of a packed batch of two records or more.

    They are sealed, and have its age, its attempts and, one after the other, its sequences. Its
    spans are divided among them. Where it may have been written, so may they.
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
