"""Apicurio Registry on 127.0.0.1: a real schema registry that offers the API of Confluent's.

`python -m support.brokers.apicurio` fetches the releases, for `make test-registry`. A release keeps
its schemas in memory. A release that needs a newer Java than there is here does not run.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tarfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from job import java_version, kafka_jars

from support.brokers import processes
from support.brokers.kafka_cluster import free_ports
from support.brokers.server import Server

_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
# Debian's packages and others put each Java into a folder of this folder.
_JAVAS: Final = Path("/usr/lib/jvm")
_START_TIMEOUT_S: Final = 240.0
_POLL_S: Final = 0.1
# For a short life. The collector and the compiler need few threads and little memory.
_JAVA: Final = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOG_LINES: Final = 20


@dataclass(frozen=True)
class Release:
    """A release of Apicurio Registry.

    apis: the paths of the APIs of Confluent's registry that it has, the newest last. program: the
    jar that starts it. oldest_java: the oldest version of Java that it runs on.
    """

    archive: kafka_jars.Jars
    apis: tuple[str, ...]
    program: str
    oldest_java: int


RELEASES: Final = {
    "2.6.13": Release(
        kafka_jars.APICURIO_2,
        ("/apis/ccompat/v7",),
        "apicurio-registry-app-2.6.13.Final-runner.jar",
        17,
    ),
    "3.3.3": Release(
        kafka_jars.APICURIO_3, ("/apis/ccompat/v7", "/apis/ccompat/v8"), "quarkus-run.jar", 21
    ),
}


def java_for(release: Release) -> str | None:
    """Return a java that can run a release, None if there is none.

    The java that Spark takes is preferred to the others in /usr/lib/jvm.
    """
    found = shutil.which(java_version.command())
    javas = [found] if found is not None else []
    javas += sorted(map(str, _JAVAS.glob("*/bin/java")))
    return next((each for each in javas if _is_new_enough(each, release)), None)


def _is_new_enough(java: str, release: Release) -> bool:
    version = java_version.version_of(java)
    return version is not None and version >= release.oldest_java


def not_run(version: str) -> str | None:
    """Return why a release does not run here, None if it runs."""
    release = RELEASES[version]
    if java_for(release) is None:
        return _too_old(release)
    if not release.archive.are_there:
        return f"{release.archive.name} is not run: make test-registry fetches it"
    return None


def _too_old(release: Release) -> str:
    return (
        f"{release.archive.name} is not run: it needs Java {release.oldest_java} or newer, and "
        f"neither {java_version.command()} nor a Java in {_JAVAS} is as new"
    )


class Apicurio(Server):
    """A running registry without schemas. It checks backward compatibility, as Confluent's does.

    The path of the API comes after `address`.
    """

    def __init__(self, version: str, folder: Path) -> None:
        self.release = RELEASES[version]
        java = java_for(self.release)
        assert java is not None
        folder.mkdir()
        self._log = folder / "registry.log"
        program = _unpack(self.release, folder) / self.release.program
        port, management = free_ports(2)
        self.address = f"http://127.0.0.1:{port}"
        options = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": port,
            # Releases since 3 have a second port, for their health and metrics.
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": management,
        }
        settings = [f"-D{name}={value}" for name, value in options.items()]
        self._process = processes.start(
            [java, *_JAVA, *settings, "-jar", program], log=self._log, cwd=folder
        )
        try:
            self._wait()
            api = self.release.apis[-1]
            self.send("PUT", f"{api}/config", {"compatibility": "BACKWARD"})
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def stop(self) -> None:
        """End the process."""
        processes.stop(self._process)

    def send(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - any JSON
        """Send a request, and return the JSON in the response. Raise HTTPError for a failure."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": _MEDIA_TYPE}
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=_START_TIMEOUT_S) as answer:
            return json.loads(answer.read() or b"null")

    def _wait(self) -> None:
        """Wait until the registry responds. Raise RuntimeError if it does not."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                self.send("GET", f"{self.release.apis[-1]}/subjects")
            except OSError:  # an HTTPError, too: it may respond before it can use its database
                time.sleep(_POLL_S)
            else:
                return
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        message = f"{self.release.archive.name} did not start:\n" + "\n".join(lines)
        raise RuntimeError(message)


class Registry:
    """An API of a running registry. url: the value of the option schema.registry.url."""

    def __init__(self, server: Apicurio, api: str) -> None:
        self._server, self._api = server, api
        self.url = f"{server.address}{api}"
        self.address = server.address

    def add(self, subject: str, schema: object, **more: object) -> int:
        """Register a schema, and return its id. more: such as schemaType or references."""
        body = {"schema": json.dumps(schema), **more}
        return int(self._send("POST", f"/subjects/{subject}/versions", body)["id"])

    def ids(self, subject: str) -> list[int]:
        """Return the id of each version of a subject."""
        return [int(self.version(subject, each)["id"]) for each in self._versions(subject)]

    def version(self, subject: str, version: int | str = "latest") -> Mapping[str, Any]:
        """Return a version of a subject."""
        found: Mapping[str, Any] = self._send("GET", f"/subjects/{subject}/versions/{version}")
        return found

    def _versions(self, subject: str) -> list[int]:
        return list(self._send("GET", f"/subjects/{subject}/versions"))

    def _send(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - any JSON
        return self._server.send(method, self._api + path, body)


def _unpack(release: Release, folder: Path) -> Path:
    """Unpack the archive of a release, and return the folder with its files."""
    (name,) = release.archive.file_names
    unpacked = folder / "unpacked"
    with tarfile.open(release.archive.path / name) as archive:
        archive.extractall(unpacked, filter="data")
    return unpacked


def main() -> int:
    """Fetch the releases that can run here; return 1 if one of them cannot be fetched."""
    problems = []
    for release in RELEASES.values():
        if java_for(release) is None:
            print(_too_old(release))
            continue
        try:
            kafka_jars.fetch(release.archive)
        except kafka_jars.JarsError as error:
            problems.append(str(error))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    # Ctrl-C ends it at once; the next run removes the leftovers.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())
