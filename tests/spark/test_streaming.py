"""Structured streaming: writeStream and foreachBatch, restarted from their checkpoints."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from support.kafka_cluster import KafkaCluster
from support.readers import read_with_confluent

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def add_file(folder: Path, name: str, values: range) -> None:
    """Put a text file with a line per value into the stream's source, all at once."""
    partial = folder.parent / name
    partial.write_text("".join(f"{value}\n" for value in values))
    partial.rename(folder / name)


def values_in(kafka: KafkaCluster, topic: str) -> Counter[int]:
    """Count how often each value is in a topic."""
    return Counter(int(r.value or b"") for r in read_with_confluent(kafka.bootstrap, topic))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The folder that a stream reads."""
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


def test_write_stream_writes_every_row_once_over_restarts(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, source: Path, tmp_path: Path
) -> None:
    topic, reports = new_topic(3), tmp_path / "reports.jsonl"

    def run() -> None:
        query = (
            spark.readStream.format("text")
            .option("maxFilesPerTrigger", 1)
            .load(str(source))
            .writeStream.format("pykafka")
            .option("kafka.bootstrap.servers", kafka.bootstrap)
            .option("topic", topic)
            .option("reportPath", str(reports))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    add_file(source, "a.txt", range(100))
    add_file(source, "b.txt", range(100, 250))
    run()
    assert values_in(kafka, topic) == Counter(range(250))
    run()
    assert values_in(kafka, topic) == Counter(range(250)), "a restart wrote rows again"
    add_file(source, "c.txt", range(250, 300))
    run()
    assert values_in(kafka, topic) == Counter(range(300))

    lines = [json.loads(line) for line in reports.read_text().splitlines()]
    assert [line["batch_id"] for line in lines] == [0, 1, 2]
    assert sorted(line["rows"] for line in lines) == [50, 100, 150]
    assert sum(p["records"] for line in lines for p in line["partitions"]) == 300


def test_foreach_batch_writes_every_row_once_over_restarts(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, source: Path, tmp_path: Path
) -> None:
    topic, bootstrap = new_topic(3), kafka.bootstrap

    def save(batch: DataFrame, batch_id: int) -> None:
        (
            batch.write.format("pykafka")
            .mode("append")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", topic)
            .save()
        )

    def run() -> None:
        query = (
            spark.readStream.format("text")
            .option("maxFilesPerTrigger", 1)
            .load(str(source))
            .writeStream.foreachBatch(save)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    add_file(source, "a.txt", range(100))
    run()
    add_file(source, "b.txt", range(100, 250))
    run()
    assert values_in(kafka, topic) == Counter(range(250))


def test_output_mode_complete_appends_every_result_again(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, source: Path, tmp_path: Path
) -> None:
    topic = new_topic(1)
    add_file(source, "a.txt", range(3))
    add_file(source, "b.txt", range(3))
    counts = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(str(source))
        .groupBy("value")
        .count()
    )
    query = (
        counts.selectExpr("value AS key", "CAST(count AS STRING) AS value")
        .writeStream.format("pykafka")
        .outputMode("complete")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = Counter((r.key, r.value) for r in read_with_confluent(kafka.bootstrap, topic))
    assert found == Counter((str(n).encode(), c) for n in range(3) for c in (b"1", b"2"))


def test_a_stream_with_a_wrong_column_fails_with_the_sentence(
    spark: SparkSession, kafka: KafkaCluster, source: Path, tmp_path: Path
) -> None:
    add_file(source, "a.txt", range(3))
    query = (
        spark.readStream.format("text")
        .load(str(source))
        .selectExpr("value AS wert")
        .writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("topic", "any")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match="Required attribute 'value' not found"):
        query.awaitTermination()


def start_and_fail(
    spark: SparkSession, source: Path, checkpoint: Path, bootstrap: str, topic: str
) -> str:
    """Stream to what cannot be written to, with max.block.ms of 2 s; give the error."""
    add_file(source, "a.txt", range(3))
    query = (
        spark.readStream.format("text")
        .load(str(source))
        .writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.max.block.ms", "2000")
        .option("topic", topic)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination()
    return str(failed.value)


def test_a_stream_to_an_unknown_topic_fails_on_the_driver(
    spark: SparkSession, kafka: KafkaCluster, source: Path, tmp_path: Path
) -> None:
    said = start_and_fail(spark, source, tmp_path / "checkpoint", kafka.bootstrap, "not-there")
    assert "Topic not-there not present in metadata after kafka.max.block.ms=2000" in said
    assert "Failed to initialize Python data source writer" in said, "not refused on the driver"


def test_a_stream_to_a_dead_address_fails_on_the_driver(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        said = start_and_fail(spark, source, tmp_path / "checkpoint", address, "any")
    assert f"check kafka.bootstrap.servers={address}" in said
    assert "Failed to initialize Python data source writer" in said, "not refused on the driver"


def test_a_report_that_loses_its_folder_on_the_way_does_not_fail_the_commit(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, source: Path, tmp_path: Path
) -> None:
    topic, reports = new_topic(1), tmp_path / "reports"
    reports.mkdir()

    def removing_the_folder(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows and reports.exists():
                reports.rmdir()
            yield batch

    add_file(source, "a.txt", range(100))
    query = (
        spark.readStream.format("text")
        .load(str(source))
        .mapInArrow(removing_the_folder, "value STRING")
        .writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("topic", topic)
        .option("reportPath", str(reports / "reports.jsonl"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert not reports.exists()
    assert values_in(kafka, topic) == Counter(range(100))
