"""A program: a job of Spark whose last run has lost rows; it prints what it can catch, as JSON.

Arguments: options of the sink, as a JSON object.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from spark_kafka_sink import register
from spark_kafka_sink.errors import TornCommitException


def main() -> None:
    """Run the job."""
    options = json.loads(sys.argv[1])
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = spark.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    frame = session.createDataFrame([("never",)], "value string")
    found: dict[str, object] = {}
    try:
        frame.write.format("pykafka").options(**options).save()
    except TornCommitException as error:
        found = vars(error)
    print(json.dumps(found))
    session.stop()


if __name__ == "__main__":
    main()
