"""Find the rows of an Arrow batch that cannot be written, and the reason, before anything is sent.

`KafkaProducer.append` rejects a whole batch because of its first bad row. The same checks are made
here for every row: the rules of `row_rules`, the partition counts of topics, and `RecordLimits`.
Record sizes are computed only if the longest record could be too large.

Brokers may also reject a row after it was sent. `fault_of_error` then returns the fault of the row,
if the row is the reason. It is not a fault of a row if its topic does not exist, or if the client
has no permission to write to the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import ApiException, KafkaException
from spark_kafka_sink.model import LARGEST_INT32
from spark_kafka_sink.records.columns import BinaryColumn, Bools
from spark_kafka_sink.records.encoder import record_sizes
from spark_kafka_sink.records.record_limits import RecordLimits
from spark_kafka_sink.records.varint import Int64s, UInt8s
from spark_kafka_sink.serde.arrow_columns import check_types, read_rows
from spark_kafka_sink.serde.row_rules import (
    CONTENT_RULES,
    TARGET_RULES,
    Fault,
    HeaderColumn,
    RowRule,
    SinkColumns,
    TopicColumn,
    to_numpy,
)

# The largest size of a record's lengths, deltas, attributes and header count, in bytes.
_FRAME_BYTES: Final = 40
# The largest size of the two lengths in a header.
_HEADER_LENGTHS_BYTES: Final = 10

# Returns the partition count of each topic. The argument maps each topic to the lowest count that
# its rows require. If the known count is lower, it is looked up again, because topics may grow.
PartitionCounts: TypeAlias = Callable[[Mapping[str, int]], Mapping[str, int]]


FAULTS: Final = tuple(Fault)
_FAULT_OF_CODE: Final = {
    codes.MESSAGE_TOO_LARGE: Fault.TOO_LARGE,
    codes.RECORD_LIST_TOO_LARGE: Fault.TOO_LARGE,
    # Brokers return the code for the batch. So some rows of the batch may not have this fault.
    codes.INVALID_TIMESTAMP: Fault.REFUSED,
    codes.INVALID_RECORD: Fault.REFUSED,
}


def fault_of_error(error: KafkaException) -> Fault | None:
    """Return the fault of a row that made brokers reject its batch, or None for other errors."""
    return _FAULT_OF_CODE.get(error.code) if isinstance(error, ApiException) else None


@dataclass(frozen=True, slots=True)
class BadRows:
    """The bad rows of a batch.

    rows: the numbers of the bad rows, ascending, int64. codes: the index in `FAULTS` of each bad
    row's fault, uint8. For a row with several faults, the fault that is first in `FAULTS` is used.
    """

    rows: Int64s
    codes: UInt8s

    def has(self, fault: Fault) -> bool:
        """Return whether any bad row has this fault."""
        return bool((self.codes == FAULTS.index(fault)).any())

    def good(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of `batch` that are not bad."""
        mask = np.ones(batch.num_rows, np.bool_)
        mask[self.rows] = False
        return batch.filter(pa.array(mask))

    def bad(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the bad rows of `batch`."""
        return batch.take(pa.array(self.rows))


def find_bad_rows(
    batch: pa.RecordBatch,
    topic: str | None,
    limits: RecordLimits,
    partition_counts: PartitionCounts,
    now_ms: int,
) -> BadRows | None:
    """Return the rows that cannot be sent, or None if every row can be sent.

    topic: the topic of all rows, or None to use the topic column. limits: how large a record may
    be. now_ms: the timestamp for rows without a timestamp. Raise the exceptions of
    `partition_counts`, and DataException for columns of a wrong type.
    """
    columns = SinkColumns(batch, topic)
    check_types(columns, topic)
    found = _Found(batch.num_rows)
    found.mark_broken(TARGET_RULES, columns)
    if "partition" in columns.by_name:
        beyond = _beyond(columns, topic, found.good, partition_counts)
        found.mark(beyond, Fault.INVALID_PARTITION)
    found.mark_broken(CONTENT_RULES, columns)
    if not limits.fit(_longest_record(columns)):
        good = np.flatnonzero(found.good)
        rows = read_rows(batch.take(pa.array(good)), topic, now_ms)
        too_large = np.zeros(batch.num_rows, np.bool_)
        too_large[good] = limits.too_large(rows, record_sizes(rows.columns))
        found.mark(too_large, Fault.TOO_LARGE)
    return found.bad_rows()


class _Found:
    """Collects the faults of rows; each row keeps the first one."""

    def __init__(self, rows: int) -> None:
        self.good: Bools = np.ones(rows, np.bool_)
        self._codes: UInt8s = np.zeros(rows, np.uint8)

    def mark_broken(self, rules: Iterable[RowRule], columns: SinkColumns) -> None:
        for rule in rules:
            self.mark(rule.broken_by(columns), rule.fault)

    def mark(self, bad: Bools | None, fault: Fault) -> None:
        if bad is not None:
            self._codes[bad & self.good] = FAULTS.index(fault)
            self.good &= ~bad

    def bad_rows(self) -> BadRows | None:
        if self.good.all():
            return None
        rows = np.flatnonzero(~self.good)
        return BadRows(rows, self._codes[rows])


def _beyond(
    columns: SinkColumns, topic: str | None, good: Bools, partition_counts: PartitionCounts
) -> Bools | None:
    """Return a mask of the rows whose partition does not exist in their topic.

    The result is None if no partition count has to be looked up.

    good: the rows without a fault so far. Only their topics are looked up.
    """
    array = columns.by_name["partition"]
    highest = pc.max(array).as_py() or 0
    if highest <= 0:
        return None
    # A null partition counts as 0, which every topic has.
    numbers: Int64s = to_numpy(array.fill_null(0)).astype(np.int64)
    topics = columns.topics
    if topics is not None:
        return _beyond_of_each(topics, numbers, good, partition_counts)
    if topic is None:
        return None
    count = partition_counts({topic: _count_with(highest)})[topic]
    return numbers >= count


def _beyond_of_each(
    topics: TopicColumn, numbers: Int64s, good: Bools, partition_counts: PartitionCounts
) -> Bools | None:
    highest = np.zeros(len(topics.texts), np.int64)
    np.maximum.at(highest, topics.numbers[good], numbers[good])
    expected = {
        name: _count_with(most)
        for name, most in zip(topics.texts, highest.tolist(), strict=True)
        if most
    }
    if not expected:
        return None
    known = partition_counts(expected)
    counts = np.array([known.get(name, 1) for name in topics.texts])
    return good & (numbers >= counts[topics.numbers])


def _count_with(partition: int) -> int:
    """Return the partition count of the smallest topic with this partition, or Kafka's largest."""
    return min(partition + 1, LARGEST_INT32)


def _longest_record(columns: SinkColumns) -> int:
    """Return an upper bound of the largest record's size in bytes, computed from columns."""
    arrays = [columns.get(name) for name in ("key", "value")]
    longest = [pc.max(pc.binary_length(each)).as_py() for each in arrays if each is not None]
    headers = 0 if columns.headers is None else _longest_headers(columns.headers)
    return _FRAME_BYTES + sum(each or 0 for each in longest) + headers


def _longest_headers(headers: HeaderColumn) -> int:
    """Return an upper bound of the size in bytes of the headers of a row."""
    keys, values = (BinaryColumn.of(each).lengths for each in (headers.keys, headers.values))
    # An invalid byte of a key becomes three bytes (U+FFFD).
    sizes = _HEADER_LENGTHS_BYTES + 3 * keys + values
    # The size of all headers before each header, and of all headers.
    before = np.append(0, np.cumsum(sizes))
    ends = np.cumsum(headers.counts)
    return int((before[ends] - before[ends - headers.counts]).max(initial=0))
