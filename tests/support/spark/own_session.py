"""A Spark session for a measurement, whose workers run this program's Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def own_session(
    cores: int = 2, settings: Mapping[str, str] | None = None, heap: str = "4g"
) -> Iterator[SparkSession]:
    """Start Spark with this number of cores, and stop it at the end.

    settings: further settings of Spark by name. heap: that of `make bench`, unless it is given.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.extraJavaOptions", f"-Xms{heap}")
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    spark = builder.config("spark.driver.memory", heap).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
