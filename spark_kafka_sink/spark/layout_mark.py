"""The mark of `atomic_layout`: the partition counts of topics when rows were laid out.

It is in the metadata of the column ``partition``, so it follows that column: through selects and
sorts, over Spark Connect, into foreachBatch and into files. With another partition count, a topic
has other partitions for the keys. The driver compares the counts before the job, and each task
before its first row of a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.errors import DataException

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_KEY: Final = "pykafka.partitions"


def as_metadata(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the mark as metadata of a column; counts: of partitions, by topic."""
    return {_KEY: dict(counts)}


def laid_out_counts(schema: StructType) -> dict[str, int]:
    """Return the partition counts of the mark; empty if the rows were not laid out."""
    marks = (f.metadata.get(_KEY) for f in schema.fields if f.name == "partition" and f.metadata)
    return next((dict(mark) for mark in marks if mark), {})


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

    topic: of all rows, None for a topic column; partition_counts: as that of `KafkaProducer`.
    """

    def __init__(
        self,
        laid_out: Mapping[str, int],
        topic: str | None,
        partition_counts: Callable[[Mapping[str, int]], Mapping[str, int]],
    ) -> None:
        self._laid_out = laid_out
        self._unchecked = set(laid_out)
        self._topic = topic
        self._partition_counts = partition_counts

    def check(self, batch: pa.RecordBatch) -> None:
        """Check the topics of an Arrow batch; see `check_partition_counts`."""
        if not self._unchecked:
            return
        topics = {self._topic} if self._topic is not None else _topics_of(batch)
        new = {name: self._laid_out[name] for name in topics & self._unchecked}
        if new:
            check_partition_counts(self._laid_out, self._partition_counts(new))
            self._unchecked -= new.keys()


def _topics_of(batch: pa.RecordBatch) -> set[str]:
    # Spark's strings may hold bytes that are not UTF-8.
    names = batch.column("topic").unique().drop_null().cast("large_binary").to_pylist()
    return {name.decode(errors="replace") for name in names}
