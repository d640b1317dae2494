"""A pyarrow schema, with which Sail plans a write, is checked as Spark's own is."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.spark.planning.arrow_schema import as_spark_schema
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource

HEADER = pa.struct([("key", pa.string_view()), ("value", pa.binary())])
SCHEMA = pa.schema(
    [
        ("key", pa.string_view()),
        ("value", pa.binary_view()),
        ("headers", pa.list_(HEADER)),
        ("timestamp", pa.timestamp("us", tz="Etc/UTC")),
        pa.field("partition", pa.int32(), nullable=False),
    ]
)
OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}


def test_the_types_are_those_that_spark_would_pass() -> None:
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    assert as_spark_schema(SCHEMA) == StructType(
        [
            StructField("key", StringType()),
            StructField("value", BinaryType()),
            StructField("headers", ArrayType(header)),
            StructField("timestamp", TimestampType()),
            StructField("partition", IntegerType(), nullable=False),
        ]
    )


def test_columns_are_checked() -> None:
    with pytest.raises(DataException, match="value attribute unsupported type bigint"):
        KafkaDataSource(OPTIONS).writer(pa.schema([("value", pa.int64())]), overwrite=False)


def test_exactly_once_is_refused_before_the_brokers_are_asked() -> None:
    options = OPTIONS | {"exactlyOnce": "true", "txnAppId": "a", "txnVersion": "1"}
    with pytest.raises(ConfigException, match="does not pass the numbers of its tasks"):
        KafkaDataSource(options).writer(SCHEMA, overwrite=False)
