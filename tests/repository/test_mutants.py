"""The mutants: each applies to the current code, is reverted, and is reported by name."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mutants.catalogue import ROOT, Mutant, MutantError, applied, check_installed, chosen, mutants
from mutants.results import Results, verdicts
from mutants.run import outcomes

MUTANTS = mutants()
FAULT = Mutant(
    name="a-fault", file="module.py", old="1", new="2", breaks="One is one.", tests=["tests"]
)
SLOW = "tests/spark/test_slow.py"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_a_fault_in_the_code_as_it_is(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    assert mutant.mutated(text) != text
    if mutant.file.endswith(".py"):
        ast.parse(mutant.mutated(text))
    assert mutant.breaks.endswith(".")
    assert [test for test in mutant.tests if not (ROOT / test).exists()] == []


def test_no_mutant_names_what_is_not_there(tmp_path: Path) -> None:
    """The tests of such a mutant would always fail, by a NameError."""
    for mutant in MUTANTS:
        text, kind = (ROOT / mutant.file).read_text(), Path(mutant.file).suffix
        (tmp_path / f"{mutant.name}{kind}").write_text(mutant.mutated(text))
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821"]
    run = subprocess.run([*ruff, "."], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_name_is_of_one_mutant() -> None:
    assert [mutant.name for mutant in chosen([])] == [mutant.name for mutant in MUTANTS]
    assert chosen([MUTANTS[3].name]) == [MUTANTS[3]]
    with pytest.raises(MutantError, match="no mutant is named unheard-of: --list shows"):
        chosen(["unheard-of"])


@pytest.mark.parametrize("text", ["", "1 + 1"])
def test_a_text_that_is_not_there_once_is_an_error_and_the_file_stays_as_it_is(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    words = r"the old text is [02] times in module\.py, expected once"
    with pytest.raises(MutantError, match=words), applied(FAULT, [path]):
        pytest.fail("it was applied")
    assert path.read_text() == text


def test_the_file_is_as_it_was_after_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("one = 1\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))

    def interrupted() -> None:
        with applied(FAULT, [path]):
            assert path.read_text() == "one = 2\n"
            assert path.stat().st_mtime > 1_000_000_000, "bytecode of the original would be used"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "one = 1\n"
    assert path.stat().st_mtime == 1_000_000_000


def test_a_package_that_is_not_the_one_of_the_checkout_is_refused(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        (folder / "spark_kafka_sink" / "spark").mkdir(parents=True)
        (folder / "spark_kafka_sink" / "spark" / "task.py").write_text("1")
    check_installed(here, there)
    (there / "spark_kafka_sink" / "spark" / "task.py").write_text("2")
    with pytest.raises(MutantError, match=r"spark/task\.py is not the same in .*there and in"):
        check_installed(here, there)


def test_a_test_that_fails_in_any_way_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_ways.py").write_text(
        "import os, pytest\n"
        "@pytest.fixture\ndef broken(): raise OSError\n"
        "def test_passes(): pass\n"
        "def test_fails(): assert False\n"
        "def test_errors(broken): pass\n"
        "def test_crashes(): os._exit(1)\n"
        "@pytest.mark.long\ndef test_takes_long(): assert False\n"
    )
    (tmp_path / "test_import.py").write_text("import nothing_of_that_name\n")
    found = outcomes([str(tmp_path)], processes=1)
    failed = {re.split("::|/", test)[-1]: outcome.failed for test, outcome in found.items()}
    assert failed.pop("test_import.py")
    assert failed == {
        "test_passes": False,
        "test_fails": True,
        "test_errors": True,
        "test_crashes": True,
    }


def test_a_run_can_end_with_the_first_test_that_fails(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "def test_1(): pass\ndef test_2(): assert False\ndef test_3(): assert False\n"
    )
    found = outcomes([str(tmp_path)], processes=1, stops_at_first=True)
    failed = {test.split("::")[1]: outcome.failed for test, outcome in found.items()}
    assert failed == {"test_1": False, "test_2": True}


def results() -> Results:
    quick, slow = "tests/unit/test_quick.py::test_a[1]", f"{SLOW}::test_a"
    return Results(
        seconds={quick: 0.1, slow: 20.0, f"{SLOW}::test_b": 1.0, f"{SLOW}::test_c": 5.0},
        killers={
            "both": [slow, quick],
            "slow alone": [slow],
            "slow ones": [f"{SLOW}::test_c", slow],
            "none": [],
        },
    )


def test_killers_are_told_with_the_quickest_first(tmp_path: Path) -> None:
    results().write(tmp_path / "kills.json")
    found = Results.read(tmp_path / "kills.json")
    assert found == results()
    assert found.line("both") == (
        f"both: tests/unit/test_quick.py::test_a[1] (0.1 s), {SLOW}::test_a (20.0 s)"
    )
    assert found.line("none") == "none: SURVIVED"


@pytest.mark.parametrize(
    ("candidates", "may_go", "said"),
    [
        ([f"{SLOW}::test_b"], [True], "test_b: may go; it kills no mutant"),
        ([f"{SLOW}::test_c"], [True], "test_c: may go; killed also: slow ones by tests/spark/"),
        ([f"{SLOW}::test_a"], [False], "MUST STAY; .* slow alone by NOTHING ELSE"),
        (["tests/unit/test_quick.py"], [True], "killed also: both by tests/spark"),
        (["tests/unit/test_quick.py::test_a"], [True], "killed also: both by tests/spark"),
        ([f"{SLOW}::test_c", f"{SLOW}::test_a"], [False, False], "slow ones by NOTHING ELSE"),
        (["tests/unit/test_q"], [False], "test_q: was run with no mutant"),
    ],
)
def test_a_test_may_go_if_another_that_stays_kills_what_it_kills(
    candidates: list[str], may_go: list[bool], said: str
) -> None:
    found = verdicts(results(), candidates)
    assert [each for each, _ in found] == may_go
    lines = "\n".join(line for _, line in found)
    assert re.search(said, lines), lines
