"""Files of this machine that options name: each is read completely, up to a limit."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

# A limit on memory; it is far more than any store or file of secrets has.
_MAX_FILE_BYTES: Final = 16 << 20
# Files of the kernel are not read, or a process's environment could be read in spite of the limits.
_KERNEL_FILES: Final = ("/proc/", "/sys/", "/dev/")


class Disk:
    """The files of this machine, as `auth.references.Files`."""

    def real_path(self, path: str) -> str:
        """Return the absolute path without links."""
        return os.path.realpath(path)

    def read(self, path: str) -> bytes:
        """Return the contents of a file. Raise OSError or ValueError if it cannot be used."""
        return content(path)


def content(path: str) -> bytes:
    """Return the contents of a file.

    Raise OSError or ValueError for other kinds and large files.
    """
    real = Path(os.path.realpath(path))
    # Check this before opening the file: opening a pipe would wait for a writer.
    if not stat.S_ISREG(real.stat().st_mode) or str(real).startswith(_KERNEL_FILES):
        raise ValueError("it is not a regular file on a disk")
    with real.open("rb") as file:
        found = file.read(_MAX_FILE_BYTES + 1)
    if len(found) > _MAX_FILE_BYTES:
        raise ValueError(f"it has more than {_MAX_FILE_BYTES} bytes")
    return found
