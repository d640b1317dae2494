"""What the tests of Avro and of JSON Schema share: rows, streams, a Connect client and readers."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from kafka.partitioner.default import murmur2
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.streaming.query import StreamingQuery

from spark_kafka_sink import write_batch
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.registry_server import RegistryServer
from support.oracles.readers import Record, read_with_confluent
from support.spark.spark_processes import ConnectServer

TYPES: Final = (
    "id BIGINT, ok BOOLEAN, text STRING, data BINARY, amount DECIMAL(38,18), day DATE, "
    "at TIMESTAMP, local TIMESTAMP_NTZ, number DOUBLE, small FLOAT, tiny TINYINT, short SMALLINT, "
    "list ARRAY<INT>, tree MAP<STRING, ARRAY<STRUCT<s: STRING, n: INT>>>, "
    "part STRUCT<s: STRING, n: INT>"
)
FULL: Final[Mapping[str, Any]] = {
    "id": 1,
    "ok": True,
    "text": "é😀" * 20_000,
    "data": b"\xff\x00",
    "amount": Decimal("-12345678901234567890.123456789012345678"),
    "day": date(1903, 5, 6),
    "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    "local": datetime.fromisoformat("1901-02-28T01:00:00.000001"),
    "number": 1e300,
    "small": 1.5,
    "tiny": -3,
    "short": -300,
    "list": [1, None],
    "tree": {"a": [{"s": "x", "n": None}], "b": []},
    "part": {"s": "in", "n": None},
}
EMPTY: Final[Mapping[str, Any]] = {**dict.fromkeys(FULL), "id": 2}
ORDER: Final = {
    "type": "record",
    "name": "com.shop.Order",
    "fields": [
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
        {"name": "source", "type": "string", "default": "spark"},
        {"name": "id", "type": ["long", "null"]},
    ],
}


def order() -> Column:
    """Return the column value for the schema ORDER, made of the column id; 3, 13, … are null."""
    color = F.when(F.col("id") % 2 == 0, "RED").otherwise("BLUE").alias("color")
    return F.when(F.col("id") % 10 != 3, F.struct("id", color)).alias("value")


def expected_orders(count: int) -> dict[int, Any]:
    """Return the values that `order` makes, by id."""
    return {
        number: None
        if number % 10 == 3
        else {"color": "BLUE" if number % 2 else "RED", "source": "spark", "id": number}
        for number in range(count)
    }


# -- writing --------------------------------------------------------------------------------------


def written_by_streams(
    rows: DataFrame, options: Sequence[Mapping[str, str]], folder: Path
) -> Iterator[StreamingQuery]:
    """Write a stream twice: as a sink, and with `write_batch`. Yield each query after its end.

    options: for the first and for the second query. folder: for checkpoints.
    """
    sink, batches = (rows.writeStream.trigger(availableNow=True) for _ in range(2))
    writers = (
        sink.format("pykafka").options(**options[0]),
        batches.foreachBatch(functools.partial(write_batch, options=options[1])),
    )
    for number, writer in enumerate(writers):
        query = writer.option("checkpointLocation", str(folder / f"checkpoint{number}")).start()
        query.awaitTermination()
        yield query


_CLIENT: Final = """
import json, sys
from pyspark.sql import SparkSession
from spark_kafka_sink import register, to_kafka
remote, value, options, registers = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
if registers == "True":
    register(spark)
rows = to_kafka(spark.range(30), key="id", value=value)
rows.write.format("pykafka").mode("append").options(**json.loads(options)).save()
spark.stop()
"""


def write_over_connect(
    connect: ConnectServer,
    value: str,
    options: Mapping[str, str],
    *,
    registers: bool = False,
) -> dict[bytes, Any]:
    """Write whole rows from a program that is a client of Spark Connect; return their values.

    value: the argument of `to_kafka`. registers: whether the program calls `register`.
    """
    arguments = [connect.remote, value, json.dumps(options), str(registers)]
    done = subprocess.run(
        [sys.executable, "-c", _CLIENT, *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return {b"%d" % number: {"id": number} for number in range(30)}


# -- reading --------------------------------------------------------------------------------------


def values_by_key(
    kafka: KafkaCluster, topic: str, read: Callable[[bytes | None], Any]
) -> dict[bytes, Any]:
    """Return the values in a topic by key. read: reads the bytes of a value."""
    records = read_with_confluent(kafka.bootstrap, topic)
    return {each.key or b"": read(each.value) for each in records}


def avro_reader(
    registry: RegistryServer, topic: str, field: str = "value", user_info: str = ""
) -> Callable[..., Any]:
    """Return Confluent's deserializer of Avro. field: key or value.

    It takes the bytes, and the headers of the record, in which it looks for the schema first.
    """
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    user = {"basic.auth.user.info": user_info} if user_info else {}
    deserializer = AvroDeserializer(SchemaRegistryClient({"url": registry.url, **user}))

    def read(data: bytes | None, headers: Sequence[tuple[str, bytes | None]] = ()) -> object:
        context = SerializationContext(topic, MessageField(field), list(headers))
        return deserializer(data, context)

    return read


def json_reader(
    registry: RegistryServer, topic: str, user_info: str = ""
) -> Callable[[bytes | None], Any]:
    """Return Confluent's deserializer of JSON, which validates each value by its own schema."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    user = {"basic.auth.user.info": user_info} if user_info else {}
    client = SchemaRegistryClient({"url": registry.url, **user})
    read = JSONDeserializer(None, schema_registry_client=client)
    return functools.partial(read, ctx=SerializationContext(topic, MessageField.VALUE))


def assert_in_java_s_partitions(records: Sequence[Record], partitions: int, prefix: int) -> None:
    """Check that each record is in the partition in which the Java client would put its key.

    prefix: how many bytes of a key are before its data. Check that the hash has counted them.
    """
    for each in records:
        assert each.partition == _hashed(each.key or b"", partitions)
    if prefix:
        of_data = [_hashed((each.key or b"")[prefix:], partitions) for each in records]
        assert of_data != [each.partition for each in records]


def _hashed(key: bytes, partitions: int) -> int:
    return int(murmur2(key) & 0x7FFFFFFF) % partitions
