"""The driver's checks before a job: created topics, missing rights, limits for the tasks."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from conftest import NewTopic, topic_maker
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StringType, StructType, TimestampType
from support.brokers.access import allow_only
from support.brokers.fault_proxy import METADATA, FaultProxy
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.scripted_broker import ScriptedBroker, describe
from support.brokers.topic_settings import set_config
from support.oracles.readers import (
    delete_topics,
    partition_count,
    read_with_confluent,
    read_with_kafka_python,
)
from support.spark.sink import save

from spark_kafka_sink.errors import (
    DataException,
    InvalidTopicException,
    RecordTooLargeException,
    TimeoutException,
)
from spark_kafka_sink.kafka_producer import KafkaProducer
from spark_kafka_sink.spark.driver.atomic_layout import atomic_layout
from spark_kafka_sink.spark.layout_mark import as_metadata
from spark_kafka_sink.spark.micro_batch import batch_id_option
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.report import BadRowsReport, SinkCommitMessage
from spark_kafka_sink.spark.tasks.task import write_task
from spark_kafka_sink.spark.topics import TopicLimits

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

CREATE_TOPICS, DESCRIBE_CONFIGS = 19, 32
ON_THE_DRIVER = "Failed to initialize Python data source writer"


def new_name() -> str:
    """Return a name that no topic has."""
    return f"topic-{uuid.uuid4().hex[:12]}"


def test_a_missing_topic_is_created_and_written_to(
    spark: SparkSession, kafka: KafkaCluster
) -> None:
    topic = new_name()
    options = {
        "createTopics": "true",
        "topic_partitions": "4",
        "topic_config_message_timestamp_type": "LogAppendTime",
    }
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value", "timestamp'2001-01-01'")
    save(frame, kafka.bootstrap, topic, **options)
    save(frame, kafka.bootstrap, topic, **options)
    found = read_with_confluent(kafka.bootstrap, topic)
    assert Counter(r.value for r in found) == Counter({str(n).encode(): 2 for n in range(100)})
    assert partition_count(kafka.bootstrap, topic) == 4
    year_2001_ms = 1_000_000_000_000
    assert min(r.timestamp_ms for r in found) > year_2001_ms, "the topic's settings are not there"


def test_a_wrong_name_is_created_by_no_part_of_the_sink(
    spark: SparkSession, guarded_kafka: KafkaCluster
) -> None:
    """The brokers create topics on request here, as they do for a KafkaProducer."""
    servers = {"bootstrap.servers": guarded_kafka.bootstrap}
    given = {"kafka.bootstrap.servers": guarded_kafka.bootstrap, "kafka.max.block.ms": "500"}
    there, wrong = topic_maker(guarded_kafka)(1), new_name()
    bad = pa.record_batch({"value": [b"x"], "topic": [None]}).cast(
        pa.schema({"value": pa.binary(), "topic": pa.string()})
    )
    good = pa.record_batch({"value": [b"x"], "topic": [wrong]})
    of_column = StructType().add("value", StringType()).add("topic", StringType())
    letters = {"onError": "deadLetter", "deadLetterTopic": wrong}
    frame = spark.sql("SELECT 'x' AS value")
    for write in (
        lambda: KafkaDataSource(given | {"topic": wrong}).writer(frame.schema, overwrite=False),
        lambda: KafkaDataSource(given | letters).writer(of_column, overwrite=False),
        lambda: atomic_layout(frame, given | {"topic": wrong}),
        lambda: write_task(sink_options(given), iter([good])),
        lambda: write_task(sink_options(given | {"onError": "skip"}), iter([good])),
        lambda: write_task(sink_options(given | letters), iter([bad])),
    ):
        with pytest.raises(TimeoutException) as refused:
            write()
        text = str(refused.value)
        assert text.endswith("; create the topic, or set the option createTopics to true"), text
    save(spark.sql("SELECT 'x' AS value"), guarded_kafka.bootstrap, there)
    client = AdminClient({"bootstrap.servers": guarded_kafka.bootstrap})
    assert wrong not in client.list_topics(timeout=30).topics
    with KafkaProducer(servers) as producer:
        producer.append(wrong, pa.record_batch({"value": [b"x"]}))
    assert wrong in client.list_topics(timeout=30).topics


def test_topics_of_a_layout_to_which_no_row_may_go_are_neither_awaited_nor_created(
    guarded_kafka: KafkaCluster,
) -> None:
    there, gone = topic_maker(guarded_kafka)(1), new_name()
    given = {"kafka.bootstrap.servers": guarded_kafka.bootstrap, "kafka.max.block.ms": "10000"}

    def plan(partitions: int, **more: str) -> None:
        schema = StructType().add("value", StringType()).add("topic", StringType())
        mark = as_metadata({gone: 3, there: partitions})
        schema = schema.add("partition", IntegerType(), metadata=mark)
        KafkaDataSource(given | more).writer(schema, overwrite=False)

    for more in ({}, {"createTopics": "true"}):
        plan(1, **more)
        with pytest.raises(DataException, match=f"2 partitions of topic {there}, which has 1 now"):
            plan(2, **more)
    client = AdminClient({"bootstrap.servers": guarded_kafka.bootstrap})
    assert gone not in client.list_topics(timeout=30).topics


def test_topics_that_kafka_keeps_for_itself_are_refused(
    spark: SparkSession, guarded_kafka: KafkaCluster
) -> None:
    client = AdminClient({"bootstrap.servers": guarded_kafka.bootstrap})
    given = {"kafka.bootstrap.servers": guarded_kafka.bootstrap, "kafka.max.block.ms": "30000"}
    creates = {"createTopics": "true"}
    state, missing = "__transaction_state", "__share_group_state"
    transactional = {"transactional.id": new_name()}
    # The first transaction has brokers create the topic of transactions.
    with KafkaProducer({"bootstrap.servers": guarded_kafka.bootstrap} | transactional) as producer:
        producer.init_transactions()
    of_value = StructType().add("value", StringType())
    of_column = StructType().add("value", StringType()).add("topic", StringType())

    def plan(schema: StructType, **more: str) -> None:
        KafkaDataSource(given | more).writer(schema, overwrite=False)

    def write(topic: str, **more: str) -> None:
        batch = pa.record_batch({"value": [b"x"], "topic": [topic]})
        write_task(sink_options(given | more), iter([batch]))

    def lay_out(topic: str, **more: str) -> None:
        frame = spark.range(2).selectExpr("CAST(id AS STRING) AS value", f"'{topic}' AS topic")
        atomic_layout(frame, given | more)

    attempts: tuple[tuple[Callable[[], None], str], ...] = (
        (lambda: lay_out(missing, **creates), missing),
        (lambda: lay_out(state), state),
        (lambda: plan(of_value, topic=state), state),
        (lambda: plan(of_value, topic=missing, **creates), missing),
        (lambda: plan(of_column, onError="deadLetter", deadLetterTopic=state), state),
        (lambda: write(missing, **creates), missing),
        (lambda: write(state), state),
    )
    for attempt, topic in attempts:
        with pytest.raises(InvalidTopicException) as refused:
            attempt()
        said = f"{topic} is internal to Kafka, and producers must not write to it: use"
        assert said in str(refused.value)
        assert "characters" not in str(refused.value)
    assert missing not in client.list_topics(timeout=30).topics
    # The client.id by which Kafka lets its own administration in.
    plan(of_value, topic=state, **{"kafka.client.id": "__admin_client"})


def test_a_topic_that_brokers_call_internal_is_refused_whatever_its_name() -> None:
    topic = "__of_newer_brokers"
    with ScriptedBroker() as broker:
        broker.metadata = describe(broker.port, topic)
        broker.metadata.topics[0].is_internal = True
        broker.speaks[DESCRIBE_CONFIGS] = None
        given = {"kafka.bootstrap.servers": broker.address, "topic": topic}
        schema = StructType().add("value", StringType())
        with pytest.raises(InvalidTopicException, match=f"{topic} is internal to Kafka, and prod"):
            KafkaDataSource(given).writer(schema, overwrite=False)


def test_topics_of_a_column_are_created_by_whichever_task_meets_them_first(
    spark: SparkSession, kafka: KafkaCluster
) -> None:
    topics = [new_name() for _ in range(3)]
    names = ", ".join(f"'{topic}'" for topic in topics)
    # Every one of the four tasks has rows for every topic.
    frame = spark.range(0, 120, 1, 4).selectExpr(
        f"element_at(array({names}), CAST(id % 3 AS INT) + 1) AS topic",
        "CAST(id AS STRING) AS value",
    )
    save(frame, kafka.bootstrap, createTopics="true", topic_partitions="2")
    there = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=30).topics
    for number, topic in enumerate(topics):
        assert len(there[topic].partitions) == 2
        found = read_with_confluent(kafka.bootstrap, topic)
        expected = Counter(str(n).encode() for n in range(number, 120, 3))
        assert Counter(record.value for record in found) == expected


def test_a_topic_that_cannot_be_created_is_refused_on_the_driver(
    spark: SparkSession, kafka: KafkaCluster
) -> None:
    topic = new_name()
    with pytest.raises(PySparkException) as refused:
        save(
            spark.sql("SELECT 'x' AS value"),
            kafka.bootstrap,
            topic,
            createTopics="true",
            topic_replication="9",
        )
    text = str(refused.value)
    assert f"topic {topic} does not exist and cannot be created: INVALID_REPLICATION_F" in text
    assert ON_THE_DRIVER in text


def test_wrong_settings_of_topics_that_rows_name_are_refused_on_the_driver(
    spark: SparkSession, kafka: KafkaCluster
) -> None:
    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    name = new_name()
    frame = spark.sql(f"SELECT 'x' AS value, '{name}' AS topic")
    for more, said in (
        (
            {"topic_config_max_massage_bytes": "1"},
            "created with topic.config.max.massage.bytes=1: INVALID_CONFIG (40), Unknown topic c",
        ),
        (
            {"topic_replication": "9", "kafka_max_block_ms": "5000"},
            "created with topic.replication=9: INVALID_REPLICATION_FACTOR (38), ",
        ),
    ):
        with pytest.raises(PySparkException) as refused:
            save(frame, kafka.bootstrap, createTopics="true", **more)
        text = str(refused.value)
        assert said in text
        assert ON_THE_DRIVER in text
    topics = client.list_topics(timeout=30).topics
    assert [each for each in topics if each == name or each.startswith("pykafka-")] == []


def test_settings_that_were_right_once_are_not_looked_at_again_by_a_stream(
    proxied_kafka: tuple[KafkaCluster, FaultProxy],
) -> None:
    _, proxy = proxied_kafka
    schema = StructType().add("value", StringType()).add("topic", StringType())
    options = {
        "kafka.bootstrap.servers": f"127.0.0.1:{proxy.port}",
        "kafka.metadata.max.age.ms": "0",
        "createTopics": "true",
    }
    before = proxy.requests[CREATE_TOPICS], proxy.requests[METADATA]
    for _ in range(3):
        KafkaDataSource(options).streamWriter(schema, overwrite=False)
    assert proxy.requests[CREATE_TOPICS] == before[0] + 1
    assert proxy.requests[METADATA] == before[1] + 3


def test_a_topic_that_is_not_as_it_would_have_been_created_is_warned_of_once(
    kafka: KafkaCluster, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(2, {"retention.ms": "5000", "cleanup.policy": "compact,delete"})
    schema = StructType().add("value", StringType())
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "topic": topic,
        "createTopics": "true",
        "topic.partitions": "2",
        "topic.config.retention.ms": " 5000",
        "topic.config.cleanup.policy": "delete, compact",
    }
    for _ in range(3):
        KafkaDataSource(options).streamWriter(schema, overwrite=False)
    assert not caplog.records
    options |= {
        "topic.partitions": "5",
        "topic.replication": "2",
        "topic.config.retention.ms": "6000",
        "topic.config.max.massage.bytes": "1",
    }
    for max_age_ms in ("0", "0", "1"):
        given = options | {"kafka.metadata.max.age.ms": max_age_ms}
        KafkaDataSource(given).streamWriter(schema, overwrite=False)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        f"topic {topic} exists and is not changed; options for new topics differ from it: "
        "topic.partitions=5 (it has 2), topic.replication=2 (it has 1), "
        "topic.config.max.massage.bytes=1 (Kafka has no such setting), "
        "topic.config.retention.ms=6000 (it has 5000)"
    )


def test_a_topic_that_is_created_is_not_warned_of(
    guarded_kafka: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Unreadable settings are no reason for a warning either; they are for an existing topic."""
    topic = new_name()
    allow_only(guarded_kafka.bootstrap, topic, "CREATE", "WRITE", "DESCRIBE")
    options = {
        "kafka.bootstrap.servers": guarded_kafka.bootstrap,
        "topic": topic,
        "createTopics": "true",
        "topic.partitions": "2",
        "topic.config.retention.ms": "5000",
    }
    schema = StructType().add("value", StringType())
    KafkaDataSource(options).writer(schema, overwrite=False)
    assert not caplog.records
    KafkaDataSource(options).writer(schema, overwrite=False)
    (record,) = caplog.records
    assert record.getMessage().endswith(
        "differ from it: topic.config.retention.ms=5000 (its value is unknown)"
    )


def test_a_topic_that_may_not_be_written_is_refused_on_the_driver(
    spark: SparkSession, guarded_kafka: KafkaCluster
) -> None:
    topic = topic_maker(guarded_kafka)(1)
    allow_only(guarded_kafka.bootstrap, topic, "DESCRIBE", "READ")
    with pytest.raises(PySparkException) as refused:
        save(spark.sql("SELECT 'x' AS value"), guarded_kafka.bootstrap, topic)
    text = str(refused.value)
    assert (
        f"topic {topic}: TOPIC_AUTHORIZATION_FAILED (29); grant WRITE and DESCRIBE on the topic to "
        "this client; now it is allowed only DESCRIBE, READ"
    ) in text
    assert ON_THE_DRIVER in text


def test_a_job_runs_where_the_topic_s_settings_may_not_be_read(
    spark: SparkSession, guarded_kafka: KafkaCluster
) -> None:
    """Brokers say themselves what is too large then, as without a pre-flight."""
    topic = topic_maker(guarded_kafka)(1, {"max.message.bytes": "5000"})
    allow_only(guarded_kafka.bootstrap, topic, "WRITE", "READ")
    small = spark.range(0, 300, 1, 1).selectExpr("lpad(CAST(id AS STRING), 100, '0') AS value")
    save(small, guarded_kafka.bootstrap, topic)
    found = read_with_confluent(guarded_kafka.bootstrap, topic)
    assert [int(record.value or b"") for record in found] == list(range(300))
    with pytest.raises(
        PySparkException, match=r"make the record smaller.*MESSAGE_TOO_LARGE \(10\)"
    ):
        save(spark.sql("SELECT repeat('x', 9000) AS value"), guarded_kafka.bootstrap, topic)


def test_batches_are_as_large_as_the_topic_takes_from_the_first_one_on(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, report = new_topic(1, {"max.message.bytes": "20000"}), tmp_path / "report.json"
    frame = spark.range(0, 2000, 1, 1).selectExpr("lpad(CAST(id AS STRING), 100, '0') AS value")
    save(frame, kafka.bootstrap, topic, reportPath=str(report), kafka_batch_size="1000000")
    found = read_with_confluent(kafka.bootstrap, topic)
    assert [int(record.value or b"") for record in found] == list(range(2000))
    (partition,) = json.loads(report.read_text())["partitions"]
    # Batches that were too large at first would have been split into halves of halves.
    assert partition["batches"] == -(-partition["compressed_bytes"] // 20000)
    assert partition["retries"] == 0


@pytest.mark.parametrize(
    ("settings", "expired"),
    [
        ({"retention.ms": "60000"}, 2),
        ({"retention.ms": "60000", "cleanup.policy": "compact,delete"}, 2),
        ({"retention.ms": "60000", "cleanup.policy": "compact"}, 0),
        ({"retention.ms": "60000", "message.timestamp.type": "LogAppendTime"}, 0),
        ({"retention.ms": "-1"}, 0),
    ],
    ids=["delete", "compact-and-delete", "compact", "LogAppendTime", "no-retention"],
)
def test_rows_older_than_the_topic_s_retention_are_counted_and_said(
    kafka: KafkaCluster,
    new_topic: NewTopic,
    settings: dict[str, str],
    expired: int,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    path = tmp_path / "report.json"
    given = {"topic": new_topic(1, settings), "reportPath": str(path), "onError": "skip"}
    source = KafkaDataSource({"kafka.bootstrap.servers": kafka.bootstrap} | given)
    columns = StructType().add("key", StringType()).add("value", StringType())
    writer = source.writer(columns.add("timestamp", TimestampType()), overwrite=False)
    now = datetime.now(UTC)
    # The oldest is neither first nor last, and one is of before 1970 and so none that Kafka takes.
    ages_s = (30.0, 7200.25, 100.0, 0.0)
    times = [*(now - timedelta(seconds=age) for age in ages_s), datetime(1960, 1, 1, tzinfo=UTC)]
    kind = pa.timestamp("us", tz="UTC")
    rows = pa.record_batch(
        {"key": [b"k"] * 6, "value": [b"v"] * 6, "timestamp": pa.array([*times, None], kind)}
    )
    writer.commit([writer.write(iter([rows]))])
    said = capsys.readouterr().err
    found = json.loads(path.read_text())["expired_rows"]
    if not expired:
        assert found == []
        assert "retention.ms" not in said
        return
    oldest = now - timedelta(seconds=7200.25)
    oldest_ms = int(oldest.timestamp() * 1000)
    assert found == [
        {
            "topic": given["topic"],
            "rows": 2,
            "oldest_timestamp_ms": oldest_ms,
            "retention_ms": 60000,
        }
    ]
    words = f"2 of {given['topic']} (retention.ms=60000, the oldest is from "
    assert said.count(words) == said.count("older than the retention.ms") == 1


def test_rows_of_a_topic_column_are_counted_by_their_topics_retention(
    kafka: KafkaCluster, new_topic: NewTopic, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    hour, day, forever = (
        new_topic(1, {"retention.ms": retention}) for retention in ("3600000", "86400000", "-1")
    )
    path = tmp_path / "report.json"
    source = KafkaDataSource({"kafka.bootstrap.servers": kafka.bootstrap, "reportPath": str(path)})
    columns = StructType().add("value", StringType()).add("topic", StringType())
    writer = source.writer(columns.add("timestamp", TimestampType()), overwrite=False)
    now = datetime.now(UTC)
    hours = [(hour, 2), (day, 2), (forever, 9999), (hour, 5), (day, 25), (hour, 0), (hour, 3)]
    times = [now - timedelta(hours=age) for _, age in hours]
    rows = pa.record_batch(
        {
            "value": ["v"] * len(hours),
            "topic": [topic for topic, _ in hours],
            "timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
        }
    )
    # Two tasks.
    writer.commit([writer.write(iter([rows])), writer.write(iter([rows.slice(1)]))])
    found = {each["topic"]: each for each in json.loads(path.read_text())["expired_rows"]}
    assert {topic: each["rows"] for topic, each in found.items()} == {hour: 5, day: 2}
    assert found[hour]["oldest_timestamp_ms"] == int(times[3].timestamp() * 1000)
    assert found[day]["retention_ms"] == 86400000
    assert capsys.readouterr().err.count("7 rows are older than the retention.ms of their") == 1


def test_a_record_that_its_topic_does_not_take_fails_before_anything_is_sent(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    """The limit is exact: a record that fills a batch is written, one byte more is rejected."""
    topic = new_topic(1, {"max.message.bytes": "5000"})
    # 61 bytes of the batch, and of the record: 2 of length, 3 of attributes and deltas, 1 of a key
    # that is null, 2 of the value's length, 1 of headers.
    largest = 5000 - 61 - 9
    value = f"repeat('x', IF(id = 7, {largest}, 10)) AS value"
    save(spark.range(0, 10, 1, 1).selectExpr(value), kafka.bootstrap, topic)
    found = read_with_kafka_python(kafka.bootstrap, topic)
    assert [len(record.value or b"") for record in found] == [*[10] * 7, largest, 10, 10]
    value = f"repeat('x', IF(id = 7, {largest + 1}, 10)) AS value"
    with pytest.raises(PySparkException) as refused:
        save(spark.range(0, 10, 1, 1).selectExpr(value), kafka.bootstrap, topic)
    assert re.search(
        rf"RecordTooLargeException: row 7 of task 0: the record is 5001 bytes when "
        rf"serialized, more than topic {topic} takes \(max\.message\.bytes=5000, while "
        r"kafka\.max\.request\.size=8388608\); make the record smaller, compress it, or raise",
        str(refused.value),
    )
    assert len(read_with_confluent(kafka.bootstrap, topic)) == 10


def test_a_record_that_is_compressed_below_the_limit_is_written(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1, {"max.message.bytes": "5000"})
    frame = spark.sql("SELECT repeat('x', 50000) AS value")
    save(frame, kafka.bootstrap, topic, kafka_compression_type="zstd")
    assert [r.value for r in read_with_confluent(kafka.bootstrap, topic)] == [b"x" * 50000]


@pytest.mark.parametrize("more", [{}, {"onError": "skip"}], ids=["fail", "skip"])
def test_a_row_is_too_large_only_for_what_the_topic_takes_now(
    proxied_kafka: tuple[KafkaCluster, FaultProxy], more: dict[str, str]
) -> None:
    """A stream remembers the limit, which is raised between two of its micro-batches."""
    kafka, _ = proxied_kafka
    topic = topic_maker(kafka)(1, {"max.message.bytes": "2000"})
    schema = StructType().add("value", StringType())
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic} | more

    def write(*sizes: int) -> BadRowsReport:
        writer = KafkaDataSource(options).streamWriter(schema, overwrite=False)
        batch = pa.record_batch({"value": ["x" * size for size in sizes]})
        message = writer.write(iter([batch]))
        assert isinstance(message, SinkCommitMessage)
        return message.bad_rows

    write(10)
    set_config(kafka.bootstrap, topic, "max.message.bytes", "9000")
    assert write(5000, 20).rows == 0
    if more:
        assert write(9500, 8000).reasons == {"too_large": 1}
    else:
        with pytest.raises(RecordTooLargeException, match=r"max\.message\.bytes=9000"):
            write(9500)
        write(8000)
    found = read_with_confluent(kafka.bootstrap, topic)
    assert [len(record.value or b"") for record in found] == [10, 5000, 20, 8000]


def test_a_topic_is_asked_for_its_limit_once_a_second(kafka: KafkaCluster) -> None:
    """A request needs a connection, so it is not sent for each Arrow batch with a large row."""
    topic = topic_maker(kafka)(1, {"max.message.bytes": "2000"})
    options = sink_options({"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic})
    seconds = 100.0
    limit = TopicLimits(replace(options, max_message_bytes={topic: 1000}), lambda: seconds)
    assert limit.by_topic == {topic: 1000}
    assert limit.refreshed() == {topic: 2000}
    set_config(kafka.bootstrap, topic, "max.message.bytes", "3000")
    seconds += 0.99
    assert limit.refreshed() == {topic: 2000}
    seconds += 0.01
    assert limit.refreshed() == {topic: 3000}


def test_topics_that_are_deleted_between_micro_batches_are_created_again(
    proxied_kafka: tuple[KafkaCluster, FaultProxy],
) -> None:
    kafka, _ = proxied_kafka
    topic, letters = new_name(), new_name()
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "kafka.max.block.ms": "5000",
        "topic": topic,
        "createTopics": "true",
        "topic.partitions": "2",
        "onError": "deadLetter",
        "deadLetterTopic": letters,
    }
    schema = StructType().add("value", StringType()).add("partition", IntegerType())
    batch = pa.record_batch({"value": ["a", "b"], "partition": pa.array([1, 2], pa.int32())})
    for _ in range(2):
        writer = KafkaDataSource(options).streamWriter(schema, overwrite=False)
        message = writer.write(iter([batch]))
        assert isinstance(message, SinkCommitMessage)
        assert message.bad_rows.rows == 1
        found = read_with_confluent(kafka.bootstrap, topic)
        assert [(record.partition, record.value) for record in found] == [(1, b"a")]
        assert [r.value for r in read_with_confluent(kafka.bootstrap, letters)] == [b"b"]
        delete_topics(kafka.bootstrap, [topic, letters])


def test_a_stream_asks_once_and_a_batch_job_every_time(
    proxied_kafka: tuple[KafkaCluster, FaultProxy],
) -> None:
    """Spark's planner does the same: one process makes a writer for every micro-batch."""
    cluster, proxy = proxied_kafka
    schema = StructType().add("value", StringType())
    options = {
        "kafka.bootstrap.servers": f"127.0.0.1:{proxy.port}",
        "topic": topic_maker(cluster)(1),
    }

    def asked(**more: str) -> int:
        """Return the number of requests to brokers for one more micro-batch."""
        before = proxy.requests[METADATA], proxy.requests[DESCRIBE_CONFIGS]
        given = options | {name.replace("_", "."): value for name, value in more.items()}
        KafkaDataSource(given).streamWriter(schema, overwrite=False)
        metadata, configs = (
            now - then
            for now, then in zip(
                (proxy.requests[METADATA], proxy.requests[DESCRIBE_CONFIGS]), before, strict=True
            )
        )
        assert metadata == configs
        return configs

    assert [asked() for _ in range(4)] == [1, 0, 0, 0]
    assert asked(kafka_client_id="another") == 1, "what others found is not what this one may"
    always = {"kafka_metadata_max_age_ms": "0"}
    assert [asked(**always) for _ in range(2)] == [1, 1]
    before = proxy.requests[DESCRIBE_CONFIGS]
    for batch_id in range(2):
        KafkaDataSource(options | batch_id_option(batch_id)).writer(schema, overwrite=False)
    assert proxy.requests[DESCRIBE_CONFIGS] == before, "micro-batches of write_batch"
    for _ in range(2):
        KafkaDataSource(options).writer(schema, overwrite=False)
    assert proxy.requests[DESCRIBE_CONFIGS] == before + 2
