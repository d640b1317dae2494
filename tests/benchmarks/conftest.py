"""The modules of jobs/, as a job that runs imports them: by their names alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

_JOBS: Final = Path(__file__).parents[2] / "jobs"


@pytest.fixture
def job_module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Give what imports one of them."""
    monkeypatch.syspath_prepend(str(_JOBS))
    return importlib.import_module
