"""The user's own partitioner: a callable that chooses the partition of each row in an Arrow batch.

partitioner.class is the callable, or its name as ``module.Name``. It is called as
``partitioner(topic, batch, partitions)``: with the topic name, a pyarrow.RecordBatch and the
partition count of the topic. For `append`, the batch has the columns of the appended batch. For
`send`, it has the columns key, value and timestamp. The callable returns an Arrow array, a numpy
array or a list with one integer per row. For a null, the built-in partitioner chooses the
partition. The partition column has precedence over the partitioner. For `append`, the partitioner
is called in the thread that appends. For `send`, it is called in threads of
`client.partitioner_threads`. Several threads may call it at the same time.
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
from spark_kafka_sink.errors import (
    ConfigException,
    DataException,
    KafkaException,
    Option,
    message_of,
)
from spark_kafka_sink.plugins.loading import OwnedPlugins, name_user_code
from spark_kafka_sink.producer.metadata import TopicMetadata
from spark_kafka_sink.producer.murmur2 import murmur2, to_positive
from spark_kafka_sink.producer.partitioner import uses_keys
from spark_kafka_sink.records.columns import BinaryColumn, Rows
from spark_kafka_sink.records.layout import group_by_partition
from spark_kafka_sink.records.varint import Int64s

BatchPartitioner: TypeAlias = Callable[[str, pa.RecordBatch, int], Any]

PARTITIONER_CLASS: Final = "partitioner.class"
_LEFT_OPEN: Final = -1


def load_partitioner(given: object, owned: OwnedPlugins) -> BatchPartitioner | None:
    """Return the callable that partitioner.class names; None for a built-in partitioner.

    owned: gets the object if the producer must close it. Raise ConfigException if it cannot be
    loaded or called.
    """
    option = str(Option(PARTITIONER_CLASS))
    if not names_own_partitioner(given):
        return None
    partitioner, _ = owned.instance(option, given)
    if not callable(partitioner):
        message = (
            f"{option} is {given!r}, which cannot be called: expected a callable that takes "
            "topic, record batch and partition count"
        )
        raise ConfigException(message)
    return partitioner


class OwnPartitioner:
    """The user's own partitioner, without other user code.

    given: the value of partitioner.class. partitioner: the callable; None for a built-in
    partitioner. Raise ConfigException if it cannot be loaded or called. If this call has
    instantiated it, it is closed before.
    """

    def __init__(self, given: object) -> None:
        self._owned = OwnedPlugins()
        try:
            self.partitioner = load_partitioner(given, self._owned)
        except BaseException:
            self._owned.close()
            raise

    def close(self) -> KafkaException | None:
        """Close the partitioner once, unless an import found it. Log and return its error."""
        return self._owned.close()


def with_partitions(
    rows: Rows,
    batch: pa.RecordBatch,
    topics: Sequence[TopicMetadata],
    partitioner: BatchPartitioner,
) -> Rows:
    """Return `rows` with the partitioner's choice for each row that has no partition.

    batch: the batch to pass to the partitioner, with the same rows. topics: the metadata of each
    topic in ``rows.topics``. Raise DataException if the partitioner does not return one valid
    partition per row. Exceptions of the partitioner propagate.
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
    """Return rows of `send` as the batch to pass to a partitioner."""
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


_NUMBERS: Final = (pa.types.is_integer, pa.types.is_floating, pa.types.is_null)


def _integers(given: Any) -> pa.Array:  # noqa: ANN401 - what user code returned
    """Return numbers as an int64 array. Raise TypeError or ArrowException for other values."""
    array = given if isinstance(given, pa.Array) else pa.array(given)
    # Floats are accepted, because pandas converts integers with nulls to floats.
    if not any(is_number(array.type) for is_number in _NUMBERS):
        raise TypeError(f"found {array.type}")
    return array.cast(pa.int64())


def chosen_partitions(
    partitioner: BatchPartitioner, topic: str, batch: pa.RecordBatch, partitions: int
) -> Int64s:
    """Return the partition that a partitioner chooses for each row, as int64.

    Where the partitioner returns null, the partition is -1. partitions: the partition count of the
    topic. Raise DataException if the partitioner does not return one value per row, null or valid.
    Exceptions of the partitioner propagate.
    """
    option = Option(PARTITIONER_CLASS)
    try:
        given = partitioner(topic, batch, partitions)
    except BaseException as error:
        name_user_code(error, str(option), partitioner)
        raise
    try:
        chosen = _integers(given)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        message = (
            f"{option} returned {type(given).__name__}: expected an array of integers "
            f"({message_of(error)})"
        )
        raise DataException(message, topic=topic) from error
    if len(chosen) != batch.num_rows:
        message = (
            f"{option} returned {len(chosen)} partitions for {batch.num_rows} rows of topic "
            f"{topic}: expected one for each row"
        )
        raise DataException(message, topic=topic)
    # The filter drops nulls. If the partitioner has returned -1, this is rejected here, because -1
    # means null further below.
    is_wrong = pc.or_(pc.less(chosen, 0), pc.greater_equal(chosen, partitions))
    wrong = chosen.filter(is_wrong)
    if len(wrong):
        message = (
            f"{option} returned partition {wrong[0].as_py()} for a row of topic {topic}: "
            f"expected null or 0 to {partitions - 1}"
        )
        raise DataException(message, topic=topic)
    result: Int64s = chosen.fill_null(_LEFT_OPEN).to_numpy(zero_copy_only=False)
    return result


class Topics(NamedTuple):
    """Topics whose partitions are numbered consecutively, one topic after the other.

    partitions: the partition count of each topic. first: the index of each topic's partition 0 in
    this numbering. tasks: the number of tasks. It is the total partition count, because
    atomic_layout makes one task per partition.
    """

    names: list[str]
    partitions: list[int]
    first: list[int]
    tasks: int

    @classmethod
    def of(cls, partitions: Mapping[str, int]) -> Topics:
        """Return the topics and their numbering; partitions: the partition count by topic name."""
        counts = list(partitions.values())
        *first, tasks = accumulate(counts, initial=0)
        return cls(list(partitions), counts, first, tasks)


def partition_ranges(topics: Topics, names: pa.Array) -> pa.StructArray:
    """Return the partition count of each row's topic, and the index of that topic's partition 0.

    The index counts the partitions of all topics one after the other. Both fields are int32, and
    null for a topic that is not in `topics`. names: the topic of each row, a string or null.
    """
    numbers = pc.index_in(names, pa.array(topics.names, names.type))
    counts, first = (
        pa.array(each, pa.int32()).take(numbers) for each in (topics.partitions, topics.first)
    )
    return pa.StructArray.from_arrays([counts, first], ["partitions", "first"])


def keys_count(config: ProducerConfig) -> bool:
    """Return whether the built-in partitioner uses keys."""
    return uses_keys(config.partitioner_class, ignore_keys=config.partitioner_ignore_keys)


def key_hashes(keys: pa.Array) -> pa.Array:
    """Return the positive murmur2 hash of each key as int32; null for a null key.

    keys: string, binary, large_string or large_binary.
    """
    column = BinaryColumn.of(keys)
    mask = None if column.valid is None else ~column.valid
    return pa.array(to_positive(murmur2(column)).astype(np.int32), mask=mask)


_load = cache(OwnPartitioner)


def own_partitions(
    name: str | None, topics: pa.Array, partitions: pa.Array, rows: pa.StructArray
) -> pa.Array:
    """Return the partition that the user's own partitioner chooses for each row, as int32.

    name: the value of partitioner.class. topics: the topic of each row, a string or null.
    partitions: the partition count of each row's topic, int32 or null. rows: the columns to pass to
    the partitioner. The result of a row is null if the partitioner returns null for it, or if its
    partition count is null. Raise ConfigException if the partitioner cannot be loaded, and
    DataException if it returns an invalid partition. Exceptions of the partitioner propagate.
    """
    partitioner = _load(name).partitioner
    if partitioner is None:
        message = (
            f"{Option(PARTITIONER_CLASS)} is {name!r}: expected the name of a Python callable as "
            "module.Name"
        )
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
