"""Timestamps of every unit as milliseconds: rounded down, and rejected beyond 64 bits."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.records.record_limits import RecordLimits
from spark_kafka_sink.serde.arrow_columns import read_rows
from spark_kafka_sink.serde.bad_rows import FAULTS, find_bad_rows
from spark_kafka_sink.serde.row_rules import Fault, milliseconds

LIMITS = RecordLimits.of(max_request_size=1000, buffer_memory=1000)
PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
MOST_SECONDS = (2**63 - 1) // 1000
# Also around 1970, where fractions of a millisecond are rounded.
TIMES = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-2_000_001, 2_000_001)


def timestamps(times: list[int | None], unit: str, zone: str | None = "UTC") -> pa.Array:
    return pa.array(times, pa.int64()).cast(pa.timestamp(unit, zone))


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize("unit", PER_SECOND)
@given(times=st.lists(st.none() | TIMES, max_size=8), before=st.lists(TIMES, max_size=2))
def test_times_are_rounded_down_to_milliseconds(
    times: list[int | None], before: list[int], unit: str, zone: str | None
) -> None:
    """Spark's unix_millis does the same: half a millisecond before 1970 is -1."""
    if unit == "s":
        times = [
            None if time is None else time % (2 * MOST_SECONDS) - MOST_SECONDS for time in times
        ]
    array = timestamps([*before, *times], unit, zone).slice(len(before))
    found = milliseconds(array)
    assert found.type == pa.int64()
    assert found.to_pylist() == [
        None if time is None else time * 1000 // PER_SECOND[unit] for time in times
    ]


def test_numbers_are_milliseconds_as_they_are() -> None:
    array = pa.array([2**63 - 1, None, -1])
    assert milliseconds(array) is array


@pytest.mark.parametrize("beyond", [MOST_SECONDS + 1, 2**63 - 1, -MOST_SECONDS - 1, -(2**63)])
def test_seconds_that_milliseconds_have_no_room_for_are_refused(beyond: int) -> None:
    times = timestamps([MOST_SECONDS, None, beyond, 1], "s")
    assert milliseconds(times).to_pylist() == [MOST_SECONDS * 1000, None, None, 1000]
    batch = pa.record_batch({"value": ["v"] * 4, "timestamp": times})
    with pytest.raises(
        DataException,
        match=rf"^row 2 of the Arrow batch: Invalid timestamp: {beyond} s\. In milliseconds it "
        rf"does not fit into 64 bits: expected 0 to {MOST_SECONDS} s\.",
    ) as refused:
        read_rows(batch, "t", 0)
    assert refused.value.row == 2
    bad = find_bad_rows(batch, "t", LIMITS, lambda _: {}, 0)
    assert bad is not None
    assert {row: FAULTS[code] for row, code in zip(bad.rows, bad.codes, strict=True)} == {
        2: Fault.INVALID_TIMESTAMP
    }
    good = read_rows(bad.good(batch), "t", 5)
    assert good.columns.timestamps_ms.tolist() == [MOST_SECONDS * 1000, 5, 1000]


@pytest.mark.parametrize(("unit", "time"), [("us", -500), ("ns", -1), ("us", -1000), ("s", -1)])
def test_what_is_before_1970_is_refused_also_by_a_part_of_a_millisecond(
    unit: str, time: int
) -> None:
    batch = pa.record_batch({"value": ["a", "b"], "timestamp": timestamps([0, time], unit)})
    ms = -1000 if unit == "s" else -1
    with pytest.raises(
        DataException, match=rf"^row 1 of the Arrow batch: Invalid timestamp: {ms} ms\. "
    ):
        read_rows(batch, "t", 0)
    bad = find_bad_rows(batch, "t", LIMITS, lambda _: {}, 0)
    assert bad is not None
    assert bad.rows.tolist() == [1]
