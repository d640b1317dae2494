"""``make test-matrix``: the table says what did not run, and a run without tests fails."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from support.programs import matrix


def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cells: dict[str, tuple[str, bool | None]]
) -> int:
    """Run one pyspark on these Pythons, with the given results of cells."""

    def run_cell(_spark: str, version: str, *_: object) -> tuple[str, bool | None]:
        return cells[version]

    def build(command: tuple[object, ...], **_: object) -> None:
        Path(str(command[-2]), "a.whl").touch()

    monkeypatch.setattr(matrix, "run_cell", run_cell)
    monkeypatch.setattr(subprocess, "run", build)
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: str(tmp_path))
    monkeypatch.setattr("sys.argv", ["matrix", "--spark", "4.2", "--python", *cells])
    return matrix.main()


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([True, True], 0),
        ([True, None], 0),
        ([True, False], 1),
        ([False, None], 1),
        ([None, None], 1),
    ],
)
def test_the_exit_code_is_good_news_only(
    outcomes: list[bool | None],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = {True: "7 passed", False: "1 failed", None: "not run: no python3.12 on the PATH"}
    cells = {
        version: (words[good], good)
        for version, good in zip(matrix.PYTHONS, outcomes, strict=False)
    }
    assert run(monkeypatch, tmp_path, cells) == code
    table = capsys.readouterr().out.partition("\npyspark  Python   Kafka    tests\n")[2]
    assert [said in table for said, _ in cells.values()] == [True, True]


def test_a_python_that_does_not_run_is_passed_over_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, script in (("broken", "exit 127"), ("other", "echo Python 3.9.1")):
        (tmp_path / folder).mkdir()
        python = tmp_path / folder / "python3.12"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'broken'}:{tmp_path / 'other'}")
    assert matrix.find_python("3.12") is None
    said = capsys.readouterr().err
    assert f"{tmp_path / 'broken' / 'python3.12'} does not run Python 3.12" in said
    said_of_cell, good = matrix.run_cell("4.2", "3.12", "4.3.1", tmp_path, tmp_path / "log", [])
    assert (said_of_cell, good) == ("not run: no python3.12 on the PATH", None)
