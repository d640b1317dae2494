"""Convert an Arrow batch with the sink's columns to rows for the producer.

Columns are found by their exact name: value (string or binary), and optionally key (string or
binary), topic (string), partition (int), headers (an array of structs of key and value, or a map;
values string or binary), timestamp (timestamp or milliseconds). Other columns are ignored. If a
type or a value cannot be sent, DataException is raised. Its message names the column, the row of
the batch, and what was found. The rules for values are in `row_rules`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

import numpy as np
import pyarrow as pa

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.model import check_topic_name
from spark_kafka_sink.records.columns import (
    BinaryColumn,
    RecordColumns,
    Rows,
    valid_mask,
    valid_utf8,
)
from spark_kafka_sink.records.encoder import encode_headers
from spark_kafka_sink.records.varint import Int64s
from spark_kafka_sink.serde import COLUMNS, HEADERS_TYPE, NO_TOPIC, NO_VALUE, check_each_once
from spark_kafka_sink.serde.row_rules import (
    HeaderColumn,
    SinkColumns,
    TopicColumn,
    check_rows,
    milliseconds,
    to_numpy,
)

_NO_PARTITION = -1


def read_rows(batch: pa.RecordBatch, topic: str | None, now_ms: int) -> Rows:
    """Return the rows of `batch`, from the sink's columns.

    topic: the topic of all rows, or None to use the topic column. now_ms: the timestamp for rows
    without a timestamp, in ms since 1970. Raise DataException if a type or a value cannot be sent.
    """
    columns = SinkColumns(batch, topic)
    check_types(columns, topic)
    check_rows(columns)
    topics, numbers = _topics(columns.topics, topic)
    key, headers = columns.get("key"), columns.headers
    return Rows(
        RecordColumns.of(
            key=None if key is None else BinaryColumn.of(key),
            value=BinaryColumn.of(columns.by_name["value"]),
            headers=None if headers is None else _headers(headers),
            timestamps_ms=_timestamps(columns.get("timestamp"), batch.num_rows, now_ms),
        ),
        topics,
        numbers,
        _partitions(columns.get("partition")),
    )


def check_types(columns: SinkColumns, topic: str | None) -> None:
    """Raise DataException if a column is missing, occurs twice or has a type that cannot be sent.

    topic: the topic of all rows, or None to use the topic column. Raise DataException, too, if this
    topic name is invalid.
    """
    if "value" not in columns.by_name:
        raise DataException(NO_VALUE)
    if len(columns.by_name) < len(columns.names):
        is_read = {*COLUMNS} if topic is None else {*COLUMNS} - {"topic"}
        check_each_once(name for name in columns.names if name in is_read)
    if topic is not None:
        check_topic_name(topic)
    elif columns.get("topic") is None:
        raise DataException(NO_TOPIC)
    else:
        _check_type(columns, "topic", "string", _is_string)
    _check_type(columns, "key", "string or binary", _is_string, _is_binary)
    _check_type(columns, "value", "string or binary", _is_string, _is_binary)
    _check_type(columns, "partition", "int", pa.types.is_int32)
    _check_type(
        columns,
        "timestamp",
        "timestamp or bigint (milliseconds since 1970)",
        pa.types.is_timestamp,
        pa.types.is_int64,
    )
    _check_type(columns, "headers", HEADERS_TYPE, _are_headers)


def _check_type(
    columns: SinkColumns, name: str, accepted: str, *checks: Callable[[pa.DataType], bool]
) -> None:
    array = columns.get(name)
    if array is not None and not any(check(array.type) for check in checks):
        message = f"{name} attribute unsupported type {array.type}. {name} must be a(n) {accepted}"
        raise DataException(message)


def _topics(column: TopicColumn | None, topic: str | None) -> tuple[list[str], Int64s | None]:
    """Return the topic names, and the index of each row's topic in them.

    The indexes are None if there is at most one topic.
    """
    if column is None:
        return [topic or ""], None
    return column.texts, column.numbers if len(column.texts) > 1 else None


def _partitions(array: pa.Array | None) -> Int64s | None:
    if array is None:
        return None
    valid = valid_mask(array)
    if valid is not None and not valid.any():
        return None
    filled = array if valid is None else array.fill_null(_NO_PARTITION)
    numbers: Int64s = to_numpy(filled).astype(np.int64)
    return numbers


def _timestamps(array: pa.Array | None, rows: int, now_ms: int) -> Int64s:
    if array is None:
        return np.full(rows, now_ms)
    array = milliseconds(array)
    if array.null_count:
        array = array.fill_null(now_ms)
    numbers: Int64s = to_numpy(array)
    return numbers


def _headers(column: HeaderColumn) -> BinaryColumn | None:
    """Return the encoded header section of each row, or None if no row has headers.

    Invalid UTF-8 in keys is replaced by U+FFFD, as in Spark's own sink.
    """
    if not len(column.keys):
        return None
    keys = BinaryColumn.of(valid_utf8(column.keys))
    return encode_headers(column.counts, keys, BinaryColumn.of(column.values))


def _are_headers(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _are_header_fields([("key", kind.key_type), ("value", kind.item_type)])
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    if not pa.types.is_struct(kind.value_type):
        return False
    fields = [(field.name.lower(), field.type) for field in kind.value_type]
    return _are_header_fields(sorted(fields, key=itemgetter(0)))


def _are_header_fields(fields: list[tuple[str, pa.DataType]]) -> bool:
    return (
        [name for name, _ in fields] == ["key", "value"]
        and _is_string(fields[0][1])
        and (_is_string(fields[1][1]) or _is_binary(fields[1][1]))
    )


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
