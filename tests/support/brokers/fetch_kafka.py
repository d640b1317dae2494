"""The jars for the tests: Apache Kafka of four versions, Spark's Kafka sink, and Spark's Avro.

`python -m support.brokers.fetch_kafka` fetches all of them. A test is skipped with a reason if its
jars are missing; with REQUIRE_KAFKA=1 it fails.
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
OLD: Final = "3.9.2"
OLDEST: Final = "0.10.2.2"
VERSIONS: Final = (NEWEST, OLD)
JVM_SINK_SPARK: Final = "4.2.0"

_BY_VERSION: Final = {
    "4.3.1": kafka_jars.KAFKA,
    NEXT: kafka_jars.KAFKA_4_4,
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


def main() -> int:
    """Fetch all jars in parallel; return 1 if some cannot be fetched."""
    with ThreadPoolExecutor() as pool:
        problems = [each for each in pool.map(_problem, kafka_jars.ALL) if each is not None]
    for problem in problems:
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
