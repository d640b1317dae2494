"""Invalid writes are rejected: on the driver if it can know, and without a hang."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

import pytest
from conftest import NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent
from support.spark.sink import plan, save

from spark_kafka_sink.errors import ConfigException, DataException

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

# Under the 60 s that max.block.ms is by default, and far over the 2 s that are set: who waits for
# longer than this does not obey it.
_SOON_S = 50


def refused_soon(spark: SparkSession, bootstrap: str, topic: str) -> str:
    """Return the error of a write with max.block.ms of 2 s, which must come soon.

    Another rejected write runs first, because the start of the planner's Python must not count.
    """
    frame = spark.range(1).selectExpr("'x' AS value")
    with pytest.raises(PySparkException, match="option topc is not an option"):
        save(frame, bootstrap, topic, topc="x")
    started = time.monotonic()
    with pytest.raises(PySparkException) as refused:
        save(frame, bootstrap, topic, kafka_max_block_ms="2000")
    assert time.monotonic() - started < _SOON_S
    return str(refused.value)


def test_an_unknown_topic_is_named_within_max_block_ms(
    spark: SparkSession, kafka: KafkaCluster
) -> None:
    text = refused_soon(spark, kafka.bootstrap, "not-there")
    assert "Topic not-there not present in metadata after kafka.max.block.ms=2000" in text
    assert "UNKNOWN_TOPIC_OR_PARTITION" in text
    assert "auto.create.topics.enable" not in text, "the sink has no broker create topics"
    assert "create the topic, or set the option createTopics to true" in text
    assert "Failed to initialize Python data source writer" in text, "not refused on the driver"


def test_a_dead_bootstrap_address_is_named_within_max_block_ms(spark: SparkSession) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        text = refused_soon(spark, address, "any")
    assert "kafka.max.block.ms=2000" in text
    assert f"check kafka.bootstrap.servers={address}" in text
    assert "Connection refused" in text


def test_a_host_that_does_not_resolve_is_named(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("'x' AS value")
    with pytest.raises(PySparkException, match=r"no\.such\.host\.invalid.*cannot be resolved"):
        save(frame, "no.such.host.invalid:9092", "any", kafka_max_block_ms="1000")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("'x' AS wert", "Required attribute 'value' not found"),
        ("'x' AS Value", "Column names are case-sensitive: rename Value to value."),
        ("'x' AS value, 'y' AS value", "the data has 2 columns named value"),
        ("1 AS value", "value attribute unsupported type int. value must be a(n) string or binary"),
        ("'x' AS value, 1.5D AS key", "key attribute unsupported type double."),
        ("'x' AS value, '1' AS partition", "partition must be a(n) int"),
        ("'x' AS value, 1L AS partition", "partition must be a(n) int"),
        (
            "'x' AS value, map('a', 1) AS headers",
            "headers attribute unsupported type map<string,int>. headers must be a(n) "
            "array<struct<key:string,value:binary>> or map<string,binary>",
        ),
        ("'x' AS value, '2024' AS timestamp", "timestamp attribute unsupported type string."),
        ("NULL AS value", "value attribute unsupported type void."),
    ],
)
def test_a_wrong_column_is_refused_on_the_driver(
    spark: SparkSession, columns: str, message: str
) -> None:
    with pytest.raises(DataException) as refused:
        plan(spark.sql(f"SELECT {columns}"), "h:1", "any")
    assert message in str(refused.value)


def test_a_missing_topic_is_refused_on_the_driver(spark: SparkSession, kafka: KafkaCluster) -> None:
    with pytest.raises(
        PySparkException, match="topic option required when no 'topic' attribute is present"
    ):
        save(spark.sql("SELECT 'x' AS value"), kafka.bootstrap)
    with pytest.raises(PySparkException, match="case-sensitive: rename TOPIC to topic"):
        save(spark.sql("SELECT 'x' AS value, 't' AS TOPIC"), kafka.bootstrap)
    with pytest.raises(PySparkException, match="topic must be a\\(n\\) string"):
        save(spark.sql("SELECT 'x' AS value, 1 AS topic"), kafka.bootstrap)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topc": "t"}, "option topc is not an option of the pykafka sink; did you mean topic?"),
        (
            {"kafka_btch_size": "1"},
            "kafka.btch.size is not an option of the Kafka producer; "
            "did you mean kafka.batch.size?",
        ),
        ({"kafka_acks": "2"}, "kafka.acks is '2': expected one of all, -1, 0, 1"),
        ({"kafka_linger_ms": "soon"}, "kafka.linger.ms is 'soon': expected an integer"),
        ({"kafka_key_serializer": "x"}, "Kafka option 'key.serializer' is not supported"),
        ({"kafka_value_serializer": "x"}, "Kafka option 'value.serializer' is not supported"),
        ({"kafka_transactional_id": "x"}, "Kafka option 'transactional.id' is not supported"),
        (
            {"kafka_security_protocol": "TLS"},
            "kafka.security.protocol is 'TLS': expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, "
            "SASL_SSL",
        ),
        (
            {"kafka_security_protocol": "SASL_SSL", "kafka_sasl_mechanism": "PLAIN"},
            "kafka.security.protocol=SASL_SSL needs credentials: set kafka.sasl.jaas.config",
        ),
        (
            {"kafka_max_in_flight_requests_per_connection": "6"},
            "the idempotent producer allows at most 5",
        ),
        (
            {"kafka_delivery_timeout_ms": "1"},
            "expected at least kafka.linger.ms + kafka.request.timeout.ms",
        ),
        (
            {"kafka_partitioner_class": "random"},
            "kafka.partitioner.class is 'random': expected one of roundrobin, uniformsticky, "
            "module.Name of a Python callable",
        ),
        (
            {"kafka_partitioner_class": "no_such_module.Own"},
            "kafka.partitioner.class is 'no_such_module.Own', which cannot be imported",
        ),
        ({"unknownOptions": "maybe"}, "option unknownOptions is 'maybe': expected error or warn"),
        ({"createTopics": "yes"}, "option createTopics is 'yes': expected true or false"),
        (
            {"createTopics": "true", "topic_partitions": "0"},
            "option topic.partitions is '0': expected a number from 1 to 2147483647",
        ),
        (
            {"createTopics": "true", "topic_replication": "2.5"},
            "option topic.replication is '2.5': expected a number from 1 to 32767",
        ),
        (
            {"createTopics": "true", "topic_partition": "3"},
            "option topic.partition is not an option of the pykafka sink; did you mean "
            "topic.partitions?",
        ),
        (
            {"topic_partitions": "3"},
            "option topic.partitions is set, but topics are not created: set createTopics to true",
        ),
        ({"topic_config_": "3"}, "option topic.config. is not an option of the pykafka sink"),
    ],
)
def test_a_wrong_option_is_refused_on_the_driver(
    spark: SparkSession, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigException) as refused:
        plan(spark.sql("SELECT 'x' AS value"), "h:1", "any", **options)
    assert message in str(refused.value)


def test_what_is_refused_on_the_driver_is_an_error_of_planning(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as refused:
        save(spark.sql("SELECT 'x' AS wert"), "h:1", "any")
    text = str(refused.value)
    assert "[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source writer" in text
    assert "Required attribute 'value' not found" in text


@pytest.mark.parametrize(
    ("report_path", "message"),
    [
        ("", "option reportPath is empty: expected a file on the driver"),
        ("report.json", "option reportPath is report.json, not an absolute path"),
        ("file:/no/such/folder/x.json", "in the folder /no/such/folder, which does not exist"),
        ("{folder}", "option reportPath is {folder}, a folder: expected a file"),
    ],
)
def test_a_report_that_has_no_place_is_refused_before_any_row_is_sent(
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    tmp_path: Path,
    report_path: str,
    message: str,
) -> None:
    topic = new_topic(1)
    frame = spark.sql("SELECT 'x' AS value")
    with pytest.raises(PySparkException) as refused:
        save(frame, kafka.bootstrap, topic, reportPath=report_path.format(folder=tmp_path))
    assert message.format(folder=tmp_path) in str(refused.value)
    assert "Failed to initialize Python data source writer" in str(refused.value)
    assert read_with_confluent(kafka.bootstrap, topic) == []
    assert list(tmp_path.iterdir()) == []


def test_bootstrap_servers_must_be_set(spark: SparkSession) -> None:
    writer = spark.sql("SELECT 'x' AS value").write.format("pykafka").mode("append")
    with pytest.raises(PySparkException, match=r"Kafka option bootstrap\.servers is not set"):
        writer.option("topic", "any").save()
    with pytest.raises(PySparkException, match="'localhost', which is not an address"):
        writer.option("topic", "any").option("kafka.bootstrap.servers", "localhost").save()


def test_options_of_the_source_are_ignored_and_unknown_ones_if_asked(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    save(
        spark.sql("SELECT 'x' AS value"),
        kafka.bootstrap,
        topic,
        startingOffsets="earliest",
        failOnDataLoss="false",
        includeHeaders="true",
        kafka_group_id="g",
        unknownOptions="warn",
        kafka_no_such_thing="1",
        nothing="2",
    )
    assert len(read_with_confluent(kafka.bootstrap, topic)) == 1


def test_a_record_over_max_request_size_fails_before_anything_is_sent(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    frame = spark.sql("SELECT repeat('x', IF(id = 7, 20000, 10)) AS value FROM range(0, 10, 1, 1)")
    with pytest.raises(PySparkException) as refused:
        save(frame, kafka.bootstrap, topic, kafka_max_request_size="10000")
    text = str(refused.value)
    assert "RecordTooLargeException" in text
    assert re.search(
        r"row 7 of task 0: the record is .* more than kafka\.max\.request\.size=10000", text
    )
    assert read_with_confluent(kafka.bootstrap, topic) == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            "'x' AS value, 9 AS partition",
            "row 0 of task 0: the partition column has 9, but topic {topic} has 3 partitions, 0 "
            "to 2",
        ),
        ("'x' AS value, -1 AS partition", "row 0 of task 0: Invalid partition: -1. "),
        ("'x' AS value, -5L AS timestamp", "row 0 of task 0: Invalid timestamp: -5 ms. "),
        (
            "'x' AS value, array(named_struct('key', CAST(NULL AS STRING), 'value', "
            "CAST('' AS BINARY))) AS headers",
            "row 0 of task 0: headers has a header whose key is null",
        ),
    ],
)
def test_a_row_that_cannot_be_a_record_fails_the_task_with_a_sentence(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, columns: str, message: str
) -> None:
    topic = new_topic(3)
    with pytest.raises(PySparkException) as refused:
        save(spark.sql(f"SELECT {columns}"), kafka.bootstrap, topic)
    assert message.format(topic=topic) in str(refused.value)


def test_a_null_topic_says_how_to_set_a_default(spark: SparkSession, kafka: KafkaCluster) -> None:
    frame = spark.sql("SELECT 'x' AS value, CAST(NULL AS STRING) AS topic")
    with pytest.raises(PySparkException) as refused:
        save(frame, kafka.bootstrap)
    said = "[KAFKA_NULL_TOPIC_IN_DATA] The Kafka message data sent to the producer contains a null"
    assert "An exception was thrown from the Python worker" in str(refused.value)
    assert f"row 0 of task 0: {said} topic. " in str(refused.value)
    assert "Use the `topic` option for setting a default topic" in str(refused.value)


def test_what_the_topic_refuses_is_told_with_the_way_out(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic, late = new_topic(1), 4_102_444_800_000
    frame = spark.sql(f"SELECT 'x' AS value, {late} + id AS timestamp FROM range(0, 2, 1, 1)")
    with pytest.raises(PySparkException) as refused:
        save(frame, kafka.bootstrap, topic)
    said = str(refused.value)
    assert re.search(r"INVALID_TIMESTAMP \(32\).*message\.timestamp\.after\.max\.ms", said)
    assert f"its timestamps are {late} to {late + 1} ms" in said
    assert f"{topic}-0" in said


def test_reading_is_refused_with_a_sentence(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="pykafka is a sink"):
        spark.read.format("pykafka").load()
