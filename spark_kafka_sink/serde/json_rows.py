"""Writes the rows of an Arrow column as JSON that people and Spark's ``from_json`` can read.

If a row could not be encoded, its dead-letter record contains this JSON. Binary values are strings
in base64. Decimals, dates, times and intervals are strings. NaN and infinite numbers are the
strings that ``to_json`` writes for them. The type of an Arrow column does not show which fields an
interval has. So each interval is written as an interval from days to seconds.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_kafka_sink.records.columns import valid_utf8
from spark_kafka_sink.serde.arrow_types import column_type
from spark_kafka_sink.serde.avro_encoder import list_items, plain_layout
from spark_kafka_sink.serde.column_types import Kind

# The size in bits of the numbers in date32 and time32.
_SHORT: Final = 32
_UNITS: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_SECONDS_PER_DAY: Final = 86_400


def json_texts(array: pa.Array) -> pa.Array:
    """Return each row as JSON in UTF-8, in an array of large_binary. A null stays null."""
    texts = [
        None if row is None else json.dumps(row, ensure_ascii=False).encode()
        for row in _rows(array)
    ]
    return pa.array(texts, pa.large_binary())


def _rows(array: pa.Array) -> list[Any]:
    array = plain_layout(array)
    kind = array.type
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        columns = [_rows(array.field(number)) for number in range(kind.num_fields)]
        rows: list[Any] = [
            dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)
        ] or [{} for _ in valid]
    elif pa.types.is_map(kind) or pa.types.is_nested(kind):
        rows = _lists(array)
    else:
        return _values(array)
    return [row if is_valid else None for row, is_valid in zip(rows, valid, strict=True)]


def _lists(array: pa.Array) -> list[Any]:
    """Return the rows of a list or map column.

    A list becomes a list. A map becomes a dict if its keys are strings, else a list of pairs.
    """
    kind = array.type
    offsets, items = list_items(array)
    ranges = [slice(*each) for each in pairwise(offsets.tolist())]
    if not pa.types.is_map(kind):
        rows = _rows(items)
        return [rows[each] for each in ranges]
    pairs = list(zip(_rows(items.field(0)), _rows(items.field(1)), strict=True))
    make = dict if column_type(kind.key_type).kind is Kind.STRING else list
    return [make(pairs[each]) for each in ranges]


def _values(array: pa.Array) -> list[Any]:
    kind, types = array.type, pa.types
    convert: Callable[[Any], Any] = _same
    if types.is_timestamp(kind) or types.is_date(kind):
        return _times(array)
    if types.is_time(kind) or types.is_duration(kind):
        return _spans(array)
    if types.is_binary(kind) or types.is_large_binary(kind):
        convert = _base64
    elif types.is_string(kind) or types.is_large_string(kind):
        array = valid_utf8(array)
    elif types.is_decimal(kind):
        convert = str
    elif types.is_floating(kind):
        convert = _number
    return [None if each is None else convert(each) for each in array.to_pylist()]


def _same(value: object) -> object:
    return value


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _times(array: pa.Array) -> list[str | None]:
    """Return dates and timestamps as strings in ISO 8601.

    A year may be below 1 or above 9999, which Python's datetime does not support.
    """
    kind = array.type
    days = _counts(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    times = [""] * len(days)
    if pa.types.is_timestamp(kind):
        # The lowest number would be NaT as a datetime64. So days and times of day are separate.
        days, rests = np.divmod(days, _SECONDS_PER_DAY * _UNITS[kind.unit])
        zone = "" if kind.tz is None else "Z"
        texts = np.datetime_as_string(rests.view(f"datetime64[{kind.unit}]")).tolist()
        times = [text.removeprefix("1970-01-01") + zone for text in texts]
    dates = map(_padded, np.datetime_as_string(days.view("datetime64[D]")).tolist())
    valid = array.is_valid().to_pylist()
    rows = zip(dates, times, valid, strict=True)
    return [date + time if is_valid else None for date, time, is_valid in rows]


def _padded(date: str) -> str:
    """Return a date with at least four digits in its year, because numpy counts a minus as one."""
    sign, digits = ("-", date[1:]) if date.startswith("-") else ("", date)
    year, rest = digits.split("-", 1)
    return f"{sign}{year:0>4}-{rest}"


def _spans(array: pa.Array) -> list[str | None]:
    """Return times of day and intervals as strings."""
    units = _UNITS[array.type.unit]
    write = _interval if pa.types.is_duration(array.type) else _time
    return [None if each is None else write(each, units) for each in _counts(array).to_pylist()]


def _interval(count: int, units: int) -> str:
    days, rest = divmod(abs(count), _SECONDS_PER_DAY * units)
    return f"INTERVAL '{'-' if count < 0 else ''}{days} {_time(rest, units)}' DAY TO SECOND"


def _time(count: int, units: int) -> str:
    """Return a time of day as a string. units: how many units of `count` are a second."""
    seconds, parts = divmod(count, units)
    minutes, seconds = divmod(seconds, 60)
    text = f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
    fraction = str(units + parts)[1:].rstrip("0")
    return f"{text}.{fraction}" if fraction else text


def _counts(array: pa.Array) -> pa.Array:
    """Return each date, time or interval as the integer that Arrow stores for it."""
    return array.cast(pa.int32() if array.type.bit_width == _SHORT else pa.int64())
