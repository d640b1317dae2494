"""docs/contributing/exactly-once-cases.md: each case has tests that exist, or says why not."""

from __future__ import annotations

import re

from support.documents.exactly_once_cases import DOCUMENT, read_cases, summary
from support.documents.named_tests import ROOT, exists, is_long


def test_the_cases_are_numbered_from_1_to_48() -> None:
    assert [case.number for case in read_cases()] == list(range(1, 49))


def test_the_tests_of_each_case_exist() -> None:
    names = [name for case in read_cases() for name in case.tests]
    assert [name for name in names if not exists(name)] == []


def test_the_target_runs_the_tests_of_each_case() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^test-exactly-once:.*\n\t(.+)", makefile, re.MULTILINE)
    assert recipe is not None
    paths = [word for word in recipe[1].split() if word.startswith("tests/")]
    within = tuple(f"{path}::" if path.endswith(".py") else f"{path}/" for path in paths)
    names = {f"tests/{name}" for case in read_cases() for name in case.tests}
    assert {name for name in names if not name.startswith(within)} == set()


def test_make_test_runs_the_cases_that_the_page_says() -> None:
    (said,) = re.findall(r"These are at\nleast the cases ([^.]+)\.", DOCUMENT.read_text())
    expected = {int(number) for number in re.findall(r"\d+", said)}
    cases = {case.number: case.tests for case in read_cases()}
    short = {number for number, names in cases.items() if not all(map(is_long, names))}
    assert expected == {1, 2, 4, 7, 12, 20, 21, 22, 23, 27, 36, 37, 41, 42, 43, 44}
    assert expected - short == set()
    assert is_long("exactly_once/test_limits.py::test_200_tasks")
    assert is_long("exactly_once/test_nodes.py::test_the_coordinator_dies_while_tasks_write")


def test_a_case_without_a_test_says_why() -> None:
    assert [case.number for case in read_cases() if not case.tests and len(case.text) < 20] == []


def test_the_summary_counts_what_the_tests_of_a_case_came_to() -> None:
    name = "tests/exactly_once/test_end_txn.py::test_the_answer_to_end_txn"
    lines = list(summary({"passed": [f"{name}[a]", f"{name}[b]"], "failed": [f"{name}[c]"]}))
    # Two more tests of the case are not among these.
    assert lines[2].split()[:8] == ["3", "1", "failed,", "2", "not", "run,", "2", "passed"]
    assert "NOT RUN" in lines[3]
