"""``atomic_layout(df, options)``: rows laid out so that one task writes each Kafka partition.

A task that has rows for every partition keeps a connection to every broker, sends small batches to
all of them and leaves a producer state with each partition; one that has the rows of one partition
does none of this. It costs one shuffle. Which partition a row belongs to is what the sink itself
would choose, and is given to it as the column ``partition``.

No row is written here. The cluster is asked how many partitions there are, and rows are looked at
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
from spark_kafka_sink.spark.layout_mark import as_metadata
from spark_kafka_sink.spark.options import (
    SinkOptions,
    check_given_options,
    name_kafka_options,
    sink_options,
    with_shipped_files,
)
from spark_kafka_sink.spark.planning.datasource import look_ahead, look_at_options, look_at_stream
from spark_kafka_sink.spark.session import check_frame, is_connect
from spark_kafka_sink.spark.topics import suggest_create_topics

_INT: Final = "INT"
_PLACES: Final = "partitions INT, first INT"
# What rows are spread by that no key places: a row that is computed again is found where it was.
_SPREAD_BY: Final = ("key", "value", "timestamp")
# A column that is there only until rows are laid out.
_PLACE: Final = "place"


class _Frame(NamedTuple):
    """A frame whose columns have numbers for names, since Spark tells no key from a KEY."""

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
    """A row's topic, how many partitions that has, and the task of its first partition.

    The last two are null where the topic is none that was found.
    """

    topic: Column
    partitions: Column
    first: Column


def atomic_layout(df: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Give `df` with a column ``partition``, the rows of each Kafka partition in their own task.

    options: of the sink, as for the write that is to follow; createTopics is obeyed. There are as
    many Spark partitions as the topics have Kafka partitions together, from now on. The write is
    refused where a topic has another number of partitions by then; a stream whose topic may grow is
    better laid out inside foreachBatch. A partition that a row names is kept;
    then come kafka.partitioner.class if it is your own, the key as in the Java client, and a hash
    of key, value and timestamp. All of these have to be the same when Spark computes a row again.

    Topics of a column are found by a query over all rows, which a stream cannot answer. Whatever
    shuffles belongs before the layout, and ``sortWithinPartitions`` behind it. Over Spark Connect
    the client asks the brokers. Raises ConfigException, DataException and what the brokers say, as
    a write does.

    >>> laid_out = atomic_layout(flights, options)  # doctest: +SKIP
    >>> laid_out.write.format("pykafka").mode("append").options(**options).save()  # doctest: +SKIP
    """
    check_frame("atomic_layout", df)
    check_given_options(options)
    given = join_options(None, options)
    look_around = look_at_stream if df.isStreaming else look_ahead
    look = look_at_options if is_connect(df) else look_around
    look(df.schema, given)
    checked = sink_options(given)
    frame = _Frame.of(df)
    topics = _found_topics(frame, checked)
    frame, place = _placed(frame, checked, topics)
    partition = _partition(checked, frame, place)
    chosen = frame.df.withColumn("partition", partition)
    task = place.first + F.pmod(F.coalesce(F.col("partition"), F.lit(0)), place.partitions)
    # Rows without a topic are somewhere: what becomes of them is for the write to say.
    laid_out = chosen.repartitionById(max(1, topics.tasks), F.coalesce(task, F.lit(0)))
    columns = [frame.column(name).alias(name) for name in frame.names if name != "partition"]
    counts = dict(zip(topics.names, topics.partitions, strict=True))
    marked = F.col("partition").alias("partition", metadata=as_metadata(counts))
    return laid_out.select(*columns, marked)


def _found_topics(frame: _Frame, options: SinkOptions) -> Topics:
    """Give the topics of the rows; those that cannot be topics are for the write to refuse."""
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
        KafkaAdmin(with_shipped_files(options.producer), has_headers=frame.has("headers")) as admin,
    ):
        found = admin.topics(names, options.new_topic)
    return Topics.of({name: found[name].partitions for name in names})


def _placed(frame: _Frame, options: SinkOptions, topics: Topics) -> tuple[_Frame, _Place]:
    """Give the frame with what the places of its rows are made of."""
    if options.topic is not None:
        return frame, _Place(F.lit(options.topic), F.lit(topics.tasks), F.lit(0))
    column = frame.column("topic")
    place = _computed(lambda names: topic_places(topics, names), _PLACES, column)
    placed = frame._replace(df=frame.df.withColumn(_PLACE, place))
    return placed, _Place(
        column, F.col(_PLACE).getField("partitions"), F.col(_PLACE).getField("first")
    )


def _partition(options: SinkOptions, frame: _Frame, place: _Place) -> Column:
    """Give each row's Kafka partition; without a topic, only one that the row names."""
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
    # Spark takes a function with these annotations for one of another kind.
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
    """Give what a function computes of whole Arrow arrays."""
    # The stub wants the kind of function by its number; Spark warns of that.
    udf: Callable[..., Column] = arrow_udf(function, kind)  # type: ignore[call-overload]
    return udf(*columns)
