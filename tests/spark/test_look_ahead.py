"""Errors of a write are found before Spark begins its work, including shuffles."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent

from spark_kafka_sink import write_batch
from spark_kafka_sink.errors import ConfigException, DataException, TimeoutException

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def marking(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow that creates a file in a folder when a task starts."""
    path = str(folder / "mark")

    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with open(path, "w"):  # noqa: PTH123 - it runs where only Python is installed
            pass
        yield from batches

    return mark


def shuffled(spark: SparkSession, folder: Path) -> DataFrame:
    """Make a frame that Spark shuffles; the tasks before the shuffle leave a mark."""
    marked = spark.range(0, 10, 1, 3).mapInArrow(marking(folder), "id long")
    return marked.groupBy("id").count().selectExpr("CAST(id AS STRING) AS value", "id AS number")


def test_write_batch_refuses_before_a_shuffle(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    frame, topic = shuffled(spark, tmp_path), new_topic(1)
    right = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic}
    with pytest.raises(ConfigException, match="did you mean topic"):
        write_batch(frame, 0, right | {"topc": "any"})
    with pytest.raises(DataException, match="value attribute unsupported type bigint"):
        write_batch(frame.selectExpr("number AS value"), 0, right)
    with pytest.raises(TimeoutException, match="not-there"):
        write_batch(frame, 0, right | {"topic": "not-there", "kafka.max.block.ms": "3000"})
    assert not (tmp_path / "mark").exists(), "tasks ran for a write that could not be"
    odd: dict[str, Any] = {"createTopics": True, "topic.partitions": 0}
    with pytest.raises(ConfigException, match=r"topic\.partitions is '0'"):
        write_batch(frame, 0, right | odd)
    odd = {"createTopics": True, "topic.partitions": 1, "kafka.acks": -1, "onError": "fail"}
    write_batch(frame, 0, right | odd)
    assert (tmp_path / "mark").exists()
    assert len(read_with_confluent(kafka.bootstrap, topic)) == 10


def test_without_register_spark_shuffles_first_and_no_row_is_sent(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic, "topc": "any"}
    writer = shuffled(spark, tmp_path).write.format("pykafka").mode("append").options(**options)
    with pytest.raises(PySparkException, match="did you mean topic"):
        writer.save()
    assert (tmp_path / "mark").exists(), (
        "Spark asks earlier than it did: say so in docs/explanation/checks.md"
    )
    assert read_with_confluent(kafka.bootstrap, topic) == []


_SCRIPT = '''
"""Tries after register(spark) what cannot be written; no task may have run by then."""
import os
import sys

from pyspark.sql import SparkSession

from spark_kafka_sink import register
from spark_kafka_sink.errors import KafkaException

remote, bootstrap, topic, mark = sys.argv[1:]
if remote == "classic":
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
else:
    builder = SparkSession.builder.remote(remote)
spark = builder.getOrCreate()
source = mark + ".source"
os.mkdir(source)
with open(source + "/rows.txt", "w") as rows:
    rows.write("1\\n2\\n")
lines = spark.readStream.text(source)
older = lines.writeStream.option("kafka.bootstrap.servers", bootstrap)
register(spark)


def marking(batches):
    with open(mark, "w"):
        pass
    yield from batches


marked = spark.range(0, 10, 1, 3).mapInArrow(marking, "id long")
frame = marked.groupBy("id").count().selectExpr("CAST(id AS STRING) AS value", "id AS number")
# Of max.block.ms, what is not there takes all.
options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.max.block.ms": "3000"}
# Over Connect names in other letters are other options until they get to the server.
again = "KAFKA.Acks" if remote == "classic" else "kafka.acks"


def writer(frame=frame):
    return frame.write.format("pykafka").options(**options)


stream = lines.mapInArrow(marking, "value string").repartition(2)


def streaming(frame=stream, writer=None):
    if writer is None:
        writer = frame.writeStream.options(**options)
    writer = writer.format("pykafka").option("topic", topic)
    return writer.option("checkpointLocation", f"{mark}.{id(writer)}").trigger(availableNow=True)


def refused(save, words):
    try:
        save()
    except KafkaException as error:
        assert words in str(error), str(error)
    else:
        raise AssertionError("not refused")
    assert not os.path.exists(mark), f"tasks ran before it said: {words}"


refused(writer().option("topc", "any").save, "did you mean topic")
refused(writer().options(Topc="any").mode("append").save, "did you mean topic")
refused(lambda: writer().save(topc="any"), "did you mean topic")
refused(writer(frame.selectExpr("number AS value")).save, "value attribute unsupported type")
refused(writer().option("kafka.acks", "some").option(again, "none").save, "acks is 'none'")
refused(writer().option("createTopics", "maybe").save, "createTopics is 'maybe'")
if remote == "classic":
    refused(writer().option("topic", "not-there").save, "not-there")
    refused(lambda: streaming().start(topic="not-there"), "not-there")
refused(streaming().option("topc", "any").start, "did you mean topic")
refused(lambda: streaming().start(None, topc="any"), "did you mean topic")
refused(streaming(stream.selectExpr("1 AS value")).start, "value attribute unsupported type")
streaming(writer=older).start().awaitTermination()
assert not os.path.exists(mark)
streaming().start().awaitTermination()
assert os.path.exists(mark)
# Spark gives the rows to the function, whatever format is named before it.
own = streaming(stream.selectExpr("1 AS wert")).option("topc", "any")
own.foreachBatch(lambda batch, _: None).start().awaitTermination()
os.remove(mark)
if remote == "classic":  # there, the last one counts
    refused(own.format("pykafka").start, "did you mean topic")
right = writer(frame.selectExpr("*", "1 AS unsent")).option("kafka.acks", "some")
right.option(again, -1).option("createTopics", True).save()
try:
    frame.write.format("json").options(writer="a").save(mark + ".json", writer="b")
except TypeError as error:
    raise AssertionError("an option of another format was taken for an argument") from error
assert os.path.exists(mark)
files = lines.writeStream.format("json").option("checkpointLocation", mark + ".other")
files.trigger(availableNow=True).start(mark + ".lines", writer="a").awaitTermination()
spark.stop()
print("all tried")
'''


@pytest.mark.parametrize(
    "kind",
    [
        "classic",
        pytest.param("connect", marks=pytest.mark.long(reason="the whole script once more")),
    ],
)
def test_register_has_save_and_start_refuse_before_a_shuffle(
    kind: str,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    topic = new_topic(1)
    script, mark = tmp_path / "script.py", tmp_path / "mark"
    script.write_text(_SCRIPT)
    remote = "classic" if kind == "classic" else request.getfixturevalue("connect").remote
    done = subprocess.run(
        [sys.executable, script, remote, kafka.bootstrap, topic, mark],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.stdout.endswith("all tried\n"), done.stderr[:5000]
    if remote == "classic":
        assert done.stderr.count("pykafka does not send the columns ") == 1
    assert len(read_with_confluent(kafka.bootstrap, topic)) == 2 + 2 + 10
