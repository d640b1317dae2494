"""PendingAppend: rows on their way into batches, and the resources that they hold until then.

It owns what has to be returned if the caller is interrupted. Each resource is noted here before it
is taken, or in the same change, and returning it twice does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.buffer_pool import Reservation
from spark_kafka_sink.producer.producer_batch import ProducerBatch
from spark_kafka_sink.records.encoder import EncodedRecords
from spark_kafka_sink.records.layout import Cut


class PendingAppend(Reservation):
    """A slice of columns, or a chunk of rows.

    size_bytes: its bytes of buffer.memory; partitions: those whose open batches are held; full:
    batches that are to be packed, which are not sent before that; is_in_batches: whether the rows
    are in batches, all of them or none.
    """

    __slots__ = ("full", "is_in_batches", "partitions")

    def __init__(self, size_bytes: int = 0) -> None:
        super().__init__(size_bytes)
        self.partitions: Sequence[TopicPartition] = ()
        self.full: list[ProducerBatch] = []
        self.is_in_batches = False


class EncodedRows(NamedTuple):
    """A slice of rows that is encoded: the cuts are in order, without gaps.

    records, size_bytes and largest_bytes: of its records, as they were measured before.
    """

    cuts: list[Cut]
    encoded: EncodedRecords
    records: int
    size_bytes: int
    largest_bytes: int
