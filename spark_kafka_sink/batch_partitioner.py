"""A user's own partitioner: a callable that chooses the partitions of a whole Arrow batch.

It is named by partitioner.class, as an object or as ``module.Name``, and called as
``partitioner(topic, batch, partitions)``: the name of the topic, a pyarrow.RecordBatch (of `append`
its own columns; of `send` key, value and timestamp) and how many partitions the topic has. It gives
an array, Arrow's or numpy's or a list, of one integer per row, null where the built-in partitioner
is to choose. An explicit partition of a row wins over it. The thread that calls `append` calls it,
for rows of `send` a thread of its own (`rows.partitioner_threads`); several may do so at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import DataException
from spark_kafka_sink.partitioner_class import OPTION, BatchPartitioner
from spark_kafka_sink.producer.slices import Rows
from spark_kafka_sink.producer.topic_metadata import TopicMetadata
from spark_kafka_sink.records.columns import BinaryColumn
from spark_kafka_sink.records.varint import Int64s

_LEFT_OPEN: Final = -1


def with_partitions(
    rows: Rows,
    batch: pa.RecordBatch,
    topics: Sequence[TopicMetadata],
    partitioner: BatchPartitioner,
    prefix: str = "",
) -> Rows:
    """Have the partitions of `rows`, which are those of `batch`, chosen where any is open.

    topics: the metadata of each of ``rows.topics``; prefix: what the user writes before the
    option's name. Raises DataException for an answer that is no partition for every row, and
    whatever the partitioner raises.
    """
    explicit = rows.partitions
    if explicit is not None and (explicit >= 0).all():
        return rows
    chosen = np.empty(len(rows), np.int64)
    for number, of_topic in rows.by_topic():
        part = batch if rows.topic_numbers is None else batch.take(pa.array(of_topic))
        partitions = len(topics[number].leaders)
        chosen[of_topic] = chosen_partitions(
            partitioner, rows.topics[number], part, partitions, f"{prefix}{OPTION}"
        )
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
    partitioner: BatchPartitioner, topic: str, batch: pa.RecordBatch, partitions: int, option: str
) -> Int64s:
    """Return what a partitioner chooses for the rows of a batch, int64, -1 where that is null.

    partitions: how many the topic has; option: its name as the user writes it. Raises DataException
    for an answer that is no partition for every row, and whatever the partitioner raises.
    """
    given = partitioner(topic, batch, partitions)
    try:
        array = given if isinstance(given, pa.Array) else pa.array(given)
        chosen = array.cast(pa.int64())
    except (pa.ArrowException, TypeError, ValueError) as error:
        message = f"{option} gave {type(given).__name__}: expected an array of integers ({error})"
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
