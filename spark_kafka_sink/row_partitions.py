"""Partitions of rows that are not sent yet: hashes of keys, or what a user's own partitioner says.

Whole Arrow arrays in and out, as Spark hands them to an ``arrow_udf`` of `atomic_layout`. Null
means that nothing is known of a topic, or that somebody else is to choose.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.batch_partitioner import chosen_partitions
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.partitioner_class import OPTION, load_partitioner
from spark_kafka_sink.producer.murmur2 import murmur2, to_positive
from spark_kafka_sink.producer.partitioner import uses_keys
from spark_kafka_sink.records.columns import BinaryColumn
from spark_kafka_sink.records.layout import group_by_partition


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
    name: str | None, prefix: str, topics: pa.Array, partitions: pa.Array, rows: pa.StructArray
) -> pa.Array:
    """Give the partition that a user's own partitioner chooses for each row, int32 of rows.

    name, prefix: of partitioner.class, as `load_partitioner` takes them; topics: of each row, a
    string or null; partitions: how many that topic has, int32 or null. Raises ConfigException where
    the partitioner is not there, DataException for an answer that is no partition, and what it
    raises itself.
    """
    partitioner = _load(name, prefix)
    if partitioner is None:
        message = f"{prefix}{OPTION} is {name!r}: expected a partitioner of your own"
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
            chosen[at] = chosen_partitions(partitioner, topic, part, count, f"{prefix}{OPTION}")
    return pa.array(chosen, mask=chosen < 0).cast(pa.int32())
