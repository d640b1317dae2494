"""``make test-places``: a place that cannot run is named, and one that fails is a failure."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from support.programs import places
from support.programs.matrix import CellFailedError


class Run:
    """A run with a Python 3.12 and no other; `broken` are the places that pip cannot install."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, *broken: str) -> None:
        self.made: list[str] = []
        self.environment: dict[str, str] = {}
        self._broken, self._folder = broken, folder
        monkeypatch.setattr(places, "find_python", self._find_python)
        monkeypatch.setattr(places, "make_environment", self._make)
        monkeypatch.setattr(subprocess, "run", self._run)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        monkeypatch.setattr("sys.argv", ["places"])

    @staticmethod
    def _find_python(version: str) -> Path | None:
        return Path("/usr/bin/python3.12") if version == "3.12" else None

    def _make(self, name: str, python: Path, wheel: Path) -> None:
        if name in self._broken:
            raise CellFailedError("no such wheel")
        self.made.append(name)

    def _run(
        self, command: tuple[str, ...], env: dict[str, str] | None = None, **_: object
    ) -> subprocess.CompletedProcess[str]:
        if env is None:
            Path(command[-2], "a.whl").touch()
        else:
            self.environment = env
        return subprocess.CompletedProcess(command, 0)


def test_places_whose_python_is_missing_are_named_and_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(monkeypatch, tmp_path)
    monkeypatch.setitem(places.PLACES, "old", places.Place(("3.7", "3.8"), ()))
    assert places.main() == 0
    assert capsys.readouterr().out == "old: not run: no python3.7 or python3.8 on the PATH\n"
    assert run.environment["PLACES_NOT_RUN"] == "old"
    assert run.environment["REQUIRE_KAFKA"] == "1"
    assert run.made == ["declarative-pipelines", "databricks-16.4", "databricks-17.3", "sail"]


def test_a_place_that_cannot_be_installed_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(monkeypatch, tmp_path, "sail")
    assert places.main() == 1
    assert capsys.readouterr().err == "sail: not installed: no such wheel\n"
    assert run.environment["PLACES_NOT_RUN"] == "sail"
