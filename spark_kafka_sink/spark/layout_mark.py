"""The mark that `atomic_layout` leaves in a DataFrame: the partition counts of the topics.

The mark is in the metadata of the column ``partition``, so it follows that column through selects
and sorts, into foreachBatch and into files, also with Spark Connect. If the partition count of a
topic changes after the layout, its keys belong to different partitions. So the driver compares the
counts before the job, and each task compares them before its first row for a topic.

A union of two such DataFrames has only the first one's mark, and a topic column may be changed
after the layout. So a task refuses rows for a topic that is not in the mark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.model import TOPIC_NAME, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_KEY: Final = "pykafka.partitions"


def as_metadata(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the mark of atomic_layout as column metadata. counts: partition counts by topic."""
    return {_KEY: dict(counts)}


def laid_out_counts(schema: StructType) -> dict[str, int] | None:
    """Return the partition counts in the mark of atomic_layout, or None if there is no mark.

    The mark is empty if the topics come from a topic column in which atomic_layout found none.
    """
    marks = (f.metadata.get(_KEY) for f in schema.fields if f.name == "partition" and f.metadata)
    return next((dict(mark) for mark in marks if mark is not None), None)


def refuse_laid_out(schema: StructType) -> None:
    """Raise DataException if atomic_layout is called with a DataFrame that it has returned.

    A second call would keep the partitions, which were computed for the topics and partition counts
    of the first call. In a union, the mark is found only if the marked DataFrame comes first.
    """
    counts = laid_out_counts(schema)
    if counts is not None:
        topics = f" for topic {next(iter(counts))}" if len(counts) == 1 else ""
        message = (
            f"atomic_layout: the column partition of df is from an earlier atomic_layout{topics}: "
            "call it once, on the rows that you gave to the earlier call. If these had no column "
            "partition, df.drop('partition') also works"
        )
        raise DataException(message)


def laid_out_partitions(counts: Mapping[str, int]) -> tuple[TopicPartition, ...]:
    """Return all partitions of the topics in the mark. counts: their partition counts by topic."""
    return tuple(
        TopicPartition(topic, number)
        for topic, partitions in sorted(counts.items())
        for number in range(partitions)
    )


def check_laid_out_topic(laid_out: Mapping[str, int], topic: str) -> None:
    """Raise DataException if atomic_layout has partitioned the rows, but not for `topic`."""
    if laid_out and topic not in laid_out:
        message = (
            f"{_for_topics(laid_out)}, but the option topic is {topic}: call atomic_layout with "
            "the options of the write"
        )
        raise DataException(message, topic=topic)


def _check_topics_of_rows(laid_out: Mapping[str, int], topics: Iterable[str]) -> None:
    """Raise DataException if rows go to a topic for which atomic_layout was not called.

    Ignore invalid topic names, because the error is raised later, when their rows are appended.
    """
    for topic in topics:
        if topic not in laid_out and TOPIC_NAME.match(topic):
            message = (
                f"{_for_topics(laid_out)}, and a row's topic is {topic}: call atomic_layout after "
                "a union or a change of the column topic, not before it"
            )
            raise DataException(message, topic=topic)


def _for_topics(laid_out: Mapping[str, int]) -> str:
    first, *others = laid_out
    more = f" and {len(others)} more" if others else ""
    return f"the rows were laid out by atomic_layout for topic {first}{more}"


def check_partition_counts(laid_out: Mapping[str, int], found: Mapping[str, int]) -> None:
    """Raise DataException if a topic's partition count differs from the count in the mark.

    laid_out: the counts in the mark, by topic. found: the current counts, by topic. All its topics
    are in `laid_out`.
    """
    for topic, partitions in found.items():
        expected = laid_out[topic]
        if partitions != expected:
            message = (
                f"the rows were laid out by atomic_layout for {expected} partitions of topic "
                f"{topic}, which has {partitions} now: their keys belong to other partitions. "
                "Call atomic_layout right before the write (in a stream, in foreachBatch)"
            )
            raise DataException(message, topic=topic)


class LayoutCheck:
    """Checks each topic of a task once: its partition count must still be the one in the mark.

    partition_counts: a function such as `TaskProducer.partition_counts`.
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
        """Whether atomic_layout has partitioned the rows."""
        return bool(self._laid_out)

    def check(self, topics: Collection[str]) -> None:
        """Check topics before their first row is sent.

        Raise DataException for a topic that is not in the mark, or whose partition count differs
        from the count in the mark.
        """
        if not self._laid_out:
            return
        _check_topics_of_rows(self._laid_out, topics)
        new = {name: self._laid_out[name] for name in self._unchecked.intersection(topics)}
        if new:
            check_partition_counts(self._laid_out, self._partition_counts(new))
            self._unchecked -= new.keys()
