"""Keys and values in Avro, without a schema registry: every row is read back as it was written."""

from __future__ import annotations

import io
import json
from datetime import time
from pathlib import Path
from typing import Any, Final

import fastavro
import pytest
from conftest import NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql import types as spark_types
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent
from support.spark.rows_with_schema import (
    EMPTY,
    FULL,
    ORDER,
    TYPES,
    assert_in_java_s_partitions,
    expected_orders,
    order,
    values_by_key,
    write_over_connect,
    written_by_streams,
)
from support.spark.sink import save
from support.spark.spark_processes import ConnectServer

from spark_kafka_sink import atomic_layout, to_kafka
from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.serde.derived_avro import derive_schema
from spark_kafka_sink.spark.planning.spark_types import column_type

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

KEY: Final = {"type": "record", "name": "Id", "fields": [{"name": "id", "type": "long"}]}
OPTIONS: Final = {
    "keyFormat": "avro",
    "keySchema": json.dumps(KEY),
    "valueFormat": "avro",
    "valueSchema": json.dumps(ORDER),
}


def decoded(data: bytes | None, schema: object) -> Any:  # noqa: ANN401 - any value of Avro
    """Return what fastavro reads; None for a null."""
    if data is None:
        return None
    source = io.BytesIO(data)
    value = fastavro.schemaless_reader(source, fastavro.parse_schema(schema))  # type: ignore[arg-type]
    assert not source.read(1)
    return value


def orders(frame: DataFrame) -> DataFrame:
    """Return rows with keys and values that fit the schemas; rows 3, 13, … have no value."""
    return frame.select(F.struct("id").alias("key"), order())


def found_orders(kafka: KafkaCluster, topic: str) -> dict[int, Any]:
    """Return the values in a topic by id."""
    values = values_by_key(kafka, topic, lambda data: decoded(data, ORDER))
    return {decoded(key, KEY)["id"]: value for key, value in values.items()}


def test_whole_rows_of_every_type_are_read_back(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    full = {**FULL, "number": float("-inf")}
    frame = spark.createDataFrame([tuple(full.values()), tuple(EMPTY.values())], TYPES)
    save(to_kafka(frame, key="id", value="avro"), kafka.bootstrap, topic)
    schema = json.loads(derive_schema(column_type(frame.schema), "value", "Value"))
    found = values_by_key(kafka, topic, lambda data: decoded(data, schema))
    assert found == {b"1": full, b"2": EMPTY}


def test_types_that_need_a_given_schema_or_a_new_spark_are_read_back(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    columns: dict[str, tuple[str, object, object]] = {
        "span": ("INTERVAL '-1 02:03:04.000005' DAY TO SECOND", "long", -93_784_000_005),
        "none": ("NULL", ["null", "string"], None),
        "name": ("'\u00e9' COLLATE UTF8_LCASE", "string", "\u00e9"),
    }
    if hasattr(spark_types, "TimeType"):
        spark.conf.set("spark.sql.timeType.enabled", "true")
        kind = {"type": "long", "logicalType": "time-micros"}
        columns["at"] = ("TIME '01:02:03.5'", kind, time(1, 2, 3, 500_000))
    row = [F.expr(each).alias(name) for name, (each, _, _) in columns.items()]
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind} for name, (_, kind, _) in columns.items()],
    }
    topic = new_topic(1)
    frame = spark.range(1).select(F.struct(*row).alias("value"))
    save(frame, kafka.bootstrap, topic, valueFormat="avro", valueSchema=json.dumps(schema))
    (record,) = read_with_confluent(kafka.bootstrap, topic)
    assert decoded(record.value, schema) == {name: value for name, (*_, value) in columns.items()}


def test_keys_and_values_by_given_schemas(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    save(orders(spark.range(0, 200, 1, 3)), kafka.bootstrap, topic, **OPTIONS)
    assert found_orders(kafka, topic) == expected_orders(200)
    assert_in_java_s_partitions(read_with_confluent(kafka.bootstrap, topic), 3, prefix=0)


def test_a_stream_and_write_batch(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    spark.range(40).write.parquet(str(tmp_path / "rows"))
    stream = orders(spark.readStream.schema("id BIGINT").parquet(str(tmp_path / "rows")))
    topics = [new_topic(1), new_topic(1)]
    options = [
        {"kafka.bootstrap.servers": kafka.bootstrap, "topic": name, **OPTIONS} for name in topics
    ]
    for number, _ in enumerate(written_by_streams(stream, options, tmp_path)):
        assert found_orders(kafka, topics[number]) == expected_orders(40)


def test_rows_that_do_not_fit_are_bad_rows(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, dead, report = new_topic(1), new_topic(1), tmp_path / "report.json"
    color = F.when(F.col("id") == 7, "PINK").otherwise("RED").alias("color")
    frame = spark.range(0, 20, 1, 2).select(
        F.struct("id").alias("key"), F.struct("id", color).alias("value")
    )
    with pytest.raises(PySparkException, match=r"column value\.color has a text that"):
        save(frame, kafka.bootstrap, topic, **OPTIONS)
    letters = {"onError": "deadLetter", "deadLetterTopic": dead, "reportPath": str(report)}
    topic = new_topic(1)
    save(frame, kafka.bootstrap, topic, **OPTIONS, **letters)
    assert found_orders(kafka, topic).keys() == set(range(20)) - {7}
    (letter,) = read_with_confluent(kafka.bootstrap, dead)
    assert json.loads(letter.key or b"") == {"id": 7}
    assert json.loads(letter.value or b"") == {"id": 7, "color": "PINK"}
    assert dict(letter.headers)["pykafka.error.as.json"] == b"key, value"
    assert json.loads(report.read_text())["bad_rows"]["reasons"] == {"unknown_symbol": 1}


def test_spark_reads_every_value_of_a_dead_letter(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    kind = (
        "color STRING, nan DOUBLE, low FLOAT, span INTERVAL DAY TO SECOND, at TIMESTAMP, "
        "day DATE, old_day DATE, old TIMESTAMP, lowest TIMESTAMP, price DECIMAL(22,2), "
        "data BINARY, tags MAP<STRING, DOUBLE>"
    )
    row = spark.sql(
        "SELECT 'PINK' AS color, DOUBLE('NaN') AS nan, FLOAT('-Infinity') AS low, "
        "INTERVAL '-1 02:03:04.000005' DAY TO SECOND AS span, "
        "TIMESTAMP '1969-12-31 23:59:59.999999' AS at, DATE '0001-01-01' AS day, "
        "DATE '-0044-03-15' AS old_day, TIMESTAMP '-0002-11-27 01:02:03Z' AS old, "
        "timestamp_micros(-9223372036854775807L - 1L) AS lowest, "
        "12345678901234567890.12BD AS price, X'00FF' AS data, "
        "map('a', DOUBLE('Infinity')) AS tags"
    ).selectExpr("struct(*) AS value")
    types = {
        "color": {"type": "enum", "name": "Color", "symbols": ["RED"]},
        "nan": "double",
        "low": "float",
        "span": "long",
        "at": "long",
        "day": "int",
        "old_day": "int",
        "old": "long",
        "lowest": "long",
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 22, "scale": 2},
        "data": "bytes",
        "tags": {"type": "map", "values": "double"},
    }
    fields = [{"name": name, "type": each} for name, each in types.items()]
    schema = json.dumps({"type": "record", "name": "Row", "fields": fields})
    options = {"valueFormat": "avro", "valueSchema": schema, "onError": "deadLetter"}
    dead = new_topic(1)
    save(row, kafka.bootstrap, new_topic(1), deadLetterTopic=dead, **options)
    (letter,) = read_with_confluent(kafka.bootstrap, dead)
    text = spark.createDataFrame([((letter.value or b"").decode(),)], "value STRING")
    read = text.select(F.from_json("value", kind).alias("value"))
    # Python has no dates BC.
    value = F.col("value")
    shown = value.dropFields("old_day", "old", "lowest"), value.cast("string")
    assert repr(read.select(*shown).collect()) == repr(row.select(*shown).collect())


def test_what_does_not_fit_is_refused_before_any_task(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    frame = spark.range(1).selectExpr("struct(id) AS key", "struct(id) AS value")
    with pytest.raises((DataException, PySparkException), match=r"no column value\.color"):
        save(frame, kafka.bootstrap, new_topic(1), **OPTIONS)


def test_atomic_layout_refuses_encoded_keys_and_takes_encoded_values(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic}
    with pytest.raises(ConfigException, match="atomic_layout cannot be used with this keyFormat"):
        atomic_layout(orders(spark.range(3)), {**options, **OPTIONS})
    rows = spark.range(30).select("id", F.create_map(F.lit("k"), F.col("id")).alias("map"))
    frame = to_kafka(rows, value="avro")
    own = {**options, "kafka.partitioner.class": "os.path.join"}
    with pytest.raises(ConfigException, match=r"your kafka\.partitioner\.class and an encoded"):
        atomic_layout(frame, own)
    laid_out = atomic_layout(frame, options)
    save(laid_out, kafka.bootstrap, topic)
    schema = json.loads(derive_schema(column_type(rows.schema), "value", "Value"))
    found = [decoded(each.value, schema) for each in read_with_confluent(kafka.bootstrap, topic)]
    assert sorted(each["id"] for each in found) == list(range(30))
    assert all(each["map"] == {"k": each["id"]} for each in found)


@pytest.mark.long(reason="a whole program with Spark Connect, for what classic ones do above")
def test_over_spark_connect(
    kafka: KafkaCluster, new_topic: NewTopic, connect: ConnectServer
) -> None:
    topic = new_topic(1)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic, "recordName": "Row"}
    expected = write_over_connect(connect, "avro", options)
    schema = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}
    assert values_by_key(kafka, topic, lambda data: decoded(data, schema)) == expected
