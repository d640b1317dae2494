"""to_kafka makes the sink's columns of any DataFrame; the same with Spark Connect."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import IntegerType, StringType, StructType
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent
from support.spark.sink import save
from support.spark.spark_processes import ConnectServer

from spark_kafka_sink import to_kafka, write_batch
from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

WHEN = datetime(2024, 2, 29, 12, 0, 0, 123000, UTC)
PEOPLE = "id BIGINT, name STRING, `home town` STRING, born TIMESTAMP, tags MAP<STRING, STRING>"


def test_whole_rows_become_json_by_the_key_of_a_column(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    rows = [
        (1, "Ada", "London", WHEN, {"a": "1"}),
        (2, "Grace", None, None, {}),
        (None, None, None, None, None),
    ]
    save(to_kafka(spark.createDataFrame(rows, PEOPLE), key="id"), kafka.bootstrap, topic)
    found = {r.key: json.loads(r.value or b"") for r in read_with_confluent(kafka.bootstrap, topic)}
    ada = found[b"1"]
    assert datetime.fromisoformat(ada.pop("born")) == WHEN
    assert found == {
        b"1": {"id": 1, "name": "Ada", "home town": "London", "tags": {"a": "1"}},
        b"2": {"id": 2, "name": "Grace", "tags": {}},
        None: {},
    }


def test_every_part_of_a_record_is_a_column_or_an_expression(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    """Unnamed columns of the data are ignored, with any name."""
    topics = [new_topic(2), new_topic(2)]
    rows = [(number, topics[number % 2], 9, "not sent") for number in range(4)]
    frame = spark.createDataFrame(rows, "n INT, `where to` STRING, partition INT, headers STRING")
    records = to_kafka(
        frame,
        key=F.struct("n"),
        value="n",
        headers=F.create_map(F.lit("h"), F.col("n").cast("string")),
        timestamp=F.lit(WHEN),
        topic="where to",
        partition=F.col("n").cast("int") % 2,
    )
    assert records.columns == ["key", "value", "headers", "timestamp", "topic", "partition"]
    save(records.coalesce(1), kafka.bootstrap)
    when_ms = int(WHEN.timestamp() * 1000)
    for place, topic in enumerate(topics):
        found = [tuple(record) for record in read_with_confluent(kafka.bootstrap, topic)]
        assert found == [
            (place, offset, when_ms, b'{"n":%d}' % n, b"%d" % n, (("h", b"%d" % n),))
            for offset, n in enumerate((place, place + 2))
        ]


def test_keys_keep_their_type_if_they_are_to_be_avro(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, "Ada")], "id BIGINT, name STRING")
    options = {"kafka.bootstrap.servers": "b:1", "topic": "t"}
    for key, kind in ((F.struct("id"), "struct"), ("id", "bigint")):
        kept = to_kafka(frame, key=key, value="avro", key_format="avro")
        (found,) = kept.select("key", "value.id").collect()
        assert found == ((1,) if kind == "struct" else 1, 1)
        encoded = KafkaDataSource(options).check(kept.schema)[0].encodings
        assert [each.column for each in encoded] == ["key", "value"]
        # Without it, the key is text, which would be a string in Avro.
        text = to_kafka(frame, key=key, value="avro")
        KafkaDataSource(options).check(text.schema)
        with pytest.raises(ConfigException, match=f"has converted the column key from {kind} to"):
            KafkaDataSource({**options, "keyFormat": "avro"}).check(text.schema)
    as_string = to_kafka(frame, key=F.col("id").cast("string"), value="avro")
    KafkaDataSource({**options, "keyFormat": "avro"}).check(as_string.schema)
    for value in ("json", F.struct("id"), "id"):
        rows = to_kafka(frame, value=value)
        with pytest.raises(ConfigException, match="to_kafka has converted the column value from"):
            KafkaDataSource({**options, "valueFormat": "avro"}).check(rows.schema)
    with pytest.raises(DataException, match="key_format is 'json': expected 'avro' or 'json_sr'"):
        to_kafka(frame, key="id", key_format="json")
    with pytest.raises(DataException, match="key is of type bigint, and key_format is 'json_sr'"):
        to_kafka(frame, key="id", key_format="json_sr")
    with pytest.raises(DataException, match="key_format has no effect without key"):
        to_kafka(frame, key_format="avro")


def test_bytes_stay_as_they_are_and_nulls_stay_null(
    spark: SparkSession, kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    frame = spark.createDataFrame([(b"\xff\x00", None), (None, "x")], "`a.b` BINARY, json STRING")
    save(to_kafka(frame, "a.b", F.col("json")), kafka.bootstrap, topic)
    found = {(r.key, r.value) for r in read_with_confluent(kafka.bootstrap, topic)}
    assert found == {(b"\xff\x00", None), (None, b"x")}


def test_json_is_the_whole_row_as_the_value_and_otherwise_a_column(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("x", 1)], "json STRING, n INT")
    (row,) = to_kafka(frame, key="json").collect()
    assert row.asDict() == {"key": "x", "value": '{"json":"x","n":1}'}


def test_a_null_of_a_column_with_a_default_is_left_out_of_json_with_a_schema(
    spark: SparkSession,
) -> None:
    default = {"CURRENT_DEFAULT": "'x'", "EXISTS_DEFAULT": "'x'"}
    kind = StructType().add("n", IntegerType()).add("c", StringType(), metadata=default)
    frame = spark.createDataFrame([(1, None), (2, "y")], kind)
    texts = ['{"n":1}', '{"n":2,"c":"y"}']
    rows = to_kafka(frame, value="json_sr").collect()
    assert [row["value"]["json"] for row in rows] == texts
    keyed = frame.select(F.struct("*").alias("k"))
    rows = to_kafka(keyed, key="k", value="json", key_format="json_sr").collect()
    assert [row["key"]["json"] for row in rows] == texts
    for column in (F.col("k"), F.array("k").alias("k"), F.create_map(F.lit("m"), "k").alias("k")):
        (row, _) = to_kafka(keyed.select(column), value="json_sr").collect()
        assert '"c"' not in row["value"]["json"]


def test_a_name_that_no_column_has_is_refused_with_the_nearest(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, "x")], "Customer INT, text STRING")
    for argument, name, hint in (
        ("key", "custmer", "did you mean Customer?"),
        ("key", "customer", "did you mean Customer?"),
        ("value", "JSON", "it has Customer, text"),
        ("topic", "nothing like it", "it has Customer, text"),
    ):
        with pytest.raises(DataException) as refused:
            to_kafka(frame, **{argument: name})
        assert f"{argument} is {name!r}, but the data has no column" in str(refused.value)
        assert hint in str(refused.value)


@pytest.mark.parametrize("argument", ["key", "value", "headers", "timestamp", "topic", "partition"])
def test_an_argument_that_is_neither_name_nor_column_is_refused(
    spark: SparkSession, argument: str
) -> None:
    wrong: list[Any] = [5, b"key", ["text"], F]
    for given in [*wrong, None] if argument == "value" else wrong:
        with pytest.raises(DataException) as refused:
            to_kafka(spark.range(1), **{argument: given})
        assert str(refused.value) == (
            f"to_kafka: {argument} is of type {type(given).__name__}: expected the name of a "
            "column, or a Column, such as functions.lit(value)"
        )


def test_what_is_no_data_frame_is_refused() -> None:
    with pytest.raises(DataException, match="to_kafka: df is of type list: expected a DataFrame"):
        to_kafka([1])  # type: ignore[arg-type]


def test_the_number_of_a_micro_batch_comes_as_a_number_and_no_other_way(
    spark: SparkSession,
) -> None:
    frame = spark.range(1)
    with pytest.raises(ConfigException, match="write_batch: batch_id is 'x', of type str: expect"):
        write_batch(frame, "x", {})  # type: ignore[arg-type]
    with pytest.raises(ConfigException, match=r"option PyKafka\.Batch\.Id is not an option of the"):
        write_batch(frame, 7, {"PyKafka.Batch.Id": "7"})


_SCRIPT = r"""
import functools, sys
from pyspark.sql import SparkSession, functions as F
from spark_kafka_sink import register, to_kafka, write_batch
from spark_kafka_sink.errors import ConfigException

def start(writer):
    # Spark gives the worker of foreachBatch ten seconds to come up, however busy the machine.
    for _ in range(10):
        try:
            return writer.start()
        except Exception as error:
            if "Python worker failed to connect back" not in str(error):
                raise
    raise TimeoutError("no worker came up")

remote, bootstrap, topic, folder = sys.argv[1:]
options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
spark = SparkSession.builder.remote(remote).getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "2")
rows = spark.range(10).select("id", (F.col("id") * 2).alias("Key"))
to_kafka(rows, key="id").write.format("pykafka").mode("append").options(**options).save()
extra = rows.selectExpr("'extra' AS key", "'v' AS value", "id AS offset", "Key AS Headers")
for _ in range(2):
    extra.limit(1).write.format("pykafka").mode("append").options(**options).save()

rows.selectExpr("CAST(id AS STRING) AS value").write.text(folder + "/source")
counts = spark.readStream.format("text").load(folder + "/source").groupBy("value").count()
for name, function in (
    ("partial", functools.partial(write_batch, options=options)),
    ("lambda", lambda df, batch_id: write_batch(df, batch_id, options)),
):
    stream = counts.selectExpr(f"'{name}' AS key", "value")
    writer = (
        stream.writeStream.outputMode("update").foreachBatch(function)
        .option("checkpointLocation", f"{folder}/{name}").trigger(availableNow=True)
    )
    start(writer).awaitTermination()

register(spark)
numbers = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
ours = lambda: numbers.writeStream.format("pykafka").options(**options)
for refused in (
    lambda: ours().trigger(continuous="1 second").start(),
    lambda: ours().outputMode("update").start(),
    lambda: ours().partitionBy("value").start(),
    lambda: ours().clusterBy("value").start(),
    lambda: numbers.writeStream.start(format="pykafka", partitionBy="value"),
):
    try:
        refused()
    except ConfigException as error:
        print(error)
stream = spark.readStream.format("text").load(folder + "/source").selectExpr("'stream' AS key", "*")
writer = (
    stream.writeStream.format("pykafka").options(**options).queryName("by Connect")
    .option("checkpointLocation", f"{folder}/stream").trigger(availableNow=True)
)
start(writer).awaitTermination()
spark.stop()
"""


_LAYOUTS = ("partitionBy", "clusterBy", "partitionBy")


def test_the_helpers_work_by_spark_connect(
    kafka: KafkaCluster, new_topic: NewTopic, connect: ConnectServer, tmp_path: Path
) -> None:
    """And the server's stderr names what is not sent, once."""
    topic, script = new_topic(1), tmp_path / "helpers.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, script, connect.remote, kafka.bootstrap, topic, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    said = [line.split()[0:2] for line in done.stdout.splitlines()]
    others = [["With", "the"], ["Spark", "cannot"]]
    assert said == [*others, *([by, "is"] for by in _LAYOUTS)], done.stdout
    found = sorted((r.key, r.value) for r in read_with_confluent(kafka.bootstrap, topic))
    assert found == sorted(
        [
            *((b"%d" % n, b'{"id":%d,"Key":%d}' % (n, 2 * n)) for n in range(10)),
            *[(b"extra", b"v")] * 2,
            *((name, b"%d" % n) for n in range(10) for name in (b"partial", b"lambda", b"stream")),
        ]
    )
    warning = "pykafka does not send the columns offset, Headers (column names are case-sensitive"
    assert connect.log.read_text().count(warning) == 1
