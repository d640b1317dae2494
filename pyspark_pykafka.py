"""The module through which Spark finds the sink: it defines DefaultSource.

Spark scans all modules named ``pyspark_*`` for a class DefaultSource. It imports each of them in a
Python worker at the first use of any Python data source, and does not catch errors. Therefore, this
module only imports the class.
"""

from spark_kafka_sink.spark.planning.datasource import KafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
