"""One run: a Spark session, the cells one after another, and a report after each.

The report also describes the run: versions of the sink, of Spark and of the other clients, and the
machine. The versions of Python packages are those on the driver.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from bench.cells import FIRST_WARM_UPS, OURS, Cell, Kind
from bench.contenders import Tls, prepare, schema_registry
from bench.meter import Meter
from bench.report import BEGUN, CORES, MASTER, print_table, print_targets, write_report
from bench.results import Measured
from bench.rounds import Bench, CellRun
from bench.sail import Sail
from bench.topics import Topics
from spark_kafka_sink import __version__


def measure(given: argparse.Namespace, cells: Mapping[str, Cell]) -> int:
    """Measure the cells of the command line; return 1 if the sink itself failed."""
    measured: dict[str, Measured] = {}
    with (
        schema_registry() as registry,
        tempfile.TemporaryDirectory(prefix="bench-rows-") as folder,
    ):
        bench = Bench(
            spark=_new_session(),
            renew_session=_renewed,
            bootstrap=given.bootstrap,
            topics=Topics(given.bootstrap, given.scale),
            meter=Meter(given.broker_pid),
            registry=registry,
            kafka_libs=given.kafka_libs,
            before=given.before,
            tls=Tls(given.tls_bootstrap, given.tls_truststore) if given.tls_bootstrap else None,
            sail_python=given.sail_python,
            folder=Path(folder),
            contenders=given.contenders,
            rounds=given.rounds,
            warm_up_s=FIRST_WARM_UPS * given.warm_up,
        )
        about = about_run(bench.spark) | dict(given.about)
        if given.sail_python is not None:
            about["Sail"] = Sail(given.sail_python).version
        started = time.monotonic()
        for number, (name, usual) in enumerate(cells.items(), 1):
            cell = replace(usual, rows=max(1, int(usual.rows * given.scale)))
            elapsed = time.monotonic() - started
            print(f"[{number}/{len(cells)}, {elapsed:.0f} s] {name}: {cell}", flush=True)
            run = CellRun(bench, cell)
            run.run()
            if cell.kind is Kind.WARM:
                bench.warm_up_s = given.warm_up
            measured[name] = Measured(cell, run.results)
            print_table(name, measured[name])
            if given.output is not None:
                write_report(given.output, measured, about)
        print_targets(measured, about)
        bench.spark.stop()
    ours = [one.results.get(OURS) for one in measured.values()]
    return int(any(result is not None and result.not_run is not None for result in ours))


def _new_session() -> SparkSession:
    spark = SparkSession.builder.appName("bench").getOrCreate()
    prepare(spark)
    return spark


def _renewed(old: SparkSession) -> SparkSession:
    old.stop()
    return _new_session()


_PACKAGES: Final = ("confluent-kafka", "kafka-python", "arrow-kafka-pyo3", "pyarrow", "numpy")
_KAFKA_CLIENTS: Final = "org.apache.kafka.common.utils.AppInfoParser"
_PROCESSORS: Final = Path("/proc/cpuinfo")


def about_run(spark: SparkSession) -> dict[str, Any]:
    """Return the facts about a run, by name."""
    return {
        "spark-kafka-sink": __version__,
        "Spark": spark.version,
        MASTER: spark.sparkContext.master,
        "driver's JVM": _jvm(spark),
        "kafka-clients of Spark's own sink": _kafka_clients(spark),
        "Python": platform.python_version(),
        **dict(_packages()),
        "librdkafka of confluent-kafka": confluent_kafka.libversion()[0],
        "processor of the driver's machine": _processor(),
        CORES: os.cpu_count(),
        BEGUN: time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def _jvm(spark: SparkSession) -> str:
    jvm: Any = spark._jvm  # noqa: SLF001 - the way to ask for a class
    memory = jvm.Runtime.getRuntime()
    now, most = (each // 2**20 for each in (memory.totalMemory(), memory.maxMemory()))
    return f"Java {jvm.System.getProperty('java.version')}, heap of {now} to {most} MiB"


def _kafka_clients(spark: SparkSession) -> str:
    """Return the version of the Kafka client on Spark's class path, `none` without one."""
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
    """Return the processor's name from Linux, or else from Python."""
    try:
        lines = _PROCESSORS.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
