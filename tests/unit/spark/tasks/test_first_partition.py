"""The partition at which a task begins to spread its rows without a key."""

from __future__ import annotations

from random import Random

import pytest
from pyspark import TaskContext
from support.pure.unreachable import NOBODY
from support.spark.played_tasks import in_task

from spark_kafka_sink.config import producer_config
from spark_kafka_sink.spark.tasks import task
from spark_kafka_sink.task_producer import TaskProducer


class LargestNumbers(Random):
    """Draws the largest number of each range."""

    def randrange(self, start: int, *_: object) -> int:
        """Return the largest number."""
        return start - 1


def test_the_tasks_of_every_stage_begin_side_by_side_where_a_producer_can_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task, "Random", LargestNumbers)
    begins = []
    with TaskProducer(producer_config({"bootstrap.servers": NOBODY})) as producer:
        for partition in range(3):
            with in_task(partition):
                begins.append(task._first_partition(TaskContext.get()))
            producer.spread_evenly(begins[-1])
    assert begins == [2**31 - 1, 0, 1]


def test_tasks_without_numbers_begin_anywhere() -> None:
    # Sail has no task context: from one place, small tasks would fill one partition.
    assert len({task._first_partition(None) for _ in range(20)}) > 1
