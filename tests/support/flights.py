"""Rows with every kind of column, made by Spark, and the check that each arrived exactly once.

What a row must look like is computed from its number in plain Python, independently of the sink:
the partition of a keyed row by kafka-python's murmur2.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING

# Jobs import this where nothing but the sink and Spark is installed.
if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from support.readers import Record

FIRST_TIMESTAMP_MS = 1_700_000_000_000
_KEYS = 997


def rows(spark: SparkSession, count: int, tasks: int) -> DataFrame:
    """Give `count` rows in `tasks` partitions, row numbers rising within each.

    Every tenth key is null, some are empty; every fourth row has no headers, every other fourth an
    empty array or two headers with one name; every hundredth value is null but for its headers.
    """
    return spark.range(0, count, 1, tasks).selectExpr(
        "CASE WHEN id % 10 = 0 THEN NULL WHEN id % 10 = 1 THEN '' "
        f"ELSE concat('key-', id % {_KEYS}) END AS key",
        "CAST(concat(id, ':', repeat('v', CAST(id % 50 AS INT))) AS BINARY) AS value",
        "CASE id % 4 WHEN 0 THEN NULL WHEN 1 THEN "
        "CAST(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>) ELSE "
        "array(named_struct('key', 'row', 'value', CAST(CAST(id AS STRING) AS BINARY)), "
        "named_struct('key', 'row', 'value', IF(id % 4 = 2, NULL, CAST('é' AS BINARY)))) "
        "END AS headers",
        f"timestamp_millis({FIRST_TIMESTAMP_MS} + id) AS timestamp",
    )


def _expected(number: int) -> tuple[bytes | None, tuple[tuple[str, bytes | None], ...]]:
    key = {0: None, 1: b""}.get(number % 10, f"key-{number % _KEYS}".encode())
    if number % 4 < 2:
        return key, ()
    second = None if number % 4 == 2 else "é".encode()
    return key, (("row", str(number).encode()), ("row", second))


@cache
def java_partition(key: bytes, partitions: int) -> int:
    """Give the partition that the Java client gives a key."""
    from kafka.partitioner.default import murmur2

    return int(murmur2(key) & 0x7FFFFFFF) % partitions


def check_every_row_once(
    records: list[Record], count: int, tasks: int, partitions: int, *, duplicates: bool = False
) -> None:
    """Assert that each row of `rows` is there, as it should be, in order per task and partition.

    duplicates: allow rows to come again, as they do when a task attempt is repeated.
    """
    seen: set[int] = set()
    last: dict[tuple[int, int], int] = defaultdict(lambda: -1)
    per_task = count // tasks
    for record in records:
        assert record.value is not None
        number = int(record.value.partition(b":")[0])
        key, headers = _expected(number)
        assert record.value == b"%d:" % number + b"v" * (number % 50)
        assert record.key == key
        assert record.headers == headers
        assert record.timestamp_ms == FIRST_TIMESTAMP_MS + number
        if key is not None:
            assert record.partition == java_partition(key, partitions)
        if not duplicates:
            assert number not in seen, f"row {number} came twice"
            lane = (record.partition, number // per_task)
            assert last[lane] < number, f"row {number} came after {last[lane]} in {lane}"
            last[lane] = number
        seen.add(number)
    assert len(seen) == count, f"{count - len(seen)} rows are missing"
