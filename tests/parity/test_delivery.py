"""The partitions of rows, and that all arrive, with this sink and with Spark's own."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path

import pytest
from conftest import NewTopic
from pyspark.sql import DataFrame, SparkSession
from support.brokers.jvm import compiled
from support.oracles.readers import read_with_confluent
from support.spark.peer import WRITE_FAILED, Sink

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_ROUND_ROBIN = "org.apache.kafka.clients.producer.RoundRobinPartitioner"


def partitions_by_key(sink: Sink, topic: str) -> dict[bytes | None, int]:
    return {r.key: r.partition for r in read_with_confluent(sink.bootstrap, topic)}


def test_the_partition_column_beats_the_partitioner_and_both_beat_the_key(
    spark: SparkSession, sink: Sink, new_topic: NewTopic
) -> None:
    keyed = spark.range(0, 40, 1, 1).selectExpr("CAST(id AS STRING) AS key", "'v' AS value")

    def places(frame: DataFrame, **options: str) -> dict[bytes | None, int]:
        topic = new_topic(4)
        sink.append(frame, topic, {"kafka.partitioner.class": _ROUND_ROBIN} if options else {})
        return partitions_by_key(sink, topic)

    by_key = places(keyed)
    assert set(by_key.values()) == {0, 1, 2, 3}
    assert places(keyed.selectExpr("*", "CAST(NULL AS INT) AS partition")) == by_key
    round_robin = places(keyed, by="roundrobin")
    assert round_robin != by_key
    given = places(keyed.selectExpr("*", "2 AS partition"), by="roundrobin")
    assert set(given.values()) == {2}


def ship_partitioner(spark: SparkSession, sink: Sink, folder: Path) -> str:
    """Ship a partitioner that always returns 0, in the sink's own language; return its name."""
    if sink.is_ours:
        module = folder / "partitioner_of_this_test.py"
        module.write_text(
            "import pyarrow as pa\n\n"
            "def first(topic, batch, partitions):\n"
            "    return pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)\n"
        )
        spark.sparkContext.addPyFile(str(module))
        return "partitioner_of_this_test.first"
    name = "FirstPartitioner.class"
    jar = folder / "first-partitioner.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.write(compiled("FirstPartitioner") / name, name)
    spark.sql(f"ADD JAR '{jar}'")
    return "FirstPartitioner"


def test_a_partitioner_of_ones_own_beats_the_key_and_the_partition_column_beats_it(
    spark: SparkSession, sink: Sink, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(4)
    options = {"kafka.partitioner.class": ship_partitioner(spark, sink, tmp_path)}
    frame = spark.range(0, 40, 1, 1).selectExpr(
        "CAST(id AS STRING) AS key", "'v' AS value", "IF(id < 20, 2, NULL) AS partition"
    )
    sink.append(frame, topic, options)
    expected = {str(number).encode(): 2 if number < 20 else 0 for number in range(40)}
    assert partitions_by_key(sink, topic) == expected


def test_big_rows_wait_for_a_small_buffer(
    spark: SparkSession, sink: Sink, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    frame = spark.range(0, 1000, 1, 1).selectExpr("repeat(CHAR(97 + id % 26), 15000) AS value")
    sink.append(frame, topic, {"kafka.buffer.memory": "16384"})
    values = [r.value for r in read_with_confluent(sink.bootstrap, topic)]
    assert values == [bytes([97 + i % 26]) * 15000 for i in range(1000)]


def test_batches_that_the_topic_finds_too_large_lose_no_row_here(
    spark: SparkSession, sink: Sink, new_topic: NewTopic
) -> None:
    topic = new_topic(1, {"max.message.bytes": "10000"})
    frame = spark.range(0, 100, 1, 1).selectExpr("lpad(CAST(id AS STRING), 3000, '0') AS value")
    sink.append(frame, topic, {"kafka.batch.size": "1000000", "kafka.linger.ms": "1000"})
    found = [int(r.value or b"") for r in read_with_confluent(sink.bootstrap, topic)]
    if sink.is_ours:
        assert found == list(range(100))
    else:
        assert len(found) < 100, (
            "Spark's own sink has lost no row: docs/contributing/differences.md says it does"
        )


def test_a_timestamp_column_is_the_records_timestamp_here_and_ignored_there(
    spark: SparkSession, sink: Sink, new_topic: NewTopic
) -> None:
    topic, before = new_topic(1), time.time()
    frame = spark.sql("SELECT 'v' AS value, timestamp_millis(1709208000123) AS timestamp")
    sink.append(frame, topic)
    (record,) = read_with_confluent(sink.bootstrap, topic)
    if sink.is_ours:
        assert record.timestamp_ms == 1709208000123
    else:
        assert record.timestamp_ms >= int(before * 1000)


def test_missing_brokers_are_told_with_the_same_words(spark: SparkSession, sink: Sink) -> None:
    writer = spark.sql("SELECT 'v' AS value, 'any' AS topic").write.format(sink.format)
    with pytest.raises(WRITE_FAILED) as refused:
        writer.mode("append").save()
    assert "Kafka option bootstrap.servers is not set. Please make sure it is set and retry" in str(
        refused.value
    )
