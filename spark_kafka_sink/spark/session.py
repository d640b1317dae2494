"""Spark sessions and DataFrames, classic or of Spark Connect: type checks and settings.

`register` changes settings of a session. A session may lack a setting, or forbid changing it. The
sink also works if a setting cannot be changed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame

from spark_kafka_sink.errors import DataException, IllegalArgumentException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark begins the name of the folder with this word, on drivers only.
_DRIVERS_FOLDER: Final = "userFiles-"


def change_setting(
    spark: SparkSession, name: str, change: Callable[[str | None], str | None]
) -> str | None:
    """Set a setting to `change(current value)`. If that is None, do not change the setting.

    Return None on success, or the error message on failure.
    """
    try:
        changed = change(spark.conf.get(name))
        if changed is not None:
            spark.conf.set(name, changed)
    except Exception as error:  # noqa: BLE001 - whatever it is, the sink works without
        return (str(error) or type(error).__name__).splitlines()[0]
    return None


def driver_folder() -> Path | None:
    """Return the folder of the driver's files, or None if no SparkContext runs.

    All processes of a driver have the same folder. With Spark Connect or with
    spark.sql.artifact.isolation.enabled, the SparkFiles of Spark's Python processes are in a folder
    of their session, which is in the driver's folder. Each executor has its own folder.
    """
    try:
        from pyspark import SparkFiles  # noqa: PLC0415 - the package pyspark-client has none

        folder = Path(SparkFiles.getRootDirectory())
    except (AssertionError, ImportError):  # AssertionError: there is no SparkContext
        return None
    return folder.parent if folder.parent.name.startswith(_DRIVERS_FOLDER) else folder


def is_connect(of: object) -> bool:
    """Return whether a session or a DataFrame is one of Spark Connect."""
    return ".connect." in type(of).__module__


def check_session(call: str, spark: object) -> None:
    """Raise IllegalArgumentException if `spark` is not a session, classic or of Spark Connect.

    call: the name of the function that takes the session, for the message.
    """
    # Compare the class name, because Spark Connect has its own session class of this name.
    if not any(kind.__name__ == "SparkSession" for kind in type(spark).__mro__):
        kind = type(spark).__name__
        message = f"{call}: spark is of type {kind}: expected a SparkSession"
        raise IllegalArgumentException(message)


def check_frame(call: str, df: object) -> None:
    """Raise DataException if `df` is not a DataFrame. call: the function that takes it."""
    if not isinstance(df, DataFrame):
        message = f"{call}: df is of type {type(df).__name__}: expected a DataFrame of Spark"
        raise DataException(message)
