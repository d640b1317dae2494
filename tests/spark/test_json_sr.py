"""JSON with a schema registry: every row is read back by confluent-kafka's JSONDeserializer."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from conftest import NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.registry_server import RegistryServer, registry_server
from support.oracles.readers import read_with_confluent
from support.spark.sink import save
from support.spark.spark_processes import ConnectServer

from spark_kafka_sink import to_kafka, write_batch

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
    deserializer = JSONDeserializer(
        None, schema_registry_client=SchemaRegistryClient({"url": registry.url})
    )
    context = SerializationContext(topic, MessageField.VALUE)
    return {
        each.key or b"": deserializer(each.value, context)
        for each in read_with_confluent(kafka.bootstrap, topic)
    }


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
    full = {
        "id": 1,
        "ok": True,
        "text": "é😀" * 20_000,
        "data": b"\xff\x00",
        "amount": Decimal("-12345678901234567890.123456789012345678"),
        "day": date(1903, 5, 6),
        "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        "local": datetime.fromisoformat("2024-02-29T01:00:00.000001"),
        "number": 1e300,
        "small": 1.5,
        "tiny": 3,
        "list": [1, None],
        "tree": {"a": [{"s": "x", "n": None}], "b": [], "c": None},
        "part": {"s": "in", "n": None},
    }
    frame = spark.createDataFrame(
        [tuple(full.values()), tuple({**dict.fromkeys(full), "id": 2}.values())],
        "id BIGINT, ok BOOLEAN, text STRING, data BINARY, amount DECIMAL(38,18), day DATE, "
        "at TIMESTAMP, local TIMESTAMP_NTZ, number DOUBLE, small FLOAT, tiny TINYINT, "
        "list ARRAY<INT>, tree MAP<STRING, ARRAY<STRUCT<s: STRING, n: INT>>>, "
        "part STRUCT<s: STRING, n: INT>",
    )
    rows = to_kafka(frame, key="id", value="json_sr")
    save(rows, kafka.bootstrap, topic, schema_registry_url=registry.url, recordName="Row")
    assert found_values(kafka, topic, registry) == {
        b"1": {
            **full,
            "data": "/wA=",
            "amount": float(full["amount"]),  # type: ignore[arg-type]
            "day": "1903-05-06",
            "at": "1969-12-31T23:59:59.999999Z",
            "local": "2024-02-29T01:00:00.000001",
            "tree": {"a": [{"s": "x"}], "b": [], "c": None},
            "part": {"s": "in"},
        },
        b"2": {"id": 2},
    }
    (schema,) = registry.schemas.values()
    assert schema["schemaType"] == "JSON"
    assert json.loads(schema["schema"])["title"] == "Row"


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
    writer = rows.writeStream.trigger(availableNow=True)
    with_format = writer.format("pykafka").options(**options[1])
    by_function = rows.writeStream.trigger(availableNow=True).foreachBatch(
        functools.partial(write_batch, options=options[2])
    )
    for number, each in enumerate((with_format, by_function)):
        query = each.option("checkpointLocation", str(tmp_path / f"checkpoint{number}")).start()
        query.awaitTermination()
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
    with pytest.raises(PySparkException, match=r"column value\.color is null, so that to_json"):
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


_SCRIPT = """
import sys
from pyspark.sql import SparkSession
from spark_kafka_sink import to_kafka
remote, bootstrap, topic, url = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
rows = to_kafka(spark.range(30), key="id", value="json_sr")
rows.write.format("pykafka").mode("append").options(
    **{"kafka.bootstrap.servers": bootstrap, "topic": topic, "schema.registry.url": url}
).save()
spark.stop()
"""


@pytest.mark.long(reason="a whole program over Spark Connect, for what classic ones do above")
def test_over_spark_connect(
    kafka: KafkaCluster,
    new_topic: NewTopic,
    registry: RegistryServer,
    connect: ConnectServer,
    tmp_path: Path,
) -> None:
    topic, script = new_topic(1), tmp_path / "client.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, script, connect.remote, kafka.bootstrap, topic, registry.url],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    expected = {b"%d" % number: {"id": number} for number in range(30)}
    assert found_values(kafka, topic, registry) == expected
