"""Checks the Java that Spark will use: it must exist, and be new enough for Spark and Kafka.

`make` runs this check before anything is installed, so the module imports only Python's own
modules.
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
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


def command() -> str:
    """Return the java in JAVA_HOME, or else the java on the PATH, as Spark does."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def problem() -> str | None:
    """Return a sentence that says what is wrong with Java, None if nothing is wrong."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(command())
    if found is None:
        where = f"JAVA_HOME is {home}, which has none" if home else "there is none on the PATH"
        return f"Java is missing: {where}; {_ADVICE}"
    try:
        said = subprocess.run(  # noqa: S603 - the user's Java
            [found, "-version"], capture_output=True, text=True, check=False
        ).stderr
    except OSError as error:  # the file is for another processor, or not a program
        said = str(error.strerror)
    version = _VERSION.search(said)
    if version is None:
        first_line = said.partition("\n")[0]
        return f"Java does not print its version: {found} -version says {first_line!r}; {_ADVICE}"
    if int(version[1]) < _OLDEST:
        return f"Java is too old for Spark and Kafka: {found} is of version {version[1]}; {_ADVICE}"
    return None


if __name__ == "__main__":
    sys.exit(problem())
