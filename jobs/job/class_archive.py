"""Options for JVMs that live for a short time: little compilation, and an archive of their classes.

With a class data archive (JEP 350), the JVMs of a demo need a quarter less CPU time. A JVM starts
without the archive if the archive is of another Java or of other jars.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from job import java_version

# A JVM that lives for seconds needs little JIT compilation and garbage collection; these options
# save a fifth of its CPU time.
SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# No message about an archive that does not fit, or that cannot be written.
_QUIET: Final = "-Xlog:disable"


def java_identity() -> str:
    """Return an identification of this machine's Java, which changes if Java is replaced."""
    java = shutil.which(java_version.command())
    return "none" if java is None else f"{int(Path(java).resolve().stat().st_mtime):x}"


def using(archive: Path) -> Sequence[str]:
    """Return the options of a JVM that uses the archive, if the archive is there."""
    if not archive.exists():
        return SHORT_LIVED
    return (*SHORT_LIVED, f"-XX:SharedArchiveFile={archive}", _QUIET)


def making(target: Path) -> Sequence[str]:
    """Return the options of a JVM that writes its classes to a file when it ends."""
    return (*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={target}", _QUIET)


def keep(made: Path, archive: Path) -> None:
    """Copy a file that a JVM has written to its place, if that is possible.

    Another process may do the same at the same time.
    """
    copy = archive.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        try:
            shutil.copyfile(made, copy)
            copy.replace(archive)
        finally:
            copy.unlink(missing_ok=True)
