"""The Spark data source: the only package that imports pyspark."""

from spark_kafka_sink.spark.worker import check_modules, check_pyspark, hides_options

with hides_options():
    check_pyspark()
    check_modules()
