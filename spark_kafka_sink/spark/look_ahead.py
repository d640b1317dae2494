"""What stands against a write, found before Spark begins to work for it.

Spark has a Python sink plan only when the rows are about to come. With adaptive query execution,
which is its default, also for streams without state, that is after every shuffle before the write:
a job would aggregate for hours and then be told of a misspelt option. So whoever hands a frame to
the sink in Python plans once before, in their own process, and throws the plan away; Spark has it
made again, and the warnings are left to that.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from spark_kafka_sink.logs import unsaid
from spark_kafka_sink.spark.datasource import KafkaDataSource, check_surroundings


def look_ahead(schema: StructType, options: Mapping[str, str]) -> None:
    """Raise whatever stands against writing rows of a schema, on the driver, without a row."""
    with unsaid():
        KafkaDataSource(dict(options)).plan(schema)


def look_at_stream(schema: StructType, options: Mapping[str, str]) -> None:
    """Raise whatever stands against a stream of rows of a schema, likewise."""
    with unsaid():
        checked, _ = KafkaDataSource(dict(options)).check(schema)
        check_surroundings(checked, schema, in_batches=True, may_remember=False)


def look_at_options(schema: StructType, options: Mapping[str, str]) -> None:
    """Raise what is wrong with the options or the columns; nothing around is looked at."""
    with unsaid():
        KafkaDataSource(dict(options)).check(schema)
