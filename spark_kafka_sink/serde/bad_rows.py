"""Which rows of an Arrow batch cannot be written, and why: found before anything is sent.

The rules are those by which `KafkaProducer.append` refuses a batch for its first bad row, as a mask
over all rows, so that the others can go on. Every rule costs a pass over one column at most, and
records are measured only where the longest ones could be too long.

What only brokers know they say after the row was sent: `fault_of_error` tells whether that is the
row's fault. That a topic does not exist, or may not be written to, is a fault of no row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink import error_codes as codes
from spark_kafka_sink.errors import ApiException, KafkaException
from spark_kafka_sink.model import TOPIC_NAME
from spark_kafka_sink.records.batch import RECORD_BATCH_OVERHEAD
from spark_kafka_sink.records.columns import Bools, RecordColumns
from spark_kafka_sink.records.encoder import record_size_bounds, record_sizes
from spark_kafka_sink.records.utf8 import decode_utf8
from spark_kafka_sink.records.varint import Int64s, UInt8s
from spark_kafka_sink.serde.arrow_columns import (
    beyond_milliseconds,
    milliseconds,
    named_columns,
    read_rows,
)

# Lengths, deltas and attributes of a record at their widest, its number of headers included.
_FRAME_BYTES: Final = 40

# Gives how many partitions topics have, by name; of each, how many are expected, since topics grow.
PartitionCounts: TypeAlias = Callable[[Mapping[str, int]], Mapping[str, int]]


class Fault(Enum):
    """Why a row cannot be written; the value is how reports and dead letters name it."""

    NULL_TOPIC = "null_topic"
    INVALID_TOPIC = "invalid_topic"
    INVALID_PARTITION = "invalid_partition"
    INVALID_TIMESTAMP = "invalid_timestamp"
    NULL_HEADER_KEY = "null_header_key"
    TOO_LARGE = "too_large"
    REFUSED = "refused_by_broker"


FAULTS: Final = tuple(Fault)
_FAULT_OF_CODE: Final = {
    codes.MESSAGE_TOO_LARGE: Fault.TOO_LARGE,
    codes.RECORD_LIST_TOO_LARGE: Fault.TOO_LARGE,
    # Which of the two it is brokers say of a batch, not of each row that they blame.
    codes.INVALID_TIMESTAMP: Fault.REFUSED,
    codes.INVALID_RECORD: Fault.REFUSED,
}


def fault_of_error(error: KafkaException) -> Fault | None:
    """Give what is wrong with a row for which brokers refused a batch, None if nothing is."""
    return _FAULT_OF_CODE.get(error.code) if isinstance(error, ApiException) else None


@dataclass(frozen=True, slots=True)
class BadRows:
    """The bad rows of a batch.

    rows: their numbers, ascending, int64; codes: index into `FAULTS` of each, uint8. A row with
    several faults has the one that stands first there.
    """

    rows: Int64s
    codes: UInt8s

    def has(self, fault: Fault) -> bool:
        """Tell whether any of them has this fault."""
        return bool((self.codes == FAULTS.index(fault)).any())

    def good(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Give the other rows of the batch."""
        mask = np.ones(batch.num_rows, np.bool_)
        mask[self.rows] = False
        return batch.filter(pa.array(mask))

    def bad(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Give the bad rows of the batch."""
        return batch.take(pa.array(self.rows))


def find_bad_rows(
    batch: pa.RecordBatch,
    topic: str | None,
    limits: Mapping[str, int],
    partition_counts: PartitionCounts,
    now_ms: int,
    max_message_bytes: int | None = None,
) -> BadRows | None:
    """Find the rows that cannot be sent; None where every row can.

    topic: for all rows, in place of a topic column; limits: bytes that a record may have with what
    surrounds it, by option; now_ms: the timestamp of rows without one; max_message_bytes: of the
    topic, where it is known. Raises what `partition_counts` raises, and DataException for columns
    of a wrong type.
    """
    columns = named_columns(batch)
    found = _Found(batch.num_rows)
    topics = None
    if topic is None and "topic" in columns:
        topics = _Topics(columns["topic"])
        found.mark(topics.are_null, Fault.NULL_TOPIC)
        found.mark(topics.are_invalid(), Fault.INVALID_TOPIC)
    if "partition" in columns:
        partitions = _Partitions(columns["partition"])
        found.mark(partitions.are_negative(), Fault.INVALID_PARTITION)
        if topic is not None:
            found.mark(partitions.are_beyond(topic, partition_counts), Fault.INVALID_PARTITION)
        elif topics is not None:
            beyond = partitions.are_beyond_of_each(topics, found.good, partition_counts)
            found.mark(beyond, Fault.INVALID_PARTITION)
    if "timestamp" in columns:
        beyond = beyond_milliseconds(columns["timestamp"])
        found.mark(beyond, Fault.INVALID_TIMESTAMP)
        if beyond is None:
            found.mark(_negative(milliseconds(columns["timestamp"])), Fault.INVALID_TIMESTAMP)
        else:
            found.mark(_negative(columns["timestamp"].cast(pa.int64())), Fault.INVALID_TIMESTAMP)
    if "headers" in columns:
        found.mark(_null_header_keys(columns["headers"]), Fault.NULL_HEADER_KEY)
    limit = min(limits.values()) - RECORD_BATCH_OVERHEAD
    message_limit = (
        limit if max_message_bytes is None else max_message_bytes - RECORD_BATCH_OVERHEAD
    )
    if _longest_record(columns) > min(limit, message_limit):
        good = np.flatnonzero(found.good)
        rows = read_rows(batch.take(pa.array(good)), topic, now_ms)
        too_large = np.zeros(batch.num_rows, np.bool_)
        too_large[good] = _too_large(rows.columns, limit, message_limit)
        found.mark(too_large, Fault.TOO_LARGE)
    return found.bad_rows()


class _Found:
    """Collects the faults of rows; the first that is marked stays."""

    def __init__(self, rows: int) -> None:
        self.good: Bools = np.ones(rows, np.bool_)
        self._codes: UInt8s = np.zeros(rows, np.uint8)

    def mark(self, bad: Bools | None, fault: Fault) -> None:
        if bad is not None:
            self._codes[bad & self.good] = FAULTS.index(fault)
            self.good &= ~bad

    def bad_rows(self) -> BadRows | None:
        if self.good.all():
            return None
        rows = np.flatnonzero(~self.good)
        return BadRows(rows, self._codes[rows])


class _Topics:
    """A topic column by its distinct names."""

    def __init__(self, array: pa.Array) -> None:
        self._encoded = array.dictionary_encode()
        # Spark's strings may hold bytes that are no text; no topic has such a name.
        names = self._encoded.dictionary.cast(pa.large_binary()).to_pylist()
        self.names = [decode_utf8(name) for name in names]
        self.are_null = _numpy(array.is_null()) if array.null_count else None

    def numbers(self) -> Int64s:
        """Give the number of each row's name; a null row has 0, which means nothing."""
        numbers: Int64s = _numpy(self._encoded.indices.fill_null(0)).astype(np.int64)
        return numbers

    def are_invalid(self) -> Bools | None:
        invalid = np.array([TOPIC_NAME.match(name) is None for name in self.names], np.bool_)
        return invalid[self.numbers()] if invalid.any() else None


class _Partitions:
    """A partition column."""

    def __init__(self, array: pa.Array) -> None:
        self._array = array
        limits = pc.min_max(array).as_py()
        self._lowest, self._highest = limits["min"] or 0, limits["max"] or 0

    def _numbers(self) -> Int64s:
        """Give the numbers; a null one counts as 0, which every topic has."""
        numbers: Int64s = _numpy(self._array.fill_null(0)).astype(np.int64)
        return numbers

    def are_negative(self) -> Bools | None:
        return self._numbers() < 0 if self._lowest < 0 else None

    def are_beyond(self, topic: str, partition_counts: PartitionCounts) -> Bools | None:
        if self._highest <= 0:
            return None
        count = partition_counts({topic: self._highest + 1})[topic]
        return None if self._highest < count else self._numbers() >= count

    def are_beyond_of_each(
        self, topics: _Topics, good: Bools, partition_counts: PartitionCounts
    ) -> Bools | None:
        """Look at good rows only: the topics of others are not to be asked for."""
        if self._highest <= 0 or not good.any():
            return None
        if len(topics.names) == 1:
            return self.are_beyond(topics.names[0], partition_counts)
        of_topics, numbers = topics.numbers(), self._numbers()
        highest = np.zeros(len(topics.names), np.int64)
        np.maximum.at(highest, of_topics[good], numbers[good])
        expected = {
            name: most + 1
            for name, most in zip(topics.names, highest.tolist(), strict=True)
            if most
        }
        known = partition_counts(expected) if expected else {}
        counts = [known.get(name, 1) for name in topics.names]
        return good & (numbers >= np.array(counts)[of_topics])


def _negative(array: pa.Array) -> Bools | None:
    lowest = pc.min(array).as_py()
    if lowest is None or lowest >= 0:
        return None
    return _numpy(pc.less(array, 0).fill_null(fill_value=False))


def _null_header_keys(array: pa.Array) -> Bools | None:
    """Find rows with a header whose key is null; a map has none."""
    if pa.types.is_map(array.type):
        return None
    entries = array.flatten()
    (key,) = (i for i in range(entries.type.num_fields) if entries.type[i].name.lower() == "key")
    keys = entries.flatten()[key]
    if not keys.null_count:
        return None
    counts = _numpy(pc.list_value_length(array).fill_null(0))
    bad = np.zeros(len(array), np.bool_)
    bad[np.repeat(np.arange(len(array)), counts)[_numpy(keys.is_null())]] = True
    return bad


def _longest_record(columns: Mapping[str, pa.Array]) -> int:
    """Give a size in bytes that no record of the batch exceeds, without measuring each."""
    longest = [
        pc.max(pc.binary_length(columns[n])).as_py() for n in ("key", "value") if n in columns
    ]
    # A header takes at most ten bytes of lengths in a record, and eight of offsets in Arrow. A byte
    # of its key that is no text becomes three.
    headers = 3 * columns["headers"].nbytes if "headers" in columns else 0
    return _FRAME_BYTES + sum(each or 0 for each in longest) + headers


def _too_large(columns: RecordColumns, limit: int, message_limit: int) -> Bools:
    """Measure rows as `KafkaProducer.append` does: for a topic's limit, as if alone in a batch."""
    bad: Bools = record_sizes(columns) > limit
    return bad | (record_size_bounds(columns, 0, 0) > message_limit)


def _numpy(array: pa.Array) -> npt.NDArray[Any]:
    converted: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return converted
