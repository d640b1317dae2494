"""Arguments of the functions for users of Spark: what they never take is refused in a sentence."""

from __future__ import annotations

import os
from numbers import Real

from pyspark.sql import DataFrame

from spark_kafka_sink.config import check_options
from spark_kafka_sink.errors import ConfigException, DataException


def check_frame(call: str, df: object) -> None:
    """Refuse what is no DataFrame; raises DataException."""
    if not isinstance(df, DataFrame):
        message = f"{call}: df is of type {type(df).__name__}: expected a DataFrame of Spark"
        raise DataException(message)


def check_sink_options(options: object) -> None:
    """Refuse what cannot be options as `DataFrameWriter.options` takes; raises ConfigException."""
    for name, value in check_options(options).items():
        if not (value is None or isinstance(value, str | Real | os.PathLike)):
            kind = type(value).__name__
            message = f"option {name} is of type {kind}: expected a str, a number or a bool"
            raise ConfigException(message)
