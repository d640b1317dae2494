"""``make test-places``: the tests of places that need another Spark than `make test` has.

Each place has an environment of its own in the cache, which is made once. The checkout's wheel is
installed into it for every run. The tests in tests/places run in the environment of `make test`,
and start their programs with the Python of the place. A place whose Python is not on the PATH does
not run, and a line says so.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from job import kafka_jars

from support.programs.matrix import ROOT, CellFailedError, find_python

TESTS: Final = "tests/places"


class Place(NamedTuple):
    """A place: the Pythons that it supports, the preferred one first, and what pip installs."""

    pythons: tuple[str, ...]
    requirements: tuple[str, ...]


# Wheels of databricks-connect are for the Python of the runtime alone.
PLACES: Final = {
    "declarative-pipelines": Place(("3.11", "3.12", "3.13"), ("pyspark[pipelines]==4.3.*",)),
    "databricks-16.4": Place(("3.12",), ("databricks-connect==16.4.*",)),
    "databricks-17.3": Place(("3.12",), ("databricks-connect==17.3.*",)),
    "sail": Place(("3.12", "3.11", "3.13"), ("pysail==0.7.*", "pyspark-client==4.1.*")),
}


def python_of(name: str) -> Path:
    """Return the path of a place's Python, which exists if the environment was made."""
    return kafka_jars.cache_folder() / "places" / name / "bin" / "python"


def make_environment(name: str, python: Path, wheel: Path) -> None:
    """Make the environment of a place unless it exists, and install the wheel into it."""
    place, own = PLACES[name], python_of(name)
    folder = own.parents[1]
    made_from = (ROOT / "pyproject.toml").read_bytes() + " ".join(place.requirements).encode()
    digest_file, digest = folder / "made-from", hashlib.sha256(made_from).hexdigest()
    if not digest_file.exists() or digest_file.read_text() != digest:
        _run(python, "-m", "venv", "--clear", folder)
        _run(own, "-m", "pip", "install", "--quiet", wheel, *place.requirements)
        digest_file.write_text(digest)
    _run(own, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", wheel)


def build_wheel(folder: str) -> Path:
    """Build the checkout's wheel into an empty folder."""
    build = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir")
    _run(*build, folder, ROOT)
    (wheel,) = Path(folder).glob("*.whl")
    return wheel


def make_python(name: str, wheel: Path) -> Path:
    """Make the environment of a place and return its Python. Raise CellFailedError."""
    python = _base_python(name)
    if python is None:
        raise CellFailedError(_missing(name))
    make_environment(name, python, wheel)
    return python_of(name)


def _base_python(name: str) -> Path | None:
    found = (find_python(version) for version in PLACES[name].pythons)
    return next((each for each in found if each is not None), None)


def _missing(name: str) -> str:
    return f"no {' or '.join(f'python{version}' for version in PLACES[name].pythons)} on the PATH"


def _run(*command: str | Path) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise CellFailedError((ended.stderr.strip() or "no word why").splitlines()[-1])


def make_environments(wheel: Path) -> tuple[list[str], list[str]]:
    """Make the environment of every place; return the places that failed, and that do not run."""
    failed, not_run = [], []
    for name in PLACES:
        python = _base_python(name)
        if python is None:
            print(f"{name}: not run: {_missing(name)}", flush=True)
            not_run.append(name)
            continue
        try:
            make_environment(name, python, wheel)
        except CellFailedError as error:
            print(f"{name}: not installed: {error}", file=sys.stderr, flush=True)
            failed.append(name)
    return failed, not_run


def main() -> int:
    """Make the environments and run the tests. Return 1 if one of them failed."""
    with tempfile.TemporaryDirectory(prefix="spark-kafka-sink-places-") as folder:
        failed, not_run = make_environments(build_wheel(folder))
    left_out = ",".join(failed + not_run)
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", TESTS, *sys.argv[1:]],
        cwd=ROOT,
        # Without brokers, a place has tested nothing.
        env={**os.environ, "REQUIRE_KAFKA": "1", "PLACES_NOT_RUN": left_out},
        check=False,
    )
    return 1 if failed else ended.returncode


if __name__ == "__main__":
    sys.exit(main())
