"""Spark's sessions and DataFrames, classic or of Spark Connect: checks of them, and settings.

`register` changes some; a session, classic or of Spark Connect, may lack one or keep it fixed, and
the sink works without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from spark_kafka_sink.errors import DataException, IllegalArgumentException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def change_setting(
    spark: SparkSession, name: str, change: Callable[[str | None], str | None]
) -> str | None:
    """Set a setting to the value that `change` returns for the present one; None changes nothing.

    Return why that failed, None if it did not.
    """
    try:
        wanted = change(spark.conf.get(name))
        if wanted is not None:
            spark.conf.set(name, wanted)
    except Exception as error:  # noqa: BLE001 - whatever it is, the sink works without
        return (str(error) or type(error).__name__).splitlines()[0]
    return None


def is_connect(of: object) -> bool:
    """Return whether a session or a frame is one of Spark Connect."""
    return ".connect." in type(of).__module__


def check_session(call: str, spark: object) -> None:
    """Refuse what is no session, classic or of Spark Connect; raise IllegalArgumentException."""
    # By name, since that of Spark Connect is another class.
    if not any(kind.__name__ == "SparkSession" for kind in type(spark).__mro__):
        kind = type(spark).__name__
        message = f"{call}: spark is of type {kind}: expected a SparkSession"
        raise IllegalArgumentException(message)


def check_frame(call: str, df: object) -> None:
    """Raise DataException if `df` is no DataFrame; call: the function that takes it."""
    if not isinstance(df, DataFrame):
        message = f"{call}: df is of type {type(df).__name__}: expected a DataFrame of Spark"
        raise DataException(message)
