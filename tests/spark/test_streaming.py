"""Structured streaming: writeStream and foreachBatch, restarted from their checkpoints."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from inspect import signature
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import NewTopic
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.scripted_broker import ScriptedBroker, describe
from support.oracles.readers import read_at_least, read_with_confluent
from support.spark.sink import registered_for_now

from spark_kafka_sink import write_batch
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.wire.messages import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

PRODUCE, DESCRIBE_CONFIGS = 0, 32


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


def counts(spark: SparkSession, source: Path) -> DataFrame:
    """Count the lines of each value, file by file."""
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source))
    grouped = lines.groupBy("value").count()
    return grouped.selectExpr("value AS key", "CAST(count AS STRING) AS value")


def test_output_mode_update_is_refused_by_spark_itself(
    spark: SparkSession, kafka: KafkaCluster, source: Path, tmp_path: Path
) -> None:
    add_file(source, "a.txt", range(3))
    query = (
        counts(spark, source)
        .writeStream.format("pykafka")
        .outputMode("update")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("topic", "any")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match="pykafka does not support Update mode"):
        query.awaitTermination()


def test_write_batch_writes_what_output_mode_update_gives(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, source: Path, tmp_path: Path
) -> None:
    topic = new_topic(1)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic}

    def run() -> None:
        query = (
            counts(spark, source)
            .writeStream.outputMode("update")
            .foreachBatch(partial(write_batch, options=options))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    add_file(source, "a.txt", range(3))
    add_file(source, "b.txt", range(2, 4))
    run()
    add_file(source, "c.txt", range(2, 3))
    run()
    found = Counter((r.key, r.value) for r in read_with_confluent(kafka.bootstrap, topic))
    changed = [("0", "1"), ("1", "1"), ("2", "1"), ("2", "2"), ("3", "1"), ("2", "3")]
    assert found == Counter((key.encode(), value.encode()) for key, value in changed)


def test_a_batch_that_was_stopped_in_the_middle_is_written_again_as_a_whole(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, source: Path, tmp_path: Path
) -> None:
    """One task is through and the other one stands, when the query is stopped."""
    topic, standing, go = new_topic(1), tmp_path / "standing", tmp_path / "go"
    os.mkfifo(standing)

    def stand_at_150(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not go.exists() and "150" in batch.column(0).to_pylist():
                yield batch.slice(0, 20)
                standing.read_text()  # until it is written to, which never happens
            yield batch

    def start() -> StreamingQuery:
        return (
            spark.readStream.format("text")
            .load(str(source))
            .mapInArrow(stand_at_150, "value STRING")
            .writeStream.format("pykafka")
            .option("kafka.bootstrap.servers", kafka.bootstrap)
            .option("topic", topic)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    add_file(source, "a.txt", range(100))
    add_file(source, "b.txt", range(100, 200))
    query = start()
    assert len(read_at_least(kafka.bootstrap, topic, 100)) >= 100
    query.stop()
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")), "was not in the middle"

    go.touch()
    start().awaitTermination()
    found = values_in(kafka, topic)
    assert set(found) == set(range(200)), "rows are missing"
    assert {found[value] for value in range(100)} == {2}
    assert all(found[value] in (1, 2) for value in range(100, 200))


def test_micro_batches_without_rows_write_nothing_and_are_done(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, source: Path, tmp_path: Path
) -> None:
    topic, reports = new_topic(2), tmp_path / "reports.jsonl"
    for name, values in (("a", range(10)), ("b", range(100, 110)), ("c", range(20))):
        add_file(source, f"{name}.txt", values)
    query = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(str(source))
        .where("CAST(value AS INT) >= 100")
        .writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("topic", topic)
        .option("reportPath", str(reports))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert values_in(kafka, topic) == Counter(range(100, 110))
    lines = [json.loads(line) for line in reports.read_text().splitlines()]
    assert sorted(line["rows"] for line in lines) == [0, 0, 10]


def test_micro_batches_are_written_by_workers_that_wrote_others_before(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, source: Path, tmp_path: Path
) -> None:
    """The partitioner is of the test: it notes which process it is called in."""
    topic, notes = new_topic(1), tmp_path / "processes"
    module = tmp_path / "noting_processes.py"
    module.write_text(
        "import os\n\n"
        "def note(topic, batch, partitions):\n"
        f"    with open({str(notes)!r}, 'a') as notes:\n"
        "        notes.write(f'{os.getpid()}\\n')\n"
        "    return [None] * batch.num_rows\n"
    )
    spark.sparkContext.addPyFile(str(module))
    batches = 7
    for number in range(batches):
        add_file(source, f"{number}.txt", range(number, number + 1))
    query = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(str(source))
        .writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("kafka.partitioner.class", "noting_processes.note")
        .option("topic", topic)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert values_in(kafka, topic) == Counter(range(batches))
    processes = notes.read_text().split()
    assert len(processes) == batches
    assert len(set(processes)) < batches, "every micro-batch had a worker of its own"


# Patches how a process finds the address of a host; a process of Spark imports it for its
# partitioner, before it connects.
RESOLVER = """
import socket
from pathlib import Path

resolve = socket.getaddrinfo

def moving(host, *args, **more):
    return resolve(Path({address!r}).read_text() if host == {name!r} else host, *args, **more)

socket.getaddrinfo = moving

def first(topic, batch, partitions):
    return [0] * batch.num_rows
"""


def test_a_stream_goes_on_where_the_name_of_its_broker_gets_another_address(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    """The brokers are scripted ones with an address each; only one of them is there at a time."""
    address, name = tmp_path / "address", f"{tmp_path.name.replace('_', '-')}.test"
    address.write_text("127.0.0.1")
    module = tmp_path / f"resolver_of_{tmp_path.name}.py"
    module.write_text(RESOLVER.format(address=str(address), name=name))
    spark.sparkContext.addPyFile(str(module))
    written = PartitionProduceResponse(index=0, error_code=0, base_offset=0)
    with ScriptedBroker() as old, ScriptedBroker(listens=("127.0.0.2", old.port)) as new:
        for broker in (old, new):
            broker.metadata = describe(old.port, "t")
            broker.metadata.brokers[0].host = name
            broker.speaks[DESCRIBE_CONFIGS] = None
            topic = TopicProduceResponse(name="t", partition_responses=[written])
            broker.produced = ProduceResponse(responses=[topic])
        query = (
            spark.readStream.format("text")
            .load(str(source))
            .writeStream.format("pykafka")
            .option("kafka.bootstrap.servers", f"{name}:{old.port}")
            .option("kafka.partitioner.class", f"{module.stem}.first")
            .option("kafka.enable.idempotence", "false")
            .option("kafka.delivery.timeout.ms", "60000")
            .option("topic", "t")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            add_file(source, "a.txt", range(3))
            query.processAllAvailable()
            assert (old.asked.count(PRODUCE), new.asked) == (1, [])
            address.write_text("127.0.0.2")
            old.stop()
            add_file(source, "b.txt", range(3, 6))
            query.processAllAvailable()
            assert new.asked.count(PRODUCE) == 1
        finally:
            query.stop()


def rate_stream(
    spark: SparkSession, kafka: KafkaCluster, topic: str, checkpoint: Path
) -> DataStreamWriter:
    """Make the writer of a stream of numbers that comes without end."""
    return (
        spark.readStream.format("rate")
        .option("rowsPerSecond", 100)
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
        .writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", str(checkpoint))
    )


@pytest.fixture
def registered(spark: SparkSession) -> Iterator[None]:
    """`register` was called, until the test ends."""
    with registered_for_now(spark):
        yield


@pytest.mark.usefixtures("registered")
def test_the_continuous_trigger_is_refused_at_the_start(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    writer = rate_stream(spark, kafka, "any", tmp_path / "checkpoint")
    with pytest.raises(ConfigException, match="the continuous trigger, Spark passes no rows"):
        writer.trigger(continuous="1 second").start()
    with pytest.raises(ConfigException, match="the continuous trigger, Spark passes no rows"):
        writer.format("console").trigger(continuous="1 second").start(format="PyKafka")
    assert not (tmp_path / "checkpoint").exists(), "the query began"


@pytest.mark.skipif(
    "realTime" not in signature(DataStreamWriter.trigger).parameters,
    reason="Spark 4.0 has no real-time trigger",
)
@pytest.mark.usefixtures("registered")
def test_the_real_time_trigger_is_refused_at_the_start(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    writer = rate_stream(spark, kafka, "any", tmp_path / "checkpoint").outputMode("update")
    with pytest.raises(ConfigException, match="does not support the real-time trigger for Python"):
        writer.trigger(realTime="5 minutes").start()  # type: ignore[call-overload]  # not in its overloads


@pytest.mark.usefixtures("registered")
def test_output_mode_update_is_refused_at_the_start_with_the_way_to_write_it(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    def writer() -> DataStreamWriter:
        return rate_stream(spark, kafka, "any", tmp_path / "checkpoint").trigger(availableNow=True)

    words = r'Write each micro-batch in foreachBatch: \.outputMode\("update"\)\.foreachBatch\('
    with pytest.raises(ConfigException, match=words):
        writer().outputMode("Update").start()
    with pytest.raises(ConfigException, match=words):
        writer().outputMode("append").start(outputMode="update")
    assert not (tmp_path / "checkpoint").exists(), "the query began"


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("by", ["partitionBy", "clusterBy"])
def test_a_layout_is_refused_at_the_start(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, by: str
) -> None:
    def writer() -> DataStreamWriter:
        return rate_stream(spark, kafka, "any", tmp_path / "checkpoint").trigger(availableNow=True)

    words = f"{by} is about files, and a topic has none: remove it"
    with pytest.raises(ConfigException, match=words):
        getattr(writer(), by)("value").start()
    with pytest.raises(ConfigException, match=words):
        getattr(writer(), by)(["value"]).format("console").start(format="PyKafka")
    if by == "partitionBy":
        with pytest.raises(ConfigException, match=words):
            writer().start(partitionBy="value")
        with pytest.raises(ConfigException, match=words):
            writer().start(None, None, "append", ["value"])
    assert not (tmp_path / "checkpoint").exists(), "the query began"


@pytest.mark.usefixtures("registered")
def test_a_layout_that_was_taken_back_is_none(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, source: Path, tmp_path: Path
) -> None:
    topic = new_topic(1)
    add_file(source, "a.txt", range(10))
    lines = spark.readStream.format("text").load(str(source)).writeStream.partitionBy("value")
    lines.option("kafka.bootstrap.servers", kafka.bootstrap).trigger(availableNow=True)
    lines.option("checkpointLocation", str(tmp_path / "checkpoint"))
    lines.start(format="pykafka", partitionBy=[], topic=topic).awaitTermination()
    assert values_in(kafka, topic) == Counter(range(10))


@pytest.mark.usefixtures("registered")
def test_a_stream_starts_in_a_thread_that_is_new(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, source: Path, tmp_path: Path
) -> None:
    topic = new_topic(1)
    add_file(source, "a.txt", range(10))
    writer = spark.readStream.format("text").load(str(source)).writeStream.format("pykafka")
    writer.option("kafka.bootstrap.servers", kafka.bootstrap).option("topic", topic)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    started: list[StreamingQuery] = []
    thread = threading.Thread(target=lambda: started.append(writer.start()))
    thread.start()
    thread.join()
    (query,) = started
    query.awaitTermination()
    assert values_in(kafka, topic) == Counter(range(10))


@pytest.mark.usefixtures("registered")
def test_other_triggers_and_other_formats_start_as_ever(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, source: Path, tmp_path: Path
) -> None:
    topic = new_topic(1)
    add_file(source, "a.txt", range(10))
    lines = spark.readStream.format("text").load(str(source))
    query = (
        lines.writeStream.trigger(continuous="1 second")
        .trigger(availableNow=True)
        .outputMode("update")
        .outputMode("append")
        .partitionBy("value")
        .partitionBy([])
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(format="pykafka", topic=topic)
    )
    query.awaitTermination()
    assert values_in(kafka, topic) == Counter(range(10))
    # A started query would have to be stopped at once, and Spark may then wait endlessly.
    with pytest.raises(PySparkException, match="Continuous processing does not support"):
        lines.writeStream.format("noop").trigger(continuous="1 second").start()
    files = lines.selectExpr("value", "value AS part").writeStream.format("parquet")
    files = files.option("checkpointLocation", str(tmp_path / "other")).trigger(availableNow=True)
    files.start(str(tmp_path / "files"), partitionBy="part").awaitTermination()
    assert (tmp_path / "files" / "part=7").is_dir()


def test_a_continuous_query_that_begins_nevertheless_has_no_epoch_done(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Without `register`, Spark starts the query and drops the rows: no epoch may be committed."""
    topic, checkpoint = new_topic(1), tmp_path / "checkpoint"
    assert spark._jvm is not None
    trigger = spark._jvm.org.apache.spark.sql.streaming.Trigger
    writer = rate_stream(spark, kafka, topic, checkpoint)
    writer._jwrite = writer._jwrite.trigger(trigger.Continuous("1 second"))
    query = writer.start()
    try:
        # Epochs are committed in their order: when this one is known, the first one was tried.
        deadline = time.monotonic() + 120
        while not (checkpoint / "offsets" / "2").exists():
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, "there were no epochs"
    finally:
        query.stop()
    assert not list((checkpoint / "commits").glob("[0-9]*")), "an epoch counts as written"
    assert read_with_confluent(kafka.bootstrap, topic) == []


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
    """Stream to an invalid target with max.block.ms of 2 s; return the error."""
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
