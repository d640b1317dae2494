"""JSON with a schema registry: every row is read back by confluent-kafka's JSONDeserializer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from conftest import NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.registry_server import RegistryServer, registry_server
from support.oracles.readers import read_with_confluent
from support.spark.rows_with_schema import (
    EMPTY,
    FULL,
    TYPES,
    json_reader,
    values_by_key,
    write_over_connect,
    written_by_streams,
)
from support.spark.sink import save
from support.spark.spark_processes import ConnectServer

from spark_kafka_sink import to_kafka

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

HAND_MADE: Final = {
    "type": "object",
    "title": "Order",
    "required": ["id", "color"],
    "properties": {
        "id": {"type": "integer"},
        "color": {"type": "string"},
        "note": {"type": "string"},
        "price": {"type": "number"},
    },
}


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    """A schema registry."""
    with registry_server() as found:
        yield found


def found_values(kafka: KafkaCluster, topic: str, registry: RegistryServer) -> dict[bytes, Any]:
    """Return the values in a topic by key, each read and validated by its own schema."""
    return values_by_key(kafka, topic, json_reader(registry, topic))


def orders(frame: DataFrame) -> DataFrame:
    """Return rows with three columns, of which one is null in some rows."""
    note = F.when(F.col("id") % 3 == 0, F.concat(F.lit("é😀\n\"'\\"), "id"))
    return frame.select("id", F.lit("RED").alias("color"), note.alias("note"))


def expected_orders(count: int) -> dict[bytes, Any]:
    """Return the values that `orders` has made."""
    return {
        b"%d" % number: {
            "id": number,
            "color": "RED",
            **({} if number % 3 else {"note": f"é😀\n\"'\\{number}"}),
        }
        for number in range(count)
    }


def test_whole_rows_of_every_type_are_read_back(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, registry: RegistryServer
) -> None:
    topic = new_topic(2)
    full = {**FULL, "tree": {**FULL["tree"], "c": None}}
    frame = spark.createDataFrame([tuple(full.values()), tuple(EMPTY.values())], TYPES)
    rows = to_kafka(frame, key="id", value="json_sr")
    save(rows, kafka.bootstrap, topic, schema_registry_url=registry.url, recordName="Row")
    assert found_values(kafka, topic, registry) == {
        b"1": {
            **full,
            "data": "/wA=",
            "amount": float(full["amount"]),
            "day": "1903-05-06",
            "at": "1969-12-31T23:59:59.999999Z",
            "local": "1901-02-28T01:00:00.000001",
            "tree": {"a": [{"s": "x"}], "b": [], "c": None},
            "part": {"s": "in"},
        },
        b"2": {"id": 2},
    }
    (schema,) = registry.schemas.values()
    assert schema["schemaType"] == "JSON"
    assert json.loads(schema["schema"])["title"] == "Row"


def test_keys_are_read_back(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, registry: RegistryServer
) -> None:
    topic, url = new_topic(2), registry.url
    day = F.date_add(F.lit("2024-02-20").cast("date"), F.col("id").cast("int")).alias("day")
    # One key is null.
    key = F.when(F.col("id") != 3, F.struct("id", day))
    frame = spark.range(9)
    rows = to_kafka(frame, key=key, value=F.col("id").cast("string"), key_format="json_sr")
    save(rows, kafka.bootstrap, topic, schema_registry_url=url)
    read = json_reader(registry, topic)
    found = {each.value: read(each.key) for each in read_with_confluent(kafka.bootstrap, topic)}
    assert found == {
        b"%d" % number: None if number == 3 else {"id": number, "day": f"2024-02-{20 + number}"}
        for number in range(9)
    }
    assert list(registry.subjects) == [f"{topic}-key"]
    other = to_kafka(frame, key=F.struct("id"), value=F.lit("v"), key_format="json_sr")
    with pytest.raises(PySparkException, match="the column key has rows from two calls of to_kaf"):
        save(rows.union(other).coalesce(1), kafka.bootstrap, new_topic(1), schema_registry_url=url)


def test_rows_by_a_registered_schema_in_jobs_and_streams(
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    registry: RegistryServer,
    tmp_path: Path,
) -> None:
    topics = [new_topic(1) for _ in range(3)]
    for topic in topics:
        registry.add(f"{topic}-value", HAND_MADE, schemaType="JSON")
    spark.range(40).write.parquet(str(tmp_path / "rows"))
    url = {"schema.registry.url": registry.url}
    batch = orders(spark.read.parquet(str(tmp_path / "rows")))
    # A column of strings that are JSON is written as it is.
    texts = batch.select(
        F.col("id").cast("string").alias("key"), F.to_json(F.struct("*")).alias("value")
    )
    named = {each.replace(".", "_"): text for each, text in url.items()}
    save(texts, kafka.bootstrap, topics[0], valueFormat="json_sr", **named)
    stream = orders(spark.readStream.schema("id BIGINT").parquet(str(tmp_path / "rows")))
    rows = to_kafka(stream, "id", "json_sr")
    options = [{"kafka.bootstrap.servers": kafka.bootstrap, "topic": t, **url} for t in topics]
    for _ in written_by_streams(rows, options[1:], tmp_path):
        pass
    for topic in topics:
        assert found_values(kafka, topic, registry) == expected_orders(40)
    # Nothing was registered.
    assert len(registry.schemas) == 1


def test_rows_that_do_not_fit_are_bad_rows(
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    registry: RegistryServer,
    tmp_path: Path,
) -> None:
    topic, dead, report = new_topic(1), new_topic(1), tmp_path / "report.json"
    registry.add(f"{topic}-value", HAND_MADE, schemaType="JSON")
    color = F.when(F.col("id") != 7, "RED").alias("color")
    price = F.when(F.col("id") == 8, float("-inf")).otherwise(0.5).alias("price")
    frame = to_kafka(spark.range(0, 20, 1, 2).select("id", color, price), "id", "json_sr")
    url = registry.url
    with pytest.raises(PySparkException, match=r"column value\.color is null, so to_json"):
        save(frame.filter("key < 8"), kafka.bootstrap, topic, schema_registry_url=url)
    topic = new_topic(1)
    registry.add(f"{topic}-value", HAND_MADE, schemaType="JSON")
    letters = {"onError": "deadLetter", "deadLetterTopic": dead, "reportPath": str(report)}
    save(frame, kafka.bootstrap, topic, schema_registry_url=url, **letters)
    values = found_values(kafka, topic, registry)
    assert values.keys() == {b"%d" % number for number in range(20)} - {b"7", b"8"}
    found = {each.key: each for each in read_with_confluent(kafka.bootstrap, dead)}
    assert json.loads(found[b"7"].value or b"") == {"id": 7, "price": 0.5}
    assert json.loads(found[b"8"].value or b"") == {"id": 8, "color": "RED", "price": "-Infinity"}
    assert dict(found[b"8"].headers)["pykafka.error.as.json"] == b"value"
    reasons = {"null_in_required": 1, "out_of_range": 1}
    assert json.loads(report.read_text())["bad_rows"]["reasons"] == reasons


def test_rows_that_a_union_adds_are_refused_if_their_columns_differ(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, registry: RegistryServer
) -> None:
    topic = new_topic(1)
    url = registry.url
    first, other = (to_kafka(spark.range(each, each + 5), "id", "json_sr") for each in (0, 5))
    save(first.union(other), kafka.bootstrap, topic, schema_registry_url=url)
    expected = {b"%d" % number: {"id": number} for number in range(10)}
    assert found_values(kafka, topic, registry) == expected
    with_color = to_kafka(spark.range(1).withColumn("color", F.lit("RED")), "id", "json_sr")
    for frame in (with_color.unionByName(first), first.union(with_color).coalesce(1)):
        with pytest.raises(
            PySparkException, match="the column value has rows from two calls of to_"
        ):
            save(frame, kafka.bootstrap, new_topic(1), schema_registry_url=url)


@pytest.mark.long(reason="a whole program with Spark Connect, for what classic ones do above")
def test_over_spark_connect(
    kafka: KafkaCluster, new_topic: NewTopic, registry: RegistryServer, connect: ConnectServer
) -> None:
    topic = new_topic(1)
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "topic": topic,
        "schema.registry.url": registry.url,
    }
    expected = write_over_connect(connect, "json_sr", options)
    assert found_values(kafka, topic, registry) == expected
