"""Save modes and other settings of a writer, with this sink and with Spark's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import NewTopic
from pyspark.sql import DataFrameWriter, SparkSession
from support.oracles.readers import read_with_confluent
from support.spark.peer import WRITE_FAILED, Sink

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_V1_SOURCES = "spark.sql.sources.useV1SourceList"


@pytest.fixture(params=["V1", "V2"])
def path(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Both ways in which Spark may run its own sink: a setting moves it from the old to the new."""
    if request.param == "V2":
        spark.conf.set(_V1_SOURCES, "")
    yield request.param
    spark.conf.unset(_V1_SOURCES)


def writer(spark: SparkSession, sink: Sink, topic: str) -> DataFrameWriter:
    return sink.writer(spark.sql("SELECT 'v' AS value, 1 AS other"), topic, {})


def is_written(sink: Sink, topic: str) -> bool:
    """Whether the only row is there; False if there is none."""
    values = [record.value for record in read_with_confluent(sink.bootstrap, topic)]
    assert values in ([], [b"v"])
    return bool(values)


def test_append_appends(spark: SparkSession, sink: Sink, new_topic: NewTopic, path: str) -> None:
    topic = new_topic(1)
    writer(spark, sink, topic).mode("append").save()
    assert is_written(sink, topic)


@pytest.mark.parametrize("mode", ["overwrite", "ignore"])
def test_modes_that_a_topic_cannot_have_are_refused(
    spark: SparkSession, sink: Sink, untouched: str, path: str, mode: str
) -> None:
    words = ["Save mode", "not allowed for Kafka", "cannot be written in the", "support truncate"]
    with pytest.raises(WRITE_FAILED) as refused:
        writer(spark, sink, untouched).mode(mode).save()
    assert any(each in str(refused.value) for each in words)
    assert not is_written(sink, untouched)


@pytest.mark.parametrize("mode", [None, "error", "errorifexists"])
def test_the_default_mode_needs_register_here_and_the_v1_path_there(
    spark: SparkSession, sink: Sink, new_topic: NewTopic, path: str, mode: str | None
) -> None:
    topic = new_topic(1)
    bare = writer(spark, sink, topic).mode(mode)
    if sink.is_ours or path == "V2":
        with pytest.raises(WRITE_FAILED, match='cannot be written in the "ErrorIfExists" mode'):
            bare.save()
    else:
        bare.save()
    assert is_written(sink, topic) == (not sink.is_ours and path == "V1")


@pytest.mark.parametrize("by", ["partitionBy", "clusterBy"])
def test_a_layout_is_refused_here_and_ignored_by_the_v1_path_there(
    spark: SparkSession, sink: Sink, new_topic: NewTopic, path: str, by: str
) -> None:
    topic = new_topic(1)
    laid_out = getattr(writer(spark, sink, topic).mode("append"), by)("other")
    if sink.is_ours or path == "V2":
        with pytest.raises(WRITE_FAILED, match="partitioning or clustering columns do not match"):
            laid_out.save()
    else:
        laid_out.save()
    assert is_written(sink, topic) == (not sink.is_ours and path == "V1")


def test_buckets_and_their_order_are_refused(
    spark: SparkSession, sink: Sink, untouched: str
) -> None:
    append = writer(spark, sink, untouched).mode("append")
    with pytest.raises(WRITE_FAILED, match="does not support bucketBy"):
        append.bucketBy(2, "other").save()
    with pytest.raises(WRITE_FAILED, match="does not support bucketBy"):
        append.bucketBy(2, "other").sortBy("other").save()
    with pytest.raises(WRITE_FAILED, match="sortBy must be used together with bucketBy"):
        writer(spark, sink, untouched).mode("append").sortBy("other").save()
    assert not is_written(sink, untouched)


def test_a_path_is_ignored(spark: SparkSession, sink: Sink, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    writer(spark, sink, topic).mode("append").save("somewhere")
    assert is_written(sink, topic)
