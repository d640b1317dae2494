"""KafkaProducer in a Python that has no pyspark."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import NewTopic
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import read_with_confluent
from support.programs.pythons import PYSPARK, modules_without, run_with

pytestmark = pytest.mark.kafka

PRODUCE = """
import sys
import pyarrow as pa
from spark_kafka_sink import KafkaProducer

bootstrap, topic = sys.argv[1:]
with KafkaProducer({"bootstrap.servers": bootstrap, "compression.type": "lz4"}) as producer:
    future = producer.send(topic, b"a row", key=b"k")
    producer.flush()
    producer.append(topic, pa.record_batch({"value": ["of a batch", "another"]}))
print(future.result().offset)
print([name for name in sys.modules if name.partition(".")[0] in ("pyspark", "py4j")])
"""


def test_it_sends_rows_and_batches_and_loads_nothing_of_pyspark(
    kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    modules = modules_without(tmp_path / "modules", *PYSPARK)
    done = run_with(modules, PRODUCE, [kafka.bootstrap, topic])
    assert done.stdout == "0\n[]\n", done.stderr
    values = [r.value for r in read_with_confluent(kafka.bootstrap, topic)]
    assert values == [b"a row", b"of a batch", b"another"]


def test_it_loads_nothing_of_pyspark_where_that_is_installed(
    kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    modules = modules_without(tmp_path / "modules")
    assert (modules / "pyspark").is_dir()
    done = run_with(modules, PRODUCE, [kafka.bootstrap, new_topic(1)])
    assert done.stdout == "0\n[]\n", done.stderr
