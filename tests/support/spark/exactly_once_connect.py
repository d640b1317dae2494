"""A program: `write_batch` with exactly once with Spark Connect.

Arguments: the address of the server, the options as JSON, a file for the reports. It prints one
JSON object.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from spark_kafka_sink import atomic_layout, write_batch
from spark_kafka_sink.errors import ConfigException


def main() -> None:
    """Write a micro-batch without the name of an application, and with it: one of them twice."""
    remote, given, path = sys.argv[1:]
    options = json.loads(given)
    spark = SparkSession.builder.remote(remote).getOrCreate()
    frame = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    laid_out = atomic_layout(frame, options)
    refusal = ""
    try:
        write_batch(laid_out, 0, options)
    except ConfigException as error:
        refusal = str(error)
    named = options | {"txnAppId": "connected", "reportPath": path}
    write_batch(laid_out, 0, named)
    second = ""
    try:
        write_batch(laid_out, 0, named)
    except ConfigException as error:
        second = str(error)
    write_batch(laid_out, 1, named)
    print(json.dumps({"refusal": refusal, "a second save": second}))
    spark.stop()


if __name__ == "__main__":
    main()
