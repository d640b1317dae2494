"""The rules that a row of an Arrow batch must satisfy to become a record.

Each rule returns a mask of the rows that break it, and the message about one such row.
`arrow_columns` stops at the first rule that any row breaks, and raises an exception about the first
such row. `bad_rows` finds all rows that break a rule. A rule needs at most one pass over one
column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.model import TOPIC_NAME, check_topic_name
from spark_kafka_sink.records.columns import Bools, decode_utf8
from spark_kafka_sink.records.varint import Int64s

# The error class of Spark's own sink for a row without a topic.
NULL_TOPIC: Final = "KAFKA_NULL_TOPIC_IN_DATA"
_MS_PER_SECOND: Final = 1000
_MOST_SECONDS: Final = (2**63 - 1) // _MS_PER_SECOND
_UNITS_PER_MS: Final = {"us": 1000, "ns": 1_000_000}


class Fault(Enum):
    """The reason why a row cannot be written.

    The value is the name of the fault in reports and in dead-letter records.
    """

    # The next four: a key or value cannot be written by its schema (see `avro_encoder`).
    NULL_IN_REQUIRED = "null_in_required"
    UNKNOWN_SYMBOL = "unknown_symbol"
    OUT_OF_RANGE = "out_of_range"
    INVALID_UUID = "invalid_uuid"
    NULL_TOPIC = "null_topic"
    INVALID_TOPIC = "invalid_topic"
    INVALID_PARTITION = "invalid_partition"
    INVALID_TIMESTAMP = "invalid_timestamp"
    NULL_HEADER_KEY = "null_header_key"
    TOO_LARGE = "too_large"
    REFUSED = "refused_by_broker"


class SinkColumns:
    """The sink's columns of an Arrow batch, with computed values that several rules need.

    topic: the topic of all rows, or None to use the topic column.
    """

    def __init__(self, batch: pa.RecordBatch, topic: str | None) -> None:
        self.names: list[str] = batch.schema.names
        self.by_name = named_columns(batch)
        self._has_topic = topic is not None

    def get(self, name: str) -> pa.Array | None:
        """Return the column with this name, or None if there is no such column."""
        return self.by_name.get(name)

    @cached_property
    def topics(self) -> TopicColumn | None:
        """The topic column, or None if an option sets the topic or there is no such column."""
        array = None if self._has_topic else self.get("topic")
        return None if array is None else TopicColumn(array)

    @cached_property
    def headers(self) -> HeaderColumn | None:
        """The headers column, or None if there is no such column."""
        array = self.get("headers")
        return None if array is None else HeaderColumn(array)


class TopicColumn:
    """A topic column as its distinct names, and each row's index among them.

    The names are bytes, because Spark's strings may contain invalid UTF-8.
    """

    def __init__(self, array: pa.Array) -> None:
        self.array = array
        self._encoded = array.dictionary_encode()
        self.names: list[bytes] = self._encoded.dictionary.cast(pa.large_binary()).to_pylist()

    @cached_property
    def numbers(self) -> Int64s:
        """The index of each row's topic in the distinct names, int64. A null topic has index 0."""
        numbers: Int64s = to_numpy(self._encoded.indices.fill_null(0)).astype(np.int64)
        return numbers

    @cached_property
    def texts(self) -> list[str]:
        """The distinct names as str, with U+FFFD for invalid UTF-8."""
        return [decode_utf8(name) for name in self.names]

    def rows_of(self, is_meant: Sequence[bool]) -> Bools | None:
        """Return a mask of the rows with certain topics, or None if there are no such rows.

        is_meant: for each distinct name, whether to include its rows.
        """
        if not any(is_meant):
            return None
        meant: Bools = np.array(is_meant, np.bool_)[self.numbers]
        if self.array.null_count:
            meant &= to_numpy(self.array.is_valid())
        return meant


class HeaderColumn:
    """The headers in a headers column, which is a map or an array of structs, sliced or not."""

    def __init__(self, array: pa.Array) -> None:
        self._lists = header_lists(array)

    @property
    def type(self) -> pa.DataType:
        """The type of the column after a map was converted to an array of structs."""
        return self._lists.type

    @cached_property
    def counts(self) -> Int64s:
        """The number of headers of each row."""
        counts = pc.list_value_length(self._lists).fill_null(0)
        found: Int64s = to_numpy(counts).astype(np.int64)
        return found

    @cached_property
    def _fields(self) -> dict[str, pa.Array]:
        entries = self._lists.flatten()
        names = [field.name.lower() for field in entries.type]
        return dict(zip(names, entries.flatten(), strict=True))

    @property
    def keys(self) -> pa.Array:
        """The keys of all headers of all rows."""
        return self._fields["key"]

    @property
    def values(self) -> pa.Array:
        """The values of all headers of all rows."""
        return self._fields["value"]


def named_columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns by name, in order. If a name occurs twice, the first column is used."""
    columns: dict[str, pa.Array] = {}
    for number, name in enumerate(batch.schema.names):
        columns.setdefault(name, batch.column(number))
    return columns


def header_lists(array: pa.Array) -> pa.Array:
    """Return a map as an array of structs of key and value. Its layout in memory stays the same."""
    if not pa.types.is_map(array.type):
        return array
    kind = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
    return array.cast(pa.list_(kind))


def milliseconds(array: pa.Array) -> pa.Array:
    """Return a timestamp column as milliseconds since 1970, int64, with the same nulls.

    Parts of a millisecond are rounded down, as Spark's unix_millis does. Seconds that do not fit
    into 64 bits of milliseconds become null; a rule of this module rejects such rows.
    """
    if not pa.types.is_timestamp(array.type):
        return array
    unit, numbers = array.type.unit, array.cast(pa.int64())
    if unit == "s":
        fits = pc.and_(
            pc.less_equal(numbers, _MOST_SECONDS), pc.greater_equal(numbers, -_MOST_SECONDS)
        )
        return pc.multiply(pc.if_else(fits, numbers, None), _MS_PER_SECOND)
    if unit == "ms":
        return numbers
    parts = _UNITS_PER_MS[unit]
    rounded = pc.divide(numbers, parts)
    if (pc.min(numbers).as_py() or 0) >= 0:
        return rounded
    # Arrow rounds towards 0, so it rounds times before 1970 up.
    is_above = pc.greater(pc.multiply(rounded, parts), numbers)
    return pc.subtract(rounded, is_above.cast(pa.int64()))


def to_numpy(array: pa.Array) -> npt.NDArray[Any]:
    """Return a column without nulls as a numpy array. It is copied only if necessary."""
    converted: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return converted


# -- topic ----------------------------------------------------------------------------------------


def _null_topics(columns: SinkColumns) -> Bools | None:
    topics = columns.topics
    return to_numpy(topics.array.is_null()) if topics and topics.array.null_count else None


def _null_topic(_columns: SinkColumns, _row: int) -> str:
    return (
        f"[{NULL_TOPIC}] The Kafka message data sent to the producer contains a null topic. "
        "Use the `topic` option for setting a default topic."
    )


def _impossible_topics(columns: SinkColumns) -> Bools | None:
    """Return a mask of the rows whose topic name cannot be encoded in a request."""
    topics = columns.topics
    if topics is None:
        return None
    return topics.rows_of([_impossible(name) is not None for name in topics.names])


def _impossible_topic(columns: SinkColumns, row: int) -> str:
    topics = columns.topics
    return (topics and _impossible(topics.names[topics.numbers[row]])) or ""


def _impossible(name: bytes) -> str | None:
    """Return why a topic name cannot be encoded in a request, or None if it can."""
    try:
        check_topic_name(name.decode())
    except UnicodeDecodeError:
        return f"topic has a name that is not text: {name[:20]!r} is not UTF-8"
    except DataException as error:
        return error.message
    return None


def _invalid_topics(columns: SinkColumns) -> Bools | None:
    topics = columns.topics
    if topics is None:
        return None
    return topics.rows_of([TOPIC_NAME.match(text) is None for text in topics.texts])


# -- partition ------------------------------------------------------------------------------------


def _negative_partitions(columns: SinkColumns) -> Bools | None:
    return _negative(columns.get("partition"))


def _negative_partition(columns: SinkColumns, row: int) -> str:
    return (
        f"Invalid partition: {columns.by_name['partition'][row].as_py()}. "
        "Partition number should always be non-negative or null."
    )


# -- timestamp ------------------------------------------------------------------------------------


def _times_out_of_range(columns: SinkColumns) -> Bools | None:
    """Return a mask of the rows whose seconds do not fit into 64 bits as milliseconds."""
    array = columns.get("timestamp")
    if array is None or not pa.types.is_timestamp(array.type) or array.type.unit != "s":
        return None
    seconds = to_numpy(array.cast(pa.int64()).fill_null(0))
    beyond: Bools = (seconds > _MOST_SECONDS) | (seconds < -_MOST_SECONDS)
    return beyond if beyond.any() else None


def _time_out_of_range(columns: SinkColumns, row: int) -> str:
    seconds = columns.by_name["timestamp"][row].cast(pa.int64()).as_py()
    return (
        f"Invalid timestamp: {seconds} s. In milliseconds it does not fit into 64 bits: expected "
        f"0 to {_MOST_SECONDS} s."
    )


def _times_before_1970(columns: SinkColumns) -> Bools | None:
    array = columns.get("timestamp")
    # The sign suffices in every unit, because the last nanosecond of 1969 is rounded down to -1 ms.
    return None if array is None else _negative(array.cast(pa.int64()))


def _time_before_1970(columns: SinkColumns, row: int) -> str:
    (ms,) = milliseconds(columns.by_name["timestamp"].slice(row, 1)).to_pylist()
    return f"Invalid timestamp: {ms} ms. Timestamp should always be non-negative or null."


def _negative(array: pa.Array | None) -> Bools | None:
    if array is None:
        return None
    lowest = pc.min(array).as_py()
    if lowest is None or lowest >= 0:
        return None
    return to_numpy(pc.less(array, 0).fill_null(fill_value=False))


# -- headers --------------------------------------------------------------------------------------


def _null_header_keys(columns: SinkColumns) -> Bools | None:
    headers = columns.headers
    if headers is None or not headers.keys.null_count:
        return None
    bad = np.zeros(len(headers.counts), np.bool_)
    rows = np.repeat(np.arange(len(bad)), headers.counts)
    bad[rows[to_numpy(headers.keys.is_null())]] = True
    return bad


def _null_header_key(_columns: SinkColumns, _row: int) -> str:
    return "headers has a header whose key is null, which Kafka does not allow: set a key"


class RowRule(NamedTuple):
    """A rule for rows.

    fault: the fault that is reported for a row that breaks the rule. broken_by: returns a mask of
    the rows that break the rule, or None if there are no such rows. message: returns the message
    about one such row. The field is None if brokers reject such rows, with their own exception.
    """

    fault: Fault
    broken_by: Callable[[SinkColumns], Bools | None]
    message: Callable[[SinkColumns, int], str] | None


# The rules in the order of the faults. TARGET_RULES check topic and partition, and CONTENT_RULES
# check the other columns.
TARGET_RULES: Final = (
    RowRule(Fault.NULL_TOPIC, _null_topics, _null_topic),
    RowRule(Fault.INVALID_TOPIC, _impossible_topics, _impossible_topic),
    RowRule(Fault.INVALID_TOPIC, _invalid_topics, None),
    RowRule(Fault.INVALID_PARTITION, _negative_partitions, _negative_partition),
)
CONTENT_RULES: Final = (
    RowRule(Fault.INVALID_TIMESTAMP, _times_out_of_range, _time_out_of_range),
    RowRule(Fault.INVALID_TIMESTAMP, _times_before_1970, _time_before_1970),
    RowRule(Fault.NULL_HEADER_KEY, _null_header_keys, _null_header_key),
)


def check_rows(columns: SinkColumns) -> None:
    """Check the rules in order. If rows break one, raise DataException about the first such row."""
    for rule in (*TARGET_RULES, *CONTENT_RULES):
        broken = None if rule.message is None else rule.broken_by(columns)
        if rule.message is not None and broken is not None:
            row = int(np.argmax(broken))
            raise DataException(rule.message(columns, row), row=row)
