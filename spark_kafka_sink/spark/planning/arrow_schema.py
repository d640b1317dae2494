"""Converts the pyarrow schema that Sail passes to `KafkaDataSource.writer` to Spark's schema.

Sail is an engine, written in Rust, that runs Spark Connect programs. Only Sail passes pyarrow
schemas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.plain_types import plain_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_kafka_sink.spark.options import SinkOptions

__all__ = ["as_spark_schema", "check_without_task_numbers"]


def as_spark_schema(schema: pa.Schema) -> StructType:
    """Convert a pyarrow schema to Spark's. Views and dictionaries become plain types first."""
    found: StructType = from_arrow_schema(plain_schema(schema))
    return found


def check_without_task_numbers(options: SinkOptions) -> None:
    """Raise ConfigException for exactlyOnce, because Sail does not pass the numbers of tasks."""
    if options.exactly_once is not None:
        message = (
            "exactlyOnce is set, but this engine (Sail) does not pass the numbers of its tasks to "
            "Python, so the tasks cannot have a transaction each: leave exactlyOnce out, or run "
            "the job on Spark"
        )
        raise ConfigException(message)
