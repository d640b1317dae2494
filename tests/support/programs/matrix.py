"""``make test-matrix``: the tests of Spark on every supported pyspark and Python.

A cell is a pyspark and a Python, with brokers of Apache Kafka 4.3.1. In addition, the newest
pyspark runs with brokers of Kafka 4.4.0, on the first Python that is found. One cell of each
pyspark runs all tests of Spark. The other cells run the core of them, because few faults need one
pyspark and one Python to appear. ``--tests all`` and ``--tests core`` run these in every cell.

Each pair has an environment of its own in the cache, which is made once; the checkout's wheel is
installed into it for every run. A cell whose Python is not on the PATH does not run, and the table
says so.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from job import kafka_jars

ROOT: Final = Path(__file__).parents[3]
SPARKS: Final = ("4.0", "4.1", "4.2", "4.3")
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
# By the classifiers of pyspark, 4.2 is the first version for Python 3.14.
NOT_SUPPORTED: Final = frozenset({("4.0", "3.14"), ("4.1", "3.14")})
KAFKAS: Final = ("4.3.1", "4.4.0")
CORE: Final = (
    "tests/exactly_once/test_spark.py",
    "tests/spark/test_columns.py",
    "tests/spark/test_streaming.py",
    "tests/spark/test_to_kafka.py",
    "tests/spark/test_atomic_layout.py",
    "tests/spark/test_save_modes.py",
    "tests/spark/test_avro.py",
    "tests/jobs/test_readme.py",
    "tests/unit/client/test_future.py",
)
TESTS: Final = (
    "tests/exactly_once/test_spark.py",
    "tests/spark",
    "tests/jobs/test_batch.py",
    "tests/jobs/test_bench.py",
    "tests/jobs/test_demo.py",
    "tests/jobs/test_readme.py",
    "tests/unit/client/test_future.py",
)
# The same options as for `make test`.
PARALLEL: Final = (
    "-n",
    "3",
    "--dist",
    "loadfile",
    "--no-loadscope-reorder",
    "--max-worker-restart",
    "0",
)
# Python 3.13 warns about sockets that py4j does not close. `make test` checks our own sockets.
WARNINGS: Final = ("-W", "ignore:unclosed <socket.socket:ResourceWarning")
# Differences between Spark versions: before 4.2, Spark cannot read ORC timestamps with a time zone,
# and has another message for a damaged file. These are prefixes of test names.
_BEFORE_4_2: Final = (
    "tests/jobs/test_batch.py::test_the_report_tells_partitions_and_offsets[orc]",
    "tests/jobs/test_batch.py::test_what_produce_writes_verify_finds[orc]",
    "tests/jobs/test_batch.py::test_what_cannot_be_done_is_one_sentence[damaged source",
)
# Spark 4.0 keeps a source that it has found, and runs it with the Python of PYSPARK_DRIVER_PYTHON
# or PYSPARK_PYTHON. So these tests cannot choose the Python of the workers, or register again.
_ONLY_4_0: Final = (
    "tests/spark/test_places_standalone.py::test_a_worker_that_lacks_a_module",
    "tests/spark/test_places_standalone.py::test_a_worker_that_cannot_run_the_sink",
    "tests/spark/test_places_standalone.py::test_the_sink_shipped_by_py_files[source]",
)
# The package pyspark 4.3 has no protobuf for Java, without which py4j cannot call SparkEnv.
_ONLY_4_3: Final = ("tests/spark/test_delegation_tokens.py::test_what_goes_to_tasks_has_the_token",)
OTHERWISE: Final = {
    "4.0": (*_BEFORE_4_2, *_ONLY_4_0),
    "4.1": _BEFORE_4_2,
    "4.3": _ONLY_4_3,
}


class CellFailedError(Exception):
    """A cell's tests could not be started; the message is the reason."""


def find_python(version: str) -> Path | None:
    """Return the first working Python of a version on the PATH, None if there is none."""
    for folder in os.get_exec_path():
        python = Path(folder) / f"python{version}"
        if not os.access(python, os.X_OK):
            continue
        asked = subprocess.run([python, "-V"], capture_output=True, text=True, check=False)
        if asked.returncode == 0 and asked.stdout.startswith(f"Python {version}."):
            return python
        # For example pyenv's shims of versions that are not selected.
        print(f"{python} does not run Python {version}: passed over", file=sys.stderr)
    return None


def environment(spark: str, version: str, python: Path) -> Path:
    """Make a cell's environment unless it exists; return its folder."""
    requirements = (ROOT / "pyproject.toml").read_bytes() + spark.encode()
    folder = kafka_jars.cache_folder() / "matrix" / f"pyspark-{spark}-python-{version}"
    made_of, digest = folder / "made-of", hashlib.sha256(requirements).hexdigest()
    if not made_of.exists() or made_of.read_text() != digest:
        _run(python, "-m", "venv", "--clear", folder)
        _pip(folder, f"{ROOT}[test]", f"pyspark[connect]=={spark}.*")
        _run(folder / "bin" / "python", "-m", "support.spark.compiled_spark")
        made_of.write_text(digest)
    return folder


def _pip(folder: Path, *arguments: str | Path) -> None:
    _run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *arguments)


def _run(*command: str | Path) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise CellFailedError((ended.stderr.strip() or "no word why").splitlines()[-1])


def complete_cells(pythons: Sequence[str]) -> set[tuple[str, str, str]]:
    """Return the cells that run all tests, one for each pyspark, if these Pythons are found.

    The Pythons take turns. The newest pyspark runs all tests with the newest Kafka, on the first
    Python.
    """
    cells = set()
    for number, spark in enumerate(SPARKS[:-1]):
        supported = [each for each in pythons if (spark, each) not in NOT_SUPPORTED]
        if supported:
            cells.add((spark, supported[number % len(supported)], KAFKAS[0]))
    return cells | {(SPARKS[-1], each, kafka) for each in pythons[:1] for kafka in KAFKAS[1:]}


def run_cell(
    cell: tuple[str, str, str], tests: Sequence[str], wheel: Path, log: Path, more: list[str]
) -> tuple[str, bool | None]:
    """Run a cell's tests; return the entry for the table, and whether they passed.

    cell: the versions of pyspark, of Python and of the brokers. The result is None if the cell did
    not run.
    """
    spark, version, kafka = cell
    python = find_python(version)
    if python is None:
        return f"not run: no python{version} on the PATH", None
    try:
        folder = environment(spark, version, python)
        _pip(folder, "--no-deps", "--force-reinstall", wheel)
    except CellFailedError as error:
        return f"not installed: {error}", False
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    left_out = [word for name in OTHERWISE.get(spark, ()) for word in ("--deselect", name)]
    pytest = (folder / "bin" / "python", "-P", "-m", "pytest")
    with log.open("w") as output:
        ended = subprocess.run(
            [*pytest, *tests, *PARALLEL, *WARNINGS, *left_out, *more],
            cwd=ROOT,
            # Without brokers, a cell has tested nothing.
            env={**os.environ, "PATH": path, "REQUIRE_KAFKA": "1", "TESTED_KAFKA": kafka},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    summary = log.read_text().splitlines()[-1]
    found = re.findall(r"\d+ (?:passed|failed|skipped|deselected|errors?)", summary)
    return ", ".join(found) or "no tests ran", ended.returncode == 0


def main() -> int:
    """Run the cells and print the table."""
    parser = argparse.ArgumentParser(prog="make test-matrix", description=__doc__)
    parser.add_argument("--spark", nargs="+", choices=SPARKS, default=SPARKS)
    parser.add_argument("--python", nargs="+", choices=PYTHONS, default=PYTHONS)
    parser.add_argument("--tests", choices=("all", "core"), help="run these tests in every cell")
    args, more = parser.parse_known_args()
    logs = Path(tempfile.mkdtemp(prefix="spark-kafka-sink-matrix-"))
    build = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", logs)
    subprocess.run((*build, ROOT), check=True)
    (wheel,) = logs.glob("*.whl")
    rows: list[str] = []
    outcomes: list[bool | None] = []
    cells = [(spark, version, KAFKAS[0]) for spark in args.spark for version in args.python]
    complete = complete_cells([each for each in args.python if find_python(each) is not None])
    cells += sorted(cell for cell in complete if cell[0] in args.spark and cell[2] != KAFKAS[0])
    for spark, version, kafka in cells:
        which = args.tests or ("all" if (spark, version, kafka) in complete else "core")
        log = logs / f"pyspark-{spark}-python-{version}-kafka-{kafka}.log"
        if (spark, version) in NOT_SUPPORTED:
            said, good = f"not run: pyspark {spark} does not support Python {version}", None
        else:
            tests = TESTS if which == "all" else CORE
            said, good = run_cell((spark, version, kafka), tests, wheel, log, more)
        outcomes.append(good)
        said_of_log = f"{said} ({log})" if good is False else said
        rows.append(f"{spark:9}{version:9}{kafka:9}{which:7}{said_of_log}")
        print(
            f"pyspark {spark}, Python {version}, Kafka {kafka}, {which} tests: {said}", flush=True
        )
    print("\npyspark  Python   Kafka    tests  result", *rows, sep="\n")
    if not any(outcomes):
        print("no cell was tested and found good", file=sys.stderr)
        return 1
    return 1 if False in outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
