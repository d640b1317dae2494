"""A broker dies by SIGKILL in the middle of a job and comes back: nothing is lost or doubled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from conftest import NewTopic
from pyspark.sql import SparkSession
from support.flights import check_every_row_once, rows
from support.kafka_cluster import KafkaCluster
from support.readers import read_with_confluent

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_PATIENCE_S = 120


def gate(folder: str, batches_before: list[int]) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Make a mapInArrow function that stops after so many batches until a file appears.

    Gate i opens when `folder` has a file named i.
    """

    def pass_through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number in batches_before:
                flag = Path(folder, str(batches_before.index(number)))
                while not flag.exists():
                    time.sleep(0.02)
            yield batch

    return pass_through


def count_records(admin: AdminClient, topic: str, partitions: int) -> int:
    """Give how many records a topic has, as far as its leaders answer."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library has no types here
    asked = {TopicPartition(topic, number): latest for number in range(partitions)}
    total = 0
    for future in admin.list_offsets(asked, request_timeout=1).values():
        if future.exception() is None:
            total += future.result().offset
    return total


def wait_for_records(bootstrap: str, topic: str, partitions: int, more_than: int) -> int:
    """Wait until a topic has more records than that and give how many."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        found = count_records(admin, topic, partitions)
        if found > more_than:
            return found
    message = f"{topic} did not get more than {more_than} records"
    raise TimeoutError(message)


def test_a_broker_is_killed_and_restarted_in_the_middle_of_a_job(
    spark: SparkSession, frail_kafka: KafkaCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    count, tasks, partitions, victim = 1_200_000, 2, 12, 2
    topic = new_topic(partitions)
    frame = rows(spark, count, tasks)
    # A task has 60 batches of 10,000 rows; the sink works on 8 MiB of them at a time.
    gated = frame.mapInArrow(gate(str(tmp_path), [20, 40]), frame.schema)

    def kill_and_restart() -> None:
        try:
            before = wait_for_records(frail_kafka.bootstrap, topic, partitions, more_than=0)
            frail_kafka.kill(victim)
            try:
                (tmp_path / "0").touch()
                wait_for_records(frail_kafka.bootstrap, topic, partitions, more_than=before)
            finally:
                frail_kafka.start_node(victim)
        finally:
            (tmp_path / "0").touch()
            (tmp_path / "1").touch()

    with ThreadPoolExecutor(1) as beside:
        chaos = beside.submit(kill_and_restart)
        # A task that fails is not run again in a local session, so no row may come twice.
        (
            gated.write.format("pykafka")
            .mode("append")
            .option("kafka.bootstrap.servers", frail_kafka.bootstrap)
            .option("kafka.compression.type", "lz4")
            .option("kafka.batch.size", "65536")
            .option("topic", topic)
            .save()
        )
        chaos.result()
    check_every_row_once(
        read_with_confluent(frail_kafka.bootstrap, topic), count, tasks, partitions
    )
