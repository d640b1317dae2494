"""The counts of partitions in commit messages: they are small, and add up to the same report."""

from __future__ import annotations

import pickle
from random import Random
from typing import Final

from hypothesis import given
from hypothesis import strategies as st
from support.pure.partition_counts import counts_of

from spark_kafka_sink.spark.report import PartitionCounts, PartitionReport, merged

# The default of spark.driver.maxResultSize.
MAX_RESULT_BYTES: Final = 1 << 30
COUNT = st.integers(0, 2**40)
OFFSET = st.integers(0, 2**62)


@st.composite
def reports(draw: st.DrawFn) -> PartitionReport:
    """Return what a task wrote to a partition; the offsets may be unknown."""
    first = draw(st.just(-1) | OFFSET)
    return PartitionReport(
        topic=draw(st.sampled_from(["a", "b", "c"])),
        partition=draw(st.integers(0, 3) | st.integers(0, 2**31 - 1)),
        records=draw(COUNT),
        bytes=draw(COUNT),
        batches=draw(COUNT),
        compressed_bytes=draw(COUNT),
        retries=draw(COUNT),
        first_offset=first,
        last_offset=first if first < 0 else first + draw(COUNT),
    )


def key(report: PartitionReport) -> tuple[str, int]:
    """Return the partition of a report."""
    return report.topic, report.partition


@given(st.lists(st.lists(reports(), unique_by=key)))
def test_the_report_has_the_sums_of_all_tasks_by_topic_and_partition(
    tasks: list[list[PartitionReport]],
) -> None:
    found = merged(pickle.loads(pickle.dumps(counts_of(*written))) for written in tasks)
    every = [report for written in tasks for report in written]
    assert [key(report) for report in found] == sorted(set(map(key, every)))
    for report in found:
        parts = [part for part in every if key(part) == key(report)]
        assert report == PartitionReport(
            topic=report.topic,
            partition=report.partition,
            records=sum(part.records for part in parts),
            bytes=sum(part.bytes for part in parts),
            batches=sum(part.batches for part in parts),
            compressed_bytes=sum(part.compressed_bytes for part in parts),
            retries=sum(part.retries for part in parts),
            first_offset=min(
                (part.first_offset for part in parts if part.first_offset >= 0), default=-1
            ),
            last_offset=max(part.last_offset for part in parts),
        )


def task_with_keys(partitions: int) -> PartitionCounts:
    """Return the counts of a task of 128 MB with keys, which writes to all partitions."""
    random = Random(1)
    written = []
    for number in range(partitions):
        records = max(1, round(random.gauss(128_000 / partitions, 4)))
        size = records * 1000 + random.randrange(1000)
        first = random.randrange(10**9)
        written.append(
            PartitionReport(
                topic="t",
                partition=number,
                records=records,
                bytes=size,
                batches=1,
                compressed_bytes=size // 3 + random.randrange(1000),
                retries=0,
                first_offset=first,
                last_offset=first + records - 1,
            )
        )
    return counts_of(*written)


def test_spark_accepts_the_messages_of_large_jobs() -> None:
    for tasks, partitions in ((5_000, 10_000), (40_000, 1_000)):
        assert tasks * len(pickle.dumps(task_with_keys(partitions))) < MAX_RESULT_BYTES // 2
