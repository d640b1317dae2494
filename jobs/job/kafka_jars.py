"""Fetches Apache Kafka's jars from Maven Central, once, into the user's cache folder.

Ivy, which is part of every pyspark, fetches the jars. `kafka_jars.toml` lists the jars with their
SHA-256. The tests fetch the archives of a schema registry in the same way. The environment variable
KAFKA_JARS_MIRROR names another Maven repository. The folder for the jars gets its final name when
it has all jars with the right checksums, so later starts never use the files of an interrupted
download. If a program that cleans caches removed some of the jars, the next start fetches all of
them again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from stat import S_ISREG
from typing import Final, NamedTuple
from xml.sax.saxutils import quoteattr

from job import children, java_version, lock

MIRROR: Final = "KAFKA_JARS_MIRROR"
_LIST: Final = Path(__file__).with_suffix(".toml")
# The interval at which progress is shown: in a terminal, where one line changes, and in a log.
_TERMINAL_S: Final = 0.1
_LOG_S: Final = 2.0
_CONNECT_MS: Final = 10_000
_READ_MS: Final = 30_000
_PARTIAL: Final = "partial-"
# Messages of Ivy and Java if the network or the repository does not deliver a jar.
_NETWORK: Final = re.compile(
    r"Host (?P<host>\S+) not found|(?:CLIENT|SERVER) ERROR: (?P<answer>.+?) url=\S*/(?P<jar>\S+)\s"
    r"|(?:Connection refused|Connection reset|Connect timed out|Read timed out"
    r"|Network is unreachable|No route to host|Premature EOF)|SSL\w*Exception: [^)\n]+"
)
_LONGEST: Final = 500
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class JarsError(Exception):
    """The jars cannot be fetched; the message is one sentence with the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Jars:
    """The jars of one folder of the cache, or an archive that contains the jars."""

    name: str
    folder: str

    @property
    def path(self) -> Path:
        """The folder that has the jars after they are fetched."""
        return cache_folder() / self.folder

    @property
    def are_there(self) -> bool:
        """Whether the folder has every jar. Their checksums were checked at the download."""
        folder = self.path
        return all((folder / name).is_file() for name in self.file_names)

    @property
    def file_names(self) -> list[str]:
        """The names of the jars' files."""
        return [_file_name(each) for each in _checksums(self)]


KAFKA: Final = Jars("Apache Kafka 4.3.1", "kafka-4.3.1")
KAFKA_4_4: Final = Jars("Apache Kafka 4.4.0", "kafka-4.4.0")
CLIENTS_4_4: Final = Jars("the clients of Apache Kafka 4.4.0", "kafka-clients-4.4.0")
KAFKA_3: Final = Jars("Apache Kafka 3.9.2", "kafka-3.9.2")
KAFKA_0_10: Final = Jars("Apache Kafka 0.10.2.2", "kafka-0.10.2.2")
SPARK_KAFKA: Final = Jars("Spark's Kafka sink 4.2.0", "spark-sql-kafka-4.2.0")
SPARK_AVRO: Final = Jars("Spark's Avro 4.2.0", "spark-avro-4.2.0")
APICURIO_2: Final = Jars("Apicurio Registry 2.6.13", "apicurio-registry-2.6.13")
APICURIO_3: Final = Jars("Apicurio Registry 3.3.3", "apicurio-registry-3.3.3")


def cache_folder() -> Path:
    """Return the project's folder in the user's cache; it may not exist yet.

    Raise JarsError if the user has no home folder.
    """
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(named) if named else Path.home() / ".cache"
    except RuntimeError:
        message = (
            "there is no cache folder, because HOME is not set and this user has no home folder: "
            "set HOME, or name a folder by the environment variable XDG_CACHE_HOME"
        )
        raise JarsError(message) from None
    return base / "spark-kafka-sink"


def fetch(jars: Jars) -> Path:
    """Fetch the jars if they are not there, and return their folder.

    Raise JarsError if they cannot be fetched.
    """
    if jars.are_there:
        return jars.path
    _mirror()
    if (problem := java_version.problem()) is not None:
        raise JarsError(problem)
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        waiting = f"waiting for another process that fetches {jars.name} …"
        with lock.locked(cache_folder() / f"{jars.folder}.lock", waiting):
            if not jars.are_there:  # another process may have fetched them meanwhile
                _fetch(jars)
    except OSError as error:
        raise JarsError(unusable_cache(error.strerror or str(error))) from None
    return jars.path


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
        if jars.path.exists():  # some of its jars were removed
            jars.path.rename(folder / "incomplete")
        (folder / "jars").rename(jars.path)


class _Artifact(NamedTuple):
    """A file of a Maven repository."""

    group: str
    name: str
    extension: str
    classifier: str
    version: str


def _artifact(coordinates: str) -> _Artifact:
    """Return the file with coordinates as Maven writes them.

    They are `group:name:version` for a jar, otherwise `group:name:extension:classifier:version`.
    """
    group, name, *kind, version = coordinates.split(":")
    extension, classifier = kind or ("jar", "")
    return _Artifact(group, name, extension, classifier, version)


@cache
def _checksums(jars: Jars) -> dict[str, str]:
    """Return the SHA-256 of each jar, by its coordinates."""
    return dict(tomllib.loads(_LIST.read_text())[jars.folder])


def _file_name(coordinates: str) -> str:
    found = _artifact(coordinates)
    classifier = f"-{found.classifier}" if found.classifier else ""
    return f"{found.name}-{found.version}{classifier}.{found.extension}"


def _wrong_files(jars: Jars, folder: Path) -> list[str]:
    """Return a text for each jar that is missing or has another checksum than expected."""
    wrong = []
    for coordinates, checksum in _checksums(jars).items():
        file = folder / _file_name(coordinates)
        if not file.is_file():
            wrong.append(f"{file.name} is missing")
        elif (found := hashlib.sha256(file.read_bytes()).hexdigest()) != checksum:
            wrong.append(f"{file.name} has the SHA-256 {found}, expected {checksum}")
    return wrong


def _run_ivy(jars: Jars, folder: Path) -> str:
    """Let Ivy fetch the jars into `folder`/jars, show the progress, and return Ivy's output."""
    (folder / "settings.xml").write_text(_settings())
    (folder / "ivy.xml").write_text(_ivy_file(_checksums(jars)))
    command = [
        *(java_version.command(), f"-Duser.home={folder}"),
        *("-cp", os.pathsep.join(map(str, _ivy())), "org.apache.ivy.Main"),
        *("-verbose", "-settings", str(folder / "settings.xml"), "-cache", str(folder / "ivy")),
        *("-ivy", str(folder / "ivy.xml"), "-confs", "default"),
        *("-retrieve", f"{folder}/jars/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    with subprocess.Popen(  # noqa: S603 - the user's Java and pyspark's Ivy
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # With this, Java's messages are in English, and it finds folders with non-ASCII names.
        env=os.environ | {"LC_ALL": "C.UTF-8"},
        preexec_fn=children.die_with_parent,  # noqa: PLW1509 - one system call, no locks
    ) as ivy:
        try:
            assert ivy.stdout is not None  # noqa: S101 - for the type checker: it is a pipe
            return _show(jars, folder, ivy.stdout.fileno())
        finally:
            ivy.kill()


def _show(jars: Jars, folder: Path, pipe: int) -> str:
    """Show the progress until Ivy has ended or a jar fails; return Ivy's output."""
    started = shown = time.monotonic()
    begin, end, every_s = (
        ("\r\x1b[K", "", _TERMINAL_S) if sys.stdout.isatty() else ("", "\n", _LOG_S)
    )
    said, total = "", len(_checksums(jars))
    noun = "jars" if total > 1 else "file"
    print(
        f"fetching {jars.name} ({total} {noun}) from {_mirror() or 'Maven Central'} …", flush=True
    )
    # Ivy prints a dot for every few KB.
    for chunk in iter(lambda: os.read(pipe, 1 << 16).decode(errors="replace"), ""):
        said += chunk
        if _NETWORK.search(said, max(0, len(said) - len(chunk) - _LONGEST)):
            break  # otherwise Ivy would try to fetch all other jars, too
        if time.monotonic() - shown >= every_s:
            shown = time.monotonic()
            size = sum(map(_size, folder.glob("ivy/**/*"))) / 1e6
            print(
                f"{begin}  {jars.name}: {_done(said)} of {total} {noun}, {size:.0f} MB",
                end=end,
                flush=True,
            )
    took_s = time.monotonic() - started
    print(f"{begin}  {jars.name}: {_done(said)} of {total} {noun} in {took_s:.0f} s", flush=True)
    return said


def _size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it was moved meanwhile, or is a folder."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    return found.st_size if S_ISREG(found.st_mode) else 0


def _done(said: str) -> int:
    return said.count("[SUCCESSFUL ]")


def _failure(jars: Jars, said: str, wrong: list[str]) -> str:
    """Return the sentence that says why the jars could not be fetched."""
    for number in _FULL:
        if os.strerror(number) in said:
            return unusable_cache(os.strerror(number))
    found = _NETWORK.search(said)
    if found is None:
        reason = wrong[0] + (f", and {len(wrong) - 1} more" if len(wrong) > 1 else "")
    elif found["host"]:
        reason = f"the name {found['host']} does not resolve"
    elif found["answer"]:
        reason = f"{found['jar']}: {found['answer']}"
    else:
        reason = found[0]
    return (
        f"{jars.name} could not be fetched from {_mirror() or 'Maven Central'}: {reason}; check "
        f"the network, or name another Maven repository by the environment variable {MIRROR}"
    )


def unusable_cache(reason: str) -> str:
    """Return the sentence for a cache folder that cannot be written."""
    return (
        f"the cache folder {cache_folder()} cannot be written: {reason}; make room or give access, "
        "or name another folder by the environment variable XDG_CACHE_HOME"
    )


def _mirror() -> str | None:
    """Return the address of the Maven repository that the user set, None if it is not set.

    Raise JarsError if the address is not valid.
    """
    mirror = os.environ.get(MIRROR)
    if not mirror:
        return None
    if "@" in mirror:
        message = (
            f"{MIRROR} has a user name or a password, which Ivy would not send: name a Maven "
            "repository that asks for neither"
        )
        raise JarsError(message)
    if not mirror.startswith(("http://", "https://", "file:/")):
        message = (
            f"{MIRROR} is {mirror!r}: expected the address of a Maven repository, such as "
            "https://repo.example.com/maven2"
        )
        raise JarsError(message)
    return f"{mirror.rstrip('/')}/"


def _settings() -> str:
    mirror = _mirror()
    root = f" root={quoteattr(mirror)}" if mirror else ""
    # The list has every jar with its checksum, so Ivy does not need to resolve dependencies.
    return (
        '<ivysettings><settings defaultResolver="central"/><timeout-constraints>'
        f'<timeout-constraint name="soon" connectionTimeout="{_CONNECT_MS}" '
        f'readTimeout="{_READ_MS}"/></timeout-constraints><resolvers>'
        '<ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false" '
        f'checksums="" timeoutConstraint="soon"{root}/></resolvers></ivysettings>'
    )


def _ivy_file(coordinates: Iterable[str]) -> str:
    jars = "".join(
        f'<dependency org="{each.group}" name="{each.name}" rev="{each.version}" '
        f'conf="default->default"><artifact name="{each.name}" type="{each.extension}"'
        + (f' m:classifier="{each.classifier}"' if each.classifier else "")
        + "/></dependency>"
        for each in map(_artifact, coordinates)
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="local" module="jars"/><configurations>'
        f'<conf name="default"/></configurations><dependencies>{jars}</dependencies></ivy-module>'
    )


def _ivy() -> list[Path]:
    """Return Ivy's jars, which are part of every Spark. Raise JarsError if there is no Spark."""
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
