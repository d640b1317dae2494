"""The commit of a checkout of this project, as git names it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

_UNKNOWN: Final = "not told by git"
_ROOT: Final = Path(__file__).parents[3]


def commit(root: Path = _ROOT) -> str:
    """Return a checkout's commit, with ``-dirty`` after it if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=10"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return _UNKNOWN
    return done.stdout.strip() or _UNKNOWN
