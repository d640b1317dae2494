"""Jobs of Spark with Apicurio Registry, read back by confluent-kafka's deserializers."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from conftest import NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from support.brokers.apicurio import Registry
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent
from support.spark.sink import save

from spark_kafka_sink import to_kafka

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.long(reason="it needs Apicurio Registry, which make test-registry fetches"),
]

COUNT: Final = 50
TYPES: Final = (
    "id BIGINT, ok BOOLEAN, text STRING, data BINARY, amount DECIMAL(38,18), day DATE, "
    "at TIMESTAMP, number DOUBLE, list ARRAY<INT>, tree MAP<STRING, STRUCT<n: INT>>"
)
FULL: Final = {
    "id": 1,
    "ok": True,
    "text": "é😀",
    "data": b"\xff\x00",
    "amount": Decimal("-12345678901234567890.123456789012345678"),
    "day": date(1903, 5, 6),
    "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    "number": 1e300,
    "list": [1, None],
    "tree": {"a": {"n": None}, "b": None},
}
EMPTY: Final = {**dict.fromkeys(FULL), "id": 2}

Read = Callable[[str], dict[int, Any]]


@pytest.fixture
def read_avro(registry: Registry, kafka: KafkaCluster) -> Read:
    """Returns the values of a topic by key, as AvroDeserializer reads them."""
    return _reader(AvroDeserializer(SchemaRegistryClient({"url": registry.url})), kafka)


@pytest.fixture
def read_json(registry: Registry, kafka: KafkaCluster) -> Read:
    """Returns the values of a topic by key, as JSONDeserializer reads and validates them."""
    client = SchemaRegistryClient({"url": registry.url})
    return _reader(JSONDeserializer(None, schema_registry_client=client), kafka)


def _reader(deserializer: Callable[..., Any], kafka: KafkaCluster) -> Read:
    def read(topic: str) -> dict[int, Any]:
        context = SerializationContext(topic, MessageField.VALUE)
        return {
            int(each.key or b""): deserializer(each.value, context)
            for each in read_with_confluent(kafka.bootstrap, topic)
        }

    return read


def all_types(spark: SparkSession) -> DataFrame:
    """Return a row with a value of every type, and one of nulls."""
    return spark.createDataFrame([tuple(FULL.values()), tuple(EMPTY.values())], TYPES)


def orders(spark: SparkSession) -> DataFrame:
    """Return rows with three columns."""
    color = F.when(F.col("id") % 2 == 0, "RED").otherwise("BLUE").alias("color")
    city = F.struct(F.concat(F.lit("city "), F.col("id") % 3).alias("city")).alias("address")
    return spark.range(0, COUNT, 1, 4).select("id", color, city)


def expected_orders() -> dict[int, Any]:
    """Return the values that `orders` has."""
    return {
        n: {
            "id": n,
            "color": "BLUE" if n % 2 else "RED",
            "address": {"city": f"city {n % 3}"},
        }
        for n in range(COUNT)
    }


def test_avro_with_a_derived_schema_that_is_registered_once(
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    registry: Registry,
    read_avro: Read,
) -> None:
    topic = new_topic(2)
    frame = all_types(spark)
    rows = to_kafka(frame, key="id", value="avro")
    save(rows, kafka.bootstrap, topic, schema_registry_url=registry.url)
    assert read_avro(topic) == {1: FULL, 2: EMPTY}
    # In the second run, another column can be null; the first version is written all the same.
    never_null = frame.filter("ok").withColumns({"ok": F.expr("true"), "id": F.lit(3).cast("long")})
    rows = to_kafka(never_null, key="id", value="avro")
    save(rows, kafka.bootstrap, topic, schema_registry_url=registry.url)
    assert read_avro(topic) == {1: FULL, 2: EMPTY, 3: {**FULL, "id": 3}}
    assert len(registry.ids(f"{topic}-value")) == 1


def test_avro_keys(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, registry: Registry
) -> None:
    topic = new_topic(2)
    rows = to_kafka(orders(spark), value="avro").withColumn("key", F.struct("value.id"))
    save(rows, kafka.bootstrap, topic, schema_registry_url=registry.url, keyFormat="avro")
    read = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    contexts = [
        SerializationContext(topic, each) for each in (MessageField.KEY, MessageField.VALUE)
    ]
    found = [
        [read(each.key, contexts[0])["id"], read(each.value, contexts[1])]
        for each in read_with_confluent(kafka.bootstrap, topic)
    ]
    assert dict(found) == expected_orders()


def test_avro_with_a_latest_version_that_references_another_schema(
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    registry: Registry,
    read_avro: Read,
    new_name: str,
) -> None:
    topic = new_topic(2)
    address = {
        "type": "record",
        "name": f"{new_name}Address",
        "fields": [{"name": "city", "type": "string"}],
    }
    registry.add(f"{new_name}Address", address)
    schema = {
        "type": "record",
        "name": new_name,
        "fields": [
            {"name": "address", "type": f"{new_name}Address"},
            {
                "name": "color",
                "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]},
            },
            {"name": "source", "type": "string", "default": "spark"},
            {"name": "id", "type": ["long", "null"]},
        ],
    }
    reference = {"name": f"{new_name}Address", "subject": f"{new_name}Address", "version": 1}
    hand_made = registry.add(f"{topic}-value", schema, references=[reference])
    rows = to_kafka(orders(spark), key="id", value="avro")
    save(rows, kafka.bootstrap, topic, schema_registry_url=registry.url)
    values = {number: {**each, "source": "spark"} for number, each in expected_orders().items()}
    assert read_avro(topic) == values
    assert registry.ids(f"{topic}-value") == [hand_made]


def test_avro_with_a_schema_of_an_option(
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    registry: Registry,
    read_avro: Read,
    new_name: str,
) -> None:
    topic = new_topic(2)
    fields = [{"name": "id", "type": "long"}]
    given = json.dumps({"type": "record", "name": new_name, "fields": fields})
    options = {
        "schema_registry_url": registry.url,
        "value_subject_name_strategy": "RecordNameStrategy",
        "valueSchema": given,
    }
    rows = to_kafka(spark.range(COUNT), key="id", value="avro")
    with pytest.raises(PySparkException, match="is not registered in subject"):
        save(rows, kafka.bootstrap, topic, **options, auto_register_schemas="false")
    save(rows, kafka.bootstrap, topic, **options)
    save(rows, kafka.bootstrap, topic, **options, auto_register_schemas="false")
    by_id = {"schema_registry_url": registry.url, "use_schema_id": str(registry.ids(new_name)[0])}
    save(rows, kafka.bootstrap, topic, **by_id)
    assert read_avro(topic) == {number: {"id": number} for number in range(COUNT)}
    assert len(registry.ids(new_name)) == 1
    # A schema that readers of the first version cannot read is refused before any row is sent.
    other = new_topic(1)
    fields.append({"name": "color", "type": "string"})
    options["valueSchema"] = json.dumps({"type": "record", "name": new_name, "fields": fields})
    with_color = to_kafka(orders(spark).drop("address"), key="id", value="avro")
    with pytest.raises(PySparkException, match="incompatible with an earlier version"):
        save(with_color, kafka.bootstrap, other, **options)
    assert read_with_confluent(kafka.bootstrap, other) == []


def test_json_with_a_derived_schema(
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    registry: Registry,
    read_json: Read,
) -> None:
    topic = new_topic(2)
    rows = to_kafka(all_types(spark), key="id", value="json_sr")
    save(rows, kafka.bootstrap, topic, schema_registry_url=registry.url, recordName="Row")
    assert read_json(topic) == {
        1: {
            **FULL,
            "data": "/wA=",
            "amount": float(FULL["amount"]),  # type: ignore[arg-type]
            "day": "1903-05-06",
            "at": "1969-12-31T23:59:59.999999Z",
            "tree": {"a": {}, "b": None},
        },
        2: {"id": 2},
    }
    version = registry.version(f"{topic}-value")
    assert (version["schemaType"], json.loads(version["schema"])["title"]) == ("JSON", "Row")


def test_json_with_a_latest_version(
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    registry: Registry,
    read_json: Read,
) -> None:
    topic = new_topic(2)
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "required": ["id", "color"],
        "properties": {
            "id": {"type": "integer"},
            "color": {"type": "string"},
            "address": {"type": "object", "properties": {"city": {"type": "string"}}},
            "note": {"type": "string"},
        },
    }
    hand_made = registry.add(f"{topic}-value", schema, schemaType="JSON")
    rows = to_kafka(orders(spark), key="id", value="json_sr")
    save(rows, kafka.bootstrap, topic, schema_registry_url=registry.url)
    assert read_json(topic) == expected_orders()
    assert registry.ids(f"{topic}-value") == [hand_made]
