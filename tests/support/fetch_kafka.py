"""Fetches Apache Kafka's jars by Maven into a cache outside the checkout.

Run as a script it fetches every version the tests use. What cannot be fetched is said in one
sentence; with REQUIRE_KAFKA=1 that is a failure, otherwise the tests that need it print that they
did not run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Final

NEWEST: Final = "4.3.1"
OLD: Final = "3.9.2"
VERSIONS: Final = (NEWEST, OLD)

# Spark's own Kafka sink, the peer; jar by jar, since the token provider is of another version.
JVM_SINK_SPARK: Final = "4.2.0"
_JVM_SINK: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy"

_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka-libs</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{version}</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId>
      <version>{version}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version></dependency>
  </dependencies>
</project>
"""


def cache() -> Path:
    """Give the folder for what is fetched once, outside the checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "spark-kafka-sink"


def libs(version: str) -> Path:
    """Give the folder of a version's jars, whether or not it is there."""
    return cache() / f"kafka-{version}"


def missing() -> str | None:
    """Say in one sentence what stands against tests on real brokers; None if nothing does."""
    absent = [version for version in VERSIONS if not libs(version).is_dir()]
    if not absent:
        return None
    wanted = f"Apache Kafka {' and '.join(absent)}"
    if shutil.which("java") is None:
        return f"{wanted} cannot run: install Java 17 or newer, so that `java` is on the PATH."
    if shutil.which("mvn") is None:
        return f"{wanted} cannot be fetched: install Maven, so that `mvn` is on the PATH."
    return f"{wanted} could not be fetched by Maven: check the access to its repository."


def fetch(version: str) -> bool:
    """Fetch a version's jars if they are not there; False where Maven cannot."""
    target = libs(version)
    if target.is_dir():
        return True
    if shutil.which("mvn") is None:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        Path(folder, "pom.xml").write_text(_POM.format(version=version))
        print(f"fetching Apache Kafka {version} by Maven …", flush=True)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies"]
        command += ["-DoutputDirectory=libs", "-DincludeScope=runtime"]
        done = subprocess.run(command, cwd=folder, check=False)
        if done.returncode != 0:
            return False
        Path(folder, "libs").rename(target)
    return True


def takes_jvm_sink() -> bool:
    """Whether this environment's Spark is the one that Spark's own Kafka sink is fetched for."""
    return metadata.version("pyspark") == JVM_SINK_SPARK


def jvm_sink_jars() -> list[Path]:
    """Give the jars of Spark's own Kafka sink; none where they were not fetched."""
    return sorted(_jvm_sink_folder().glob("*.jar"))


def missing_jvm_sink() -> str | None:
    """Say in one sentence that Spark's own Kafka sink is not there; None where it is."""
    if jvm_sink_jars():
        return None
    wanted = f"Spark's own Kafka sink {JVM_SINK_SPARK}"
    if shutil.which("mvn") is None:
        return f"{wanted} cannot be fetched: install Maven, so that `mvn` is on the PATH."
    return f"{wanted} could not be fetched by Maven: check the access to its repository."


def jvm_sink() -> list[Path]:
    """Fetch the jars of Spark's own Kafka sink if they are not there; none where Maven cannot."""
    target = _jvm_sink_folder()
    if not target.is_dir():
        if shutil.which("mvn") is None:
            return []
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            print(f"fetching Spark's own Kafka sink {JVM_SINK_SPARK} by Maven …", flush=True)
            for artifact in _JVM_SINK:
                command = ["mvn", "-q", "-B", _COPY, f"-Dartifact={artifact}"]
                command += ["-DoutputDirectory=jars"]
                if subprocess.run(command, cwd=folder, check=False).returncode != 0:
                    return []
            Path(folder, "jars").rename(target)
    return jvm_sink_jars()


def _jvm_sink_folder() -> Path:
    return cache() / f"spark-sql-kafka-{JVM_SINK_SPARK}"


def main() -> int:
    """Fetch all; say what is missing."""
    for version in VERSIONS:
        fetch(version)
    jvm_sink()
    problem = missing() or missing_jvm_sink()
    if problem is not None:
        print(problem, file=sys.stderr)
    return 1 if problem is not None and os.environ.get("REQUIRE_KAFKA") == "1" else 0


if __name__ == "__main__":
    sys.exit(main())
