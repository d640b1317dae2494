"""Avro with a schema registry: jobs and streams, read back by Confluent's client and by Spark."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from conftest import NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from support.brokers import fetch_kafka
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.registry_server import RegistryServer, Reply, basic, registry_server
from support.oracles.readers import read_with_confluent, wait_for_transactions
from support.spark.rows_with_schema import (
    EMPTY,
    FULL,
    ORDER,
    TYPES,
    assert_in_java_s_partitions,
    avro_reader,
    expected_orders,
    json_reader,
    order,
    values_by_key,
    write_over_connect,
    written_by_streams,
)
from support.spark.sink import registered_for_now, save
from support.spark.spark_processes import ConnectServer

from spark_kafka_sink import atomic_layout, to_kafka, write_batch
from spark_kafka_sink.errors import ConfigException

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS: Final = (
    {**FULL, "number": math.inf},
    EMPTY,
    {**EMPTY, "id": 3, "number": math.nan, "small": -math.inf},
)
USER: Final = "user-of-test:s3cret"


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    """A schema registry that wants a user and a password."""
    with registry_server() as server:
        server.authorization = basic(*USER.split(":"))
        yield server


def options_of(registry: RegistryServer) -> dict[str, str]:
    """Return the options of a registry."""
    return {
        "schema.registry.url": registry.url,
        "basic.auth.user.info": USER,
        "valueFormat": "avro",
    }


def without_nan(rows: Sequence[Mapping[str, Any] | None]) -> list[dict[str, Any] | None]:
    """Return rows with text for NaN, so that they can be compared."""
    return [
        None if row is None else {name: _shown(value) for name, value in row.items()}
        for row in rows
    ]


def _shown(value: object) -> object:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def numbered(frame: DataFrame) -> DataFrame:
    """Return rows for the schema ORDER, with strings as keys."""
    return frame.select(F.col("id").cast("string").alias("key"), order())


def found(registry: RegistryServer, kafka: KafkaCluster, topic: str) -> dict[int, Any]:
    """Return the values in a topic, by their key."""
    values = values_by_key(kafka, topic, avro_reader(registry, topic, user_info=USER))
    return {int(key): value for key, value in values.items()}


def assert_both_read_orders(
    spark: SparkSession, registry: RegistryServer, kafka: KafkaCluster, topic: str, count: int
) -> None:
    """Check that Confluent's client and Spark read the values of `order` in a topic."""
    assert found(registry, kafka, topic) == expected_orders(count)
    records = read_with_confluent(kafka.bootstrap, topic)
    data = {int(each.key or b""): each.value for each in records}
    values = [data[number] for number in range(count)]
    assert_spark_reads(spark, registry, values, list(expected_orders(count).values()))


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
    readers = {each: avro_reader(registry, topic, each, USER) for each in ("key", "value")}
    keys = [readers["key"](each.key) for each in records]
    assert keys == [{"id": row["id"]} for row in ROWS]
    values = [readers["value"](each.value) for each in records]
    assert without_nan(values) == without_nan(ROWS)
    assert_spark_reads(spark, registry, [each.key for each in records], keys)
    collected = [row.asDict(recursive=True) for row in frame.collect()]
    assert_spark_reads(spark, registry, [each.value for each in records], collected)


def assert_spark_reads(
    spark: SparkSession,
    registry: RegistryServer,
    data: Sequence[bytes | None],
    expected: Sequence[Mapping[str, Any] | None],
) -> None:
    """Check that Spark's from_avro reads the expected rows, if this Spark has a from_avro.

    data: keys or values. All of them have the same schema.
    """
    if not fetch_kafka.takes_jvm_sink():
        return
    from pyspark.sql.avro.functions import from_avro

    if (problem := fetch_kafka.missing_spark_avro()) is not None:
        pytest.skip(problem)
    (schema_id,) = {schema_id_of(each) for each in data if each is not None}
    schema = registry.schemas[schema_id]["schema"]
    # The number keeps the order.
    frame = spark.createDataFrame(list(enumerate(data)), "number INT, data BINARY")
    row = from_avro(F.expr("substring(data, 6)"), schema).alias("row")
    read = [each.row for each in frame.orderBy("number").select(row).collect()]
    rows = [each and each.asDict(recursive=True) for each in read]
    assert without_nan(rows) == without_nan(expected)


def schema_id_of(data: bytes) -> int:
    """Return the schema id in the prefix of a key or value."""
    return int.from_bytes(data[1:5], "big")


THOUSAND: Final = pytest.param(1000, marks=pytest.mark.long(reason="its 1,000 tasks take a while"))


@pytest.mark.parametrize("tasks", [50, THOUSAND])
def test_a_job_of_many_tasks_asks_once_and_writes_a_hand_made_schema(
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    registry: RegistryServer,
    tasks: int,
) -> None:
    topic, rows = new_topic(3), 4 * tasks
    registry.add(f"{topic}-value", ORDER)
    latest = f"GET /subjects/{topic}-value/versions/latest"
    frame = numbered(spark.range(0, rows, 1, tasks))
    assert frame.rdd.getNumPartitions() == tasks
    save(frame, kafka.bootstrap, topic, **options_of(registry))
    assert registry.asked() == [latest]
    assert found(registry, kafka, topic) == expected_orders(rows)
    registry.asked()
    # With register, errors are found before Spark computes the rows.
    with registered_for_now(spark):
        save(numbered(spark.range(rows, rows + 1)), kafka.bootstrap, topic, **options_of(registry))
        assert registry.asked() == [latest]
        registry.authorization = "none"
        with pytest.raises(Exception, match="it answered 401") as refused:
            save(numbered(spark.range(1)), kafka.bootstrap, topic, **options_of(registry))
        assert "s3cret" not in str(refused.value)
    assert registry.subjects == {f"{topic}-value": [1]}


def test_keys_are_hashed_with_their_prefix(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, registry: RegistryServer
) -> None:
    topic = new_topic(3)
    rows = spark.range(0, 100, 1, 2).select(F.struct("id").alias("key"), F.lit("v").alias("value"))
    options = {**options_of(registry), "keyFormat": "avro"}
    del options["valueFormat"]
    save(rows, kafka.bootstrap, topic, **options)
    records = read_with_confluent(kafka.bootstrap, topic)
    read = avro_reader(registry, topic, "key", USER)
    assert sorted(read(each.key)["id"] for each in records) == list(range(100))
    assert_in_java_s_partitions(records, 3, prefix=5)


def test_ids_in_headers(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, registry: RegistryServer
) -> None:
    topic = new_topic(3)
    registry.has_guids = True
    registry.add(f"{topic}-value", ORDER)
    # As in a topic that Spark copies: rows may have a header about the schema of their old bytes.
    own = F.create_map(
        *(F.lit("__value_schema_id"), F.lit(b"\1" + bytes(16))),
        *(F.lit("own"), F.col("id").cast("string").cast("binary")),
    )
    # Confluent's client for Python does not read data of fewer than 6 bytes.
    key = F.struct(F.format_string("order-%d", "id").alias("id")).alias("key")
    rows = spark.range(0, 100, 1, 2).select(key, order(), own.alias("headers"))
    options = {**options_of(registry), "keyFormat": "avro"}
    for column in ("key", "value"):
        options[f"{column}.schema.id.serializer"] = "HeaderSchemaIdSerializer"
    save(rows, kafka.bootstrap, topic, **options)
    records = read_with_confluent(kafka.bootstrap, topic)
    readers = [avro_reader(registry, topic, each, USER) for each in ("key", "value")]
    found = {}
    for each in records:
        number = int(readers[0](each.key, each.headers)["id"].removeprefix("order-"))
        found[number] = readers[1](each.value, each.headers)
        names = ["own", "__key_schema_id", *(["__value_schema_id"] if each.value else [])]
        assert [name for name, _ in each.headers] == names
        assert each.headers[0][1] == b"%d" % number
    assert found == expected_orders(100)
    # The hash has only the data, without a prefix.
    assert_in_java_s_partitions(records, 3, prefix=0)


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
    for number, query in enumerate(written_by_streams(stream, given, tmp_path)):
        assert len(query.recentProgress) > 1
        subject = f"/subjects/{topics[number]}-value/versions"
        assert registry.asked() == [f"GET {subject}/latest", f"POST {subject}"]
        assert_both_read_orders(spark, registry, kafka, topics[number], 40)
        registry.asked()


def test_with_atomic_layout_micro_batches_ask_once_and_survive_a_registry_that_is_away(
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    registry: RegistryServer,
    tmp_path: Path,
) -> None:
    topic = new_topic(2)
    registry.add(f"{topic}-value", ORDER)
    spark.range(0, 40, 1, 4).write.parquet(str(tmp_path / "rows"))
    reader = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1)
    stream = numbered(reader.parquet(str(tmp_path / "rows")))
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic, **options_of(registry)}
    asked = []

    def write(frame: DataFrame, batch_id: int) -> None:
        if batch_id == 3:
            registry.fault = lambda call: Reply(503, {}, {"Retry-After": "0"})
        write_batch(atomic_layout(frame, options), batch_id, options)
        asked.append(registry.asked())

    writer = stream.writeStream.trigger(availableNow=True).foreachBatch(write)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert asked == [[f"GET /subjects/{topic}-value/versions/latest"], [], [], []]
    registry.fault = lambda call: None
    assert found(registry, kafka, topic) == expected_orders(40)


def test_a_micro_batch_has_one_schema_and_a_stream_goes_on_without_the_registry(
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    registry: RegistryServer,
    tmp_path: Path,
) -> None:
    topic, folder = new_topic(2), str(tmp_path / "rows")
    first = registry.add(f"{topic}-value", ORDER)
    more = {"name": "note", "type": "string", "default": "new"}
    spark.range(0, 20, 1, 1).write.parquet(folder)
    stream = numbered(spark.readStream.schema("id BIGINT").parquet(folder).repartition(3))
    writer = stream.writeStream.format("pykafka").options(**options_of(registry))
    writer = writer.option("kafka.bootstrap.servers", kafka.bootstrap).option("topic", topic)
    writer = writer.option("latest.cache.ttl.sec", "0")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        registry.asked()
        registry.fault = lambda call: Reply(503, {}, {"Retry-After": "0"})
        spark.range(20, 40, 1, 1).write.mode("append").parquet(folder)
        query.processAllAvailable()
        assert registry.asked()
        registry.fault = lambda call: None
        # A new version counts from the next micro-batch on.
        second = registry.add(f"{topic}-value", {**ORDER, "fields": [*ORDER["fields"], more]})
        spark.range(40, 60, 1, 1).write.mode("append").parquet(folder)
        query.processAllAvailable()
    finally:
        query.stop()
    records = read_with_confluent(kafka.bootstrap, topic)
    ids: list[set[int]] = [set(), set(), set()]
    for each in records:
        if each.value is not None:
            ids[int(each.key or b"") // 20].add(schema_id_of(each.value))
    assert ids == [{first}, {first}, {second}]
    expected = {
        number: value and (value if number < 40 else {**value, "note": "new"})
        for number, value in expected_orders(60).items()
    }
    assert found(registry, kafka, topic) == expected


def test_atomic_layout_takes_encoded_keys_if_a_column_has_every_partition(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, registry: RegistryServer
) -> None:
    topic = new_topic(3)
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "topic": topic,
        **options_of(registry),
        "keyFormat": "avro",
    }
    frame = spark.range(0, 60, 1, 2).select(
        F.struct("id").alias("key"),
        F.struct("id").alias("value"),
        F.coalesce(F.expr("CAST(id % 3 AS INT)"), F.lit(0)).alias("partition"),
    )
    # A partitioner of the user has no effect then.
    for more in ({}, {"kafka.partitioner.class": "os.path.join"}):
        laid_out = atomic_layout(frame, {**options, **more})
        assert laid_out.rdd.getNumPartitions() == 3
    save(laid_out, kafka.bootstrap, topic, **options_of(registry), keyFormat="avro")
    records = read_with_confluent(kafka.bootstrap, topic)
    read = avro_reader(registry, topic, "key", USER)
    places = {read(each.key)["id"]: each.partition for each in records}
    assert places == {number: number % 3 for number in range(60)}
    nullable = frame.withColumn("partition", F.expr("nullif(partition, 7)"))
    with pytest.raises(ConfigException, match="atomic_layout cannot be used with this keyFormat"):
        atomic_layout(nullable, options)


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
    assert_both_read_orders(spark, registry, kafka, topic, 20)


@pytest.mark.parametrize("value_format", ["avro", "json_sr"])
@pytest.mark.parametrize("mode", ["two-phase", "single"])
def test_a_micro_batch_that_runs_twice_is_written_once(
    mode: str,
    value_format: str,
    spark: SparkSession,
    kafka: KafkaCluster,
    new_topic: NewTopic,
    registry: RegistryServer,
    tmp_path: Path,
) -> None:
    topic = new_topic(2)
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "topic": topic,
        **options_of(registry),
        "keyFormat": "avro",
        "valueFormat": value_format,
        "exactlyOnce": mode,
    }
    spark.range(20).write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema("id BIGINT").parquet(str(tmp_path / "rows"))
    rows = to_kafka(stream, value=value_format, key="id").select(
        F.struct(F.col("key").alias("name")).alias("key"),
        "value",
        F.expr("coalesce(CAST(key AS INT) % 2, 0)").alias("partition"),
    )
    if mode == "single":
        rows = atomic_layout(rows, options)
        assert registry.asked() == []
    checkpoint = tmp_path / "checkpoint"
    read_key = avro_reader(registry, topic, "key", USER)
    read_value = (
        json_reader(registry, topic, USER)
        if value_format == "json_sr"
        else avro_reader(registry, topic, user_info=USER)
    )
    expected = [({"name": str(number)}, {"id": number}) for number in range(20)]
    for _ in range(2):
        writer = rows.writeStream.format("pykafka").trigger(availableNow=True).options(**options)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        query.awaitTermination()
        assert [each["batchId"] for each in query.recentProgress if each["numInputRows"]] == [0]
        wait_for_transactions(kafka.bootstrap, topic)
        records = read_with_confluent(kafka.bootstrap, topic)
        found = [(read_key(each.key), read_value(each.value)) for each in records]
        assert sorted(found, key=lambda row: row[1]["id"]) == expected
        keys = [each.key for each in records]
        assert_spark_reads(spark, registry, keys, [key for key, _ in found])
        if value_format == "avro":
            values = [each.value for each in records]
            assert_spark_reads(spark, registry, values, [value for _, value in found])
        # Without the mark of its end, Spark runs the micro-batch again.
        (checkpoint / "commits" / "0").unlink()
        (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)


def test_what_does_not_fit_is_refused_before_any_task(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic, registry: RegistryServer
) -> None:
    topic = new_topic(1)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic, **options_of(registry)}
    registry.add(f"{topic}-value", '"long"')
    with pytest.raises(PySparkException, match="the Avro schema expects long there"):
        save(numbered(spark.range(1)), kafka.bootstrap, topic, **options_of(registry))
    registry.subjects.clear()
    registry.asked()
    keyed = spark.range(3).selectExpr("id AS key", "id AS value")
    with pytest.raises(ConfigException, match="atomic_layout cannot be used with this keyFormat"):
        atomic_layout(keyed, {**options, "keyFormat": "avro"})
    own = {**options, "kafka.partitioner.class": "os.path.join"}
    with pytest.raises(ConfigException, match="pass it the column value before encoding"):
        atomic_layout(keyed.drop("key"), own)
    del options["topic"]
    stream = spark.readStream.format("rate").load().selectExpr("value", f"'{topic}' AS topic")
    with pytest.raises(ConfigException, match="atomic_layout has to read all rows to find the"):
        atomic_layout(stream, {**options, "valueSubject": "orders"})
    # Nothing is registered for a layout that is refused.
    assert registry.asked() == []
    with pytest.raises(PySparkException, match=r"auto\.register\.schemas is false: register it"):
        save(
            numbered(spark.range(1)),
            kafka.bootstrap,
            topic,
            **options_of(registry),
            auto_register_schemas="false",
        )
    assert read_with_confluent(kafka.bootstrap, topic) == []


@pytest.mark.long(reason="a whole program with Spark Connect, for what classic ones do above")
def test_over_spark_connect(
    kafka: KafkaCluster, new_topic: NewTopic, registry: RegistryServer, connect: ConnectServer
) -> None:
    topic = new_topic(1)
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "topic": topic,
        **options_of(registry),
    }
    expected = write_over_connect(connect, "avro", options, registers=True)
    assert len(registry.asked()) == 2
    assert found(registry, kafka, topic) == {int(key): value for key, value in expected.items()}
