"""Tasks know from the driver which brokers there are, and how many partitions their topic has.

So they do not all begin with the named brokers, and append more rows at once for many partitions.
"""

from __future__ import annotations

import socket
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest
from conftest import NewTopic
from pyspark.sql.types import StringType, StructType
from support.brokers.fault_proxy import API_VERSIONS, FaultProxy
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent

from spark_kafka_sink.client.appender import MANY_PARTITIONS
from spark_kafka_sink.model import Node
from spark_kafka_sink.spark.driver.register import LIMIT_BYTES
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.tasks.task import write_task
from spark_kafka_sink.task_producer import TaskProducer

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

SCHEMA = StructType().add("value", StringType())
ROWS = pa.record_batch({"value": ["a", "b"]})


def given(bootstrap: str, topic: str) -> dict[str, str]:
    """Return options that no other write has, so that a worker makes a producer for them."""
    client = f"client-{uuid.uuid4().hex}"
    return {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.client.id": client}


def values(kafka: KafkaCluster, topic: str) -> list[bytes]:
    return sorted(record.value or b"" for record in read_with_confluent(kafka.bootstrap, topic))


@pytest.mark.parametrize("more", [{}, {"createTopics": "true"}], ids=str)
def test_a_task_needs_the_named_broker_no_more_than_any_other(
    kafka: KafkaCluster, new_topic: NewTopic, more: dict[str, str]
) -> None:
    topic = new_topic(3)
    with FaultProxy() as named:
        named.broker_port = int(kafka.bootstrap.split(",")[0].rpartition(":")[2])
        options = given(f"127.0.0.1:{named.port}", topic) | more
        writer = KafkaDataSource(options).writer(SCHEMA, overwrite=False)
        asked = named.requests[API_VERSIONS]
        writer.write(iter([ROWS]))
        assert named.requests[API_VERSIONS] == asked
    assert values(kafka, topic) == [b"a", b"b"]


def test_a_stream_s_tasks_know_the_brokers_of_the_first_micro_batch(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    with FaultProxy() as named:
        named.broker_port = int(kafka.bootstrap.split(",")[0].rpartition(":")[2])
        options = given(f"127.0.0.1:{named.port}", topic)
        KafkaDataSource(options).streamWriter(SCHEMA, overwrite=False)
    KafkaDataSource(options).streamWriter(SCHEMA, overwrite=False).write(iter([ROWS]))
    assert values(kafka, topic) == [b"a", b"b"]


def test_brokers_that_a_task_cannot_reach_leave_it_the_named_ones(
    kafka: KafkaCluster, new_topic: NewTopic
) -> None:
    """The driver uses another listener of the cluster than the executors.

    To wait for each of its brokers would take far longer than max.block.ms.
    """
    topic = new_topic(3)
    limits = {"kafka.request.timeout.ms": "2000", "kafka.max.block.ms": "30000"}
    options = sink_options(given(kafka.bootstrap, topic) | limits)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        brokers = tuple(Node(id=number, host="127.0.0.1", port=port) for number in range(1, 101))
        write_task(replace(options, brokers=brokers), iter([ROWS]))
    assert values(kafka, topic) == [b"a", b"b"]


@pytest.mark.parametrize(("partitions", "appends"), [(3, [1000, 1000]), (MANY_PARTITIONS, [2000])])
def test_for_many_partitions_a_task_appends_twice_as_many_rows_at_once(
    kafka: KafkaCluster,
    new_topic: NewTopic,
    partitions: int,
    appends: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    appended: list[int] = []

    def count(
        self: TaskProducer, topic: str | None, rows: pa.RecordBatch, *, lingers_since: float | None
    ) -> None:
        appended.append(rows.num_rows)
        append(self, topic, rows, lingers_since=lingers_since)

    append = TaskProducer.append
    monkeypatch.setattr(TaskProducer, "append", count)
    topic = new_topic(partitions)
    rows = pa.record_batch({"value": [b"v" * (LIMIT_BYTES // 1000)] * 1000})
    writer = KafkaDataSource(given(kafka.bootstrap, topic)).writer(SCHEMA, overwrite=False)
    writer.write(iter([rows, rows]))
    assert appended == appends
    assert len(values(kafka, topic)) == 2000
