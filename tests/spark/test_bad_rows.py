"""onError: bad rows fail the write, are skipped, or become dead letters, and are always counted."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.mock_cluster import MockCluster
from support.documents.pages import blocks
from support.oracles.readers import Record, read_with_confluent
from support.spark.sink import save

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "dead-letters.md"
_ROWS = 40
# By id of the row: what is wrong with it.
_FAULTS = {
    3: "null_topic",
    8: "invalid_topic",
    14: "invalid_partition",
    19: "invalid_partition",
    23: "invalid_timestamp",
    31: "null_header_key",
    37: "too_large",
}
_COUNTS = {
    "invalid_partition": 2,
    "invalid_timestamp": 1,
    "invalid_topic": 1,
    "null_header_key": 1,
    "null_topic": 1,
    "too_large": 1,
}
_GOOD = {str(number).encode() for number in range(_ROWS) if number not in _FAULTS}
_LIMIT = {"kafka_max_request_size": "20000"}


def rows_with_faults(spark: SparkSession, topic: str) -> DataFrame:
    """Make 40 rows in two tasks with one of each fault; the key is the row's number."""
    return spark.range(0, _ROWS, 1, 2).selectExpr(
        f"CASE id WHEN 3 THEN NULL WHEN 8 THEN 'no topic' ELSE '{topic}' END AS topic",
        "CAST(id AS STRING) AS key",
        "IF(id = 37, repeat('x', 30000), concat('value ', id)) AS value",
        "CASE id WHEN 14 THEN 3 WHEN 19 THEN -2 END AS partition",
        "IF(id = 23, -5L, 1700000000000L + id) AS timestamp",
        "array(named_struct('key', IF(id = 31, NULL, 'h'), 'value', CAST('1' AS BINARY))) "
        "AS headers",
        "id",
    )


def report_of(path: Path) -> dict[str, Any]:
    """Read the file of reportPath."""
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def by_key(kafka: KafkaCluster, topic: str) -> dict[bytes | None, Record]:
    """Read a topic in which every key stands once."""
    records = read_with_confluent(kafka.bootstrap, topic)
    found = {record.key: record for record in records}
    assert len(found) == len(records)
    return found


def test_bad_rows_that_are_skipped_are_counted_and_described(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path = new_topic(3), tmp_path / "report.json"
    frame = rows_with_faults(spark, topic)
    save(frame, kafka.bootstrap, onError="skip", reportPath=str(path), **_LIMIT)
    found = by_key(kafka, topic)
    assert found.keys() == _GOOD
    assert all(record.value == b"value " + (record.key or b"") for record in found.values())

    report = report_of(path)
    assert report["rows"] == len(_GOOD) == sum(p["records"] for p in report["partitions"])
    bad_rows = report["bad_rows"]
    assert (bad_rows["on_error"], bad_rows["rows"]) == ("skip", len(_FAULTS))
    assert bad_rows["reasons"] == _COUNTS
    assert (bad_rows["dead_letters"], bad_rows["files"], bad_rows["partitions"]) == (None, [], [])
    samples = {20 * sample["task"] + sample["row"]: sample for sample in bad_rows["samples"]}
    assert {row: sample["reason"] for row, sample in samples.items()} == {
        row: reason for row, reason in _FAULTS.items() if row != 19
    }, "three rows of each task are described"
    assert samples[14] == {
        "task": 0,
        "row": 14,
        "reason": "invalid_partition",
        "detail": None,
        "topic": topic,
        "partition": 3,
        "key_bytes": 2,
        "value_bytes": len("value 14"),
    }


def test_without_on_error_the_first_bad_row_fails_the_write(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    with pytest.raises(PySparkException, match="contains a null topic"):
        save(rows_with_faults(spark, topic).where("id < 20"), kafka.bootstrap)
    assert read_with_confluent(kafka.bootstrap, topic) == []


def test_a_dead_letter_topic_has_the_rows_and_what_is_wrong_with_them(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, dead_letters, path = new_topic(3), new_topic(2), tmp_path / "report.json"
    options = {"onError": "DeadLetter", "deadLetterTopic": dead_letters, "reportPath": str(path)}
    began_ms = time.time_ns() // 1_000_000
    save(rows_with_faults(spark, topic), kafka.bootstrap, **options, **_LIMIT)
    assert by_key(kafka, topic).keys() == _GOOD

    letters = by_key(kafka, dead_letters)
    assert {int(key or b"") for key in letters} == set(_FAULTS)
    for number, fault in _FAULTS.items():
        letter = letters[str(number).encode()]
        headers = dict(letter.headers)
        assert headers["pykafka.error.reason"] == fault.encode()
        assert headers["pykafka.error.task"] == str(number // 20).encode()
        assert headers["pykafka.error.row"] == str(number % 20).encode()
        assert letter.headers[0] == ("pykafka.error.unnamed" if number == 31 else "h", b"1")
        if number != 37:
            assert letter.value == f"value {number}".encode()
            assert headers["pykafka.error.left.out"] is None
        assert letter.timestamp_ms >= began_ms
        given_ms = -5 if number == 23 else 1_700_000_000_000 + number
        assert headers["pykafka.error.timestamp"] == str(given_ms).encode()
    headers_of = {number: dict(letters[str(number).encode()].headers) for number in _FAULTS}
    assert headers_of[3]["pykafka.error.topic"] is None
    assert headers_of[8]["pykafka.error.topic"] == b"no topic"
    assert headers_of[14]["pykafka.error.topic"] == topic.encode()
    assert headers_of[14]["pykafka.error.partition"] == b"3"
    assert headers_of[19]["pykafka.error.partition"] == b"-2"
    assert letters[b"37"].value is None
    assert headers_of[37]["pykafka.error.left.out"] == b"value"
    assert headers_of[37]["pykafka.error.value.bytes"] == b"30000"

    report = report_of(path)
    assert report["rows"] == len(_GOOD)
    assert {p["topic"] for p in report["partitions"]} == {topic}
    bad_rows = report["bad_rows"]
    assert (bad_rows["rows"], bad_rows["dead_letters"]) == (len(_FAULTS), dead_letters)
    assert sum(p["records"] for p in bad_rows["partitions"]) == len(_FAULTS)


def test_what_is_too_large_for_the_dead_letter_topic_goes_without_key_and_headers(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic, dead_letters = new_topic(1), new_topic(1)
    frame = spark.range(0, 3, 1, 1).selectExpr(
        "repeat('k', IF(id = 1, 30000, 1)) AS key",
        "'v' AS value",
        "array(named_struct('key', 'h', 'value', CAST(repeat('x', IF(id = 2, 30000, 1)) AS "
        "BINARY))) AS headers",
    )
    options = {"onError": "deadLetter", "deadLetterTopic": dead_letters}
    save(frame, kafka.bootstrap, topic, **options, **_LIMIT)
    assert [r.key for r in read_with_confluent(kafka.bootstrap, topic)] == [b"k"]
    letters = read_with_confluent(kafka.bootstrap, dead_letters)
    assert [(r.key, r.value) for r in letters] == [(None, None)] * 2
    for letter, row in zip(letters, (b"1", b"2"), strict=True):
        headers = dict(letter.headers)
        assert headers["pykafka.error.row"] == row
        assert headers["pykafka.error.left.out"] == b"key, value, headers"
        assert headers["pykafka.error.value.bytes"] == b"1"
        assert "h" not in headers


def test_dead_letters_in_a_folder_are_parquet_with_all_columns(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, path, folder = new_topic(3), tmp_path / "report.json", tmp_path / "dead" / "letters"
    options = {"onError": "deadLetter", "deadLetterPath": f"file://{folder}"}
    frame = rows_with_faults(spark, topic)
    save(frame, kafka.bootstrap, reportPath=str(path), **options, **_LIMIT)
    assert by_key(kafka, topic).keys() == _GOOD

    letters = spark.read.parquet(str(folder))
    assert letters.columns == [
        *frame.columns,
        "pykafka_error_reason",
        "pykafka_error_detail",
        "pykafka_error_topic",
        "pykafka_error_task",
        "pykafka_error_row",
        "pykafka_error_as_json",
    ]
    found = {row["id"]: row for row in letters.collect()}
    assert {number: row["pykafka_error_reason"] for number, row in found.items()} == _FAULTS
    assert {n: 20 * r["pykafka_error_task"] + r["pykafka_error_row"] for n, r in found.items()} == {
        number: number for number in _FAULTS
    }
    expected = {row["id"]: row for row in frame.where("id IN (3, 8, 14, 19, 23, 31, 37)").collect()}
    for number, row in found.items():
        row_given = expected[number].asDict() | {
            name: expected[number][name].encode() for name in ("key", "value")
        }
        assert row[: len(frame.columns)] == tuple(row_given.values())

    bad_rows = report_of(path)["bad_rows"]
    assert bad_rows["dead_letters"] == str(folder)
    assert sorted(bad_rows["files"]) == sorted(map(str, folder.iterdir()))
    assert len(bad_rows["files"]) == 2

    # Once more, as they are: they are as bad as before, and their columns are not there twice.
    save(letters, kafka.bootstrap, **options, **_LIMIT)
    assert spark.read.parquet(str(folder)).count() == 2 * len(_FAULTS)


def test_the_program_of_the_page_writes_the_dead_letters_of_the_last_write_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    (program,) = (
        block for block in blocks(_PAGE.read_text(), "python") if "pykafka_error_reason" in block
    )
    options = {"onError": "deadLetter", "deadLetterPath": str(tmp_path)}
    with MockCluster() as cluster:
        for topic in ("a", "b"):
            cluster.create_topic(topic, 3)
        # The dead letters of the first write are not written again.
        for first in (0, 40):
            frame = spark.range(first, first + 4, 1, 1).selectExpr(
                "IF(id % 2 = 0, 'a', 'b') AS topic",
                "CAST(id AS STRING) AS key",
                "concat('value ', id) AS value",
                "IF(id % 4 > 1, 7, NULL) AS partition",
                "1700000000000L + id AS timestamp",
                "map('h', CAST('1' AS BINARY)) AS headers",
            )
            save(frame, cluster.bootstrap, **options)
        program = program.replace(".format(", '.mode("append").format(')
        options = {"kafka.bootstrap.servers": cluster.bootstrap}
        exec(program, {"spark": spark, "options": options})
        records = {topic: read_with_confluent(cluster.bootstrap, topic) for topic in ("a", "b")}
    found = {topic: sorted(int(r.key or b"") for r in records[topic]) for topic in records}
    assert found == {"a": [0, 40, 42], "b": [1, 41, 43]}
    for record in records["a"] + records["b"]:
        assert record.value == b"value " + (record.key or b"")
        assert record.headers == (("h", b"1"),)
        assert record.timestamp_ms == 1_700_000_000_000 + int(record.key or b"")


def test_dead_letters_with_columns_that_differ_only_in_case_can_be_read(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    frame = spark.sql(
        "SELECT 'v' AS value, -5L AS timestamp, 1 AS KEY, 'k' AS key, "
        "named_struct('a', 2, 'A', 3) AS pair"
    )
    save(frame, kafka.bootstrap, new_topic(1), onError="deadLetter", deadLetterPath=str(tmp_path))
    (letter,) = spark.read.parquet(str(tmp_path)).collect()
    assert letter[:5] == (b"v", -5, 1, b"k", (2, 3))
    assert letter.__fields__[:5] == ["value", "timestamp", "KEY_2", "key", "pair"]
    assert letter["pair"].__fields__ == ["a", "A_2"]


def test_rows_that_brokers_refuse_are_told_apart_from_those_sent_along(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2, {"cleanup.policy": "compact", "max.message.bytes": "5000"})
    dead_letters, path = new_topic(1, {"max.message.bytes": "6000"}), tmp_path / "report.json"
    tomorrow = "unix_millis(current_timestamp()) + 86400000"
    frame = spark.range(0, 400, 1, 2).selectExpr(
        "IF(id % 50 = 7, NULL, CAST(id AS STRING)) AS key",
        "IF(id = 60, repeat('x', 9000), CAST(id AS STRING)) AS value",
        f"CAST(IF(id % 100 = 13, {tomorrow}, NULL) AS BIGINT) AS timestamp",
    )
    options = {"onError": "deadLetter", "deadLetterTopic": dead_letters, "reportPath": str(path)}
    save(frame, kafka.bootstrap, topic, **options)
    bad = {number for number in range(400) if number % 50 == 7 or number % 100 == 13}
    values = [int(r.value or b"") for r in read_with_confluent(kafka.bootstrap, topic)]
    assert sorted(values) == sorted(set(range(400)) - bad - {60})

    letters = read_with_confluent(kafka.bootstrap, dead_letters)
    headers_of = {}
    for letter in letters:
        headers = dict(letter.headers)
        row = 200 * int(headers["pykafka.error.task"] or b"")
        headers_of[row + int(headers["pykafka.error.row"] or b"")] = letter.value, headers
    assert len(headers_of) == len(letters)
    assert headers_of.keys() == bad | {60}
    for number in bad:
        value, headers = headers_of[number]
        assert value == str(number).encode()
        assert headers["pykafka.error.reason"] == b"refused_by_broker"
        assert b"were not written: INVALID_" in (headers["pykafka.error.detail"] or b"")
    value, headers = headers_of[60]
    assert (value, headers["pykafka.error.reason"]) == (None, b"too_large")
    assert headers["pykafka.error.detail"] is None, "no broker has seen it"
    reasons = report_of(path)["bad_rows"]["reasons"]
    assert reasons == {"refused_by_broker": len(bad), "too_large": 1}


def test_a_task_that_fails_leaves_no_dead_letter_file(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    folder = tmp_path / "letters"
    topic = f"IF(id = 1, '{new_topic(1)}', 'not-there')"
    frame = spark.sql(f"SELECT 'x' AS value, -id AS timestamp, {topic} AS topic FROM range(2)")
    options = {"onError": "deadLetter", "deadLetterPath": str(folder)}
    with pytest.raises(PySparkException, match="Topic not-there not present in metadata"):
        save(frame.coalesce(1), kafka.bootstrap, **options, kafka_max_block_ms="2000")
    assert list(folder.iterdir()) == []


def test_a_topic_that_is_not_there_is_no_fault_of_a_row(
    spark: SparkSession, kafka: KafkaCluster
) -> None:
    frame = spark.sql("SELECT 'x' AS value, 'not-there' AS topic")
    with pytest.raises(PySparkException, match="Topic not-there not present in metadata"):
        save(frame, kafka.bootstrap, onError="skip", kafka_max_block_ms="2000")


def test_a_dead_letter_topic_must_be_there(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    with pytest.raises(
        PySparkException, match="Topic not-there not present in metadata"
    ) as refused:
        save(
            spark.sql("SELECT 'x' AS value"),
            kafka.bootstrap,
            topic,
            onError="deadLetter",
            deadLetterTopic="not-there",
            kafka_max_block_ms="2000",
        )
    assert "Failed to initialize Python data source writer" in str(refused.value)
    assert read_with_confluent(kafka.bootstrap, topic) == []
