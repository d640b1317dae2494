"""Pytest runs inside a test, for tests in a folder of their own with the conftest.py of all tests.

Such a run needs `TESTS` as its PYTHONPATH.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[2]


def options(folder: Path) -> list[str]:
    """Return pytest's options for tests in a folder."""
    found = ["-p", "conftest", "-p", "no:randomly", "-p", "no:cacheprovider"]
    return [*found, "-c", str(TESTS.parent / "pyproject.toml"), "--rootdir", str(folder)]
