"""Numbered rows, made by Spark, and the check that each arrived exactly once.

What a row must look like is computed from its number in plain Python, independently of the sink:
the partition of a keyed row by kafka-python's murmur2.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

# Jobs import this where nothing but the sink and Spark is installed.
if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from support.oracles.readers import Record

FIRST_TIMESTAMP_MS = 1_700_000_000_000
_KEYS = 997
_NUMBER_HEADER = "row"


def rows(spark: SparkSession, count: int, tasks: int) -> DataFrame:
    """Give `count` rows in `tasks` partitions, row numbers rising within each.

    They have every column that the sink knows. Every tenth key is null, some are empty; every
    fourth row has no headers, every other fourth an empty array, the others two headers with one
    name, the first of which is the row's number. Every hundredth value is null, in rows that have
    headers. Every seventh row names its partition, 0 or 1, whether it has a key or not. The topic
    of every row is one that does not exist: the option `topic` must win.
    """
    return spark.range(0, count, 1, tasks).selectExpr(
        "'overruled' AS topic",
        "CASE WHEN id % 7 = 0 THEN CAST(id % 2 AS INT) END AS partition",
        "CASE WHEN id % 10 = 0 THEN NULL WHEN id % 10 = 1 THEN '' "
        f"ELSE concat('key-', id % {_KEYS}) END AS key",
        "CASE WHEN id % 100 <> 54 "
        "THEN CAST(concat(id, ':', repeat('v', CAST(id % 50 AS INT))) AS BINARY) END AS value",
        "CASE id % 4 WHEN 0 THEN NULL WHEN 1 THEN "
        "CAST(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>) ELSE "
        f"array(named_struct('key', '{_NUMBER_HEADER}', "
        "'value', CAST(CAST(id AS STRING) AS BINARY)), "
        f"named_struct('key', '{_NUMBER_HEADER}', "
        "'value', IF(id % 4 = 2, NULL, CAST('é' AS BINARY)))) "
        "END AS headers",
        f"timestamp_millis({FIRST_TIMESTAMP_MS} + id) AS timestamp",
    )


class Expected(NamedTuple):
    """What a row must be in the topic; partition is None where any will do."""

    partition: int | None
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def expected(number: int, partitions: int) -> Expected:
    """Give what the row of a number must be in a topic of so many partitions."""
    key = {0: None, 1: b""}.get(number % 10, f"key-{number % _KEYS}".encode())
    partition = None if key is None else java_partition(key, partitions)
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if number % 4 >= 2:
        second = None if number % 4 == 2 else "é".encode()
        headers = ((_NUMBER_HEADER, str(number).encode()), (_NUMBER_HEADER, second))
    return Expected(
        partition=number % 2 if number % 7 == 0 else partition,
        timestamp_ms=FIRST_TIMESTAMP_MS + number,
        key=key,
        value=None if number % 100 == 54 else b"%d:" % number + b"v" * (number % 50),
        headers=headers,
    )


def number_of(record: Record) -> int:
    """Give the number of the row that a record says it is."""
    if record.value is not None:
        return int(record.value.partition(b":")[0])
    assert record.headers, f"{record} has neither value nor headers"
    return int(record.headers[0][1] or b"")


@cache
def java_partition(key: bytes, partitions: int) -> int:
    """Give the partition that the Java client gives a key."""
    from kafka.partitioner.default import murmur2

    return int(murmur2(key) & 0x7FFFFFFF) % partitions


def check_every_row_once(records: list[Record], count: int, tasks: int, partitions: int) -> None:
    """Assert that each row of `rows` is there once, as it should be.

    Rows must be in the order of their numbers within each task and partition.
    """
    seen: set[int] = set()
    last: dict[tuple[int, int], int] = defaultdict(lambda: -1)
    per_task = count // tasks
    for record in records:
        number = number_of(record)
        row = expected(number, partitions)
        assert record.key == row.key
        assert record.value == row.value
        assert record.headers == row.headers
        assert record.timestamp_ms == row.timestamp_ms
        if row.partition is not None:
            assert record.partition == row.partition, f"row {number}"
        assert number not in seen, f"row {number} came twice"
        lane = (record.partition, number // per_task)
        assert last[lane] < number, f"row {number} came after {last[lane]} in {lane}"
        last[lane] = number
        seen.add(number)
    assert seen == set(range(count)), f"of {count} rows {len(seen)} are there"
