"""The records of a batch that have waiters: spans of consecutive records with one owner each.

A batch that is done notifies the owners of its spans. So a row's future gets its offset without a
Python object per row and batch. Records without a waiter of their own (the columnar path) have no
span.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.model import TopicPartition


class DoneBatch(Protocol):
    """The properties of a finished batch for owners; `error` is None if it succeeded."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the batch."""

    @property
    def record_count(self) -> int:
        """The number of records."""

    @property
    def base_offset(self) -> int:
        """The offset of its first record, -1 if the broker does not return it."""

    @property
    def log_append_time_ms(self) -> int:
        """The broker's timestamp for all its records, -1 if they keep their own."""

    @property
    def error(self) -> KafkaException | None:
        """The reason of the failure, None if it succeeded."""

    @property
    def record_errors(self) -> Mapping[int, KafkaException]:
        """The errors of the records that the broker rejected, by number in the batch."""


class SpanOwner(Protocol):
    """A waiter for single records."""

    def completed(self, span: RecordSpan, batch: DoneBatch) -> None:
        """Take a span of a batch that is done; the I/O thread calls this, without the lock."""


class RecordSpan(NamedTuple):
    """`records` consecutive records of a batch, the first with offset delta `first_record`.

    owner: who waits for them; first_row: which of the owner's rows, in the order it was laid out,
    is the first.
    """

    owner: SpanOwner
    first_row: int
    first_record: int
    records: int


def split_spans(spans: Sequence[RecordSpan], at: int) -> tuple[list[RecordSpan], list[RecordSpan]]:
    """Divide a batch's spans as the batch is divided: records before `at`, and from `at` on.

    The second part's deltas count from `at`. A span across the cut becomes one in each part.
    """
    before: list[RecordSpan] = []
    after: list[RecordSpan] = []
    for owner, first_row, first, records in spans:
        kept = min(max(at - first, 0), records)
        if kept:
            before.append(RecordSpan(owner, first_row, first, kept))
        if kept < records:
            after.append(RecordSpan(owner, first_row + kept, first + kept - at, records - kept))
    return before, after
