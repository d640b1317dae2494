"""Code of the worker process in which Spark runs a task of a write."""

from spark_kafka_sink.spark.worker import check_versions

check_versions()
