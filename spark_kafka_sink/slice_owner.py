"""SliceOwner: tells who appended a slice of rows which of them were given up, and why.

For callers of `KafkaProducer.append` who deal with that by themselves. It follows the rows through
the spans of the batches they are in (`producer.record_spans`), as the futures of single rows do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from spark_kafka_sink.errors import KafkaException
from spark_kafka_sink.guarded_call import call_in_io_thread
from spark_kafka_sink.producer.record_spans import DoneBatch, RecordSpan
from spark_kafka_sink.producer.slices import GroupedRows
from spark_kafka_sink.records.varint import Int64s

_NO_ROWS: Final = np.zeros(0, np.int64)


class AppendFailure(NamedTuple):
    """Rows of one append that were given up together.

    rows: their numbers in what was appended, int64, ascending; culprits: those of them for which
    brokers refused the others as well, None where brokers did not say.
    """

    rows: Int64s
    culprits: Int64s | None
    error: KafkaException

    def __str__(self) -> str:
        return f"{len(self.rows)} row(s) that were not delivered ({self.error})"


OnFailure: TypeAlias = Callable[[AppendFailure], object]


class SliceOwner:
    """Waits for the rows of one slice; start: the number of its first row in what was appended."""

    def __init__(self, start: int, on_failure: OnFailure) -> None:
        self._start = start
        self._on_failure = on_failure
        self._rows: Int64s = _NO_ROWS

    def lay_out(self, grouped: GroupedRows) -> None:
        """Take the rows in the order in which spans number them."""
        self._rows = grouped.runs.order + self._start

    def completed(self, span: RecordSpan, batch: DoneBatch) -> None:
        """Take a span of a batch that is done; in the I/O thread."""
        if batch.error is None:
            return
        rows = self._rows[span.first_row : span.first_row + span.records]
        culprits = None
        if batch.record_errors:
            numbers = np.array(sorted(batch.record_errors), np.int64) - span.first_record
            culprits = rows[numbers[(numbers >= 0) & (numbers < span.records)]]
        elif batch.record_count == 1:
            culprits = rows
        failure = AppendFailure(rows, culprits, batch.error)
        call_in_io_thread("on_failure callback", self._on_failure, failure)
