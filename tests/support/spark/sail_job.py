"""A program: jobs on Sail. It runs with a Python that has `pysail`.

    python sail_job.py BOOTSTRAP TOPIC PARQUET CASE

It starts a server of Sail in this process, writes the case's DataFrame to the topic, and prints
``written``, or the text of the exception. A stream is started twice, with the same checkpoint.
PARQUET is a file with the columns key and value.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final

from pysail.spark import SparkConnectServer
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink import KafkaDataSource, register

_COUNTED: Final = "cast(id AS string) AS value"
CASES: Final[dict[str, Callable[[SparkSession, str], DataFrame]]] = {
    "parquet": lambda spark, path: spark.read.parquet(path),
    "files": lambda spark, path: spark.read.parquet(path, path),
    # The test writes these columns as dictionaries; Sail passes them as they are.
    "dictionaries": lambda spark, path: spark.read.parquet(path),
    # These two functions of Sail return views.
    "views": lambda spark, path: spark.read.parquet(path).selectExpr(
        "substring_index(key, ' ', 5) AS key", "left(cast(value AS string), 100) AS value"
    ),
    "columns": lambda spark, _: spark.range(100).selectExpr(
        "cast(id AS binary) AS key",
        _COUNTED,
        "array(named_struct('key', 'of', 'value', cast('x' AS binary))) AS headers",
        "timestamp '2026-01-02 03:04:05' AS timestamp",
        "1 AS partition",
    ),
    "shuffled": lambda spark, _: spark.range(100).groupBy("id").count().selectExpr(_COUNTED),
    "repartitioned": lambda spark, _: (
        spark.range(100).groupBy("id").count().selectExpr(_COUNTED).repartition(2)
    ),
    "exactly once": lambda spark, _: spark.range(100).selectExpr(_COUNTED),
    "no value": lambda spark, _: spark.range(100).selectExpr("cast(id AS string) AS val"),
    "no partition": lambda spark, _: spark.range(1).selectExpr(_COUNTED, "-2 AS partition"),
    "stream of files": lambda spark, path: spark.readStream.schema(
        "key string, value binary"
    ).parquet(path),
    "stream of foreachBatch": lambda spark, path: spark.readStream.schema(
        "key string, value binary"
    ).parquet(path),
    "stream of a rate": lambda spark, _: (
        spark.readStream.format("rate").load().selectExpr("cast(value AS string) AS value")
    ),
}


def write(case: str, bootstrap: str, topic: str, path: str) -> str:
    """Write a case's rows; return ``written``, or what the exception says."""
    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    _, port = server.listening_address
    spark: Any = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    if case == "repartitioned":
        register(spark)
    else:
        spark.dataSource.register(KafkaDataSource)
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    if case == "exactly once":
        options |= {"exactlyOnce": "true", "txnAppId": topic, "txnVersion": "1"}
    try:
        frame = CASES[case](spark, path)
        if case.startswith("stream"):
            writer = frame.writeStream.format("pykafka").options(**options)
            if case == "stream of foreachBatch":
                writer = frame.writeStream.foreachBatch(lambda _batch, _batch_id: None)
            for _ in range(2):
                writer.option("checkpointLocation", f"{path}-checkpoint").start().awaitTermination()
        else:
            frame.write.format("pykafka").mode("append").options(**options).save()
    except Exception as error:  # noqa: BLE001 - the test reads it
        return str(error)
    return "written"


if __name__ == "__main__":
    print(write(sys.argv[4], *sys.argv[1:4]), flush=True)
    # The server's threads go on.
    os._exit(0)
