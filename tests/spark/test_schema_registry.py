"""Avro with a schema registry: jobs and streams, read back by Confluent's client and by Spark."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from conftest import NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from support.brokers import fetch_kafka
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.registry_server import RegistryServer, basic, registry_server
from support.oracles.readers import Record, read_with_confluent
from support.spark.sink import registered_for_now, save
from support.spark.spark_processes import ConnectServer

from spark_kafka_sink import atomic_layout, to_kafka, write_batch
from spark_kafka_sink.errors import ConfigException

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

TYPES: Final = (
    "id BIGINT, ok BOOLEAN, text STRING, data BINARY, amount DECIMAL(38,18), day DATE, "
    "at TIMESTAMP, local TIMESTAMP_NTZ, number DOUBLE, small FLOAT, tiny TINYINT, "
    "list ARRAY<INT>, tree MAP<STRING, ARRAY<STRUCT<s: STRING, n: INT>>>, "
    "part STRUCT<s: STRING, n: INT>"
)
FULL: Final = {
    "id": 1,
    "ok": True,
    "text": "é😀" * 20_000,
    "data": b"\xff\x00",
    "amount": Decimal("-12345678901234567890.123456789012345678"),
    "day": date(1903, 5, 6),
    "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    "local": datetime.fromisoformat("1901-02-28T01:00:00.000001"),
    "number": math.inf,
    "small": 1.5,
    "tiny": -3,
    "list": [1, None],
    "tree": {"a": [{"s": "x", "n": None}], "b": []},
    "part": {"s": "in", "n": None},
}
ROWS: Final = (
    FULL,
    {**dict.fromkeys(FULL), "id": 2},
    {**dict.fromkeys(FULL), "id": 3, "number": math.nan, "small": -math.inf},
)
ORDER: Final = {
    "type": "record",
    "name": "com.shop.Order",
    "fields": [
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
        {"name": "source", "type": "string", "default": "spark"},
        {"name": "id", "type": ["long", "null"]},
    ],
}


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    """A schema registry that wants a user and a password."""
    with registry_server() as server:
        server.authorization = basic("user-of-test", "s3cret")
        yield server


def options_of(registry: RegistryServer) -> dict[str, str]:
    """Return the options of a registry."""
    return {
        "schema.registry.url": registry.url,
        "basic.auth.user.info": "user-of-test:s3cret",
        "valueFormat": "avro",
    }


def decoded(registry: RegistryServer, data: bytes | None, topic: str, field: str = "value") -> Any:  # noqa: ANN401 - any value of Avro
    """Return what Confluent's deserializer reads."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    client = SchemaRegistryClient(
        {"url": registry.url, "basic.auth.user.info": "user-of-test:s3cret"}
    )
    return AvroDeserializer(client)(data, SerializationContext(topic, MessageField(field)))


def without_nan(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with text for NaN, so that they can be compared."""
    return [{name: _shown(value) for name, value in row.items()} for row in rows]


def _shown(value: object) -> object:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def numbered(frame: DataFrame) -> DataFrame:
    """Return rows for the schema ORDER; every tenth row has no value."""
    color = F.when(F.col("id") % 2 == 0, "RED").otherwise("BLUE").alias("color")
    return frame.select(
        F.col("id").cast("string").alias("key"),
        F.when(F.col("id") % 10 != 3, F.struct("id", color)).alias("value"),
    )


def expected(count: int) -> dict[int, Any]:
    """Return the values that `numbered` has made."""
    return {
        n: None
        if n % 10 == 3
        else {"color": "BLUE" if n % 2 else "RED", "source": "spark", "id": n}
        for n in range(count)
    }


def found(registry: RegistryServer, kafka: KafkaCluster, topic: str) -> dict[int, Any]:
    """Return the values in a topic, by their key."""
    return {
        int(each.key or b""): decoded(registry, each.value, topic)
        for each in read_with_confluent(kafka.bootstrap, topic)
    }


def test_whole_rows_of_every_type_are_read_back_by_both(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, registry: RegistryServer
) -> None:
    topic = new_topic(2)
    frame = spark.createDataFrame([tuple(row.values()) for row in ROWS], TYPES)
    keyed = to_kafka(frame, value="avro").withColumn("key", F.struct(F.col("value.id")))
    save(keyed, kafka.bootstrap, topic, **options_of(registry), keyFormat="avro")
    assert registry.asked() == [
        f"GET /subjects/{topic}-key/versions/latest",
        f"GET /subjects/{topic}-value/versions/latest",
        f"POST /subjects/{topic}-key/versions",
        f"POST /subjects/{topic}-value/versions",
    ]
    records = sorted(read_with_confluent(kafka.bootstrap, topic), key=lambda each: each.key or b"")
    keys = [decoded(registry, each.key, topic, "key") for each in records]
    assert keys == [{"id": row["id"]} for row in ROWS]
    values = [decoded(registry, each.value, topic) for each in records]
    assert without_nan(values) == without_nan(list(ROWS))
    if fetch_kafka.takes_jvm_sink():
        assert_spark_reads(spark, records, registry, topic, frame)


def assert_spark_reads(
    spark: SparkSession,
    records: list[Record],
    registry: RegistryServer,
    topic: str,
    frame: DataFrame,
) -> None:
    """Check that Spark's from_avro reads the same rows."""
    from pyspark.sql.avro.functions import from_avro

    if (problem := fetch_kafka.missing_spark_avro()) is not None:
        pytest.skip(problem)
    (version,) = registry.subjects[f"{topic}-value"]
    schema = registry.schemas[version]["schema"]
    data = spark.createDataFrame([(each.value,) for each in records], "value BINARY")
    read = data.select(from_avro(F.expr("substring(value, 6)"), schema).alias("row")).select(
        "row.*"
    )
    rows = [[row.asDict(recursive=True) for row in each.collect()] for each in (read, frame)]
    assert without_nan(rows[0]) == without_nan(rows[1])


def test_a_job_of_many_tasks_asks_once_and_writes_a_hand_made_schema(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, registry: RegistryServer
) -> None:
    topic = new_topic(3)
    registry.add(f"{topic}-value", ORDER)
    latest = f"GET /subjects/{topic}-value/versions/latest"
    save(numbered(spark.range(0, 200, 1, 50)), kafka.bootstrap, topic, **options_of(registry))
    assert registry.asked() == [latest]
    assert found(registry, kafka, topic) == expected(200)
    registry.asked()
    # With register, errors are found before Spark computes the rows.
    with registered_for_now(spark):
        save(numbered(spark.range(200, 201)), kafka.bootstrap, topic, **options_of(registry))
        assert registry.asked() == [latest]
        registry.authorization = "none"
        with pytest.raises(Exception, match="it answered 401") as refused:
            save(numbered(spark.range(1)), kafka.bootstrap, topic, **options_of(registry))
        assert "s3cret" not in str(refused.value)
    assert registry.subjects == {f"{topic}-value": [1]}


def test_a_stream_and_write_batch_ask_once(
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    registry: RegistryServer,
    tmp_path: Path,
) -> None:
    spark.range(0, 40, 1, 4).write.parquet(str(tmp_path / "rows"))
    reader = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1)
    stream = numbered(reader.parquet(str(tmp_path / "rows")))
    topics = [new_topic(1), new_topic(1)]
    given = [
        {
            "kafka.bootstrap.servers": kafka.bootstrap,
            "topic": name,
            "valueSchema": json.dumps(ORDER),
            **options_of(registry),
        }
        for name in topics
    ]
    writer = stream.writeStream.trigger(availableNow=True)
    with_format = writer.format("pykafka").options(**given[0])
    by_function = stream.writeStream.trigger(availableNow=True).foreachBatch(
        functools.partial(write_batch, options=given[1])
    )
    for number, each in enumerate((with_format, by_function)):
        query = each.option("checkpointLocation", str(tmp_path / f"checkpoint{number}")).start()
        query.awaitTermination()
        assert len(query.recentProgress) > 1
        assert registry.asked() == [f"POST /subjects/{topics[number]}-value/versions"]
        assert found(registry, kafka, topics[number]) == expected(40)
        registry.asked()


@pytest.mark.parametrize("mode", ["two-phase", "single"])
def test_exactly_once(
    mode: str,
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    registry: RegistryServer,
) -> None:
    topic = new_topic(1)
    once = {"exactlyOnce": mode, "txnAppId": f"avro-{topic}", "txnVersion": "1"}
    frame = numbered(spark.range(0, 20, 1, 1))
    given = {"valueSchema": json.dumps(ORDER), **options_of(registry), **once}
    if mode == "single":
        options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic, **given}
        frame = atomic_layout(frame, options)
    save(frame, kafka.bootstrap, topic, **given)
    assert found(registry, kafka, topic) == expected(20)


def test_what_does_not_fit_is_refused_before_any_task(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, registry: RegistryServer
) -> None:
    topic = new_topic(1)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic, **options_of(registry)}
    registry.add(f"{topic}-value", '"long"')
    with pytest.raises(PySparkException, match="the Avro schema expects long there"):
        save(numbered(spark.range(1)), kafka.bootstrap, topic, **options_of(registry))
    with pytest.raises(ConfigException, match="atomic_layout: the partition of a row is a hash of"):
        atomic_layout(
            spark.range(3).selectExpr("id AS key", "id AS value"), {**options, "keyFormat": "avro"}
        )
    registry.subjects.clear()
    with pytest.raises(PySparkException, match=r"auto\.register\.schemas is false: register it"):
        save(
            numbered(spark.range(1)),
            kafka.bootstrap,
            topic,
            **options_of(registry),
            auto_register_schemas="false",
        )
    assert read_with_confluent(kafka.bootstrap, topic) == []


_SCRIPT = """
import json, sys
from pyspark.sql import SparkSession
from spark_kafka_sink import register, to_kafka
remote, topic, options = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
register(spark)
rows = to_kafka(spark.range(30), key="id", value="avro")
rows.write.format("pykafka").options(**json.loads(options)).option("topic", topic).save()
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
    options = json.dumps({"kafka.bootstrap.servers": kafka.bootstrap, **options_of(registry)})
    done = subprocess.run(
        [sys.executable, script, connect.remote, topic, options],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(registry.asked()) == 2
    assert found(registry, kafka, topic) == {number: {"id": number} for number in range(30)}
