"""``choose_worker_python(spark)``: makes local mode's workers run a Python that has the sink.

Spark's workers run the ``python3`` on the PATH, unless PYSPARK_PYTHON sets another Python. If a
program is started as ``venv/bin/python program.py``, that ``python3`` is not the Python of the
program, and usually lacks the sink. In local mode, the driver and the workers run on one machine,
so the workers can run the driver's Python. On a cluster, and with Spark Connect, they cannot.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.spark.worker import NEEDED

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_SPARKS_DEFAULT: Final = "python3"
_ANSWER_TIMEOUT_S: Final = 60
# Prints the version first, with syntax that every Python knows, because an old Python may fail in
# the later lines.
_QUESTIONS: Final = """
import sys
print("%d.%d" % sys.version_info[:2])
from importlib.util import find_spec
print(" ".join(name for name in sys.argv[1:] if find_spec(name) is None))
"""


def choose_worker_python(spark: SparkSession) -> None:
    """In local mode, set the Python that the workers of a classic session run.

    It is the Python that PYSPARK_PYTHON or spark.pyspark.python sets, or else the driver's. Raise
    ConfigException if the user set a Python that cannot run the sink. No Spark job starts.
    """
    context = spark.sparkContext
    master = context.master or ""
    if master != "local" and not master.startswith("local["):
        return
    if context.pythonExec in ("", _SPARKS_DEFAULT):
        context.pythonExec = _named_python(context) or sys.executable
    if not is_same_python(context.pythonExec, sys.executable):
        _check(context)


def _named_python(context: SparkContext) -> str | None:
    """Return the Python that the user set for the workers, or None if the user set none.

    Spark reads PYSPARK_PYTHON when it starts. It ignores spark.pyspark.python if the driver was not
    started by spark-submit.
    """
    settings = context.getConf()
    named = os.environ.get("PYSPARK_PYTHON") or settings.get("spark.pyspark.python")
    # If only the driver's Python is set, the workers run Spark's default.
    return named or (_SPARKS_DEFAULT if settings.get("spark.pyspark.driver.python") else None)


def is_same_python(first: str, second: str) -> bool:
    """Return whether both names mean the same Python on this machine.

    The Pythons of several virtual environments may be links to one file. So the folders of the
    links are compared, too.
    """
    found, other = shutil.which(first), shutil.which(second)
    return found is not None and other is not None and _identity(found) == _identity(other)


def _identity(python: str) -> tuple[Path, Path]:
    path = Path(python)
    return path.parent.absolute(), path.resolve()


def _check(context: SparkContext) -> None:
    """Raise ConfigException if the workers' Python cannot run the sink."""
    from pyspark import SparkFiles  # noqa: PLC0415 - the package pyspark-client has none

    shipped = context._python_includes or ()  # noqa: SLF001 - there is no public way
    files = [Path(SparkFiles.getRootDirectory(), name) for name in shipped]
    paths = [context.environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH"), *files]
    python_path = os.pathsep.join(str(path) for path in paths if path)
    _check_python(context.pythonExec, python_path)


@functools.cache
def _check_python(python: str, python_path: str) -> None:
    """Raise ConfigException if a Python cannot run the sink.

    Only success is cached. So the next call finds a module that was installed after a failure.
    """
    problem = _problem(python, python_path)
    if problem is not None:
        message = (
            f"Spark's workers would run {python}, which {problem}. The driver runs "
            f"{sys.executable} (Python {_drivers_version()}): set PYSPARK_PYTHON to that before "
            "the Spark session starts"
        )
        raise ConfigException(message)


def _problem(python: str, python_path: str) -> str | None:
    """Return why a Python cannot run the sink, or None if it can."""
    try:
        done = subprocess.run(  # noqa: S603 - Spark is about to run the same program
            [python, "-c", _QUESTIONS, "spark_kafka_sink", *NEEDED],
            env={**os.environ, "PYTHONPATH": python_path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER_TIMEOUT_S,
        )
    except OSError as error:
        return f"cannot be started ({error.strerror})"
    except subprocess.TimeoutExpired:
        return f"did not answer in {_ANSWER_TIMEOUT_S} s"
    version, _, missing = done.stdout.rstrip().partition("\n")
    if version and version != _drivers_version():
        return f"is Python {version}"
    if done.returncode != 0:
        return (
            f"cannot be started ({(done.stderr.strip() or 'it printed nothing').splitlines()[-1]})"
        )
    return f"has no module {', '.join(missing.split())}" if missing else None


def _drivers_version() -> str:
    return ".".join(platform.python_version_tuple()[:2])
