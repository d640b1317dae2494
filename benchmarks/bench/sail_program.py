"""A program that writes rows from Parquet to Kafka on Sail.

It runs with a Python that has `pysail`, and imports nothing else of the benchmark. It reads lines
from standard input, each with a list in JSON: the path of Parquet files, and the options of a
write. For each line it prints a line of JSON: an error message, or ``null``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession

from spark_kafka_sink import register


def main() -> None:
    """Write what standard input names until it ends."""
    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    _, port = server.listening_address
    spark: Any = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    register(spark)
    for line in sys.stdin:
        path, options = json.loads(line)
        error = None
        try:
            # Without it, Sail 0.7 reads several files in fewer partitions than it has planned, and
            # rejects the commit.
            rows = spark.read.parquet(path).repartition(os.cpu_count() or 1)
            rows.write.format("pykafka").options(**options).save()
        except Exception as raised:  # noqa: BLE001 - the benchmark reads it
            error = str(raised) or type(raised).__name__
        print(json.dumps(error), flush=True)


if __name__ == "__main__":
    main()
    # The server's threads go on.
    os._exit(0)
