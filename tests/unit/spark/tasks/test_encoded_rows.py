"""The rows of a task that have a schema: encoded before they are sent, and bad rows as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pytest
from pyarrow import parquet
from support.oracles.record_batches import header_pairs

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.records.record_limits import RecordLimits
from spark_kafka_sink.serde.arrow_types import column_type
from spark_kafka_sink.serde.avro_encoder import encode_avro
from spark_kafka_sink.serde.avro_plan import fit
from spark_kafka_sink.serde.avro_schema import parse_schema
from spark_kafka_sink.serde.json_rows import json_texts
from spark_kafka_sink.serde.json_schema import JsonPlan, fit_json
from spark_kafka_sink.spark.formats import ColumnEncoding
from spark_kafka_sink.spark.options import SinkOptions, sink_options
from spark_kafka_sink.spark.report import BadRowsReport
from spark_kafka_sink.spark.tasks.encoded_rows import encode_rows
from spark_kafka_sink.spark.tasks.task_rows import TaskRows
from spark_kafka_sink.task_producer import TaskProducer

ROW = pa.struct([("n", pa.int64()), ("color", pa.string())])
SCHEMA = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "n", "type": "int"},
        {"name": "color", "type": {"type": "enum", "name": "C", "symbols": ["RED", "BLUE"]}},
    ],
}
ROWS = [
    {"n": 1, "color": "RED"},
    {"n": None, "color": "RED"},
    None,
    {"n": 2**31, "color": "pink"},
    {"n": -1, "color": "BLUE"},
    {"n": 3, "color": "green"},
]


class Recording:
    """A producer that records what it gets, and to which topic."""

    record_limits: Final = RecordLimits.of(max_request_size=1_000_000, buffer_memory=1_000_000)

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def append(self, topic: str, batch: pa.RecordBatch, *_: object, **__: object) -> None:
        """Record the rows."""
        self.sent += [(topic, row) for row in batch.to_pylist()]

    def limit_messages(self, *_: object) -> None:
        """Do nothing."""

    def partition_counts(self, expected: dict[str, int]) -> dict[str, int]:
        """Return one partition for each topic."""
        return dict.fromkeys(expected, 1)


def options(prefix: bytes = b"", **given: str) -> SinkOptions:
    """Return options as the driver completes them."""
    plan = fit(column_type(ROW), parse_schema(json.dumps(SCHEMA)), "value")
    names = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", **given}
    return replace(sink_options(names), encodings=(ColumnEncoding("value", plan, prefix),))


def written(
    rows: list[Any], chosen: SinkOptions, kind: pa.DataType = ROW
) -> tuple[list[tuple[str, dict[str, Any]]], Any]:
    """Return what a task sends of rows in two batches, and its report of bad rows."""
    producer = Recording()
    keys = [f"{number}" for number in range(len(rows))]
    batch = pa.record_batch({"key": keys, "value": pa.array(rows, kind)})
    with TaskRows(chosen, cast(TaskProducer, producer), 7, 0) as task_rows:
        task_rows.append(batch.slice(0, 1))
        task_rows.append(batch.slice(1))
        return producer.sent, task_rows.finish()


GOOD = [("0", b"\x02\0"), ("2", None), ("4", b"\x01\x02")]


def test_rows_are_encoded_and_nulls_stay_null() -> None:
    good = [row for number, row in enumerate(ROWS) if number in (0, 2, 4)]
    for prefix in (b"", b"\0\0\0\0\5"):
        sent, _ = written(good, options(prefix))
        values = [each[1]["value"] for each in sent]
        assert values == [value and prefix + value for _, value in GOOD]


def test_the_first_row_that_cannot_be_encoded_fails_the_task_before_its_batch_is_sent() -> None:
    with pytest.raises(DataException) as failed:
        written(ROWS, options())
    assert "column value.n is null, and the Avro schema expects int there" in str(failed.value)
    assert "row 1 of task 7" in str(failed.value)


REASONS = {"null_in_required": 1, "out_of_range": 1, "unknown_symbol": 1}


def test_skipped_rows_are_counted_by_reason_and_described() -> None:
    sent, report = written(ROWS, options(onError="skip"))
    assert [(row["key"], row["value"]) for _, row in sent] == GOOD
    assert report.reasons == REASONS
    described = {each.row: (each.reason, each.value_bytes) for each in report.samples}
    assert described == {
        1: ("null_in_required", None),
        3: ("out_of_range", None),
        5: ("unknown_symbol", None),
    }
    details = {each.row: each.detail for each in report.samples}
    assert details[3] == "column value.n has a value that does not fit int"
    assert details[5] == "column value.color has a text that is not a symbol of enum C"


@pytest.mark.parametrize("most_bytes", [0, 500])
def test_bad_rows_have_the_same_numbers_if_rows_are_encoded_in_slices(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    chosen = options(onError="deadLetter", deadLetterTopic="dead")

    def found() -> tuple[list[Any], list[Any], dict[str, int]]:
        sent, report = written(ROWS * 5, chosen)
        letters = [(int(row["key"]), row) for topic, row in sent if topic == "dead"]
        good = [row for topic, row in sent if topic == "t"]
        return good, sorted(letters, key=itemgetter(0)), report.reasons

    at_once = found()
    assert [row for row, _ in at_once[1]] == [row for row in range(30) if row % 6 in (1, 3, 5)]
    monkeypatch.setattr(f"{encode_avro.__module__}._MOST_BYTES", most_bytes)
    assert found() == at_once
    with pytest.raises(DataException, match="row 21 of task 7"):
        written([*ROWS[:1] * 20, *ROWS], options())


def test_what_has_no_json_can_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: pa.Array) -> pa.Array:
        raise ValueError

    monkeypatch.setattr("spark_kafka_sink.spark.tasks.encoded_rows.json_texts", fail)
    _, report = written(ROWS, options(onError="skip"))
    assert report.reasons == REASONS


def test_dead_letters_have_the_row_as_json_and_say_so() -> None:
    sent, _ = written(ROWS, options(onError="deadLetter", deadLetterTopic="dead"))
    assert [row["key"] for topic, row in sent if topic == "t"] == [key for key, _ in GOOD]
    letters = {row["key"]: row for topic, row in sent if topic == "dead"}
    assert {key: json.loads(row["value"]) for key, row in letters.items()} == {
        "1": ROWS[1],
        "3": ROWS[3],
        "5": ROWS[5],
    }
    headers = {each["key"]: each["value"] for each in letters["3"]["headers"]}
    assert headers["pykafka.error.reason"] == b"out_of_range"
    assert headers["pykafka.error.as.json"] == b"value"
    assert headers["pykafka.error.detail"] == b"column value.n has a value that does not fit int"
    assert headers["pykafka.error.value.bytes"] is None


def test_dead_letter_files_have_the_row_as_json(tmp_path: Path) -> None:
    _, report = written(ROWS, options(onError="deadLetter", deadLetterPath=str(tmp_path)))
    (file,) = report.files
    rows = parquet.read_table(file).to_pylist()
    found = {row["key"].decode(): (row["value"], row["pykafka_error_as_json"]) for row in rows}
    assert json.loads(found["5"][0]) == ROWS[5]
    assert found["5"][1] == "value"


@pytest.mark.parametrize("headers", [None, [], [("h", b"v")]])
def test_one_file_has_rows_with_faults_of_both_kinds(
    tmp_path: Path, headers: list[tuple[str, bytes]] | None
) -> None:
    chosen = options(onError="deadLetter", deadLetterPath=str(tmp_path))
    header = ("__value_schema_id", b"id")
    encodings = (replace(chosen.encodings[0], header=header),)
    chosen = replace(chosen, encodings=encodings, topic=None)
    columns: dict[str, Any] = {
        "value": pa.array([ROWS[1], ROWS[0]], ROW),
        "topic": ["t", None],  # the second row can be encoded, and has no topic
    }
    if headers is not None:
        columns["headers"] = pa.array([headers] * 2, pa.map_(pa.string(), pa.binary()))
    with TaskRows(chosen, cast(TaskProducer, Recording()), 7, 0) as rows:
        rows.append(pa.record_batch(columns))
        report = rows.finish()
    (file,) = report.files
    found = {row["pykafka_error_row"]: row for row in parquet.read_table(file).to_pylist()}
    assert json.loads(found[0]["value"]) == ROWS[1]
    assert found[1]["value"] == GOOD[0][1]
    given = [{"key": key, "value": value} for key, value in headers or ()]
    assert (found[0]["headers"] or []) == given
    assert found[1]["headers"] == [*given, {"key": header[0], "value": header[1]}]


def test_json_gets_the_prefix_and_a_dead_letter_is_the_row_without_it() -> None:
    kind = pa.struct([("n", pa.float64()), ("name", pa.string())])
    schema = {"required": ["name"]}
    plan = fit_json(column_type(kind), schema, "value")
    chosen = options(onError="deadLetter", deadLetterTopic="dead")
    chosen = replace(chosen, encodings=(ColumnEncoding("value", plan, b"\0\0\0\0\5"),))
    texts = ['{"n":0.5,"name":"a"}', None, '{"n":"NaN","name":"b"}', '{"n":1.0}']
    numbered = [None if text is None else {"json": text, "type": 1} for text in texts]
    for rows, kinds, number in ((texts, pa.string(), None), (numbered, NUMBERED, 1)):
        chosen = replace(chosen, encodings=(replace(chosen.encodings[0], type_number=number),))
        check_json(texts, *written(rows, chosen, kinds))


def check_json(
    texts: list[str | None], sent: list[tuple[str, dict[str, Any]]], report: BadRowsReport
) -> None:
    """Check what was sent of rows of JSON, of which two are bad."""
    assert [(row["key"], row["value"]) for topic, row in sent if topic == "t"] == [
        ("0", b'\0\0\0\0\5{"n":0.5,"name":"a"}'),
        ("1", None),
    ]
    letters = {row["key"]: row for topic, row in sent if topic == "dead"}
    assert {key: row["value"] for key, row in letters.items()} == {
        "2": texts[2],
        "3": texts[3],
    }
    headers = {each["key"]: each["value"] for each in letters["2"]["headers"]}
    assert headers["pykafka.error.as.json"] == b"value"
    assert report.reasons == {"out_of_range": 1, "null_in_required": 1}


HEADERS = pa.struct([("key", pa.string()), ("value", pa.binary())])
OWN: dict[str, pa.Array] = {
    "none": pa.nulls(4, pa.list_(HEADERS)),
    "lists": pa.array(
        [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None, [], None],
        pa.list_(HEADERS),
    ),
    "maps": pa.array(
        [[("a", "1"), ("a", None)], None, [], None], pa.map_(pa.string(), pa.string())
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_rows_get_the_headers_of_their_encodings(name: str) -> None:
    encodings = [
        ColumnEncoding("key", JsonPlan(), header=("__key_schema_id", b"k")),
        ColumnEncoding("value", JsonPlan(), header=("__value_schema_id", b"v")),
    ]
    columns = {"key": ["x", None, "x", None], "value": ["y", "y", None, None]}
    batch = pa.record_batch(columns if name == "none" else {**columns, "headers": OWN[name]})
    own = [] if name == "none" else [("a", b"1"), ("a", None)]
    of_key, of_value = ("__key_schema_id", b"k"), ("__value_schema_id", b"v")
    expected = [[*own, of_key, of_value], [of_value], [of_key], []]
    for start in (0, 1, 4):
        encoded = encode_rows(batch.slice(start), encodings).batch
        lists = encoded.column("headers").to_pylist()
        found = [[(each["key"], each["value"]) for each in row] for row in lists]
        assert found == expected[start:]
        assert encoded.column("key").to_pylist() == [b"x", None, b"x", None][start:]


OLD: list[list[tuple[str, bytes | None]] | None] = [
    [("__value_schema_id", b"1"), ("a", b"2"), ("__key_schema_id", None)],
    None,
    [("__key_schema_id", b"1")],
    [],
    [("a", None), ("__value_schema_id", b"2"), ("a_schema_id", b"3"), ("__value_schema_id", b"")],
    [("a", b"3")],
]
MAP = pa.map_(pa.string(), pa.binary())
STRUCTS = pa.struct([("VALUE", pa.binary()), ("key", pa.large_string())])


@pytest.mark.parametrize("columns", [("value",), ("key", "value")])
@pytest.mark.parametrize("kind", [MAP, pa.list_(STRUCTS), pa.large_list(STRUCTS)], ids=str)
def test_headers_about_the_schemas_of_old_bytes_are_removed(
    kind: pa.DataType, columns: tuple[str, ...]
) -> None:
    """Deserializers look for these headers first. Also null rows have none."""
    given: Any = OLD
    if not pa.types.is_map(kind):
        given = [row and [{"key": key, "VALUE": value} for key, value in row] for row in OLD]
    headers = pa.array(given, kind)
    removed = [f"__{each}_schema_id" for each in columns]
    expected = [[each for each in row or () if each[0] not in removed] for row in OLD]
    batch = pa.record_batch({"key": [None] * 6, "value": ["x", None] * 3, "headers": headers})
    encodings = [ColumnEncoding(each, JsonPlan(), b"prefix") for each in columns]
    for start in (0, 1, 3, 5, 6):
        found = encode_rows(batch.slice(start), encodings).batch.column("headers")
        found.validate(full=True)
        assert found.type == kind
        assert [header_pairs(each) for each in found] == expected[start:]


def test_headers_are_added_to_good_rows_only() -> None:
    chosen = options(onError="deadLetter", deadLetterTopic="dead")
    encoding = replace(chosen.encodings[0], header=("__value_schema_id", b"guid"))
    sent, _ = written(ROWS, replace(chosen, encodings=(encoding,)))
    found = {(topic, row["key"]): [each["key"] for each in row["headers"]] for topic, row in sent}
    assert found["t", "0"] == found["t", "4"] == ["__value_schema_id"]
    assert found["t", "2"] == []
    assert "__value_schema_id" not in found["dead", "1"]


NUMBERED = pa.struct([("json", pa.string()), ("type", pa.int32())])


@pytest.mark.parametrize("policy", [{}, {"onError": "skip"}])
def test_json_of_two_calls_of_to_kafka_fails_the_task(policy: dict[str, str]) -> None:
    chosen = options(b"", **policy)
    encoding = ColumnEncoding("value", JsonPlan(), b"\0\0\0\0\5", type_number=-7)
    chosen = replace(chosen, encodings=(encoding,))
    rows: list[Any] = [{"json": "{}", "type": -7}, None, {"json": '{"n":1}', "type": -7}]
    sent, _ = written(rows, chosen, NUMBERED)
    values = [row["value"] for _, row in sent]
    assert values == [b"\0\0\0\0\5{}", None, b'\0\0\0\0\5{"n":1}']
    with pytest.raises(
        DataException, match="the column value has rows from two calls of"
    ) as failed:
        written([*rows, {"json": '{"other":1}', "type": 8}], chosen, NUMBERED)
    assert "row 3 of task 7" in str(failed.value)


VALUES: list[tuple[pa.DataType, Any, Any]] = [
    (pa.binary(), b"\xff\0", "/wA="),
    (pa.decimal128(38, 2), Decimal("12345678901234567890.12"), "12345678901234567890.12"),
    (pa.date32(), date(1969, 12, 31), "1969-12-31"),
    (pa.timestamp("us", "Europe/Zurich"), 2**62, "148108-07-06T14:00:27.387904Z"),
    (pa.timestamp("us"), datetime(2024, 2, 29, 1, 2, 3, 4, UTC), "2024-02-29T01:02:03.000004"),
    (pa.date64(), date(1969, 12, 31), "1969-12-31"),
    (pa.date32(), -719_529, "-0001-12-31"),
    (pa.date32(), -800_000, "-0221-09-04"),
    (pa.date32(), -(2**31), "-5877641-06-23"),
    (pa.date64(), -719_529 * 86_400_000, "-0001-12-31"),
    (pa.timestamp("us", "UTC"), -62_167_219_200_000_001, "-0001-12-31T23:59:59.999999Z"),
    (pa.timestamp("s"), -62_167_219_201, "-0001-12-31T23:59:59"),
    (pa.timestamp("us"), -(2**63), "-290308-12-21T19:59:05.224192"),
    (pa.timestamp("ns"), -(2**63), "1677-09-21T00:12:43.145224192"),
    (pa.time64("ns"), 5, "00:00:00.000000005"),
    (pa.time64("us"), time(13, 59, 1, 500_000), "13:59:01.5"),
    (pa.time32("s"), time(1), "01:00:00"),
    (pa.duration("us"), -5, "INTERVAL '-0 00:00:00.000005' DAY TO SECOND"),
    (pa.duration("s"), 86_400 * 400 + 3661, "INTERVAL '400 01:01:01' DAY TO SECOND"),
    (pa.float64(), float("nan"), "NaN"),
    (pa.float32(), float("inf"), "Infinity"),
    (pa.float16(), float("-inf"), "-Infinity"),
    (pa.float64(), 0.5, 0.5),
    (pa.list_(pa.struct([("a", pa.int8())])), [{"a": 1}, None], [{"a": 1}, None]),
    (pa.map_(pa.string(), pa.int8()), {"a": 1}, {"a": 1}),
    (pa.map_(pa.large_string(), pa.int8()), {"a": 1}, {"a": 1}),
    (pa.map_(pa.string_view(), pa.int8()), {"a": 1}, {"a": 1}),
    (pa.map_(pa.int8(), pa.int8()), {1: 2}, [[1, 2]]),
    (
        pa.map_(pa.string(), pa.map_(pa.string(), pa.null())),
        {"x": [("a", None)], "y": [("b", None), ("c", None)]},
        {"x": {"a": None}, "y": {"b": None, "c": None}},
    ),
    (pa.map_(pa.string(), pa.list_(pa.null())), {"q": [None] * 3}, {"q": [None] * 3}),
    (pa.map_(pa.string(), pa.list_(pa.null(), 2)), {"q": [None] * 2}, {"q": [None] * 2}),
    (pa.map_(pa.string(), pa.struct([("n", pa.null())])), {"x": {"n": None}}, {"x": {"n": None}}),
    (pa.struct([("word", pa.dictionary(pa.int8(), pa.string()))]), {"word": None}, {"word": None}),
    (pa.binary_view(), b"\xff\0", "/wA="),
    (pa.binary(2), b"\xff\0", "/wA="),
    (pa.struct([]), {}, {}),
    (pa.string(), "é😀", "é😀"),
]


@pytest.mark.parametrize(("kind", "value", "expected"), VALUES)
def test_every_value_has_json(kind: pa.DataType, value: object, expected: object) -> None:
    wrapped: Callable[[Any], Any] = lambda each: None if each is None else list(each.items())  # noqa: E731
    given = [wrapped(each) if pa.types.is_map(kind) else each for each in (value, None, value)]
    for array in (pa.array(given, kind), pa.array([None, *given], kind).slice(1)):
        texts = json_texts(array).to_pylist()
        assert texts[1] is None
        assert [json.loads(texts[number]) for number in (0, 2)] == [expected] * 2
