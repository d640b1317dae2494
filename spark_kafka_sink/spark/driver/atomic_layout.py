"""``atomic_layout(df, options)``: rows laid out so that one task writes each Kafka partition.

A task with rows for every partition keeps a connection to every broker, sends small batches to all
of them and leaves a producer state in each partition; a task with the rows of one partition does
not. The layout costs one shuffle. The partition of a row is the one that the sink would choose; the
sink gets it as the column ``partition``.

No row is written here. The cluster is asked for the partition counts, and rows are read only for
the topics of a topic column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.pandas.functions import arrow_udf

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.config import names_own_partitioner
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.model import TOPIC_NAME
from spark_kafka_sink.plugins.batch_partitioner import (
    Topics,
    key_hashes,
    keys_count,
    own_partitions,
    topic_places,
)
from spark_kafka_sink.spark.driver.hooks.notes import join_options
from spark_kafka_sink.spark.exactly_once import EXACTLY_ONCE_OPTIONS
from spark_kafka_sink.spark.layout_mark import as_metadata
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
from spark_kafka_sink.spark.session import check_frame, is_connect
from spark_kafka_sink.spark.topics import suggest_create_topics

_INT: Final = "INT"
_PLACES: Final = "partitions INT, first INT"
# The columns whose hash places rows without a key, so that a row computed again has the same place.
_SPREAD_BY: Final = ("key", "value", "timestamp")
# A temporary column.
_PLACE: Final = "place"


class _Frame(NamedTuple):
    """A frame with numbers as column names, since names in Spark are case-insensitive."""

    df: DataFrame
    names: list[str]

    @classmethod
    def of(cls, df: DataFrame) -> _Frame:
        return cls(df.toDF(*(f"_{number}" for number in range(len(df.columns)))), df.columns)

    def has(self, name: str) -> bool:
        return name in self.names

    def column(self, name: str) -> Column:
        return F.col(f"_{self.names.index(name)}")


class _Place(NamedTuple):
    """The topic of a row, its partition count, and the task of its first partition.

    The last two are null for a topic that was not found.
    """

    topic: Column
    partitions: Column
    first: Column


def atomic_layout(df: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Return `df` with a column ``partition``, the rows of each Kafka partition in their own task.

    options: of the sink, as for the following write; createTopics works as there. The result has as
    many Spark partitions as the topics have Kafka partitions in total. The write fails if a topic
    has another number of partitions by then; lay out a stream whose topic may grow inside
    foreachBatch.

    The partition of a row is chosen by its column partition, or else by your own
    kafka.partitioner.class, the key as in the Java client, or a hash of key, value and timestamp.
    All of these must be the same if Spark computes a row again.

    Topics of a column are found by a query over all rows, which does not work for a stream. Do
    everything that shuffles before the layout, and ``sortWithinPartitions`` after it. Over Spark
    Connect the client asks the brokers. Raise ConfigException, DataException and errors of the
    brokers, as a write does.

    >>> laid_out = atomic_layout(flights, options)  # doctest: +SKIP
    >>> laid_out.write.format("pykafka").mode("append").options(**options).save()  # doctest: +SKIP
    """
    check_frame("atomic_layout", df)
    check_given_options(options)
    given = _at_least_once(join_options(None, options))
    look_around = check_stream_write if df.isStreaming else check_batch_write
    look = check_options_and_columns if is_connect(df) else look_around
    look(df.schema, given)
    checked = sink_options(given)
    frame = _Frame.of(df)
    topics = _found_topics(frame, checked)
    frame, place = _placed(frame, checked, topics)
    partition = _partition(checked, frame, place)
    chosen = frame.df.withColumn("partition", partition)
    task = place.first + F.pmod(F.coalesce(F.col("partition"), F.lit(0)), place.partitions)
    # Rows without a topic go to the first task; the write refuses or handles them.
    laid_out = chosen.repartitionById(max(1, topics.tasks), F.coalesce(task, F.lit(0)))
    columns = [frame.column(name).alias(name) for name in frame.names if name != "partition"]
    counts = dict(zip(topics.names, topics.partitions, strict=True))
    marked = F.col("partition").alias("partition", metadata=as_metadata(counts))
    return laid_out.select(*columns, marked)


def _at_least_once(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options without those of exactly once: they need the layout that is made here."""
    own = {name.lower() for name in EXACTLY_ONCE_OPTIONS}
    return {name: value for name, value in given.items() if name.lower() not in own}


def _found_topics(frame: _Frame, options: SinkOptions) -> Topics:
    """Return the topics of the rows; the write refuses invalid names."""
    if options.topic is not None:
        names = [options.topic]
    elif frame.df.isStreaming:
        message = (
            "atomic_layout: the topics of a topic column are found by looking at all rows, which a "
            "stream does not have yet: set the option topic, or lay out inside foreachBatch"
        )
        raise ConfigException(message)
    else:
        column = frame.column("topic")
        named = frame.df.select(column).where(column.rlike(f"^{TOPIC_NAME.pattern}"))
        rows = named.distinct().collect()
        names = sorted(row[0] for row in rows if TOPIC_NAME.match(row[0]))
    with (
        name_kafka_options(),
        suggest_create_topics(options),
        KafkaAdmin(options.producer, has_headers=frame.has("headers")) as admin,
    ):
        found = admin.topics(names, options.new_topic)
    return Topics.of({name: found[name].partitions for name in names})


def _placed(frame: _Frame, options: SinkOptions, topics: Topics) -> tuple[_Frame, _Place]:
    """Return the frame with columns for the places of its rows, and the places."""
    if options.topic is not None:
        return frame, _Place(F.lit(options.topic), F.lit(topics.tasks), F.lit(0))
    column = frame.column("topic")
    place = _computed(lambda names: topic_places(topics, names), _PLACES, column)
    placed = frame._replace(df=frame.df.withColumn(_PLACE, place))
    return placed, _Place(
        column, F.col(_PLACE).getField("partitions"), F.col(_PLACE).getField("first")
    )


def _partition(options: SinkOptions, frame: _Frame, place: _Place) -> Column:
    """Return each row's Kafka partition; without a topic, only that of the column partition."""
    choices = []
    if frame.has("partition"):
        choices.append(frame.column("partition"))
    if names_own_partitioner(options.producer.partitioner_class):
        choices.append(_own(options, frame, place))
    if frame.has("key") and keys_count(options.producer):
        hashes = _computed(key_hashes, _INT, frame.column("key"))
        choices.append(F.pmod(hashes, place.partitions))
    spread = F.xxhash64(*(frame.column(name) for name in _SPREAD_BY if frame.has(name)))
    choices.append(F.pmod(spread, place.partitions).cast("int"))
    return F.coalesce(*choices)


def _own(options: SinkOptions, frame: _Frame, place: _Place) -> Column:
    name = options.producer.partitioner_class
    rows = F.struct(*(frame.column(column).alias(column) for column in frame.names))
    # Not a function with annotations, by which Spark would choose another kind of UDF.
    return _computed(
        lambda topics, partitions, rows: _own_partitions(name, topics, partitions, rows),
        _INT,
        *(place.topic, place.partitions, rows),
    )


@name_kafka_options()
def _own_partitions(
    name: str | None, topics: pa.Array, partitions: pa.Array, rows: pa.StructArray
) -> pa.Array:
    return own_partitions(name, topics, partitions, rows)


def _computed(function: Callable[..., pa.Array], kind: str, *columns: Column) -> Column:
    """Return the column that a function computes from Arrow arrays."""
    # The type stub requires the number of the kind, of which Spark warns.
    udf: Callable[..., Column] = arrow_udf(function, kind)  # type: ignore[call-overload]
    return udf(*columns)
