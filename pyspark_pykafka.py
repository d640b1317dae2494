"""Where Spark finds the sink by itself: it looks for ``pyspark_*`` modules with a DefaultSource.

Spark imports every such module in a Python worker of its own at the first use of any Python data
source, without catching errors, so this one only points.
"""

from spark_kafka_sink.spark.planning.datasource import KafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
