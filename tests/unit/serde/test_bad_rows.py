"""Bad rows: exactly those are found because of which the producer would reject the batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import DataException, RecordTooLargeException
from spark_kafka_sink.model import LARGEST_INT32
from spark_kafka_sink.producer.partitioner import check_partitions
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.encoder import record_sizes
from spark_kafka_sink.records.record_limits import RecordLimits
from spark_kafka_sink.records.varint import Int64s
from spark_kafka_sink.serde.arrow_columns import read_rows
from spark_kafka_sink.serde.bad_rows import FAULTS, find_bad_rows
from spark_kafka_sink.serde.row_rules import Fault

LIMITS = RecordLimits.of(max_request_size=1000, buffer_memory=2000).with_topics({"a": 900})
PARTITIONS = {"a": 3, "b.c-d_E": 1}
NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "key": pa.binary(),
        "value": pa.string(),
        "headers": HEADERS,
        "timestamp": pa.timestamp("us", "UTC"),
    }
)


def partition_counts(expected: Mapping[str, int]) -> dict[str, int]:
    """Return the cluster's numbers of partitions; requests are valid, as the producer checks."""
    assert max(expected.values()) <= LARGEST_INT32
    return {topic: PARTITIONS[topic] for topic in expected}


def faults(batch: pa.RecordBatch, topic: str | None = None) -> dict[int, Fault]:
    """Return the faults by row."""
    found = find_bad_rows(batch, topic, LIMITS, partition_counts, NOW_MS)
    if found is None:
        return {}
    return {
        row: FAULTS[code]
        for row, code in zip(found.rows.tolist(), found.codes.tolist(), strict=True)
    }


def is_refused(row: pa.RecordBatch, topic: str | None) -> bool:
    """Return whether the producer would reject a batch of this one row."""
    try:
        rows = read_rows(row, topic, NOW_MS)
        if not re.fullmatch(r"[A-Za-z0-9._-]+", rows.topics[0]):
            return True
        LIMITS.check(rows, record_sizes(rows.columns))
        if rows.partitions is not None:
            check_partitions("", rows.partitions, PARTITIONS[rows.topics[0]])
    except (DataException, RecordTooLargeException):
        return True
    return False


sizes = st.sampled_from([None, 0, 1, 100, 400, 850, 1200])
rows_of_all_kinds = st.fixed_dictionaries(
    {
        "topic": st.sampled_from([None, "a", "a", "b.c-d_E", "no topic", ""]),
        "partition": st.sampled_from([None, None, 0, 1, 2, 3, -1]),
        "key": st.one_of(st.none(), sizes.map(lambda n: b"k" * (n or 0))),
        "value": st.one_of(st.none(), sizes.map(lambda n: "v" * (n or 0))),
        "headers": st.one_of(
            st.none(),
            st.lists(
                st.fixed_dictionaries(
                    {
                        "key": st.sampled_from([None, "", "h", "x" * 300]),
                        "value": st.sampled_from([None, b"", b"y" * 500]),
                    }
                ),
                max_size=3,
            ),
        ),
        "timestamp": st.sampled_from([None, 0, -999, -1000, NOW_MS * 1000]),
    }
)


@given(st.lists(rows_of_all_kinds, max_size=12), st.sampled_from([None, "a"]), st.integers(0, 3))
def test_a_row_is_bad_where_the_producer_would_refuse_it_alone(
    rows: list[dict[str, Any]], topic: str | None, before: int
) -> None:
    padding = [dict.fromkeys(SCHEMA.names)] * before
    batch = pa.RecordBatch.from_pylist(padding + rows, SCHEMA).slice(before)
    found = find_bad_rows(batch, topic, LIMITS, partition_counts, NOW_MS)
    bad = set() if found is None else set(found.rows.tolist())
    assert bad == {i for i in range(len(rows)) if is_refused(batch.slice(i, 1), topic)}
    if found is not None:
        assert found.bad(batch).to_pylist() == [
            batch.slice(i, 1).to_pylist()[0] for i in sorted(bad)
        ]
        good = found.good(batch)
        assert good.num_rows == len(rows) - len(bad)
        assert find_bad_rows(good, topic, LIMITS, partition_counts, NOW_MS) is None


@given(st.lists(rows_of_all_kinds, max_size=12), st.sampled_from([None, "a"]))
def test_the_row_that_a_batch_is_refused_for_is_a_bad_one(
    rows: list[dict[str, Any]], topic: str | None
) -> None:
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    named = None
    try:
        read_rows(batch, topic, NOW_MS)
    except DataException as error:
        named = error.row
    if named is not None:
        found = find_bad_rows(batch, topic, LIMITS, partition_counts, NOW_MS)
        assert found is not None
        assert named in found.rows


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"topic": None}, Fault.NULL_TOPIC),
        ({"topic": "no topic"}, Fault.INVALID_TOPIC),
        ({"topic": ".."}, Fault.INVALID_TOPIC),
        ({"topic": "x" * 250}, Fault.INVALID_TOPIC),
        ({"partition": -1}, Fault.INVALID_PARTITION),
        ({"partition": 3}, Fault.INVALID_PARTITION),
        ({"partition": LARGEST_INT32}, Fault.INVALID_PARTITION),
        ({"topic": "b.c-d_E", "partition": LARGEST_INT32}, Fault.INVALID_PARTITION),
        ({"topic": "b.c-d_E", "partition": 1}, Fault.INVALID_PARTITION),
        ({"timestamp": -1000}, Fault.INVALID_TIMESTAMP),
        ({"headers": [{"key": None, "value": b""}]}, Fault.NULL_HEADER_KEY),
        ({"value": "v" * 1000}, Fault.TOO_LARGE),
        ({"headers": [{"key": "h", "value": b"x" * 1000}]}, Fault.TOO_LARGE),
        ({"topic": None, "partition": -1, "value": "v" * 1000}, Fault.NULL_TOPIC),
    ],
)
def test_every_fault_has_its_name(row: dict[str, Any], fault: Fault) -> None:
    good = dict.fromkeys(SCHEMA.names) | {"topic": "a", "value": "v"}
    batch = pa.RecordBatch.from_pylist([good, good | row, good], SCHEMA)
    assert faults(batch) == {1: fault}


def test_the_largest_number_is_no_partition_of_the_option_s_topic() -> None:
    partitions = pa.array([2, LARGEST_INT32], pa.int32())
    batch = pa.record_batch({"value": ["1", "2"], "partition": partitions})
    assert faults(batch, "a") == {1: Fault.INVALID_PARTITION}


def test_a_topic_column_is_no_matter_where_the_option_is_set() -> None:
    batch = pa.record_batch({"topic": pa.array([None, "no topic", "x"]), "value": ["1", "2", "3"]})
    assert faults(batch, "a") == {}


def test_bytes_that_are_no_text_are_no_topic() -> None:
    names = pa.array([b"a", b"\xff\xfe"], pa.binary()).cast(pa.string(), safe=False)
    batch = pa.record_batch({"topic": names, "value": ["1", "2"]})
    assert faults(batch) == {1: Fault.INVALID_TOPIC}


def test_a_header_s_key_is_measured_as_the_text_that_is_written() -> None:
    keys = pa.array([b"k" * 400, b"\xff" * 400], pa.binary()).cast(pa.string(), safe=False)
    entries = pa.StructArray.from_arrays([keys, pa.nulls(2, pa.binary())], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), entries)
    batch = pa.record_batch({"value": ["1", "2"], "headers": headers})
    assert faults(batch, "a") == {1: Fault.TOO_LARGE}
    assert faults(batch.slice(1), "a") == {0: Fault.TOO_LARGE}


@pytest.mark.parametrize(
    "kind",
    [
        HEADERS,
        pa.large_list(pa.struct([("value", pa.large_binary()), ("Key", pa.large_string())])),
        pa.map_(pa.string(), pa.string()),
    ],
    ids=["list", "large list", "map"],
)
def test_records_are_measured_only_if_the_headers_of_one_row_may_be_too_large(
    kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def counted(columns: RecordColumns) -> Int64s:
        measured.append(len(columns))
        return record_sizes(columns)

    monkeypatch.setattr(f"{find_bad_rows.__module__}.record_sizes", counted)
    names = ["key", "value"] if pa.types.is_map(kind) else [field.name for field in kind.value_type]
    small, large = ([dict.fromkeys(names, text)] * 2 for text in ("h" * 50, "h" * 300))
    rows = [large, *([small, None, []] * 100), large]
    pairs = [None if row is None else [tuple(each.values()) for each in row] for row in rows]
    headers = pa.array(pairs if pa.types.is_map(kind) else rows, kind)
    batch = pa.record_batch({"value": ["v"] * len(rows), "headers": headers})
    assert faults(batch.slice(1, len(rows) - 2), "a") == {}
    assert faults(batch.slice(1, 0), "a") == {}
    assert measured == []
    assert faults(batch.slice(1), "a") == {len(rows) - 2: Fault.TOO_LARGE}
    assert measured == [len(rows) - 1]


def test_a_row_whose_headers_are_null_has_no_header_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{find_bad_rows.__module__}.record_sizes", None)
    keys = pa.array(["a", "k" * 2000, "b"])
    entries = pa.StructArray.from_arrays([keys, pa.nulls(3, pa.binary())], ["key", "value"])
    offsets = pa.array([0, 1, 2, 3], pa.int32())
    headers = pa.ListArray.from_arrays(offsets, entries, mask=pa.array([False, True, False]))
    batch = pa.record_batch({"value": ["1", "2", "3"], "headers": headers})
    assert faults(batch, "a") == {}


def test_a_topic_is_asked_for_only_where_a_partition_of_it_is_in_doubt() -> None:
    batch = pa.record_batch(
        {
            "topic": ["a", "unknown", "no topic"],
            "value": ["1", "2", "3"],
            "partition": pa.array([2, 0, 7], pa.int32()),
        }
    )
    assert faults(batch) == {2: Fault.INVALID_TOPIC}


@pytest.mark.parametrize("large", [False, True])
def test_large_types_and_integer_timestamps_are_the_same(*, large: bool) -> None:
    binary, text = (pa.large_binary(), pa.large_string()) if large else (pa.binary(), pa.string())
    headers = pa.list_(pa.struct([("key", text), ("value", binary)]))
    batch = pa.record_batch(
        {
            "value": pa.array(["1", "x" * 1000, "3", "4"], text),
            "key": pa.array([b"k", None, None, b""], binary),
            "timestamp": pa.array([0, None, -1, NOW_MS]),
            "headers": pa.array([None, [], [], [{"key": None, "value": None}]], headers),
        }
    )
    found = {1: Fault.TOO_LARGE, 2: Fault.INVALID_TIMESTAMP, 3: Fault.NULL_HEADER_KEY}
    assert faults(batch, "a") == found


def test_all_topics_of_a_batch_are_asked_for_at_once() -> None:
    asked = []

    def counts(expected: Mapping[str, int]) -> dict[str, int]:
        asked.append(dict(expected))
        return partition_counts(expected)

    batch = pa.record_batch(
        {
            "topic": ["a", "b.c-d_E", "a", "b.c-d_E"],
            "value": ["1", "2", "3", "4"],
            "partition": pa.array([1, 1, 5, None], pa.int32()),
        }
    )
    found = find_bad_rows(batch, None, LIMITS, counts, NOW_MS)
    assert found is not None
    assert found.rows.tolist() == [1, 2]
    assert asked == [{"a": 6, "b.c-d_E": 2}]
