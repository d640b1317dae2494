"""Tasks know the cluster's brokers from the driver, and do not all begin with the named ones."""

from __future__ import annotations

import socket
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest
from conftest import NewTopic
from pyspark.sql.types import StringType, StructType
from support.fault_proxy import API_VERSIONS, FaultProxy
from support.kafka_cluster import KafkaCluster
from support.readers import read_with_confluent

from spark_kafka_sink.model import Node
from spark_kafka_sink.spark.datasource import KafkaDataSource
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.task import write_task

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

SCHEMA = StructType().add("value", StringType())
ROWS = pa.record_batch({"value": ["a", "b"]})


def given(bootstrap: str, topic: str) -> dict[str, str]:
    """Give options that no other write has, so that a worker makes a producer for them."""
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
    """As where the driver comes to the cluster by another listener than the executors do.

    To wait for each of them would take far longer than max.block.ms.
    """
    topic = new_topic(3)
    limits = {"kafka.request.timeout.ms": "2000", "kafka.max.block.ms": "30000"}
    options = sink_options(given(kafka.bootstrap, topic) | limits)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        brokers = tuple(Node(id=number, host="127.0.0.1", port=port) for number in range(1, 101))
        write_task(replace(options, brokers=brokers), iter([ROWS]))
    assert values(kafka, topic) == [b"a", b"b"]
