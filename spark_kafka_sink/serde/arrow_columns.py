"""An Arrow batch with the sink's columns, as rows for the producer.

Columns by exact name: value (string or binary), and optionally key (string or binary), topic
(string), partition (int), headers (an array of structs of key and value, or a map; values string or
binary), timestamp (timestamp or milliseconds). Others are ignored. Raises DataException for a type
or a value that cannot be sent, naming the column, the row of the batch and what was found.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.model import check_topic_name
from spark_kafka_sink.records.columns import BinaryColumn, Bools, RecordColumns, Rows, valid_mask
from spark_kafka_sink.records.encoder import encode_headers
from spark_kafka_sink.records.utf8 import valid_utf8
from spark_kafka_sink.records.varint import Int64s
from spark_kafka_sink.serde import HEADERS_TYPE, NO_TOPIC, NO_VALUE

# The name that Spark's own sink gives it.
NULL_TOPIC: Final = "KAFKA_NULL_TOPIC_IN_DATA"
_NO_PARTITION: Final = -1
_MS_PER_SECOND: Final = 1000
_MOST_SECONDS: Final = (2**63 - 1) // _MS_PER_SECOND
_PARTS_OF_MS: Final = {"us": 1000, "ns": 1_000_000}


def read_rows(batch: pa.RecordBatch, topic: str | None, now_ms: int) -> Rows:
    """Read the sink's columns of `batch`.

    topic: for all rows, in place of a topic column; now_ms: the timestamp of rows without one.
    """
    columns = named_columns(batch)
    if "value" not in columns:
        raise DataException(NO_VALUE)
    topics, numbers = _topics(columns.get("topic"), topic)
    return Rows(
        RecordColumns.of(
            key=_binary("key", columns.get("key")),
            value=_binary("value", columns["value"]) or BinaryColumn.of(columns["value"]),
            headers=_headers(columns.get("headers")),
            timestamps_ms=_timestamps(columns.get("timestamp"), batch.num_rows, now_ms),
        ),
        topics,
        numbers,
        _partitions(columns.get("partition")),
    )


def named_columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Give the columns by name, in their order; of two with the same name, the first."""
    columns: dict[str, pa.Array] = {}
    for number, name in enumerate(batch.schema.names):
        columns.setdefault(name, batch.column(number))
    return columns


def milliseconds(array: pa.Array) -> pa.Array:
    """Return a timestamp column as milliseconds since 1970, int64, nulls kept.

    Parts of a millisecond are rounded down, as by Spark's unix_millis. Raises DataException for
    what `beyond_milliseconds` finds.
    """
    if not pa.types.is_timestamp(array.type):
        return array
    unit, numbers = array.type.unit, array.cast(pa.int64())
    if unit == "s":
        beyond = beyond_milliseconds(array)
        if beyond is not None:
            row = int(np.flatnonzero(beyond)[0])
            message = (
                f"Invalid timestamp: {numbers[row].as_py()} s. As "
                f"milliseconds it is not within 64 bits: expected at most {_MOST_SECONDS} s."
            )
            raise DataException(message, row=row)
        return pc.multiply(numbers, _MS_PER_SECOND)
    if unit == "ms":
        return numbers
    parts = _PARTS_OF_MS[unit]
    rounded = pc.divide(numbers, parts)
    if (pc.min(numbers).as_py() or 0) >= 0:
        return rounded
    # Arrow rounds towards 0: times before 1970 up.
    is_above = pc.greater(pc.multiply(rounded, parts), numbers)
    return pc.subtract(rounded, is_above.cast(pa.int64()))


def beyond_milliseconds(array: pa.Array) -> Bools | None:
    """Return which times are too far from 1970 to be milliseconds of 64 bits, None if none is."""
    if not pa.types.is_timestamp(array.type) or array.type.unit != "s":
        return None
    seconds = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    beyond: Bools = (seconds > _MOST_SECONDS) | (seconds < -_MOST_SECONDS)
    return beyond if beyond.any() else None


def _check_type(name: str, array: pa.Array, accepted: str, *checks: Callable[..., bool]) -> None:
    if not any(check(array.type) for check in checks):
        message = f"{name} attribute unsupported type {array.type}. {name} must be a(n) {accepted}"
        raise DataException(message)


def _binary(name: str, array: pa.Array | None) -> BinaryColumn | None:
    if array is None:
        return None
    _check_type(name, array, "string or binary", _is_string, _is_binary)
    return BinaryColumn.of(array)


def _topics(array: pa.Array | None, topic: str | None) -> tuple[list[str], Int64s | None]:
    if topic is not None:
        check_topic_name(topic)
        return [topic], None
    if array is None:
        raise DataException(NO_TOPIC)
    _check_type("topic", array, "string", _is_string)
    if array.null_count:
        row = pc.index(pc.is_null(array), True).as_py()
        message = (
            f"[{NULL_TOPIC}] The Kafka message data sent to the producer contains a null topic. "
            "Use the `topic` option for setting a default topic."
        )
        raise DataException(message, row=row)
    encoded = array.dictionary_encode()
    names = [
        _topic_name(name, encoded.indices, number)
        for number, name in enumerate(encoded.dictionary.cast(pa.large_binary()).to_pylist())
    ]
    if len(names) <= 1:
        return names, None
    return names, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _topic_name(name: bytes, numbers: pa.Array, number: int) -> str:
    """Check a topic's name; numbers: of the name in each row, number: its own."""
    try:
        text = name.decode()
        check_topic_name(text)
    except UnicodeDecodeError:
        reason = f"topic has a name that is not text: {name[:20]!r} is not UTF-8"
    except DataException as error:
        reason = str(error)
    else:
        return text
    row = pc.index(numbers, number).as_py()
    raise DataException(reason, row=row)


def _partitions(array: pa.Array | None) -> Int64s | None:
    if array is None:
        return None
    _check_type("partition", array, "int", pa.types.is_int32)
    valid = valid_mask(array)
    if valid is not None and not valid.any():
        return None
    filled = array if valid is None else array.fill_null(_NO_PARTITION)
    numbers: Int64s = filled.to_numpy(zero_copy_only=False).astype(np.int64)
    negative = numbers < 0 if valid is None else (numbers < 0) & valid
    if negative.any():
        row = int(np.flatnonzero(negative)[0])
        message = (
            f"Invalid partition: {int(numbers[row])}. "
            "Partition number should always be non-negative or null."
        )
        raise DataException(message, row=row)
    return numbers


def _timestamps(array: pa.Array | None, rows: int, now_ms: int) -> Int64s:
    if array is None:
        return np.full(rows, now_ms)
    _check_type(
        "timestamp",
        array,
        "timestamp or bigint (milliseconds since 1970)",
        pa.types.is_timestamp,
        pa.types.is_int64,
    )
    array = milliseconds(array)
    if array.null_count:
        array = array.fill_null(now_ms)
    numbers: Int64s = array.to_numpy(zero_copy_only=False)
    if len(numbers) and int(numbers.min()) < 0:
        row = int(np.flatnonzero(numbers < 0)[0])
        message = (
            f"Invalid timestamp: {int(numbers[row])} ms. "
            "Timestamp should always be non-negative or null."
        )
        raise DataException(message, row=row)
    return numbers


def _headers(array: pa.Array | None) -> BinaryColumn | None:
    if array is None:
        return None
    lists = header_lists(array)
    if not _are_headers(lists.type):
        message = (
            f"headers attribute unsupported type {array.type}. headers must be a(n) {HEADERS_TYPE}"
        )
        raise DataException(message)
    counts = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    keys, values = _header_entries(lists, counts)
    if not len(keys):
        return None
    return encode_headers(counts.astype(np.int64), keys, values)


def header_lists(array: pa.Array) -> pa.Array:
    """Give a map as an array of structs of key and value, which is what it is in memory."""
    if not pa.types.is_map(array.type):
        return array
    kind = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
    return array.cast(pa.list_(kind))


def _are_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    if not pa.types.is_struct(kind.value_type):
        return False
    fields = sorted(((f.name.lower(), f.type) for f in kind.value_type), key=itemgetter(0))
    return (
        [name for name, _ in fields] == ["key", "value"]
        and _is_string(fields[0][1])
        and (_is_string(fields[1][1]) or _is_binary(fields[1][1]))
    )


def _header_entries(array: pa.Array, counts: Int64s) -> tuple[BinaryColumn, BinaryColumn]:
    """Give the keys and the values of all headers of all rows. `array` may be a slice.

    Keys are valid UTF-8: bytes that are no text become U+FFFD, as in Spark's own sink.

    counts: the headers of each row.
    """
    entries = array.flatten()
    names = [field.name.lower() for field in entries.type]
    fields = dict(zip(names, entries.flatten(), strict=True))
    if fields["key"].null_count:
        entry = pc.index(pc.is_null(fields["key"]), True).as_py()
        row = int(np.searchsorted(np.cumsum(counts), entry, "right"))
        message = "headers has a header whose key is null: Kafka has no such header; give it a name"
        raise DataException(message, row=row)
    return BinaryColumn.of(valid_utf8(fields["key"])), BinaryColumn.of(fields["value"])


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
