"""Small Java programs with Kafka's own classes, which are the reference for the protocol."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from support.brokers import fetch_kafka

# JVMs of tests live for seconds or minutes; the second compiler costs more than it saves.
SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1"
_PROGRAMS: Final = Path(__file__).parent / "java"


def run_java(name: str, *arguments: str | Path, version: str = fetch_kafka.NEWEST) -> str:
    """Run a single-file program of the folder `java` with Kafka's jars and return its output.

    Skip the test if Java or the jars are missing; with REQUIRE_KAFKA=1, fail it.
    """
    jars = fetch_kafka.libs(version)
    missing = _missing(jars)
    if missing is not None:
        if os.environ.get("REQUIRE_KAFKA") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    command = ["java", "-Xmx512m", "-XX:+UseSerialGC", SHORT_LIVED, "-cp", f"{jars}/*"]
    done = subprocess.run(
        [*command, _PROGRAMS / f"{name}.java", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        message = f"{name}.java failed:\n{done.stderr[-3000:]}"
        raise RuntimeError(message)
    return done.stdout


def _missing(jars: Path) -> str | None:
    if shutil.which("java") is None:
        return "there is no `java` on the PATH: install Java 17 or newer"
    if not jars.is_dir():
        return f"there are no jars of Apache Kafka in {jars}: run make test"
    return None
