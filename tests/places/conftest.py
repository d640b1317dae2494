"""The Pythons of the places, which `make test-places` installs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.programs.places import python_of

FindPython = Callable[[str], Path]


@pytest.fixture
def need_python_of() -> FindPython:
    """Returns the Python of a place; skips the test if the place does not run here."""
    return _need_python_of


def _need_python_of(place: str) -> Path:
    python = python_of(place)
    if place in os.environ.get("PLACES_NOT_RUN", "").split(","):
        pytest.skip(f"{place} is not run: its Python is missing, or its packages")
    if not python.exists():
        pytest.skip(f"{place} is not run: make test-places installs it")
    return python
