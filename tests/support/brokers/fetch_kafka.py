"""The jars for the tests: Apache Kafka of three versions, Spark's Kafka sink, and Spark's Avro.

`python -m support.brokers.fetch_kafka` fetches all of them, and of Kafka 4.4.0 only the clients;
with the argument `next` also the brokers of 4.4.0, for `make test-matrix`. A test is skipped with a
reason if its jars are missing; with REQUIRE_KAFKA=1 it fails.
"""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Final

from job import java_version, kafka_jars

# The version of most brokers in the tests. `make test-matrix` also sets it to `NEXT`.
NEWEST: Final = os.environ.get("TESTED_KAFKA", "4.3.1")
NEXT: Final = "4.4.0"
NEXT_CLIENTS: Final = "4.4.0-clients"
OLD: Final = "3.9.2"
OLDEST: Final = "0.10.2.2"
VERSIONS: Final = (NEWEST, OLD)
JVM_SINK_SPARK: Final = "4.2.0"

_BY_VERSION: Final = {
    "4.3.1": kafka_jars.KAFKA,
    NEXT: kafka_jars.KAFKA_4_4,
    NEXT_CLIENTS: kafka_jars.CLIENTS_4_4,
    OLD: kafka_jars.KAFKA_3,
    OLDEST: kafka_jars.KAFKA_0_10,
}


def libs(version: str) -> Path:
    """Return the folder of a version's jars, which may not exist."""
    return _BY_VERSION[version].path


def missing(*versions: str) -> str | None:
    """Return which brokers cannot run and why, None if all can."""
    absent = [each for each in versions or VERSIONS if not _BY_VERSION[each].are_there]
    problem = java_version.problem()
    if not absent and problem is None:
        return None
    versions_text = f"Apache Kafka {' and '.join(absent or versions or VERSIONS)}"
    if problem is not None:
        return f"{versions_text} cannot run: {problem}."
    return f"{versions_text} is not there: run 'make kafka' to fetch it."


def takes_jvm_sink() -> bool:
    """Return whether this environment has the Spark version that the JVM sink's jars are for."""
    return metadata.version("pyspark") == JVM_SINK_SPARK


def jvm_sink_jars() -> list[Path]:
    """Return the jars of Spark's Kafka sink; the list is empty if they were not fetched."""
    return sorted(kafka_jars.SPARK_KAFKA.path.glob("*.jar"))


def spark_jars() -> list[Path]:
    """Return the jars of Spark's Kafka sink and of its Avro, as far as they were fetched."""
    return [*jvm_sink_jars(), *sorted(kafka_jars.SPARK_AVRO.path.glob("*.jar"))]


def missing_jvm_sink() -> str | None:
    """Return why Spark's Kafka sink is not available, None if it is."""
    return _missing(kafka_jars.SPARK_KAFKA)


def missing_spark_avro() -> str | None:
    """Return why Spark's Avro is not available, None if it is."""
    return _missing(kafka_jars.SPARK_AVRO)


def _missing(jars: kafka_jars.Jars) -> str | None:
    return None if jars.are_there else f"{jars.name} is not there: run 'make kafka' to fetch it."


def put_empty_jars(cache: Path, *jars: kafka_jars.Jars) -> None:
    """Put empty files in the place of jars into a cache folder, for programs without Java."""
    for each in jars:
        folder = cache / "spark-kafka-sink" / each.folder
        folder.mkdir(parents=True)
        for name in each.file_names:
            (folder / name).touch()


def main() -> int:
    """Fetch the jars in parallel; return 1 if some are required and cannot be fetched."""
    needed = [*_BY_VERSION.values(), kafka_jars.SPARK_KAFKA, kafka_jars.SPARK_AVRO]
    if sys.argv[1:] != ["next"]:
        needed.remove(kafka_jars.KAFKA_4_4)
    with ThreadPoolExecutor() as pool:
        problems = [each for each in pool.map(_problem, needed) if each is not None]
    for problem in dict.fromkeys(problems):  # one reason may stand against all
        print(problem, file=sys.stderr)
    return 1 if problems and os.environ.get("REQUIRE_KAFKA") == "1" else 0


def _problem(jars: kafka_jars.Jars) -> str | None:
    try:
        kafka_jars.fetch(jars)
    except kafka_jars.JarsError as error:
        return str(error)
    return None


if __name__ == "__main__":
    # Ctrl-C ends it at once; the next run removes the leftovers.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())
