"""``write_batch``: writes a micro-batch as a batch job, for ``foreachBatch``.

Use it to write a stream in output mode update, because Spark refuses this mode for Python sinks.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.model import LARGEST_INT64
from spark_kafka_sink.spark.driver.hooks.delegation_token_renewal import renewing_token
from spark_kafka_sink.spark.driver.hooks.notes import is_hooked, join_options
from spark_kafka_sink.spark.driver.hooks.session_settings import (
    options_of_session,
    refuse_speculation,
)
from spark_kafka_sink.spark.driver.saves import micro_batch_in_thread, only_save
from spark_kafka_sink.spark.exactly_once import SESSION_OPTIONS
from spark_kafka_sink.spark.micro_batch import (
    BATCH_ID_OPTION,
    QUERY_OPTION,
    MicroBatch,
    batch_id_option,
    query_option,
)
from spark_kafka_sink.spark.options import check_given_options, not_an_option
from spark_kafka_sink.spark.planning.datasource import (
    KafkaDataSource,
    check_batch_write,
    check_options_and_columns,
)
from spark_kafka_sink.spark.report import WRITE_ID_OPTION
from spark_kafka_sink.spark.session import check_frame, is_connect


def write_batch(df: DataFrame, batch_id: int, options: Mapping[str, str]) -> None:
    """Append a micro-batch to Kafka, and return when every row is acknowledged.

    >>> stream.writeStream.outputMode("update").foreachBatch(  # doctest: +SKIP
    ...     functools.partial(write_batch, options={"kafka.bootstrap.servers": "localhost:9092"})
    ... )

    options: the options of the sink, as for ``df.write``. A batch that Spark runs again is written
    again (at-least-once), unless exactlyOnce is set. With Spark Connect, exactlyOnce also needs
    txnAppId. With exactlyOnce, a second save of one batch to the same topic needs a different
    txnAppId. As in a stream, the cluster is checked once per kafka.metadata.max.age.ms, not for
    each batch. Each report is appended as a line to the file in the option `reportPath`. In a
    classic session, errors are raised before Spark computes the rows, and a delegation token is
    renewed while tasks run. Raise the exceptions of ``df.write``; Spark then ends the query.
    """
    check_frame("write_batch", df)
    is_number = isinstance(batch_id, int) and not isinstance(batch_id, bool)
    if not is_number or not 0 <= batch_id <= LARGEST_INT64:
        message = (
            f"write_batch: batch_id is {batch_id!r}, of type {type(batch_id).__name__}: "
            "expected the batch id from foreachBatch"
        )
        raise ConfigException(message)
    check_given_options(options)
    for name in options:
        if name.lower() in (BATCH_ID_OPTION, QUERY_OPTION, *SESSION_OPTIONS, WRITE_ID_OPTION):
            raise ConfigException(not_an_option(name))
    own = join_options(None, options)
    refuse_speculation(df.sparkSession, own)
    of_session = options_of_session(df.sparkSession, own, is_stream=False)
    micro_batch = _micro_batch(df, batch_id)
    of_query = {} if micro_batch is None else query_option(micro_batch)
    # Before Spark 4.3, a writer without the hooks passes None to the JVM.
    own_values = {name: value for name, value in options.items() if value is not None}
    given = {**own_values, **of_session, **batch_id_option(batch_id), **of_query}
    look = check_options_and_columns if is_connect(df) else check_batch_write
    named = join_options(None, given)
    look(df.schema, named)
    with only_save(named, batch_id, micro_batch) as is_retry:
        if micro_batch is not None:
            given |= query_option(micro_batch._replace(is_retry=is_retry))
        writer = df.write.format(KafkaDataSource.name()).mode("append").options(**given)
        # A hooked writer renews the token itself.
        with renewing_token({} if is_hooked(writer) else named, writer):
            writer.save()


def _micro_batch(df: DataFrame, batch_id: int) -> MicroBatch | None:
    """Return the micro-batch; None with Spark Connect, or outside of the thread of foreachBatch."""
    if is_connect(df):
        return None
    found = micro_batch_in_thread(df.sparkSession)
    return None if found is None or found.batch_id != batch_id else found
