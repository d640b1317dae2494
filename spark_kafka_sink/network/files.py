"""Files of this machine that options name: each is read whole, up to a limit."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

# Far more than any store or file of secrets has; no file fills the memory.
_MOST_BYTES: Final = 16 << 20
# The kernel's own, such as a process's environment: no way round a limit on variables.
_NO_DISK: Final = ("/proc/", "/sys/", "/dev/")


class Disk:
    """The files of this machine, as `auth.references.Files`."""

    def real_path(self, path: str) -> str:
        """Return the absolute path without links."""
        return os.path.realpath(path)

    def read(self, path: str) -> bytes:
        """Return what the file has. Raise OSError or ValueError if it is no file for that."""
        return content(path)


def content(path: str) -> bytes:
    """Return what a file of a disk has. Raise OSError or ValueError if it is none, or too large."""
    real = Path(os.path.realpath(path))
    # Before it is opened, which waits for a writer where it is a pipe.
    if not stat.S_ISREG(real.stat().st_mode) or str(real).startswith(_NO_DISK):
        raise ValueError("it is no file of a disk")
    with real.open("rb") as file:
        found = file.read(_MOST_BYTES + 1)
    if len(found) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    return found
