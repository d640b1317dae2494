"""This sink as another checkout has it, beside the one that is installed.

Owns its shipping under names of its own, package `spark_kafka_sink_before` and format
`pykafka_before`, so that a worker that serves both imports both. Names are replaced in the text.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

FORMAT: Final = "pykafka_before"
_PACKAGE: Final = "spark_kafka_sink"


def ship(spark: SparkSession, checkout: Path) -> None:
    """Make a checkout's sink known to a session and its workers, as the format `FORMAT`."""
    path = _archive(checkout)
    spark.sparkContext.addPyFile(str(path))
    spark.dataSource.register(importlib.import_module(path.stem).KafkaDataSource)


@functools.cache
def _archive(checkout: Path) -> Path:
    """Make the archive, importable here, for as long as this process runs."""
    folder = tempfile.mkdtemp(prefix="bench-before-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, f"{_PACKAGE}_before.zip")
    with zipfile.ZipFile(path, "w") as archive:
        for source in sorted((checkout / _PACKAGE).rglob("*.py")):
            name = str(source.relative_to(checkout)).replace(_PACKAGE, path.stem)
            text = source.read_text().replace(_PACKAGE, path.stem)
            archive.writestr(name, text.replace('"pykafka"', f'"{FORMAT}"'))
    sys.path.insert(1, str(path))
    return path
