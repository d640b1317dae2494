"""Pythons without certain modules: programs run as on a machine where these are not installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

PYSPARK: Final = ("pyspark", "pyspark-*", "py4j*")


def modules_without(folder: Path, *patterns: str) -> Path:
    """Fill a folder with links to all installed modules except those that match a pattern."""
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not any(fnmatch(entry.name, pattern) for pattern in patterns):
            (folder / entry.name).symlink_to(entry)
    return folder


def run_with(
    modules: Path, script: str, arguments: Iterable[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a script in a Python whose only installed modules are those of a folder."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "PYSPARK"))}
    return subprocess.run(
        # -S: without the modules that are installed here.
        [sys.executable, "-S", "-c", script, *arguments],
        env={**environment, "PYTHONPATH": str(modules)},
        cwd=modules.parent,
        capture_output=True,
        text=True,
        check=False,
    )
