"""The main path on real brokers: Spark tasks to Kafka, read back by two clients not ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from conftest import NewTopic
from pyspark.sql import DataFrame, SparkSession
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import (
    Record,
    read_at_least,
    read_with_confluent,
    read_with_kafka_python,
)
from support.spark.flights import check_every_row_once, rows

from spark_kafka_sink import KafkaProducer

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def save(frame: DataFrame, bootstrap: str, topic: str, **options: str) -> None:
    """Append a frame to a topic; options by their names with _ for the dot."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    (
        frame.write.format("pykafka")
        .mode("append")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .options(**named)
        .save()
    )


@pytest.mark.timeout(600)
def test_many_rows_arrive_once_in_order_and_where_java_would_put_them(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    # Of each task, every partition has more than a batch.
    count, tasks, partitions = 40_000, 4, 4
    topic, report_path = new_topic(partitions), tmp_path / "report.json"
    save(rows(spark, count, tasks), kafka.bootstrap, topic, reportPath=str(report_path))
    records = check_by_both_clients(kafka.bootstrap, topic, count, tasks, partitions)

    report = json.loads(report_path.read_text())
    assert (report["rows"], report["tasks"]) == (count, tasks)
    check_partitions(report, records, range(partitions))


def check_by_both_clients(
    bootstrap: str, topic: str, count: int, tasks: int, partitions: int
) -> list[Record]:
    """Assert that two clients find each row once and unchanged; return what they found."""
    records = read_with_confluent(bootstrap, topic)
    check_every_row_once(records, count, tasks, partitions)
    # Not left to pytest, which would print both.
    is_same = sorted(read_with_kafka_python(bootstrap, topic)) == sorted(records)
    assert is_same, "kafka-python reads something else than confluent-kafka"
    return records


def check_partitions(report: dict[str, Any], records: list[Record], numbers: Sequence[int]) -> None:
    """Assert that a report has of each partition what a reader found there."""
    assert [entry["partition"] for entry in report["partitions"]] == list(numbers)
    assert sum(entry["records"] for entry in report["partitions"]) == len(records)
    offsets: dict[int, list[int]] = {number: [] for number in numbers}
    for record in records:
        offsets[record.partition].append(record.offset)
    for entry in report["partitions"]:
        found = offsets[entry["partition"]]
        assert entry["records"] == len(found)
        assert (entry["first_offset"], entry["last_offset"]) == (min(found), max(found))


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_read_by_both_clients(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, codec: str
) -> None:
    count, tasks, partitions = 10_000, 2, 3
    topic = new_topic(partitions)
    save(rows(spark, count, tasks), kafka.bootstrap, topic, kafka_compression_type=codec)
    check_by_both_clients(kafka.bootstrap, topic, count, tasks, partitions)


_CODECS = pytest.mark.long(reason="a new broker takes each codec, and an old one takes others")


@pytest.mark.parametrize(
    "codec", ["none", "zstd", *(pytest.param(each, marks=_CODECS) for each in CODECS[1:-1])]
)
def test_an_old_broker_takes_the_same(
    spark: SparkSession, old_kafka: KafkaCluster, new_old_topic: NewTopic, codec: str
) -> None:
    count, tasks, partitions = 10_000, 2, 4
    topic = new_old_topic(partitions)
    save(rows(spark, count, tasks), old_kafka.bootstrap, topic, kafka_compression_type=codec)
    check_by_both_clients(old_kafka.bootstrap, topic, count, tasks, partitions)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"kafka_acks": "1"}, id="acks=1"),
        pytest.param({"kafka_enable_idempotence": "false"}, id="not idempotent"),
        pytest.param({"kafka_max_in_flight_requests_per_connection": "1"}, id="one in flight"),
        pytest.param({"kafka_batch_size": "1000"}, id="small batches"),
        pytest.param({"kafka_buffer_memory": "65536"}, id="little memory"),
        pytest.param({"kafka_max_request_size": "20000"}, id="small requests"),
        pytest.param({"kafka_linger_ms": "0"}, id="no linger"),
    ],
)
def test_every_row_arrives_once_however_the_producer_is_configured(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, options: dict[str, str]
) -> None:
    count, tasks, partitions = 5_000, 2, 5
    topic = new_topic(partitions)
    save(rows(spark, count, tasks), kafka.bootstrap, topic, **options)
    check_every_row_once(read_at_least(kafka.bootstrap, topic, count), count, tasks, partitions)


def test_acks_0_delivers_on_a_healthy_cluster(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, report_path = new_topic(2), tmp_path / "report.json"
    save(
        rows(spark, 1000, 1),
        kafka.bootstrap,
        topic,
        kafka_acks="0",
        reportPath=str(report_path),
    )
    check_every_row_once(read_at_least(kafka.bootstrap, topic, 1000), 1000, 1, 2)
    report = json.loads(report_path.read_text())
    assert [p["first_offset"] for p in report["partitions"]] == [-1, -1]


@pytest.mark.parametrize("read", [read_with_confluent, read_with_kafka_python])
def test_a_topic_from_which_a_broker_deleted_records_proves_nothing(
    kafka: KafkaCluster, new_topic: NewTopic, read: Callable[[str, str], list[Record]]
) -> None:
    topic = new_topic(1)
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap}) as producer:
        producer.append(topic, pa.record_batch({"value": pa.array(["a", "b", "c"])}))
    assert [record.value for record in read(kafka.bootstrap, topic)] == [b"a", b"b", b"c"]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for future in admin.delete_records([TopicPartition(topic, 0, 2)]).values():
        future.result()
    with pytest.raises(AssertionError, match="begins at offset 2"):
        read(kafka.bootstrap, topic)
