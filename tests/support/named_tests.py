"""Tests by the names that documents give them: ``spark/test_columns.py::test_other_columns``.

A name may go on with one of the test's cases, in brackets.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_TESTS: Final = ROOT / "tests"
_QUOTED: Final = re.compile(r"`([^`]+)`")


def cells(line: str) -> list[str]:
    """Give the cells of a line of a table."""
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def named_tests(text: str) -> list[str]:
    """Give the tests that a text names, in backquotes."""
    return [name for name in _QUOTED.findall(text) if "::" in name]


def exists(name: str) -> bool:
    """Whether there is such a test, and the case in brackets stands in its file."""
    path, _, test = name.partition("::")
    function, _, case = test.rstrip("]").partition("[")
    return function in _functions(_TESTS / path) and (not case or case in _strings(_TESTS / path))


@cache
def _functions(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text())) if path.is_file() else ()
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return {name for name in names if name.startswith("test_")}


@cache
def _strings(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
