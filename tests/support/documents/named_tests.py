"""Names of tests in documents, for example ``spark/test_columns.py::test_other_columns``.

A name may end with one of the test's cases in brackets.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
_TESTS: Final = ROOT / "tests"
_QUOTED: Final = re.compile(r"`([^`]+)`")


def cells(line: str) -> list[str]:
    """Return the cells of a table row."""
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def named_tests(text: str) -> list[str]:
    """Return the test names that a text has in backquotes."""
    return [name for name in _QUOTED.findall(text) if "::" in name]


def exists(name: str) -> bool:
    """Whether there is such a test with such a case."""
    path, _, test = name.partition("::")
    function, _, case = test.rstrip("]").partition("[")
    functions = _functions(_TESTS / path)
    return function in functions and (not case or case in functions[function])


def source(name: str) -> str:
    """Return the lines of a test and of its decorators; empty if there is no such test."""
    path, _, test = name.partition("::")
    text = (_TESTS / path).read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == test:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return ""


def is_long(name: str) -> bool:
    """Whether a test is marked long, itself or with all tests of its file."""
    path, _, test = name.partition("::")
    tree = ast.parse((_TESTS / path).read_text())
    marks: list[ast.AST] = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == test.partition("[")[0]:
            marks += node.decorator_list
    return any("pytest.mark.long" in ast.unparse(mark) for mark in marks)


@cache
def _functions(path: Path) -> dict[str, set[str]]:
    """Return the tests of a file, with the strings in the parameters of each.

    The parameters are in its decorators and in the constants of the file that these name.
    """
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    constants: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names = [each.id for each in node.targets if isinstance(each, ast.Name)]
            constants |= dict.fromkeys(names, node.value)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            constants[node.target.id] = node.value
    return {
        node.name: {text for each in node.decorator_list for text in _strings(each, constants)}
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def _strings(root: ast.AST, constants: dict[str, ast.AST]) -> set[str]:
    nodes = list(ast.walk(root))
    for name in [node.id for node in nodes if isinstance(node, ast.Name)]:
        nodes += ast.walk(constants[name]) if name in constants else ()
    return {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
