"""Small Java programs with Kafka's own classes, which are the reference for the protocol.

They are compiled once for an environment: a JVM that compiles takes several times as long.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest
from job import class_archive, lock

from support.brokers import class_archives, fetch_kafka

_PROGRAMS: Final = Path(__file__).parent / "java"
_COMPILER: Final = ("-m", "jdk.compiler/com.sun.tools.javac.Main", "-proc:none")


def run_java(name: str, *arguments: str | Path, version: str = fetch_kafka.NEWEST) -> str:
    """Run a program of the folder `java` with Kafka's jars and return its output.

    Skip the test if Java or the jars are missing; with REQUIRE_KAFKA=1, fail it.
    """
    jars = fetch_kafka.libs(version)
    missing = _missing(jars)
    if missing is not None:
        if os.environ.get("REQUIRE_KAFKA") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    options = class_archives.kafka_options(version)
    class_path = f"{jars}/*{os.pathsep}{compiled(name, version)}"
    done = subprocess.run(
        ["java", "-Xmx512m", *options, "-cp", class_path, name, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        message = f"{name}.java failed:\n{done.stderr[-3000:]}"
        raise RuntimeError(message)
    return done.stdout


def compiled(name: str, version: str = fetch_kafka.NEWEST) -> Path:
    """Return the folder with the classes of a program; compile it if they are not there.

    For the newest Kafka, all programs are compiled at once. Few of them know older ones.
    """
    newest = version == fetch_kafka.NEWEST
    sources = sorted(_PROGRAMS.glob("*.java" if newest else f"{name}.java"))
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in sources))
    digest.update(f"{version} {class_archive.java_identity()}".encode())
    folder = Path(sys.prefix, "java-programs")
    classes = folder / digest.hexdigest()[:16]
    folder.mkdir(exist_ok=True)
    with lock.locked(folder, "waiting for another process that compiles programs in Java …"):
        if not classes.is_dir():
            with tempfile.TemporaryDirectory(dir=folder) as partial:
                _compile(sources, fetch_kafka.libs(version), Path(partial, "classes"))
                Path(partial, "classes").rename(classes)
    return classes


def _compile(sources: list[Path], jars: Path, target: Path) -> None:
    """Compile programs. Raise RuntimeError with what the compiler said."""
    class_path = os.pathsep.join(map(str, jars.glob("*.jar")))
    command = ["java", *class_archive.SHORT_LIVED, *_COMPILER, "-cp", class_path, "-d"]
    done = subprocess.run([*command, target, *sources], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        message = f"the compiler of Java failed:\n{done.stdout}{done.stderr[-3000:]}"
        raise RuntimeError(message)


def _missing(jars: Path) -> str | None:
    if shutil.which("java") is None:
        return "there is no `java` on the PATH: install Java 17 or newer"
    if not jars.is_dir():
        return f"there are no jars of Apache Kafka in {jars}: run make test"
    return None
