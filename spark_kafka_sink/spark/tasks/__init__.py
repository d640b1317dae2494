"""Code that runs in Spark's worker processes, in the tasks of a write."""

from spark_kafka_sink.spark.worker import check_versions

check_versions()
