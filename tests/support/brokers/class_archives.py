"""Class data archives for the JVMs of tests, with which Spark starts with far less CPU time.

As a script, it makes the missing ones: those of each Kafka in the cache next to its jars, that of
this environment's Spark in the environment. A JVM that an archive does not fit starts without it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from job import class_archive, kafka_jars, lock

from support.brokers import fetch_kafka, processes
from support.brokers.kafka_cluster import KafkaCluster

_SPARK_TIMEOUT_S: Final = 180.0
# The operations of the tests, run in a Spark Connect server, which has all features of a classic
# session.
_SPARK: Final = """
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
folder = sys.argv[1]
frame = spark.range(0, 10, 1, 2).selectExpr("CAST(id AS STRING) AS value", "id % 2 AS half")
frame.mapInArrow(lambda batches: batches, "value STRING, half BIGINT").write.parquet(folder + "/p")
spark.read.parquet(folder + "/p").groupBy("half").count().orderBy("half").collect()
lines = spark.readStream.schema("value STRING, half BIGINT").parquet(folder + "/p")
lines.writeStream.format("noop").option("checkpointLocation", folder + "/c").trigger(
    availableNow=True
).start().awaitTermination()
try:
    frame.select("value").write.format("pykafka").mode("append").save()
except PySparkException:
    pass
"""


def spark_options() -> Sequence[str]:
    """Return the options of a Spark JVM that lives for a test."""
    return class_archive.using(_spark_archive())


def kafka_options(version: str) -> Sequence[str]:
    """Return the options of a Kafka JVM of this version that lives for a test."""
    return class_archive.using(_kafka_archive(version))


def make() -> None:
    """Make the missing archives. Another test run may do so at the same time.

    Raise JarsError if there is no cache folder.
    """
    if not _missing_versions() and not _is_spark_missing():
        return
    folder = kafka_jars.cache_folder()
    waiting = "waiting for another process that archives classes …"
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock.locked(folder / "archives.lock", waiting))
        except OSError as error:
            # Without archives, tests find the same, but need more CPU time.
            reason = kafka_jars.unusable_cache(error.strerror or str(error))
            print(f"Classes are not archived: {reason}.", file=sys.stderr)
            return
        _make()


def _missing_versions() -> list[str]:
    """Return the versions of Kafka that are here without their archive."""
    return [
        version
        for version in fetch_kafka.VERSIONS
        if fetch_kafka.libs(version).is_dir() and not _kafka_archive(version).exists()
    ]


def _is_spark_missing() -> bool:
    return shutil.which("java") is not None and not _spark_archive().exists()


def _make() -> None:
    for version in _missing_versions():
        archive = _kafka_archive(version)
        print(f"archiving the classes of Apache Kafka {version} …", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            options = _archiving(archive)
            libs = fetch_kafka.libs(version)
            cluster = KafkaCluster(libs, Path(folder), java_options=options)
            cluster.start()
            cluster.terminate(1)
        _keep(archive)
    if _is_spark_missing():
        archive = _spark_archive()
        print("archiving the classes of Spark …", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            _run_to_the_end(
                [sys.executable, "-c", _SPARK, folder],
                {**os.environ, "SPARK_SUBMIT_OPTS": " ".join(_archiving(archive))},
                Path(folder),
            )
        _keep(archive)


def _run_to_the_end(command: list[str], environment: dict[str, str], folder: Path) -> None:
    """Run a program and wait for its JVM too, which outlives it.

    Raise with its output if it fails.
    """
    log = folder / "log"
    program = processes.start(command, log=log, cwd=folder, env=environment)
    try:
        if program.wait(_SPARK_TIMEOUT_S) != 0:
            print(log.read_text()[-3000:], file=sys.stderr)
        deadline = time.monotonic() + _SPARK_TIMEOUT_S
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(program.pid, 0)
                time.sleep(0.1)
    except subprocess.TimeoutExpired:
        print(f"Spark's classes are not archived: {log.read_text()[-3000:]}", file=sys.stderr)
    finally:
        processes.kill(program)


def _archiving(archive: Path) -> list[str]:
    return list(class_archive.making(_partial(archive)))


def _kafka_archive(version: str) -> Path:
    return kafka_jars.cache_folder() / f"kafka-{version}-{class_archive.java_identity()}.jsa"


def _spark_archive() -> Path:
    return Path(sys.prefix) / f"spark-{class_archive.java_identity()}.jsa"


def _partial(archive: Path) -> Path:
    return archive.with_suffix(".partial")


def _keep(archive: Path) -> None:
    """Rename an archive to its final name, if its JVM has written it."""
    if _partial(archive).exists():
        _partial(archive).rename(archive)


if __name__ == "__main__":
    try:
        make()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except kafka_jars.JarsError as error:
        sys.exit(str(error))
