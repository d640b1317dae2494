"""Jobs of few rows without keys fill the partitions of a topic evenly, with few batches.

The partitioner, the accumulator and the sink's defaults are real; nothing is sent, so that every
batch is still there to be counted.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from support.pure.pure_producer import TOPIC, PureProducer, Settings

from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.partitioner import Partitioner, TopicLoad, choose_partitions
from spark_kafka_sink.records.columns import BinaryColumn, RecordColumns, Rows
from spark_kafka_sink.records.encoder import encode_rows, record_sizes
from spark_kafka_sink.records.varint import Int64s

ROWS = 20_000
MANY_TOPICS = 1000
SEEDS = range(50)
BATCH_BYTES = 512 * 1024
# Spark hands rows over in batches of so many; how a task joins them depends on their pace.
ARROW_BATCH_ROWS = 10_000


@cache
def rows_of(count: int) -> tuple[Rows, Int64s]:
    """Return rows of some 30 bytes, and their sizes."""
    columns = RecordColumns.of(
        key=None,
        value=BinaryColumn.of(pa.array([bytes(20)] * count, pa.binary())),
        headers=None,
        timestamps_ms=np.zeros(count, np.int64),
    )
    return Rows(columns, [TOPIC], None, None), record_sizes(columns)


@cache
def rows_of_topics(topics: int, each: int) -> tuple[Rows, Int64s]:
    """Return rows of some 30 bytes, `each` of them for every topic, and their sizes."""
    rows, sizes = rows_of(topics * each)
    numbers = np.random.default_rng(1).permutation(np.repeat(np.arange(topics), each))
    return Rows(rows.columns, [f"topic-{n}" for n in range(topics)], numbers, None), sizes


class Task:
    """A task that appends rows; start: of its even spread, None for the Java client's way."""

    def __init__(
        self, partitions: int, start: int | None, seed: int, batch_bytes: int = BATCH_BYTES
    ) -> None:
        settings = Settings(batch_size=batch_bytes, buffer_memory=64 << 20, linger=0.3)
        self._partitions = partitions
        self._producer = PureProducer([1] * partitions, settings)
        self._producer.ready()
        self._partitioner = Partitioner(Random(seed))
        if start is not None:
            self._partitioner.spread_evenly(start)

    def append(self, rows: int) -> None:
        """Append rows as one slice."""
        topic = self._producer.metadata.topic(TOPIC)
        assert topic is not None
        self._append(*rows_of(rows), [topic])

    def append_to_topics(self, topics: int, each: int) -> None:
        """Append `each` rows for every topic as one slice."""
        known = [
            TopicMetadata(
                topic_id=UUID(int=1 + number),
                leaders=[1] * self._partitions,
                leader_epochs=[0] * self._partitions,
            )
            for number in range(topics)
        ]
        self._append(*rows_of_topics(topics, each), known)

    def _append(self, rows: Rows, sizes: Int64s, topics: list[TopicMetadata]) -> None:
        grouped = choose_partitions(rows, sizes, topics, self._partitioner, self._load)
        accumulator = self._producer.accumulator
        cuts, encoded = encode_rows(
            grouped.rows.columns, grouped.runs, accumulator.hold(grouped.targets)
        )
        accumulator.append(grouped.targets, cuts, encoded, 0.0)
        accumulator.let_go(grouped.targets)

    def _load(self, name: str, topic: TopicMetadata) -> TopicLoad:
        producer = self._producer
        return producer.accumulator.topic_load(name, topic, producer.latencies, adaptive=True)

    def batches(self) -> list[tuple[int, int]]:
        """Return the partition and the number of rows of each batch."""
        batches = self._producer.accumulator.incomplete
        return [(batch.topic_partition.partition, batch.record_count) for batch in batches]

    def batches_by_topic(self) -> Counter[str]:
        """Return the number of batches of each topic."""
        batches = self._producer.accumulator.incomplete
        return Counter(batch.topic_partition.topic for batch in batches)


@pytest.mark.parametrize("partitions", [4, 12])
@pytest.mark.parametrize(
    ("tasks", "slice_rows"),
    [(1, ROWS), (1, ARROW_BATCH_ROWS), (2, ARROW_BATCH_ROWS), (8, ARROW_BATCH_ROWS)],
)
def test_a_small_job_fills_all_partitions_evenly_with_few_batches(
    tasks: int, partitions: int, slice_rows: int
) -> None:
    for seed in SEEDS:
        rows, batches = Counter[int](), 0
        for number in range(tasks):
            task = Task(partitions, seed + number, 1000 * seed + number)
            left = ROWS // tasks
            while left:
                task.append(min(left, slice_rows))
                left -= min(left, slice_rows)
            for partition, count in task.batches():
                rows[partition] += count
                batches += 1
        assert sum(rows.values()) == ROWS
        assert len(rows) == partitions, seed
        assert max(rows.values()) <= 2 * ROWS / partitions, seed
        assert batches <= partitions * tasks, seed


def test_tasks_of_one_row_each_fill_a_partition_each() -> None:
    for seed in SEEDS:
        filled = set()
        for number in range(8):
            task = Task(8, seed + number, 1000 * seed + number)
            task.append(1)
            filled |= {partition for partition, _ in task.batches()}
        assert filled == set(range(8))


@pytest.mark.parametrize("partitions", [1, 12, 100])
def test_a_large_job_has_as_large_batches_as_by_the_java_client_s_way(partitions: int) -> None:
    """This includes a small first slice, whose rows are spread thinly."""
    batches = []
    for start in (0, None):
        task = Task(partitions, start, 1, batch_bytes=4096)
        for rows in (100, *[10_000] * 12):
            task.append(rows)
        batches.append(len(task.batches()))
    even, sticky = batches
    assert even <= sticky + partitions


def test_rows_of_a_thousand_topics_have_about_as_many_batches_as_topics() -> None:
    """Spread evenly, nearly every row would be a batch of its own, of some seventy bytes more."""
    task = Task(10, 3, 1)
    for slices in (1, 2):
        task.append_to_topics(MANY_TOPICS, 20)
        batches = task.batches_by_topic()
        assert len(batches) == MANY_TOPICS
        assert batches.total() <= slices * MANY_TOPICS
    # The partitions take turns nevertheless.
    for _ in range(40):
        task.append_to_topics(MANY_TOPICS, 20)
    rows = Counter[int]()
    for partition, count in task.batches():
        rows[partition] += count
    assert len(rows) == 10
    assert min(task.batches_by_topic().values()) > 1


@pytest.mark.parametrize(("topics", "filled"), [(8, 12), (20, 5), (50, 2)])
def test_the_more_topics_a_slice_has_the_fewer_partitions_of_each_it_fills(
    topics: int, filled: int
) -> None:
    """The slice has about a hundred batches; up to a hundred partitions, it fills all of them."""
    task = Task(12, 3, 1)
    task.append_to_topics(topics, 120)
    assert set(task.batches_by_topic().values()) == {filled}
