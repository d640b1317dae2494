"""Apache Kafka's jars: fetched once from Maven Central into the user's cache folder.

Ivy fetches them; every pyspark has its jar. `kafka_jars.toml` lists the jars with their SHA-256.
The environment variable KAFKA_JARS_MIRROR names another Maven repository. A folder of the cache
gets its name when all jars are in it and each has its checksum, so a download that was broken off
leaves nothing that a later start would use.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

import java_version

MIRROR: Final = "KAFKA_JARS_MIRROR"
_LIST: Final = Path(__file__).with_suffix(".toml")
_LINE_EVERY_S: Final = 2.0
_PARTIAL: Final = "partial-"
# What Ivy and Java say of a network or a repository that does not give a jar.
_NETWORK: Final = re.compile(
    r"UnknownHostException: (?P<host>\S+)|Connection refused|timed out|Network is unreachable"
    r"|No route to host|SSLHandshakeException|HTTP response code: \d+"
)


class JarsError(Exception):
    """The jars cannot be fetched; the message is one sentence with the reason and the way out."""


@dataclass(frozen=True, slots=True)
class Jars:
    """The jars of one folder of the cache."""

    name: str
    folder: str

    @property
    def path(self) -> Path:
        """The folder that has the jars once they are fetched."""
        return cache_folder() / self.folder

    @property
    def are_there(self) -> bool:
        """Whether the jars have been fetched."""
        return self.path.is_dir()


KAFKA: Final = Jars("Apache Kafka 4.3.1", "kafka-4.3.1")
KAFKA_3: Final = Jars("Apache Kafka 3.9.2", "kafka-3.9.2")
KAFKA_0_10: Final = Jars("Apache Kafka 0.10.2.2", "kafka-0.10.2.2")
SPARK_KAFKA: Final = Jars("Spark's Kafka sink 4.2.0", "spark-sql-kafka-4.2.0")
ALL: Final = (KAFKA, KAFKA_3, KAFKA_0_10, SPARK_KAFKA)


def cache_folder() -> Path:
    """Return the project's folder in the user's cache; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "spark-kafka-sink"


def fetch(jars: Jars) -> Path:
    """Return the folder of the jars; fetch them if they are not there. Raise JarsError."""
    if jars.are_there:
        return jars.path
    if (problem := java_version.problem()) is not None:
        raise JarsError(problem)
    try:
        with _locked(jars):
            if not jars.are_there:  # another process may have fetched them meanwhile
                _fetch(jars)
    except OSError as error:
        raise JarsError(_unusable_cache(error.strerror or str(error))) from None
    return jars.path


@contextlib.contextmanager
def _locked(jars: Jars) -> Iterator[None]:
    """Hold the lock of a folder. The kernel releases it when the process ends, however it ends."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f"{jars.folder}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that fetches {jars.name} …", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(jars: Jars) -> None:
    for left in cache_folder().glob(f"{_PARTIAL}{jars.folder}-*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    prefix = f"{_PARTIAL}{jars.folder}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=cache_folder()) as name:
        folder = Path(name)
        said = _run_ivy(jars, folder)
        wrong = _wrong_files(jars, folder / "jars")
        if wrong:
            raise JarsError(_failure(jars, said, wrong))
        (folder / "jars").rename(jars.path)


@cache
def _checksums(jars: Jars) -> dict[str, str]:
    """Return the SHA-256 of each jar, by `group:artifact:version`."""
    return dict(tomllib.loads(_LIST.read_text())[jars.folder])


def _file_name(coordinates: str) -> str:
    _, artifact, version = coordinates.split(":")
    return f"{artifact}-{version}.jar"


def _wrong_files(jars: Jars, folder: Path) -> list[str]:
    """Return what is wrong with each file of the folder; it is empty where nothing is."""
    wrong = []
    for coordinates, checksum in _checksums(jars).items():
        file = folder / _file_name(coordinates)
        if not file.is_file():
            wrong.append(f"{file.name} is missing")
        elif (found := hashlib.sha256(file.read_bytes()).hexdigest()) != checksum:
            wrong.append(f"{file.name} has the SHA-256 {found}, expected {checksum}")
    return wrong


def _run_ivy(jars: Jars, folder: Path) -> str:
    """Have Ivy put the jars into `folder`/jars, show the progress, and return what Ivy said."""
    (folder / "settings.xml").write_text(_settings())
    (folder / "ivy.xml").write_text(_ivy_file(_checksums(jars)))
    command = [
        *(java_version.command(), f"-Duser.home={folder}"),
        *("-cp", os.pathsep.join(map(str, _ivy())), "org.apache.ivy.Main"),
        *("-settings", str(folder / "settings.xml"), "-cache", str(folder / "ivy")),
        *("-ivy", str(folder / "ivy.xml"), "-confs", "default"),
        *("-retrieve", f"{folder}/jars/[artifact]-[revision].[ext]"),
    ]
    with subprocess.Popen(  # noqa: S603 - the user's Java and pyspark's Ivy
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C in a terminal reaches this process alone
    ) as ivy:
        try:
            assert ivy.stdout is not None  # noqa: S101 - for the type checker: it is a pipe
            return _show(jars, folder, ivy.stdout)
        finally:
            ivy.kill()


def _show(jars: Jars, folder: Path, lines: IO[str]) -> str:
    """Show the progress: one line of a terminal that changes, or a line now and then in a log."""
    started, next_s, said, count = time.monotonic(), _LINE_EVERY_S, [], 0
    begin, end = ("\r", "") if sys.stdout.isatty() else ("", "\n")
    total = len(_checksums(jars))
    print(f"fetching {jars.name} ({total} jars) from {_source()} …", flush=True)
    for line in lines:
        said.append(line)
        count += "[SUCCESSFUL ]" in line
        elapsed_s = time.monotonic() - started
        if begin or elapsed_s >= next_s:
            size = sum(each.stat().st_size for each in folder.glob("ivy/**/*.jar")) / 1e6
            print(f"{begin}  {count} of {total} jars, {size:.0f} MB", end=end, flush=True)
            next_s = elapsed_s + _LINE_EVERY_S
    print(f"{begin}  {count} of {total} jars in {time.monotonic() - started:.0f} s", flush=True)
    return "".join(said)


def _failure(jars: Jars, said: str, wrong: list[str]) -> str:
    """Return the sentence that says why the jars did not come."""
    if os.strerror(errno.ENOSPC) in said:
        return _unusable_cache(os.strerror(errno.ENOSPC))
    found = _NETWORK.search(said)
    if found is None:
        reason = wrong[0] + (f", and {len(wrong) - 1} more" if len(wrong) > 1 else "")
    elif found["host"]:
        reason = f"the name {found['host']} does not resolve"
    else:
        reason = found[0]
    return (
        f"{jars.name} could not be fetched from {_source()}: {reason}; "
        f"check the network, or name a Maven repository by the environment variable {MIRROR}"
    )


def _unusable_cache(reason: str) -> str:
    return (
        f"the cache folder {cache_folder()} cannot be written: {reason}; make room or give access, "
        "or name another folder by the environment variable XDG_CACHE_HOME"
    )


def _source() -> str:
    """Return where the jars come from, without a password that the address may have."""
    mirror = os.environ.get(MIRROR)
    if not mirror:
        return "Maven Central"
    parts = urlsplit(mirror)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _settings() -> str:
    mirror = os.environ.get(MIRROR)
    root = f" root={quoteattr(mirror.rstrip('/') + '/')}" if mirror else ""
    # The list has every jar and its checksum: Ivy need not look at what a jar depends on.
    return (
        '<ivysettings><settings defaultResolver="central"/><resolvers><ibiblio name="central" '
        f'm2compatible="true" usepoms="false" useMavenMetadata="false" checksums=""{root}/>'
        "</resolvers></ivysettings>"
    )


def _ivy_file(coordinates: Iterable[str]) -> str:
    wanted = "".join(
        '<dependency org="{}" name="{}" rev="{}" conf="default->default"/>'.format(*each.split(":"))
        for each in coordinates
    )
    return (
        '<ivy-module version="2.0"><info organisation="local" module="jars"/><configurations>'
        f'<conf name="default"/></configurations><dependencies>{wanted}</dependencies></ivy-module>'
    )


def _ivy() -> list[Path]:
    """Return the jars of Ivy, which every Spark has. Raise JarsError where there is no Spark."""
    pyspark, home = find_spec("pyspark"), os.environ.get("SPARK_HOME")
    folders = [Path(home)] if home else []
    if pyspark is not None and pyspark.origin is not None:
        folders.insert(0, Path(pyspark.origin).parent)
    for folder in folders:
        found = [*folder.glob("jars/ivy-*.jar"), *folder.glob("jars/commons-cli-*.jar")]
        if len(found) > 1:
            return found
    message = (
        f"jars are fetched by Ivy, which every Spark has, and {sys.executable} has no pyspark: "
        "run 'pip install pyspark', or name a Spark by the environment variable SPARK_HOME"
    )
    raise JarsError(message)
