"""A program: jobs of Spark in mode `single`, one after another, as its cases.

Arguments: the brokers, a topic with eight partitions, the topic of the commit log. It prints one
JSON object: what each case came to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_kafka_sink import atomic_layout, register
from support.oracles.readers import committed_values


def main() -> None:
    """Run all cases."""
    bootstrap, topic, log = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    rows = spark.range(200).select(F.col("id").cast("string").alias("value"))
    found: dict[str, object] = {}

    def save(frame: DataFrame, version: int, value: str = "value") -> None:
        given = {
            "kafka.bootstrap.servers": bootstrap,
            "topic": topic,
            "exactlyOnce": "single",
            "txnAppId": "cases",
            "txnVersion": str(version),
            "commitLogTopic": log,
        }
        laid_out = atomic_layout(frame, given).withColumn("value", F.expr(value))
        laid_out.write.format("pykafka").options(**given).save()

    def case(name: str, run: Callable[[], None]) -> None:
        try:
            run()
            error = None
        except Exception as failure:  # noqa: BLE001 - it is what the case came to
            error = str(failure)[:300]
        found[name] = [len(committed_values(bootstrap, topic)), error]

    case("200 rows", lambda: save(rows, 1))
    case("again", lambda: save(rows, 1))
    case("some empty tasks", lambda: save(rows.limit(2), 2))
    case("no rows", lambda: save(rows.limit(0), 3))
    case("rows for the version without rows", lambda: save(rows, 3))
    fails = "if(value = '77', raise_error('no'), value)"
    case("a task fails", lambda: save(rows, 4, fails))
    case("and the job runs again", lambda: save(rows, 4))
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
