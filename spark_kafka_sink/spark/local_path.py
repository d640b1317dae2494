"""Checks the paths in options that name a file or a folder, for example `reportPath`.

Some options, for example that of a keytab, may also name a file that the job has shipped.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.logs import masked

# The prefix of the path in file:/a, file:///a, file://localhost/a, and in URLs of other schemes.
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?://(?:localhost)?(?=/))?(?=/)")

# The longest name on common filesystems, and the longest path in Linux system calls, in bytes.
_LONGEST_NAME: Final = 255
_LONGEST_PATH: Final = 4095
_SHOWN: Final = 60


def local_path(option: str, value: str, elsewhere: str, expected: str) -> Path:
    """Return the path that an option names. Raise ConfigException if it is invalid.

    elsewhere: the part of the error message about a path with a host, or with a scheme other than
    file. expected: the part of the error message that describes valid paths.
    """
    scheme = _SCHEME.match(value)
    path = value if scheme is None else value[scheme.end() :]
    is_of_a_host = scheme is not None and scheme[0].endswith(":") and path.startswith("//")
    if is_of_a_host or (scheme is not None and scheme[1].lower() != "file"):
        found = f"{masked(value)!r}, {elsewhere}"
    elif not value.strip():
        found = "empty"
    elif _is_impossible(path):
        shown = masked(value)
        cut = "" if len(shown) <= _SHOWN else "…"
        found = f"{shown[:_SHOWN]!r}{cut}, which contains NUL or is too long for a filesystem"
    else:
        return Path(path)
    message = f"option {option} is {found}: expected {expected}"
    raise ConfigException(message)


def absolute_path(option: str, value: str, elsewhere: str, expected: str) -> Path:
    """Return the path that an option names. Raise ConfigException if it is invalid or relative.

    A relative path may name different files in two processes, even on one host. The arguments are
    those of `local_path`.
    """
    path = local_path(option, value, elsewhere, expected)
    if not path.is_absolute():
        shown = masked(str(path))
        message = f"option {option} is {shown}, not an absolute path: expected {expected}"
        raise ConfigException(message)
    return path


def _is_impossible(path: str) -> bool:
    names = [len(os.fsencode(part)) for part in path.split("/")]
    return "\0" in path or max(names) > _LONGEST_NAME or len(os.fsencode(path)) > _LONGEST_PATH


# YARN's own files in the working directory of a container. They contain the environment and the
# tokens of the application, so no option may name them.
_OF_YARN: Final = re.compile(
    r"\.?(launch_container\.sh|container_tokens|\w*container_executor\w*\.sh|yarn_provided\.\w+)"
    r"(\.crc)?"
)


def shipped_path(name: str) -> str | None:
    """Return the local path of a file that `--files` shipped, or None if no such file was shipped.

    Driver and executors store shipped files in different folders, so the path differs between
    processes.
    """
    if _OF_YARN.fullmatch(name):
        return None
    # Outside Spark's processes, SparkFiles raises AssertionError.
    with suppress(AssertionError, ImportError):
        from pyspark import SparkFiles  # noqa: PLC0415 - the package pyspark-client has none

        path = SparkFiles.get(name)
        return path if Path(path).is_file() else None
    return None
