"""Spark's Python processes: checks before the sink is imported, and settings of the process.

A module may be missing, because pip does not install pyspark with the sink, and `--py-files` ships
no C extensions. Without these checks, the error would be the last line of a long traceback.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import platform
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

# Spark 4.3 sets this variable of a worker for tracebackWithLocals.enabled, and reads it for each
# exception.
WITH_LOCALS: Final = "SPARK_TRACEBACK_WITH_LOCALS"

# The modules that the sink needs, with their oldest versions, as in pyproject.toml.
NEEDED: Final = {
    "numpy": "1.26",
    "pyarrow": "19",
    "crc32c": "2.7",
    "lz4": "4.3",
    "msgspec": "0.19",
}
_INSTALL_SPARK: Final = (
    'pip install "path/to/spark-kafka-sink[spark]" with the path of your clone, or run your '
    "program with the Python that your cluster's Spark brings"
)


def check_pyspark() -> None:
    """Raise ImportError if this Python has no pyspark, or a version that is too old."""
    if find_spec("pyspark") is None:
        message = (
            f"No module named 'pyspark' for {sys.executable}: spark-kafka-sink does not install it "
            f"by itself, because a cluster brings its own. Run {_INSTALL_SPARK}"
        )
        raise ModuleNotFoundError(message, name="pyspark")
    name = "pyspark.sql.datasource"
    if find_spec(name) is None or not hasattr(import_module(name), "DataSourceArrowWriter"):
        version = import_module("pyspark").__version__
        message = (
            f"the pyspark of {sys.executable} is {version}, but spark-kafka-sink needs 4.0 or "
            f"newer. Run {_INSTALL_SPARK}"
        )
        raise ImportError(message, name="pyspark")


def check_modules() -> None:
    """Raise ModuleNotFoundError if a module that the sink needs cannot be found."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        it = "it" if len(missing) == 1 else "them"
        message = (
            f"No module named {' and '.join(map(repr, missing))} for {sys.executable} on "
            f"{platform.node()}: spark-kafka-sink needs {it} wherever Spark runs Python, and "
            f"--py-files cannot ship {it}; install {it} there, or ship an environment that has "
            f"{it} by --archives"
        )
        raise ModuleNotFoundError(message, name=missing[0])


def check_versions() -> None:
    """Import all modules that the sink needs, and raise ImportError if one of them is too old.

    A module without a version is accepted.
    """
    for name, oldest in NEEDED.items():
        version = getattr(import_module(name), "__version__", oldest)
        if _release(version) < _release(oldest):
            message = (
                f"the {name} of {sys.executable} on {platform.node()} is {version}, but "
                f"spark-kafka-sink needs {oldest} or newer: install a newer {name} there with "
                "pip, or ship an environment that has one by --archives"
            )
            raise ImportError(message, name=name)


# A digest of the fields of all pickled classes; python -m support.house.build_digest makes it.
_FIELDS: Final = "dc9d07f3"


def build() -> str:
    """Return the version of the sink, and the digest of what its processes pass to each other."""
    from spark_kafka_sink.model import __version__  # noqa: PLC0415 - needs a recent Python

    return f"{__version__} (fields {_FIELDS})"


def new_object(build_of_driver: str, kind: bytes) -> object:
    """Return an object without attributes, which pickle then sets. kind: its pickled class.

    Raise ConfigException if another build has pickled the object. Its fields could have another
    meaning there.
    """
    with hides_options():
        if build_of_driver != build():
            from spark_kafka_sink.errors import ConfigException  # noqa: PLC0415 - likewise

            message = (
                f"the spark-kafka-sink of {sys.executable} on {platform.node()} is {build()}, but "
                f"that of the driver is {build_of_driver}: install the same one on the driver and "
                "on all executors"
            )
            raise ConfigException(message)
        found: type = pickle.loads(kind)  # noqa: S301 - of the same driver as the call
    return object.__new__(found)


@contextmanager
def hides_options() -> Iterator[None]:
    """Context manager: if an exception is raised, Spark shows it without the values of variables.

    The frames of Spark that unpickle the sink's objects contain its options, with their passwords.
    """
    try:
        yield
    except BaseException:
        os.environ.pop(WITH_LOCALS, None)
        raise


def _release(version: str) -> list[int]:
    """Return the numbers at the beginning of a version."""
    found = re.match(r"\d+(\.\d+)*", version)
    return [int(number) for number in found[0].split(".")] if found else []


KEPT_BYTES: Final = 64 * 1024 * 1024
# Arrays below this size are allocated on the heap. glibc before 2.35 accepts at most HEAP_MAX_SIZE
# / 2, which is 32 MiB in 64-bit processes.
_MMAP_THRESHOLD_BYTES: Final = 32 * 1024 * 1024

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

# A flag, because gc.get_freeze_count() would also count objects that others have frozen.
_is_frozen = False


def keep_heap() -> None:
    """Set glibc's malloc thresholds in this process. Do nothing without glibc."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        # Either call turns off glibc's dynamic mmap threshold. So if the first call fails, the
        # second one would do harm.
        if mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES) == 1:
            mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def freeze_imports() -> None:
    """Exclude all current objects of this process from garbage collection; do it only once."""
    global _is_frozen  # noqa: PLW0603 - of this process
    if not _is_frozen:
        _is_frozen = True
        gc.freeze()


_OPEN_FILES: Final = Path("/proc/self/fd")


def acknowledge_now() -> None:
    """Send TCP acknowledgements at once on all open connections; do nothing outside Linux.

    This is for the connection to Spark, but it is not known which of the open files that is. On
    other connections, for example to brokers, an acknowledgement is only sent a little earlier.
    For files that are not TCP connections, the call fails, and the failure is ignored. Python's
    socket class is not used, because a socket that is made from an open file makes the file
    non-blocking if a program has set a default timeout.
    """
    with suppress(OSError, AttributeError):
        setsockopt = ctypes.CDLL(None).setsockopt
        on, option = ctypes.c_int(1), socket.TCP_QUICKACK
        for file in _OPEN_FILES.iterdir():
            setsockopt(
                int(file.name), socket.IPPROTO_TCP, option, ctypes.byref(on), ctypes.sizeof(on)
            )
