"""Columns of records in the form that the encoder reads.

Arrow has four types for bytes (string, binary and their large_ forms), and an array can be a slice
and have a null bitmap. A `BinaryColumn` represents all of them in the same way: a view of the
bytes, int64 offsets, and a mask of the rows that are not null. Only the offsets are copied.

Arrow and Spark accept any bytes in strings, for example in `CAST(X'FF' AS STRING)`. Kafka's text
fields are UTF-8, and many readers fail on invalid UTF-8. `valid_utf8` replaces invalid bytes with
U+FFFD. Java's ``new String(bytes, UTF_8)`` makes the same number of replacement characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.records.layout import (
    group_by_partition,
)
from spark_kafka_sink.records.varint import Int64s, UInt8s, varint_widths, zigzag

ATTRIBUTES_BYTES: Final = 1
NO_HEADERS_BYTES: Final = 1
NULL_BYTES: Final = 1

Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """Bytes per row: row i is ``data[offsets[i]:offsets[i + 1]]``, or null.

    data: uint8 of any length. offsets: int64, one more than the number of rows. valid: bool, one
    per row, None if no row is null. Arrow allows a null row to have bytes in `data`. Such bytes are
    never read.
    """

    data: UInt8s
    offsets: Int64s
    valid: Bools | None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64s:
        """The length of each row in bytes, int64; 0 for a null."""
        lengths = np.diff(self.offsets)
        return lengths if self.valid is None else np.where(self.valid, lengths, 0)

    @property
    def wire_lengths(self) -> Int64s:
        """The length of each row as a record encodes it, int64; -1 for a null."""
        lengths = np.diff(self.offsets)
        return lengths if self.valid is None else np.where(self.valid, lengths, -1)

    def slice(self, start: int, stop: int) -> BinaryColumn:
        """Return a view of the rows from `start` to `stop`."""
        valid = None if self.valid is None else self.valid[start:stop]
        return BinaryColumn(self.data, self.offsets[start : stop + 1], valid)

    @classmethod
    def of(cls, array: pa.Array) -> BinaryColumn:
        """Return a view of a (large_)binary or (large_)string array, which may be a slice."""
        _, offsets, data = array.buffers()
        width = np.int64 if _is_large(array.type) else np.int32
        first, rows = array.offset, len(array)
        if rows == 0 or offsets is None or data is None:
            return cls(np.empty(0, np.uint8), np.zeros(rows + 1, np.int64), valid_mask(array))
        item = np.dtype(width).itemsize
        positions = np.frombuffer(offsets, width, rows + 1, first * item).astype(np.int64)
        return cls(np.frombuffer(data, np.uint8), positions, valid_mask(array))


def valid_mask(array: pa.Array) -> Bools | None:
    """Return a mask of the rows that are not null, bool, one per row; None if no row is null."""
    if not array.null_count:
        return None
    mask: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_binary(kind) or pa.types.is_large_string(kind))


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Columns of records, all of the same length, and the encoded sizes. Construct it with `of`.

    key: None if no row has a key. headers: the encoded header section of each row, which is the
    number of headers followed by the headers (see `encode_headers`); None if no row has headers.
    timestamps_ms: int64. key_lengths, value_lengths: the lengths as a record encodes them, int64,
    -1 for null. body_bytes: the encoded size of each record without the record length, the
    timestamp delta and the offset delta, int64.
    """

    key: BinaryColumn | None
    value: BinaryColumn
    headers: BinaryColumn | None
    timestamps_ms: Int64s
    key_lengths: Int64s | None
    value_lengths: Int64s
    body_bytes: Int64s

    @classmethod
    def of(
        cls,
        *,
        key: BinaryColumn | None,
        value: BinaryColumn,
        headers: BinaryColumn | None,
        timestamps_ms: Int64s,
    ) -> RecordColumns:
        """Return the columns with the encoded sizes, which are computed here."""
        value_lengths = value.wire_lengths
        body_bytes = _field_bytes(value, value_lengths)
        body_bytes += ATTRIBUTES_BYTES
        body_bytes += NO_HEADERS_BYTES if headers is None else headers.lengths
        key_lengths = None
        if key is None:
            body_bytes += NULL_BYTES
        else:
            key_lengths = key.wire_lengths
            body_bytes += _field_bytes(key, key_lengths)
        return cls(key, value, headers, timestamps_ms, key_lengths, value_lengths, body_bytes)

    def __len__(self) -> int:
        return len(self.value)

    def slice(self, start: int, stop: int) -> RecordColumns:
        """Return a view of the rows from `start` to `stop`."""
        return RecordColumns(
            key=None if self.key is None else self.key.slice(start, stop),
            value=self.value.slice(start, stop),
            headers=None if self.headers is None else self.headers.slice(start, stop),
            timestamps_ms=self.timestamps_ms[start:stop],
            key_lengths=None if self.key_lengths is None else self.key_lengths[start:stop],
            value_lengths=self.value_lengths[start:stop],
            body_bytes=self.body_bytes[start:stop],
        )


def _field_bytes(column: BinaryColumn, wire_lengths: Int64s) -> Int64s:
    """Return the sizes of the keys or values, int64. A size includes the varint of the length."""
    lengths = wire_lengths if column.valid is None else np.maximum(wire_lengths, 0)
    return lengths + varint_widths(zigzag(wire_lengths))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to append to a producer.

    topics: the topics of the rows. topic_numbers: each row's index in `topics`, int64; None if
    `topics` has only one topic. partitions: the partition column, int64, -1 for null; None if there
    is no partition column.
    """

    columns: RecordColumns
    topics: list[str]
    topic_numbers: Int64s | None
    partitions: Int64s | None

    def __len__(self) -> int:
        return len(self.columns)

    def by_topic(self) -> Iterator[tuple[int, Int64s | slice]]:
        """Yield the index of each topic that has rows, and the topic's row numbers, ascending."""
        if self.topic_numbers is None:
            yield 0, slice(None)
            return
        # One sort serves all topics. A comparison per topic would read every row once per topic.
        order, numbers, starts = group_by_partition(self.topic_numbers)
        for number, start, stop in zip(numbers, starts[:-1], starts[1:], strict=True):
            yield number, order[start:stop]

    def slice(self, start: int, stop: int) -> Rows:
        """Return a view of the rows from `start` to `stop`."""
        numbers, partitions = self.topic_numbers, self.partitions
        return Rows(
            self.columns.slice(start, stop),
            self.topics,
            None if numbers is None else numbers[start:stop],
            None if partitions is None else partitions[start:stop],
        )


# Half of a surrogate pair in UTF-8. Its last byte may be missing. Java replaces it with one U+FFFD,
# Python with one per byte.
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()


def valid_utf8(array: pa.Array) -> pa.Array:
    """Return a string or binary array as a string array of valid UTF-8; large types stay large.

    Nothing is copied if the whole array is already valid UTF-8.
    """
    is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    kind, binary = (
        (pa.large_string(), pa.large_binary()) if is_large else (pa.string(), pa.binary())
    )
    data = array.cast(binary)
    try:
        return data.cast(kind)
    except pa.ArrowInvalid:
        encoded = data.dictionary_encode()
        texts = [decode_utf8(text) for text in encoded.dictionary.to_pylist()]
        return pa.array(texts, kind).take(encoded.indices)


def decode_utf8(text: bytes) -> str:
    """Decode UTF-8 bytes; invalid bytes become U+FFFD."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(_REPLACEMENT, text).decode(errors="replace")
