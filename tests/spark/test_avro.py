"""Keys and values in Avro, without a schema registry: every row is read back as it was written."""

from __future__ import annotations

import functools
import io
import json
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import fastavro
import pytest
from conftest import NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent
from support.spark.sink import save
from support.spark.spark_processes import ConnectServer

from spark_kafka_sink import atomic_layout, to_kafka, write_batch
from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.serde.avro_schema import derive_schema
from spark_kafka_sink.spark.planning.spark_types import column_type

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

SCHEMA: Final = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
        {"name": "source", "type": "string", "default": "spark"},
        {"name": "id", "type": ["long", "null"]},
    ],
}
KEY: Final = {"type": "record", "name": "Id", "fields": [{"name": "id", "type": "long"}]}
OPTIONS: Final = {
    "keyFormat": "avro",
    "keySchema": json.dumps(KEY),
    "valueFormat": "avro",
    "valueSchema": json.dumps(SCHEMA),
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
    return frame.select(
        F.struct("id").alias("key"),
        F.when(
            F.col("id") % 10 != 3,
            F.struct("id", F.when(F.col("id") % 2 == 0, "RED").otherwise("BLUE").alias("color")),
        ).alias("value"),
    )


def found_orders(kafka: KafkaCluster, topic: str) -> dict[int, Any]:
    """Return the values in a topic by id."""
    return {
        decoded(each.key, KEY)["id"]: decoded(each.value, SCHEMA)
        for each in read_with_confluent(kafka.bootstrap, topic)
    }


def expected_orders(count: int) -> dict[int, Any]:
    """Return the values that `orders` has made."""
    return {
        number: None
        if number % 10 == 3
        else {"color": "BLUE" if number % 2 else "RED", "source": "spark", "id": number}
        for number in range(count)
    }


def test_whole_rows_of_every_type_are_read_back(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    full = {
        "id": 1,
        "ok": True,
        "text": "é😀" * 20_000,
        "data": b"\xff\x00",
        "amount": Decimal("-12345678901234567890.123456789012345678"),
        "day": date(1903, 5, 6),
        "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        "local": datetime.fromisoformat("2024-02-29T01:00"),
        "number": float("-inf"),
        "small": 1.5,
        "tiny": 3,
        "list": [1, None],
        "tree": {"a": [{"s": "x", "n": None}], "b": []},
        "part": {"s": "in", "n": None},
    }
    empty = {**dict.fromkeys(full), "id": 2}
    frame = spark.createDataFrame(
        [tuple(full.values()), tuple(empty.values())],
        "id BIGINT, ok BOOLEAN, text STRING, data BINARY, amount DECIMAL(38,18), day DATE, "
        "at TIMESTAMP, local TIMESTAMP_NTZ, number DOUBLE, small FLOAT, tiny TINYINT, "
        "list ARRAY<INT>, tree MAP<STRING, ARRAY<STRUCT<s: STRING, n: INT>>>, "
        "part STRUCT<s: STRING, n: INT>",
    )
    save(to_kafka(frame, key="id", value="avro"), kafka.bootstrap, topic)
    schema = json.loads(derive_schema(column_type(frame.schema), "value", "Value"))
    records = read_with_confluent(kafka.bootstrap, topic)
    found = {each.key: decoded(each.value, schema) for each in records}
    assert found == {b"1": full, b"2": empty}


def test_keys_and_values_by_given_schemas(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    save(orders(spark.range(0, 200, 1, 3)), kafka.bootstrap, topic, **OPTIONS)
    assert found_orders(kafka, topic) == expected_orders(200)


def test_a_stream_and_write_batch(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    spark.range(40).write.parquet(str(tmp_path / "rows"))
    stream = orders(spark.readStream.schema("id BIGINT").parquet(str(tmp_path / "rows")))
    topics = [new_topic(1), new_topic(1)]
    options = [
        {"kafka.bootstrap.servers": kafka.bootstrap, "topic": name, **OPTIONS} for name in topics
    ]
    writer = stream.writeStream.trigger(availableNow=True)
    with_format = writer.format("pykafka").options(**options[0])
    by_function = stream.writeStream.trigger(availableNow=True).foreachBatch(
        functools.partial(write_batch, options=options[1])
    )
    for number, each in enumerate((with_format, by_function)):
        query = each.option("checkpointLocation", str(tmp_path / f"checkpoint{number}")).start()
        query.awaitTermination()
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
    with pytest.raises(ConfigException, match="atomic_layout: the partition of a row is a hash of"):
        atomic_layout(orders(spark.range(3)), {**options, **OPTIONS})
    rows = spark.range(30).select("id", F.create_map(F.lit("k"), F.col("id")).alias("map"))
    frame = to_kafka(rows, value="avro")
    own = {**options, "kafka.partitioner.class": "os.path.join"}
    with pytest.raises(
        ConfigException, match=r"kafka\.partitioner\.class would get the column value"
    ):
        atomic_layout(frame, own)
    laid_out = atomic_layout(frame, options)
    save(laid_out, kafka.bootstrap, topic)
    schema = json.loads(derive_schema(column_type(rows.schema), "value", "Value"))
    found = [decoded(each.value, schema) for each in read_with_confluent(kafka.bootstrap, topic)]
    assert sorted(each["id"] for each in found) == list(range(30))
    assert all(each["map"] == {"k": each["id"]} for each in found)


_SCRIPT = """
import sys
from pyspark.sql import SparkSession
from spark_kafka_sink import to_kafka
remote, bootstrap, topic = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
rows = to_kafka(spark.range(30), value="avro")
rows.write.format("pykafka").mode("append").options(
    **{"kafka.bootstrap.servers": bootstrap, "topic": topic, "recordName": "Row"}
).save()
spark.stop()
"""


@pytest.mark.long(reason="a whole program over Spark Connect, for what classic ones do above")
def test_over_spark_connect(
    kafka: KafkaCluster, new_topic: NewTopic, connect: ConnectServer, tmp_path: Path
) -> None:
    topic, script = new_topic(1), tmp_path / "client.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, script, connect.remote, kafka.bootstrap, topic],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    schema = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}
    found = [decoded(each.value, schema) for each in read_with_confluent(kafka.bootstrap, topic)]
    assert sorted(each["id"] for each in found) == list(range(30))
