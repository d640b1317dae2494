"""Partitions of rows that are not sent yet: hashes of keys, or what a user's own partitioner says.

Whole Arrow arrays in and out, as Spark hands them to an ``arrow_udf`` of `atomic_layout`. Null
means that somebody else is to choose.
"""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np
import pyarrow as pa

from spark_kafka_sink.batch_partitioner import OPTION, chosen_partitions, load_partitioner
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.producer.partitioner import Partitioner, hash_keys
from spark_kafka_sink.records.columns import BinaryColumn
from spark_kafka_sink.records.layout import group_by_partition

_load = cache(load_partitioner)


def uses_keys(config: ProducerConfig) -> bool:
    """Tell whether a row's key has a say, where nobody else chooses its partition."""
    return Partitioner(
        Random(),  # noqa: S311 - no secrets, and nothing is drawn
        config.partitioner_class,
        ignore_keys=config.partitioner_ignore_keys,
    ).uses_keys


def key_hashes(keys: pa.Array) -> pa.Array:
    """Give the positive murmur2 of each key, int32 of rows, null for a null key.

    keys: string or binary, also large ones.
    """
    hashes = hash_keys(BinaryColumn.of(keys))
    return pa.array(hashes, mask=None if hashes is None else hashes < 0).cast(pa.int32())


def own_partitions(
    name: str | None, prefix: str, topics: pa.Array, counts: pa.Array, rows: pa.StructArray
) -> pa.Array:
    """Give the partition that a user's own partitioner chooses for each row, int32 of rows.

    name, prefix: of partitioner.class, as `load_partitioner` takes them; topics: of each row, a
    string or null; counts: the partitions of that topic, int32. Raises what the partitioner raises,
    and DataException for an answer that is no partition.
    """
    partitioner = _load(name, prefix)
    if partitioner is None:
        return pa.nulls(len(rows), pa.int32())
    batch = pa.RecordBatch.from_struct_array(rows)
    chosen = np.full(len(rows), -1)
    encoded = topics.dictionary_encode()
    of_topic = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy()
    order, numbers, starts = group_by_partition(of_topic.astype(np.int64))
    for number, start, stop in zip(numbers, starts[:-1], starts[1:], strict=True):
        at = order[start:stop]
        count = counts[int(at[0])].as_py()
        if number < len(encoded.dictionary) and count is not None:
            part = batch.take(pa.array(at))
            topic = encoded.dictionary[number].as_py()
            chosen[at] = chosen_partitions(partitioner, topic, part, count, f"{prefix}{OPTION}")
    return pa.array(chosen, mask=chosen < 0).cast(pa.int32())
