"""A user's own partitioner: a callable that chooses the partitions of a whole Arrow batch.

It is named by partitioner.class, as an object or as ``module.Name``, and called as
``partitioner(topic, batch, partitions)``: the name of the topic, a pyarrow.RecordBatch (of `append`
its own columns; of `send` key, value and timestamp) and how many partitions the topic has. It gives
an array, Arrow's or numpy's or a list, of one integer per row, null where the built-in partitioner
is to choose. An explicit partition of a row wins over it. The thread that calls `append` calls it,
for rows of `send` a thread of its own (`client.partitioner_threads`); several may do so at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.config import ProducerConfig, names_own_partitioner
from spark_kafka_sink.errors import ConfigException, DataException, Option, message_of
from spark_kafka_sink.plugins.loading import instance
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.murmur2 import murmur2, to_positive
from spark_kafka_sink.producer.partitioner import uses_keys
from spark_kafka_sink.records.columns import BinaryColumn, Rows
from spark_kafka_sink.records.layout import group_by_partition
from spark_kafka_sink.records.varint import Int64s

BatchPartitioner: TypeAlias = Callable[[str, pa.RecordBatch, int], Any]

PARTITIONER_CLASS: Final = "partitioner.class"
_LEFT_OPEN: Final = -1


def load_partitioner(given: object) -> BatchPartitioner | None:
    """Return the callable that partitioner.class names, None for one of the producer's own.

    Raises ConfigException.
    """
    option = str(Option(PARTITIONER_CLASS))
    if not names_own_partitioner(given):
        return None
    partitioner, _ = instance(option, given)
    if not callable(partitioner):
        message = (
            f"{option} is {given!r}, which cannot be called: expected a callable that takes "
            "topic, record batch and partition count"
        )
        raise ConfigException(message)
    return partitioner


def with_partitions(
    rows: Rows,
    batch: pa.RecordBatch,
    topics: Sequence[TopicMetadata],
    partitioner: BatchPartitioner,
) -> Rows:
    """Have the partitions of `rows`, which are those of `batch`, chosen where any is open.

    topics: the metadata of each of ``rows.topics``. Raises DataException for an answer that is no
    partition for every row, and whatever the partitioner raises.
    """
    explicit = rows.partitions
    if explicit is not None and (explicit >= 0).all():
        return rows
    chosen = np.empty(len(rows), np.int64)
    for number, of_topic in rows.by_topic():
        part = batch if rows.topic_numbers is None else batch.take(pa.array(of_topic))
        partitions = len(topics[number].leaders)
        chosen[of_topic] = chosen_partitions(partitioner, rows.topics[number], part, partitions)
    return replace(
        rows, partitions=chosen if explicit is None else np.where(explicit < 0, chosen, explicit)
    )


def sent_batch(rows: Rows) -> pa.RecordBatch:
    """Give rows that were sent one by one as the batch that a partitioner sees."""
    columns = rows.columns
    keys = pa.nulls(len(rows), pa.binary()) if columns.key is None else _arrow(columns.key)
    times = pa.array(columns.timestamps_ms)
    return pa.record_batch({"key": keys, "value": _arrow(columns.value), "timestamp": times})


def _arrow(column: BinaryColumn) -> pa.Array:
    buffers = [None, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    array = pa.Array.from_buffers(pa.large_binary(), len(column), buffers)
    if column.valid is None:
        return array
    return array.take(pa.array(np.arange(len(column)), mask=~column.valid))


def chosen_partitions(
    partitioner: BatchPartitioner, topic: str, batch: pa.RecordBatch, partitions: int
) -> Int64s:
    """Return what a partitioner chooses for the rows of a batch, int64, -1 where that is null.

    partitions: how many the topic has. Raises DataException for an answer that is no partition for
    every row, and whatever the partitioner raises.
    """
    option = Option(PARTITIONER_CLASS)
    given = partitioner(topic, batch, partitions)
    try:
        array = given if isinstance(given, pa.Array) else pa.array(given)
        chosen = array.cast(pa.int64())
    except (pa.ArrowException, TypeError, ValueError) as error:
        message = (
            f"{option} gave {type(given).__name__}: expected an array of integers "
            f"({message_of(error)})"
        )
        raise DataException(message, topic=topic) from error
    if len(chosen) != batch.num_rows:
        message = (
            f"{option} gave {len(chosen)} partitions for {batch.num_rows} rows of topic {topic}: "
            "expected one for each row"
        )
        raise DataException(message, topic=topic)
    # The filter leaves nulls out: -1 means null only from here on, and is refused before.
    is_wrong = pc.or_(pc.less(chosen, 0), pc.greater_equal(chosen, partitions))
    wrong = chosen.filter(is_wrong)
    if len(wrong):
        message = (
            f"{option} gave partition {wrong[0].as_py()} for a row of topic {topic}: "
            f"expected null or 0 to {partitions - 1}"
        )
        raise DataException(message, topic=topic)
    result: Int64s = chosen.fill_null(_LEFT_OPEN).to_numpy(zero_copy_only=False)
    return result


class Topics(NamedTuple):
    """Topics with their partitions, which are numbered one topic after the other.

    partitions: of each topic; first: the number of its first one; tasks: how many there are.
    """

    names: list[str]
    partitions: list[int]
    first: list[int]
    tasks: int

    @classmethod
    def of(cls, partitions: Mapping[str, int]) -> Topics:
        """Give each partition its number, from how many a topic has."""
        counts = list(partitions.values())
        *first, tasks = accumulate(counts, initial=0)
        return cls(list(partitions), counts, first, tasks)


def topic_places(topics: Topics, names: pa.Array) -> pa.StructArray:
    """Give the partitions of each row's topic and the number of the first one, int32 of rows.

    names: of each row, a string or null. Both are null for a topic that is not among `topics`.
    """
    numbers = pc.index_in(names, pa.array(topics.names, names.type))
    counts, first = (
        pa.array(each, pa.int32()).take(numbers) for each in (topics.partitions, topics.first)
    )
    return pa.StructArray.from_arrays([counts, first], ["partitions", "first"])


def keys_count(config: ProducerConfig) -> bool:
    """Tell whether a row's key has a say, where nobody else chooses its partition."""
    return uses_keys(config.partitioner_class, ignore_keys=config.partitioner_ignore_keys)


def key_hashes(keys: pa.Array) -> pa.Array:
    """Give the positive murmur2 of each key, int32 of rows, null for a null key.

    keys: string or binary, also large ones.
    """
    column = BinaryColumn.of(keys)
    mask = None if column.valid is None else ~column.valid
    return pa.array(to_positive(murmur2(column)).astype(np.int32), mask=mask)


_load = cache(load_partitioner)


def own_partitions(
    name: str | None, topics: pa.Array, partitions: pa.Array, rows: pa.StructArray
) -> pa.Array:
    """Give the partition that a user's own partitioner chooses for each row, int32 of rows.

    name: of partitioner.class; topics: of each row, a string or null; partitions: how many that
    topic has, int32 or null. Raises ConfigException where
    the partitioner is not there, DataException for an answer that is no partition, and what it
    raises itself.
    """
    partitioner = _load(name)
    if partitioner is None:
        message = f"{Option(PARTITIONER_CLASS)} is {name!r}: expected a partitioner of your own"
        raise ConfigException(message)
    batch = pa.RecordBatch.from_struct_array(rows)
    chosen = np.full(len(rows), -1)
    encoded = topics.dictionary_encode()
    of_topic = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy()
    order, numbers, starts = group_by_partition(of_topic.astype(np.int64))
    for number, start, stop in zip(numbers, starts[:-1], starts[1:], strict=True):
        at = order[start:stop]
        count = partitions[int(at[0])].as_py()
        if count is not None:
            topic = encoded.dictionary[number].as_py()
            part = batch.take(pa.array(at))
            chosen[at] = chosen_partitions(partitioner, topic, part, count)
    return pa.array(chosen, mask=chosen < 0).cast(pa.int32())
