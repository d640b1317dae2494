"""docs/contributing/exactly-once-cases.md: each case has tests that exist, or says why not."""

from __future__ import annotations

from support.documents.exactly_once_cases import read_cases, summary
from support.documents.named_tests import exists


def test_the_cases_are_numbered_from_1_to_48() -> None:
    assert [case.number for case in read_cases()] == list(range(1, 49))


def test_the_tests_of_each_case_exist() -> None:
    names = [name for case in read_cases() for name in case.tests]
    assert [name for name in names if not exists(name)] == []


def test_a_case_without_a_test_says_why() -> None:
    assert [case.number for case in read_cases() if not case.tests and len(case.text) < 20] == []


def test_the_summary_counts_what_the_tests_of_a_case_came_to() -> None:
    name = "tests/exactly_once/test_end_txn.py::test_the_answer_to_end_txn"
    lines = list(summary({"passed": [f"{name}[a]", f"{name}[b]"], "failed": [f"{name}[c]"]}))
    assert lines[2].split()[:5] == ["3", "1", "failed,", "2", "passed"]
    assert "NOT RUN" in lines[3]
