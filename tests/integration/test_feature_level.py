"""The driver reports what a broker is too old for, from the ApiVersions of its connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from pyspark.sql.types import MapType, StringType, StructType
from support.brokers.scripted_broker import ScriptedBroker, describe

from spark_kafka_sink.errors import (
    ApiException,
    UnsupportedCompressionTypeException,
    UnsupportedForMessageFormatException,
    UnsupportedVersionException,
)
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.wire.messages import (
    API_VERSIONS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
)

PLAIN: Final = StructType().add("value", StringType())
HEADERS: Final = StructType([*PLAIN.fields]).add("headers", MapType(StringType(), StringType()))
NO_IDS: Final = {"kafka.enable.idempotence": "false"}
ZSTD: Final = {"kafka.compression.type": "zstd"}
GZIP: Final = {"kafka.compression.type": "gzip"}


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """A broker that has the topic t, without settings."""
    with ScriptedBroker() as made:
        made.speaks[DESCRIBE_CONFIGS.key] = None
        made.metadata = describe(made.port, "t")
        yield made


def plan(broker: ScriptedBroker, schema: StructType, options: dict[str, str]) -> None:
    """Plan a write as Spark's planner does."""
    given = {"kafka.bootstrap.servers": broker.address, "topic": "t"} | options
    KafkaDataSource(given).writer(schema, overwrite=False)


@pytest.mark.parametrize(
    ("produce", "ids", "options", "schema", "kind", "said"),
    [
        (2, None, {}, PLAIN, UnsupportedVersionException,
         "no producer id was assigned: UNSUPPORTED_VERSION (35); the broker has no usable version "
         "of InitProducerId: it supports none, this client supports 0 to 5; "
         "kafka.enable.idempotence=false needs no producer id, but retries may then write "
         "duplicates"),
        (2, 0, {}, PLAIN, UnsupportedVersionException,
         "the broker is older than 0.11 and accepts message format v1, which has no producer ids; "
         "set kafka.enable.idempotence to false"),
        (1, None, NO_IDS, HEADERS, UnsupportedForMessageFormatException,
         "the broker is older than 0.11 and accepts message format v0, which has no record "
         "headers; remove the headers column"),
        (2, None, NO_IDS | ZSTD, PLAIN, UnsupportedCompressionTypeException,
         "the broker is older than 0.11 and accepts message format v1, which has no zstd; "
         "choose another kafka.compression.type"),
        (6, 0, ZSTD, PLAIN, UnsupportedCompressionTypeException,
         "kafka.compression.type=zstd needs Produce version 7, which brokers have from Kafka 2.1 "
         "on, and the broker takes at most version 6; choose another kafka.compression.type"),
        (None, 0, {}, PLAIN, UnsupportedVersionException,
         "the broker has no usable version of Produce: it supports none, this client supports 0 "),
    ],
)  # fmt: skip
def test_what_a_broker_is_too_old_for_is_refused_before_any_task(
    broker: ScriptedBroker,
    produce: int | None,
    ids: int | None,
    options: dict[str, str],
    schema: StructType,
    kind: type[ApiException],
    said: str,
) -> None:
    broker.speaks |= {PRODUCE.key: produce, INIT_PRODUCER_ID.key: ids}
    with pytest.raises(kind) as refused:
        plan(broker, schema, options)
    begin = f"bootstrap ({broker.address}) cannot take these rows: {said}"
    assert str(refused.value).startswith(begin)
    assert broker.asked == [API_VERSIONS.key, METADATA.key]


@pytest.mark.parametrize(
    ("produce", "ids", "options", "schema"),
    [
        (0, None, NO_IDS | GZIP, PLAIN),
        (3, 0, GZIP, HEADERS),
        (3, None, NO_IDS, HEADERS),
        (7, 0, ZSTD, HEADERS),
        (2, None, {"kafka.acks": "1"}, PLAIN),
    ],
)
def test_what_a_broker_can_do_is_planned_over_one_connection(
    broker: ScriptedBroker,
    produce: int,
    ids: int | None,
    options: dict[str, str],
    schema: StructType,
) -> None:
    broker.speaks |= {PRODUCE.key: produce, INIT_PRODUCER_ID.key: ids}
    plan(broker, schema, options)
    assert broker.asked == [API_VERSIONS.key, METADATA.key]


def test_topics_that_brokers_cannot_create_as_asked_are_refused_before_any_task(
    broker: ScriptedBroker,
) -> None:
    broker.speaks[CREATE_TOPICS.key] = 3
    named_by_rows = StructType([*PLAIN.fields]).add("topic", StringType())
    given = {"kafka.bootstrap.servers": broker.address, "createTopics": "true"}
    with pytest.raises(UnsupportedVersionException) as refused:
        KafkaDataSource(given).writer(named_by_rows, overwrite=False)
    text = str(refused.value)
    assert text.startswith("topics cannot be created with the defaults of the brokers: ")
    assert text.endswith("; brokers before 2.4 need topic.partitions and topic.replication")


def test_a_stream_with_other_columns_is_looked_at_anew(broker: ScriptedBroker) -> None:
    broker.speaks |= {PRODUCE.key: 2, INIT_PRODUCER_ID.key: None}
    given = {"kafka.bootstrap.servers": broker.address, "topic": "t"} | NO_IDS
    KafkaDataSource(given).streamWriter(PLAIN, overwrite=False)
    with pytest.raises(UnsupportedForMessageFormatException):
        KafkaDataSource(given).streamWriter(HEADERS, overwrite=False)
