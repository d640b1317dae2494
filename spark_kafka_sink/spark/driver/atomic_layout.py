"""``atomic_layout(df, options)``: partitions rows so that one task writes each Kafka partition.

A task with rows for every Kafka partition keeps a connection to every broker, sends small batches
to all of them and creates a producer state in each partition. A task with the rows of one Kafka
partition does not. The layout costs one shuffle. The Kafka partition of each row is computed before
the shuffle, and stored in the column ``partition``, which the sink then uses.

No row is written here. The partition counts come from the brokers. Rows are read only to find the
topics that a topic column names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import DataType, IntegerType, StructType

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import names_own_partitioner
from spark_kafka_sink.errors import ConfigException, Option
from spark_kafka_sink.model import TOPIC_NAME
from spark_kafka_sink.plugins.batch_partitioner import (
    Topics,
    key_hashes,
    keys_count,
    own_partitions,
    partition_ranges,
)
from spark_kafka_sink.spark.compat import repartition_by_id, with_arrow_column
from spark_kafka_sink.spark.driver.hooks.notes import join_options
from spark_kafka_sink.spark.exactly_once import EXACTLY_ONCE_OPTIONS
from spark_kafka_sink.spark.layout_mark import as_metadata, refuse_laid_out
from spark_kafka_sink.spark.options import (
    SinkOptions,
    check_given_options,
    name_kafka_options,
    sink_options,
)
from spark_kafka_sink.spark.planning.datasource import (
    check_batch_write,
    check_options_and_columns,
    check_stream_write,
)
from spark_kafka_sink.spark.planning.encodings import encoded_columns
from spark_kafka_sink.spark.session import check_frame, is_connect
from spark_kafka_sink.spark.topics import topics_to_write

_INT: Final = IntegerType()
_PLACES: Final = StructType().add("partitions", _INT).add("first", _INT)
# A row without a key gets its partition from a hash of these columns, so that it gets the same
# partition if Spark recomputes it.
_SPREAD_BY: Final = ("key", "value", "timestamp")
# The names of temporary columns.
_PLACE: Final = "place"
_HASH: Final = "hash"
_OWN: Final = "own"


class _Frame(NamedTuple):
    """A DataFrame with numbers as column names, because Spark ignores the case of names.

    names: the original names of the columns.
    """

    df: DataFrame
    names: list[str]

    @classmethod
    def of(cls, df: DataFrame) -> _Frame:
        return cls(df.toDF(*(f"_{number}" for number in range(len(df.columns)))), df.columns)

    def has(self, name: str) -> bool:
        return name in self.names

    def column(self, name: str) -> Column:
        return F.col(f"_{self.names.index(name)}")

    def computed(
        self, name: str, function: Callable[..., pa.Array], kind: DataType, *columns: Column
    ) -> _Frame:
        """Return the frame with a temporary column, computed from Arrow arrays of other columns."""
        return self._replace(df=with_arrow_column(self.df, name, function, kind, *columns))


class _Place(NamedTuple):
    """Columns about each row's topic: its name, its partition count, and its first task.

    first: the index of the task that gets the rows of the topic's partition 0. The following tasks
    get the rows of its other partitions. `partitions` and `first` are null if the topic was not
    found.
    """

    topic: Column
    partitions: Column
    first: Column


def atomic_layout(df: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Return `df` with a column ``partition``, and one Spark partition for each Kafka partition.

    options: the options of the following write; createTopics works as in the write. The result has
    as many Spark partitions as all its topics have Kafka partitions in total. The write fails if
    the partition count of a topic changes after this call. If the topic of a stream may get more
    partitions, call this inside foreachBatch.

    The Kafka partition of a row comes from the first of these that applies: its column
    ``partition``, your own kafka.partitioner.class, a hash of the key as in the Java client, or a
    hash of key, value and timestamp. The write is correct only if a row gets the same partition
    when Spark recomputes it. A DataFrame that this function has returned is refused.

    The topics of a topic column are found with a query over all rows, so a stream with a topic
    column is refused. Call everything that shuffles before this function, and
    ``sortWithinPartitions`` after it. With Spark Connect, the client process connects to the
    brokers. Raise ConfigException, DataException and the exceptions of the brokers, as a write
    does.

    >>> laid_out = atomic_layout(flights, options)  # doctest: +SKIP
    >>> laid_out.write.format("pykafka").mode("append").options(**options).save()  # doctest: +SKIP
    """
    check_frame("atomic_layout", df)
    check_given_options(options)
    refuse_laid_out(df.schema)
    given = _at_least_once(join_options(None, options))
    checked = sink_options(given)
    _refuse_unknown_topics(checked, df)
    _refuse_encoded_keys(checked, df.schema)
    _check_write(df, given)
    frame = _Frame.of(df)
    topics = _found_topics(frame, checked)
    frame, place = _placed(frame, checked, topics)
    if _has_every_partition(df.schema):
        partition = frame.column("partition")
    else:
        frame, partition = _partition(checked, frame, place)
    chosen = frame.df.withColumn("partition", partition)
    task = place.first + F.pmod(F.coalesce(F.col("partition"), F.lit(0)), place.partitions)
    # Rows without a topic go to the first task. The write then refuses them or handles them as bad
    # rows.
    laid_out = repartition_by_id(chosen, max(1, topics.tasks), F.coalesce(task, F.lit(0)))
    columns = [frame.column(name).alias(name) for name in frame.names if name != "partition"]
    counts = dict(zip(topics.names, topics.partitions, strict=True))
    marked = F.col("partition").alias("partition", metadata=as_metadata(counts))
    return laid_out.select(*columns, marked)


def _check_write(df: DataFrame, options: Mapping[str, str]) -> None:
    """Make the checks of the following write, except those that need the schema registry.

    The layout needs no schema. Streams and write_batch remember schemas for latest.cache.ttl.sec,
    so inside foreachBatch, a query here would be one more for each micro-batch.
    """
    if is_connect(df):
        check_options_and_columns(df.schema, options)
    elif df.isStreaming:
        check_stream_write(df.schema, options, asks_registry=False)
    else:
        check_batch_write(df.schema, options, asks_registry=False)


def _refuse_unknown_topics(options: SinkOptions, df: DataFrame) -> None:
    """Raise ConfigException for a stream whose topics come from a topic column."""
    if options.topic is None and df.isStreaming and "topic" in df.columns:
        message = (
            "atomic_layout has to read all rows to find the topics in the topic column, which it "
            "cannot do in a stream: set the option topic, or call atomic_layout in foreachBatch"
        )
        raise ConfigException(message)


@name_kafka_options()
def _refuse_encoded_keys(options: SinkOptions, schema: StructType) -> None:
    """Raise ConfigException if partitions depend on columns that the tasks encode later."""
    encoded = encoded_columns(options, schema)
    if _has_every_partition(schema):
        return
    if "key" in encoded and keys_count(options.producer):
        message = (
            "atomic_layout cannot be used with this keyFormat: it computes the partition of each "
            "row from the bytes of the key, but keys are only encoded later, by the tasks of the "
            "write. Use a string or binary key, add a column partition that is never null, or "
            "write without atomic_layout"
        )
        raise ConfigException(message)
    if encoded and names_own_partitioner(options.producer.partitioner_class):
        message = (
            f"atomic_layout cannot be used with your {Option('partitioner.class')} and an encoded "
            f"column: atomic_layout would pass it the column {encoded[0]} before encoding, and the "
            "write after encoding, so it may choose different partitions. Write without "
            "atomic_layout"
        )
        raise ConfigException(message)


def _has_every_partition(schema: StructType) -> bool:
    """Return whether the column ``partition`` is never null, and so sets each row's partition."""
    return any(each.name == "partition" and not each.nullable for each in schema.fields)


def _at_least_once(given: Mapping[str, str]) -> dict[str, str]:
    """Return all options except those for exactly once.

    With mode `single`, the checks here would refuse the rows, because they have no layout yet.
    """
    own = {name.lower() for name in EXACTLY_ONCE_OPTIONS}
    return {name: value for name, value in given.items() if name.lower() not in own}


def _found_topics(frame: _Frame, options: SinkOptions) -> Topics:
    """Return the topics of the rows. Ignore invalid names, because the write refuses them."""
    if options.topic is not None:
        names = [options.topic]
    else:
        column = frame.column("topic")
        named = frame.df.select(column).where(column.rlike(f"^{TOPIC_NAME.pattern}"))
        rows = named.distinct().collect()
        names = sorted(row[0] for row in rows if TOPIC_NAME.match(row[0]))
    with (
        name_kafka_options(),
        KafkaAdmin(options.producer, has_headers=frame.has("headers")) as admin,
    ):
        found = topics_to_write(options, admin, names)
    return Topics.of({name: found[name].partitions for name in names})


def _placed(frame: _Frame, options: SinkOptions, topics: Topics) -> tuple[_Frame, _Place]:
    """Return the frame, and the `_Place` of each row.

    If there is a topic column, the returned frame has a temporary column with the partition count
    and the first task.
    """
    if options.topic is not None:
        return frame, _Place(F.lit(options.topic), F.lit(topics.tasks), F.lit(0))
    column = frame.column("topic")
    placed = frame.computed(_PLACE, lambda names: partition_ranges(topics, names), _PLACES, column)
    return placed, _Place(
        column, F.col(_PLACE).getField("partitions"), F.col(_PLACE).getField("first")
    )


def _partition(options: SinkOptions, frame: _Frame, place: _Place) -> tuple[_Frame, Column]:
    """Return the frame, perhaps with temporary columns, and the Kafka partition of each row.

    If the topic of a row was not found, the Kafka partition of the row is the value of its column
    ``partition``, or null without such a value.
    """
    choices = []
    if frame.has("partition"):
        choices.append(frame.column("partition"))
    if names_own_partitioner(options.producer.partitioner_class):
        frame = _with_own(options, frame, place)
        choices.append(F.col(_OWN))
    if frame.has("key") and keys_count(options.producer):
        frame = frame.computed(_HASH, key_hashes, _INT, frame.column("key"))
        choices.append(F.pmod(F.col(_HASH), place.partitions))
    spread = F.xxhash64(*(_hashable(frame, name) for name in _SPREAD_BY if frame.has(name)))
    choices.append(F.pmod(spread, place.partitions).cast("int"))
    return frame, F.coalesce(*choices)


def _hashable(frame: _Frame, name: str) -> Column:
    """Return a column, or its JSON if it contains a map, because Spark cannot hash maps."""
    kind = frame.df.schema.fields[frame.names.index(name)].dataType
    column = frame.column(name)
    return F.to_json(F.struct(column)) if '"type":"map"' in kind.json() else column


def _with_own(options: SinkOptions, frame: _Frame, place: _Place) -> _Frame:
    name = options.producer.partitioner_class
    rows = F.struct(*(frame.column(column).alias(column) for column in frame.names))
    # This function has no type annotations, because Spark would choose a different kind of UDF from
    # them.
    return frame.computed(
        _OWN,
        lambda topics, partitions, rows: _own_partitions(name, topics, partitions, rows),
        _INT,
        *(place.topic, place.partitions, rows),
    )


@name_kafka_options()
def _own_partitions(
    name: str | None, topics: pa.Array, partitions: pa.Array, rows: pa.StructArray
) -> pa.Array:
    return own_partitions(name, topics, partitions, rows)
