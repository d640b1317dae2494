"""Every test asserts something where a reader looks for it: in its own body."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# Calls that fail the test if something is wrong.
FAILING = re.compile(r"_?(check|assert)\w*|raises|warns|fail")
# A test without any has this comment, and why that is enough.
NOT_RAISING = "# Not raising is "


def without_assertion(source: str) -> Iterator[str]:
    """Yield the tests of a module that assert nothing in their bodies."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
            is_said = any(line.lstrip().startswith(NOT_RAISING) for line in lines)
            if not is_said and not any(_asserts(each) for each in ast.walk(node)):
                yield node.name


def _asserts(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return FAILING.fullmatch(ast.unparse(node.func).rpartition(".")[2]) is not None
    return isinstance(node, ast.Assert)


def test_every_test_asserts_something() -> None:
    assert [
        f"{path.relative_to(TESTS)}: {name}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for name in without_assertion(path.read_text())
    ] == []


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("send()", True),
        ("sent = [f() for f in all]", True),
        ("send()  # Not raising is hidden", True),
        ("def inner(): pass", True),
        ("assert send()", False),
        ("with pytest.raises(ValueError): send()", False),
        ("rows.check(read())", False),
        ("_check_all(1)", False),
        ("\n    # Not raising is what a user sees.\n    send()", False),
    ],
)
def test_a_test_without_assertion_is_found(body: str, *, is_found: bool) -> None:
    assert list(without_assertion(f"def test_it():\n    {body}")) == ["test_it"] * is_found
