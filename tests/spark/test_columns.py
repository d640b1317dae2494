"""The columns as they arrive in Kafka: types, nulls, precedence; compared as DataFrames."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from chispa import assert_df_equality
from conftest import NewTopic
from pyspark.sql import SparkSession
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import (
    create_topics,
    read_topics,
    read_with_confluent,
    read_with_kafka_python,
)
from support.spark.sink import read_frame, save

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

WHEN = datetime(2024, 2, 29, 12, 0, 0, 123000, UTC)


def test_every_column_arrives_as_it_was(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(4)
    rows = [
        (topic, 0, b"k", b"v", [("h", b"1"), ("h", b""), ("ü", None)], WHEN),
        (topic, 1, None, b"only a value", None, WHEN),
        (topic, 2, b"", b"", [("", b"empty name")], WHEN),
        (topic, 3, b"tombstone", None, None, WHEN),
        (topic, 3, b"\x00\xff", b"\xfe" * 5000, [("big", b"x" * 70_000)], WHEN),
    ]
    expected = spark.createDataFrame(
        rows,
        "topic STRING, partition INT, key BINARY, value BINARY, "
        "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, timestamp TIMESTAMP",
    )
    save(expected, kafka.bootstrap)
    actual = read_frame(spark, kafka.bootstrap, topic)
    assert_df_equality(actual, expected, ignore_row_order=True, ignore_nullable=True)


@pytest.mark.parametrize("large", ["false", "true"])
@pytest.mark.parametrize("kind", ["STRING", "BINARY"])
def test_strings_and_bytes_are_the_same_also_as_large_arrow_types(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, kind: str, large: str
) -> None:
    topic = new_topic(1)
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", large)
    try:
        frame = spark.createDataFrame(
            [("ключ", "значение"), (None, "x"), ("", None)], "key STRING, value STRING"
        )
        save(
            frame.selectExpr(
                f"CAST(key AS {kind}) AS key",
                f"CAST(value AS {kind}) AS value",
                "array(named_struct('key', 'h', 'value', CAST('1' AS BINARY))) AS headers",
            ),
            kafka.bootstrap,
            topic,
        )
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    records = read_with_confluent(kafka.bootstrap, topic)
    found = {(r.key, r.value, r.headers) for r in records}
    headers = (("h", b"1"),)
    assert found == {
        ("ключ".encode(), "значение".encode(), headers),
        (None, b"x", headers),
        (b"", None, headers),
    }


@pytest.mark.parametrize("large", ["false", "true"])
def test_headers_may_be_maps_and_their_values_strings(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, large: str
) -> None:
    topic = new_topic(1)
    forms = [
        "map('a', 'ä', 'b', CAST(NULL AS STRING), 'c', '')",
        "map('a', CAST('ä' AS BINARY), 'b', NULL, 'c', CAST('' AS BINARY))",
        "array(named_struct('key', 'a', 'value', 'ä'), named_struct('key', 'b', 'value', NULL), "
        "named_struct('key', 'c', 'value', ''))",
    ]
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", large)
    try:
        for number, form in enumerate(forms):
            frame = spark.range(4).selectExpr(
                f"concat('{number}-', id) AS value",
                f"CASE id WHEN 1 THEN NULL WHEN 2 THEN {form.replace('ä', 'z')} ELSE {form} END "
                "AS headers",
            )
            save(frame, kafka.bootstrap, topic)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    found = {r.value: r.headers for r in read_with_kafka_python(kafka.bootstrap, topic)}
    some = (("a", "ä".encode()), ("b", None), ("c", b""))
    other = (("a", b"z"), ("b", None), ("c", b""))
    rows = {0: some, 1: (), 2: other, 3: some}
    assert found == {f"{n}-{row}".encode(): rows[row] for n in range(3) for row in rows}


def test_a_timestamp_may_be_milliseconds_and_a_null_one_is_now(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    before_ms = datetime.now(UTC).timestamp() * 1000 // 1
    frame = spark.createDataFrame(
        [("given", 1_700_000_000_123), ("epoch", 0), ("null", None)],
        "value STRING, timestamp BIGINT",
    )
    save(frame, kafka.bootstrap, topic)
    after_ms = datetime.now(UTC).timestamp() * 1000
    found = {r.value: r.timestamp_ms for r in read_with_confluent(kafka.bootstrap, topic)}
    assert found[b"given"] == 1_700_000_000_123
    assert found[b"epoch"] == 0
    assert before_ms <= found[b"null"] <= after_ms


def test_the_topic_option_wins_over_the_column_and_is_trimmed(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    option, column = new_topic(1), new_topic(1)
    frame = spark.createDataFrame([(column, "a"), (None, "b")], "topic STRING, value STRING")
    save(frame, kafka.bootstrap, f"  {option} ")
    assert {r.value for r in read_with_confluent(kafka.bootstrap, option)} == {b"a", b"b"}
    assert read_with_confluent(kafka.bootstrap, column) == []


def test_rows_go_to_the_topics_of_their_column(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topics = [new_topic(partitions) for partitions in (1, 2, 5)]
    frame = spark.range(0, 3000, 1, 2).selectExpr(
        f"element_at(array('{topics[0]}', '{topics[1]}', '{topics[2]}'), CAST(id % 3 AS INT) + 1) "
        "AS topic",
        "CAST(id AS STRING) AS key",
        "CAST(id AS STRING) AS value",
        "IF(id % 7 = 0, 0, NULL) AS partition",
    )
    save(frame, kafka.bootstrap)
    for number, topic in enumerate(topics):
        records = read_with_confluent(kafka.bootstrap, topic)
        found = sorted(int(r.value or b"") for r in records)
        assert found == list(range(number, 3000, 3))
        assert all(r.partition == 0 for r in records if int(r.value or b"") % 7 == 0)


def test_a_null_partition_goes_by_the_key(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    with_column, without = new_topic(8), new_topic(8)
    frame = spark.range(200).selectExpr("CAST(id AS STRING) AS key", "'v' AS value")
    save(frame.selectExpr("*", "CAST(NULL AS INT) AS partition"), kafka.bootstrap, with_column)
    save(frame, kafka.bootstrap, without)
    places = [
        {r.key: r.partition for r in read_with_confluent(kafka.bootstrap, topic)}
        for topic in (with_column, without)
    ]
    assert places[0] == places[1]
    assert len(set(places[0].values())) == 8


def test_an_empty_frame_and_empty_partitions_write_nothing(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    save(spark.range(0).selectExpr("'x' AS value"), kafka.bootstrap, topic)
    save(spark.range(0, 3, 1, 8).selectExpr("'x' AS value"), kafka.bootstrap, topic)
    assert len(read_with_confluent(kafka.bootstrap, topic)) == 3


def test_other_columns_are_ignored(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    frame = spark.createDataFrame([("v", 1, "K")], "value STRING, offset INT, Key STRING")
    save(frame, kafka.bootstrap, topic)
    (record,) = read_with_confluent(kafka.bootstrap, topic)
    assert (record.key, record.value) == (None, b"v")


def test_a_column_in_another_case_is_not_taken_for_one_that_is_there(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        frame = spark.createDataFrame([("K", "k", "v")], "Key STRING, key STRING, value STRING")
        save(frame, kafka.bootstrap, topic)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    (record,) = read_with_confluent(kafka.bootstrap, topic)
    assert (record.key, record.value) == (b"k", b"v")


def test_a_partitioner_of_the_user_s_own_chooses_for_whole_batches(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """It is shipped as any module, and sees columns that are not sent; null leaves a row open."""
    module = tmp_path / "shelves_of_this_test.py"
    module.write_text(
        "import pyarrow.compute as pc\n\n"
        "def by_shelf(topic, batch, partitions):\n"
        "    assert topic.startswith('topic-'), topic\n"
        "    return pc.subtract(partitions - 1, batch.column('shelf'))\n"
    )
    spark.sparkContext.addPyFile(str(module))
    own, built_in = new_topic(5), new_topic(5)
    frame = spark.range(0, 400, 1, 2).selectExpr(
        "CAST(id AS STRING) AS key",
        "CAST(id AS STRING) AS value",
        "CASE WHEN id % 4 = 0 THEN 1 END AS partition",
        "CAST(CASE WHEN id % 4 < 3 THEN id % 5 END AS INT) AS shelf",
    )
    name = "shelves_of_this_test.by_shelf"
    save(frame, kafka.bootstrap, own, kafka_partitioner_class=name)
    save(frame.drop("partition", "shelf"), kafka.bootstrap, built_in)
    found, by_key = (
        {int(r.value or b""): r.partition for r in read_with_confluent(kafka.bootstrap, topic)}
        for topic in (own, built_in)
    )
    assert len(found) == 400
    for row, partition in found.items():
        expected = {0: 1, 3: by_key[row]}.get(row % 4, 4 - row % 5)
        assert partition == expected, row


def test_java_s_partitioners_go_by_their_names(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    package = "org.apache.kafka.clients.producer"
    frame = spark.range(0, 90, 1, 1).selectExpr("'same' AS key", "CAST(id AS STRING) AS value")
    counts = []
    for name in (
        f"{package}.RoundRobinPartitioner",
        f"{package}.UniformStickyPartitioner",
        f"{package}.internals.DefaultPartitioner",
    ):
        topic = new_topic(3)
        save(frame, kafka.bootstrap, topic, kafka_partitioner_class=name)
        found = Counter(r.partition for r in read_with_confluent(kafka.bootstrap, topic))
        counts.append(sorted(found.values()))
    assert counts == [[30, 30, 30], [90], [90]]


def test_few_rows_without_keys_fill_all_partitions_evenly(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    for rows, tasks, partitions, most in ((20_000, 2, 4, 10_000), (8, 8, 8, 1)):
        topic = new_topic(partitions)
        save(
            spark.range(0, rows, 1, tasks).selectExpr("CAST(id AS STRING) AS value"),
            kafka.bootstrap,
            topic,
        )
        found = Counter(r.partition for r in read_with_confluent(kafka.bootstrap, topic))
        assert sum(found.values()) == rows
        assert len(found) == partitions
        assert max(found.values()) <= most


@pytest.mark.long(reason="it creates, writes and reads two thousand topics")
def test_two_thousand_topics_in_one_job(spark: SparkSession, old_kafka: KafkaCluster) -> None:
    names = [f"many-{number:04}" for number in range(2000)]
    create_topics(old_kafka.bootstrap, names, partitions=1)
    frame = spark.range(0, 20_000, 1, 2).selectExpr(
        "concat('many-', lpad(CAST(id % 2000 AS STRING), 4, '0')) AS topic",
        "CAST(id AS STRING) AS value",
        "IF(id % 3 = 0, 0, NULL) AS partition",
    )
    save(frame, old_kafka.bootstrap)
    found = read_topics(old_kafka.bootstrap, names)
    for number, name in enumerate(names):
        values = sorted(int(record.value or b"") for record in found[name])
        assert values == list(range(number, 20_000, 2000)), name
