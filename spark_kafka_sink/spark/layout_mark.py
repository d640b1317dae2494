"""The mark of `atomic_layout`: the partition counts of topics when rows were laid out.

It is in the metadata of the column ``partition``, so it follows that column: through selects and
sorts, over Spark Connect, into foreachBatch and into files. With another partition count, a topic
has other partitions for the keys. The driver compares the counts before the job, and each task
before its first row of a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.model import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_KEY: Final = "pykafka.partitions"


def as_metadata(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the mark as metadata of a column; counts: of partitions, by topic."""
    return {_KEY: dict(counts)}


def laid_out_counts(schema: StructType) -> dict[str, int]:
    """Return the partition counts of the mark; empty if the rows were not laid out."""
    marks = (f.metadata.get(_KEY) for f in schema.fields if f.name == "partition" and f.metadata)
    return next((dict(mark) for mark in marks if mark), {})


def laid_out_partitions(counts: Mapping[str, int]) -> tuple[TopicPartition, ...]:
    """Return all partitions of the topics that rows were laid out for."""
    return tuple(
        TopicPartition(topic, number)
        for topic, partitions in sorted(counts.items())
        for number in range(partitions)
    )


def check_laid_out_topic(laid_out: Mapping[str, int], topic: str) -> None:
    """Raise DataException if the rows were laid out for other topics than `topic`."""
    if laid_out and topic not in laid_out:
        first, *others = laid_out
        more = f" and {len(others)} more" if others else ""
        message = (
            f"the rows were laid out by atomic_layout for topic {first}{more}, and topic is "
            f"{topic}: call atomic_layout with the options of the write"
        )
        raise DataException(message, topic=topic)


def check_partition_counts(laid_out: Mapping[str, int], found: Mapping[str, int]) -> None:
    """Raise DataException if a topic has another partition count than the rows were laid out for.

    found: the partition counts of topics, each of which is in `laid_out`.
    """
    for topic, partitions in found.items():
        expected = laid_out[topic]
        if partitions != expected:
            message = (
                f"the rows were laid out by atomic_layout for {expected} partitions of topic "
                f"{topic}, which has {partitions} now: their keys belong to other partitions. "
                "Call atomic_layout again, right before the write (in a stream, in foreachBatch)"
            )
            raise DataException(message, topic=topic)


class LayoutCheck:
    """Compares the mark with each topic that a task writes to, once.

    partition_counts: as that of `TaskProducer`.
    """

    def __init__(
        self,
        laid_out: Mapping[str, int],
        partition_counts: Callable[[Mapping[str, int]], Mapping[str, int]],
    ) -> None:
        self._laid_out = laid_out
        self._unchecked = set(laid_out)
        self._partition_counts = partition_counts

    @property
    def is_needed(self) -> bool:
        """Whether there are topics to check."""
        return bool(self._unchecked)

    def check(self, topics: Iterable[str]) -> None:
        """Check topics before their first row is sent; see `check_partition_counts`."""
        new = {name: self._laid_out[name] for name in self._unchecked.intersection(topics)}
        if new:
            check_partition_counts(self._laid_out, self._partition_counts(new))
            self._unchecked -= new.keys()
