"""The module with which Spark finds the sink: it scans ``pyspark_*`` modules for DefaultSource.

Spark imports every such module in a Python worker at the first use of any Python data source,
without catching errors. Therefore this module only imports the class.
"""

from spark_kafka_sink.spark.planning.datasource import KafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
