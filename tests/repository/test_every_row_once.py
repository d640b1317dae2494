"""The check of the tests on real brokers must find every kind of wrong row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.oracles.readers import Record
from support.spark.flights import check_every_row_once, expected

COUNT, TASKS, PARTITIONS = 400, 2, 3
# By number: with key and headers; without key; with a partition of its own; without a value.
KEYED, UNKEYED, PLACED, TOMBSTONE = 3, 10, 7, 54


def arrived() -> list[Record]:
    """Return all rows as they should arrive; rows without partition are in partition 2."""
    records = []
    for number in range(COUNT):
        row = expected(number, PARTITIONS)
        partition = 2 if row.partition is None else row.partition
        records.append(Record(partition, number, row.timestamp_ms, row.key, row.value, row.headers))
    return records


def changed(number: int, **fields: object) -> Callable[[list[Record]], None]:
    def change(records: list[Record]) -> None:
        records[number] = records[number]._replace(**fields)  # type: ignore[arg-type]  # each by its name

    return change


def test_what_should_arrive_is_right() -> None:
    records = arrived()
    check_every_row_once(records, COUNT, TASKS, PARTITIONS)
    assert sum(record.value is None for record in records) == COUNT // 100
    assert [records[n].key is None for n in (KEYED, UNKEYED)] == [False, True]
    assert expected(UNKEYED, PARTITIONS).partition is None


def test_a_row_without_key_may_be_in_any_partition() -> None:
    records = arrived()
    changed(UNKEYED, partition=0)(records)
    check_every_row_once(records, COUNT, TASKS, PARTITIONS)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(list.pop, id="the last is missing"),
        pytest.param(lambda records: records.pop(UNKEYED), id="one is missing"),
        pytest.param(lambda records: records.append(records[-1]), id="one came twice"),
        pytest.param(lambda records: records.append(records[TOMBSTONE]), id="a null came twice"),
        pytest.param(lambda records: records.insert(0, records.pop(UNKEYED + 20)), id="order"),
        pytest.param(changed(KEYED, key=None), id="key"),
        pytest.param(changed(KEYED, value=b"3:"), id="value"),
        pytest.param(changed(KEYED, headers=()), id="headers"),
        pytest.param(changed(KEYED, timestamp_ms=0), id="timestamp"),
        pytest.param(changed(KEYED, partition=9), id="partition of a key"),
        pytest.param(changed(PLACED, partition=0), id="partition of its own"),
        pytest.param(changed(KEYED, value=None), id="null in place of a value"),
        pytest.param(changed(TOMBSTONE, value=b"54:vvvv"), id="value in place of null"),
        pytest.param(changed(TOMBSTONE, headers=()), id="null without headers"),
    ],
)
def test_whatever_is_wrong_with_a_row_is_seen(spoil: Callable[[list[Record]], None]) -> None:
    records = arrived()
    spoil(records)
    with pytest.raises(AssertionError):
        check_every_row_once(records, COUNT, TASKS, PARTITIONS)
