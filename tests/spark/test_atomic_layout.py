"""atomic_layout: the same rows in the same Kafka partitions, each partition from one task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import NewTopic, topic_maker
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.pandas import functions
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import IntegerType, StringType, StructType
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.scripted_broker import ScriptedBroker, describe
from support.oracles.readers import Record, add_partitions, read_with_confluent
from support.spark.sink import save
from support.spark.spark_processes import ConnectServer

from spark_kafka_sink import atomic_layout, write_batch
from spark_kafka_sink.errors import ConfigException, DataException, KafkaException
from spark_kafka_sink.spark.compat import _spark_hash
from spark_kafka_sink.spark.layout_mark import as_metadata
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

DESCRIBE_CONFIGS = 32

NUMBERED = (
    "CAST(id AS STRING) AS value",
    "IF(id % 50 = 49, '', concat('key-', repeat('x', id % 9), id % 50)) AS key",
)


def places(kafka: KafkaCluster, topic: str) -> dict[int, int]:
    """Return each row's partition; every row must be there once."""
    records = read_with_confluent(kafka.bootstrap, topic)
    assert not [value for value, times in Counter(map(number, records)).items() if times > 1]
    return {number(record): record.partition for record in records}


def number(record: Record) -> int:
    return int(record.value or b"")


def tasks(laid_out: DataFrame) -> dict[tuple[str | None, int | None], set[int]]:
    """Return the tasks that write each Kafka partition of the frame."""
    topic = F.col("topic") if "topic" in laid_out.columns else F.lit("the option's")
    found: dict[tuple[str | None, int | None], set[int]] = {}
    chosen = laid_out.select(topic, "partition", F.spark_partition_id()).distinct().collect()
    for name, partition, task in chosen:
        found.setdefault((name, partition), set()).add(task)
    return found


def assert_one_task_each(laid_out: DataFrame) -> None:
    by_partition = tasks(laid_out)
    assert all(len(each) == 1 for each in by_partition.values()), by_partition
    assert len(set.union(*by_partition.values())) == len(by_partition)


@pytest.mark.parametrize("kind", ["string", "binary"])
def test_keys_are_where_they_would_be_and_each_partition_has_one_task(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, kind: str
) -> None:
    """Spark ignores case in column names; the sink does not."""
    plain, laid = new_topic(7), new_topic(7)
    frame = spark.range(0, 1000, 1, 3).selectExpr(
        *NUMBERED,
        "IF(id % 10 = 0, id % 7, NULL) :: INT AS partition",
        "array(named_struct('key', 'h', 'value', 'x')) AS headers",
        "timestamp_millis(id) AS timestamp",
        "'not sent' AS `Value`",
    )
    frame = frame.withColumn("key", F.col("key").cast(kind))
    save(frame, kafka.bootstrap, plain)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": laid}
    laid_out = atomic_layout(frame, options)
    assert_one_task_each(laid_out)
    assert laid_out.rdd.getNumPartitions() == 7
    assert laid_out.drop("partition").exceptAll(frame.drop("partition")).isEmpty()
    save(laid_out, kafka.bootstrap, laid)
    assert places(kafka, laid) == places(kafka, plain)
    assert len(places(kafka, laid)) == 1000
    assert set(places(kafka, laid).values()) == set(range(7))


@pytest.mark.parametrize("given", [{}, {"kafka.partitioner.class": "roundrobin"}])
def test_rows_that_no_key_places_are_spread_whatever_their_order(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, given: dict[str, str]
) -> None:
    """So that a row is found in its place when Spark computes it again."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": new_topic(5), **given}
    key = "'same'" if given else "CAST(NULL AS STRING)"
    frame = spark.range(0, 2000, 1, 3).selectExpr(
        "encode(CAST(id AS STRING), 'utf-8') AS value", f"{key} AS key"
    )
    found = []
    for rows in (frame, frame.repartition(4, "value")):
        laid_out = atomic_layout(rows, options)
        assert_one_task_each(laid_out)
        # Spark 4.0 returns bytearrays.
        rows_of = laid_out.select("value", "partition").collect()
        found.append({(bytes(value), partition) for value, partition in rows_of})
    assert found[0] == found[1]
    counted = Counter(partition for _, partition in found[0])
    assert sorted(counted) == list(range(5))
    assert min(counted.values()) > 300


def test_topics_of_a_column_have_tasks_of_their_own(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    names = [new_topic(partitions) for partitions in (1, 2, 4)]
    plain = [new_topic(partitions) for partitions in (1, 2, 4)]
    of = "element_at(array('{}', '{}', '{}'), CAST(id % 3 AS INT) + 1) AS topic"
    rows = spark.range(0, 600, 1, 2)
    save(rows.selectExpr(*NUMBERED, of.format(*plain)), kafka.bootstrap)
    frame = rows.selectExpr(*NUMBERED, of.format(*names))
    options = {"kafka.bootstrap.servers": kafka.bootstrap}
    laid_out = atomic_layout(frame, options)
    assert_one_task_each(laid_out)
    assert len(tasks(laid_out)) == 7
    save(laid_out, kafka.bootstrap)
    for name, twin in zip(names, plain, strict=True):
        assert places(kafka, name) == places(kafka, twin)
        assert len(places(kafka, name)) == 200
    save(atomic_layout(frame.limit(0), options), kafka.bootstrap)


def test_a_spark_without_new_functions_has_the_same_layout(
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark 4.0 has neither `arrow_udf` nor `repartitionById`."""
    names = [new_topic(partitions) for partitions in (2, 5)]
    frame = spark.range(0, 400, 1, 2).selectExpr(
        *NUMBERED,
        f"IF(id % 3 = 0, '{names[0]}', '{names[1]}') AS topic",
        "array(named_struct('key', 'h', 'value', 'x')) AS headers",
        "'never null' AS `Value`",
    )
    options = {"kafka.bootstrap.servers": kafka.bootstrap}
    new = atomic_layout(frame, options)
    for cls in type(frame).__mro__:
        if "repartitionById" in vars(cls):
            monkeypatch.delattr(cls, "repartitionById")
    monkeypatch.delattr(functions, "arrow_udf", raising=False)
    old = atomic_layout(frame, options)
    assert_one_task_each(old)
    assert tasks(old) == tasks(new)
    assert old.columns == new.columns
    assert sorted(map(repr, old.collect())) == sorted(map(repr, new.collect()))
    of_hash = spark.range(1000).select(F.hash(F.col("id").cast("int"))).collect()
    assert [row[0] for row in of_hash] == _spark_hash(np.arange(1000, dtype=np.int32)).tolist()


def test_what_becomes_of_bad_rows_is_for_the_write_to_say(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, report = new_topic(3), tmp_path / "report.json"
    bad = f"element_at(array('{topic}', 'no topic!', '..', NULL, 'a\n'), CAST(id % 5 AS INT) + 1)"
    frame = spark.range(100).selectExpr(
        *NUMBERED,
        f"IF(id < 10, {bad}, '{topic}') AS topic",
        "element_at(array(CAST(NULL AS INT), 7, -1), CAST(id % 3 AS INT) + 1) AS partition",
    )
    options = {"kafka.bootstrap.servers": kafka.bootstrap}
    laid_out = atomic_layout(frame, options)
    assert laid_out.rdd.getNumPartitions() == 3
    save(laid_out, kafka.bootstrap, onError="skip", reportPath=str(report))
    good = {row for row in range(100) if row % 3 == 0 and (row >= 10 or row % 5 == 0)}
    assert places(kafka, topic).keys() == good
    assert json.loads(report.read_text())["bad_rows"]["rows"] == 100 - len(good)


def grown(topic: str, before: int, now: int) -> str:
    """Return the message on a layout for a topic that has more partitions now."""
    return (
        f"laid out by atomic_layout for {before} partitions of topic {topic}, which has {now} now"
    )


def test_rows_are_refused_that_were_laid_out_for_another_number_of_partitions(
    spark: SparkSession, guarded_kafka: KafkaCluster
) -> None:
    # It has one node: of several, some know later how many partitions there are.
    kafka = guarded_kafka
    topic, other = topic_maker(kafka)(3), topic_maker(kafka)(3)
    frame = spark.range(40).selectExpr(*NUMBERED)
    of_column = frame.withColumn("topic", F.lit(topic))
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic}
    by_option = atomic_layout(frame, options).sortWithinPartitions("value")
    by_column = atomic_layout(of_column, {"kafka.bootstrap.servers": kafka.bootstrap})
    write_batch(by_option, 0, options)
    rows = {row.value: row.partition for row in by_option.collect()}
    batch = pa.record_batch(
        {"value": list(rows), "partition": pa.array(list(rows.values()), pa.int32())}
    )
    planned = KafkaDataSource(options).streamWriter(by_option.schema, overwrite=False)
    add_partitions(kafka.bootstrap, topic, 5)
    # The driver's result is remembered; a task finds out by itself.
    again = KafkaDataSource(options).streamWriter(by_option.schema, overwrite=False)
    for writer in (planned, again):
        with pytest.raises(DataException, match=grown(topic, 3, 5)):
            writer.write(iter([batch]))
    for laid_out, topic_option in ((by_option, topic), (by_column, None)):
        with pytest.raises(PySparkException, match=grown(topic, 3, 5)):
            save(laid_out, kafka.bootstrap, topic_option)
    with pytest.raises((PySparkException, DataException), match=grown(topic, 3, 5)):
        write_batch(by_option, 1, options)
    expected = f"for topic {topic}, but the option topic is {other}: call"
    with pytest.raises(PySparkException, match=expected):
        save(by_option, kafka.bootstrap, other)
    assert len(read_with_confluent(kafka.bootstrap, topic)) == 40
    laid_out_again = atomic_layout(frame, options)
    write_batch(laid_out_again, 2, options)
    # A partition column without a layout is the user's own.
    save(laid_out_again.withColumn("partition", F.lit(4)), kafka.bootstrap, topic)
    assert len(read_with_confluent(kafka.bootstrap, topic)) == 120


def test_a_micro_batch_that_was_laid_out_for_fewer_partitions_is_refused(
    spark: SparkSession, guarded_kafka: KafkaCluster, tmp_path: Path
) -> None:
    kafka, topic = guarded_kafka, topic_maker(guarded_kafka)(3)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic}
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("".join(f"{line}\n" for line in range(40)))

    def write(batch: DataFrame, batch_id: int) -> None:
        write_batch(atomic_layout(batch, options), batch_id, options)
        laid_out = atomic_layout(batch, options)
        add_partitions(kafka.bootstrap, topic, 5)
        laid_out.write.format("pykafka").mode("append").options(**options).save()

    writer = spark.readStream.format("text").load(str(source)).writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match=grown(topic, 3, 5)):
        query.awaitTermination()
    assert len(read_with_confluent(kafka.bootstrap, topic)) == 40


def test_rows_for_a_topic_that_was_not_laid_out_are_refused(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic, other, third = new_topic(2), new_topic(3), new_topic(3)
    options = {"kafka.bootstrap.servers": kafka.bootstrap}
    rows = spark.range(10).selectExpr(*NUMBERED)
    first, second = (
        atomic_layout(rows.withColumn("topic", F.lit(name)), options) for name in (topic, other)
    )
    said = f"laid out by atomic_layout for topic {topic}, and a row's topic is {other}: call atomic"
    for frame in (first.union(second), first.withColumn("topic", F.lit(other))):
        with pytest.raises(PySparkException, match=said):
            save(frame, kafka.bootstrap)
    assert read_with_confluent(kafka.bootstrap, other) == []
    moved = first.withColumn("topic", F.lit(other))
    for frame in (first, moved, first.union(second)):
        with pytest.raises(DataException, match=f"from an earlier atomic_layout for topic {topic}"):
            atomic_layout(frame, options)
    # Its rows are where rows are that were never laid out for another topic.
    save(atomic_layout(moved.drop("partition"), options), kafka.bootstrap)
    placed = {row.value: row.partition for row in read_with_confluent(kafka.bootstrap, other)}
    save(rows, kafka.bootstrap, third)
    without = {row.value: row.partition for row in read_with_confluent(kafka.bootstrap, third)}
    assert placed == without
    assert len(placed) == 10
    # Other bad names are bad rows.
    save(first.withColumn("topic", F.lit("not/there")), kafka.bootstrap, onError="skip")


@pytest.mark.parametrize("by_option", [True, False])
def test_an_outdated_layout_is_refused_on_the_driver(*, by_option: bool) -> None:
    topic = {"topic": "t"} if by_option else {}
    schema = StructType().add("value", StringType()).add("topic", StringType())
    schema = schema.add("partition", IntegerType(), metadata=as_metadata({"t": 3}))
    with ScriptedBroker() as broker:
        broker.metadata = describe(broker.port, "t")
        broker.speaks[DESCRIBE_CONFIGS] = None
        options = {"kafka.bootstrap.servers": broker.address, **topic}
        with pytest.raises(DataException, match=grown("t", 3, 1)):
            KafkaDataSource(options).writer(schema, overwrite=False)


def test_a_partitioner_of_the_user_s_own_is_asked(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    module = tmp_path / "halls_of_this_test.py"
    module.write_text(
        "def by_hall(topic, batch, partitions):\n"
        "    assert topic.startswith('topic-'), topic\n"
        "    halls = batch.column('hall').to_pylist()\n"
        "    return [None if hall is None else partitions - 1 - hall for hall in halls]\n"
    )
    spark.sparkContext.addPyFile(str(module))
    frame = spark.range(0, 400, 1, 2).selectExpr(
        *NUMBERED,
        "CASE WHEN id % 4 = 0 THEN 1 END AS partition",
        "CAST(CASE WHEN id % 4 < 3 THEN id % 5 END AS INT) AS hall",
        f"IF(id % 2 = 0, '{new_topic(5)}', '{new_topic(6)}') AS topic",
    )
    given = {"kafka.partitioner.class": "halls_of_this_test.by_hall"}
    for topic in (None, new_topic(5)):
        chosen = {} if topic is None else {"topic": topic}
        options = {"kafka.bootstrap.servers": kafka.bootstrap, **given, **chosen}
        laid_out = atomic_layout(frame, options)
        for row in laid_out.where("hall IS NOT NULL").collect():
            count = 5 if topic is not None or int(row["value"]) % 2 == 0 else 6
            expected = 1 if int(row["value"]) % 4 == 0 else count - 1 - row["hall"]
            assert row["partition"] == expected, row
        laid_out.write.format("pykafka").mode("append").options(**options).save()
        if topic is not None:
            plain = new_topic(5)
            save(
                frame,
                kafka.bootstrap,
                plain,
                kafka_partitioner_class=given["kafka.partitioner.class"],
            )
            assert places(kafka, topic) == places(kafka, plain)


def test_a_stream_is_laid_out(
    spark: SparkSession, guarded_kafka: KafkaCluster, tmp_path: Path
) -> None:
    kafka, topic = guarded_kafka, topic_maker(guarded_kafka)(3)
    source, report = tmp_path / "source", tmp_path / "report.json"
    source.mkdir()
    (source / "a.txt").write_text("".join(f"{line}\n" for line in range(300)))
    stream = spark.readStream.format("text").load(str(source))
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic}
    laid_out = atomic_layout(stream, options)

    def start() -> StreamingQuery:
        writer = laid_out.writeStream.format("pykafka").options(**options)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.option("reportPath", str(report)).trigger(availableNow=True).start()

    start().awaitTermination()
    assert json.loads(report.read_text())["tasks"] == 3
    assert places(kafka, topic) == chosen(spark.read.text(str(source)), options)
    add_partitions(kafka.bootstrap, topic, 5)
    (source / "b.txt").write_text("300\n")
    with pytest.raises((PySparkException, DataException), match=grown(topic, 3, 5)):
        start().awaitTermination()
    assert len(places(kafka, topic)) == 300
    del options["topic"]
    with pytest.raises(ConfigException, match="call atomic_layout in foreachBatch"):
        atomic_layout(stream.withColumn("topic", F.lit(topic)), options)


def chosen(frame: DataFrame, options: dict[str, str]) -> dict[int, int]:
    """Return the partitions of rows without keys, which only the layout spreads like this."""
    rows = atomic_layout(frame, options).select("value", "partition").collect()
    return {int(value): partition for value, partition in rows}


def test_what_is_wrong_is_said_at_once(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    frame = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": "not-there"}
    with pytest.raises(DataException, match=r"^atomic_layout: df is of type list: expected"):
        atomic_layout([], options)  # type: ignore[arg-type]
    with pytest.raises(ConfigException, match="did you mean topic"):
        atomic_layout(frame, {"kafka.bootstrap.servers": kafka.bootstrap, "topc": "t"})
    with pytest.raises(DataException, match="value attribute unsupported type"):
        atomic_layout(frame.selectExpr("CAST(value AS INT) AS value"), options)
    with pytest.raises(ConfigException, match="cannot be imported"):
        atomic_layout(frame, {**options, "kafka.partitioner.class": "no_such_module.any"})
    with pytest.raises(KafkaException, match="not-there"):
        atomic_layout(frame, {**options, "kafka.max.block.ms": "3000"})
    made = f"{new_topic(1)}-made"
    creating = {**options, "topic": made, "createTopics": "true", "topic.partitions": "4"}
    assert atomic_layout(frame, creating).rdd.getNumPartitions() == 4


_SCRIPT = """
import sys
from pyspark.sql import SparkSession
from spark_kafka_sink import atomic_layout
from support.oracles.readers import add_partitions
remote, bootstrap, topic = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
frame = spark.range(300).selectExpr("CAST(id AS STRING) AS value", f"'{topic}' AS topic")
options = {"kafka.bootstrap.servers": bootstrap}
writer = atomic_layout(frame, options).write.format("pykafka").mode("append").options(**options)
writer.save()
add_partitions(bootstrap, topic, 9)
try:
    writer.save()
except Exception as error:
    print(error)
spark.stop()
"""


@pytest.mark.long(reason="a whole program with Spark Connect, for what classic ones do above")
def test_a_frame_of_spark_connect_is_laid_out(
    spark: SparkSession, guarded_kafka: KafkaCluster, connect: ConnectServer, tmp_path: Path
) -> None:
    kafka, topic = guarded_kafka, topic_maker(guarded_kafka)(4)
    frame = spark.range(300).selectExpr("CAST(id AS STRING) AS value")
    expected = chosen(frame, {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic})
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    tests = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])
    said = subprocess.run(
        [sys.executable, script, connect.remote, kafka.bootstrap, topic],
        check=True,
        timeout=200,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    assert grown(topic, 4, 9) in said
    assert places(kafka, topic) == expected
