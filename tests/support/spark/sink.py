"""Write and read small DataFrames, as most tests of the data source do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import DataFrameWriter
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_kafka_sink.spark.driver.register import register
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from support.oracles.readers import read_with_confluent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "topic STRING, partition INT, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, timestamp TIMESTAMP"
)


def plan(frame: DataFrame, bootstrap: str, topic: str, **options: str) -> None:
    """Plan an append of a DataFrame as Spark does, but in this process; options as for `save`."""
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    given |= {name.replace("_", "."): value for name, value in options.items()}
    KafkaDataSource(given).writer(frame.schema, overwrite=False)


def save(frame: DataFrame, bootstrap: str, topic: str | None = None, **options: str) -> None:
    """Append a DataFrame; options by name with _ instead of the dot."""
    writer = (
        frame.write.format("pykafka").mode("append").option("kafka.bootstrap.servers", bootstrap)
    )
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.options(**{name.replace("_", "."): value for name, value in options.items()}).save()


@contextmanager
def registered_for_now(spark: SparkSession) -> Iterator[None]:
    """Call `register`, which acts on Spark's classes: here, until the block ends."""
    classes = [DataFrameWriter, DataStreamWriter, StreamingQuery, StreamingQueryManager]
    before = [dict(vars(each)) for each in classes]
    register(spark)
    try:
        yield
    finally:
        for each, attributes in zip(classes, before, strict=True):
            for name, attribute in dict(vars(each)).items():
                if name not in attributes:
                    delattr(each, name)
                elif attribute is not attributes[name]:
                    setattr(each, name, attributes[name])


def read_frame(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Read a topic as a DataFrame; a record without headers has null headers."""
    from datetime import UTC, datetime

    rows = [
        (
            topic,
            record.partition,
            record.key,
            record.value,
            list(record.headers) or None,
            datetime.fromtimestamp(record.timestamp_ms / 1000, UTC),
        )
        for record in read_with_confluent(bootstrap, topic)
    ]
    return spark.createDataFrame(rows, SCHEMA)
