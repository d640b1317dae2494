"""``make test-matrix``: the table says what did not run, and a run without tests fails."""

from __future__ import annotations

import subprocess
import tempfile
import tomllib
from pathlib import Path

import pytest
from support.programs import dist, matrix


def run(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cells: dict[str, tuple[str, bool | None]],
    *sparks: str,
) -> int:
    """Run each pyspark on these Pythons, with the given results of cells."""

    def run_cell(cell: tuple[str, str, str], *_: object) -> tuple[str, bool | None]:
        return cells[cell[1]]

    def build(command: tuple[object, ...], **_: object) -> None:
        Path(str(command[-2]), "a.whl").touch()

    def find_python(version: str) -> Path | None:
        return None if cells.get(version, ("", None))[1] is None else Path("python")

    monkeypatch.setattr(matrix, "run_cell", run_cell)
    monkeypatch.setattr(matrix, "find_python", find_python)
    monkeypatch.setattr(subprocess, "run", build)
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: str(tmp_path))
    monkeypatch.setattr("sys.argv", ["matrix", "--spark", *sparks, "--python", *cells])
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
    assert run(monkeypatch, tmp_path, cells, "4.2") == code
    table = capsys.readouterr().out.partition("\npyspark  Python   Kafka    tests  result\n")[2]
    assert [said in table for said, _ in cells.values()] == [True, True]


def test_python_3_14_is_tested_with_each_spark_that_supports_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells: dict[str, tuple[str, bool | None]] = {
        "3.13": ("7 passed", True),
        "3.14": ("not run: no python3.14 on the PATH", None),
    }
    assert run(monkeypatch, tmp_path, cells, *matrix.SPARKS) == 0
    table = capsys.readouterr().out.partition("\npyspark  Python   Kafka    tests  result\n")[2]
    ran = [tuple(line.split()[:2]) for line in table.splitlines()]
    assert [spark for spark, python in ran if python == "3.14"] == [*matrix.SPARKS]
    assert [spark for spark, python in ran if python == "3.13"] == [*matrix.SPARKS, "4.3"]
    assert table.count("not run: no python3.14 on the PATH") == 2
    for spark in ("4.0", "4.1"):
        assert f"not run: pyspark {spark} does not support Python 3.14" in table


def test_the_pythons_of_the_tests_are_those_of_the_package_and_of_its_release() -> None:
    project = tomllib.loads((matrix.ROOT / "pyproject.toml").read_text())["project"]
    named = [each.rpartition(" :: ")[2] for each in project["classifiers"]]
    assert tuple(each for each in named if each.startswith("3.")) == matrix.PYTHONS
    assert matrix.PYTHONS == dist.PYTHONS


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
    said_of_cell, good = matrix.run_cell(
        ("4.2", "3.12", "4.3.1"), matrix.CORE, tmp_path, tmp_path / "log", []
    )
    assert (said_of_cell, good) == ("not run: no python3.12 on the PATH", None)


@pytest.mark.parametrize("found", [matrix.PYTHONS, ("3.11",), ("3.12",), ("3.12", "3.14")])
def test_one_cell_of_each_spark_runs_all_tests_and_the_newest_runs_them_on_the_newest_kafka(
    found: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    not_found: tuple[str, bool | None] = ("not run: it is not on the PATH", None)
    cells = dict.fromkeys(matrix.PYTHONS, not_found) | dict.fromkeys(found, ("7 passed", True))
    assert run(monkeypatch, tmp_path, cells, *matrix.SPARKS) == 0
    table = capsys.readouterr().out.partition("\npyspark  Python   Kafka    tests  result\n")[2]
    complete = [tuple(row.split()[:3]) for row in table.splitlines() if row.split()[3] == "all"]
    assert {python for _, python, _ in complete} <= {*found}
    assert [spark for spark, _, _ in complete] == list(matrix.SPARKS)
    assert complete[-1][2] == matrix.KAFKAS[-1]


def test_the_core_is_a_part_of_all_tests_and_both_exist() -> None:
    for path in (*matrix.CORE, *matrix.TESTS):
        assert (matrix.ROOT / path).exists()
    for path in matrix.CORE:
        assert any(Path(path).is_relative_to(each) for each in matrix.TESTS)
