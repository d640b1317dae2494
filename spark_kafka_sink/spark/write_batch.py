"""``write_batch``: a micro-batch written as a batch job, for ``foreachBatch``.

This is how output mode update gets into Kafka, which Spark refuses for every Python sink.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from spark_kafka_sink.spark.datasource import KafkaDataSource


def write_batch(df: DataFrame, batch_id: int, options: Mapping[str, str]) -> None:  # noqa: ARG001 - foreachBatch's signature
    """Append a micro-batch; returns when every row is acknowledged.

    >>> stream.writeStream.outputMode("update").foreachBatch(  # doctest: +SKIP
    ...     functools.partial(write_batch, options={"kafka.bootstrap.servers": "localhost:9092"})
    ... )

    options: of the sink, as for ``df.write``. A batch that Spark runs again is written again
    (at-least-once). Raises what ``df.write`` raises, and Spark then ends the query.
    """
    df.write.format(KafkaDataSource.name()).mode("append").options(**options).save()
