"""``make dist``: the wheel and the sdist of a release, and the proof that they can be installed.

A checkout with changes that are not committed is refused. Both are built twice, in two copies of
the checkout, and have to be equal byte by byte. Twine checks them. Then each is installed into a
new environment of every supported Python that is on the PATH, and with the wheel the quick start of
the README writes its rows to a broker. A Python that is not on the PATH does not run, and the table
says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Final

from job import kafka_jars

from support.brokers import fetch_kafka
from support.brokers.kafka_cluster import KafkaCluster
from support.documents import pages
from support.programs.matrix import ROOT, find_python

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
_BROKER: Final = "127.0.0.1:9092"
# The exact versions of hatchling and of what it needs. Both builds would otherwise take the newest
# versions, and a build on a different day would give different archives.
CONSTRAINTS: Final = Path(__file__).with_name("dist_constraints.txt")
# Files that a build makes in a clone, and files that are no part of a release.
_NOT_COPIED: Final = (
    *(".git", ".ci", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info"),
    *("dist", "build", "spark-warehouse"),
)


class DistError(Exception):
    """The release is not as it has to be; the message is the reason."""


def _run(*command: str | Path, **environment: str) -> str:
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=tempfile.gettempdir(),
        env={**os.environ, **environment},
    )
    if ended.returncode != 0:
        said = f"{ended.stdout}\n{ended.stderr}".strip()
        raise DistError(f"{' '.join(map(str, command))}: {said}")
    return ended.stdout


def check_committed(checkout: Path) -> None:
    """Raise DistError if a checkout has changes that are not committed, or files that are new."""
    changed = _run("git", "-C", checkout, "status", "--porcelain").splitlines()
    if changed:
        message = (
            f"{len(changed)} file(s) are not as in the last commit, the first is {changed[0][3:]}: "
            "commit them, because a release is built from a commit"
        )
        raise DistError(message)


def build(folder: Path) -> dict[str, str]:
    """Build wheel and sdist from a copy of the checkout; return their SHA-256 by file name.

    The archives have the date of the last commit, and CONSTRAINTS has the versions of the packages
    that build them. So a later build of the same commit is equal.
    """
    source, target = folder / "source", folder / "dist"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*_NOT_COPIED))
    date = _run("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()
    build = (sys.executable, "-m", "build", "--dependency-constraints-txt", CONSTRAINTS)
    _run(*build, "--outdir", target, source, SOURCE_DATE_EPOCH=date)
    return {each.name: sha256(each.read_bytes()).hexdigest() for each in target.iterdir()}


def _install(folder: Path, python: Path, *what: str) -> Path:
    """Install into a new environment; return its Python."""
    _run(python, "-m", "venv", folder)
    own = folder / "bin" / "python"
    _run(own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)
    return own


def try_python(python: Path, dist: Path, bootstrap: str, folder: Path) -> str:
    """Install the sdist and the wheel into environments of their own; run a job with the wheel.

    The job runs on the newest Spark that pip finds for this Python, as a user's first job does.
    Return the entry for the table. Raise DistError if one of them does not work.
    """
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    show = "import spark_kafka_sink; print(spark_kafka_sink.__version__)"
    version = _run(_install(folder / "sdist", python, str(sdist)), "-P", "-c", show).strip()
    if version != wheel.name.split("-")[1]:
        raise DistError(f"the sdist installs version {version}, expected that of {wheel.name}")
    own = _install(folder / "wheel", python, f"{wheel}[spark]", "confluent-kafka>=2.11")
    program = folder / "quickstart.py"
    (quick_start,) = pages.blocks(pages.README.read_text(), "python")
    program.write_text(quick_start.replace(_BROKER, bootstrap))
    printed = _run(own, "-P", program, PYSPARK_PYTHON="", PYTHONPATH="")
    if len(printed.splitlines()) != 3:
        raise DistError(f"the quick start printed {printed!r}, expected three rows")
    return "sdist installed, wheel installed, quick start read back three rows"


def build_twice(folder: Path) -> Path:
    """Return the folder with the wheel and the sdist. Raise DistError if two builds differ."""
    first, second = (build(folder / each) for each in ("first", "second"))
    if first != second:
        raise DistError(f"two builds differ: {first} and {second}")
    dist = folder / "first" / "dist"
    _run(sys.executable, "-m", "twine", "check", "--strict", *sorted(dist.iterdir()))
    return dist


def try_all(dist: Path, folder: Path) -> None:
    """Try every Python, and print the table. Raise DistError if one of them fails."""
    kafka_jars.fetch(kafka_jars.KAFKA)
    cluster = KafkaCluster(fetch_kafka.libs("4.3.1"), folder / "kafka")
    cluster.start()
    try:
        for version in PYTHONS:
            python = find_python(version)
            if python is None:
                said = "not run: it is not on the PATH"
            else:
                said = try_python(python, dist, cluster.bootstrap, folder / version)
            print(f"Python {version}: {said}", flush=True)
    finally:
        cluster.stop()


def main() -> int:
    """Build and try the release, and leave it in dist/. Return 1 if it is not as it has to be."""
    with tempfile.TemporaryDirectory(prefix="spark-kafka-sink-dist-") as name:
        try:
            check_committed(ROOT)
            made = build_twice(Path(name))
            try_all(made, Path(name))
        except DistError as error:
            print(error, file=sys.stderr)
            return 1
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        shutil.copytree(made, ROOT / "dist")
    for each in sorted((ROOT / "dist").iterdir()):
        print(f"{sha256(each.read_bytes()).hexdigest()}  dist/{each.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
