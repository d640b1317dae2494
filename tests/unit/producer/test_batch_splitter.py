"""A batch that a broker finds too large gets smaller fast."""

from __future__ import annotations

import pytest
from support.pure.pure_producer import PureProducer, Settings, batches

from spark_kafka_sink.producer.batch_splitter import split
from spark_kafka_sink.producer.producer_batch import ProducerBatch


def batch_of(values: list[bytes]) -> ProducerBatch:
    """Return a batch in flight to a broker."""
    producer = PureProducer([1], Settings(batch_size=1_000_000))
    producer.append(0, values)
    producer.ready()
    (request,) = producer.poll()
    (batch,) = batches(request)
    return batch


@pytest.mark.parametrize(
    "values",
    [[b"v" * 100] * 64, [b"v" * 100] * 63, [b"v" * size for size in range(1, 100)]],
    ids=["equal", "an odd number", "growing"],
)
def test_parts_are_at_most_half_as_large_each_time(values: list[bytes]) -> None:
    original = batch_of(values)
    parts, largest = [original], original.records_bytes
    while any(part.record_count > 1 for part in parts):
        smaller = []
        for part in parts:
            part.pack()
            smaller += split(part) if part.record_count > 1 else [part]
        assert sum(part.record_count for part in smaller) == len(values)
        largest //= 2
        assert all(p.records_bytes <= largest for p in smaller if p.record_count > 1)
        parts = smaller
    assert len(parts) == len(values)
