"""What a run tells of itself: the sink, Spark and the machine, and the clients it is compared with.

The versions of Python's packages are those on the driver.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import bench_report
import confluent_kafka
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from spark_kafka_sink import __version__

_PACKAGES: Final = ("confluent-kafka", "kafka-python", "arrow-kafka-pyo3", "pyarrow", "numpy")
_KAFKA_CLIENTS: Final = "org.apache.kafka.common.utils.AppInfoParser"
_PROCESSORS: Final = Path("/proc/cpuinfo")


def of(spark: SparkSession) -> dict[str, Any]:
    """Give what is to be told, by what it is of."""
    return {
        "spark-kafka-sink": __version__,
        "Spark": spark.version,
        bench_report.MASTER: spark.sparkContext.master,
        "driver's JVM": _jvm(spark),
        "kafka-clients of Spark's own sink": _kafka_clients(spark),
        "Python": platform.python_version(),
        **dict(_packages()),
        "librdkafka of confluent-kafka": confluent_kafka.libversion()[0],
        "processor of the driver's machine": _processor(),
        bench_report.CORES: os.cpu_count(),
        bench_report.BEGUN: time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def _jvm(spark: SparkSession) -> str:
    jvm: Any = spark._jvm  # noqa: SLF001 - the way to ask for a class
    memory = jvm.Runtime.getRuntime()
    now, most = (each // 2**20 for each in (memory.totalMemory(), memory.maxMemory()))
    return f"Java {jvm.System.getProperty('java.version')}, heap of {now} to {most} MiB"


def _kafka_clients(spark: SparkSession) -> str:
    """Give the version of the client that Spark's class path has; `none` where it has none."""
    jvm: Any = spark._jvm  # noqa: SLF001 - likewise
    try:
        loader = jvm.Thread.currentThread().getContextClassLoader()
        jvm.java.lang.Class.forName(_KAFKA_CLIENTS, True, loader)  # noqa: FBT003 - Java's signature
        return str(jvm.org.apache.kafka.common.utils.AppInfoParser.getVersion())
    except Py4JError:
        return "none"


def _packages() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


def _processor() -> str:
    """Give the processor's name as Linux has it, or else as Python has."""
    try:
        lines = _PROCESSORS.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
