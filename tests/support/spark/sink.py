"""Write and read small DataFrames, as most tests of the data source do."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
