"""spark-kafka-sink: a Kafka sink for PySpark in pure Python.

A public name is imported when it is first used. So `import spark_kafka_sink`, which every Python
worker of every executor runs, costs almost nothing. It does not import pyspark, so the modules
outside `spark_kafka_sink.spark` can be used without pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_kafka_sink import errors
    from spark_kafka_sink.kafka_producer import KafkaProducer
    from spark_kafka_sink.model import ProducerRecord, RecordMetadata, __version__
    from spark_kafka_sink.plugins.interceptors import ProducerInterceptor
    from spark_kafka_sink.spark.committing.report_files import last_reports
    from spark_kafka_sink.spark.driver.atomic_layout import atomic_layout
    from spark_kafka_sink.spark.driver.register import register
    from spark_kafka_sink.spark.driver.stream_listener import (
        FailedQueryRecord,
        KafkaStreamListener,
        MicroBatchRecord,
    )
    from spark_kafka_sink.spark.driver.to_kafka import to_kafka
    from spark_kafka_sink.spark.driver.write_batch import write_batch
    from spark_kafka_sink.spark.planning.datasource import KafkaDataSource

__all__ = [
    "FailedQueryRecord",
    "KafkaDataSource",
    "KafkaProducer",
    "KafkaStreamListener",
    "MicroBatchRecord",
    "ProducerInterceptor",
    "ProducerRecord",
    "RecordMetadata",
    "__version__",
    "atomic_layout",
    "errors",
    "last_reports",
    "register",
    "to_kafka",
    "write_batch",
]

_HOME = {
    "FailedQueryRecord": "spark_kafka_sink.spark.driver.stream_listener",
    "KafkaDataSource": "spark_kafka_sink.spark.planning.datasource",
    "KafkaProducer": "spark_kafka_sink.kafka_producer",
    "KafkaStreamListener": "spark_kafka_sink.spark.driver.stream_listener",
    "MicroBatchRecord": "spark_kafka_sink.spark.driver.stream_listener",
    "ProducerInterceptor": "spark_kafka_sink.plugins.interceptors",
    "ProducerRecord": "spark_kafka_sink.model",
    "RecordMetadata": "spark_kafka_sink.model",
    "__version__": "spark_kafka_sink.model",
    "atomic_layout": "spark_kafka_sink.spark.driver.atomic_layout",
    "last_reports": "spark_kafka_sink.spark.committing.report_files",
    "register": "spark_kafka_sink.spark.driver.register",
    "to_kafka": "spark_kafka_sink.spark.driver.to_kafka",
    "write_batch": "spark_kafka_sink.spark.driver.write_batch",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("spark_kafka_sink.errors")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
