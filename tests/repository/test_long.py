"""Every test that `make test` leaves to `make test-long` has a reason at its mark."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LONG = "pytest.mark.long"


def without_reason(source: str) -> Iterator[int]:
    """Yield the line of every mark that has no reason."""
    tree = ast.parse(source)
    said = {
        node.func
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for given in node.keywords
        if given.arg == "reason" and isinstance(given.value, ast.Constant) and given.value.value
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == LONG and node not in said:
            yield node.lineno


def test_every_long_test_has_a_reason_beside_it() -> None:
    sources = {path: path.read_text() for path in sorted(TESTS.rglob("*.py"))}
    assert [
        f"{path.relative_to(TESTS)}:{line}: say {LONG}(reason=...)"
        for path, source in sources.items()
        if ".long" in source
        for line in without_reason(source)
    ] == []


@pytest.mark.parametrize(
    "mark",
    [
        f"@{LONG}\ndef test(): pass",
        f"@{LONG}()\ndef test(): pass",
        f"@{LONG}(reason='')\ndef test(): pass",
        f"pytestmark = [pytest.mark.kafka, {LONG}]",
        f"pytest.param('a', marks={LONG})",
    ],
)
def test_a_mark_without_a_reason_is_found(mark: str) -> None:
    assert list(without_reason(mark)) == [1]
    assert list(without_reason(mark.replace(LONG, "pytest.mark.kafka"))) == []
