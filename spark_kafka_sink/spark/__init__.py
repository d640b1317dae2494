"""The Spark data source: the only package that imports pyspark."""

from spark_kafka_sink.spark.worker import check_modules, check_pyspark

check_pyspark()
check_modules()
