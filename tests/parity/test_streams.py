"""Streams: the conformance cases of Spark's own sink, with this one and with that one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from conftest import NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from support.brokers import fetch_kafka
from support.oracles.readers import read_with_confluent
from support.spark.peer import SOON, Sink

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

Start = Callable[..., StreamingQuery]
Begin = Callable[[DataStreamWriter], StreamingQuery]


@pytest.fixture
def start(spark: SparkSession, sink: Sink, tmp_path: Path) -> Start:
    """Starts a stream over two files of five lines, a micro-batch each, and waits for its end."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(2):
        lines = range(number * 5, number * 5 + 5)
        file = source / f"{number}.txt"
        file.write_text("".join(f"{line}\n" for line in lines))
        os.utime(file, (number + 1, number + 1))  # the older one is the first micro-batch

    def run(
        *columns: str,
        topic: str | None = None,
        mode: str = "append",
        grouped: bool = False,
        options: Mapping[str, str] | None = None,
        begin: Begin = DataStreamWriter.start,
        checkpoint: str = "checkpoint",
    ) -> StreamingQuery:
        frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source))
        frame = frame.groupBy("value").count() if grouped else frame
        query = begin(
            frame.selectExpr(*columns)
            .writeStream.format(sink.format)
            .outputMode(mode)
            .options(**sink.options(topic, options or {}))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
        )
        query.awaitTermination()
        return query

    return run


def is_complete(sink: Sink, topic: str) -> bool:
    found = Counter(int(r.value or b"") for r in read_with_confluent(sink.bootstrap, topic))
    return found == Counter(range(10))


def test_the_topic_comes_from_the_column(start: Start, sink: Sink, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    start(f"'{topic}' AS topic", "value")
    assert is_complete(sink, topic)


def test_the_topic_comes_from_the_option(start: Start, sink: Sink, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    query = start("value", topic=topic)
    assert is_complete(sink, topic)
    assert [progress["sink"]["numOutputRows"] for progress in query.recentProgress] == [5, 5]


def test_the_option_wins_over_the_column(start: Start, sink: Sink, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    start("'foo' AS topic", "value", topic=topic)
    assert is_complete(sink, topic)


@pytest.mark.parametrize(
    "begin",
    [
        lambda writer: writer.queryName("orders").start(),
        lambda writer: writer.start(queryName="orders"),
    ],
    ids=["by-its-method", "by-start"],
)
def test_a_query_may_have_a_name(
    start: Start, sink: Sink, new_topic: NewTopic, begin: Begin
) -> None:
    topic = new_topic(3)
    query = start("value", topic=topic, begin=begin)
    assert query.name == "orders"
    assert is_complete(sink, topic)


@pytest.mark.parametrize("by", ["partitionBy", "clusterBy"])
def test_a_layout_of_a_stream_is_ignored_unless_register_was_called(
    start: Start, sink: Sink, new_topic: NewTopic, by: str
) -> None:
    topic = new_topic(3)
    start("value", topic=topic, begin=lambda writer: getattr(writer, by)("value").start())
    assert is_complete(sink, topic)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["value AS key", "value"], "topic option required when no 'topic' attribute is present"),
        (["'{topic}' AS topic", "value AS key"], "required attribute 'value' not found"),
        (["CAST(value AS INT) AS topic", "value"], "topic must be a(n) string"),
        (["'{topic}' AS topic", "CAST(value AS INT) AS value"],
         "value must be a(n) string or binary"),
        (["'{topic}' AS topic", "CAST(value AS INT) AS key", "value"],
         "key must be a(n) string or binary"),
        (["'{topic}' AS topic", "value AS partition", "value"], "partition must be a(n) int"),
    ],
)  # fmt: skip
def test_wrong_columns_are_refused(
    start: Start, sink: Sink, untouched: str, columns: list[str], message: str
) -> None:
    with pytest.raises(StreamingQueryException) as refused:
        start(*(column.format(topic=untouched) for column in columns))
    assert message in str(refused.value).lower()
    assert read_with_confluent(sink.bootstrap, untouched) == []


def test_a_year_month_interval_is_ignored_by_spark_s_own_sink_alone(
    start: Start, sink: Sink, new_topic: NewTopic, untouched: str
) -> None:
    columns = ("value", "INTERVAL '1' YEAR AS other", "INTERVAL '1' DAY AS another")
    if sink.is_ours:
        with pytest.raises(StreamingQueryException, match="column other is of type interval year"):
            start(*columns, topic=untouched)
        assert read_with_confluent(sink.bootstrap, untouched) == []
        columns = ("value", "array(INTERVAL '1' YEAR) AS other", columns[-1])
    topic = new_topic(3)
    start(*columns, topic=topic, checkpoint="again")
    assert is_complete(sink, topic)


@pytest.mark.parametrize("name", ["key.serializer", "value.serializer"])
def test_serializers_are_refused(start: Start, sink: Sink, untouched: str, name: str) -> None:
    # Spark's own sink looks at them before there is a query.
    with pytest.raises(Exception, match=f"Kafka option '{name}' is not supported"):
        start("value", topic=untouched, options={f"kafka.{name}": "foo"})
    assert read_with_confluent(sink.bootstrap, untouched) == []


def test_a_topic_that_is_not_there_fails_the_query(start: Start, sink: Sink) -> None:
    with pytest.raises(StreamingQueryException) as failed:
        start("value", topic="nope", options=SOON)
    assert "Topic nope not present in metadata" in str(failed.value)


def test_a_topic_of_a_column_that_is_not_there_fails_the_query(start: Start, sink: Sink) -> None:
    with pytest.raises(StreamingQueryException) as failed:
        start("'nope' AS topic", "value", options=SOON)
    assert "Topic nope not present in metadata" in str(failed.value)


def test_update_mode_is_spark_s_own_sink_s_alone(
    start: Start, sink: Sink, new_topic: NewTopic, untouched: str
) -> None:
    if sink.is_ours:
        with pytest.raises(Exception, match="pykafka does not support Update mode"):
            start("value", topic=untouched, mode="update")
        assert read_with_confluent(sink.bootstrap, untouched) == []
    else:
        topic = new_topic(3)
        start("value", topic=topic, mode="update")
        assert is_complete(sink, topic)


def test_async_progress_tracking_is_spark_s_own_sink_s_alone(
    start: Start, sink: Sink, new_topic: NewTopic
) -> None:
    def all_there_is(writer: DataStreamWriter) -> StreamingQuery:
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return query

    topic = new_topic(3)
    enabled = {"asyncProgressTrackingEnabled": "true"}
    interval = {"asyncProgressTrackingCheckpointIntervalMs": "100"}
    if sink.is_ours:
        words = "Sink pykafka does not support async progress tracking"
        with pytest.raises(Exception, match=words):
            start("value", topic=topic, options=enabled | interval, begin=all_there_is)
        assert read_with_confluent(sink.bootstrap, topic) == []
        enabled = {"asyncProgressTrackingEnabled": "false"}
    options = enabled | interval
    start("value", topic=topic, options=options, begin=all_there_is, checkpoint="again")
    assert is_complete(sink, topic)


@pytest.mark.skipif(not fetch_kafka.takes_jvm_sink(), reason="no source for this trigger")
def test_the_real_time_trigger_is_spark_s_own_sink_s_alone(
    spark: SparkSession, sink: Sink, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, topic = new_topic(1), new_topic(1)
    sink.append(spark.sql("SELECT 'v' AS value"), source)
    writer = (
        spark.readStream.format("kafka")
        .options(**sink.options(None, {"subscribe": source, "startingOffsets": "earliest"}))
        .load()
        .writeStream.format(sink.format)
        .options(**sink.options(topic, {}))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .outputMode("update")
        .trigger(realTime="5 minutes")  # type: ignore[call-overload]  # not in its overloads
    )
    if sink.is_ours:
        with pytest.raises(Exception, match=r"OPERATOR_OR_SINK_NOT_IN_ALLOWLIST"):
            writer.start().awaitTermination()
        assert read_with_confluent(sink.bootstrap, topic) == []
    else:
        query = writer.start()
        try:
            while not (found := read_with_confluent(sink.bootstrap, topic)):
                assert query.isActive, query.exception()
        finally:
            query.stop()
        assert [r.value for r in found] == [b"v"]


def test_complete_mode_appends_every_result_again(
    spark: SparkSession, start: Start, sink: Sink, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    shuffled = spark.conf.get("spark.sql.shuffle.partitions")
    assert shuffled is not None
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        start("value", topic=topic, mode="complete", grouped=True)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", shuffled)
    found = Counter(int(r.value or b"") for r in read_with_confluent(sink.bootstrap, topic))
    assert found == Counter(range(10)) + Counter(range(5))
