"""Checks the Java that Spark will use: it must exist, and be new enough for Spark and Kafka.

`make` runs this check before anything is installed, so the module imports only Python's own
modules. With the argument `jdk`, Java must also have its compiler, which the tests need.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_OLDEST: Final = 17
_ADVICE: Final = f"install a JDK or JRE of version {_OLDEST} or newer"
_COMPILER: Final = re.compile(r"^jdk\.compiler@", re.MULTILINE)
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


def command() -> str:
    """Return the java in JAVA_HOME, or else the java on the PATH, as Spark does."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def problem(*, must_compile: bool = False) -> str | None:
    """Return a sentence that says what is wrong with Java, None if nothing is wrong.

    must_compile: whether Java must be a JDK, which has the compiler.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(command())
    if found is None:
        where = f"JAVA_HOME is {home}, which has none" if home else "there is none on the PATH"
        return f"Java is missing: {where}; {_ADVICE}"
    said = _about_version(found)
    version = _version_in(said)
    if version is None:
        first_line = said.partition("\n")[0]
        return f"Java does not print its version: {found} -version says {first_line!r}; {_ADVICE}"
    if version < _OLDEST:
        return f"Java is too old for Spark and Kafka: {found} is of version {version}; {_ADVICE}"
    if must_compile and not _COMPILER.search(_run(found, "--list-modules").stdout):
        return (
            f"the tests compile programs in Java, and {found} has no compiler, as it is a JRE: "
            f"install a JDK of version {_OLDEST} or newer"
        )
    return None


def version_of(java: str) -> int | None:
    """Return the version of a java, such as 17. Return None if it prints none."""
    return _version_in(_about_version(java))


def _about_version(java: str) -> str:
    try:
        return _run(java, "-version").stderr
    except OSError as error:  # the file is for another processor, or not a program
        return str(error.strerror)


def _version_in(said: str) -> int | None:
    found = _VERSION.search(said)
    return int(found[1]) if found else None


def _run(java: str, argument: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - the user's Java
        [java, argument], capture_output=True, text=True, check=False
    )


if __name__ == "__main__":
    sys.exit(problem(must_compile=sys.argv[1:] == ["jdk"]))
