"""``atomic_layout(df, options)``: rows laid out so that one task writes each Kafka partition.

A task that has rows for every partition keeps a connection to every broker, sends small batches to
all of them and leaves a producer state with each partition; one that has the rows of one partition
does none of this. It costs one shuffle. Which partition a row belongs to is what the sink itself
would choose, and is given to it as the column ``partition``.

Nothing is written here. The cluster is asked how many partitions there are, and rows are looked at
only for the topics of a topic column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.pandas.functions import arrow_udf

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.batch_partitioner import is_users_own, load_partitioner
from spark_kafka_sink.errors import ConfigException, DataException
from spark_kafka_sink.row_partitions import key_hashes, own_partitions, uses_keys
from spark_kafka_sink.spark.datasource import KafkaDataSource
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.writer_hooks import join_options
from spark_kafka_sink.warn_once import unsaid

# Columns that are there only until rows are laid out.
_NAME: Final = "pykafka topic"
_COUNT: Final = "pykafka partitions"
_FIRST: Final = "pykafka first task"
# What rows without a key are spread by, as far as there is any: the same row is always in the same
# partition, whichever attempt of a task computes it.
_SPREAD_BY: Final = ("key", "value", "timestamp")


class _Places(NamedTuple):
    """For each row its topic, how many partitions that has, and the task of the first of them.

    The last two are null where the topic is.
    """

    topic: Column
    partitions: Column
    first: Column


def atomic_layout(df: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Give `df` with a column ``partition``, the rows of each Kafka partition in their own task.

    options: of the sink, as for the write that is to follow. There are as many Spark partitions as
    the topics have Kafka partitions together. A partition that a row names is kept; then come
    kafka.partitioner.class if it is your own, the key as in the Java client, and a hash of the row.
    Topics of a column are found by running a query for them, which a stream cannot: set the option
    topic there, or lay out inside foreachBatch. createTopics is obeyed. Raises ConfigException,
    DataException and what the brokers say, as a write does.

    >>> laid_out = atomic_layout(flights, options)  # doctest: +SKIP
    >>> laid_out.write.format("pykafka").options(**options).save()  # doctest: +SKIP
    """
    if not isinstance(df, DataFrame):
        message = f"atomic_layout: df is of type {type(df).__name__}: expected a DataFrame of Spark"
        raise DataException(message)
    with unsaid():
        checked, _ = KafkaDataSource(join_options(None, options)).check(df.schema)
    columns = df.columns
    counts = _partition_counts(_topics(df, checked), checked, has_headers="headers" in columns)
    placed, places = _place(df, checked, counts)
    chosen = placed.withColumn("partition", _partition(checked, columns, places))
    task = places.first + F.pmod(F.coalesce(F.col("partition"), F.lit(0)), places.partitions)
    # Rows without a topic are somewhere: what becomes of them is for the write to say.
    tasks = max(1, sum(counts.values()))
    laid_out = chosen.repartitionById(tasks, F.coalesce(task, F.lit(0)))
    return laid_out.drop(_NAME, _COUNT, _FIRST)


def _topics(df: DataFrame, options: SinkOptions) -> list[str]:
    if options.topic is not None:
        return [options.topic]
    if df.isStreaming:
        message = (
            "atomic_layout: the topics of a topic column are found by looking at all rows, which a "
            "stream does not have yet: set the option topic, or lay out inside foreachBatch"
        )
        raise ConfigException(message)
    found = df.select("topic").distinct().collect()
    return sorted(row[0] for row in found if row[0] is not None)


def _partition_counts(
    topics: list[str], options: SinkOptions, *, has_headers: bool
) -> dict[str, int]:
    with KafkaAdmin(options.producer, has_headers=has_headers) as admin:
        found = admin.topics(topics, options.new_topic)
    return {name: found[name].partitions for name in topics}


def _place(
    df: DataFrame, options: SinkOptions, counts: Mapping[str, int]
) -> tuple[DataFrame, _Places]:
    """Give the frame with what the places of its rows are made of."""
    if options.topic is not None:
        count = F.lit(counts[options.topic])
        return df, _Places(F.lit(options.topic), count, F.lit(0))
    rows, first = [], 0
    for name, count_of in counts.items():
        rows.append((name, count_of, first))
        first += count_of
    schema = f"`{_NAME}` STRING, `{_COUNT}` INT, `{_FIRST}` INT"
    known = F.broadcast(df.sparkSession.createDataFrame(rows, schema))
    placed = df.join(known, F.col("topic") == F.col(f"`{_NAME}`"), "left")
    return placed, _Places(F.col("topic"), F.col(f"`{_COUNT}`"), F.col(f"`{_FIRST}`"))


def _partition(options: SinkOptions, columns: list[str], places: _Places) -> Column:
    """Give each row's Kafka partition, null without a topic."""
    choices = []
    if "partition" in columns:
        choices.append(F.col("partition"))
    producer = options.producer
    if is_users_own(producer.partitioner_class):
        choices.append(_own(options, columns, places))
    if "key" in columns and uses_keys(producer):
        choices.append(F.pmod(_computed(key_hashes, F.col("key")), places.partitions))
    spread = F.xxhash64(*(F.col(name) for name in _SPREAD_BY if name in columns))
    choices.append(F.pmod(spread, places.partitions).cast("int"))
    return F.coalesce(*choices)


def _own(options: SinkOptions, columns: list[str], places: _Places) -> Column:
    name, prefix = options.producer.partitioner_class, options.producer.option_prefix
    load_partitioner(name, prefix)
    row = F.struct(*(F.col(f"`{column.replace('`', '``')}`") for column in columns))
    return _computed(
        lambda topics, counts, rows: own_partitions(name, prefix, topics, counts, rows),
        *(places.topic, places.partitions, row),
    )


def _computed(function: Callable[..., pa.Array], *columns: Column) -> Column:
    """Give what a function computes of whole Arrow arrays, an int for each row."""
    # The stub wants the kind of function by its number; Spark warns of that.
    udf: Callable[..., Column] = arrow_udf(function, "int")  # type: ignore[call-overload]
    return udf(*columns)
