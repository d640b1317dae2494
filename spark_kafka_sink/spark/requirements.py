"""Checks that this Python has what the sink needs, before the sink imports it.

pip does not install pyspark with the sink, and `--py-files` ships no C extensions. Without these
checks, a missing module is the last line of a long traceback.
"""

from __future__ import annotations

import platform
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Final

NEEDED: Final = ("numpy", "pyarrow", "crc32c", "lz4", "msgspec")
_INSTALL_SPARK: Final = (
    'pip install "path/to/spark-kafka-sink[spark]" with the path of your clone, or run your '
    "program with the Python that your cluster's Spark brings"
)


def check_pyspark() -> None:
    """Raise ImportError if this Python has no pyspark, or one that is too old for the sink."""
    if find_spec("pyspark") is None:
        message = (
            f"No module named 'pyspark' for {sys.executable}: spark-kafka-sink does not install it "
            f"by itself, because a cluster brings its own. Run {_INSTALL_SPARK}"
        )
        raise ModuleNotFoundError(message, name="pyspark")
    name = "pyspark.sql.datasource"
    if find_spec(name) is None or not hasattr(import_module(name), "DataSourceArrowWriter"):
        version = import_module("pyspark").__version__
        message = (
            f"the pyspark of {sys.executable} is {version}, but spark-kafka-sink needs 4.1 or "
            f"newer. Run {_INSTALL_SPARK}"
        )
        raise ImportError(message, name="pyspark")


def check_modules() -> None:
    """Raise ModuleNotFoundError if this Python lacks another module that the sink needs."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        message = (
            f"No module named {' or '.join(map(repr, missing))} for {sys.executable} on "
            f"{platform.node()}: spark-kafka-sink needs it wherever Spark runs Python, and "
            "--py-files cannot ship it; install it there, or ship an environment that has it by "
            "--archives"
        )
        raise ModuleNotFoundError(message, name=missing[0])
